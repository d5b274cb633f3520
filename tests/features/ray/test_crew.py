"""A crew of workers over a small benchmark and a scripted endpoint, in virtual time, with real files."""

from __future__ import annotations

import asyncio
import random
import tempfile
import traceback
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

import anyio
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from harness.benchmark import Means, Task
from harness.benchmarks.reports import encoded
from harness.chat import Chat
from harness.defaults import GRACE_SECONDS
from harness.endpoint.control import FixedControl
from harness.endpoint.rates import Rates
from harness.endpoint.transport import Received
from harness.engine import finish
from harness.engine.answers import FIRST
from harness.engine.lane import User
from harness.errors import (
    AgentFailed,
    AnswersUnusable,
    BadInput,
    BenchmarkError,
    EndpointStopped,
    HarnessError,
    InvalidReply,
    MachineError,
    Rejected,
    RunStopped,
    TransportFault,
)
from harness.features.ray import crew as crew_module
from harness.features.ray import messages as m
from harness.features.ray import scoring
from harness.features.ray.crew import WorkersStopped
from harness.features.ray.player import LEASE_SECONDS
from harness.model import JSON, Completion, Record, Snapshot
from harness.store import log
from harness.store.run import RunStore
from tests.features.ray.workers import TURN, Fake, Loss, Shared, crew_of, importable, played
from tests.support import examples, virtual
from tests.support.chain_runs import Run
from tests.support.chains import Chains, Endpoint

USERS = {f"用户{n}": 1 + n % 3 for n in range(4)}
STEPS = sum(USERS.values())
MANY = {f"用户{n}": 1 + n % 3 for n in range(9)}
LIMIT = 3


def made(folder: Path, benchmark: type[Chains] = Shared, **more: Any) -> Run:
    folder.mkdir(exist_ok=True)
    return Run(folder, more.pop("users", USERS), benchmark=importable(benchmark), **more)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return made(tmp_path)


def slow(seed: int = 0, most: float = 5 * TURN) -> Callable[[str, int], Awaitable[None]]:
    """Replies that take some turns, the same ones for the same request."""

    async def wait(user: str, before: int) -> None:
        await anyio.sleep(random.Random(f"{seed} {user} {before}").random() * most)

    return wait


def lines(path: Path) -> list[JSON]:
    return [log.unseal(line.text) for line in log.sound_lines(path)]


def replies(run: Run) -> dict[tuple[Any, ...], JSON]:
    """The saved completions by their key, each of which is there once."""
    found = [
        ((line["user_id"], line.get("repeat", 1), line["request"], line["nth"]), line["completion"])
        for line in lines(run.files.responses)
    ]
    assert len(dict(found)) == len(found)
    return dict(found)


def events(run: Run, what: str) -> list[JSON]:
    return [line for line in lines(run.files.events) if line["what"] == what]


def locally(run: Run, endpoint: Endpoint | None = None) -> HarnessError | None:
    return virtual.run(lambda: run.play(endpoint or Endpoint(), limit=LIMIT, sleep=anyio.sleep))


def on_workers(run: Run, endpoint: Endpoint | None = None, many: int = 2, **more: Any) -> HarnessError | None:
    return virtual.run(lambda: played(run, endpoint or Endpoint(), many, **more))


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The same run in this process."""
    run = made(tmp_path_factory.mktemp("local"))
    assert locally(run) is None
    return run


def assert_same(run: Run, local: Run) -> None:
    """Results and report to the byte but for what lost requests may cost, the same live figures and replies."""
    assert run.files.results.read_bytes() == local.files.results.read_bytes()
    assert reported(run) == reported(local)
    assert replies(run) == replies(local)


def reported(run: Run) -> bytes:
    return encoded(structs.replace(run.report, cost=None))


def figures(run: Run) -> tuple[int, JSON]:
    """The running scores in the end: of how many users, and the figures."""
    [subset] = run.snapshots[-1].subsets
    return subset.scored_users, dict(subset.scores)


# Identity


@settings(max_examples=examples(8))
@given(many=st.integers(1, 4), seed=st.integers(0, 99), limit=st.integers(1, 6))
def test_results_are_those_of_this_process(local: Run, many: int, seed: int, limit: int) -> None:
    """However long turns and replies take, whatever the order, and wherever batches of messages are cut."""
    with tempfile.TemporaryDirectory() as folder:
        run, endpoint = made(Path(folder)), Endpoint(slow(seed))
        assert on_workers(run, endpoint, many, limit=limit, seed=seed) is None
        assert_same(run, local)
        assert Counter(endpoint.sent) == USERS
        assert endpoint.most_on_the_wire <= limit


def test_repeats_are_those_of_this_process(tmp_path: Path) -> None:
    """Each with a seed of its own, and both in flight at once."""
    runs = [made(tmp_path / name, repeats=2) for name in ("local", "workers")]
    assert locally(runs[0]) is None
    assert on_workers(runs[1], Endpoint(slow())) is None
    assert_same(runs[1], runs[0])
    assert len(replies(runs[1])) == 2 * STEPS


# Scores


class Urns(Shared):
    """A benchmark whose report needs tasks, and a tally."""

    class Scores(Means):
        needs_tasks = True

        def tallied(self, records: Sequence[JSON]) -> tuple[Any, Any]:
            return None, Counter(record.get("steps", "none") for record in records)

        def with_task(self, record: JSON, task: Task) -> JSON:
            return {**record, "steps": str(task.steps)}

        def details(self, scored: Any) -> JSON:
            return dict(sorted(scored.tally.items()))

    scoring = Scores()


class Secretive(Urns):
    """Its tally cannot be sent."""

    class Scores(Urns.Scores):
        def tallied(self, records: Sequence[JSON]) -> tuple[Any, Any]:
            rows, tally = super().tallied(records)
            return rows, Unsent(tally)

    scoring = Scores()


class Unsent(Counter[str]):
    def __reduce__(self) -> Any:
        raise TypeError("not to be sent")

    def __add__(self, other: Any) -> Any:
        return Unsent(super().__add__(other))


@pytest.fixture
def scored_here(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The users whom this process scores for a report, and not a worker; shards have two users."""
    for module in (finish, scoring):
        monkeypatch.setattr(module, "SHARD_USERS", 2)
    seen, scored = list[str](), finish.ReportScores.add

    def add(self: finish.ReportScores, record: Record) -> None:
        seen.append(record.key)
        scored(self, record)

    monkeypatch.setattr(finish.ReportScores, "add", add)
    return seen


