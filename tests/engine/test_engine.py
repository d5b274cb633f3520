"""The engine of one process, over a small benchmark and a scripted endpoint, with real files."""

from __future__ import annotations

import os
import random
import signal
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.from_thread
import anyio.lowlevel
import pytest

from harness.chat import Chat
from harness.client.caller import Caller
from harness.client.control import FixedControl
from harness.client.health import Limits
from harness.client.limiter import Limiter, Slots
from harness.engine import local
from harness.engine import runner as runner_module
from harness.engine.local import LocalEngine, Signals
from harness.engine.progress import EndpointFindings
from harness.engine.runner import ModelRunner, RunnerPlan
from harness.errors import (
    EndpointStopped,
    HarnessError,
    MachineError,
    Rejected,
    RunStopped,
    TransportFault,
)
from harness.model import JSON, AtRisk, Completion, Record, Snapshot
from harness.store import log
from harness.store.manifest import COMPLETE, INCOMPLETE, STOPPED
from harness.store.run import RunStore
from tests.support.chain_runs import STEPS, USERS, Opened, Run
from tests.support.chains import Chains, Endpoint, no_wait


@pytest.fixture(autouse=True)
def quick_ticks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine looks around every millisecond, so that no test waits for it."""
    monkeypatch.setattr(local, "TICK_SECONDS", 0.001)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path)


class Gate:
    """Holds requests on the wire until the engine is seen to stop."""

    def __init__(self) -> None:
        self.held = 0
        self._open = anyio.Event()

    async def wait(self) -> None:
        self.held += 1
        await self._open.wait()

    def observe(self, snapshot: Snapshot) -> None:
        if snapshot.stopping:
            self._open.set()


async def for_ever(user: str, before: int) -> None:
    await anyio.sleep_forever()


# A run that comes to its end


@pytest.mark.anyio
async def test_no_more_than_the_limit_is_on_the_wire_or_in_play(run):
    """The limit is reached and kept; users that would only wait for a slot are not started."""
    endpoint = Endpoint()
    await run.play(endpoint, limit=3)
    assert endpoint.most_on_the_wire == 3
    assert run.benchmark.most_in_play == 3


@pytest.mark.anyio
async def test_users_that_back_off_are_replaced_but_by_no_crowd(tmp_path):
    """While they hold no slot others are played; where everybody fails, twice the limit is all that
    is in play."""

    async def fails_first(user: str, before: int) -> None:
        if not before:
            raise TransportFault("http_503", "busy")

    async def until_looked_at_often(seconds: float) -> None:
        await looked_at_often.wait()

    def observe(snapshot: Snapshot) -> None:
        if len(run.snapshots) == 20:
            looked_at_often.set()

    run, endpoint, looked_at_often = (
        Run(tmp_path, {str(n): 1 for n in range(60)}),
        Endpoint(fails_first),
        anyio.Event(),
    )
    assert await run.play(endpoint, limit=3, sleep=until_looked_at_often, observe=observe) is None
    assert endpoint.most_on_the_wire == 3
    assert run.benchmark.most_in_play == 6


@pytest.mark.anyio
async def test_snapshots_count_up_to_the_whole(run):
    """The last snapshot accounts for every user, step, request and token."""
    await run.play(Endpoint())
    last = run.snapshots[-1]
    progress = last.subsets[0]
    assert (progress.users, progress.done, progress.failed) == (12, 12, 0)
    assert (progress.steps, progress.steps_done) == (STEPS, STEPS)
    assert (last.requests, last.retries, last.in_flight, last.waiting, last.replayed) == (
        STEPS,
        0,
        0,
        0,
        0,
    )
    assert (last.prompt_tokens, last.completion_tokens) == (3 * STEPS, 2 * STEPS)


@pytest.mark.anyio
async def test_snapshots_tell_what_fails_by_kind(run):
    """Tries that failed and users given up on, the last of these in its own words, and how long the
    replies took."""

    async def script(user: str, before: int) -> None:
        if user == "用户3":
            raise TransportFault("http_503", "busy")
        if user == "用户4" and not before:
            raise TransportFault("timeout", "late")

    await run.play(Endpoint(script), power=True)
    last = run.snapshots[-1]
    [(often, tries), once] = last.faults
    assert often == "http_503" and tries >= 3 and once == ("timeout", 1)
    assert last.failures == (("persistent_error", 1),)
    [warned] = last.warnings
    assert warned.text in (
        "timeout: late",
        "http_503: busy",
        "用户3: persistent_error: http_503: busy",
    )
    assert last.latency is not None and 0.0 <= last.latency[0] <= last.latency[1]
    assert last.at_risk == AtRisk(0, 0.0)
    assert last.over and last.eta == 0.0


class Residents(Chains):
    """The schedule counts 100 requests of each, since nobody can tell; they make five."""

    async def play(self, given: JSON, chat: Chat) -> list[str]:
        return [(await self.asked(chat, given["user_id"], str(number))).text for number in range(5)]


@pytest.mark.anyio
async def test_tokens_and_time_to_go_are_those_of_the_requests_that_users_make(
    tmp_path,
):
    """Not of those that were counted for them: after ten of 16 agents, the rest will take as many
    tokens each."""
    run = Run(tmp_path, {f"居民{number}": 100 for number in range(16)})
    run.benchmark = Residents()
    served: set[str] = set()
    release, seen = anyio.Event(), list[Snapshot]()

    async def script(user: str, before: int) -> None:
        if len(served) < 10:
            served.add(user)
        if user not in served:
            await release.wait()

    def observe(snapshot: Snapshot) -> None:
        if snapshot.subsets[0].done == 10 and snapshot.in_flight == 3 and not release.is_set():
            seen.append(snapshot)
            release.set()

    await run.play(Endpoint(script), limit=3, observe=observe)
    assert seen[0].projected_tokens == (
        run.snapshots[-1].prompt_tokens,
        run.snapshots[-1].completion_tokens,
    )
    assert run.snapshots[-1].prompt_tokens == 16 * 5 * 3
    assert not seen[
        0
    ].chain_bound  # on three slots so far 50 replies took 16 times one's time: six more take ten


@pytest.mark.anyio
async def test_the_last_look_has_the_scores_of_all_who_ended(run):
    """However soon after the last users it comes: it is what stays on the screen and in the log."""
    await run.play(Endpoint())
    (last,) = run.snapshots[-1].subsets
    assert (last.done, last.scored_users) == (12, 12)


@pytest.mark.anyio
async def test_a_run_that_does_not_sync_says_what_a_power_loss_could_take(run):
    """All its users, since nothing of it was synced."""
    await run.play(Endpoint())
    assert run.snapshots[-1].at_risk.users == 12


@pytest.mark.anyio
async def test_display_and_log_tell_the_true_concurrency(tmp_path, monkeypatch):
    """What was asked for, what is admitted, what is on the wire, and that nothing holds more
    back."""
    monkeypatch.setattr(local, "NOTE_SECONDS", 0.0)
    run, release = Run(tmp_path), anyio.Event()

    async def held(user: str, before: int) -> None:
        await release.wait()

    def observe(snapshot: Snapshot) -> None:
        if len(run.snapshots) == 3:
            release.set()

    assert await run.play(Endpoint(held), limit=3, observe=observe) is None
    seen = run.snapshots[2]
    assert (seen.requested, seen.limit, seen.in_flight, seen.held_by, seen.backing_off) == (
        3,
        3,
        3,
        None,
        0,
    )
    noted = [log.decode_line(line.text) for line in log.valid_lines(run.files.events)]
    first = next(event for event in noted if event["what"] == "concurrency")
    assert (first["requested"], first["admitted"], first["on_the_wire"], first["held_by"]) == (
        3,
        3,
        3,
        None,
    )


@pytest.mark.anyio
async def test_results_are_the_same_bytes_whatever_happens_on_the_way(tmp_path):
    """One, three or sixteen at a time, with faults, or in two goes: the final file does not
    differ."""

    async def flaky(user: str, before: int) -> None:
        if before % 3 == 1:
            raise TransportFault("http_503", "busy")

    async def stops(user: str, before: int) -> None:
        if user == "用户5":
            raise EndpointStopped("no more")

    contents = []
    for name, limit, scripts in (
        ("1", 1, [None]),
        ("3", 3, [None]),
        ("16", 16, [None]),
        ("faults", 4, [flaky]),
        ("goes", 2, [stops, None]),
    ):
        (tmp_path / name).mkdir()
        run = Run(tmp_path / name)
        for script in scripts:
            await run.play(Endpoint(script), limit=limit)
        assert run.manifest.state == COMPLETE
        contents.append((run.files.results.read_bytes(), run.manifest.results_sha256))
    assert len(set(contents)) == 1


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("seconds", "cpu", "share"),
    [
        (100.0, 96.6, 0.97),
        (100.0, 89.0, None),  # below the threshold
        (59.0, 59.0, None),  # too short to need a remedy
    ],
)
async def test_event_loop_that_held_the_run_up_is_in_the_schedule(run, seconds, cpu, share):
    """The share of its core is there if the loop was busy for most of a long run."""
    now, used = [10.0], [3.0]

    def clock() -> float:
        return now[0]

    with run.open() as job:
        caller = Caller(
            Endpoint(),
            Limiter(Slots(FixedControl(1), clock)),
            Limits(0, 900.0),
            probe=b"?",
            clock=clock,
        )
        runner = ModelRunner(RunnerPlan("run", 0, 1, False), EndpointFindings([job], clock), caller)
        engine = LocalEngine(
            [runner], seed=0, clock=clock, observe=lambda snapshots: None, cpu=lambda: used[0]
        )
        now[0] += seconds
        used[0] += cpu
        took = engine.schedule(runner)
    assert took.get("event_loop") == share


def test_signal_after_the_last_user_ends_the_command_after_the_event_loop():
    """Within the loop's last steps the exception of a handler could come between any two lines of a
    library."""
    reached = []

    async def played(signals: Signals) -> None:
        await LocalEngine(
            [], seed=0, clock=anyio.current_time, observe=lambda snapshots: None, signals=signals
        ).run()
        signal.raise_signal(signal.SIGINT)
        await anyio.lowlevel.checkpoint()
        reached.append("the end")

    with pytest.raises(KeyboardInterrupt), Signals() as signals:
        signals.listen()
        anyio.run(played, signals)
    assert reached == ["the end"] and signal.getsignal(signal.SIGINT) is signal.default_int_handler


# Users that fail


@pytest.mark.anyio
async def test_user_whose_request_keeps_failing_does_not_keep_the_others(run):
    """It becomes a failure with its tries; everyone else is recorded, and a later run owes that
    user alone."""

    async def one_fails(user: str, before: int) -> None:
        if user == "用户2" and before:  # its second request
            raise TransportFault("http_503", "忙")

    async def until_another_passed(seconds: float) -> None:
        before = endpoint.answered.total()
        while endpoint.answered.total() == before:
            await anyio.lowlevel.checkpoint()

    endpoint = Endpoint(one_fails)
    assert await run.play(endpoint, sleep=until_another_passed) is None
    assert run.failures == [("用户2", "persistent_error", 3)]
    assert sorted(run.recorded) == sorted(set(USERS) - {"用户2"})
    assert run.manifest.state == INCOMPLETE
    assert run.counts == {"users": 11, "expected": 12, "failed": 1}
    progress = run.snapshots[-1].subsets[0]
    assert (progress.done, progress.failed, progress.steps_done) == (11, 1, STEPS)
    again = Endpoint()
    assert await run.play(again) is None
    assert Counter(again.sent) == {"用户2": USERS["用户2"] - 1}
    assert run.snapshots[-1].replayed == 1
    assert run.manifest.state == COMPLETE and run.report.coverage.failed_users == 0


@pytest.mark.anyio
async def test_refusals_before_any_success_stop_the_run(run):
    """The third user that is refused shows that all will be: the run ends and says with what."""

    async def refuses(user: str, before: int) -> None:
        raise Rejected("http_400", "unknown parameter")

    endpoint = Endpoint(refuses)
    ending = await run.play(endpoint, limit=1)
    assert isinstance(ending, EndpointStopped) and "unknown parameter" in str(ending)
    assert len(endpoint.sent) == 3


# An endpoint that stops the run


@pytest.mark.anyio
async def test_endpoint_that_stops_the_run_loses_no_reply(run):
    """Nothing new goes out, what was on the wire is saved, and a later run asks for none of it
    again."""
    gate = Gate()

    async def stops(user: str, before: int) -> None:
        if len(endpoint.sent) <= 8:
            return
        if gate.held < 3:
            return await gate.wait()
        raise EndpointStopped("quota exhausted")

    endpoint = Endpoint(stops)
    ending = await run.play(endpoint, limit=4, observe=gate.observe)
    assert isinstance(ending, EndpointStopped)
    assert len(endpoint.sent) == 12
    assert run.saved == endpoint.answered and endpoint.answered.total() == 11
    assert run.manifest.state == STOPPED
    assert run.failures == []
    again = Endpoint()
    assert await run.play(again, limit=4) is None
    assert again.answered.total() == STEPS - 11 and not again.answered & endpoint.answered
    assert run.recorded == list(USERS) and run.manifest.state == COMPLETE


@pytest.mark.anyio
async def test_no_user_starts_in_a_run_that_is_stopping(tmp_path):
    """Users that end within the grace make room that nobody takes."""
    gate, run = Gate(), Run(tmp_path, {str(n): 1 for n in range(9)})

    async def stops(user: str, before: int) -> None:
        if len(endpoint.sent) == 3:
            raise EndpointStopped("quota exhausted")
        await gate.wait()

    endpoint = Endpoint(stops)
    assert isinstance(await run.play(endpoint, limit=3, observe=gate.observe), EndpointStopped)
    assert len(run.recorded) == 2
    assert run.benchmark.started == 3


@pytest.mark.anyio
async def test_request_that_outlasts_the_grace_is_given_up(run, monkeypatch):
    """What the wire owes when the grace ends is owed; what it gave before is saved."""
    monkeypatch.setattr(runner_module, "GRACE_SECONDS", 0.01)

    async def stops(user: str, before: int) -> None:
        if len(endpoint.sent) == 5:
            raise EndpointStopped("quota exhausted")
        if len(endpoint.sent) > 2:
            await anyio.sleep_forever()

    endpoint = Endpoint(stops)
    assert isinstance(await run.play(endpoint), EndpointStopped)
    assert run.saved == endpoint.answered and endpoint.answered.total() == 2


@pytest.mark.anyio
async def test_user_that_backs_off_does_not_hold_up_the_end(run):
    """Whoever waits for another try, or for a slot, is not waited for."""

    async def stops(user: str, before: int) -> None:
        if len(endpoint.sent) == 6:
            raise EndpointStopped("quota exhausted")
        raise TransportFault("http_503", "busy")

    endpoint = Endpoint(stops)
    assert isinstance(await run.play(endpoint, max_retries=10**9), EndpointStopped)


# A machine that stops the run


class BreakingStore(RunStore):
    """Takes a number of writes and refuses the others, as a full disk does."""

    def __init__(self, writes: int, *args: Any) -> None:
        super().__init__(*args)
        self._writes = writes

    def _spend(self) -> None:
        self._writes -= 1
        if self._writes < 0:
            raise MachineError("disk full")

    def save_response(self, *args: Any, **kwargs: Any) -> None:
        self._spend()
        super().save_response(*args, **kwargs)

    def save_record(self, *args: Any, **kwargs: Any) -> Record:
        self._spend()
        return super().save_record(*args, **kwargs)

    def save_failure(self, *args: Any, **kwargs: Any) -> None:
        self._spend()
        super().save_failure(*args, **kwargs)

    def event(self, what: str, **details: Any) -> None:
        self._spend()
        super().event(what, **details)


@pytest.mark.anyio
async def test_disk_that_is_full_at_any_write_ends_the_run_with_everything_saved_intact(
    tmp_path,
):
    """Responses, records, failures and events: whichever write is the first to fail, the run ends
    with the reason, and goes on from what was saved to the same results."""
    users = {"甲": 2, "乙": 1, "丙": 2}

    async def one_fault(user: str, before: int) -> None:
        if user == "甲" and not before:
            raise TransportFault("http_503", "busy")
        if user == "乙":
            raise Rejected("http_400", "never")

    results, write = set(), 0
    ending: HarnessError | None = MachineError()
    while ending is not None:
        folder = tmp_path / str(write)
        folder.mkdir()
        ending = await Run(folder, users, partial(BreakingStore, write)).play(
            Endpoint(one_fault), limit=2
        )
        assert ending is None or str(ending) == "disk full"
        run, again = Run(folder, users), Endpoint()
        before = run.saved
        assert await run.play(again) is None
        assert not before & again.answered
        results.add(run.files.results.read_bytes())
        write += 1
    assert (
        write - 1 == 4 + 2 + 1 + 1 + 3
    )  # responses, records, a failure, a retry, and what is in flight
    assert len(results) == 1


@pytest.mark.anyio
async def test_error_of_the_machine_waits_for_nobody(tmp_path):
    """When nothing more can be saved, requests on the wire are not waited for."""

    async def one_answers(user: str, before: int) -> None:
        if len(endpoint.sent) < 3:
            await anyio.sleep_forever()

    endpoint = Endpoint(one_answers)
    with anyio.fail_after(5):
        assert isinstance(
            await Run(tmp_path, store=partial(BreakingStore, 0)).play(endpoint), MachineError
        )


@pytest.mark.anyio
async def test_disk_that_fills_while_the_run_is_stopping_is_the_reason_that_is_told(
    tmp_path,
):
    """That the end itself cannot be noted in the log is no reason to crash, and the one that needs
    a remedy first."""

    async def stops(user: str, before: int) -> None:
        if len(endpoint.sent) == 3:
            raise EndpointStopped("quota exhausted")
        await anyio.sleep_forever()

    endpoint = Endpoint(stops)
    with anyio.fail_after(5):
        assert (
            str(await Run(tmp_path, store=partial(BreakingStore, 0)).play(endpoint)) == "disk full"
        )


@pytest.mark.anyio
async def test_lost_lock_ends_the_run(tmp_path):
    """A process whose run another has taken over writes no more."""

    class Lost(RunStore):
        def beat(self) -> None:
            raise MachineError("taken over")

    with anyio.fail_after(5):
        assert str(await Run(tmp_path, store=Lost).play(Endpoint(for_ever))) == "taken over"


# Signals


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGUSR1, 143), (signal.SIGHUP, 129)],
    ids=str,
)
async def test_signal_lets_the_wire_answer_and_saves_it(run, number, code):
    """No new request goes out, those on the wire are saved, and the exit code tells the signal."""
    gate = Gate()

    async def signalled(user: str, before: int) -> None:
        if len(endpoint.sent) > 4:
            if len(endpoint.sent) == 7:
                os.kill(os.getpid(), number)
            await gate.wait()

    endpoint = Endpoint(signalled)
    ending = await run.play(endpoint, observe=gate.observe)
    assert isinstance(ending, RunStopped) and ending.exit_code == code
    assert (
        len(endpoint.sent) == 7
        and run.saved == endpoint.answered
        and endpoint.answered.total() == 7
    )
    assert run.manifest.state == STOPPED
    assert run.snapshots[-1].stopping == "stopped by a signal"
    again = Endpoint()
    assert await run.play(again) is None
    assert not again.answered & endpoint.answered


@pytest.mark.anyio
async def test_hangup_after_a_signal_leaves_the_grace(run):
    """A terminal that closes sends one, and its shell another: what is in flight is answered and
    saved all the same."""
    gate, hung_up = Gate(), list[Snapshot]()

    async def signalled(user: str, before: int) -> None:
        if len(endpoint.sent) == 3:
            os.kill(os.getpid(), signal.SIGHUP)
        if len(endpoint.sent) >= 3:
            await gate.wait()

    def observe(snapshot: Snapshot) -> None:
        if not snapshot.stopping:
            return
        hung_up.append(snapshot)
        if len(hung_up) == 1:
            os.kill(os.getpid(), signal.SIGHUP)
        elif len(hung_up) > 2:  # the second was heard
            gate.observe(snapshot)

    endpoint = Endpoint(signalled)
    ending = await run.play(endpoint, observe=observe)
    assert isinstance(ending, RunStopped) and ending.exit_code == 129
    assert endpoint.answered.total() == len(endpoint.sent) and run.saved == endpoint.answered


@pytest.mark.anyio
@pytest.mark.parametrize("first", ["signal", "endpoint"])
async def test_signal_to_a_run_that_is_stopping_ends_it_at_once(run, first):
    """Who asks again does not wait for the grace; whatever it was that stopped the run first."""
    asked_again: list[Snapshot] = []

    async def stops(user: str, before: int) -> None:
        if len(endpoint.sent) == 3:
            if first == "endpoint":
                raise EndpointStopped("quota exhausted")
            os.kill(os.getpid(), signal.SIGTERM)
        await anyio.sleep_forever()

    def again(snapshot: Snapshot) -> None:
        if snapshot.stopping and not asked_again:
            asked_again.append(snapshot)
            os.kill(os.getpid(), signal.SIGINT)

    endpoint = Endpoint(stops)
    with anyio.fail_after(5):  # the grace is longer
        ending = await run.play(endpoint, observe=again)
    assert asked_again and isinstance(ending, RunStopped if first == "signal" else EndpointStopped)


# Durability


class WatchedStore(RunStore):
    """Knows what the disk held when it was last synced, and how often that was."""

    def __init__(self, opened: list[WatchedStore], *args: Any) -> None:
        super().__init__(*args)
        self.durable = {self.files.responses: b"", self.files.results: b""}
        self.syncs = 0
        opened.append(self)

    def sync(self) -> None:
        seen = {path: path.read_bytes() for path in self.durable}
        self.under_way()
        super().sync()
        self.durable = seen
        self.syncs += 1

    def under_way(self) -> None:
        pass


@pytest.fixture
def stores() -> list[WatchedStore]:
    """The stores that a test has opened, by `watching(stores)`."""
    return []


def watching(stores: list[WatchedStore]) -> Callable[..., RunStore]:
    return partial(WatchedStore, stores)


@pytest.mark.anyio
async def test_power_durability_shows_no_reply_before_it_is_on_the_disk(tmp_path, stores):
    """`ask` returns only after a sync that began when the reply's line was in the file."""
    run = Run(tmp_path, store=watching(stores))
    replies_at_risk = []

    class Checked(Chains):
        async def asked(self, chat: Chat, key: str, before: str) -> Completion:
            completion = await super().asked(chat, key, before)
            durable = stores[0].durable
            replies_at_risk.append(completion.text.encode() not in durable[run.files.responses])
            return completion

    run.benchmark = Checked()
    assert await run.play(Endpoint(), power=True) is None
    assert len(replies_at_risk) == STEPS
    assert not any(replies_at_risk)
    assert stores[0].durable[run.files.results].count(b"\n") == 12


