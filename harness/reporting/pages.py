"""Pages of runs: a report with a sample of its users, or all of them, read from the run's folder.

Only the lines of users that are shown are decoded; of the others only the offsets are kept, so that
a page of a million users costs a pass over the files and some bytes of each.
"""

from __future__ import annotations

import io
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from msgspec import UNSET
from numpy.typing import NDArray

from harness.benchmark import Task
from harness.benchmarks.files import LINE_MOST, open_regular
from harness.benchmarks.records import ODD_SHAPE, made_of, read_of
from harness.document import Block, Card, Heading, Page, Paragraph, Quote, Table
from harness.errors import BadInput, HarnessError, memory_for, reading
from harness.model import JSON, Completion, Record
from harness.reporting.cards import ReportCards, cut
from harness.reporting.report import page as report_page
from harness.reporting.report_files import NOT_A_REPORT
from harness.reporting.reported import Reported
from harness.scoring.reports import Report
from harness.store import log
from harness.store.atomic import check_folder, replacing
from harness.store.run import completion_of
from harness.ui.streams import tell

SAMPLE_USERS = 50
"""Users of a page, by default."""
MAX_PAGE_BYTES = 2_000_000
"""Largest page, in bytes: it is mailed, and opened on phones."""
MAX_EXAMPLE_CHARACTERS = 300
MAX_KINDS = 50
"""Kinds of failures, and of invalid answers, on a page: this harness makes fewer, another
user's folder may have any number."""
NOT_SHOWN = "no page can show it"
IN_FILES = "the run's files have them"
READ_BYTES = 1 << 20
MAX_RESPONSE_BYTES = 1 << 30
"""Of responses that are read at the end of a run; `report` reads any number."""


class PageOptions(NamedTuple):
    """What a page shows: how many users, whether posts, and whether replies even if finding them
    takes long."""

    users: int = SAMPLE_USERS
    posts: bool = False
    patient: bool = False


def attempt(write: Callable[[], object], label: str) -> bool:
    """Make a page. Errors of this machine or the run's files are reported, and do not change how
    the run ends.

    A defect of the harness is raised: the run's own files are already written.
    """
    try:
        with memory_for("make it", "everything else is written"):
            write()
    except HarnessError as error:
        tell(f"{label}: the page could not be made: {error}; `report` tries again")
        return False

    return True


def write_page(
    source: Reported,
    options: PageOptions,
    path: Path | None = None,
) -> Path:
    """Write the page of a report, with as many users as fit; return its path."""
    from harness.reporting import html

    page, cards, reader = _open(source, options)
    sample = reader.sample(source.seed, options.users)
    examples = reader.examples()
    wanted = set(map(cards.response_start, (*sample, *examples.values())))
    reader.find_replies(wanted, options.patient)
    failures = _failures(source, cards, reader, examples)
    page = replace(page, blocks=(*page.blocks, *failures, *_together(cards, sample)))
    # The list of users comes on top of the page's other pieces: 4 KB for its frame.
    room = MAX_PAGE_BYTES - 4096 - sum(map(_size, html.pieces(page)))
    shown: list[html.UserCard] = []
    for data in sample:
        card = html.user_card(reader.card(cards, data))
        # A line is in the list twice, as text and as what is sorted by; 100 bytes are its markup.
        size = _size(card.blocks) + 2 * _size(str(card.line)) + 100
        if size <= room:
            shown.append(card)
            room -= size

    browser = None
    if shown:
        note = _note(source, cards, reader, options, len(sample))
        browser = html.Browser(source.report.user, cards.columns, shown, note)

    return _write(html.pieces(page, browser=browser), path, source.files.report("html"))


def _together(cards: ReportCards, sample: Sequence[JSON]) -> tuple[Block, ...]:
    """Return what the sampled users show together. Raise `BadInput` with the user of a malformed
    record."""
    records = [Record(str(data["user_id"]), data) for data in sample]

    def blocks(shard: Sequence[Record]) -> tuple[Block, ...]:
        return cards.together([record.data for record in shard])

    return made_of(blocks, records, NOT_SHOWN)