@pytest.mark.parametrize("repeats", [1, 3])
@pytest.mark.parametrize("benchmark", [Shared, Urns, Secretive])
def test_scores_of_workers_are_those_of_this_process(
    tmp_path: Path, scored_here: list[str], benchmark: type[Shared], repeats: int
) -> None:
    """Of several shards, with tasks and a tally; what a worker cannot send is scored here. The same on the display."""
    runs = [made(tmp_path / name, benchmark, repeats=repeats, users=MANY) for name in ("local", "workers")]
    assert locally(runs[0]) is None
    assert len(scored_here) == len(MANY) * repeats
    scored_here.clear()
    assert on_workers(runs[1], Endpoint(slow())) is None
    assert len(scored_here) == (len(MANY) * repeats if benchmark is Secretive else 0)
    assert reported(runs[1]) == reported(runs[0])
    assert figures(runs[1]) == figures(runs[0]) == (len(MANY), {"Length": pytest.approx(2.0)})


@pytest.mark.parametrize("many", [1, 2])
def test_shards_of_a_worker_that_is_lost_are_scored_here(
    tmp_path: Path, scored_here: list[str], monkeypatch: pytest.MonkeyPatch, many: int
) -> None:
    """And not those of the others."""
    runs = [made(tmp_path / name, Urns, users=MANY) for name in ("local", "workers")]
    assert locally(runs[0]) is None
    scored_here.clear()
    turn = Fake.turn

    async def loses(self: Fake, sent: bytes, seconds: float) -> bytes:
        if self.name == "0" and any(isinstance(message, m.Score) for message in m.to_worker(sent)):
            self.loss = Loss(self.heard)
        return await turn(self, sent, seconds)

    monkeypatch.setattr(Fake, "turn", loses)
    assert on_workers(runs[1], Endpoint(slow()), many) is None
    assert 0 < len(scored_here) <= (len(MANY) if many == 1 else len(MANY) - 2)
    assert_same(runs[1], runs[0])


# Loss

LOSSES = {
    "gone": Loss(0),
    "gone in its turn": Loss(0, reached=True),
    "cut off": Loss(0, certain=False, reached=True),
    "silent": Loss(0, certain=False, silent=True),
}


@pytest.mark.parametrize(
    ("how", "after"), [(how, after) for how in LOSSES for after in range(0, 12, 5 if how == "silent" else 1)]
)
def test_lost_worker_costs_its_requests_in_flight_alone(run: Run, local: Run, how: str, after: int) -> None:
    """After its first, second, ... message: everybody is done, nothing is saved twice, and the limit is kept."""
    loss, endpoint = LOSSES[how], Endpoint(slow())
    lost = Loss(after, loss.certain, loss.reached, loss.silent)
    assert on_workers(run, endpoint, losses=[lost], limit=LIMIT) is None
    assert_same(run, local)
    assert figures(run) == figures(local)
    assert len(endpoint.sent) <= STEPS + LIMIT
    assert endpoint.most_on_the_wire <= LIMIT


@pytest.mark.parametrize("certain", [True, False])
def test_replacement_may_be_lost_too(run: Run, local: Run, certain: bool) -> None:
    """And the one after it."""
    endpoint, lost = Endpoint(slow()), Loss(3, certain, reached=True)
    assert on_workers(run, endpoint, many=1, losses=[lost, lost, lost], limit=LIMIT) is None
    assert_same(run, local)
    assert len(endpoint.sent) <= STEPS + 3 * LIMIT
    assert endpoint.most_on_the_wire <= LIMIT


