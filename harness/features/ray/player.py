"""A worker: play users and send their requests, with slots that the driver has leased, or as its messages say.

All of it runs in one thread, in turns. Between two turns nothing runs, so a worker without a driver sends nothing.
"""

from __future__ import annotations

import asyncio
import time
import traceback
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import count, takewhile
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from harness.benchmark import Benchmark
from harness.benchmarks import tasks
from harness.endpoint.quirks import Adapted
from harness.endpoint.request_body import Sampling
from harness.engine.accounts import admit_sockets
from harness.engine.answers import judgement
from harness.engine.play import name_of, play_user
from harness.engine.replay import Asked, Conversation
from harness.engine.transports import Clients, Listener, Route, open_transport
from harness.errors import HarnessError, InvalidReply
from harness.features.ray import messages as m
from harness.features.ray import scoring
from harness.features.ray.shipping import Shipped, unpacked
from harness.model import Completion, Record, Reply, RunUsage, Where
from harness.store.log import seal
from harness.store.run import record_line, response_line
from harness.store.tasks import line_digest

LATE_SECONDS = 5.0
"""In flight, from which on the driver knows of a request that was sent without asking."""
RUNNING_USERS, RUNNING_SECONDS = 64, 2.0
"""Users whose plays have ended, from which on the driver gets what they add to the running scores; and after which
time it gets it of fewer."""
START_SECONDS, LEASE_SECONDS = 60.0, 10.0
"""How long the driver waits for workers to start, and how long one lives after its last turn."""
Connect = Callable[
    [Route, type[Benchmark], Clients, Listener, AsyncExitStack], Awaitable[tuple[Adapted, Callable[[str], str]]]
]
"""As `open_transport`."""


@dataclass(frozen=True)
class LanePart:
    """What a worker needs of a lane. `route` has the key."""

    shipped: Shipped
    sampling: Sampling
    route: Route


@dataclass(eq=False)
class _Playing:
    """A play in progress. `ahead` is how many bytes may be sent without asking; `leased`: a slot is held for that,
    which is in use while `sending` is the task that waits for the reply."""

    play: m.Play
    ahead: int
    leased: bool
    key: str = ""
    task: asyncio.Task[None] | None = None
    sending: asyncio.Task[Any] | None = None


@dataclass(eq=False)
class _Request:
    """A request of a play until it is settled; `last` is the reply that came last."""

    playing: _Playing
    body: bytes
    settled: asyncio.Future[Completion]
    last: Completion | None = None


