"""A user of a saved run as blocks: the requests and replies in their order, then its card.

Users' own texts are private, and prompts quote them. Without `private` neither is among the blocks,
and replies are those of the user's card, which does not name the user.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path

import orjson

from harness.analysis import plays
from harness.analysis.plays import Plays, conversation
from harness.analysis.saved_runs import SavedRun
from harness.benchmark import Benchmark, Task
from harness.benchmarks.records import read_of
from harness.document import Block, Heading, Paragraph, Table
from harness.engine.files import index_file
from harness.errors import BadInput, HarnessError
from harness.model import JSON, Completion
from harness.reporting.cards import NOT_GIVEN, ReportCards, failure
from harness.reporting.report_files import loaded
from harness.scoring.reports import Report
from harness.store import log
from harness.store.run import completion_of
from harness.store.tasks import TaskIndex
from harness.ui.streams import tell
from harness.ui.words import plural

# What is shown of a user unless all is wanted.
MAX_REQUESTS = 10
MAX_BLOCKS = 100


@dataclass(frozen=True, slots=True)
class ShowOptions:
    """What is shown: all requests and blocks or the first ones, and whether private texts; and
    where tasks are."""

    all_blocks: bool
    private: bool
    tasks: Path | None
    results: Path


def user_blocks(run: SavedRun, options: ShowOptions, key: str) -> list[Block]:
    """Return the blocks of a user of a run, none for an unknown one. Without tasks, or trust in the
    run's code, there are fewer, and stderr says why. Raise `BadInput` if the run has no report
    yet."""
    records = list(_lines_of(run.files.results, key))
    failures = list(_lines_of(run.files.failures, key))
    if not records and not failures:
        return []
    report = _report(run)
    blocks = list[Block]()
    with ExitStack() as stack:
        tasks = _tasks(run, options, stack)
        cards = ReportCards.of(report, tasks and tasks[0], posts=options.private)
        played = None
        # Prompts quote private texts, so they are not even read where these are left out.
        if records and not cards.left_out:
            played = _plays(run, options, stack)
        for data in records:
            with read_of(key):
                blocks += _record(run, cards, options, data, _task(run, tasks, data), played)
    if failures:
        blocks.append(Heading(f"{run.label}: failures of {report.user} {key}"))
    for data in failures:
        blocks += failure(data)
    return blocks


def first_users(run: SavedRun, options: ShowOptions, max_users: int) -> Iterator[Block]:
    """Yield a table of the first users of a run with their figures. Raise `BadInput` if the run has
    no report yet."""
    report = _report(run)
    rows = list[tuple[str, ...]]()
    with ExitStack() as stack:
        tasks = _tasks(run, options, stack)
        cards = ReportCards.of(report, tasks and tasks[0], posts=options.private)
        for _, data in islice(log.objects(run.files.results), max_users):
            with read_of(str(data.get("user_id"))):
                rows.append((cards.name(data), *cards.figures(data)))
    scored = report.coverage.scored_users
    yield Heading(f"{run.label}: {plural(scored, report.user)}")
    users, *columns = zip((report.user, *cards.columns), *rows, strict=True)
    # A figure of all users together is of none alone.
    shown_columns = [column for column in columns if {*column[1:]} != {NOT_GIVEN}]
    head, *cells = zip(users, *shown_columns, strict=True)
    yield Table(head, tuple(cells))
    if len(rows) < scored:
        yield Paragraph(f"These are the first {len(rows)}; --limit N shows more.")


def _record(
    run: SavedRun,
    cards: ReportCards,
    options: ShowOptions,
    data: JSON,
    task: Task | None,
    played: Plays | None,
) -> Iterator[Block]:
    """Yield the blocks of a record; without `played` its prompts are not known."""
    transcript = played and played.exchanges_of(data)
    requests = list(conversation(transcript.exchanges)) if transcript else []
    # Without its conversation a user has at least what the model replied.
    replies = [] if requests else _replies(run, cards, data)
    card = cards.card(data, task, replies)
    user = cards.report.user if cards.report else ""
    yield from cards.heading(card, f"{run.label}: {user} ")
    if cards.left_out:
        yield Paragraph(
            f"{cards.left_out} are private, and prompts quote them: --with-posts shows both."
        )
    yield from _shown(options, requests, MAX_REQUESTS, "requests")
    yield from _shown(options, [(block,) for block in card.blocks], MAX_BLOCKS, "blocks")


def _shown(
    options: ShowOptions, groups: Sequence[Sequence[Block]], limit: int, name: str
) -> Iterator[Block]:
    """Yield the blocks of the first groups, of all with --full, and how many are left out."""
    shown = groups if options.all_blocks else groups[:limit]
    yield from chain.from_iterable(shown)
    if len(shown) < len(groups):
        yield Paragraph(f"{len(groups) - len(shown)} more {name}: --full shows them.")


def _replies(run: SavedRun, cards: ReportCards, data: JSON) -> list[Completion]:
    start = cards.response_start(data)
    completions = list[Completion]()
    for line in log.valid_lines(run.files.responses):
        if line.text.startswith(start):
            completion = completion_of(log.decode_or_empty(line.text))
            if completion:
                completions.append(completion)
    return completions


def _tasks(
    run: SavedRun, options: ShowOptions, stack: ExitStack
) -> tuple[Benchmark, TaskIndex] | None:
    try:
        benchmark = run.as_it_was(options.tasks, play=False)
        path = run.tasks(options.tasks)
        index = index_file(
            benchmark, run.files.subset, path, options.results, run.manifest.selection
        )
    except HarnessError as error:
        tell(f"{run.label}: without its tasks ({error})")
        return None
    stack.callback(index.close)
    return benchmark, index


def _task(run: SavedRun, tasks: tuple[Benchmark, TaskIndex] | None, data: JSON) -> Task | None:
    if tasks is None:
        return None
    benchmark, index = tasks
    position = index.current(data)
    if position is None:
        return None
    return index.task(benchmark, position, run.files.subset)


def _plays(run: SavedRun, options: ShowOptions, stack: ExitStack) -> Plays | None:
    try:
        return stack.enter_context(plays.opened(run, options.tasks, options.results))
    except HarnessError as error:
        tell(f"{run.label}: without prompts ({error})")
        return None


def _report(run: SavedRun) -> Report:
    path = run.files.report("json")
    if not path.exists():
        raise BadInput(
            f"{run.label} has no report yet: `harness report --name {run.name}` makes it"
        )
    try:
        return loaded(path)
    except BadInput as error:
        raise BadInput(f"{path} is {error}") from None


def _lines_of(path: Path, key: str) -> Iterator[JSON]:
    """Yield the objects of a user in a file of the run; only lines with the key are decoded."""
    as_text = b'"user_id":' + orjson.dumps(key)
    as_number = b'"user_id":' + os.fsencode(key)  # a benchmark's own keys may be numbers
    for line in log.valid_lines(path):
        if as_text in line.text or as_number in line.text:
            data = log.decode_or_empty(line.text)
            # A number may be the beginning of another one, and the text may be in an answer.
            if str(data.get("user_id")) == key:
                yield data