def write_all(
    source: Reported,
    options: PageOptions,
    path: Path | None = None,
) -> Path:
    """Write a page of every user, of any size; return its path."""
    from harness.reporting import html

    page, cards, reader = _open(source, options)
    reader.find_replies(None, patient=True)

    def note(shown: int) -> str:
        sentences = (
            _all(source, shown),
            _left_out(len(reader) - shown),
            cards.missing(source.index is not None),
        )
        return " ".join(filter(None, sentences))

    all_cards = (html.user_card(reader.card(cards, data)) for data in reader.all())
    browser = html.Browser(source.report.user, cards.columns, all_cards, note)
    pieces = html.pieces(replace(page, blocks=()), browser=browser)

    return _write(pieces, path, source.files.all_users)


def _size(text: str) -> int:
    # A reply may hold half of a surrogate pair, which UTF-8 has no bytes for; `_write` replaces it
    # too.
    return len(text.encode("utf-8", "replace"))


def _write(
    pieces: Iterable[str],
    path: Path | None,
    default: Path,
) -> Path:
    """Write a page to a path, else to its `default` in the run's folder; return it. Raise
    `MachineError`, also if that folder is a link to elsewhere."""
    if path is None:
        path = default
        check_folder(path.parent)

    with replacing(path, shared=True) as file:
        for piece in pieces:
            file.write(piece.encode("utf-8", "replace"))

    return path


def _open(source: Reported, options: PageOptions) -> tuple[Page, ReportCards, _RunReader]:
    try:
        page = report_page(source.report, posts=options.posts)
        cards = ReportCards.of(source.report, source.benchmark, posts=options.posts)
        marks = {kind: cards.mark(kind) for kind in _invalid(source.report)}
    except ODD_SHAPE:
        raise BadInput(f"{source.files.report('json')} is {NOT_A_REPORT}") from None

    return page, cards, _RunReader(source, marks)


def _invalid(report: Report) -> list[str]:
    """Return the kinds of invalid answers that are shown."""
    return list(report.diagnostics.invalid)[:MAX_KINDS]


def _note(
    source: Reported,
    cards: ReportCards,
    reader: _RunReader,
    options: PageOptions,
    sampled: int,
) -> Callable[[int], str]:
    """Return a function from the number of users on the page to a note on who they are."""
    users, what = _scored(source.report)
    lines = min(len(reader), options.users)

    def note(shown: int) -> str:
        if lines == len(reader) and shown == sampled:
            sentences = [_all(source, shown)]
        else:
            sentences = [
                f"A sample of {shown} of the {users} {what}, drawn with seed {source.seed};"
                " `report --users all` writes them all."
            ]

        sentences.append(_left_out(lines - sampled))
        if shown < sampled:
            sentences.append(
                f"{sampled - shown} more were drawn, and left out to keep this page below"
                f" {MAX_PAGE_BYTES / 1e6:g} MB: mostly those with much text and those late in the"
                " results, so the sample is biased towards the others."
            )

        if reader.impatient:
            sentences.append(
                "Their replies are not shown, since there are too many to search; `report` searches"
                " them."
            )

        sentences.append(cards.missing(source.index is not None))

        return " ".join(filter(None, sentences))

    return note


def _all(source: Reported, shown: int) -> str:
    users, what = _scored(source.report)
    if shown == users:
        return f"All {users} {what}."

    return f"{shown} {what}; the report scores {users}."


def _scored(report: Report) -> tuple[int, str]:
    """Return how many records a report scores, and what they are of."""
    if report.repeats is UNSET:
        return report.coverage.scored_users, f"{report.user}s"

    return report.repeats.scored, f"repeats of {report.user}s"


def _left_out(lines: int) -> str:
    if not lines:
        return ""

    which = "1 line of the results is" if lines == 1 else f"{lines} lines of the results are"
    return f"{which} left out: damaged, not scored, or of a task that has changed."


