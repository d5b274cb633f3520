"""The driver's side of all workers: it hands out users, settles their requests, and saves what they reply.

A worker has one turn at a time, which carries all messages of both directions. So its CPU for the driver depends on the
number of turns and not of messages, order is kept, and a worker that falls silent is noticed.

Where a slot is free, it is leased with a user: the worker sends the next request without asking, and what it makes of
the reply is appended unread, that of a turn at once. A request without a lease is granted a slot when its turn comes.
Tries after a failed one, and those in which a feature takes part, are this process's own.

A lost worker costs its requests in flight, which are sent again, and nothing else: its users are played again by
others, from their saved replies. Of a process that is gone for certain the slots are free at once. Of any other nobody
knows: its requests may still be in flight until it ends itself, `LEASE_SECONDS` after its last turn. Until then its
slots stay taken.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Any, Protocol, TypeVar, cast

import anyio
import anyio.to_thread
import msgspec

from harness.benchmark import kept_files
from harness.defaults import GRACE_SECONDS
from harness.endpoint.caller import ABANDONED, Lease, Tried, Warn
from harness.endpoint.quirks import Adapted
from harness.endpoint.transport import Received
from harness.engine.answers import USABLE
from harness.engine.finish import ReportScores
from harness.engine.lane import Lane, User
from harness.engine.play import Ended
from harness.engine.replay import Asked
from harness.engine.run import Run
from harness.errors import GaveUp, HarnessError, MachineError, Rejected, TransportFault
from harness.features.ray import messages as m
from harness.features.ray.player import LEASE_SECONDS
from harness.features.ray.scoring import SentScores, loaded
from harness.model import COMPLETION, PROMPT, Reply, RunUsage
from harness.store.run import RunStore, record_of

SILENT_SECONDS = 60.0
"""A turn that takes so much longer than it should means that the worker is lost."""
SETTLING_ROUNDS = 4
"""Rounds of the event loop between a turn's messages and the next turn, so that it carries what they led to."""
TURN_SHARE, TURN_MOST, TURN_LEAST = 0.01, 0.2, 0.001
"""Length of a turn: a share of the median latency, in seconds at most, and at least for each worker: a turn costs the
driver a seventh of that in CPU."""
LOOK_SECONDS = 0.25
"""Between two looks at the latency: they cost as much as some replies."""
HEAD_SECONDS, HEAD_MISSES = 3.0, 4
"""Between two looks at the cluster's head, and failed ones in a row that mean that it is gone. Ray ends a driver that
has been without it for a minute."""
BUSY, IDLE, STRETCH, STRETCHED_MOST = 0.85, 0.6, 1.25, 0.05
"""Shares of a turn with work above which a worker's next turn is longer, and below which it is shorter, by this factor,
up to so many seconds: one that has enough work is not kept from it by turns."""
LOSSES_MOST = 5
"""Losses without any user's end in between, for few workers, after which the run stops: twice the workers if these are
more."""


CUT_OFF_FAULTS, CUT_OFF_SECONDS = 3, 30.0
"""Tries in a row that cannot reach an endpoint, after which a worker gets no users of it while others do not fail so;
and for how long, before one is tried there again."""


Of = TypeVar("Of", bound=m.Replied | m.PlayEnded)
reply_of = msgspec.json.Decoder(Reply).decode
"""Returns the reply in a line that a worker has sealed."""


class WorkersStopped(HarnessError):
    """No worker process is left, or nobody who could start another."""

    exit_code = MachineError.exit_code


class SenderLost(HarnessError):
    """A worker will not play a user to the end, nor get the reply to its request: another one plays it."""


class WorkerGone(Exception):
    """A worker takes no more turns. `certain`: its process is gone, and with it its connections."""

    def __init__(self, why: str, *, certain: bool) -> None:
        super().__init__(why)
        self.certain = certain


class Worker(Protocol):
    """A worker process; `name` is for messages."""

    name: str

    async def turn(self, sent: bytes, seconds: float) -> bytes:
        """Return what `Player.turn` returns. Raise `WorkerGone`."""
        ...

    def kill(self) -> None:
        """End the process, if it can still be reached."""
        ...