def sends(worker: Fake) -> list[float]:
    """When a worker was allowed to send."""
    return [at for at, message in worker.sent if isinstance(message, m.Granted) or getattr(message, "ahead", 0)]


@pytest.mark.parametrize(("certain", "held"), [(True, 0.0), (False, LEASE_SECONDS)])
def test_slots_of_a_lost_worker_stay_taken_until_its_requests_have_ended(run: Run, certain: bool, held: float) -> None:
    """Of a process that is gone not at all; else for as long as it may live without a driver."""

    async def hangs_first(user: str, before: int) -> None:
        if len(endpoint.sent) == 1:
            await anyio.sleep_forever()

    async def main() -> None:
        async with crew_of(run, endpoint, 1, losses=[Loss(1, certain, reached=True)]) as (crew, yard):
            assert await run.play(endpoint, crew=crew, limit=1, sleep=anyio.sleep) is None
        lost, replacement = yard.workers
        assert lost.lost_at is not None and lost.killed
        assert held <= min(sends(replacement)) - lost.lost_at < held + 2.0

    endpoint = Endpoint(hangs_first)
    virtual.run(main)
    assert endpoint.most_on_the_wire == 1 and len(endpoint.sent) == STEPS + 1


class Counted(FixedControl):
    """Counts what the limit is judged by."""

    answers = refusals = 0

    def answered(self, now: float, seconds: float, pressed: bool) -> None:
        self.answers += 1

    def refused(self, now: float, seconds: float, in_flight: int) -> None:
        self.refusals += 1


class Reserved(Rates):
    """Counts reservations of tokens, and those that were settled."""

    taken = settled = 0

    def take(self, tokens: float, now: float) -> None:
        self.taken += 1
        super().take(tokens, now)

    def correct(self, reserved: float, used: float | None, completion: float | None, now: float) -> None:
        self.settled += 1
        super().correct(reserved, used, completion, now)


@pytest.mark.parametrize("rated", [False, True])
@pytest.mark.parametrize("how", LOSSES)
def test_lost_try_is_neither_an_answer_nor_a_fault(run: Run, how: str, rated: bool) -> None:
    """It changes neither the limit that is found nor an outage's counts, and its tokens are not given back."""

    async def main() -> None:
        loss = LOSSES[how]
        lost = Loss(4, loss.certain, True, loss.silent)
        async with crew_of(run, endpoint, 1, losses=[lost]) as (crew, _):
            more: Any = {"control": control, "rates": rates if rated else None, "sleep": anyio.sleep}
            assert await run.play(endpoint, crew=crew, **more) is None

    control, rates, endpoint = Counted(LIMIT), Reserved(None, 1e9, 0.0), Endpoint(slow(most=20 * TURN))
    virtual.run(main)
    traffic = run.caller.traffic
    assert (control.answers, control.refusals, traffic.successes) == (STEPS, 0, STEPS)
    if rated:
        assert rates.settled == STEPS < rates.taken
    assert not run.snapshots[-1].faults and not events(run, "retry") and traffic.retries == 0


@pytest.mark.parametrize("certain", [True, False])
def test_try_of_the_driver_outlives_the_worker_that_waits_for_it(run: Run, certain: bool) -> None:
    """Its reply is saved, and the user is played again from that."""

    async def fails_first(user: str, before: int) -> None:
        if not before:
            raise TransportFault("http_503", "忙")
        await anyio.sleep(20 * TURN)

    endpoint = Endpoint(fails_first)
    assert on_workers(run, endpoint, 1, losses=[Loss(7, certain)]) is None
    assert Counter(endpoint.sent) == {user: steps + 1 for user, steps in USERS.items()}
    assert len(run.recorded) == len(USERS) and len(events(run, "worker")) == 2


def test_too_many_losses_in_a_row_stop_the_run(run: Run) -> None:
    """Workers that die at once are not started for ever."""
    ending = on_workers(run, losses=[Loss(0)] * 50)
    assert isinstance(ending, WorkersStopped) and ending.exit_code == 4
    assert "its process ended" in str(ending)


def test_losses_with_users_done_in_between_stop_nothing(tmp_path: Path) -> None:
    """However many there are in a long run."""
    run = made(tmp_path, users={str(n): 1 for n in range(20)})
    assert on_workers(run, many=1, losses=[Loss(3)] * 12, limit=1) is None
    assert len(run.recorded) == 20


def test_run_goes_on_with_the_workers_that_are_left(run: Run, local: Run) -> None:
    """If no other can be started, that is noted."""
    assert on_workers(run, losses=[Loss(2)], refused=MachineError("没有地方")) is None
    assert_same(run, local)
    assert "没有地方" in events(run, "worker")[-1]["detail"]


