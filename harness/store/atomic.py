"""Files that are replaced whole.

Guarantee: whoever opens the file, at any moment and after any death of this process or of the machine,
finds the old content or the new one, whole. Trade-off: two syncs a file. Not covered: file systems that
ignore fsync.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from harness.errors import MachineError

NO_FOLDER_SYNC = frozenset({errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP})
"""What file systems say that have no such thing (some network and FUSE mounts)."""


@contextmanager
def replacing(path: Path, *, shared: bool = False) -> Iterator[BinaryIO]:
    """A file to write the new content of `path` into; it takes the place when the block ends without error.

    The new content stands in `<file>.new` until then; one that a death left behind is overwritten. `shared`
    is for files that no lock guards: several processes may then replace one at a time of their choosing.
    """
    new = path.with_name(f"{path.name}.{os.getpid()}.new" if shared else path.name + ".new")
    try:
        with new.open("wb", buffering=1 << 20) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(new, path)
    except OSError as error:
        raise MachineError(f"cannot write {path}: {error.strerror}; the old one is intact") from error
    finally:
        with suppress(OSError):
            new.unlink(missing_ok=True)  # after an error; on a full disk it would only stand in the way
    sync_folder(path.parent)


def write(path: Path, content: bytes, *, shared: bool = False) -> None:
    with replacing(path, shared=shared) as file:
        file.write(content)


def sync_folder(folder: Path) -> None:
    """Makes names that were created or replaced in a folder survive a power loss, where that can be asked for."""
    try:
        fd = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
    except OSError as error:
        if error.errno not in NO_FOLDER_SYNC:
            raise MachineError(f"cannot sync {folder}: {error.strerror}; what the disk holds is unknown") from error