@pytest.mark.anyio
async def test_power_durability_syncs_for_many_at_once(tmp_path, stores):
    """Lines that come while a sync is under way share the next one."""
    users = {str(n): 2 for n in range(64)}
    assert (
        await Run(tmp_path, users, watching(stores)).play(Endpoint(), limit=64, power=True) is None
    )
    assert 0 < stores[0].syncs < 3 * 64 / 2  # 128 responses and 64 records


@pytest.mark.anyio
async def test_power_durability_leaves_nothing_unsynced_when_it_is_stopped(tmp_path, stores):
    """A reply that came while the last sync was under way, and waited for another, is on the disk
    at the end."""
    syncing, paced, cancelled = anyio.Event(), threading.Event(), anyio.get_cancelled_exc_class()

    class Slow(WatchedStore):
        def under_way(self) -> None:
            """The first sync lasts until nobody waits for it any more."""
            if not self.syncs:
                anyio.from_thread.run_sync(syncing.set)
            with suppress(cancelled):
                while not self.syncs:
                    anyio.from_thread.check_cancelled()
                    paced.wait(0.001)

    async def stops(user: str, before: int) -> None:
        number = len(endpoint.sent)
        if number > 1:
            await syncing.wait()
        if number == 3:
            while (
                endpoint.answered.total() < 2
            ):  # then the second reply is saved, and waits for another sync
                await anyio.lowlevel.checkpoint()
            raise EndpointStopped("quota exhausted")

    run, endpoint = (
        Run(tmp_path, {"甲": 1, "乙": 1, "丙": 1}, partial(Slow, stores)),
        Endpoint(stops),
    )
    assert isinstance(await run.play(endpoint, power=True), EndpointStopped)
    assert run.saved == endpoint.answered and endpoint.answered.total() == 2
    assert stores[0].durable[run.files.responses] == run.files.responses.read_bytes()


