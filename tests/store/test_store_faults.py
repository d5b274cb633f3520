"""A disk that fails at operation 1, 2, 3, ... of a whole run: nothing is lost or doubled, the end
is the same bytes."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing
from functools import partial
from itertools import count
from pathlib import Path

import pytest

from harness.errors import MachineError
from harness.store import log
from harness.store.disk import Disk
from harness.store.run import RunStore, replace_results
from tests.support.disks import CHANGING, WRITES, Death, FaultyDisk, QuickDisk
from tests.support.whole_run import LIMIT, USERS, WholeRun, hiccup

QUICK = QuickDisk()
EVERY_OPERATION = ("EIO", "ENOSPC", "full", "broken", "death before", "death after")
WRITES_ONLY = ("short", "death midway")
MORE_USERS = {f"用户{n}": 1 + n % 4 for n in range(8)}

Script = Callable[[str, int], Awaitable[None]] | None


def disks(how: str) -> Iterator[FaultyDisk]:
    """Each fails one operation later than the one before; ends after one that had nothing to
    fail."""
    for nth in count(1):
        disk = FaultyDisk(nth, how, WRITES if how in WRITES_ONLY else CHANGING, QUICK)
        yield disk
        if disk.struck is None:
            return


def struck(run: WholeRun, disk: FaultyDisk, script: Script) -> bool:
    """Runs a process on a faulty disk; returns whether it said that all is well."""
    try:
        run.process(disk, script)
    except MachineError as error:
        assert disk.struck is not None and "cannot" in str(error)
    except Death:
        assert disk.struck is not None
        disk.bury()
    except BaseExceptionGroup as group:
        assert group.split(Death)[1] is None
        disk.bury()
    else:
        return True
    assert not disk.left_open
    return False


def nothing_shown_is_lost(run: WholeRun) -> None:
    """Every reply that a play was shown is in the file, once."""
    replies = run.replies
    assert {text: replies[text] for text in run.shown} == dict.fromkeys(run.shown, 1)


def goes_on_to_the_same_end(run: WholeRun, expected: bytes, limit: int = LIMIT) -> None:
    """The next process asks for nothing that is saved, and ends as if nothing had happened."""
    saved, answered = run.saved, sum(run.answered, Counter[str]())
    run.process(QUICK)
    assert not saved & run.answered[-1]
    assert (answered & run.answered[-1]).total() <= limit
    assert run.files.results.read_bytes() == expected
    assert run.wrong() == []


def undisturbed(folder: Path, users: dict[str, int], power: bool) -> tuple[WholeRun, bytes]:
    """The first of two processes, at its end, and what the second will make of it."""
    folder.mkdir()
    first = WholeRun(folder, users, power=power)
    first.process(QUICK, hiccup)
    begun = folder.with_name(folder.name + "-begun")
    shutil.copytree(folder, begun)
    first.process(QUICK)
    assert first.wrong() == []
    return WholeRun(begun, users, power=power), first.files.results.read_bytes()


def a_fault_at_every_operation(folder: Path, how: str, users: dict[str, int], power: bool) -> None:
    """In the process that begins the run, then in the one that ends it."""
    begun, expected = undisturbed(folder / "undisturbed", users, power)
    for number, disk in enumerate(disks(how)):
        place = folder / f"begins{number}"
        place.mkdir()
        run = WholeRun(place, users, power=power)
        struck(run, disk, hiccup)
        nothing_shown_is_lost(run)
        goes_on_to_the_same_end(run, expected)
        shutil.rmtree(place)
    for number, disk in enumerate(disks(how)):
        place = folder / f"ends{number}"
        shutil.copytree(begun.files.folder.parents[1], place)
        run = WholeRun(place, users, power=power)
        if struck(run, disk, None):
            assert run.wrong() == []
            assert run.files.results.read_bytes() == expected
        nothing_shown_is_lost(run)
        goes_on_to_the_same_end(run, expected)
        shutil.rmtree(place)


@pytest.mark.slow
@pytest.mark.parametrize("power", [False, True], ids=["process", "power"])
@pytest.mark.parametrize("how", [*EVERY_OPERATION, *WRITES_ONLY])
def test_fault_at_every_operation_of_a_run_costs_nothing(tmp_path, how, power):
    """After each, the next process ends with the same bytes, and asks for nothing again that was
    saved."""
    a_fault_at_every_operation(tmp_path, how, USERS, power)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "power"), [("EIO", False), ("death after", True), ("death midway", True)]
)
def test_fault_at_every_operation_of_a_larger_run_costs_nothing(tmp_path, how, power):
    """The same with more users."""
    a_fault_at_every_operation(tmp_path, how, MORE_USERS, power)


# What a process does besides


class Begun:
    """Copies of a run whose first process has come to its end, each for one disk that fails."""

    def __init__(self, folder: Path, change: Callable[[WholeRun], None] = lambda run: None) -> None:
        self._folder = folder
        self.begun, self.expected = undisturbed(folder / "undisturbed", USERS, power=True)
        change(self.begun)
        self.lines = lines_in(self.begun.files.folder)

    def copies(self, how: str) -> Iterator[tuple[WholeRun, FaultyDisk]]:
        for number, disk in enumerate(disks(how)):
            place = self._folder / str(number)
            shutil.copytree(self.begun.root, place)
            yield WholeRun(place, power=True), disk
            shutil.rmtree(place)


def lines_in(folder: Path) -> set[bytes]:
    """Every line of every log of a folder, under whatever name."""
    logs = [path for path in folder.iterdir() if ".jsonl" in path.name or ".log" in path.name]
    return {line for path in logs for line in path.read_bytes().split(b"\n")}


def dies_or_stops(act: Callable[[], object], disk: FaultyDisk) -> None:
    try:
        act()
    except (MachineError, Death):
        assert disk.struck is not None
    disk.bury()


def torn(run: WholeRun) -> None:
    """A record that was changed, a response that was cut, and a failure without its end."""
    records = run.files.results.read_bytes()
    run.files.results.write_bytes(records.replace(b'"length":2', b'"length":9', 1))
    with run.files.responses.open("ab") as file:
        file.write(b'{"user_id":"\xe4')
    run.files.failures.write_bytes(run.files.failures.read_bytes()[:-1])


every_fault = pytest.mark.parametrize(
    "how",
    [
        "EIO",
        "death midway",
        *[
            pytest.param(how, marks=pytest.mark.slow)
            for how in ("ENOSPC", "full", "broken", "short", "death before", "death after")
        ],
    ],
)


@pytest.mark.slow
@every_fault
def test_fault_at_every_operation_of_a_repair_loses_no_line(tmp_path, how):
    """Torn lines, of three kinds, stay in the folder whatever happens while they are set aside."""
    begun = Begun(tmp_path, torn)
    for run, disk in begun.copies(how):
        dies_or_stops(partial(opened_and_closed, run, disk), disk)
        assert begun.lines <= lines_in(run.files.folder)
        goes_on_to_the_same_end(run, begun.expected)
        assert begun.lines <= lines_in(run.files.folder)


def opened_and_closed(run: WholeRun, disk: FaultyDisk) -> None:
    with (
        closing(run.index()) as index,
        closing(RunStore(run.files, lambda: 1.0, "s", disk)) as store,
    ):
        store.open_logs(index)


@every_fault
def test_fault_at_every_operation_of_a_restart_loses_no_line(tmp_path, how):
    """The old run is moved aside or still there, and what follows is a whole run."""
    begun = Begun(tmp_path)

    def restart(run: WholeRun, disk: FaultyDisk) -> None:
        with closing(RunStore(run.files, lambda: 1.0, "s", disk)) as store:
            store.set_aside_everything()

    for run, disk in begun.copies(how):
        dies_or_stops(partial(restart, run, disk), disk)
        assert begun.lines <= lines_in(run.files.folder)
        run.process(QUICK)
        assert run.wrong() == [] and run.files.results.read_bytes() == begun.expected
        assert begun.lines <= lines_in(run.files.folder)


@every_fault
def test_fault_at_every_operation_of_a_re_evaluation_leaves_old_or_new_results(tmp_path, how):
    """The results are the old ones or the new, whole; the old ones stay; done again it is done."""
    begun = Begun(tmp_path, ended)

    def again(run: WholeRun, disk: Disk) -> None:
        with (
            closing(run.index()) as index,
            closing(RunStore(run.files, lambda: 1.0, "s", disk)) as store,
        ):
            store.open_logs(index)
            made = store.manifest()
            assert made is not None
            changed = ({**record.data, "length": 0} for record in store.records())
            made.results_sha256 = replace_results(run.files.results, changed, "s", disk)
            made.save(run.files.manifest, disk)

    whole = begun.expected.count(b"\n")
    for run, disk in begun.copies(how):
        dies_or_stops(partial(again, run, disk), disk)
        records = [
            log.decode_line(line.text)["length"] for line in log.valid_lines(run.files.results)
        ]
        assert records in ([2, 1, 3, 2], [0] * whole)
        assert begun.lines <= lines_in(run.files.folder)
        again(run, QUICK)
        assert run.wrong() == []


def ended(run: WholeRun) -> None:
    run.process(QUICK)


@pytest.mark.slow
@every_fault
def test_fault_at_every_operation_of_an_end_that_leaves_users_out_loses_no_line(tmp_path, how):
    """Records of users that the tasks file no longer has stay under another name."""
    begun, fewer = Begun(tmp_path), {key: steps for key, steps in USERS.items() if key != "甲"}
    for run, disk in begun.copies(how):
        run.root.joinpath("tasks.jsonl").unlink()
        run = WholeRun(run.root, fewer, power=True)
        struck(run, disk, None)
        run.process(QUICK)
        assert run.wrong() == []
        assert begun.lines <= lines_in(run.files.folder)
