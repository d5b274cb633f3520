"""Flat rows of a saved run: one a step, one a user or one a response."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import islice
from math import isnan
from pathlib import Path

import orjson

from harness.analysis.plays import COST, Plays, cost, opened
from harness.analysis.saved_runs import Rows, SavedRun
from harness.benchmark import VALID, Benchmark, metrics_of
from harness.benchmarks.records import ODD_SHAPE, read_of
from harness.benchmarks.user_code import guarded
from harness.errors import BadInput
from harness.model import JSON, Record, role_of
from harness.scoring.rows import raw_rows
from harness.store import log
from harness.store.run import completion_of
from harness.ui.streams import tell

NOT_VALUES = frozenset({"user_id", "repeat", "format"})
"""Numbers in every record that are no values."""
REPLY_FIELDS = ("completion", "format")
"""Fields of a line of the responses file that are no columns."""
CHUNK_USERS = 500
"""Users whose values are computed at once."""
NO_COST: JSON = dict.fromkeys(COST)
"""What replies add up to where that is not known."""


def rows(run: SavedRun, kind: Rows, tasks: Path | None, results: Path) -> Generator[JSON]:
    """Yield the rows of a run. One that cannot be played again, as without its tasks, has no
    seconds, and steps have no tokens either; a sentence on stderr says so."""
    about = {"run": run.name, "model": run.manifest.identity["model"], "subset": run.files.subset}
    repeat = {"repeat": 1} if run.manifest.repeats > 1 else {}
    with ExitStack() as stack:
        if kind == "responses":
            run_rows = responses(run)
        else:
            plays = None
            try:
                plays = stack.enter_context(opened(run, tasks, results))
            except BadInput as error:
                tell(f"{run.label}: without what the replies of a step took: {error}")
            if kind == "steps":
                run_rows = steps(run, plays)
            else:
                benchmark = plays.benchmark if plays else run.measuring(tasks)
                run_rows = users(run, plays, benchmark)
        for row in run_rows:
            # `about` comes first and last: first for the order of columns, last for its values.
            yield {**about, "user_id": row.get("user_id"), **repeat, **row, **about}


def records(run: SavedRun) -> Iterator[JSON]:
    return (data for _, data in log.objects(run.files.results))


def responses(run: SavedRun) -> Iterator[JSON]:
    """Yield the saved replies, with the members of their completions as columns; `response_model`
    is the model by the endpoint's own name."""
    for _, line in log.objects(run.files.responses):
        row = {name: value for name, value in line.items() if name not in REPLY_FIELDS}
        completion = completion_of(line)
        if completion:
            row |= {**completion.data, "response_model": completion.model}
        if run.manifest.role_models:
            row["role"] = role_of(str(line.get("request")))
        yield row


def steps(run: SavedRun, plays: Plays | None) -> Iterator[JSON]:
    """Yield the rows of every user."""
    cls = run.benchmark_class
    for record in records(run):
        yield from steps_of(cls, record, plays)


def steps_of(cls: type[Benchmark], record: JSON, plays: Plays | None) -> list[JSON]:
    """Return the benchmark's rows of a user, each with what its replies cost, None where that is
    not known."""
    with reading(cls, record, "rows"):
        step_rows = [dict(row) for row in cls.records.rows(record)]
        if cls.origin:  # its author's numbers may be numpy's
            step_rows = orjson.loads(orjson.dumps(step_rows, option=orjson.OPT_SERIALIZE_NUMPY))
    played = plays.exchanges_of(record) if plays else None
    if played is None:
        return [NO_COST | row for row in step_rows]
    groups = played.groups(len(step_rows))
    return [row | cost(group) for row, group in zip(step_rows, groups, strict=True)]


@contextmanager
def reading(cls: type[Benchmark], record: JSON, what: str) -> Iterator[None]:
    """Name the user and what is read where a record, or a benchmark's own code, is odd."""
    key = str(record.get("user_id"))
    through = () if cls.origin else ODD_SHAPE
    with read_of(key), guarded(cls, f"user {key}, {what}", *through):
        yield


def users(run: SavedRun, plays: Plays | None, benchmark: Benchmark) -> Iterator[JSON]:
    """Yield a row for each user: answers, values of the metrics, tokens, seconds."""
    remaining = records(run)
    while chunk := list(islice(remaining, CHUNK_USERS)):
        for record, values in zip(chunk, values_of(benchmark, chunk), strict=True):
            played = plays.exchanges_of(record) if plays else None
            with read_of(str(record.get("user_id"))):
                usage = cost(played.exchanges) if played else NO_COST | record["usage"]
            row: JSON = {}
            for name in ("user_id", "repeat"):
                if name in record:
                    row[name] = record[name]
            yield {**row, **values, **usage}


def values_of(benchmark: Benchmark, chunk: Sequence[JSON]) -> list[JSON]:
    """Return for each record how many answers it has and how many are valid, and its values of the
    metrics; of a benchmark whose users have none, the numbers of the record."""
    users = list[JSON]()
    named = list[Record]()
    is_mean = benchmark.scoring.is_mean
    for record in chunk:
        with reading(type(benchmark), record, "outcomes"):
            outcomes = list(benchmark.records.outcomes(record))
        counts = {"answers": len(outcomes), "valid": outcomes.count(VALID)}
        users.append(counts if is_mean else counts | _numbers(record))
        named.append(Record(str(record.get("user_id")), record))
    if is_mean:
        names = metrics_of(benchmark)
        table, _ = raw_rows(benchmark, named)
        for user, row in zip(users, table.tolist(), strict=True):
            for name, value in zip(names, row, strict=False):
                user[name] = None if isnan(value) else value  # NaN is undefined
    return users


def _numbers(record: JSON) -> JSON:
    numbers = dict[str, object]()
    for name, value in record.items():
        if type(value) in (int, float) and name not in NOT_VALUES:
            numbers[name] = value
    return numbers