@pytest.mark.anyio
async def test_failed_sync_ends_the_run(tmp_path):
    """A disk that does not keep its word is not written to any longer."""

    class Failing(RunStore):
        def sync(self) -> None:
            raise MachineError("cannot sync")

    endpoint = Endpoint()
    with anyio.fail_after(5):
        assert str(await Run(tmp_path, store=Failing).play(endpoint, power=True)) == "cannot sync"
    assert max(Counter(endpoint.sent).values()) == 1  # nobody was shown a reply


@pytest.mark.anyio
async def test_process_durability_never_waits_for_the_disk(tmp_path, stores):
    """Without `power` a line in the kernel is enough."""
    assert await Run(tmp_path, store=watching(stores)).play(Endpoint()) is None
    assert stores[0].syncs == 0


# Several runs at once


class Together:
    """Runs of several models in one engine. Each has a caller of its own; `slots` says whose they
    are."""

    def __init__(self, folder: Path, users: Mapping[str, int] = USERS) -> None:
        self._folder = folder
        self._users = users
        self._opened: list[Opened] = []
        self.runs: dict[str, Run] = {}
        self.runners: dict[str, ModelRunner] = {}
        self.sleep: Callable[[float], Awaitable[None]] = no_wait
        self.wait = 0.0
        self.ahead = 0.0
        """Seconds by which the clock of displays and callers has been put forward."""

    def clock(self) -> float:
        return anyio.current_time() + self.ahead

    def replace_users(self, users: Mapping[str, int]) -> None:
        """Of the runs that are added from now on."""
        self._users = users

    def add(self, name: str, endpoint: Endpoint, slots: Slots) -> ModelRunner:
        (self._folder / name).mkdir()
        run = self.runs[name] = Run(self._folder / name, self._users)
        self._opened.append(run.open())
        job = self._opened[-1].__enter__()
        clock, limits = self.clock, Limits(2, 900.0, self.wait)
        caller = Caller(
            endpoint,
            Limiter(slots),
            limits,
            probe=b"?",
            clock=clock,
            sleep=self.sleep,
            rng=random.Random(0),
        )
        made = ModelRunner(
            RunnerPlan(name, 1, None, False),
            EndpointFindings([job], clock),
            caller,
            where=lambda user: f"http://{user}/v1",
        )
        self.runners[name] = made
        return made

    async def play(
        self, observe: Callable[[tuple[Snapshot, ...]], None] = lambda snapshots: None
    ) -> None:
        try:
            runners = list(self.runners.values())
            with Signals() as signals:
                signals.listen()
                await LocalEngine(
                    runners, seed=1, clock=anyio.current_time, observe=observe, signals=signals
                ).run()
        finally:
            for opened in self._opened:
                opened.__exit__()


