"""Settle requests by a provider's Batch API: users advance in waves, one step each
(docs/features/batches.md).

All users are in play at once. A wave is all that they wait for and that no batch has yet; it goes
out when nobody computes any more, as one batch for each run, or several where a file would be
larger than providers take. What a batch does not answer goes again with the next wave. Where a
provider refuses a batch as more than an account may have enqueued, half as much is submitted, until
it is taken, and from then on one batch after the other.

Guarantee: no request is in two batches that could both answer it, and no batch is forgotten,
whenever this process dies. The journal has each step before the next one begins (journal.py). Where
the answer to a step was lost, the provider is asked what it has before anything is sent again. Not
covered: a provider whose lists do not show what it has accepted.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from math import ceil
from typing import BinaryIO, NamedTuple, TypeVar
from uuid import uuid4

import anyio
import anyio.lowlevel

from harness.client.caller import pause_before
from harness.client.health import PATIENCE_WITH_AN_ADDRESS
from harness.client.quirks import Adapted
from harness.client.replies import decoded
from harness.client.transport import Received
from harness.cost import Reserved
from harness.engine.replay import PendingRequest
from harness.engine.run import Run
from harness.engine.runner import ModelRunner, User
from harness.errors import (
    EndpointStopped,
    GaveUp,
    HarnessError,
    MachineError,
    Rejected,
    TransportFault,
)
from harness.extensions.batches.api import (
    ENDED,
    MOST_BYTES,
    MOST_REQUESTS,
    PATH,
    UNANSWERED,
    BatchApi,
    ProviderBatch,
)
from harness.model import JSON, Completion, Load, Reply
from harness.store.submissions import INSTEAD_OF_BATCHES, BatchJournal, RequestKey, Submission, Wave
from harness.ui.words import plural

FIRST_POLL, LONGEST_POLL = 1.0, 60.0
POLL_SHARE = 0.1
"""Seconds between two looks at a batch: a share of its age, within bounds."""
FIRST_PAUSE, LONGEST_PAUSE = 60.0, 3600.0
"""Seconds after a batch that failed as a whole, doubled with each in a row: the account may have
too many requests."""
NO_BATCH_API = frozenset({"http_404", "http_405", "http_501"})
LINES_AT_ONCE = 200
"""Lines of results that are settled before others have a turn."""


class _TooMuch(Exception):
    """The provider creates no batch of this size."""


class Size(NamedTuple):
    """Requests, and the bytes of their lines."""

    requests: int
    size: int


MAX_FILE = Size(MOST_REQUESTS, MOST_BYTES)
T = TypeVar("T")
_Key = tuple[Run, RequestKey]


@dataclass(slots=True, eq=False)
class _Request:
    """A request until it is settled, of `size` bytes, for which so much is `reserved`.

    `body` is as it is sent, with the endpoint's quirks, and `since` when it was sent; `future` is
    None while nobody waits for it.
    """

    user: User
    pending: PendingRequest
    size: int
    tries: int = 0
    reserved: Reserved | None = None
    body: bytes = b""
    since: float = 0.0
    future: asyncio.Future[Received] | None = None

    @property
    def place(self) -> RequestKey:
        return self.user.key, self.user.repeat, self.pending.digest, self.pending.nth

    @property
    def key(self) -> _Key:
        return self.user.run, self.place


@dataclass(slots=True)
class _Watched:
    """A batch at the provider: when it was created or found, and when it is looked at next."""

    since: float
    due: float


class Waves:
    """The batches of one runner. Its caller has the counts, and the slot in which calls go out, one
    at a time.

    `adapted` has the endpoint's quirks. `clock` is in seconds, monotonic; `limits` is what an input
    file may have.
    """

    def __init__(
        self,
        runner: ModelRunner,
        api: BatchApi,
        adapted: Adapted,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = anyio.sleep,
        rng: random.Random | None = None,
        limits: Size = MAX_FILE,
    ) -> None:
        self._runner = runner
        self._api = api
        self._caller = runner.caller
        self._findings = runner.findings
        self._adapted = adapted.over(self)
        self._clock = clock
        self._sleep = sleep
        self._rng = rng or random.Random()
        self._of_file = limits
        self._room: int | None = None
        """How many requests the provider takes at once, once it has refused more."""
        self._journals: dict[Run, BatchJournal] = {}
        for run in runner.runs:
            log = run.store.own_log(run.store.files.batches)
            self._journals[run] = BatchJournal(log, run.store.now)
        self._by_number: dict[str, _Request] = {}
        self._requests: dict[_Key, _Request] = {}
        self._new: dict[_Key, _Request] = {}
        self._sent: set[_Key] = set()
        self._users: Counter[User] = Counter()
        self._watched: dict[str, _Watched] = {}
        self._settled: dict[str, tuple[Run, Submission, str]] = {}
        for run, submission in self._outstanding:
            self._sent.update((run, place) for place in submission.places)
            self._caller.allowance.resume(submission.reserved)
        self._has_api = self._answered = False
        self._failed_in_row = 0
        self._not_before = clock()

    @property
    def _outstanding(self) -> list[tuple[Run, Submission]]:
        """Return the batches that the provider may have."""
        return [
            (run, submission)
            for run, journal in self._journals.items()
            for submission in journal.outstanding
        ]

    # Users

    def _all_wait(self) -> bool:
        """Return whether every user has started, and each that has not ended waits for a batch."""
        return not self._runner.schedule and len(self._users) >= self._runner.in_play

    async def settle(self, user: User, pending: PendingRequest) -> Completion:
        """Return the reply to a user's request, once it is saved. Raise `GaveUp`, `Rejected` or
        `EndpointStopped`."""
        request = _Request(user, pending, len(pending.body))
        # A transport gets a body and a user's name: the number goes in place of the name, to find
        # the request.
        number = str(id(request))
        self._by_number[number] = self._requests[request.key] = request
        try:
            while True:
                request.tries += 1
                try:
                    return (await self._adapted.send(pending.body, number)).completion
                except TransportFault as fault:
                    user.warn(pending, fault, request.tries)
                    if request.tries > self._caller.limits.max_retries:
                        detail = f"{fault.kind}: {fault.detail}"
                        raise GaveUp("persistent_error", detail, request.tries) from fault
                    self._caller.traffic.retries += 1
        finally:
            del self._by_number[number], self._requests[request.key]

    async def send(self, body: bytes, user: str = "") -> Received:
        """Wait for the reply to a body of the request with this number (a `Transport`, below the
        quirks)."""
        request = self._by_number[user]
        request.body, request.since = body, self._clock()
        request.future = future = asyncio.get_running_loop().create_future()
        self._users[request.user] += 1
        if request.key not in self._sent:
            self._new[request.key] = request
        self._caller.limiter.slots.wake()
        try:
            received: Received = await future
            return received
        finally:
            if request.future is future:  # cancelled
                self._released(request)

    def _released(self, request: _Request) -> None:
        request.future = None
        self._new.pop(request.key, None)
        self._users[request.user] -= 1
        if not self._users[request.user]:
            del self._users[request.user]

    # Waves

    async def serve(self) -> None:
        """Submit waves and settle them, until cancelled."""
        for run, submission in self._outstanding:
            await self._find(run, submission)
        while True:
            if self._all_wait() and self._new and self._clock() >= self._not_before:
                await self._submit()
            for run, submission in self._outstanding:
                if self._all_wait():
                    await self._look(run, submission)
            await self._caller.limiter.slots.changed()

    def flushed(self) -> None:
        """Note the end of batches whose replies were being saved when the last user ended; all are
        saved by now."""
        for run, submission, status in list(self._settled.values()):
            self._end(run, submission, status)

    @property
    def load(self) -> Load:
        """Return how far the last wave is, and what is at the provider."""
        number = max(journal.waves for journal in self._journals.values())
        wave = Wave.of_batches(number, [submission for _, submission in self._outstanding])
        return (
            f"wave {wave.number}",
            f"{plural(wave.batches, 'batch', 'batches')} in progress",
            f"{wave.completed:,}/{wave.requests:,} requests completed by the provider",
        )

    async def _find(self, run: Run, submission: Submission) -> None:
        """Find out what became of a batch that an earlier process began to submit, and finish
        that."""
        if submission.file is None:
            file = await self._call(partial(self._api.find_file, submission.name))
            if file is None:
                self._end(run, submission, "lost")
                return
            self._journals[run].uploaded(submission, file)
        if submission.batch is None:
            await self._create(run, submission)
        else:
            self._watch(submission)

    async def _submit(self) -> None:
        waves: defaultdict[Run, list[_Request]] = defaultdict(list)
        for request in self._with_budget(self._next_wave()):
            waves[request.user.run].append(request)
        for run, wave in waves.items():
            self._journals[run].waves += 1
            for file_requests, content in self._files(wave):
                await self._submit_file(run, file_requests, content)

    def _next_wave(self) -> list[_Request]:
        """Return what no batch has, by run; one file of it, once no batch is left, if the provider
        has no more room."""
        runs = self._findings.runs
        wave = sorted(self._new.values(), key=lambda request: runs.index(request.user.run))
        if self._room is None:
            return wave
        if self._outstanding:
            return []
        run = wave[0].user.run
        file_requests, _ = next(
            self._files([request for request in wave if request.user.run is run])
        )
        return file_requests

    def _with_budget(self, wave: Sequence[_Request]) -> list[_Request]:
        """Return the requests that there is room for, which is reserved; others wait for what
        batches give back."""
        reserved = self._caller.allowance.reserve([request.size for request in wave])
        for request, amount in zip(wave, reserved, strict=False):
            request.reserved = amount
        return list(wave[: len(reserved)])

    def _files(self, wave: Sequence[_Request]) -> Iterator[tuple[list[_Request], bytes]]:
        """Yield the requests of each input file, and its content."""
        limits = self._of_file
        most_requests = min(limits.requests, self._room or limits.requests)
        file_requests: list[_Request] = []
        content = bytearray()
        for request in wave:
            line = _line(len(file_requests), request.body)
            is_full = len(file_requests) == most_requests
            if file_requests and (is_full or len(content) + len(line) > limits.size):
                yield file_requests, bytes(content)
                file_requests = []
                content = bytearray()
                line = _line(0, request.body)
            file_requests.append(request)
            content += line
        yield file_requests, bytes(content)

    async def _submit_file(
        self, run: Run, file_requests: Sequence[_Request], content: bytes
    ) -> None:
        journal = self._journals[run]
        submission = Submission(
            # Unique, since a later process finds the file at the provider by this name.
            f"harness-{uuid4().hex}",
            journal.waves,
            [request.place for request in file_requests],
            sent=sum([request.size for request in file_requests]),
            rate=run.store.rates[""],
            reserved=_reserved_together(file_requests),
        )
        # Before the upload: if this process dies in it, the next one asks the provider for the
        # name.
        journal.intend(submission, hashlib.sha256(content).hexdigest())
        for request in file_requests:
            self._new.pop(request.key, None)
            self._sent.add(request.key)
        upload = partial(self._uploaded, submission, content)
        journal.uploaded(submission, await self._step(run, submission, upload))
        await self._create(run, submission)

    async def _step(self, run: Run, submission: Submission, act: Callable[[], Awaitable[T]]) -> T:
        """Do a step of a submission; one that the endpoint refuses leaves nothing at the provider
        that could run."""
        try:
            return await self._call(act)
        except EndpointStopped:
            if not submission.doubtful:
                self._end(run, submission, "refused")
            raise

    async def _uploaded(self, submission: Submission, content: bytes) -> str:
        """Return the id of the uploaded input file; upload it if the provider does not have it."""
        if submission.doubtful:
            existing = await self._api.find_file(submission.name)
            if existing:
                return existing
        try:
            upload = self._api.upload(submission.name, content)
            return await self._accepted_or_not(submission, upload)
        except (Rejected, TransportFault) as error:
            if error.kind not in NO_BATCH_API or self._has_api:
                raise
            endpoint = self._findings.runs[0].manifest.provenance["endpoint"]
            status = error.kind.removeprefix("http_")
            raise EndpointStopped(
                f"{endpoint} has no Batch API ({status} for /files): use --no-batch"
            ) from None

    async def _accepted_or_not(self, submission: Submission, act: Awaitable[T]) -> T:
        """Do a step that submits something; a fault after which it may be at the provider makes it
        doubtful."""
        # Before the call: if it is cancelled, the provider may have what was sent all the same.
        submission.doubtful = True
        try:
            return await act
        except TransportFault as fault:
            submission.doubtful = not fault.unreachable and fault.kind not in NO_BATCH_API
            raise
        except (Rejected, EndpointStopped):
            submission.doubtful = False
            raise

    async def _create(self, run: Run, submission: Submission) -> None:
        """Create the batch of an uploaded file and watch it, or note that it is too much."""
        try:
            batch = await self._step(run, submission, partial(self._created, submission))
        except _TooMuch as error:
            self._take_less(self._end(run, submission, "refused"), str(error))
            return
        self._journals[run].created(submission, batch.id)
        self._watch(submission)

    async def _created(self, submission: Submission) -> ProviderBatch:
        """Return the batch of an uploaded file; create it if the provider does not have it."""
        assert submission.file is not None
        if submission.doubtful:
            existing = await self._api.find_batch(submission.file, submission.label)
            if existing:
                return existing
        try:
            creation = self._api.create(submission.file, submission.label)
            return await self._accepted_or_not(submission, creation)
        except (Rejected, TransportFault) as error:
            if self._api.is_too_much(error.detail):
                raise _TooMuch(error.detail) from None
            raise

    def _watch(self, submission: Submission) -> None:
        self._has_api = True
        now = self._clock()
        self._watched[submission.label] = _Watched(now, now)

    async def _look(self, run: Run, submission: Submission) -> None:
        """Look at a batch if that is due, and settle it if it has ended."""
        watched = self._watched[submission.label]
        if self._clock() < watched.due:
            return
        assert submission.batch is not None
        batch = await self._call(partial(self._get, submission.batch))
        self._journals[run].counted(submission, batch.completed)
        if batch.status in ENDED:
            await self._collect(run, submission, batch)
        now = self._clock()
        pause = POLL_SHARE * (now - watched.since)
        watched.due = now + min(LONGEST_POLL, max(FIRST_POLL, pause))

    async def _get(self, batch: str) -> ProviderBatch:
        try:
            return await self._api.get(batch)
        except TransportFault as fault:
            if fault.kind == "http_404":
                raise EndpointStopped(
                    f"the endpoint does not know the batch {batch} of this run: resume with the"
                    f" address and key that it was submitted with, or with {INSTEAD_OF_BATCHES} to"
                    " pay for its requests again"
                ) from None
            raise

    async def _collect(self, run: Run, submission: Submission, batch: ProviderBatch) -> None:
        """Save and settle what a batch answered; what it did not answer goes again with the next
        wave."""
        try:
            with tempfile.TemporaryFile(dir=run.store.files.folder) as file:
                await self._call(partial(self._downloaded, batch, file))
                with anyio.CancelScope(shield=True):
                    await self._settle_lines(run, submission, file)
        except OSError as error:
            raise MachineError(
                f"cannot keep the results of a batch in {run.store.files.folder}: {error}"
            ) from error
        self._settled[submission.label] = run, submission, batch.status
        # Replies are saved before the journal ends the batch: after a crash it is only downloaded
        # again.
        await self._runner.commit.saved()
        why = "the batch ended without an answer"
        if batch.status == "failed":
            why = self._api.why(batch)
        unanswered = self._end(run, submission, batch.status)
        if batch.status != "completed" or unanswered:
            self._findings.note(
                "batch", f"batch {batch.id} {batch.status}: {len(unanswered)} requests go again"
            )
        # As a whole, which is no try of its requests: they wait for the next batch.
        if batch.status == "failed":
            self._batch_failed(batch, unanswered, why)
            return
        self._failed_in_row = 0
        kind = f"batch_{batch.status}"
        for request in unanswered:
            self._answer(request, TransportFault(kind, why, unreachable=kind in UNANSWERED))

    async def _downloaded(self, batch: ProviderBatch, file: BinaryIO) -> None:
        """Download a batch's results and errors to an empty file. Raise `TransportFault` if they
        are not whole."""
        file.seek(0)
        # An earlier try that broke off may have left a part of the results.
        file.truncate()
        for results in filter(None, (batch.output_file_id, batch.error_file_id)):
            await self._api.download(results, file)
        file.seek(0)
        if not _is_complete(file, batch.completed):
            raise TransportFault("truncated", "a file of results broke off")
        file.seek(0)

    async def _settle_lines(self, run: Run, submission: Submission, file: BinaryIO) -> None:
        for number, line in enumerate(file):
            data = decoded(line) or {}
            request = self._request_of_line(run, submission, data)
            if request is not None:
                self._settle(submission, request, data)
            # A large file does not hold back signals and the display.
            if number % LINES_AT_ONCE == 0:
                await anyio.lowlevel.checkpoint()

    def _request_of_line(self, run: Run, submission: Submission, line: JSON) -> _Request | None:
        """Return the request that a line of results is for, None if nobody waits for it any
        more."""
        try:
            place = submission.places[int(line["custom_id"])]
        except (ValueError, LookupError, TypeError):
            return None
        return self._waiting((run, place))

    def _waiting(self, key: _Key) -> _Request | None:
        """Return the request with this key, None if nobody waits for it any more."""
        request = self._requests.get(key)
        return request if request and request.future else None

    def _settle(self, submission: Submission, request: _Request, data: JSON) -> None:
        """Save the reply in a line of results and hand it to its user, or else its error."""
        caller = self._caller
        seconds = self._clock() - request.since
        caller.traffic.requests += 1
        answer: Received | HarnessError
        try:
            answer = self._api.judged(data, request.body)
        except HarnessError as error:
            answer = error
        caller.allowance.took(submission.label, request.reserved, request.size, answer)
        if isinstance(answer, Received):
            completion = answer.completion
            reply = Reply(completion, seconds, request.tries, answer.endpoint, sent=request.size)
            request.user.keep(request.pending, reply)
            caller.latency.add(seconds)
            caller.traffic.successes += 1
            caller.traffic.prompt_tokens += completion.prompt_tokens or 0
            caller.traffic.completion_tokens += completion.completion_tokens or 0
        self._answer(request, answer)

    def _answer(self, request: _Request, answer: Received | HarnessError) -> None:
        future = request.future
        assert future is not None
        # Whoever asks again is not part of this batch any more.
        self._sent.discard(request.key)
        self._released(request)
        if future.done():
            return  # its user was cancelled just now
        if isinstance(answer, HarnessError):
            future.set_exception(answer)
        else:
            future.set_result(answer)

    def _end(self, run: Run, submission: Submission, status: str) -> list[_Request]:
        """Note that a batch has ended; return the requests that still wait for it, which go with
        the next wave."""
        keys = [(run, place) for place in submission.places if (run, place) in self._sent]
        self._caller.allowance.end(submission.label, submission.reserved)
        self._journals[run].end(submission, status)
        self._watched.pop(submission.label, None)
        self._settled.pop(submission.label, None)
        self._sent.difference_update(keys)
        waiting: list[_Request] = []
        for key in keys:
            request = self._waiting(key)
            if request is not None:
                self._new[key] = request
                waiting.append(request)
        return waiting

    def _batch_failed(self, batch: ProviderBatch, unanswered: Sequence[_Request], why: str) -> None:
        """Draw the conclusions from a batch that failed as a whole. Raise `EndpointStopped` if it
        was the first one, or the last of many."""
        if self._api.is_too_much(why):
            self._take_less(unanswered, why)
        elif not self._caller.traffic.successes and "limit" not in why:
            raise EndpointStopped(f"the endpoint failed the batch {batch.id}: {why}")
        else:
            self._pause(why)

    def _take_less(self, refused: Sequence[_Request], why: str) -> None:
        """Submit less at once after a batch of these requests was too much.

        As much again, once no other batch of this runner has a part in it; else half, until one
        request alone is too much: then something else uses the account's room, and after a pause as
        much as ever is tried again.
        """
        requests = len(refused)
        if not requests:
            return
        if requests == 1 and not self._outstanding:
            self._room = None
            self._pause(why)
            return
        self._room = requests if self._outstanding else requests // 2
        batches = ceil(len(self._new) / self._room)
        self._findings.note(
            "batch",
            f"the provider does not take {requests} requests at once ({why}): at most {self._room}"
            f" from now on, one batch after the other; this wave may take {batches} batches, and"
            " each up to a day",
        )

    def _pause(self, why: str) -> None:
        """Submit nothing for a while. Raise `EndpointStopped` after too many pauses in a row."""
        self._failed_in_row += 1
        if self._failed_in_row > self._caller.limits.max_retries + 1:
            raise EndpointStopped(
                f"the endpoint failed {self._failed_in_row} batches in a row: {why}"
            )
        pause = FIRST_PAUSE * 2 ** (self._failed_in_row - 1)
        self._not_before = self._clock() + min(LONGEST_PAUSE, pause)

    # Calls

    async def _call(self, act: Callable[[], Awaitable[T]]) -> T:
        """Do a step of the protocol, again after transport faults. Raise `EndpointStopped` if the
        endpoint refuses it, or does not answer for `--max-outage`."""
        limiter = self._caller.limiter
        since = self._clock()
        failures = 0
        while True:
            if not limiter.at_once(0.0):
                await limiter.acquire(1)
            try:
                reply = await act()
            except TransportFault as error:
                fault = error
            except Rejected as error:
                raise EndpointStopped(
                    f"the endpoint refuses a step of the Batch API: {error}"
                ) from None
            else:
                self._answered = True
                self._caller.answered()
                return reply
            finally:
                limiter.release(0.0, None)
            failures += 1
            self._findings.log("batch", detail=f"failed try: {fault}")
            if self._clock() - since >= self._patience(fault):
                raise EndpointStopped(
                    f"the endpoint does not answer ({fault}): go on when it is back"
                )
            await self._sleep(pause_before(failures, fault.retry_after, self._rng))

    def _patience(self, fault: TransportFault) -> float:
        """Return the seconds for which a step is tried."""
        limits = self._caller.limits
        if self._answered or not fault.unreachable:
            return limits.max_outage
        return max(PATIENCE_WITH_AN_ADDRESS, limits.wait)


def _reserved_together(requests: Sequence[_Request]) -> Reserved | None:
    """Return what is reserved for requests together, which was reserved at once."""
    reserved = list(filter(None, [request.reserved for request in requests]))
    if not reserved:
        return None
    amounts = [request_amount.amount for request_amount in reserved]
    return reserved[0]._replace(amount=sum(amounts, Decimal(0)))


def _line(number: int, body: bytes) -> bytes:
    """Return a line of an input file, for the request at this place in its batch."""
    line = b'{"custom_id":"%d","method":"POST","url":"%b","body":%b}\n'
    return line % (number, PATH.encode(), body)


def _is_complete(file: BinaryIO, expected: int) -> bool:
    """Return whether a file of results has so many lines, and a last one that is not torn."""
    lines = 0
    last = b"{}"
    for line in filter(bytes.strip, file):
        lines += 1
        last = line
    return lines >= expected and decoded(last) is not None