class Lease:
    """How long a worker lives without a driver, who may be gone: until `LEASE_SECONDS` after its last turn.

    Before the first it waits for workers on other machines, which may take all of `START_SECONDS` and answer then.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._since = clock()
        self._seconds = START_SECONDS + LEASE_SECONDS
        self._busy = False

    @contextmanager
    def turn(self) -> Iterator[None]:
        self._busy = True
        try:
            yield
        finally:
            self._since, self._seconds, self._busy = self._clock(), LEASE_SECONDS, False

    @property
    def is_over(self) -> bool:
        return not self._busy and self._clock() - self._since > self._seconds


class Player:
    """Plays the users of several lanes. Call everything in one thread: `turn` until the end, then `close`."""

    def __init__(
        self,
        parts: Sequence[LanePart],
        contents: Mapping[str, bytes],
        sockets: tuple[int, int],
        loop: asyncio.AbstractEventLoop,
        connect: Connect = open_transport,
        cpu: Callable[[], float] = time.thread_time,
    ) -> None:
        """Load benchmarks, their files from `contents` by SHA-256, and open connections. Raise `HarnessError`.

        `sockets` are the arguments of `admit_sockets`. `connect`, and `cpu` in seconds of this thread, are what tests
        replace.
        """
        admit_sockets(*sockets)
        self._loop = loop
        self._connect = connect
        self._cpu = cpu
        self._held = AsyncExitStack()
        self._folder = TemporaryDirectory(prefix="behavior-harness-")
        self._out: list[m.ToDriver] = []
        self._requests: dict[int, _Request] = {}
        self._attempts: dict[int, asyncio.Task[None]] = {}
        self._plays: dict[int, _Playing] = {}
        self._since: dict[int, float] = {}
        self._usable: Counter[int] = Counter()
        self._unscored: dict[tuple[int, str], list[tuple[int, Record]]] = {}
        self._scored_at = loop.time()
        self._numbers = count()
        self._samplings = [part.sampling for part in parts]
        self._benchmarks = [
            unpacked(part.shipped, contents, Path(self._folder.name, str(lane))) for lane, part in enumerate(parts)
        ]
        self._transports = loop.run_until_complete(self._opened([part.route for part in parts]))

    async def _opened(self, routes: Sequence[Route]) -> list[Adapted]:
        clients, made = Clients(), []
        for lane, route in enumerate(routes):
            cls = type(self._benchmarks[lane])
            transport, _ = await self._connect(route, cls, clients, self._listener(lane), self._held)
            made.append(transport)
        return made

    def _listener(self, lane: int) -> Listener:
        return Listener(
            learned=lambda quirk, words: self._out.append(m.Learned(lane, quirk, words)),
            replica=lambda detail: self._out.append(m.Noted(lane, detail)),
            exhausted=lambda seconds: self._out.append(m.Exhausted(lane, seconds)),
        )

    def turn(self, sent: bytes, seconds: float) -> bytes:
        """Take the driver's messages, work for so many seconds, and return the messages for the driver."""
        for message in m.to_worker(sent):
            self._take(message)
        began, used = time.perf_counter(), self._cpu()
        self._loop.run_until_complete(asyncio.sleep(seconds))
        self._out.append(m.Worked((self._cpu() - used) / (time.perf_counter() - began)))
        for lane, benchmark in enumerate(self._benchmarks):
            if benchmark.logged or benchmark.warnings:
                self._out.append(m.Logged(lane, benchmark.logged, benchmark.warnings))
                benchmark.logged, benchmark.warnings = [], []
        self._tell_late()
        self._score_played()
        self._out += [m.Usable(lane, number) for lane, number in self._usable.items()]
        self._usable.clear()
        out, self._out = self._out, []
        return m.encode(out)

    def _tell_late(self) -> None:
        """Tell of leased slots that are in use for long, once; the oldest come first."""
        now = self._loop.time()
        for user in list(takewhile(lambda user: now - self._since[user] > LATE_SECONDS, self._since)):
            self._out.append(m.Late(user, self._plays[user].key, now - self._since.pop(user)))

    def _score_played(self) -> None:
        """Score the users whose plays have ended: many at once, which costs a tenth of one by one."""
        is_due = self._loop.time() >= self._scored_at + RUNNING_SECONDS
        if is_due or all(one.task and one.task.done() for one in self._plays.values()):
            self._scored_at, least = self._loop.time(), 1
        else:
            least = RUNNING_USERS
        for (lane, subset), ended in self._unscored.items():
            if len(ended) >= least:
                sums = scoring.running_sums(self._benchmarks[lane], subset, [record for _, record in ended])
                self._out.append(m.Running([user for user, _ in ended], sums))
                ended.clear()

    def close(self) -> None:
        """End all plays, and close connections and files."""
        self._loop.run_until_complete(self._closed())
        self._folder.cleanup()

    async def _closed(self) -> None:
        running = [*[one.task for one in self._plays.values() if one.task], *self._attempts.values()]
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        await self._held.aclose()

    def _take(self, message: m.ToWorker) -> None:
        match message:
            case m.Play():
                self._begin(message)
            case m.Send(attempt, number, user):
                if request := self._requests.get(number):
                    self._attempts[attempt] = sending = self._loop.create_task(self._send(attempt, request, user))
                    sending.add_done_callback(partial(self._sent, attempt, request))
                else:  # its play was cancelled
                    self._out.append(m.Dropped(attempt))
            case m.Settled() | m.Refused():
                self._settled(message)
            case m.Drop(attempt):
                _cancel(self._attempts.get(attempt))
            case m.Cancel(user):
                one = self._plays.get(user)
                _cancel(one.task if one else None)
            case m.Reclaim(lane):
                self._give_back(*[one for one in self._plays.values() if one.play.lane == lane])
            case m.Score():
                totals = scoring.shard_totals(self._benchmarks[message.lane], message)
                self._out.append(m.Scored(message.shard, totals))
            case m.Adopt(lane, quirk):
                self._transports[lane].quirks |= {quirk}

    def _settled(self, message: m.Settled | m.Refused) -> None:
        """Let a play go on that still waits for a request."""
        request = self._requests.get(message.request)
        if request is None or request.settled.done():
            return
        if isinstance(message, m.Refused):
            request.settled.set_exception(m.unpacked(message.error))
        else:
            if message.ahead:
                request.playing.ahead, request.playing.leased = message.ahead, True
            request.settled.set_result(message.completion or request.last)  # type: ignore[arg-type]  # one is there

    def _begin(self, play: m.Play) -> None:
        self._plays[play.user] = one = _Playing(play, play.ahead, play.ahead > 0)
        one.task = self._loop.create_task(self._play(one))
        one.task.add_done_callback(partial(self._ended, one))

    def _ended(self, one: _Playing, task: asyncio.Task[None]) -> None:
        """Forget a play; one that was cancelled may never have begun."""
        self._give_back(one)
        del self._plays[one.play.user]

    def _give_back(self, *plays: _Playing) -> None:
        """Give back the slots of plays that are not in use."""
        for one in plays:
            if one.leased and not one.sending:
                one.leased = False
                self._out.append(m.GivenBack(one.play.user))

    async def _play(self, one: _Playing) -> None:
        user = one.play.user
        try:
            ended = await self._played(one)
            if one.sending:  # in a task that the benchmark has left behind
                _cancel(one.sending)
                await asyncio.wait([one.sending])
            one.leased = False  # free with the end of its play
            self._out.append(ended)  # to the list of this turn, which is not that of the turn in which it began
        except HarnessError as error:
            self._out.append(m.Stopped(user, m.packed(error)))
        except Exception:  # unforeseen: the driver reports it, where its user can see it
            self._out.append(m.Stopped(user, None, traceback.format_exc()))

    async def _played(self, one: _Playing) -> m.PlayEnded:
        play = one.play
        benchmark, sampling = self._benchmarks[play.lane], self._samplings[play.lane].of_repeat(play.repeat)
        task = tasks.parse(benchmark, play.line, Where(play.file, play.number), play.subset)
        saved = {(digest, nth): completion for digest, nth, completion in play.saved}
        one.key = task.key
        settle, judge = partial(self._settle, one), partial(self._judged, play.user, play.lane)
        conversation = Conversation(sampling, saved, task.steps, settle, judge)
        ended, line = await play_user(benchmark, task, conversation, play.repeat, play.repeats), None
        if ended.record is not None:
            data = record_line(ended.record, play.repeat, line_digest(play.line))
            record, line = Record(str(data["user_id"]), data), seal(data)
            if play.repeats == 1:  # else the driver has the user's other repeats
                self._unscored.setdefault((play.lane, play.subset), []).append((play.user, record))
        return m.PlayEnded(
            play.user,
            task.key,
            line,
            None if ended.error is None else m.packed(ended.error),
            ended.played,
            ended.replayed,
            ended.unused,
        )

    def _judged(self, user: int, lane: int, completion: Completion, error: InvalidReply | None) -> None:
        if error is None:
            self._usable[lane] += 1
        else:
            self._out.append(m.Judged(user, judgement(completion, error)))

    async def _settle(self, one: _Playing, asked: Asked) -> Completion:
        """Return a reply once the driver has saved it; as `Settle`."""
        number = next(self._numbers)
        self._requests[number] = request = _Request(one, asked.body, self._loop.create_future())
        try:
            if one.leased and not one.sending and len(asked.body) <= one.ahead:
                outcome = await self._sent_ahead(one, number, request, asked)
                self._out.append(outcome)  # to the list of this turn
            else:
                self._give_back(one)
                self._out.append(_ask(one, number, asked))
            return await request.settled
        finally:
            del self._requests[number]

    async def _sent_ahead(self, one: _Playing, number: int, request: _Request, asked: Asked) -> m.ToDriver:
        """Use the leased slot of a play for a request; return what became of it."""
        user, start = one.play.user, self._loop.time()
        one.sending, self._since[user] = asyncio.current_task(), start
        try:
            received = await self._transports[one.play.lane].send(asked.body, name_of(one.key, one.play.repeat))
        except HarnessError as error:
            one.leased = False
            return _ask(one, number, asked, m.packed(error), self._loop.time() - start)
        except Exception:  # unforeseen: the driver reports it, and the benchmark is not to catch it
            return m.Stopped(user, None, traceback.format_exc())
        finally:
            one.sending = None
            self._since.pop(user, None)
        one.leased = False
        request.last = completion = received.completion
        reply = Reply(
            completion, self._loop.time() - start, 1, received.endpoint, received.first_token, sent=len(asked.body)
        )
        line = seal(response_line(one.key, asked.digest, asked.nth, reply, one.play.repeat, one.play.rate))
        used = RunUsage()
        used.add(completion, reply.sent)
        return m.Replied(user, number, one.key, line, used.counts, reply.sent, reply.seconds)

    async def _send(self, attempt: int, request: _Request, user: str) -> None:
        try:
            received = await self._transports[request.playing.play.lane].send(request.body, user)
        except HarnessError as error:
            self._out.append(m.Failed(attempt, m.packed(error)))
        else:
            request.last = received.completion
            self._out.append(m.Received(attempt, *received))

    def _sent(self, attempt: int, request: _Request, task: asyncio.Task[None]) -> None:
        """Forget a try; one that was cancelled may never have begun."""
        del self._attempts[attempt]
        if task.cancelled():
            self._out.append(m.Dropped(attempt))
        elif error := task.exception():
            self._out.append(m.Stopped(request.playing.play.user, None, "".join(traceback.format_exception(error))))
            self._out.append(m.Dropped(attempt))


def _ask(one: _Playing, number: int, asked: Asked, failed: m.Raised | None = None, seconds: float = 0.0) -> m.Ask:
    body, rank, digest, nth, _ = asked
    return m.Ask(one.play.user, number, one.key, len(body), rank, digest, nth, failed, seconds)


def _cancel(task: asyncio.Task[Any] | None) -> None:
    if task:
        task.cancel()
