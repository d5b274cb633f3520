"""Files that make room for others and stay: nothing is ever deleted.

Guarantee: when a function here returns, the old content has its other name, also after a power loss; the new file may
follow.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterable, Iterator
from glob import escape
from itertools import chain, count
from pathlib import Path

from harness.benchmarks.files import open_regular
from harness.errors import MachineError
from harness.model import JSON
from harness.store import log
from harness.store.atomic import replacing, sync_folder
from harness.store.disk import DISK, Disk


def replace_results(
    path: Path, records: Iterator[JSON], stamp: str, disk: Disk = DISK, *, shown_by: Iterable[Path] = ()
) -> str:
    """Rewrite records and return the file's SHA-256. If its content changes, the old file, and the pages that it is
    `shown_by`, are set aside before the new content takes the place."""
    whole = hashlib.sha256()
    with replacing(path, disk=disk) as file:
        for data in records:
            line = log.seal(data)
            whole.update(line)
            file.write(line)
        with open_regular(path) as old:
            if hashlib.file_digest(old, "sha256").digest() != whole.digest():
                keep_old(path, stamp, disk)
                set_aside_any(shown_by, stamp, disk)
    return whole.hexdigest()


def keep_old(path: Path, stamp: str, disk: Disk) -> None:
    """Give a file that is about to be replaced a second name, so that its content stays."""
    kept = _free_name(path, stamp)
    try:
        disk.link(path, kept)
    except OSError:  # a file system without hard links: a copy costs more, and does the same
        try:
            with open_regular(path) as old, replacing(kept, disk=disk) as copy:
                shutil.copyfileobj(old, copy, 1 << 20)
        except (OSError, MachineError) as error:
            raise MachineError(f"cannot keep {path}: {error}") from error
    sync_folder(path.parent, disk)


def drop_second_names(path: Path, disk: Disk) -> None:
    """Remove the second name that a death within `keep_old` has left to a file that is about to be appended to.

    The content has not been replaced yet, so it is not lost with the name.
    """
    try:
        state = path.lstat()
        for kept in path.parent.glob(f"{escape(path.name)}.before-*") if state.st_nlink > 1 else ():
            if os.path.samestat(kept.lstat(), state):
                disk.unlink(kept)
    except FileNotFoundError:
        return
    except OSError as error:
        raise MachineError(f"cannot open {path} for writing: {error.strerror}") from error


def set_aside_any(paths: Iterable[Path], stamp: str, disk: Disk = DISK) -> None:
    """Give those of some files that exist another name; new ones are about to follow."""
    for path in filter(os.path.lexists, paths):
        kept = _free_name(path, stamp)
        try:
            disk.replace(path, kept)
        except OSError as error:
            raise MachineError(f"cannot rename {path} to {kept.name}: {error.strerror}") from error
        sync_folder(path.parent, disk)


def _free_name(path: Path, stamp: str) -> Path:
    """Return `<file>.before-<stamp>`, numbered where that is taken: two commands may share a second."""
    name = f"{path.name}.before-{stamp}"
    names = chain((name,), (f"{name}-{number}" for number in count(2)))
    return next(free for free in map(path.with_name, names) if not os.path.lexists(free))
