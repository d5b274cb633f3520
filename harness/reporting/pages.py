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
from harness.reporting.report import page
from harness.reporting.report_files import NOT_A_REPORT
from harness.reporting.reported import Reported
from harness.scoring.reports import Report
from harness.store import log
from harness.store.atomic import check_folder, replacing
from harness.store.run import completion_of
from harness.ui.streams import tell

SAMPLE = 50
"""Users of a page, by default."""
MAX_BYTES = 2_000_000
"""Largest page, in bytes: it is mailed, and opened on phones."""
EXAMPLE = 300
"""Longest example, in characters."""
KINDS = 50
"""Most kinds of failures, and of invalid answers, on a page: this harness makes fewer, another
user's folder may have any number."""
NOT_SHOWN, IN_FILES = "no page can show it", "the run's files have them"
BLOCK = 1 << 20
REPLIES_READ = 1 << 30
"""Most bytes of responses read at the end of a run; `report` reads any number."""


class PageOptions(NamedTuple):
    """What a page shows: how many users, whether posts, and whether replies even if finding them
    takes long."""

    users: int = SAMPLE
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


def write_page(source: Reported, options: PageOptions, path: Path | None = None) -> Path:
    """Write the page of a report, with as many users as fit; return its path."""
    from harness.reporting import html

    made, cards, reader = _opened(source, options)
    drawn = reader.drawn(source.seed, options.users)
    examples = reader.first(_invalid(source.report))
    wanted = {cards.response_start(data) for data in (*drawn, *examples.values())}
    reader.find_replies(wanted, options.patient)
    records = [Record(str(data["user_id"]), data) for data in drawn]
    together = made_of(
        lambda shard: cards.together([record.data for record in shard]), records, NOT_SHOWN
    )
    page = replace(
        made, blocks=(*made.blocks, *_failures(source, cards, reader, examples), *together)
    )
    room = MAX_BYTES - 4096 - sum(map(_size, html.pieces(page)))
    shown = list[html.UserCard]()
    for data in drawn:
        card = html.user_card(reader.card(cards, data))
        size = _size(card.blocks) + 2 * _size(str(card.line)) + 100
        if size <= room:
            shown.append(card)
            room -= size
    note = _note(source, cards, reader, options, len(drawn))
    browser = html.Browser(source.report.user, cards.columns, shown, note) if shown else None
    return _written(html.pieces(page, browser=browser), path, source.files.report("html"))


def write_all(source: Reported, options: PageOptions, path: Path | None = None) -> Path:
    """Write a page of every user, of any size; return its path."""
    from harness.reporting import html

    made, cards, reader = _opened(source, options)
    reader.find_replies(None, patient=True)

    def note(shown: int) -> str:
        sentences = (
            _all(source, shown),
            _left_out(len(reader) - shown),
            cards.missing(source.index is not None),
        )
        return " ".join(filter(None, sentences))

    every = (html.user_card(reader.card(cards, data)) for data in reader.all())
    browser = html.Browser(source.report.user, cards.columns, every, note)
    return _written(
        html.pieces(replace(made, blocks=()), browser=browser), path, source.files.all_users
    )


def _size(text: str) -> int:
    return len(text.encode("utf-8", "replace"))


def _written(pieces: Iterable[str], path: Path | None, default: Path) -> Path:
    """Write a page to a path, else to its `default` in the run's folder; return it. Raise
    `MachineError`, also if that folder is a link to elsewhere."""
    if path is None:
        check_folder(default.parent)
    with replacing(path or default, shared=True) as file:
        for piece in pieces:
            file.write(piece.encode("utf-8", "replace"))
    return path or default


def _opened(source: Reported, options: PageOptions) -> tuple[Page, ReportCards, _Reader]:
    try:
        made = page(source.report, posts=options.posts)
        cards = ReportCards.of(source.report, source.benchmark, posts=options.posts)
        marks = {kind: cards.mark(kind) for kind in _invalid(source.report)}
    except ODD_SHAPE:
        raise BadInput(f"{source.files.report('json')} is {NOT_A_REPORT}") from None
    return made, cards, _Reader(source, marks)


