"""Files that are replaced whole.

Guarantee: whoever opens the file, at any moment and after any death of this process or of the machine,
finds the old content or the new one, whole. Trade-off: two syncs a file. Not covered: file systems that
ignore fsync.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from harness.errors import MachineError


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A file to write the new content of `path` into; it takes the place when the block ends without error.

    The new content stands in `<file>.new` until then; one that a death left behind is overwritten.
    """
    new = path.with_name(path.name + ".new")
    try:
        with new.open("wb", buffering=1 << 20) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(new, path)
        sync_folder(path.parent)
    except OSError as error:
        raise MachineError(f"cannot write {path}: {error.strerror}; the old one is intact") from error


def write(path: Path, content: bytes) -> None:
    with replacing(path) as file:
        file.write(content)


def sync_folder(folder: Path) -> None:
    """Makes names that were created or replaced in a folder survive a power loss."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