def slots(limit: int) -> Slots:
    return Slots(FixedControl(limit), anyio.current_time)


@pytest.mark.anyio
async def test_runs_on_one_account_share_its_slots_and_places(tmp_path):
    """Both complete with the records that each would have alone, and together they keep the limit,
    in play too."""
    together, shared, endpoint = Together(tmp_path), slots(3), Endpoint()
    for name in ("甲", "乙"):
        together.add(name, endpoint, shared)
    most = 0

    def observe(snapshots: tuple[Snapshot, ...]) -> None:
        nonlocal most
        most = max(most, sum(runner.in_play for runner in together.runners.values()))

    await together.play(observe)
    assert [sorted(run.recorded) for run in together.runs.values()] == [sorted(USERS)] * 2
    assert endpoint.most_on_the_wire == 3
    assert most <= 3
    assert Counter(endpoint.sent) == {user: 2 * steps for user, steps in USERS.items()}


@pytest.mark.anyio
@pytest.mark.parametrize("same_account", [True, False])
async def test_run_that_its_endpoint_stops_takes_no_other_with_it(tmp_path, same_account):
    """An unknown model ends its own run with its reason; the other is complete."""

    async def unknown(user: str, before: int) -> None:
        raise EndpointStopped("no such model")

    together, shared = Together(tmp_path), slots(2)
    stopped = together.add("unknown", Endpoint(unknown), shared)
    other = together.add("known", Endpoint(), shared if same_account else slots(2))
    await together.play()
    assert str(stopped.ending) == "no such model"
    assert together.runs["unknown"].recorded == []
    assert other.ending is None
    assert sorted(together.runs["known"].recorded) == sorted(USERS)