Start = Callable[[int], Awaitable[Sequence[Worker]]]
"""Starts so many workers. Raise `HarnessError` if it cannot."""


@dataclass(eq=False)
class _Way:
    """How a worker gets to the endpoint of a lane: `faults` is how many tries in a row did not. Until `closed`, in
    seconds of the event loop, it gets no users of the lane."""

    faults: int = 0
    closed: float = float("-inf")

    def reached(self) -> None:
        self.faults, self.closed = 0, float("-inf")

    @property
    def is_closed(self) -> bool:
        return _now() < self.closed


@dataclass(eq=False)
class _Leased:
    """A slot that a worker has: for the next request of a user, of `size` bytes at most, or for one whose `outcome` is
    waited for, which is logged there."""

    user: User
    lease: Lease
    size: int
    outcome: asyncio.Future[Reply] | None = None

    def end(self, *, is_known: bool = True) -> None:
        """Take note that no request is in flight with it; if it `is_known` what became of that."""
        user = self.user
        if self.outcome is None and user.run.is_billed:
            if not is_known:
                user.warn(ABANDONED, 1, self.size)
            user.run.store.lands(self.size)

    def unused(self, *, is_known: bool = True) -> None:
        """Free the slot."""
        self.lease.unused(is_known=is_known)
        self.end(is_known=is_known)
        self.lose()

    def lose(self) -> None:
        """Let nobody wait for its outcome."""
        _resolve(self.outcome, SenderLost())


@dataclass(eq=False)
class _Play:
    user: User
    lane: int
    ended: asyncio.Future[Ended]
    settling: set[asyncio.Task[None]] = field(default_factory=set)

    def stop(self, error: BaseException) -> None:
        _resolve(self.ended, error)

    def settled(self, task: asyncio.Task[None]) -> None:
        """Forget a request; an error that ends more than its user reaches the lane through the play."""
        self.settling.discard(task)
        if not task.cancelled() and (error := task.exception()):
            self.stop(error)


