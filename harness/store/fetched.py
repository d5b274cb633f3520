"""Which files of a tasks folder `fetch` made, or found equal: `.fetched.json`, one entry a file.

It is replaced whole after each file. It proves nothing by itself: whoever uses an entry compares
the file's hash.
"""

from __future__ import annotations

from pathlib import Path

from msgspec import MsgspecError, Struct, json

from harness.benchmarks.files import DOCUMENT_MOST, input_file
from harness.errors import BadInput
from harness.store.atomic import write

NAME = ".fetched.json"


class Source(Struct, frozen=True):
    """Where a file is from: a data set at a commit; with the SHA-256 of the file."""

    data_set: str
    commit: str
    sha256: str


class Fetched(Struct):
    """`files` are by path below the tasks folder, the last one that was fetched at the end."""

    files: dict[str, Source]
    format: int = 1

    def last(self, name: str) -> Source | None:
        """Return the last entry that has this data set or SHA-256."""
        for source in reversed(self.files.values()):
            if name in (source.data_set, source.sha256):
                return source
        return None

    def save(self, folder: Path) -> None:
        # Shared: no lock guards a tasks folder.
        write(folder / NAME, json.format(json.encode(self)) + b"\n", shared=True)


def load(folder: Path) -> Fetched:
    """Return what a tasks folder's record says, an empty one if there is none. Raise `BadInput` for
    a broken one."""
    path = folder / NAME
    if not path.exists():
        return Fetched({})
    try:
        return json.decode(input_file(path, max_bytes=DOCUMENT_MOST), type=Fetched)
    except MsgspecError as error:
        raise BadInput(f"{path}: {error}: move it away; `fetch` makes it again") from None