@pytest.mark.anyio
async def test_outage_of_one_run_leaves_the_slots_to_the_other(tmp_path):
    """While one only probes, the other on the same account is played to its end; then the first
    goes on."""
    together, shared = Together(tmp_path), slots(3)
    down = together.add("down", Endpoint(), shared)
    together.add("up", Endpoint(), shared)
    down.caller.limiter.probe(1e9)
    done_in_outage: list[int] = []

    def observe(snapshots: tuple[Snapshot, ...]) -> None:
        of_down, of_up = (snapshot.subsets[0].done for snapshot in snapshots)
        if of_up == len(USERS) and down.caller.limiter.probing:
            done_in_outage.append(of_down)
            down.caller.limiter.recover()

    await together.play(observe)
    assert done_in_outage == [0]
    assert all(sorted(run.recorded) == sorted(USERS) for run in together.runs.values())


@pytest.mark.anyio
@pytest.mark.parametrize("same_account", [True, False])
async def test_model_that_loads_late_does_not_hold_the_other(tmp_path, same_account):
    """With --wait the other is played to its end meanwhile, and the display says for how long more
    it waits."""
    together, shared, loaded = Together(tmp_path), slots(3), anyio.Event()

    async def loading(user: str, before: int) -> None:
        if not loaded.is_set():
            raise TransportFault("connect", "refused", unreachable=True)

    together.wait = 600.0
    late = together.add("late", Endpoint(loading), shared)
    together.add("up", Endpoint(), shared if same_account else slots(3))
    seen: list[tuple[int, float, float | None]] = []

    def observe(snapshots: tuple[Snapshot, ...]) -> None:
        of_late, of_up = snapshots
        if of_up.subsets[0].done == len(USERS) and of_late.awaited and not loaded.is_set():
            seen.append((of_late.subsets[0].done, of_late.awaited, of_late.eta))
            loaded.set()
            late.caller.limiter.recover()

    with anyio.fail_after(60):
        await together.play(observe)
    [(done, awaited, eta)] = seen
    assert (done, eta) == (0, None) and 500.0 < awaited <= 600.0
    assert all(sorted(run.recorded) == sorted(USERS) for run in together.runs.values())