class _Link:
    """One worker, as the driver sees it: the messages for it, its users, and its slots, by user and by the request that
    has one of its own (0: the next)."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.outbox: list[m.ToWorker] = []
        self.plays: dict[int, _Play] = {}
        self.leased: dict[tuple[int, int], _Leased] = {}
        self.replied: list[tuple[_Play, m.Replied]] = []
        self.recorded: list[tuple[_Play, m.PlayEnded]] = []
        self.running: list[m.Running] = []
        self.unscored: dict[int, tuple[Run, bytes]] = {}
        self.shards: dict[int, Future[bytes | None]] = {}
        self.recalled: set[int] = set()
        self.lost = False
        self.ways: defaultdict[int, _Way] = defaultdict(_Way)
        """How this worker gets to the endpoint of each lane."""
        self._stretch = 1.0

    def turn_seconds(self, least: float) -> float:
        """Return the length of the next turn: the least, or longer for a busy worker."""
        self._stretch = min(self._stretch, max(1.0, STRETCHED_MOST / least))
        return least * self._stretch

    def worked(self, share: float) -> None:
        """Note for which share of a turn there was work."""
        if share > BUSY:
            self._stretch *= STRETCH
        elif share < IDLE:
            self._stretch = max(1.0, self._stretch / STRETCH)

    def lose(self) -> None:
        """Give back all users; slots remain taken."""
        self.lost = True
        for leased in self.leased.values():
            leased.lose()
        for play in self.plays.values():
            play.stop(SenderLost())
        self.leave_scores()

    def leave_scores(self) -> None:
        """Let this process score what the worker has not."""
        for outcome in self.shards.values():
            outcome.set_result(None)
        self.shards.clear()
        for run, line in self.unscored.values():
            run.scores.add(record_of(line))
        self.unscored.clear()

    def release(self) -> None:
        """Free the slots."""
        while self.leased:
            self.leased.popitem()[1].unused(is_known=False)


class Crew:
    """Plays the users of all lanes on workers, which `start` starts and replaces.

    `turn` is the length of a turn in seconds, None for one that follows the latency. `slack` is how long the code of
    one user may block its worker, in seconds.
    """

    def __init__(self, workers: Sequence[Worker], start: Start, turn: float | None = None, slack: float = 0.0) -> None:
        self._links = [_Link(worker) for worker in workers]
        self._start = start
        self._turn = turn
        self._slack = slack
        self._lanes: list[Lane] = []
        self._many = len(workers)
        self._numbers = count()
        self._losses = 0
        self._adopted: list[m.Adopt] = []
        self._looked, self._least = float("-inf"), 0.0
        self._largest: dict[int, int] = {}
        self._changed = asyncio.Event()
        self._stopped: HarnessError | None = None
        self._headless = False

    async def serve(self, lanes: Sequence[Lane]) -> None:
        """Give all workers their turns, and replace lost ones, until cancelled."""
        self._lanes = list(lanes)
        self._loop = asyncio.get_running_loop()
        try:
            async with anyio.create_task_group() as self._group:
                for link in self._links:
                    self._group.start_soon(self._pump, link)
        finally:
            while self._links:
                self._links.pop().leave_scores()

    async def watch(self, head_answers: Callable[[], bool]) -> None:
        """Stop all lanes, with the grace period for requests in flight, once the cluster's head is gone."""
        missed = 0
        while missed < HEAD_MISSES:
            await anyio.sleep(HEAD_SECONDS)
            missed = 0 if await anyio.to_thread.run_sync(head_answers, abandon_on_cancel=True) else missed + 1
        self._headless = True
        for link in self._links:
            link.leave_scores()
        for lane in self._lanes:
            lane.stop(
                WorkersStopped("the head of the Ray cluster is gone: everything answered is saved"), GRACE_SECONDS
            )

    def scores(self, lane: int, run: Run) -> ReportScores:
        """Return what scores a run of a lane for its report, in a thread, while the crew is served."""
        return SentScores(run, partial(self._score, lane, run.subset))

    def _score(
        self, lane: int, subset: str, lines: Sequence[bytes], tasks: Sequence[m.TaskLine]
    ) -> Future[bytes | None]:
        outcome = Future[bytes | None]()

        def send() -> None:
            if self._headless or not self._links:
                return outcome.set_result(None)
            link, shard = min(self._links, key=lambda link: len(link.shards)), next(self._numbers)
            link.shards[shard] = outcome
            link.outbox.append(m.Score(shard, lane, subset, lines, tasks))

        self._loop.call_soon_threadsafe(send)
        return outcome

    def player(self, lane: int) -> Callable[[User], Awaitable[Ended]]:
        """Return what plays the users of a lane, by its place among the lanes."""
        return partial(self._played, lane)

    def stop(self, error: HarnessError) -> None:
        """End all plays: there will be no more turns."""
        self._stopped = error
        for link in self._links:
            for play in link.plays.values():
                play.stop(error)
        self._wake()

    async def _played(self, lane: int, user: User) -> Ended:
        while True:
            try:
                return await self._play(await self._least_busy(lane), lane, user)
            except SenderLost:
                continue

    async def _least_busy(self, lane: int) -> _Link:
        """Return the worker with the fewest users, of those that reach the lane's endpoint if any does."""
        while not self._links:
            if self._stopped:
                raise self._stopped
            await self._changed.wait()
        return min(self._links, key=lambda link: (link.ways[lane].is_closed, len(link.plays)))

    def _is_elsewhere(self, link: _Link, lane: int, fault: TransportFault) -> bool:
        """Note a try that could not reach the endpoint; return whether its user is to be played by another worker.

        It is after several in a row, while another worker has none: it may be this worker's machine, or its way. Once
        none is left, it is the endpoint, and no worker's fault.
        """
        way, others = link.ways[lane], [other.ways[lane] for other in self._links if other is not link]
        way.faults += 1
        if all(one.faults for one in others):
            for one in others:
                one.closed = float("-inf")
            return False
        if way.faults < CUT_OFF_FAULTS:
            return False
        if not way.is_closed:
            way.closed = _now() + CUT_OFF_SECONDS
            detail = f"worker {link.worker.name} cannot reach the endpoint ({fault.detail})"
            self._lanes[lane].note("worker", f"{detail}: its users are played by others")
        return True

    async def _play(self, link: _Link, lane: int, user: User) -> Ended:
        """Play a user on one worker. Raise `SenderLost` if that is gone before the end."""
        run, number = user.run, next(self._numbers)
        saved = [(*key, completion) for key, completion in run.store.responses_of(user.position).items()]
        where, line = run.index.where(user.position), run.index.read(user.position)
        play = link.plays[number] = _Play(user, lane, asyncio.get_running_loop().create_future())
        try:
            ahead, rate = self._lease(link, number, play), run.store.rate
            link.outbox.append(
                m.Play(
                    number,
                    lane,
                    run.subset,
                    where.file,
                    where.line,
                    line,
                    user.repeat,
                    run.index.repeats,
                    saved,
                    rate,
                    ahead,
                )
            )
            ended = await play.ended
            self._losses = 0
            return ended
        except (asyncio.CancelledError, HarnessError) as error:
            link.outbox.append(m.Cancel(number))
            if isinstance(error, SenderLost) and play.settling:  # replies may still be saved, which it takes up then
                await asyncio.wait(play.settling)
            raise
        finally:
            del link.plays[number]
            for task in play.settling:
                task.cancel()
            if play.settling:  # what they had in flight is then counted
                with anyio.CancelScope(shield=True):
                    await asyncio.wait(play.settling)

    async def _pump(self, link: _Link) -> None:
        """Give a worker its turns until it is lost; then start another."""
        while True:
            for _ in range(SETTLING_ROUNDS):
                await asyncio.sleep(0)
            self._recall(link)
            out, link.outbox = link.outbox, []
            try:
                seconds = self._turn or link.turn_seconds(self._least_seconds())
                with anyio.fail_after(seconds + SILENT_SECONDS + self._slack * len(link.plays)):
                    heard = m.to_driver(await link.worker.turn(m.encode(out), seconds))
            except (WorkerGone, TimeoutError) as error:
                return await self._lose(link, error)
            for message in heard:
                self._take(link, message)
            self._save(link)

    def _recall(self, link: _Link) -> None:
        """Ask for the slots of lanes that are to send nothing now, and each turn where they count towards a rate."""
        for number, lane in enumerate(self._lanes):
            limiter = lane.caller.limiter
            if not limiter.slots.rates and not limiter.delay():
                link.recalled.discard(number)
            elif link.leased and (limiter.slots.rates or number not in link.recalled):
                link.recalled.add(number)
                link.outbox.insert(0, m.Reclaim(number))

    def _lease(self, link: _Link, number: int, play: _Play) -> int:
        """Lease a slot for the next request of a user if one is free; return how many bytes it may have, else 0.

        As long as nobody knows how large requests are, a worker asks.
        """
        user, size, place = play.user, 2 * self._largest.get(play.lane, 0), (number, 0)
        if not size or link.lost or play.ended.done() or place in link.leased or not user.lane.leases(user):
            return 0
        if not (lease := user.lane.caller.lease(size)):
            return 0
        link.leased[place] = _Leased(user, lease, size)
        if user.run.is_billed:
            user.run.store.starts(size)
        return size

    def _save(self, link: _Link) -> None:
        """Save what a turn brought, of each run by one write, and let these plays go on."""
        replied, link.replied = link.replied, []
        for store, replies in _by_store(replied):
            lane = replies[0][0].user.lane
            used = RunUsage.total([message.used for _, message in replies])
            if _saved(replies, partial(store.save_sealed, used=used)):
                if lane.commit.power:
                    self._group.start_soon(self._acknowledge_synced, link, replies)
                else:
                    self._acknowledge(link, replies)
        recorded, link.recorded = [one for one in link.recorded if not one[0].ended.done()], []
        for store, records in _by_store(recorded):
            if _saved(records, store.save_sealed_records):
                for play, message in records:
                    self._recorded(link, play, message)
        running, link.running = link.running, []
        for sums in running:
            self._running(link, sums)

    def _recorded(self, link: _Link, play: _Play, message: m.PlayEnded) -> None:
        """Let a user end whose record is saved; the worker tells what it adds to the running scores."""
        assert message.line
        run = play.user.run
        if run.index.repeats == 1:
            link.unscored[message.user] = run, message.line
        else:
            run.scores.add(record_of(message.line))
        _resolve(play.ended, _ended(message))

    def _running(self, link: _Link, message: m.Running) -> None:
        """Take what users add to the running scores, if the records of all of them are saved."""
        known = [link.unscored.pop(user, None) for user in message.users]
        runs = {one[0] for one in known if one}
        if all(known) and (sums := loaded(next(iter(runs)).benchmark, message.sums)):
            return next(iter(runs)).scores.add(sums)
        for run, line in filter(None, known):
            run.scores.add(record_of(line))

    async def _acknowledge_synced(self, link: _Link, replied: Sequence[tuple[_Play, m.Replied]]) -> None:
        await replied[0][0].user.lane.commit.saved()
        self._acknowledge(link, replied)

    def _acknowledge(self, link: _Link, replied: Sequence[tuple[_Play, m.Replied]]) -> None:
        for play, message in replied:
            play.user.lane.step_done(play.user)
            try:
                ahead = self._lease(link, message.user, play)
            except MachineError as error:
                play.stop(error)
            else:
                link.outbox.append(m.Settled(message.request, None, ahead))

    def _least_seconds(self) -> float:
        if _now() >= self._looked + LOOK_SECONDS:
            self._looked = _now()
            medians = [latency[0] for lane in self._lanes if (latency := lane.caller.latency.quantiles)]
            self._least = max(TURN_LEAST * self._many, min(TURN_SHARE * min(medians, default=0.0), TURN_MOST))
        return self._least

    async def _lose(self, link: _Link, error: WorkerGone | TimeoutError) -> None:
        certain = isinstance(error, WorkerGone) and error.certain
        self._losses += 1
        self._links.remove(link)
        why = str(error) or f"no turn for {SILENT_SECONDS:.0f} s"
        self._note(f"worker {link.worker.name} is lost ({why}): its users are played again from their saved replies")
        link.worker.kill()
        link.lose()
        asyncio.get_running_loop().call_later(0.0 if certain else LEASE_SECONDS + 1.0, link.release)
        if self._losses > max(LOSSES_MOST, 2 * self._many):
            return self.stop(
                WorkersStopped(
                    f"{self._losses} workers were lost, and no user was done in between: {why}{self._code_played()}"
                )
            )
        await self._replace()

    def _code_played(self) -> str:
        """Return the files whose code workers run, which may end them."""
        benchmarks = [run.benchmark for lane in self._lanes for run in lane.runs]
        foreign = [each for each in benchmarks if each.imports.runs_code(each.configuration.identity)]
        names = {name for each in foreign for name in kept_files(each)}
        return f"; they ran code of {', '.join(sorted(names))}" if names else ""

    async def _replace(self) -> None:
        try:
            [worker] = await self._start(1)
        except HarnessError as error:
            self._note(f"no other worker could be started: {error}")
            if not self._links:
                self.stop(WorkersStopped(f"no worker is left, and no other could be started: {error}"))
            return
        self._note(f"worker {worker.name} replaces it")
        self._links.append(link := _Link(worker))
        link.outbox += self._adopted
        self._wake()
        self._group.start_soon(self._pump, link)

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def _note(self, detail: str) -> None:
        for lane in self._lanes:
            lane.note("worker", detail)

    def _take(self, link: _Link, message: m.ToDriver) -> None:
        match message:
            case m.Replied() | m.Ask(failed=m.Raised()) | m.Late() | m.GivenBack():
                self._take_of_lease(link, message)
            case m.Ask() | m.PlayEnded() | m.Stopped() | m.Judged():
                self._take_of_play(link, message)
            case m.Scored(shard, totals):
                if outcome := link.shards.pop(shard, None):
                    outcome.set_result(totals)
            case m.Running():
                link.running.append(message)
            case m.Worked(share):
                link.worked(share)
            case _:
                self._take_of_lane(link, message)

    def _take_of_lane(self, link: _Link, message: m.Usable | m.Learned | m.Exhausted | m.Noted | m.Logged) -> None:
        match message:
            case m.Usable(lane, number):
                for _ in range(number):
                    self._lanes[lane].judge("", USABLE)
            case m.Learned(lane, quirk, words):
                self._learned(link, lane, quirk, words)
            case m.Exhausted(lane, seconds):
                self._lanes[lane].caller.limiter.pause(seconds)
            case m.Noted(lane, detail):
                self._lanes[lane].note("replica", detail)
            case m.Logged(lane, lines, warnings):
                benchmark = self._lanes[lane].runs[0].benchmark  # one for all runs of a lane
                benchmark.logged += lines
                benchmark.warnings += warnings

    def _take_of_lease(self, link: _Link, message: m.Replied | m.Ask | m.Late | m.GivenBack) -> None:
        place = (message.user, message.request)
        if place not in link.leased:
            place = (message.user, 0)
        if isinstance(message, m.Late):
            leased = link.leased[place]
            leased.user.key = message.key
            return leased.lease.is_late(leased.user.name, message.seconds)
        leased = link.leased.pop(place)
        match message:
            case m.Replied():
                self._replied(link, leased, message)
            case m.Ask(failed=m.Raised() as failed):
                self._failed(link, leased, message, m.unpacked(failed))
            case _:
                leased.unused()

    def _take_of_play(self, link: _Link, message: m.Ask | m.PlayEnded | m.Stopped | m.Judged) -> None:
        if isinstance(message, m.PlayEnded) and (leased := link.leased.pop((message.user, 0), None)):
            leased.unused()
        if (play := link.plays.get(message.user)) is None:
            return
        match message:
            case m.Ask():
                self._ask(link, play, message)
            case m.PlayEnded():
                play.user.key = message.key
                if message.line:
                    link.recorded.append((play, message))
                else:
                    _resolve(play.ended, _ended(message))
            case m.Stopped(_, error, defect):
                play.stop(m.unpacked(error) if error else RuntimeError(f"in worker {link.worker.name}\n{defect}"))
            case m.Judged(_, how):
                self._lanes[play.lane].judge(play.user.name, how)

    def _replied(self, link: _Link, leased: _Leased, message: m.Replied) -> None:
        """Count the reply to a request that a worker has sent; if nobody waits for it, the end of the turn saves it."""
        user, play, size, used = leased.user, link.plays.get(message.user), message.size, message.used
        user.key, reply, received = message.key, None, None
        if leased.outcome or leased.lease.needs_reply:
            reply = reply_of(message.line)
            received = Received(reply.completion, reply.endpoint, reply.first_token)
        leased.lease.answered(used[PROMPT], used[COMPLETION], size, message.seconds, received)
        leased.end()
        if play is None:
            return
        link.ways[play.lane].reached()
        self._largest[play.lane] = max(self._largest[play.lane], size)
        if leased.outcome:
            return _resolve(leased.outcome, reply)
        user.received(message.seconds)
        link.replied.append((play, message))

    def _learned(self, link: _Link, lane: int, quirk: str, words: str) -> None:
        """Save a quirk, once, and let this process and the other workers apply it."""
        cast(Adapted, self._lanes[lane].caller.transport).quirks |= {quirk}
        self._lanes[lane].learned(quirk, words)
        if (adopt := m.Adopt(lane, quirk)) in self._adopted:
            return
        self._adopted.append(adopt)
        for other in self._links:
            if other is not link:
                other.outbox.append(adopt)

    def _failed(self, link: _Link, leased: _Leased, ask: m.Ask, error: HarnessError) -> None:
        """Count a request that a worker has sent, and that failed; the other tries of it are made here."""
        play = link.plays.get(ask.user)
        leased.user.key = ask.key
        if play is None:
            return leased.unused(is_known=False)
        if isinstance(error, TransportFault):
            if not error.unreachable:
                link.ways[play.lane].reached()
            elif self._is_elsewhere(link, play.lane, error):
                leased.unused()
                return play.stop(SenderLost())
        begun = _now() - ask.seconds
        fault = leased.lease.failed(error, leased.user.name, len(ask.body), ask.seconds)
        leased.end()
        if leased.outcome:
            return _resolve(leased.outcome, fault)

        async def failed(warn: Warn) -> Reply:
            raise fault

        self._ask(link, play, ask, Tried(begun, failed))

    def _ask(self, link: _Link, play: _Play, ask: m.Ask, tried: Tried | None = None) -> None:
        """Settle a request: have the worker make the first try, unless that is over or a feature takes part in it."""
        user, size = play.user, len(ask.body)
        user.key = ask.key
        self._largest[play.lane] = max(self._largest.get(play.lane, 0), size)
        if not tried and user.lane.caller.is_plain and (user.name, ask.digest) not in user.run.failed_tries:
            tried = Tried(_now(), partial(self._granted, link, play, ask))
        task = asyncio.create_task(self._settle(link, play, ask, tried))
        play.settling.add(task)
        task.add_done_callback(play.settled)

    async def _granted(self, link: _Link, play: _Play, ask: m.Ask, warn: Warn) -> Reply:
        """Return the reply to a request that its worker sends, once there is a slot."""
        lease = await play.user.lane.caller.leased(len(ask.body), ask.rank)
        leased = _Leased(play.user, lease, len(ask.body), asyncio.get_running_loop().create_future())
        if link.lost:
            leased.unused()
            raise SenderLost
        link.leased[ask.user, ask.request] = leased
        link.outbox.append(m.Granted(ask.user, ask.request))
        assert leased.outcome
        try:
            return await leased.outcome
        except (asyncio.CancelledError, SenderLost):
            warn(ABANDONED, 1)
            raise

    async def _settle(self, link: _Link, play: _Play, ask: m.Ask, tried: Tried | None) -> None:
        """Settle a request, and let its play go on."""
        try:
            completion = await play.user.settle(Asked(ask.body, ask.rank, ask.digest, ask.nth, tried))
        except (GaveUp, Rejected) as error:
            link.outbox.append(m.Refused(ask.request, m.packed(error)))
        except SenderLost:
            if link.lost or link.ways[play.lane].is_closed:
                raise
            # else the play no longer waits for this request
        else:
            link.outbox.append(m.Settled(ask.request, completion, self._lease(link, ask.user, play)))


