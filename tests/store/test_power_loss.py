"""A loss of power at any moment of a whole run, with any of what a disk may then hold
(tests/support/power.py)."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.engine.run import Run
from harness.model import Completion, Reply
from harness.store.disk import Disk
from harness.store.files import RunFiles
from harness.store.log import encode_line
from harness.store.manifest import COMPLETE
from harness.store.run import RunStore, replace_results
from tests.support.disks import Cut, Death, FaultyDisk, QuickDisk, RecordingDisk, Written
from tests.support.power import Held, Power, laid_out
from tests.support.whole_run import USERS, WholeRun, hiccup

QUICK = QuickDisk()
ONE = {"甲": 1}


@dataclass(frozen=True, slots=True)
class Loss:
    """What the disk holds, and what had been reported as saved."""

    held: Held
    reported: frozenset[str]


class Bench:
    """A run that is recorded, lost and resumed below one folder."""

    def __init__(
        self, folder: Path, users: Mapping[str, int], power: bool, made: type[WholeRun] = WholeRun
    ) -> None:
        self._folder = folder
        self._numbers = count()
        self._made = partial(made, users=users, power=power)
        self.promises = power
        undisturbed = self.new()
        undisturbed.process(QUICK)
        self._expected = undisturbed.files.results.read_bytes()

    def new(self, held: Held | None = None) -> WholeRun:
        """A run whose folder holds nothing yet, or what a loss of power has left."""
        root = self._folder / str(next(self._numbers))
        root.mkdir(parents=True)
        laid_out(held or {}, root)
        run = self._made(root)
        run.index().close()
        return run

    def recorded(self, kind: type[RecordingDisk] = RecordingDisk) -> RecordingDisk:
        """The journal of a run that stumbles in its first process and ends in its second."""
        run = self.new()
        disk = kind(run.root, QUICK)
        run.process(disk, hiccup, disk.acknowledge)
        run.process(disk, None, disk.acknowledge)
        return disk

    def killed(self, disk: RecordingDisk, run: WholeRun, nth: int) -> None:
        """A process that dies after its `nth` operation, or ends where it has no such."""
        faulty = FaultyDisk(nth, "death after", inner=disk)
        try:
            run.process(faulty, hiccup, disk.acknowledge)
        except (Death, BaseExceptionGroup):
            assert faulty.struck is not None
            faulty.bury()

    def check(self, loss: Loss) -> None:
        """A new process goes on after the loss: the same bytes at the end, and nothing reported as
        saved has gone."""
        run = self.new(loss.held)
        if self.promises:
            there = {*run.replies, *run.recorded}
            assert not loss.reported - there
        run.process(QUICK)
        if self.promises:
            assert not {f"答 {request[:12]}" for request in run.answered[-1]} & loss.reported
        assert run.wrong() == []
        assert run.files.results.read_bytes() == self._expected
        shutil.rmtree(run.root)


def losses(disk: RecordingDisk, few: bool = False) -> Iterator[Loss]:
    """Every state that the model has, at every moment; one that comes again only where more has
    been reported by then.

    What the lock's file holds is left as it was: the kernel's lock is gone with the machine.
    """
    power, seen = Power(disk), dict[frozenset[tuple[Path, bytes | None]], int]()
    lock = disk.inodes_named("run_weibo.lock")
    for entry in disk.journal:
        if isinstance(entry, Written | Cut) and entry.inode in lock:
            continue
        power.take(entry)
        for held in power.states(few):
            state = frozenset(held.items())
            if seen.get(state, -1) < len(power.acknowledged):
                seen[state] = len(power.acknowledged)
                yield Loss(held, frozenset(power.acknowledged))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("power", "few"),
    [
        pytest.param(False, True, marks=pytest.mark.slow, id="process, few"),
        pytest.param(True, True, id="power, few"),
        pytest.param(True, False, marks=pytest.mark.slow, id="power"),
    ],
)
def test_every_loss_of_power_in_a_small_run_is_survived(tmp_path, power, few):
    """With either durability the run ends as if nothing had happened; with `power` nothing reported
    as saved is lost.

    Without it, nothing is synced but what replaces another file; any content of files then is drawn
    in `test_losses_of_power_and_deaths_in_any_order_are_survived`.
    """
    bench = Bench(tmp_path, ONE, power)
    for loss in losses(bench.recorded(), few):
        bench.check(loss)


def a_loss(disk: RecordingDisk, rng: random.Random) -> Loss:
    """Any moment, and any part of what was not synced by then."""
    power = Power(disk)
    for entry in disk.journal[: rng.randint(0, len(disk.journal))]:
        power.take(entry)
    folders, files = power.unsynced()
    names = {
        folder: [rng.random() < 0.5 for _ in range(power.changes(folder))] for folder in folders
    }
    contents = {
        inode: rng.choice([*power.contents(inode), power.scattered(inode, rng)]) for inode in files
    }
    return Loss(power.state(names, contents), frozenset(power.acknowledged))


def survives_any(folder: Path, users: Mapping[str, int], power: bool, examples: int) -> None:
    """Two processes, each killed or not, and the power lost at some moment of theirs; then,
    perhaps, once more.

    What is drawn does not depend on the journal, which differs by how threads take turns.
    """
    bench, moments = Bench(folder, users, power), st.integers(0, 12) | st.integers(0, 80)

    @settings(max_examples=examples, derandomize=True, deadline=None, database=None)
    @given(
        deaths=st.tuples(moments, moments),
        later=st.none() | moments,
        rng=st.randoms(use_true_random=True),
    )
    def survives(deaths: tuple[int, int], later: int | None, rng: random.Random) -> None:
        run = bench.new()
        disk = RecordingDisk(run.root, QUICK)
        for nth in deaths:
            bench.killed(disk, run, nth)
        loss = a_loss(disk, rng)
        if later is not None:
            again = bench.new(loss.held)
            disk = RecordingDisk(again.root, QUICK)
            bench.killed(disk, again, later)
            second = a_loss(disk, rng)
            loss = Loss(second.held, loss.reported | second.reported)
        bench.check(loss)

    survives()


@pytest.mark.slow
@pytest.mark.parametrize("power", [False, True], ids=["process", "power"])
def test_losses_of_power_and_deaths_in_any_order_are_survived(tmp_path, power):
    """Processes that are killed, and losses of power that take any part of what they had not
    synced."""
    survives_any(tmp_path, {f"用户{n}": 1 + n % 4 for n in range(12)}, power, examples=150)


def test_reply_that_a_dead_process_left_is_on_the_disk_before_it_is_used(tmp_path):
    """The next process builds on it, and may send no request that would sync it."""
    bench = Bench(tmp_path, ONE, power=True)
    run = bench.new()
    disk, reply = RecordingDisk(run.root, QUICK), Reply(Completion("答"), 1.0, 1, "http://x")
    with closing(run.index()) as index:
        for process in range(2):
            with closing(RunStore(run.files, lambda: 1.0, "s", disk)) as store:
                store.open_logs(index)
                if process == 0:
                    store.save_response(0, "甲", "digest", 0, reply)
                else:
                    assert store.responses_of(0) == {("digest", 0): reply.completion}
                    disk.acknowledge("答")
    reported = [loss for loss in losses(disk) if loss.reported]
    assert reported and all(bench.new(loss.held).replies == {"答": 1} for loss in reported)


# What makes room for something new


@pytest.mark.parametrize("hardlinks", [True, False])
def test_loss_of_power_in_a_re_evaluation_leaves_what_it_replaces(tmp_path, hardlinks):
    """The old results are there under one name or the other, and the results are the old or the
    new, whole."""
    files, old, new = RunFiles(tmp_path, "weibo"), b"old" * 50 + b"\n", {"n": "1" * 200}
    files.results.write_bytes(old)
    disk = RecordingDisk(tmp_path, QUICK if hardlinks else FaultyDisk(1, "EIO", ("link",), QUICK))
    replace_results(files.results, iter([new]), "s", disk)
    for loss in losses(disk):
        assert old in loss.held.values()
        assert loss.held[Path(files.results.name)] in (old, encode_line(new))


@pytest.mark.parametrize(
    "after", [b"", b"\n" + encode_line(ONE)], ids=["at the end", "before another"]
)
@pytest.mark.parametrize("name", ["results", "responses", "failures", "events"])
def test_loss_of_power_in_a_repair_loses_no_torn_line(tmp_path, name, after):
    """Until a torn line is for certain on the disk beside its log, it stays in that."""
    run = Bench(tmp_path, ONE, power=True).new()
    run.process(QUICK)
    path, torn = getattr(run.files, name), encode_line({"torn": "1" * 200})[:150]
    with path.open("ab") as file:
        file.write(torn + after)
    disk = RecordingDisk(run.root, QUICK)
    with (
        closing(run.index()) as index,
        closing(RunStore(run.files, lambda: 1.0, "s", disk)) as store,
    ):
        store.open_logs(index)
    for loss in losses(disk):
        assert any(torn in content for content in loss.held.values() if content)


def test_loss_of_power_while_a_prompt_is_set_aside_loses_neither(tmp_path):
    """A prompt that was kept is there when another takes its name."""
    disk = RecordingDisk(tmp_path, QUICK)
    with closing(RunStore(RunFiles(tmp_path / "run", "weibo"), lambda: 1.0, "s", disk)) as store:
        for content in (b"first", b"second"):
            store.keep_files({"prompt_own.txt": content})
            disk.acknowledge(content.decode())
    for loss in losses(disk):
        assert {word.encode() for word in loss.reported} <= set(loss.held.values())


def test_loss_of_power_in_a_restart_leaves_no_results_without_a_manifest(tmp_path):
    """Results without one would be taken for another program's; no line of the old run has gone."""
    bench = Bench(tmp_path, ONE, power=True)
    run = bench.new()
    run.process(QUICK)
    disk = RecordingDisk(run.root, QUICK)
    with closing(RunStore(run.files, lambda: 1.0, "s", disk)) as store:
        store.set_aside_everything()
    results, manifest = (
        path.relative_to(run.root) for path in (run.files.results, run.files.manifest)
    )
    old = {content for path, content in disk.before.items() if path.suffix != ".lock"}
    for loss in losses(disk):
        assert manifest in loss.held or results not in loss.held
        assert old <= set(loss.held.values())