@pytest.mark.anyio
@pytest.mark.parametrize("fault", ["http_502", None], ids=["5xx", "silent"])
async def test_endpoint_that_never_answers_is_warned_of_within_a_minute(tmp_path, capsys, fault):
    """Once, with what was seen and the address; the run goes on, and the log has it."""
    together, warned = Together(tmp_path), anyio.Event()

    async def useless(user: str, before: int) -> None:
        if not warned.is_set() and fault:
            raise TransportFault(fault, "bad gateway")
        await warned.wait()

    together.sleep = lambda seconds: warned.wait()
    together.add("useless", Endpoint(useless), slots(2))
    looks = 0

    def observe(snapshots: tuple[Snapshot, ...]) -> None:
        nonlocal looks
        looks += 1
        together.ahead += 20.0
        if looks == 4:
            warned.set()

    await together.play(observe)
    events = [
        log.decode_line(line.text)
        for line in log.valid_lines(together.runs["useless"].files.events)
    ]
    [event] = [event for event in events if event["what"] == "no_answer"]
    assert (fault or "no reply") in event["detail"] and "http://x/models" in event["detail"]
    assert capsys.readouterr().err.count("http://x/models") == 1
    assert sorted(together.runs["useless"].recorded) == sorted(USERS)


@pytest.mark.anyio
async def test_time_to_go_is_at_least_that_of_the_request_in_flight_for_longest(
    tmp_path,
):
    """It has taken longer than every reply so far, and is no straggler yet: it may take as long
    again."""
    together, released, seen = Together(tmp_path), anyio.Event(), list[Snapshot]()

    async def slow(user: str, before: int) -> None:
        if user == "用户5":
            await released.wait()

    together.add("slow", Endpoint(slow), slots(3))

    def observe(snapshots: tuple[Snapshot, ...]) -> None:
        if snapshots[0].subsets[0].done == len(USERS) - 1 and not released.is_set():
            together.ahead += 9.0
            seen.append(snapshots[0])
            if len(seen) == 2:
                released.set()

    await together.play(observe)
    assert not seen[1].at_most and seen[1].eta is not None and 9.0 <= seen[1].eta < 30.0


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("limit", "chain_bound"), [(3, False), (6, True)], ids=["some wait", "all in play"]
)
async def test_last_users_take_as_long_as_the_longest_of_them(tmp_path, limit, chain_bound):
    """Once the six users left are all in play: not as long as the rate says, which was low before
    the first reply."""
    together, released, seen = (
        Together(tmp_path, {f"居民{n}": 5 for n in range(16)}),
        anyio.Event(),
        list[Snapshot](),
    )
    served: set[str] = set()

    async def script(user: str, before: int) -> None:
        together.ahead += 0.1
        if len(served) < 10:
            served.add(user)
        if user not in served:
            await released.wait()

    together.add("m", Endpoint(script), slots(limit))
    together.ahead += 1000.0

    def observe(snapshots: tuple[Snapshot, ...]) -> None:
        if (
            snapshots[0].subsets[0].done == 10
            and snapshots[0].in_flight == limit
            and not released.is_set()
        ):
            seen.append(snapshots[0])
            released.set()

    await together.play(observe)
    assert seen[0].chain_bound is chain_bound
    assert seen[0].eta is not None and (seen[0].eta < 10.0) is chain_bound