def _invalid(report: Report) -> list[str]:
    """Return the kinds of invalid answers that are shown."""
    return list(report.diagnostics.invalid)[:KINDS]


def _note(
    source: Reported, cards: ReportCards, reader: _Reader, options: PageOptions, drawn: int
) -> Callable[[int], str]:
    """Return a function from the number of users on the page to a note on who they are."""
    (users, what), lines = _scored(source.report), min(len(reader), options.users)

    def note(shown: int) -> str:
        of = f"A sample of {shown} of the {users} {what}, drawn with seed {source.seed}"
        whole = lines == len(reader) and shown == drawn
        sentences = [
            _all(source, shown) if whole else f"{of}; `report --users all` writes them all."
        ]
        sentences.append(_left_out(lines - drawn))
        if shown < drawn:
            sentences.append(
                f"{drawn - shown} more were drawn, and left out to keep this page below"
                f" {MAX_BYTES / 1e6:g} MB: mostly those with much text and those late in the"
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
    return (
        f"All {users} {what}." if shown == users else f"{shown} {what}; the report scores {users}."
    )


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
    source: Reported, cards: ReportCards, reader: _Reader, examples: Mapping[str, JSON]
) -> Iterator[Block]:
    """Failures and invalid answers by kind, each with an example."""
    kinds, first = Counter[tuple[str, str]](), dict[tuple[str, str], str]()
    for _, line in log.objects(source.files.failures):
        kind = str(line.get("boundary")), str(line.get("kind"))
        kinds[kind] += 1
        first.setdefault(kind, str(line.get("detail"))[:EXAMPLE])
    yield Heading("Failures and invalid answers, with examples")
    if not kinds and (failed := source.report.coverage.failed_users):
        yield Paragraph(f"{failed} {source.report.user}s failed, as the notes at the top say.")
    elif not kinds and not _invalid(source.report):
        yield Paragraph("There are none.")
    if kinds:
        yield Paragraph(
            "Failures are never scored. These are all that there ever were, also of"
            f" {source.report.user}s who were done later."
        )
        rows = [
            (": ".join(which)[:EXAMPLE], str(count), first[which])
            for which, count in kinds.most_common(KINDS)
        ]
        yield Table(("failure", "times", "example"), tuple(rows))
        yield from _more(len(kinds), "failures")
    for name in _invalid(source.report):
        yield Paragraph(
            f"Invalid answers of the kind {name}: {source.report.diagnostics.invalid[name]}."
        )
        data = examples.get(name)
        text = None if data is None else reader.example(cards, data, name)
        if text is not None:
            yield Quote(
                f"An example of {name}",
                text if len(text) <= EXAMPLE else text[:EXAMPLE] + " …",
                open=True,
            )
    yield from _more(len(source.report.diagnostics.invalid), "invalid answers")


def _more(kinds: int, of: str) -> Iterator[Block]:
    if kinds > KINDS:
        yield Paragraph(f"{kinds - KINDS} more kinds of {of} are in the run's files.")


