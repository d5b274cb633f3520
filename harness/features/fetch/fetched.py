"""Which files of a tasks folder `fetch` made, or found equal: `.fetched.json`, one entry a file.

It is replaced whole after each file. It proves nothing by itself: whoever uses an entry compares the file's hash.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from harness.benchmarks.files import DOCUMENT_MOST, input_file
from harness.errors import BadInput
from harness.store.atomic import write
from harness.store.disk import DISK, Disk

NAME = ".fetched.json"


class Source(msgspec.Struct, frozen=True):
    """Where a file is from: a data set at a commit; with the SHA-256 of the file."""

    data_set: str
    commit: str
    sha256: str


class Fetched(msgspec.Struct):
    """`files` are by path below the tasks folder, the last one that was fetched at the end."""

    files: dict[str, Source]
    format: int = 1

    def add(self, folder: Path, name: str, source: Source, disk: Disk = DISK) -> None:
        """Record the source of a file, in the tasks folder's record too."""
        if self.files.get(name) != source:
            self.files.pop(name, None)
            self.files[name] = source
            write(folder / NAME, msgspec.json.format(msgspec.json.encode(self)) + b"\n", disk=disk)

    def commit(self, data_set: str) -> str | None:
        """Return the commit of this data set's last file, None if there is none."""
        return next((one.commit for one in reversed(self.files.values()) if one.data_set == data_set), None)

    def source(self, sha256: str) -> Source | None:
        """Return where a file with this hash is from, None if it was not fetched."""
        return next((one for one in reversed(self.files.values()) if one.sha256 == sha256), None)


def load(folder: Path) -> Fetched:
    """Return what a tasks folder's record says, an empty one if there is none. Raise `BadInput` for a broken one."""
    path = folder / NAME
    if not path.exists():
        return Fetched({})
    try:
        return msgspec.json.decode(input_file(path, most=DOCUMENT_MOST), type=Fetched)
    except msgspec.MsgspecError as error:
        raise BadInput(f"{path}: {error}: move it away; `fetch` makes it again") from None