@pytest.mark.anyio
async def test_request_that_hangs_is_named_and_determines_the_time_to_go(tmp_path):
    """User, seconds and endpoint in a warning and, once, in the log; the ETA is the end of its
    time-out at most."""
    together, released, seen = Together(tmp_path), anyio.Event(), list[Snapshot]()

    async def hangs(user: str, before: int) -> None:
        if user == "用户5":
            await released.wait()

    together.add("hangs", Endpoint(hangs), slots(3))

    def observe(snapshots: tuple[Snapshot, ...]) -> None:
        if snapshots[0].subsets[0].done == len(USERS) - 1 and not released.is_set():
            together.ahead += 100.0
            seen.append(snapshots[0])
            if len(seen) == 4:
                released.set()

    await together.play(observe)
    first, *_, last = seen
    assert not first.at_most
    text = last.warnings[0].text
    assert "用户5 300 s" in text and "http://用户5/v1" in text
    [advice] = [warned.text for warned in last.warnings if "--timeout" in warned.text]
    assert "--stream on" in advice and "--hedge 3" in advice
    assert last.at_most and last.eta is not None and 299.0 < last.eta < 310.0
    run = together.runs["hangs"]
    events = [log.decode_line(line.text) for line in log.valid_lines(run.files.events)]
    [event] = [event for event in events if event["what"] == "straggler"]
    assert (event["user_id"], event["endpoint"], event["seconds"] > 99.0) == (
        "用户5",
        "http://用户5/v1",
        True,
    )
    assert sorted(run.recorded) == sorted(USERS)


@pytest.mark.anyio
async def test_signal_stops_every_run(tmp_path):
    """One Ctrl-C is for all of them; each keeps what it has."""
    together, held = Together(tmp_path), Gate()

    def observe(snapshots: tuple[Snapshot, ...]) -> None:
        if held.held == 4 and not any(snapshot.stopping for snapshot in snapshots):
            os.kill(os.getpid(), signal.SIGINT)
        held.observe(snapshots[0])

    async def gated(user: str, before: int) -> None:
        await held.wait()

    for name in ("甲", "乙"):
        together.add(name, Endpoint(gated), slots(2))
    await together.play(observe)
    assert all(isinstance(runner.ending, RunStopped) for runner in together.runners.values())
    assert all(run.saved.total() == 2 for run in together.runs.values())