def test_run_without_any_worker_left_stops(run: Run) -> None:
    """With the reason why no other was started, and all that was answered on file."""
    endpoint = Endpoint()
    ending = on_workers(run, endpoint, losses=[Loss(2), Loss(4)], refused=MachineError("没有地方"))
    assert isinstance(ending, WorkersStopped) and ending.exit_code == 4 and "没有地方" in str(ending)
    assert len(replies(run)) >= len(run.recorded)
    assert on_workers(run, endpoint) is None
    assert run.recorded == list(USERS)


def test_losses_and_replacements_are_logged(run: Run) -> None:
    """By name, with the reason."""
    assert on_workers(run, losses=[Loss(3)]) is None
    lost, replaced = (event["detail"] for event in events(run, "worker"))
    assert "worker 0" in lost and "its process ended" in lost and "worker 2" in replaced


def test_head_that_is_gone_stops_the_run_and_a_passing_miss_does_not(run: Run) -> None:
    """With a grace for what is in flight, and exit code 4."""
    answers = [True, False, False, True, *[False] * crew_module.HEAD_MISSES]

    async def main() -> HarnessError | None:
        async with crew_of(run, Endpoint(hangs)) as (crew, _), anyio.create_task_group() as watching:
            watching.start_soon(crew.watch, lambda: answers.pop(0))
            ending = await run.play(Endpoint(), crew=crew, sleep=anyio.sleep)
        return ending

    async def hangs(user: str, before: int) -> None:
        if before:
            await anyio.sleep_forever()

    ending = virtual.run(main)
    assert isinstance(ending, WorkersStopped) and ending.exit_code == 4 and not answers
    assert len(replies(run)) == len(USERS)


# Leased slots


def asked(worker: Fake) -> int:
    return sum(isinstance(message, m.Granted) for _, message in worker.sent)


def test_most_requests_are_sent_without_asking(tmp_path: Path) -> None:
    """Only those at the start are asked for: until then nobody knows how large they are."""
    run, endpoint = made(tmp_path, users={str(n): 5 for n in range(20)}), Endpoint(slow())

    async def main() -> int:
        async with crew_of(run, endpoint) as (crew, yard):
            assert await run.play(endpoint, crew=crew, limit=LIMIT, sleep=anyio.sleep) is None
        return sum(map(asked, yard.workers))

    assert virtual.run(main) == LIMIT
    assert len(endpoint.sent) == 100 and endpoint.most_on_the_wire <= LIMIT
    assert run.caller.traffic.requests == run.caller.traffic.successes == 100
    assert run.caller.limiter.slots.in_flight == 0


class Timed(Endpoint):
    """Notes when each request was sent."""

    async def send(self, body: bytes, user: str = "") -> Received:
        self.at = [*getattr(self, "at", []), virtual.now()]
        return await super().send(body, user)


@pytest.mark.parametrize(("rpm", "leased"), [(60.0, False), (6_000.0, True)])
def test_rate_holds_over_all_workers(tmp_path: Path, rpm: float, leased: bool) -> None:
    """Whether it binds, so that requests wait for it, or not, so that slots are leased; and it is used."""
    run, endpoint = made(tmp_path, users={str(n): 5 for n in range(20)}), Timed(slow())

    async def main() -> int:
        async with crew_of(run, endpoint) as (crew, yard):
            rates = Rates(rpm, None, virtual.now())
            assert await run.play(endpoint, crew=crew, limit=9, rates=rates, sleep=anyio.sleep) is None
        return sum(map(asked, yard.workers))

    asked_for, at = virtual.run(main), endpoint.at
    assert (asked_for <= 20) is leased and len(at) == 100
    for first, start in enumerate(at):
        seconds = 2 * TURN + 0.1  # a slot is used in the turn after the one in which it was free
        assert all(last - first < (end - start + seconds) * rpm / 60 + 1 for last, end in enumerate(at[first:], first))
    assert leased or at[-1] - at[0] < 110.0


def test_unused_slots_count_once_towards_a_rate(tmp_path: Path) -> None:
    """A play that thinks for longer than a turn gives its slot back, and asks."""
    run, endpoint = made(tmp_path, Thinking, users={str(n): 3 for n in range(4)}), Endpoint()
    rates = Reserved(6_000.0, 1e9, 0.0)

    async def main() -> None:
        async with crew_of(run, endpoint) as (crew, _):
            assert await run.play(endpoint, crew=crew, limit=9, rates=rates, sleep=anyio.sleep) is None

    virtual.run(main)
    assert len(endpoint.sent) == 12 and rates.settled == rates.taken > 12
    assert run.caller.limiter.slots.in_flight == 0


