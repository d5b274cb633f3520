"""A worker: play users and send their requests, as the driver's messages say.

All of it runs in one thread, in turns. Between two turns nothing runs, so a worker without a driver sends nothing.
"""

from __future__ import annotations

import asyncio
import time
import traceback
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory

import orjson

from harness.benchmark import Benchmark
from harness.benchmarks import tasks
from harness.endpoint.quirks import Adapted
from harness.endpoint.request_body import Sampling
from harness.engine.accounts import admit_sockets
from harness.engine.answers import judgement
from harness.engine.play import play_user
from harness.engine.replay import Asked, Conversation
from harness.engine.transports import Clients, Listener, Route, open_transport
from harness.errors import HarnessError, InvalidReply
from harness.features.ray import messages as m
from harness.features.ray.shipping import Shipped, unpacked
from harness.model import Completion, Where

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
class _Request:
    """A request of a play until it is settled; `last` is the reply that came last."""

    play: m.Play
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
        self._plays: dict[int, asyncio.Task[None]] = {}
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
        out, self._out = self._out, []
        return m.encode(out)

    def close(self) -> None:
        """End all plays, and close connections and files."""
        self._loop.run_until_complete(self._closed())
        self._folder.cleanup()

    async def _closed(self) -> None:
        running = [*self._plays.values(), *self._attempts.values()]
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        await self._held.aclose()

    def _take(self, message: m.ToWorker) -> None:
        match message:
            case m.Play():
                self._plays[message.user] = playing = self._loop.create_task(self._play(message))
                playing.add_done_callback(lambda _: self._plays.pop(message.user))
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
                _cancel(self._plays.get(user))
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
            request.settled.set_result(message.completion or request.last)  # type: ignore[arg-type]  # one is there

    async def _play(self, play: m.Play) -> None:
        user = play.user
        try:
            ended = await self._played(play)
            self._out.append(ended)  # to the list of this turn, which is not that of the turn in which it began
        except HarnessError as error:
            self._out.append(m.Stopped(user, m.packed(error)))
        except Exception:  # unforeseen: the driver reports it, where its user can see it
            self._out.append(m.Stopped(user, None, traceback.format_exc()))

    async def _played(self, play: m.Play) -> m.PlayEnded:
        benchmark, sampling = self._benchmarks[play.lane], self._samplings[play.lane].of_repeat(play.repeat)
        task = tasks.parse(benchmark, play.line, Where(play.file, play.number), play.subset)
        saved = {(digest, nth): completion for digest, nth, completion in play.saved}
        settle, judge = partial(self._settle, play, task.key), partial(self._judged, play.user)
        conversation = Conversation(sampling, saved, task.steps, settle, judge)
        ended = await play_user(benchmark, task, conversation, play.repeat)
        return m.PlayEnded(
            play.user,
            task.key,
            None if ended.record is None else orjson.dumps(ended.record),
            None if ended.error is None else m.packed(ended.error),
            ended.played,
            ended.replayed,
            ended.unused,
        )

    def _judged(self, user: int, completion: Completion, error: InvalidReply | None) -> None:
        self._out.append(m.Judged(user, judgement(completion, error)))

    async def _settle(self, play: m.Play, key: str, asked: Asked) -> Completion:
        """Return a reply once the driver has saved it; as `Settle`."""
        number = next(self._numbers)
        body, rank, digest, nth = asked
        self._requests[number] = request = _Request(play, body, self._loop.create_future())
        self._out.append(m.Ask(play.user, number, key, len(body), rank, digest, nth))
        try:
            return await request.settled
        finally:
            del self._requests[number]

    async def _send(self, attempt: int, request: _Request, user: str) -> None:
        try:
            received = await self._transports[request.play.lane].send(request.body, user)
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
            self._out.append(m.Stopped(request.play.user, None, "".join(traceback.format_exception(error))))
            self._out.append(m.Dropped(attempt))


def _cancel(task: asyncio.Task[None] | None) -> None:
    if task:
        task.cancel()
