"""Outputs: files that a user names, or that have the harness's own names in a results folder, and can be made again.

Guarantee: an output replaces only what the harness wrote; any other file of that name stays, and the command is
refused, unless the user gives `--force`. A symbolic link is no file that the harness wrote. Which files it wrote:

- Pages and workbooks, of any version and machine, have a form of their own: the policy of the page, the layout of the
  sheets. A workbook that a spreadsheet has saved since has another form.
- Tables, rows and logs have none that their readers would not see. For those a record is kept, with size and SHA-256 of
  what was written, by path, in the user's state folder. There no folder from somebody else can add one.

Not covered: a file that another process puts there while the new content is made; a page that was edited by hand below
its head. Where the state folder cannot be written there is no record, and the next output needs `--force`.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import struct
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from lzma import LZMAError
from pathlib import Path
from typing import BinaryIO
from zipfile import BadZipFile, ZipFile

from harness.benchmarks.files import content, open_regular
from harness.config.options import Forced
from harness.config.user_files import user_folder
from harness.errors import BadInput, MachineError
from harness.store import atomic
from harness.store.disk import DISK, KEEP

PAGE = (
    b'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<meta http-equiv="Content-Security-Policy" '
    b'content="default-src &#39;none&#39;; script-src &#39;sha256-'
)
"""How every page begins."""
WORKBOOK = {
    "docProps/app.xml": (b"<Application>Microsoft Excel</Application>", b"<AppVersion>12.0000</AppVersion>"),
    "xl/worksheets/sheet1.xml": (
        b'<pageSetUpPr fitToPage="1"/>',
        b'<pane xSplit="1" ySplit="1" topLeftCell="B2"',
        b'<sheetFormatPr defaultRowHeight="16.5" customHeight="1"/>',
    ),
}
"""What the parts of every workbook contain: the version that only its writer names, and the layout of `xlsx`."""
LOCK = ".lock"
RECORD_MOST = 2**10
"""Bytes of a record."""
PART_MOST = 2**16
"""Bytes of a part that are read."""
NO_ARCHIVE = (BadZipFile, zlib.error, LZMAError, struct.error, KeyError, ValueError, RuntimeError, EOFError)
"""What `zipfile` raises for an archive that is none, damaged, encrypted, or without a part."""


@dataclass(frozen=True, slots=True)
class Outputs:
    """What may be replaced: everything with `force`, else what has the harness's form or is among the `records`."""

    force: bool = False
    records: Path | None = None

    @classmethod
    def of(cls, args: Forced) -> Outputs:
        """Return what a command's outputs may replace."""
        found = user_folder(os.environ, "XDG_STATE_HOME", ".local/state")
        return cls(args.force, found / "outputs" if found else None)

    def check(self, *paths: Path) -> None:
        """Raise `BadInput` for a file that the harness did not write."""
        for path in paths:
            if not self.force and os.path.lexists(path) and not self._is_own(path):
                raise BadInput(
                    f"{path}: a file has this name that the harness did not write here, or that was changed since: "
                    "choose another name, move it away, or replace it with --force"
                )

    @contextmanager
    def opened(self, path: Path) -> Iterator[BinaryIO]:
        """Open a file for an output, which takes the place when the block ends without error. Raise as `check`, and
        `MachineError`."""
        self.check(path)
        with ExitStack() as held:
            with atomic.replacing(path, shared=True) as file:
                yield file
                held.enter_context(self._locked())
            if self.records and not _has_form(path):
                with suppress(OSError, MachineError):  # the module's docstring says what follows
                    atomic.write(_record(self.records, path), _size(path) + b" " + _sha256(path), shared=True)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Keep others from looking while an output has its place and not its record yet, where there are locks."""
        with ExitStack() as held:
            if self.records:
                with suppress(OSError):
                    self.records.mkdir(mode=0o700, parents=True, exist_ok=True)
                    fd = DISK.open(self.records / LOCK, KEEP)
                    held.callback(DISK.close, fd)
                    fcntl.flock(fd, fcntl.LOCK_EX)
            yield

    def write(self, path: Path, whole: bytes) -> None:
        with self.opened(path) as file:
            file.write(whole)

    def _is_own(self, path: Path) -> bool:
        if path.is_symlink():
            return False
        try:
            if path.is_dir():
                return True  # which cannot be replaced, as the error of writing says
            if _has_form(path):
                return True
            if self.records is None:
                return False
            with self._locked():
                size, _, digest = content(_record(self.records, path), RECORD_MOST).partition(b" ")
                return size == _size(path) and digest == _sha256(path)  # a file of any size is hashed only if it fits
        except OSError:
            return False


def _record(records: Path, path: Path) -> Path:
    """Return the file with the hash of what was written at a path."""
    name = os.path.join(os.path.realpath(path.parent), path.name)
    return records / hashlib.sha256(os.fsencode(name)).hexdigest()


def _size(path: Path) -> bytes:
    return b"%d" % path.stat().st_size


def _sha256(path: Path) -> bytes:
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest().encode()


def _has_form(path: Path) -> bool:
    with open_regular(path) as file:
        return file.read(len(PAGE)) == PAGE or _is_workbook(file)


def _is_workbook(file: BinaryIO) -> bool:
    try:
        with ZipFile(file) as archive:
            for name, contained in WORKBOOK.items():
                with archive.open(name) as part:
                    head = part.read(PART_MOST)
                if not all(piece in head for piece in contained):
                    return False
    except NO_ARCHIVE:
        return False
    return True