@pytest.mark.anyio
async def test_machine_error_of_one_run_is_the_end_of_all(tmp_path):
    """A disk that is full for one is full for the others, which report why."""

    async def full(user: str, before: int) -> None:
        raise MachineError("no space left")

    together = Together(tmp_path)
    together.add("full", Endpoint(full), slots(2))
    together.add("waiting", Endpoint(for_ever), slots(2))
    await together.play()
    assert [str(runner.ending) for runner in together.runners.values()] == ["no space left"] * 2


@pytest.mark.anyio
async def test_runs_that_share_an_account_end_together(tmp_path):
    """Users start in proportion to what is left of each, so that neither run waits for the other's
    end."""
    together, shared = Together(tmp_path, {f"u{n}": 1 for n in range(60)}), slots(2)
    for name in ("a", "b"):
        together.add(name, Endpoint(), shared)
    halves: list[int] = []

    def observe(snapshots: tuple[Snapshot, ...]) -> None:
        done = [snapshot.subsets[0].done for snapshot in snapshots]
        if sum(done) >= 60 and not halves:
            halves.extend(done)

    await together.play(observe)
    assert min(halves) >= 15


@pytest.mark.anyio
async def test_chain_that_could_outlast_all_runs_of_its_account_goes_first(tmp_path):
    """Whichever run it is of: their users share the slots, so one of 30 steps among 60 of one is
    the longest way."""
    together, shared, endpoint = (
        Together(tmp_path, {f"u{n}": 1 for n in range(60)}),
        slots(2),
        Endpoint(),
    )
    together.add("short", endpoint, shared)
    together.replace_users({"long": 30})
    together.add("long", endpoint, shared)
    await together.play()
    assert "long" in endpoint.sent[:2]


@pytest.mark.anyio
async def test_run_in_an_outage_starts_a_user_to_probe_with(tmp_path):
    """Where none of its users is in play, somebody has to find out that the endpoint is back: one
    at a time."""
    together, shared, endpoint = Together(tmp_path), slots(3), Endpoint()
    together.add("up", Endpoint(), shared)
    down = together.add("down", endpoint, shared)
    down.caller.limiter.probe(0.0)
    await together.play()
    assert sorted(together.runs["down"].recorded) == sorted(USERS)


@pytest.mark.anyio
async def test_users_that_back_off_take_no_place_of_another_run(tmp_path):
    """A run whose requests are refused for a while leaves the slots to the other, which goes on at
    its full rate."""

    async def refused(user: str, before: int) -> None:
        if not released.is_set():
            raise TransportFault("http_429", "busy")

    async def until_the_other_is_done(seconds: float) -> None:
        await released.wait()

    released = anyio.Event()
    together, shared, served = (
        Together(tmp_path, {f"u{n}": 1 for n in range(160)}),
        slots(4),
        Endpoint(),
    )
    together.sleep = until_the_other_is_done
    together.add("refused", Endpoint(refused), shared)
    together.sleep = no_wait
    together.add("served", served, shared)

    def observe(snapshots: tuple[Snapshot, ...]) -> None:
        if snapshots[1].subsets[0].done == 160:
            released.set()

    await together.play(observe)
    assert served.most_on_the_wire == 4
    assert all(len(run.recorded) == 160 for run in together.runs.values())


@pytest.mark.anyio
async def test_first_signal_leaves_its_grace_to_a_run_that_was_stopping_already(
    tmp_path,
):
    """One model was denied and its last replies are on the wire; Ctrl-C for the others does not
    throw them away."""
    gate = Gate()

    async def denied(user: str, before: int) -> None:
        if len(stopping.sent) == 3:
            raise EndpointStopped("denied")
        await gate.wait()

    async def others(user: str, before: int) -> None:
        await gate.wait()

    def observe(snapshots: tuple[Snapshot, ...]) -> None:
        if snapshots[0].stopping and not snapshots[1].stopping:
            os.kill(os.getpid(), signal.SIGINT)
        gate.observe(snapshots[1])

    together, stopping = Together(tmp_path), Endpoint(denied)
    together.add("denied", stopping, slots(3))
    together.add("others", Endpoint(others), slots(3))
    await together.play(observe)
    assert together.runs["denied"].saved.total() == 2
    assert together.runs["others"].saved.total() == 3


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("kind", "wait", "counts"), [("http_429", None, 0), ("http_503", 1.0, 0), ("http_503", None, 1)]
)
async def test_being_asked_to_wait_is_no_failed_try_of_a_later_session(
    tmp_path, kind, wait, counts
):
    """A resume counts the failures of earlier processes, and only those."""
    faults = iter([TransportFault(kind, "later", retry_after=wait)])

    async def busy_once(user: str, before: int) -> None:
        if fault := next(faults, None):
            raise fault

    run = Run(tmp_path, {"u": 1})
    await run.play(Endpoint(busy_once))
    logged = [line for _, line in log.objects(run.files.events) if line["what"] == "retry"]
    assert [sum("request" in line for line in logged), len(logged)] == [counts, 1]