# The model can tell


class NamesForgotten(RecordingDisk):
    """A store that would sync no folder."""

    def sync_folder(self, folder: Path) -> None:
        pass


class ContentForgotten(RecordingDisk):
    """A store that would sync no file."""

    def sync(self, fd: int) -> None:
        pass


class ManifestFirst(WholeRun):
    """A run whose manifest says that it is complete before it is."""

    def finish(self, job: Run, disk: Disk) -> None:
        job.store.event("finishing")
        if job.users_done == job.users:
            job.manifest.state, job.manifest.results_sha256 = COMPLETE, "0" * 64
            job.manifest.save(self.files.manifest, disk)
        super().finish(job, disk)


def is_found(bench: Bench, disk: RecordingDisk) -> bool:
    """Whether one of some hundred losses is not survived."""
    try:
        for seed in range(300):
            bench.check(a_loss(disk, random.Random(seed)))
    except AssertionError:
        return True
    return False


@pytest.mark.parametrize("forgotten", [NamesForgotten, ContentForgotten])
def test_sync_that_is_left_out_is_found(tmp_path, forgotten):
    """Without its syncs, of files or of folders, a store does not survive the model's losses."""
    bench = Bench(tmp_path, USERS, power=True)
    assert is_found(bench, bench.recorded(forgotten))


def test_manifest_that_is_written_too_early_is_found(tmp_path):
    """A manifest that vouches for a file that is still to be written is not survived."""
    bench = Bench(tmp_path, USERS, power=True, made=ManifestFirst)
    assert is_found(bench, bench.recorded())