def _failures(
    source: Reported,
    cards: ReportCards,
    reader: _RunReader,
    examples: Mapping[str, JSON],
) -> Iterator[Block]:
    """Failures and invalid answers by kind, each with an example."""
    report = source.report
    yield Heading("Failures and invalid answers, with examples")
    rows = _failure_rows(source.files.failures)
    failed = report.coverage.failed_users
    if rows:
        yield Paragraph(
            "Failures are never scored. These are all that there ever were, also of"
            f" {report.user}s who were done later."
        )
        yield Table(("failure", "times", "example"), tuple(rows[:MAX_KINDS]))
        yield from _more_kinds(len(rows), "failures")
    elif failed:
        yield Paragraph(f"{failed} {report.user}s failed, as the notes at the top say.")
    elif not _invalid(report):
        yield Paragraph("There are none.")

    invalid = report.diagnostics.invalid
    for name in _invalid(report):
        yield Paragraph(f"Invalid answers of the kind {name}: {invalid[name]}.")
        text = reader.example(cards, examples[name], name) if name in examples else None
        if text is None:
            continue
        if len(text) > MAX_EXAMPLE_CHARACTERS:
            text = f"{text[:MAX_EXAMPLE_CHARACTERS]} …"

        yield Quote(f"An example of {name}", text, open=True)

    yield from _more_kinds(len(invalid), "invalid answers")


def _failure_rows(path: Path) -> list[tuple[str, str, str]]:
    """Return each kind of failure, the most frequent first, how often it occurred, and the first
    example of it."""
    counts = Counter[str]()
    examples: dict[str, str] = {}
    for _, line in log.objects(path):
        kind = f"{line.get('boundary')}: {line.get('kind')}"
        counts[kind] += 1
        examples.setdefault(kind, str(line.get("detail"))[:MAX_EXAMPLE_CHARACTERS])

    rows = []
    for kind, count in counts.most_common():
        rows.append((kind[:MAX_EXAMPLE_CHARACTERS], str(count), examples[kind]))

    return rows


def _more_kinds(kinds: int, what: str) -> Iterator[Block]:
    if kinds > MAX_KINDS:
        yield Paragraph(f"{kinds - MAX_KINDS} more kinds of {what} are in the run's files.")


