"""A worker: play users and send their requests, with slots that the driver has leased or granted.

All of it runs in one thread, in turns. Between two turns nothing runs, so a worker without a driver sends nothing.
"""

from __future__ import annotations

import asyncio
import time
import traceback
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, field
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
    """A play in progress. `ahead` is how many bytes may be sent without asking, 0 without a slot. `sending` are tasks
    that wait for a reply."""

    play: m.Play
    ahead: int
    key: str = ""
    task: asyncio.Task[None] | None = None
    sending: set[asyncio.Task[Any]] = field(default_factory=set)


@dataclass(eq=False)
class _Request:
    """A request of a play until it is settled, or has a slot that was `granted` (None); `last` is the reply that came
    last."""

    playing: _Playing
    settled: asyncio.Future[Completion | None]
    granted: bool = False
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
        self._plays: dict[int, _Playing] = {}
        self._since: dict[int, tuple[float, _Playing]] = {}
        self._usable: Counter[int] = Counter()
        self._unscored: dict[tuple[int, str], list[tuple[int, Record]]] = {}
        self._scored_at = loop.time()
        self._numbers = count(1)
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
        """Tell of slots that are in use for long, once; the oldest come first."""
        now = self._loop.time()
        for number in list(takewhile(lambda number: now - self._since[number][0] > LATE_SECONDS, self._since)):
            since, one = self._since.pop(number)
            self._out.append(m.Late(one.play.user, number, one.key, now - since))

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
        running = [one.task for one in self._plays.values() if one.task]
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        await self._held.aclose()

    def _take(self, message: m.ToWorker) -> None:
        match message:
            case m.Play():
                self._begin(message)
            case m.Granted():
                self._granted(message)
            case m.Settled() | m.Refused():
                self._settled(message)
            case m.Cancel(user):
                if (one := self._plays.get(user)) and one.task:
                    one.task.cancel()
            case m.Reclaim(lane):
                self._give_back(*[one for one in self._plays.values() if one.play.lane == lane])
            case m.Score():
                totals = scoring.shard_totals(self._benchmarks[message.lane], message)
                self._out.append(m.Scored(message.shard, totals))
            case m.Adopt(lane, quirk):
                self._transports[lane].quirks |= {quirk}

    def _granted(self, message: m.Granted) -> None:
        """Let a play send a request with a slot; give that back where nobody waits for the reply any more."""
        request = self._requests.get(message.request)
        if request is None or request.settled.done():
            return self._out.append(m.GivenBack(message.user, message.request))
        request.granted = True
        request.settled.set_result(None)

    def _settled(self, message: m.Settled | m.Refused) -> None:
        """Let a play go on that still waits for a request."""
        request = self._requests.get(message.request)
        if request is None or request.settled.done():
            return
        if isinstance(message, m.Refused):
            request.settled.set_exception(m.unpacked(message.error))
        else:
            if message.ahead:
                request.playing.ahead = message.ahead
            request.settled.set_result(message.completion or request.last)

    def _begin(self, play: m.Play) -> None:
        self._plays[play.user] = one = _Playing(play, play.ahead)
        one.task = self._loop.create_task(self._play(one))
        one.task.add_done_callback(partial(self._ended, one))

    def _ended(self, one: _Playing, task: asyncio.Task[None]) -> None:
        """Forget a play; one that was cancelled may never have begun."""
        self._give_back(one)
        del self._plays[one.play.user]

    def _give_back(self, *plays: _Playing) -> None:
        """Give back the slots of plays that are not in use."""
        for one in plays:
            if one.ahead:
                one.ahead = 0
                self._out.append(m.GivenBack(one.play.user))

    async def _play(self, one: _Playing) -> None:
        user = one.play.user
        try:
            ended = await self._played(one)
            for task in one.sending:  # tasks that the benchmark has left behind
                task.cancel()
            if one.sending:
                await asyncio.wait(one.sending)
            one.ahead = 0  # free with the end of its play
            self._out.append(ended)
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
        self._requests[number] = request = _Request(one, self._loop.create_future())
        try:
            if 0 < len(asked.body) <= one.ahead:
                one.ahead = 0
                await self._send(number, request, asked, 0)
            else:
                self._give_back(one)
                self._out.append(_ask(one, number, asked))
            while (settled := await request.settled) is None:
                request.granted, request.settled = False, self._loop.create_future()
                await self._send(number, request, asked, number)
            return settled
        finally:
            del self._requests[number]
            if request.granted:  # cancelled before it was used
                self._out.append(m.GivenBack(one.play.user, number))

    async def _send(self, number: int, request: _Request, asked: Asked, granted: int) -> None:
        """Use a slot for a request, and tell what became of it; `granted` is the slot's request, 0 for a leased one."""
        one, start, task = request.playing, self._loop.time(), asyncio.current_task()
        assert task
        play = one.play
        one.sending.add(task)
        self._since[number] = start, one
        try:
            received = await self._transports[play.lane].send(asked.body, name_of(one.key, play.repeat))
        except HarnessError as error:
            return self._out.append(_ask(one, number, asked, m.packed(error), self._loop.time() - start))
        except asyncio.CancelledError:
            self._out.append(m.GivenBack(play.user, granted))
            raise
        except Exception:  # unforeseen: the driver reports it, and the benchmark is not to catch it
            self._out += [m.GivenBack(play.user, granted), m.Stopped(play.user, None, traceback.format_exc())]
            return None
        finally:
            one.sending.discard(task)
            self._since.pop(number, None)
        request.last = completion = received.completion
        seconds, size = self._loop.time() - start, len(asked.body)
        reply = Reply(completion, seconds, 1, received.endpoint, received.first_token, sent=size)
        line = seal(response_line(one.key, asked.digest, asked.nth, reply, play.repeat, play.rate))
        used = RunUsage()
        used.add(completion, size)
        self._out.append(m.Replied(play.user, number, one.key, line, used.counts, size, seconds))


def _ask(one: _Playing, number: int, asked: Asked, failed: m.Raised | None = None, seconds: float = 0.0) -> m.Ask:
    body, rank, digest, nth, _ = asked
    return m.Ask(one.play.user, number, one.key, body, rank, digest, nth, failed, seconds)
