"""`trust`: show the settings file and the providers file of this folder, and let them count as they
are now."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Sequence
from hashlib import sha256
from itertools import groupby
from pathlib import Path
from typing import ClassVar

from harness.benchmarks.files import input_file
from harness.errors import BadInput, MachineError
from harness.option import command_options
from harness.options import options, providers, user_files
from harness.ui.streams import show, tell
from harness.ui.words import plural

MANY_BLANKS = re.compile(r"\s{40,}")


@command_options
class Options(options.Options):
    """Nothing: the command is about the two files that other commands look for here."""

    examples: ClassVar[Sequence[str]] = ("harness trust",)


def execute(args: Options) -> int:
    paths = [
        path for path in map(Path, (user_files.SETTINGS, providers.FILE)) if os.path.isfile(path)
    ]
    if not paths:
        raise BadInput(
            f"there is neither {user_files.SETTINGS} nor {providers.FILE} in {Path.cwd()}"
        )
    for path in paths:
        _allow(path)
    return 0


def _allow(path: Path) -> None:
    """Show a file, and record that it counts once the user has agreed. Raise `BadInput`."""
    data = input_file(path, max_bytes=user_files.MAX_FILE_BYTES)
    user_files.document(path, data)  # one that cannot be used is refused here, with its line
    # Of the bytes that are shown: the file may change while the user reads.
    digest = sha256(data).hexdigest()
    if user_files.digest_of(path, os.environ) == digest:
        tell(f"{path.absolute()} is allowed already")
        return
    # `splitlines` would also split at form feeds and U+2028, which end no line in TOML.
    lines = data.decode("utf-8-sig").replace("\r\n", "\n").rstrip().split("\n")
    show("\n".join([f"{path.absolute()}  (SHA-256 {digest})", "", *_numbered(lines), ""]))
    count = plural(len(lines), "line")
    tell(
        f"let {path} ({count}, shown above) decide addresses, keys, files and code of commands in"
        " this folder? [y/N]"
    )
    if _answer().strip().lower() not in ("y", "yes"):
        raise BadInput(f"{path} stays ignored: no yes was read from stdin")
    record = _recorded(path, digest)
    tell(
        f"{path.absolute()} counts from now on, until it changes; delete {record} to take this back"
    )


def _numbered(lines: Sequence[str]) -> Iterator[str]:
    """Yield lines with their numbers. Blank ones, and blanks within a line, that could push others
    out of sight are counted instead."""
    for is_blank, group in groupby(enumerate(lines, 1), lambda line: not line[1].strip()):
        members = list(group)
        if is_blank and len(members) > 1:
            yield f"     ({len(members)} blank lines)"
            continue
        for number, line in members:
            text = MANY_BLANKS.sub(lambda blanks: f"({len(blanks[0])} blanks)", line)
            yield f"{number:>4}  {text}"


def _answer() -> str:
    """Return a line of standard input, empty if it is closed."""
    try:
        # None if the process was started with its standard input closed.
        if sys.stdin:
            # A pipe may have no line end at all.
            return sys.stdin.readline(100)
        return ""
    except (OSError, ValueError):
        return ""


def _recorded(path: Path, digest: str) -> Path:
    """Record that a file of the current folder counts with this SHA-256. Return the record's path.

    Raise `MachineError` if the record cannot be written.
    """
    record = user_files.record_of(path, os.environ)
    if record is None:
        raise MachineError(
            f"there is no folder for the record, since HOME is not set: name {path} with an option"
        )
    try:
        user_files.write_private(
            record, b"%s  %s\n" % (digest.encode(), os.fsencode(path.absolute()))
        )
    except OSError as error:
        raise MachineError(f"cannot write {record}: {error.strerror}") from None
    return record
