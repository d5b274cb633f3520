"""Files that are replaced whole."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import socket
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from harness.errors import BadInput, MachineError
from harness.store import atomic


@pytest.fixture
def old(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    return path


def refuse(number: int) -> object:
    def fail(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    return fail


def test_new_content_takes_the_place_at_the_end_only(old: Path) -> None:
    """Until the block ends, whoever opens the file finds the old content, even after a flush."""
    with atomic.replacing(old) as file:
        file.write(b"new")
        file.flush()
        assert old.read_bytes() == b"old"
    assert old.read_bytes() == b"new"
    assert [path.name for path in old.parent.iterdir()] == ["file"]


@pytest.mark.parametrize("error", [BadInput("x"), KeyboardInterrupt(), ValueError()], ids=repr)
def test_error_in_the_block_leaves_the_old_file(old: Path, error: BaseException) -> None:
    """An error passes through as it is, the old file stays, and the half-written one goes."""
    with pytest.raises(type(error)), atomic.replacing(old) as file:
        file.write(b"half")
        raise error
    assert old.read_bytes() == b"old"
    assert [path.name for path in old.parent.iterdir()] == ["file"]


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_failure_at_each_step_leaves_the_old_file(old: Path, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    """Whichever step the disk refuses, the old file is whole and the error says so."""
    monkeypatch.setattr(os, step, refuse(errno.ENOSPC))
    with pytest.raises(MachineError, match=r"cannot write .*file: No space left on device; the old one is intact"):
        atomic.write(old, b"new")
    monkeypatch.undo()
    assert old.read_bytes() == b"old"
    assert [path.name for path in old.parent.iterdir()] == ["file"]


def test_content_is_on_the_disk_before_the_name_and_the_name_before_the_end(
    old: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The order that survives a power loss: sync the content, take the name, sync the folder."""
    steps: list[str] = []
    fsync, replace = os.fsync, os.replace

    def observed_fsync(fd: int) -> None:
        steps.append("folder" if stat.S_ISDIR(os.fstat(fd).st_mode) else f"content {os.fstat(fd).st_size}")
        fsync(fd)

    def observed_replace(new: Path, path: Path) -> None:
        steps.append("name")
        replace(new, path)

    monkeypatch.setattr(os, "fsync", observed_fsync)
    monkeypatch.setattr(os, "replace", observed_replace)
    atomic.write(old, b"new!")
    assert steps == ["content 4", "name", "folder"]


def test_file_that_a_death_left_behind_is_overwritten(old: Path) -> None:
    """A `*.new` of a killed process is neither taken for the file nor in the way."""
    old.with_name("file.new").write_bytes(b"of a killed process, and longer")
    atomic.write(old, b"new")
    assert old.read_bytes() == b"new"


def test_death_in_the_block_leaves_the_old_file(old: Path) -> None:
    """A process that is killed while it writes has changed nothing that is looked at."""
    program = """
import os, signal, sys
from pathlib import Path
from typing import Any
from harness.store.atomic import replacing
with replacing(Path(sys.argv[1])) as file:
    file.write(b"half")
    file.flush()
    os.kill(os.getpid(), signal.SIGKILL)
"""
    assert subprocess.run([sys.executable, "-c", program, str(old)], check=False).returncode == -9
    assert old.read_bytes() == b"old"


def test_two_processes_may_replace_a_shared_file(old: Path) -> None:
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


def test_folder_that_is_not_there_is_an_error_of_the_machine(tmp_path: Path) -> None:
    """The file that could not be written is named."""
    with pytest.raises(MachineError, match=r"cannot write .*gone/file: No such file"):
        atomic.write(tmp_path / "gone" / "file", b"new")


@pytest.mark.parametrize("number", sorted(atomic.NO_FOLDER_SYNC))
def test_file_system_without_folder_syncs_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """Some network mounts cannot sync a folder; files are replaced on them all the same."""
    monkeypatch.setattr(os, "fsync", refuse(number))
    atomic.sync_folder(tmp_path)