@pytest.mark.parametrize("loss", [None, Loss(9, reached=True), Loss(9, certain=False, reached=True)])
def test_log_has_at_least_the_requests_in_flight(tmp_path: Path, loss: Loss | None) -> None:
    """By their number and bytes, whenever this process dies; and in the end that there are none. What a lost worker had
    may have been billed."""
    run = made(tmp_path, users={str(n): 5 for n in range(20)})
    most = list[int]()

    async def look(user: str, before: int) -> None:
        marks = events(run, "in_flight")
        most.append(endpoint.on_the_wire)
        assert marks and marks[-1]["requests"] >= endpoint.on_the_wire
        assert marks[-1]["sent"] >= 100 * endpoint.on_the_wire
        await slow()(user, before)

    endpoint = Endpoint(look)
    assert on_workers(run, endpoint, losses=[loss]) is None
    assert max(most) == LIMIT and events(run, "in_flight")[-1]["requests"] == 0
    assert (
        len(events(run, "unanswered")) >= len(endpoint.sent) - 100 == (0 if loss is None else len(endpoint.sent) - 100)
    )


def test_refused_requests_lower_the_limit(tmp_path: Path) -> None:
    """As in one process: each is counted before another gets its slot, and nobody fails."""

    async def full(user: str, before: int) -> None:
        await anyio.sleep(TURN)
        if endpoint.on_the_wire > 2:
            raise TransportFault("http_429", "满了")

    run, control = made(tmp_path, users={str(n): 5 for n in range(20)}), Counted(6)
    endpoint = Endpoint(full)

    async def main() -> None:
        async with crew_of(run, endpoint) as (crew, _):
            assert await run.play(endpoint, crew=crew, control=control, sleep=anyio.sleep) is None

    virtual.run(main)
    assert len(run.recorded) == 20 and not lines(run.files.failures)
    refusals = len(endpoint.sent) - 100
    assert 0 < control.refusals <= len(events(run, "retry")) == refusals and control.answers == 100


class Thinking(Shared):
    """Thinks for long before each request."""

    async def asked(self, chat: Chat, key: str, before: str) -> Completion:
        await asyncio.sleep(20 * TURN)
        return await super().asked(chat, key, before)


def test_stopped_lane_takes_leased_slots_back(tmp_path: Path) -> None:
    """A play that has one sends nothing more, and the lane need not wait for it."""
    run, endpoint = made(tmp_path, Thinking, users={str(n): 9 for n in range(3)}), Endpoint()
    at, over, sent = list[float](), list[float](), list[int]()

    def observe(snapshot: Snapshot) -> None:
        if run.lane.over:  # what scores users takes a thread, and so any virtual time
            over.append(virtual.now())
        if run.caller.traffic.successes == 6:  # leased again with the next turn
            at.append(virtual.now())
        if len(at) == 12:
            assert run.caller.limiter.in_flight == 3 and not endpoint.on_the_wire
            run.lane.stop(RunStopped(130), GRACE_SECONDS)

    async def main() -> None:
        async with crew_of(run, endpoint) as (crew, _):
            assert await run.play(endpoint, crew=crew, sleep=anyio.sleep, observe=observe)
            sent.append(len(endpoint.sent))

    virtual.run(main)
    assert over[0] - at[11] < 4 * TURN
    assert sent == [len(endpoint.sent)] and len(replies(run)) == sent[0]


def test_slow_requests_are_shown(tmp_path: Path) -> None:
    """With their users, though the driver did not send them."""
    run = made(tmp_path, users={str(n): 9 for n in range(9)})

    async def one_hangs(user: str, before: int) -> None:
        await anyio.sleep(TURN if (user, before) != ("7", 5) else 120.0)

    assert on_workers(run, Endpoint(one_hangs)) is None
    assert [event["user_id"] for event in events(run, "straggler")] == ["7"]


def test_user_whose_tries_failed_before_is_asked_for(run: Run) -> None:
    """Its tries are counted on by the driver."""
    assert on_workers(run) is None
    run.lane._failed_before = {"用户1"}
    user = User(run.lane, run.job, 0, 0, 1, 1)
    assert not run.lane.leases(user)  # nobody knows yet who it is
    for key in USERS:
        user.key = key
        assert run.lane.leases(user) is (key != "用户1")


# A worker without a way to the endpoint


def refuses(sent: list[str]) -> Endpoint:
    """An address at which nobody listens; `sent` gets the users of requests."""

    async def refused(user: str, before: int) -> None:
        sent.append(user)
        await anyio.sleep(TURN)
        raise TransportFault("connect", "no connection to here", unreachable=True)

    return Endpoint(refused)


def test_users_of_a_worker_without_a_way_to_the_endpoint_are_played_by_others(run: Run, local: Run) -> None:
    """Its name is in the log; no user fails, and the run ends as if it had not been there."""
    refused: list[str] = []
    endpoint = Endpoint(slow())
    assert on_workers(run, endpoint, 2, cut_off=refuses(refused), cut_off_workers=(0,)) is None
    assert_same(run, local)
    assert Counter(endpoint.sent) == USERS and refused
    assert not lines(run.files.failures)
    [note] = [line["detail"] for line in events(run, "worker")]
    assert note.startswith("worker 0 ") and "no connection to here" in note


