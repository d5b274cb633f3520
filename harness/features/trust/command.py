"""`trust`: show the settings file and the providers file of this folder, and let them count as they are now."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from harness.benchmarks.files import input_file
from harness.config import options, providers, user_files
from harness.errors import BadInput, MachineError
from harness.ui.streams import can_ask, show, tell

EXAMPLES = ("harness trust",)


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Options(options.Options):
    """Nothing: the command is about the two files that other commands look for here."""


def execute(args: Options) -> int:
    found = [path for path in map(Path, (user_files.SETTINGS, providers.FILE)) if os.path.isfile(path)]
    if not found:
        raise BadInput(f"there is neither {user_files.SETTINGS} nor {providers.FILE} in {Path.cwd()}")
    for path in found:
        _allow(path)
    return 0


def _allow(path: Path) -> None:
    """Show a file and record that it counts; on a terminal, once the user has agreed. Raise `BadInput`."""
    data = input_file(path, most=user_files.LARGEST)
    user_files.document(path, data)  # one that cannot be used is refused here, with its line
    digest = sha256(data).hexdigest()
    if user_files.digest_of(path, os.environ) == digest:
        tell(f"{path.absolute()} is allowed already")
        return
    show(f"{path.absolute()}  (SHA-256 {digest})\n\n{data.decode('utf-8-sig').rstrip()}\n")
    if can_ask():
        tell(f"let {path} decide addresses, keys, files and code of commands in this folder? [y/N]")
        if sys.stdin.readline().strip().lower() not in ("y", "yes"):
            raise BadInput(f"{path} stays ignored")
    record = _recorded(path, digest)
    tell(f"{path.absolute()} counts from now on, until it changes; delete {record} to take this back")


def _recorded(path: Path, digest: str) -> Path:
    """Record that a file of the current folder counts with this SHA-256. Return the record's path.

    Raise `MachineError` if the record cannot be written.
    """
    record = user_files.record_of(path, os.environ)
    if record is None:
        raise MachineError(f"there is no folder for the record, since HOME is not set: name {path} with an option")
    try:
        user_files.write_private(record, b"%s  %s\n" % (digest.encode(), os.fsencode(path.absolute())))
    except OSError as error:
        raise MachineError(f"cannot write {record}: {error.strerror}") from None
    return record