def test_folder_that_fails_to_sync_is_an_error_of_the_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that breaks is reported, and not taken for one that cannot sync folders."""
    monkeypatch.setattr(os, "fsync", refuse(errno.EIO))
    with pytest.raises(MachineError, match="cannot sync"):
        atomic.sync_folder(tmp_path)


WRITER = """
import sys
from pathlib import Path
from typing import Any
from harness.store.atomic import replacing
with replacing(Path(sys.argv[1]), shared=True) as file:
    print(flush=True)
    sys.stdin.read()
"""


def test_shared_file_is_freed_of_what_dead_writers_left(tmp_path: Path) -> None:
    """Killed between opening and replacing, a process leaves its new content, which no later one would overwrite. Its
    number is still taken, as long as its parent has not asked for its end; the content of a living one stays."""
    path, host = tmp_path / "index", socket.gethostname()
    command = [sys.executable, "-c", WRITER, str(path)]
    with (
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as dead,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as living,
    ):
        for process in (dead, living):
            assert process.stdout and process.stdout.readline()
        os.kill(dead.pid, signal.SIGKILL)
        os.waitid(os.P_PID, dead.pid, os.WEXITED | os.WNOWAIT)
        others = [path.with_name(f"index.{name}.new") for name in (f"elsewhere-{dead.pid}", f"{host}-x")]
        for file in others:
            file.write_bytes(b"half")
        assert path.with_name(f"index.{host}-{dead.pid}.new").exists()
        atomic.write(path, b"whole", shared=True)
        assert path.read_bytes() == b"whole"
        others.append(path.with_name(f"index.{host}-{living.pid}.new"))
        assert sorted(tmp_path.iterdir()) == sorted([path, *others])
        living.communicate(b"")
    assert living.returncode == 0 and path.read_bytes() == b""


def test_content_that_is_cleared_before_it_is_locked_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process may come between opening and locking."""
    path, lock = tmp_path / "index", fcntl.flock
    calls: list[int] = []

    def late(file: Any, how: int) -> None:
        calls.append(how)
        if len(calls) == 1:
            atomic.clear(path)
        lock(file, how)

    monkeypatch.setattr(fcntl, "flock", late)
    atomic.write(path, b"whole", shared=True)
    assert [*tmp_path.iterdir()] == [path] and path.read_bytes() == b"whole"
    assert calls == 3 * [fcntl.LOCK_EX | fcntl.LOCK_NB]


def test_content_that_is_being_cleared_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for the lock: whoever has it may hold it for any time."""
    path, lock, held = tmp_path / "index", fcntl.flock, list[Any]()

    def taken(file: Any, how: int) -> None:
        if not held:
            [new] = tmp_path.iterdir()
            held.append(new.open("rb"))
            lock(held[0], fcntl.LOCK_EX)
        lock(file, how)

    monkeypatch.setattr(fcntl, "flock", taken)
    atomic.write(path, b"whole", shared=True)
    held[0].close()
    assert [*tmp_path.iterdir()] == [path] and path.read_bytes() == b"whole"


def test_only_files_are_cleared(tmp_path: Path) -> None:
    """In a folder from somebody else a folder, a link or a pipe may have such a name; none is opened."""
    path, before = tmp_path / "index", f"index.{socket.gethostname()}-"
    (tmp_path / f"{before}1.new").mkdir()
    (tmp_path / f"{before}2.new").symlink_to(tmp_path / "aim")
    os.mkfifo(tmp_path / f"{before}3.new")
    (tmp_path / "aim").write_bytes(b"kept")
    files, there = len(os.listdir("/dev/fd")), sorted(tmp_path.iterdir())
    atomic.clear(path)
    assert sorted(tmp_path.iterdir()) == there and len(os.listdir("/dev/fd")) == files


def test_device_is_never_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Root could rename a file over `/dev/null`, and break the machine."""
    monkeypatch.setattr(os, "lstat", lambda path: os.stat(os.devnull))
    with pytest.raises(MachineError, match="it is a device"):
        atomic.write(tmp_path / "null.csv", b"x", shared=True)
    assert [*tmp_path.iterdir()] == []