class _RunReader:
    """Records and replies in a run's folder. `marks` are bytes whose first line is kept, by
    kind."""

    def __init__(self, source: Reported, marks: Mapping[str, bytes]) -> None:
        self._source = source
        self._starts, self._marked = _scan(source.files.results, marks)
        # Of the lines of responses: the hash of how they start, in order, and where they are.
        self._keys = np.empty(0, np.int64)
        self._offsets = np.empty(0, np.int64)
        self.impatient = False

    def __len__(self) -> int:
        return len(self._starts)

    def sample(self, seed: int, users: int) -> list[JSON]:
        """Return the records of some users, in the file's order."""
        # A permutation, not `choice`: with the same seed a larger sample contains the smaller one.
        chosen = np.random.default_rng(seed).permutation(len(self))[:users]
        return list(self._records(np.sort(chosen)))

    def all(self) -> Iterator[JSON]:
        return self._records(range(len(self)))

    def examples(self) -> dict[str, JSON]:
        """Return by kind the first record that has its mark."""
        records = {}
        for kind, position in self._marked.items():
            line = np.searchsorted(self._starts, position, side="right") - 1
            for data in self._records([line]):
                records[kind] = data

        return records

    def _records(self, numbers: Iterable[Any]) -> Iterator[JSON]:
        """Yield the scored records among some lines: of the current task, or without the tasks of
        any version."""
        index = self._source.index
        with _reading(self._source.files.results) as file:
            for number in numbers:
                data = _object_at(file, self._starts[number])
                if index is None:
                    has_task = type(data.get("task")) is str
                else:
                    has_task = index.current(data) is not None

                if has_task and "user_id" in data:
                    yield data

    def find_replies(self, wanted: set[bytes] | None, patient: bool) -> None:
        """Find the responses whose lines start like this; of all, if nothing is named."""
        path = self._source.files.responses
        if not patient and path.exists() and path.stat().st_size > MAX_RESPONSE_BYTES:
            self.impatient = True
            return

        keys, offsets = array("q"), array("q")
        for line in log.lines(path):
            start = line.text[: line.text.find(b'"request"')]
            if wanted is None or start in wanted:
                # Python's own hash differs from process to process, but these never leave this one.
                keys.append(hash(start))
                offsets.append(line.offset)

        all_keys = np.frombuffer(keys, np.int64)
        # Stable: a user's replies stay in the order in which they came.
        order = np.argsort(all_keys, kind="stable")
        self._keys = all_keys[order]
        self._offsets = np.frombuffer(offsets, np.int64)[order]

    def replies(self, cards: ReportCards, record: JSON) -> list[Completion]:
        """Return those of a record's user and repeat, in the order in which they came; malformed
        lines are left out."""
        user = str(record["user_id"])
        key = hash(cards.response_start(record))
        first, end = np.searchsorted(self._keys, (key, key + 1))
        replies = []
        with _reading(self._source.files.responses) as file:
            for offset in self._offsets[first:end]:
                data = _object_at(file, offset)
                if data.get("user_id") != user:  # but with the same hash
                    continue

                completion = completion_of(data)
                if completion is not None:
                    replies.append(completion)

        return replies

    def card(self, cards: ReportCards, data: JSON) -> Card:
        """Return the card of a record. Raise `BadInput` with the user of a malformed one."""
        with read_of(str(data["user_id"]), NOT_SHOWN):
            card = cards.card(data, self._task(data), self.replies(cards, data))

        return replace(card, blocks=tuple(cut(block, IN_FILES) for block in card.blocks))

    def example(
        self,
        cards: ReportCards,
        data: JSON,
        kind: str,
    ) -> str | None:
        """Return a model's reply where its answer was invalid in this way."""
        with read_of(str(data["user_id"]), NOT_SHOWN):
            return cards.example(data, self.replies(cards, data), kind)

    def _task(self, data: JSON) -> Task | None:
        """Return the task that a record was made of, None without tasks."""
        index = self._source.index
        benchmark = self._source.benchmark
        if index is None or benchmark is None:
            return None

        position = index.current(data)
        if position is None:
            return None

        try:
            return index.task(benchmark, position, self._source.files.subset)
        except HarnessError:  # the file has changed meanwhile
            return None


def _object_at(file: BinaryIO, offset: np.int64) -> JSON:
    """Return the object in the line at an offset, empty for a damaged line."""
    line = log.line_at(file, int(offset))
    return log.decode_or_empty(line) if log.has_valid_crc(line) else {}


def _scan(path: Path, marks: Mapping[str, bytes]) -> tuple[NDArray[np.int64], dict[str, int]]:
    """Return where each line begins, and where each mark first occurs, in bytes."""
    marked: dict[str, int] = {}
    starts = [np.zeros(1, np.int64)]
    offset = last_start = 0
    tail = b""  # of the chunk before, since a mark may be in both
    with _reading(path) as file:
        while chunk := file.read(READ_BYTES):
            line_ends = np.flatnonzero(np.frombuffer(chunk, np.uint8) == ord("\n"))
            starts.append(line_ends + offset + 1)
            if len(line_ends):
                last_start = int(starts[-1][-1])
            if offset - last_start > LINE_MOST:
                raise log.too_long(path, last_start)

            searched = tail + chunk
            for kind in marks.keys() - marked.keys():
                position = searched.find(marks[kind])
                if position >= 0:
                    marked[kind] = offset - len(tail) + position

            offset += len(chunk)
            tail = searched[-64:]

    all_starts = np.concatenate(starts)

    return all_starts[all_starts < offset], marked


@contextmanager
def _reading(path: Path) -> Iterator[BinaryIO]:
    """Open a file of the run; a missing one is empty. Raise `MachineError`."""
    with reading(path):
        try:
            file: BinaryIO = open_regular(path)
        except FileNotFoundError:
            file = io.BytesIO()

        with file:
            yield file
