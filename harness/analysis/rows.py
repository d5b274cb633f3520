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
from harness.model import JSON, Record
from harness.scoring.rows import raw_rows
from harness.store import log
from harness.store.run import completion_of
from harness.ui.streams import tell

OURS = frozenset({"user_id", "repeat", "format"})
"""Numbers in every record that are no values."""
CHUNK = 500
"""Users whose values are computed at once."""


def rows(run: SavedRun, kind: Rows, tasks: Path | None, results: Path) -> Generator[JSON]:
    """Yield the rows of a run. One that cannot be played again, as without its tasks, has no
    seconds, and steps have no tokens either; a sentence on stderr says so."""
    about = {"run": run.name, "model": run.manifest.identity["model"], "subset": run.files.subset}
    repeat = {"repeat": 1} if run.manifest.repeats > 1 else {}
    with ExitStack() as held:
        plays = None
        if kind != "responses":
            try:
                plays = held.enter_context(opened(run, tasks, results))
            except BadInput as error:
                tell(f"{run.label}: without what the replies of a step took: {error}")
        if kind == "responses":
            found = responses(run)
        elif kind == "steps":
            found = steps(run, plays)
        else:
            found = users(run, plays, plays.benchmark if plays else run.measuring(tasks))
        for row in found:
            yield {**about, "user_id": row.get("user_id"), **repeat, **row, **about}


def records(run: SavedRun) -> Iterator[JSON]:
    return (data for _, data in log.objects(run.files.results))


def responses(run: SavedRun) -> Iterator[JSON]:
    """Yield the saved replies, with the members of their completions as columns; `response_model`
    is the model by the endpoint's own name."""
    for _, line in log.objects(run.files.responses):
        plain = {
            name: value for name, value in line.items() if name not in ("completion", "format")
        }
        completion = completion_of(line)
        if completion:
            plain |= {**completion.data, "response_model": completion.model}
        yield plain


def steps(run: SavedRun, plays: Plays | None) -> Iterator[JSON]:
    """Yield the rows of every user."""
    cls = run.benchmark_class
    return (row for record in records(run) for row in steps_of(cls, record, plays))


def steps_of(cls: type[Benchmark], record: JSON, plays: Plays | None) -> list[JSON]:
    """Return the benchmark's rows of a user, each with what its replies cost, None where that is
    not known."""
    with reading(cls, record, "rows"):
        made = [dict(row) for row in cls.records.rows(record)]
        if cls.origin:  # its author's numbers may be numpy's
            made = orjson.loads(orjson.dumps(made, option=orjson.OPT_SERIALIZE_NUMPY))
    played = None
    if plays:
        played = plays.of(record)
    if played is None:
        return [{**dict.fromkeys(COST), **row} for row in made]
    return [
        {**row, **cost(group)} for row, group in zip(made, played.groups(len(made)), strict=True)
    ]


@contextmanager
def reading(cls: type[Benchmark], record: JSON, what: str) -> Iterator[None]:
    """Name the user and what is read where a record, or a benchmark's own code, is odd."""
    key = str(record.get("user_id"))
    through = () if cls.origin else ODD_SHAPE
    with read_of(key), guarded(cls, f"user {key}, {what}", *through):
        yield


def users(run: SavedRun, plays: Plays | None, benchmark: Benchmark) -> Iterator[JSON]:
    """Yield a row for each user: answers, values of the metrics, tokens, seconds."""
    found = records(run)
    while chunk := list(islice(found, CHUNK)):
        for record, own in zip(chunk, values_of(benchmark, chunk), strict=True):
            played = None
            if plays:
                played = plays.of(record)
            with read_of(str(record.get("user_id"))):
                spent = (
                    cost(played.exchanges) if played else {**dict.fromkeys(COST), **record["usage"]}
                )
            yield {
                **{name: record[name] for name in ("user_id", "repeat") if name in record},
                **own,
                **spent,
            }


def values_of(benchmark: Benchmark, chunk: Sequence[JSON]) -> list[JSON]:
    """Return for each record how many answers it has and how many are valid, and its values of the
    metrics; of a benchmark whose users have none, the numbers of the record."""
    made = []
    for record in chunk:
        with reading(type(benchmark), record, "outcomes"):
            outcomes = list(benchmark.records.outcomes(record))
        made.append({"answers": len(outcomes), "valid": outcomes.count(VALID)})
    if not benchmark.scoring.is_mean:
        return [{**of, **_numbers(record)} for of, record in zip(made, chunk, strict=True)]
    names = metrics_of(benchmark)
    table, _ = raw_rows(benchmark, [Record(str(record.get("user_id")), record) for record in chunk])
    values = (
        [None if isnan(value) else value for value in row] for row in table.tolist()
    )  # NaN is undefined
    return [
        {**of, **dict(zip(names, own, strict=False))} for of, own in zip(made, values, strict=True)
    ]


def _numbers(record: JSON) -> JSON:
    return {
        name: value
        for name, value in record.items()
        if type(value) in (int, float) and name not in OURS
    }