def test_worker_that_loses_its_way_with_leased_slots_loses_its_users(tmp_path: Path, local: Run) -> None:
    """They are played by others from their saved replies, and no slot is lost."""

    async def for_a_while(user: str, before: int) -> None:
        await anyio.sleep(TURN)
        if len(lame.sent) > 12:
            raise TransportFault("connect", "no connection to here", unreachable=True)

    run = made(tmp_path, users={str(n): 6 for n in range(12)})
    endpoint, lame = Endpoint(slow()), Endpoint(for_a_while)
    assert on_workers(run, endpoint, 2, cut_off=lame, cut_off_workers=(0,), limit=6) is None
    assert len(run.recorded) == 12 and not lines(run.files.failures)
    assert len(replies(run)) == 72 and lame.answered.total() == 12
    assert run.caller.limiter.in_flight == run.caller.limiter.slots.in_flight == 0
    assert [line["detail"][:9] for line in events(run, "worker")] == ["worker 0 "]


def test_endpoint_that_no_worker_reaches_stops_the_run_as_ever(run: Run) -> None:
    """Users move once, to a worker that has not failed yet."""
    refused: list[str] = []
    ending = on_workers(run, refuses(refused), 2)
    assert isinstance(ending, EndpointStopped) and refused
    assert len(events(run, "worker")) <= 1


# The end of a lane


def stopping(
    run: Run, endpoint: Endpoint, *stops: tuple[int, float], at: list[float] | None = None, **more: Any
) -> HarnessError | None:
    """Play, and stop at these looks, with these graces; `at` gets the moments of the stops."""
    looks, at = 0, [] if at is None else at

    def observe(snapshot: Snapshot) -> None:
        nonlocal looks
        looks += 1
        for look, grace in stops:
            if looks == look:
                at.append(virtual.now())
                run.lane.stop(RunStopped(130), grace)

    async def main() -> HarnessError | None:
        async with crew_of(run, endpoint, **more) as (crew, _):
            with anyio.fail_after(3600):
                return await run.play(endpoint, crew=crew, limit=2, sleep=anyio.sleep, observe=observe)

    return virtual.run(main)


def test_stopped_lane_saves_what_is_in_flight_and_asks_no_more(run: Run) -> None:
    """Replies within the grace are on file."""

    async def late(user: str, before: int) -> None:
        await anyio.sleep(3.0)

    endpoint = Endpoint(late)
    ending = stopping(run, endpoint, (9, GRACE_SECONDS))
    assert isinstance(ending, RunStopped) and ending.exit_code == 130
    assert endpoint.answered == run.saved and endpoint.answered.total() == len(endpoint.sent) == 2


def test_second_stop_ends_a_lane_at_once(run: Run) -> None:
    """Requests that would never end are cancelled at the endpoint."""

    async def hangs(user: str, before: int) -> None:
        await anyio.sleep_forever()

    endpoint = Endpoint(hangs)
    assert isinstance(stopping(run, endpoint, (9, GRACE_SECONDS), (12, 0.0)), RunStopped)
    assert endpoint.on_the_wire == 0 and not replies(run)


def test_try_of_the_driver_that_is_broken_off_is_counted(run: Run) -> None:
    """It may be billed, and is not in flight any more."""

    async def fails_and_hangs(user: str, before: int) -> None:
        if not before:
            raise TransportFault("http_503", "忙")
        try:
            await anyio.sleep_forever()
        finally:
            await asyncio.sleep(TURN)  # a connection takes its time to close

    endpoint = Endpoint(fails_and_hangs)
    assert isinstance(stopping(run, endpoint, (60, 0.0)), RunStopped)
    assert len(endpoint.sent) == len(USERS) + 2 and endpoint.on_the_wire == 0
    assert len(events(run, "unanswered")) == 2 and events(run, "in_flight")[-1]["requests"] == 0


@pytest.mark.parametrize("second", [2.0, GRACE_SECONDS])
def test_second_stop_never_lengthens_the_grace_of_the_first(run: Run, second: float) -> None:
    """As when the endpoint stops a lane whose signal gave it less time: the reason stays the first one, too."""
    ended = list[float]()

    async def hangs(user: str, before: int) -> None:
        try:
            await anyio.sleep_forever()
        finally:
            ended.append(virtual.now())

    endpoint, stopped = Endpoint(hangs), list[float]()
    ending = stopping(run, endpoint, (9, 1.0), (10, second), at=stopped)
    assert isinstance(ending, RunStopped) and ended
    assert max(ended) <= stopped[0] + 1.0 + 3 * TURN


