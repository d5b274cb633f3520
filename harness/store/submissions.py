"""The journal of a run's batches: `batches_<subset>.jsonl`, a sealed line for each operation.

Guarantee: a line is on the disk, synced, before the operation after it begins. So whenever this
process dies, the journal names every batch of the run that the provider may have, by its id or by
the name of its input file.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from harness.cost import Pending, Rate, Reserved, plain
from harness.errors import BadInput
from harness.model import JSON
from harness.store import log
from harness.store.files import RunFiles

FORMAT = 1

RequestKey = tuple[str, int, str, int]
"""Whose request it is: the user's key, which of its repeats; the request's digest, and how often it
was sent before."""


DEFERRED = Rate(deferred=True)
NAME = "batches"
INSTEAD_OF_BATCHES = f"--no-batch --allow {NAME}"
"""How a run goes on without the replies of its batches, and pays for these requests again."""


@dataclass(frozen=True, slots=True)
class Wave:
    """How far a run is: the `number` of its last wave, from 1, and what is at the provider: so many
    `batches`, of so many `requests`, of which it has `completed` some."""

    number: int
    batches: int
    requests: int
    completed: int

    @classmethod
    def of_batches(cls, number: int, batches: Sequence[Submission]) -> Wave:
        requests = completed = 0
        for submission in batches:
            requests += len(submission.places)
            completed += submission.completed
        return cls(number, len(batches), requests, completed)

    @classmethod
    def of_run(cls, files: RunFiles, *, ended: bool) -> Wave | None:
        """Return how far a run was when its process last looked; None for one without batches."""
        known = submissions(files.batches)
        if not known:
            return None
        number = max([submission.wave for submission in known])
        return cls.of_batches(number, [] if ended else not_ended(known))


@dataclass(slots=True)
class Submission:
    """A batch from the decision to submit it (`intend`) to its end. `label` is our own identifier
    of it.

    `file` and `batch` are the provider's ids, None until they are known; `doubtful` means that the
    provider may have accepted the next one already, and the answer is lost. `completed` requests
    are those that the provider counts. `sent` is the bytes of the requests, `rate` their rate, and
    `reserved` what was reserved for them.
    """

    label: str
    wave: int
    places: Sequence[RequestKey]
    file: str | None = None
    batch: str | None = None
    ended: str | None = None
    completed: int = 0
    doubtful: bool = False
    sent: int = 0
    rate: Rate = DEFERRED
    reserved: Reserved | None = None

    @property
    def pending(self) -> Pending:
        """Return its requests, which may be billed."""
        return Pending(len(self.places), self.sent, self.rate, self.reserved)

    @property
    def name(self) -> str:
        """Return the name of the input file."""
        return f"{self.label}.jsonl"


class _Line(msgspec.Struct):
    """A line as the journal has it."""

    what: str
    label: str
    wave: int = 0
    requests: tuple[RequestKey, ...] = ()
    file: str | None = None
    batch: str | None = None
    status: str | None = None
    completed: int = 0
    sent: int = 0
    price: int = 0
    reserved: Reserved | None = None


msgspec.json.Decoder(_Line)  # as in `scoring/reports.py`: before two threads look at it at once


def submissions(path: Path) -> list[Submission]:
    """Return what a journal holds, in order; nothing of a file that does not exist. Raise
    `BadInput`."""
    by_label: dict[str, Submission] = {}
    for line, data in log.objects(path):
        try:
            _apply(msgspec.convert(data, _Line), by_label)
        except msgspec.ValidationError as error:
            raise BadInput(
                f"{path}: the line at byte {line.offset} is not as runs write it: {error}"
            ) from None
    return list(by_label.values())


def not_ended(known: Sequence[Submission]) -> list[Submission]:
    """Return those that the provider may still have."""
    return [submission for submission in known if submission.ended is None]


def outstanding(files: RunFiles) -> list[Submission]:
    """Return the batches of a run that the provider may still have."""
    return not_ended(submissions(files.batches))


def pending(files: RunFiles) -> list[Pending]:
    """Return the requests of a run that a provider may still answer, and bill."""
    return [submission.pending for submission in outstanding(files)]


def _apply(line: _Line, by_label: dict[str, Submission]) -> None:
    if line.what == "intend":
        by_label[line.label] = Submission(
            line.label,
            line.wave,
            line.requests,
            doubtful=True,
            sent=line.sent,
            rate=Rate(line.price, True),
            reserved=line.reserved,
        )
        return
    submission = by_label.get(line.label)
    if submission is None:
        return
    submission.file = line.file or submission.file
    submission.batch = line.batch or submission.batch
    submission.completed = max(line.completed, submission.completed)
    if line.status:
        submission.ended = line.status
        # Replies are in the run's own log by now, and places of thousands of requests would stay in
        # memory.
        submission.places = ()


class BatchJournal:
    """A run's journal, open for appending; `clock` gives seconds since the epoch. `waves` is the
    number of the last. `outstanding` are the batches that have not ended."""

    def __init__(self, opened: log.AppendLog, clock: Callable[[], float]) -> None:
        known = submissions(opened.path)
        self.outstanding = not_ended(known)
        self.waves = max([submission.wave for submission in known], default=0)
        self._log = opened
        self._clock = clock

    def intend(self, submission: Submission, sha256: str) -> None:
        """Note that the input file of a batch, with this SHA-256, is about to be uploaded."""
        details: JSON = {
            "wave": submission.wave,
            "sha256": sha256,
            "requests": submission.places,
            "sent": submission.sent,
        }
        if submission.rate.price:
            details["price"] = submission.rate.price
        reserved = submission.reserved
        if reserved is not None:
            details["reserved"] = [plain(reserved.amount), reserved.unit, reserved.day]
        self._append(submission, "intend", **details)
        self.outstanding.append(submission)

    def uploaded(self, submission: Submission, file: str) -> None:
        self._append(submission, "uploaded", file=file)
        submission.file = file
        submission.doubtful = False

    def created(self, submission: Submission, batch: str) -> None:
        self._append(submission, "created", batch=batch)
        submission.batch = batch
        submission.doubtful = False

    def counted(self, submission: Submission, completed: int) -> None:
        """Note how many requests the provider has completed, for `status`."""
        if completed != submission.completed:
            self._append(submission, "counted", completed=completed)
            submission.completed = completed

    def end(self, submission: Submission, status: str) -> None:
        """Note that all replies of a batch are saved, or that the provider never had it (`refused`,
        `lost`)."""
        self._append(submission, "ended", status=status)
        submission.ended = status
        self.outstanding.remove(submission)

    def _append(self, submission: Submission, what: str, **details: object) -> None:
        line = {
            "time": round(self._clock(), 3),
            "what": what,
            "label": submission.label,
            **details,
            "format": FORMAT,
        }
        # Before the operation begins: what is not in the journal cannot be found at the provider
        # again.
        self._log.append(line)
        self._log.sync()  # before the next operation, also without `--durability power`
