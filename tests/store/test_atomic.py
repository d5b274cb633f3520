"""Files that are replaced whole."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from harness.errors import BadInput, MachineError
from harness.store import atomic
from harness.store.disk import Disk


@pytest.fixture
def old(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    return path


def refuse(number: int) -> object:
    def fail(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    return fail


def test_new_content_takes_the_place_at_the_end_only(old):
    """Until the block ends, whoever opens the file finds the old content, even after a flush."""
    with atomic.replacing(old) as file:
        file.write(b"new")
        file.flush()
        assert old.read_bytes() == b"old"
    assert old.read_bytes() == b"new"
    assert [path.name for path in old.parent.iterdir()] == ["file"]


@pytest.mark.parametrize("error", [BadInput("x"), KeyboardInterrupt(), ValueError()], ids=repr)
def test_error_in_the_block_leaves_the_old_file(old, error):
    """An error passes through as it is, the old file stays, and the half-written one goes."""
    with pytest.raises(type(error)), atomic.replacing(old) as file:
        file.write(b"half")
        raise error
    assert old.read_bytes() == b"old"
    assert [path.name for path in old.parent.iterdir()] == ["file"]


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_failure_at_each_step_leaves_the_old_file(old, monkeypatch, step):
    """Whichever step the disk refuses, the old file is whole and the error says so."""
    monkeypatch.setattr(os, step, refuse(errno.ENOSPC))
    with pytest.raises(
        MachineError, match=r"cannot write .*file: No space left on device; the old one is intact"
    ):
        atomic.write(old, b"new")
    monkeypatch.undo()
    assert old.read_bytes() == b"old"
    assert [path.name for path in old.parent.iterdir()] == ["file"]


def test_file_that_a_death_left_behind_is_overwritten(old):
    """A `*.new` of a killed process is neither taken for the file nor in the way."""
    old.with_name("file.new").write_bytes(b"of a killed process, and longer")
    atomic.write(old, b"new")
    assert old.read_bytes() == b"new"


def test_two_processes_may_replace_a_shared_file(old):
    """Writers of a file without a lock do not write into each other's content."""
    program = """
import sys
from pathlib import Path
from typing import Any
from harness.store.atomic import replacing
with replacing(Path(sys.argv[1]), shared=True) as file:
    file.write(b"theirs, whole")
"""
    with atomic.replacing(old, shared=True) as file:
        file.write(b"ou")
        subprocess.run([sys.executable, "-c", program, str(old)], check=True)
        assert old.read_bytes() == b"theirs, whole"
        file.write(b"rs")
    assert old.read_bytes() == b"ours"


def test_folder_that_is_not_there_is_an_error_of_the_machine(tmp_path):
    """The file that could not be written is named."""
    with pytest.raises(MachineError, match=r"cannot write .*gone/file: No such file"):
        atomic.write(tmp_path / "gone" / "file", b"new")


@pytest.mark.parametrize("number", sorted(atomic.NO_FOLDER_SYNC))
def test_file_system_without_folder_syncs_is_no_error(tmp_path, monkeypatch, number):
    """Some network mounts cannot sync a folder; files are replaced on them all the same."""
    monkeypatch.setattr(os, "fsync", refuse(number))
    atomic.sync_folder(tmp_path)


def test_folder_that_fails_to_sync_is_an_error_of_the_machine(tmp_path, monkeypatch):
    """A disk that breaks is reported, and not taken for one that cannot sync folders."""
    monkeypatch.setattr(os, "fsync", refuse(errno.EIO))
    with pytest.raises(MachineError, match="cannot sync"):
        atomic.sync_folder(tmp_path)


def leftover(path: Path, *, hours: float) -> Path:
    """The new content of a shared file, of a writer that died so many hours ago."""
    with (
        pytest.raises(KeyboardInterrupt),
        atomic.replacing(path, shared=True, disk=Keeping()) as file,
    ):
        file.write(b"half")
        raise KeyboardInterrupt
    (new,) = (new for new in path.parent.glob("*.new") if new.stat().st_mtime > time.time() - 60)
    written = time.time() - 3600 * hours
    os.utime(new, (written, written))
    return new


class Keeping(Disk):
    """Leaves the new content, as a death does."""

    def unlink(self, path: Path) -> None:
        pass


def test_shared_file_is_freed_of_what_dead_writers_left(tmp_path):
    """New content that nobody has touched for a day is a dead writer's; what is younger, or has
    another name, stays."""
    path = tmp_path / "index"
    old, young = leftover(path, hours=25), leftover(path, hours=23)
    others = [
        path.with_name(name)
        for name in ("index.mine.new", "index.new", f"index.1{young.name[-20:]}")
    ]
    for file in others:
        file.write_bytes(b"theirs")
        os.utime(file, (0, 0))
    atomic.write(path, b"whole", shared=True)
    assert not old.exists() and path.read_bytes() == b"whole"
    assert sorted(tmp_path.iterdir()) == sorted([path, young, *others])


def test_shared_file_takes_its_place_while_others_clear(tmp_path):
    """Another writer may come at any moment, also between the end of the content and its name."""

    class Late(Disk):
        def replace(self, new: Path, taken: Path) -> None:
            atomic.write(taken, b"theirs", shared=True)
            super().replace(new, taken)

    path = tmp_path / "index"
    atomic.write(path, b"ours", shared=True, disk=Late())
    assert [*tmp_path.iterdir()] == [path] and path.read_bytes() == b"ours"


def test_only_files_are_cleared(tmp_path):
    """In a folder from somebody else a folder, a link or a pipe may have such a name; none is
    opened."""
    path, name = tmp_path / "index", f"index.%s{'0' * 15}.new"
    (tmp_path / (name % 1)).mkdir()
    (tmp_path / (name % 2)).symlink_to(tmp_path / "aim")
    os.mkfifo(tmp_path / (name % 3))
    (tmp_path / "aim").write_bytes(b"kept")
    there = sorted(tmp_path.iterdir())
    for file in there:
        os.utime(file, (0, 0), follow_symlinks=False)
    atomic.clear(path)
    assert sorted(tmp_path.iterdir()) == there


@pytest.mark.parametrize("shared", [False, True])
def test_mode_of_new_content_follows_the_umask(tmp_path, shared):
    """As that of every file that the harness writes."""
    before = os.umask(0o027)
    try:
        atomic.write(tmp_path / "file", b"x", shared=shared)
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o640


def test_device_is_never_replaced(tmp_path, monkeypatch):
    """Root could rename a file over `/dev/null`, and break the machine."""
    monkeypatch.setattr(os, "lstat", lambda path: Path(os.devnull).stat())
    with pytest.raises(MachineError, match="it is a device"):
        atomic.write(tmp_path / "null.csv", b"x", shared=True)
    assert [*tmp_path.iterdir()] == []
