"""One user, from a task to a record: played, measured, checked. Used by runs, `reeval --reparse`
and `verify`."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import orjson
from msgspec import Struct

from harness.benchmark import VALID, Benchmark, Metric, Task
from harness.benchmarks.records import read_of, text
from harness.benchmarks.user_code import guarded
from harness.chat import Chat, Judged, unnoticed
from harness.errors import BenchmarkError, InvalidReply, RoleFailed, in_brief
from harness.model import JSON, Ask


class Played(Struct, frozen=True):
    """`answer` is None where a reply could not be used; `outcome` says how the play ended."""

    answer: object
    outcome: str
    chat: Chat


async def play(
    benchmark: Benchmark, task: Task, ask: Ask, repeat: int = 1, judged: Judged = unnoticed
) -> Played:
    """Play one user; `judged` is as for `Chat`. Raise what `ask` raised, also where the benchmark
    caught it, `RoleFailed`, and `BenchmarkError`."""
    chat = Chat(
        ask,
        benchmark.asking,
        benchmark.about.language,
        repeat,
        judged=judged,
        same_note=benchmark.imports.same_note,
    )
    answer = None
    outcome = VALID
    try:
        with guarded(benchmark, f"user {task.key}, play", InvalidReply):
            answer = await benchmark.play(task.given, chat)
    except InvalidReply as error:
        if error.role:
            raise RoleFailed(f"{error.role}_unusable", str(error)) from error
        if chat.unjudged:  # by `chat.ask`, which leaves the reading to the benchmark
            judged(chat.unjudged, error)
        outcome = _kind(benchmark, task, error)
    except BenchmarkError:
        if chat.failed is None:
            raise
    for odd in dict.fromkeys(chat.odd):
        benchmark.warn(f"a reply could not be read, which may be a mistake of the benchmark: {odd}")
    if chat.failed is not None:
        raise chat.failed
    return Played(answer, outcome, chat)


def _kind(benchmark: Benchmark, task: Task, error: InvalidReply) -> str:
    """Return the kind that an unusable reply is counted under. Raise `BenchmarkError` for what is
    no word."""
    kind: object = error.kind
    if not isinstance(kind, str) or kind in ("", VALID):
        raise BenchmarkError(
            f"benchmark {benchmark.name}, user {task.key}, play: InvalidReply({in_brief(kind)}):"
            " expected the kind of an unusable reply, as a word"
        ) from error
    return kind


def recorded(benchmark: Benchmark, task: Task, played: Played, repeats: int = 1) -> JSON:
    """Return the record of a played user of a run with so many repeats. Raise `BenchmarkError` for
    an answer or values that cannot be kept.

    Nothing in it depends on time, tries or order, so that the same completions give the same bytes
    of results, whatever was killed or retried on the way.
    """
    about = f"user {task.key}"
    answer = played.answer
    if benchmark.records.has_answer:  # measured as it will be read again
        answer = _as_saved(benchmark, f"{about}, play: the answer", answer)
    metrics = _measured(benchmark, task, answer)
    with guarded(benchmark, f"{about}, record"):
        repairs = tuple(dict.fromkeys(played.chat.repairs))
        record = benchmark.records.record(task, answer, metrics, played.outcome, repairs)
    if benchmark.origin:  # its record may be its own, which nobody has tried
        record = _as_saved(benchmark, f"{about}, record: the record", record)
    if repeats > 1 and "repeat" in record:
        raise BenchmarkError(
            f"benchmark {benchmark.name}, record: a run with repeats needs the name repeat"
        )
    return {**record, "usage": played.chat.usage_data}


def rescored(benchmark: Benchmark, task: Task, data: JSON) -> JSON:
    """Return a saved record with its values measured again. Raise `BadInput` for one of another
    shape."""
    with guarded(benchmark, f"user {task.key}, rescore"):
        record = benchmark.records.rescore(task, data)
    if record is not None:
        return record
    with read_of(task.key):
        answer = data["answer"] if text(data["outcome"]) == VALID else None
    return {**data, "metrics": _measured(benchmark, task, answer)}


def check_measure(benchmark: Benchmark, task: Task) -> None:
    """Measure a user without an answer, before anything is paid for. Raise `BenchmarkError` as
    `recorded` does."""
    if benchmark.scoring.is_measured:
        _measured(benchmark, task, None, " without an answer")


def _as_saved(benchmark: Benchmark, what: str, value: object) -> Any:
    """Return a value as it will be read from the results. Raise `BenchmarkError` for one that is no
    JSON."""
    try:
        return orjson.loads(orjson.dumps(value))
    except TypeError as error:
        if str(error).endswith(": coroutine"):
            hint = "holds a coroutine: an `await` is missing, most likely before a call of `chat`"
            raise BenchmarkError(f"benchmark {benchmark.name}, {what} {hint}") from None
        raise BenchmarkError(
            f"benchmark {benchmark.name}, {what} cannot be kept as JSON ({error})"
        ) from None


def _measured(
    benchmark: Benchmark, task: Task, answer: object, how: str = ""
) -> Mapping[str, float | None]:
    """Return one user's values. Raise `BenchmarkError` unless there is one of each metric, None or
    within bounds."""
    what = f"user {task.key}, measure{how}"
    with guarded(benchmark, what):
        values: object = benchmark.measure(task, answer)
    if not benchmark.scoring.is_measured:
        return values  # type: ignore[return-value]  # the benchmark's own business
    head = f"benchmark {benchmark.name}, {what}"
    metrics = {metric.name: metric for metric in benchmark.metrics}
    if not isinstance(values, Mapping) or set(values) != metrics.keys():
        got = ", ".join(map(str, values)) if isinstance(values, Mapping) else in_brief(values)
        raise BenchmarkError(
            f"{head}: expected a value of each metric ({', '.join(metrics)}), got {got or 'none'}"
        )
    return {name: _value(head, metric, values[name]) for name, metric in metrics.items()}


def _value(head: str, metric: Metric, value: object) -> float | None:
    if value is None:
        return None
    number = None
    if not isinstance(value, str):  # `float` would read the text
        with suppress(TypeError, ValueError, OverflowError):
            number = metric.within(float(value))  # type: ignore[arg-type]  # a number of numpy's
    if number is None:
        raise BenchmarkError(
            f"{head}: {metric.name} is {in_brief(value)}: expected a number within its bounds, or"
            " None"
        )
    return number