class _Reader:
    """Records and replies in a run's folder. `marks` are bytes whose first line is kept, by
    kind."""

    def __init__(self, source: Reported, marks: Mapping[str, bytes]) -> None:
        self._source = source
        self._starts, self._first = _scanned(source.files.results, marks)
        self._keys, self._offsets = np.empty(0, np.int64), np.empty(0, np.int64)
        self.impatient = False

    def __len__(self) -> int:
        return len(self._starts)

    def drawn(self, seed: int, users: int) -> list[JSON]:
        """Return the records of some users, in the file's order."""
        chosen = np.random.default_rng(seed).permutation(len(self))[:users]
        return list(self._records(np.sort(chosen)))

    def all(self) -> Iterator[JSON]:
        return self._records(range(len(self)))

    def first(self, kinds: Sequence[str]) -> dict[str, JSON]:
        """Return by kind the first record that has its mark."""
        lines = {
            kind: np.searchsorted(self._starts, at, side="right") - 1
            for kind, at in self._first.items()
        }
        return {
            kind: data for kind in kinds if kind in lines for data in self._records([lines[kind]])
        }

    def _records(self, numbers: Iterable[Any]) -> Iterator[JSON]:
        """Yield the scored records among some lines: of the current task, or without the tasks of
        any version."""
        index = self._source.index
        with _reading(self._source.files.results) as file:
            for number in numbers:
                line = log.line_at(file, int(self._starts[number]))
                data = log.decode_or_empty(line) if log.has_valid_crc(line) else {}
                of_task = (
                    type(data.get("task")) is str
                    if index is None
                    else index.current(data) is not None
                )
                if "user_id" in data and of_task:
                    yield data

    def find_replies(self, wanted: set[bytes] | None, patient: bool) -> None:
        """Find the responses whose lines start like this; of all, if nothing is named."""
        path = self._source.files.responses
        if not patient and path.exists() and path.stat().st_size > REPLIES_READ:
            self.impatient = True
            return
        keys, offsets = array("q"), array("q")
        for line in log.lines(path):
            start = line.text[: line.text.find(b'"request"')]
            if wanted is None or start in wanted:
                keys.append(hash(start))
                offsets.append(line.offset)
        order = np.argsort(np.frombuffer(keys, np.int64), kind="stable")
        self._keys = np.frombuffer(keys, np.int64)[order]
        self._offsets = np.frombuffer(offsets, np.int64)[order]

    def replies(self, cards: ReportCards, record: JSON) -> list[Completion]:
        """Return those of a record's user and repeat, in the order in which they came; malformed
        lines are left out."""
        user, key = str(record["user_id"]), hash(cards.response_start(record))
        places = self._offsets[slice(*np.searchsorted(self._keys, (key, key + 1)))]
        replies: list[Completion | None] = []
        with _reading(self._source.files.responses) as file:
            for offset in places:
                line = log.line_at(file, int(offset))
                data = log.decode_or_empty(line) if log.has_valid_crc(line) else {}
                replies.append(completion_of(data) if data.get("user_id") == user else None)
        return [completion for completion in replies if completion is not None]

    def card(self, cards: ReportCards, data: JSON) -> Card:
        """Return the card of a record. Raise `BadInput` with the user of a malformed one."""
        with read_of(str(data["user_id"]), NOT_SHOWN):
            card = cards.card(data, self._task(data), self.replies(cards, data))
        return replace(card, blocks=tuple(cut(block, IN_FILES) for block in card.blocks))

    def example(self, cards: ReportCards, data: JSON, kind: str) -> str | None:
        """Return a model's reply where its answer was invalid in this way."""
        with read_of(str(data["user_id"]), NOT_SHOWN):
            return cards.example(data, self.replies(cards, data), kind)

    def _task(self, data: JSON) -> Task | None:
        """Return the task that a record was made of, None without tasks."""
        index, benchmark = self._source.index, self._source.benchmark
        position = None if index is None else index.current(data)
        if index is None or benchmark is None or position is None:
            return None
        try:
            return index.task(benchmark, position, self._source.files.subset)
        except HarnessError:  # the file has changed meanwhile
            return None


def _scanned(path: Path, marks: Mapping[str, bytes]) -> tuple[NDArray[np.int64], dict[str, int]]:
    """Find where each line begins, and the first line with each mark."""
    found, ends, offset, tail, start = dict[str, int](), [np.zeros(1, np.int64)], 0, b"", 0
    with _reading(path) as file:
        while block := file.read(BLOCK):
            ends.append(np.flatnonzero(np.frombuffer(block, np.uint8) == 10) + offset + 1)
            start = int(ends[-1][-1]) if len(ends[-1]) else start
            if offset - start > LINE_MOST:
                raise log.too_long(path, start)
            looked = tail + block
            for kind, mark in marks.items():
                if kind not in found and (at := looked.find(mark)) >= 0:
                    found[kind] = offset - len(tail) + at
            offset += len(block)
            tail = looked[-64:]
    starts = np.concatenate(ends)
    return starts[starts < offset], found


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