def test_endpoint_that_stops_the_run_loses_no_reply(run: Run) -> None:
    """What else is in flight is saved."""

    async def stops(user: str, before: int) -> None:
        if user == "用户2" and before:
            raise EndpointStopped("没有额度了")
        await slow()(user, before)

    endpoint = Endpoint(stops)
    ending = on_workers(run, endpoint)
    assert type(ending) is EndpointStopped and str(ending) == "没有额度了"
    assert run.saved == endpoint.answered


def test_reply_that_cannot_be_saved_ends_the_run_as_an_error_of_this_machine(tmp_path: Path) -> None:
    """Nothing more is sent then."""

    class Full(RunStore):
        def save_response(self, *given: Any) -> None:
            raise MachineError("磁盘满了")

    endpoint = Endpoint()
    assert str(on_workers(made(tmp_path, store=Full), endpoint)) == "磁盘满了"
    assert max(Counter(endpoint.sent).values()) == 1


class Odd(Shared):
    """Its lines are no tasks on a worker."""

    def parse(self, line: JSON, subset: str) -> Task:
        if "behavior-harness-" in str(self.folder):
            raise ValueError("另一台机器")
        return super().parse(line, subset)


def test_line_that_a_worker_cannot_use_stops_the_run(tmp_path: Path) -> None:
    """With its place in the file."""
    ending = on_workers(made(tmp_path, Odd))
    assert isinstance(ending, (BadInput, BenchmarkError)) and "另一台机器" in str(ending)


def test_defect_in_a_worker_is_shown_with_its_traceback(run: Run) -> None:
    """As one of the harness, wherever it happened."""

    async def breaks(user: str, before: int) -> None:
        raise ZeroDivisionError("意外")

    with pytest.raises(BaseExceptionGroup) as raised:
        on_workers(run, Endpoint(breaks))
    details = "".join(traceback.format_exception(raised.value))
    assert "in breaks" in details and "ZeroDivisionError: 意外" in details and "in worker" in details


# Users that fail


class Failing(Shared):
    """Its second user's code fails, after a request."""

    async def play(self, given: JSON, chat: Chat) -> list[str]:
        made = await super().play(given, chat)
        if given["user_id"] == "用户1":
            raise AgentFailed("agent_error", "第 3 行")
        return made


async def some_fail(user: str, before: int) -> None:
    if user == "用户2" and before:
        raise TransportFault("http_503", "忙")
    if user == "用户3":
        raise Rejected("http_400", "不行")


def test_failures_are_those_of_this_process(tmp_path: Path) -> None:
    """The tries used up, a request refused, an agent that failed: by kind, and the others are recorded. The number of
    tries in a silence is a matter of time."""
    runs = [made(tmp_path / name, Failing) for name in ("local", "workers")]
    assert locally(runs[0], Endpoint(some_fail)) is None
    assert on_workers(runs[1], Endpoint(some_fail)) is None
    assert_same(runs[1], runs[0])
    kinds = [sorted((user, kind) for user, kind, _ in run.failures) for run in runs]
    assert kinds[0] == kinds[1] and [user for user, _ in kinds[1]] == ["用户1", "用户2", "用户3"]


class Immeasurable(Shared):
    """It cannot measure any answer."""

    def measure(self, task: Task, answer: list[str] | None) -> Any:
        raise ZeroDivisionError("除零")


def test_benchmark_that_cannot_measure_its_first_user_stops_the_run(tmp_path: Path) -> None:
    """Before all others are paid for."""
    ending = on_workers(made(tmp_path, Immeasurable), limit=1)
    assert isinstance(ending, BenchmarkError) and "除零" in str(ending)


# What workers find out


class Unreadable(Shared):
    """Asks for JSON, which the endpoint does not send."""

    async def play(self, given: JSON, chat: Chat) -> list[str]:
        for number in range(given["steps"]):
            with suppress(InvalidReply):
                await chat.json(f"{given['user_id']} {number}")
        return []


@pytest.mark.parametrize("play", [locally, on_workers])
def test_answers_that_cannot_be_used_stop_the_run(play: Callable[..., Any], tmp_path: Path) -> None:
    """After the first ones, with the requests that were in flight, wherever users are played."""
    run, endpoint = made(tmp_path, Unreadable), Endpoint()
    more = {"turn": 0.05} if play is on_workers else {}  # shorter than the pause in which a lane that stops waits
    assert isinstance(play(run, endpoint, **more), AnswersUnusable)
    assert FIRST <= len(endpoint.sent) <= FIRST + LIMIT
    assert run.snapshots[-1].unusable == (("no_json", len(endpoint.sent)),)


class Talking(Shared):
    """Logs and warns of each user."""

    async def play(self, given: JSON, chat: Chat) -> list[str]:
        self.logged.append(f"一行 {given['user_id']}")
        self.warn("小心")
        return await super().play(given, chat)