def _by_store(messages: Sequence[tuple[_Play, Of]]) -> Iterable[tuple[RunStore, list[tuple[_Play, Of]]]]:
    """Return messages that are to be saved by their runs' files."""
    found: dict[RunStore, list[tuple[_Play, Of]]] = {}
    for play, message in messages:
        found.setdefault(play.user.run.store, []).append((play, message))
    return found.items()


def _saved(
    messages: Sequence[tuple[_Play, m.Replied | m.PlayEnded]], save: Callable[[Sequence[tuple[int, bytes]]], None]
) -> bool:
    """Save the lines of messages; return whether that worked, else their plays have ended."""
    try:
        save([(play.user.position, message.line or b"") for play, message in messages])
    except MachineError as error:
        for play, _ in messages:
            play.stop(error)
        return False
    return True


def _now() -> float:
    return asyncio.get_running_loop().time()


def _resolve(outcome: asyncio.Future[Any] | None, result: Any) -> None:
    """Set the result or error of what somebody may no longer wait for."""
    if outcome is None or outcome.done():
        return
    if isinstance(result, BaseException):
        outcome.set_exception(result)
    else:
        outcome.set_result(result)


def _ended(message: m.PlayEnded) -> Ended:
    error: Any = None if message.error is None else m.unpacked(message.error)
    return Ended(message.key, None, error, message.played, message.replayed, message.unused)
