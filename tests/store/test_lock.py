"""One writer a run: the kernel's lock, and the lease where there is none."""

from __future__ import annotations

import errno
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import orjson
import pytest

from harness.errors import MachineError
from harness.store.lock import LEASE, RunLock
from tests.support.disks import FaultyDisk, QuickDisk

HOLDER = """
import subprocess, sys, time
from pathlib import Path
from harness.store.lock import RunLock

lock = RunLock(Path(sys.argv[1]), time.time)
if len(sys.argv) > 2:  # a worker that outlives its parent: it ends when its own input does
    worker = subprocess.Popen([sys.executable, "-c", "print('alive', flush=True); input()"], close_fds=False)
print("held", flush=True)
input()
lock.release()
"""


class Clock:
    """Seconds that pass when the test says so."""

    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


def no_locks(_: int) -> None:
    raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run_weibo.lock"


@pytest.fixture
def holder(path: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds the lock until it is asked to end."""
    with started(path) as process:
        yield process
        process.kill()


def started(path: Path, *arguments: str) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(path), *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    words = {process.stdout.readline().strip() for _ in range(1 + len(arguments))}
    assert words == ({"held", "alive"} if arguments else {"held"})
    return process


def lease(path: Path, clock: Clock) -> RunLock:
    return RunLock(path, clock, no_locks)


def test_second_process_is_refused_and_told_who_holds_it(path, holder):
    """The error names the holder's process and machine, and the folder."""
    expected = f"{path.parent} is in use by process {holder.pid} on {socket.gethostname()}"
    with pytest.raises(MachineError, match=expected):
        RunLock(path, Clock())


def test_released_lock_can_be_taken(path, holder):
    """When its holder ends in order, the next may have it."""
    holder.communicate("\n")
    RunLock(path, Clock()).release()
    assert path.read_bytes() == b""


def test_lock_dies_with_its_holder(path, holder):
    """A holder that was killed, and could release nothing, holds nothing."""
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    assert orjson.loads(path.read_bytes())["pid"] == holder.pid
    RunLock(path, Clock()).release()


def test_lock_is_not_inherited_by_a_spawned_worker(path):
    """A worker that outlives the holder does not keep the lock, though it inherits what can be
    inherited."""
    with started(path, "with a worker") as process:
        process.send_signal(signal.SIGKILL)
        process.wait()
        RunLock(
            path, Clock()
        ).release()  # the worker lives until its input ends, which is ours to close


def test_lock_is_no_obstacle_to_its_own_renewal(path):
    """A beat writes the time when it is due, and only then."""
    clock = Clock()
    lock = RunLock(path, clock)
    written = []
    for _ in range(3):
        clock.now += LEASE / 12 + 1
        lock.beat()
        written.append(orjson.loads(path.read_bytes())["renewed"])
    lock.release()
    step = LEASE / 12 + 1
    assert [at - 1_000_000.0 for at in written] == [0, 2 * step, 2 * step]


def test_lock_that_cannot_be_opened_is_an_error_of_the_machine(tmp_path):
    """A folder that is not there is no reason to run without a lock."""
    with pytest.raises(MachineError, match=r"cannot open .*gone"):
        RunLock(tmp_path / "gone" / "lock", Clock())


@pytest.mark.parametrize("kind", ["write_at", "truncate"])
def test_lock_that_cannot_be_written_is_not_kept(path, kind):
    """Who could not say that the lock is theirs leaves it to the next, in the same process too."""
    with pytest.raises(
        MachineError, match=r"cannot write .*run_weibo\.lock: No space left on device"
    ):
        RunLock(path, Clock(), disk=FaultyDisk(1, "ENOSPC", (kind,), QuickDisk()))
    RunLock(path, Clock()).release()


def test_lock_that_is_written_in_part_is_an_error_of_the_machine(path):
    """Half a lease would be nobody's."""
    with pytest.raises(MachineError, match="cannot write"):
        RunLock(path, Clock(), disk=FaultyDisk(1, "short", ("write_at",), QuickDisk()))


@pytest.mark.parametrize("kind", ["truncate", "close"])
def test_release_on_a_broken_disk_is_no_error(path, kind):
    """What ended the run is what is reported, not that its lock's file could not be emptied."""
    nth = 2 if kind == "truncate" else 1
    RunLock(path, Clock(), disk=FaultyDisk(nth, "EIO", (kind,), QuickDisk())).release()
    RunLock(path, Clock()).release()


def test_lock_that_fails_is_not_taken_for_a_file_system_without_locks(path):
    """An error other than `there are no locks` is reported."""

    def broken(_: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with pytest.raises(MachineError, match=r"cannot lock .*: Input/output error"):
        RunLock(path, Clock(), broken)


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS])
def test_lease_refuses_while_it_is_fresh(path, number):
    """Where the kernel has no locks, a lease holds for its time."""

    def none(_: int) -> None:
        raise OSError(number, os.strerror(number))

    clock = Clock()
    held = RunLock(path, clock, none)
    clock.now += LEASE
    with pytest.raises(MachineError, match=f"in use by process {os.getpid()}"):
        RunLock(path, clock, none)
    held.release()


def test_lease_that_is_renewed_is_never_taken_over(path):
    """A holder that beats keeps its lease for as long as it lives."""
    clock = Clock()
    held = lease(path, clock)
    for _ in range(10):
        clock.now += LEASE - 1
        held.beat()
        with pytest.raises(MachineError, match="in use"):
            lease(path, clock)
    held.release()


def test_lease_that_was_left_is_taken_over(path):
    """After its time without a beat, the next may have it."""
    clock = Clock()
    lease(path, clock)
    clock.now += LEASE + 1
    lease(path, clock).release()


def test_released_lease_can_be_taken_at_once(path):
    """A holder that ends in order leaves no wait behind."""
    clock = Clock()
    lease(path, clock).release()
    lease(path, clock).release()


def test_holder_that_slept_through_its_lease_is_told(path):
    """It does not take back what another has taken over: its next beat ends it, and its end frees
    nothing."""
    clock = Clock()
    sleeper = lease(path, clock)
    clock.now += LEASE + 1
    taken = lease(path, clock)
    with pytest.raises(MachineError, match="was taken over by process"):
        sleeper.beat()
    sleeper.release()
    with pytest.raises(MachineError, match="in use"):
        lease(path, clock)
    taken.beat()
    taken.release()


@pytest.mark.parametrize(
    "content", [b"", b"\0" * 90, b'{"pid"', b"[1]"], ids=["empty", "NUL", "torn", "other"]
)
def test_lease_file_that_says_nothing_is_free(path, content):
    """What a death has left unreadable is no holder."""
    path.write_bytes(content)
    lease(path, Clock()).release()