def test_lines_and_warnings_of_a_benchmark_are_logged(tmp_path: Path) -> None:
    """Each line once; a warning is kept once for the end."""
    run = made(tmp_path, Talking)
    assert on_workers(run) is None
    assert Counter(event["detail"] for event in events(run, "output")) == Counter(f"一行 {user}" for user in USERS)
    assert run.job.warnings == ["小心"]
    assert len(events(run, "warning")) == len(USERS)


class Plain(Endpoint):
    """Takes no temperature."""

    refusals = 0

    async def send(self, body: bytes, user: str = "") -> Received:
        if "temperature" in orjson.loads(body):
            self.refusals += 1
            raise Rejected("http_400", "Unsupported parameter: 'temperature' is not supported with this model.")
        return await super().send(body, user)


@pytest.mark.parametrize(("many", "losses"), [(3, []), (1, [Loss(8)])])
def test_quirk_is_learned_once_for_all_workers(run: Run, many: int, losses: list[Loss]) -> None:
    """Those that were running, and one that is started later; it is saved and logged once."""

    async def main() -> list[int]:
        async with crew_of(run, endpoint, many, losses=losses) as (crew, yard):
            assert await run.play(endpoint, crew=crew, limit=1, sleep=anyio.sleep) is None
        return [sum(isinstance(message, m.Adopt) for _, message in worker.sent) for worker in yard.workers]

    endpoint = Plain()
    adopted = virtual.run(main)
    assert adopted == [0, *[1] * (len(adopted) - 1)] and len(adopted) == many + len(losses)
    assert endpoint.refusals == 1
    assert run.manifest.provenance["quirks"] == run.manifest.provenance["quirks_used"] != []
    assert len(events(run, "learned")) == 1


def test_used_up_quota_pauses_all_workers(run: Run) -> None:
    """For the seconds that the endpoint gives."""

    async def main() -> float:
        async with crew_of(run, Endpoint()) as (crew, yard):
            yard.workers[0].outbox.append(m.Exhausted(0, 30.0))
            assert await run.play(Endpoint(), crew=crew, sleep=anyio.sleep) is None
            return min(at for worker in yard.workers for at in sends(worker))

    assert virtual.run(main) >= 30.0


def test_finding_about_a_replica_is_logged(run: Run) -> None:
    """As in this process."""

    async def main() -> None:
        async with crew_of(run, Endpoint()) as (crew, yard):
            yard.workers[0].outbox.append(m.Noted(0, "http://there is set aside"))
            assert await run.play(Endpoint(), crew=crew, sleep=anyio.sleep) is None

    virtual.run(main)
    assert [event["detail"] for event in events(run, "replica")] == ["http://there is set aside"]


# Durability


class Synced(RunStore):
    """Keeps what the last sync had on the disk."""

    durable = b""

    def sync(self) -> None:
        found = self.files.responses.read_bytes()
        super().sync()
        Checking.durable = found


class Checking(Shared):
    """Counts replies that a play has before they are on file, or on the disk."""

    path: ClassVar[Path]
    durable: ClassVar[bytes] = b""
    unsaved: ClassVar[int] = 0
    unsynced: ClassVar[int] = 0

    async def asked(self, chat: Chat, key: str, before: str) -> Completion:
        completion = await super().asked(chat, key, before)
        text = completion.text.encode()
        Checking.unsaved += text not in self.path.read_bytes()
        Checking.unsynced += text not in Checking.durable
        return completion


@pytest.mark.parametrize("power", [False, True])
@pytest.mark.parametrize("engine", ["local", "workers"])
def test_play_goes_on_once_its_reply_is_as_durable_as_the_run_requires(
    tmp_path: Path, engine: str, power: bool
) -> None:
    """In the file always; on the disk with `power`."""
    run = made(tmp_path, Checking, store=Synced)

    async def main() -> None:
        endpoint = Endpoint(slow())
        if engine == "local":
            assert await run.play(endpoint, power=power, sleep=anyio.sleep) is None
            return
        async with crew_of(run, endpoint) as (crew, _):
            assert await run.play(endpoint, crew=crew, power=power, sleep=anyio.sleep) is None

    Checking.path, Checking.durable, Checking.unsaved, Checking.unsynced = run.files.responses, b"", 0, 0
    virtual.run(main)
    assert len(replies(run)) == STEPS
    assert (Checking.unsaved, Checking.unsynced) == (0, 0 if power else STEPS)


def test_turns_of_a_busy_worker_grow_until_it_waits_again() -> None:
    """Where there is enough work, turns would only keep the worker from it; the bound is 50 ms."""
    link = crew_module._Link(Fake.__new__(Fake))  # which takes no turn
    least = link.turn_seconds(0.01)
    for _ in range(50):
        link.worked(1.0)
        longest = link.turn_seconds(0.01)
    for _ in range(50):
        link.worked(0.1)
    assert (least, longest, link.turn_seconds(0.01)) == (0.01, 0.05, 0.01)
    link.worked(0.7)  # neither busy nor idle
    assert link.turn_seconds(0.01) == 0.01
