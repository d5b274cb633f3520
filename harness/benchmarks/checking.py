"""What `check-benchmark` checks: that a benchmark keeps the contract of `harness.benchmark`.

Each check is a function of a `Subject` that yields what is wrong, in sentences that name the user or the line.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from itertools import islice
from typing import Any, Protocol
from zlib import crc32

import numpy as np
import orjson

from harness.benchmark import VALID, Benchmark, Task
from harness.benchmarks import line_changes, registry, tasks
from harness.benchmarks import reports as typed
from harness.benchmarks import settings as own_settings
from harness.benchmarks.cards import Cards
from harness.benchmarks.derived import Figures, Scorer, figures_of, is_measured, rows_of
from harness.benchmarks.overview import page
from harness.benchmarks.user_code import described, guarded
from harness.errors import BadInput, BenchmarkError, HarnessError, shown
from harness.model import JSON, Ask, Completion, Record, Request, RunFacts, Where

AGREE = 1e-9
FEW = 3
"""Lines that are changed field by field, and findings reported for one check."""

GARBAGE = ("", "I cannot help with that.", "[]", "{}", '{"x": 1}', '{"x"', "<think>hm</think> {}", "null")

Model = Callable[[], Callable[[Request], str]]
"""Begins one user: what answers its requests. The same requests get the same replies."""


class Engine(Protocol):
    """How the harness plays and measures a user (`harness.engine.play`)."""

    def play(self, benchmark: Benchmark, task: Task, ask: Ask) -> Awaitable[Any]: ...
    def recorded(self, benchmark: Benchmark, task: Task, played: Any) -> JSON: ...
    def rescored(self, benchmark: Benchmark, task: Task, data: JSON) -> JSON: ...
    def check_measure(self, benchmark: Benchmark, task: Task) -> None: ...


@dataclass(frozen=True)
class Played:
    """One user with one model: the task, the requests in order, the completions by request, and the record."""

    task: Task
    requests: Sequence[Request]
    saved: Mapping[tuple[Request, int], Completion]
    data: JSON


@dataclass(frozen=True)
class Subject:
    """What is checked: a benchmark on one subset, with lines of its tasks `file` and models by name."""

    benchmark: Benchmark
    subset: str
    file: str
    lines: Sequence[bytes]
    models: Mapping[str, Model]
    engine: Engine

    def fresh(self) -> Benchmark:
        """Another instance of the benchmark."""
        cls, now = type(self.benchmark), self.benchmark
        return cls(now.settings, asking=now.asking, folder=now.folder)

    def parse(self, line: bytes, number: int = 1) -> Task:
        return tasks.parse(self.benchmark, line, Where(self.file, number), self.subset)

    @cached_property
    def tasks(self) -> list[Task]:
        return [self.parse(line, number) for number, line in enumerate(self.lines, 1)]

    @cached_property
    def decoded(self) -> list[JSON]:
        return [orjson.loads(line) for line in self.lines]

    @cached_property
    def played(self) -> list[Played]:
        return [self.play(task, model) for model in self.models.values() for task in self.tasks]

    @cached_property
    def records(self) -> list[Record]:
        return [Record(one.task.key, orjson.loads(orjson.dumps(one.data))) for one in self.played]

    def play(self, task: Task, model: Model) -> Played:
        requests: list[Request] = []
        saved: dict[tuple[Request, int], Completion] = {}
        return Played(task, requests, saved, self._record(task, _answering(model, requests, saved)))

    def at_once(self, numbers: Sequence[int], model: Model) -> list[JSON]:
        """The records of users of some lines, played at the same time by another instance, then measured."""
        benchmark = self.fresh()

        async def one(number: int) -> tuple[Task, Any]:
            task = tasks.parse(benchmark, self.lines[number], Where(self.file, number + 1), self.subset)
            return task, await self.engine.play(benchmark, task, _answering(model, [], {}))

        async def every() -> list[tuple[Task, Any]]:
            return await asyncio.gather(*map(one, numbers))

        return [self.engine.recorded(benchmark, task, played) for task, played in asyncio.run(every())]

    def replay(self, played: Played) -> JSON:
        """The record of the saved completions. Raise `BenchmarkError` where a request is another one."""
        times = Counter[Request]()

        async def ask(request: Request) -> Completion:
            made = played.saved.get((request, times[request]))
            if made is None:
                raise BenchmarkError("asks something else when its saved replies are read again")
            times[request] += 1
            return made

        data = self._record(played.task, ask)
        if times.total() < len(played.saved):
            raise BenchmarkError("asks less when its saved replies are read again")
        return data

    def _record(self, task: Task, ask: Ask) -> JSON:
        async def played() -> Any:
            return await self.engine.play(self.benchmark, task, ask)

        return self.engine.recorded(self.benchmark, task, asyncio.run(played()))


def _answering(model: Model, requests: list[Request], saved: dict[tuple[Request, int], Completion]) -> Ask:
    """What answers one user, and notes what was asked and answered."""
    reply, times = model(), Counter[Request]()

    async def ask(request: Request) -> Completion:
        await asyncio.sleep(0)  # as over a network, others run meanwhile
        requests.append(request)
        text = reply(request)
        made = Completion(text, prompt_tokens=sum(len(one.content) for one in request.messages) // 2)
        saved[request, times[request]] = made = replace(made, completion_tokens=len(text) // 2)
        times[request] += 1
        return made

    return ask


Check = Callable[[Subject], Iterator[str]]


def results(subject: Subject) -> Iterator[tuple[str, str | None]]:
    """Each check's name, and what is wrong, None for nothing. What raises an error is wrong, too."""
    for name, check in CHECKS.items():
        found: list[str] = []
        try:
            found += islice(check(subject), FEW)
        except HarnessError as error:
            found.append(str(error))
        except Exception as error:  # the author's code where nothing guards it, or an assumption of a check
            found.append(described(error))
        yield name, "; ".join(found) or None
        if found and name in FIRST:
            return


def unmade(subject: Subject) -> str | None:
    """Which checks say little because no model gave an answer; None where one did."""
    try:
        if any(VALID in subject.benchmark.outcomes(record.data) for record in subject.records):
            return None
    except Exception:  # the author's code or the harness's, which the checks have reported
        return None
    return (
        "no reply made a valid answer: values, statistics and saved answers were checked of invalid ones alone; "
        "declare `baselines`, or give replies with --replies"
    )


def declaration(subject: Subject) -> Iterator[str]:
    if wrong := registry.undeclared(type(subject.benchmark)):
        yield wrong
    orjson.dumps(typed.declared(type(subject.benchmark)))


def readable(subject: Subject) -> Iterator[str]:
    if not subject.tasks:
        yield f"{subject.file} has no line"


def bad_lines(subject: Subject) -> Iterator[str]:
    """A field that is read and missing is refused under its name; of another type it is refused, or can be played."""
    for number, line in enumerate(subject.decoded[:FEW], 1):
        read = _fields_read(subject, line)
        for path in line_changes.paths(line):
            wrong = _refusal(subject, number, line_changes.without(line, path))
            name = path[0]
            if len(path) == 1 and name in read and wrong is not None and f"field {name}" not in wrong:
                yield f"line {number} without {name}: the error does not name the field: {wrong}"
            for value in line_changes.OTHER_TYPES:
                _refusal(subject, number, line_changes.replaced(line, path, value))


def _fields_read(subject: Subject, line: JSON) -> set[str]:
    read: set[str] = set()

    class Watched(tasks.Line):
        def __getitem__(self, name: str) -> Any:
            read.add(name)
            return super().__getitem__(name)

    subject.benchmark.parse(Watched(line), subject.subset)
    return read


def _refusal(subject: Subject, number: int, line: JSON) -> str | None:
    """The sentence that refuses a line, None for one that is taken, which then can be played and measured."""
    try:
        task = subject.parse(orjson.dumps(line), number)
    except BadInput as error:
        return str(error)
    try:
        subject.engine.check_measure(subject.benchmark, task)
        subject.play(task, garbage)
    except HarnessError as error:
        raise BenchmarkError(f"parse takes line {number} once it is {_short(line)}, and then: {error}") from None
    return None


def _short(line: JSON) -> str:
    text = orjson.dumps(line).decode()
    return text if len(text) <= 200 else f"{text[:200]}…"


def unreachable_truth(subject: Subject) -> Iterator[str]:
    """A field that changes the truth of a user changes no request."""
    pools = line_changes.pools(subject.decoded)
    for number, line in enumerate(subject.decoded[:FEW], 1):
        task = subject.tasks[number - 1]
        if subject.parse(subject.lines[number - 1], number).truth != task.truth:
            yield "the truth of one line, parsed twice, is not equal: give its class an __eq__"
            return
        asked = _requests(subject, subject.lines[number - 1], number)
        for path, copies in line_changes.others(line, pools):
            other = _other_truth(subject, task, number, copies)
            now = _requests(subject, other, number) if other else asked
            if leaks := [name for name in asked if now[name] != asked[name]]:
                yield f"line {number}: {line_changes.shown(path)} changes the truth and, with {leaks[0]}, a request"


def _other_truth(subject: Subject, task: Task, number: int, copies: Sequence[JSON]) -> bytes | None:
    """The first of the copies of a line that has another truth of the same user."""
    for line in map(orjson.dumps, copies):
        try:
            other = subject.parse(line, number)
        except BadInput:
            continue
        if other.truth != task.truth and other.key == task.key:
            return line
    return None


def _requests(subject: Subject, line: bytes, number: int) -> dict[str, Sequence[Request]]:
    """What is asked about the user of a line, by model."""
    return {name: subject.play(subject.parse(line, number), model).requests for name, model in subject.models.items()}


def deterministic_replay(subject: Subject) -> Iterator[str]:
    for one in subject.played:
        try:
            again = subject.replay(one)
        except HarnessError as error:
            yield f"user {one.task.key}: {error}"
            continue
        if orjson.dumps(again) != orjson.dumps(one.data):
            yield f"user {one.task.key}: the saved replies give another record than the live ones"


def shared_state(subject: Subject) -> Iterator[str]:
    """A run plays many users at the same time with one instance; what it keeps of one must not reach another."""
    numbers = range(len(subject.lines))
    for model in subject.models.values():
        alone = [subject.at_once([number], model)[0] for number in numbers]
        try:
            together = subject.at_once(numbers, model)
        except HarnessError as error:
            yield f"users share state: played at the same time, {error}"
            continue
        for task, one, other in zip(subject.tasks, alone, together, strict=True):
            if orjson.dumps(one) != orjson.dumps(other):
                yield (
                    f"users share state: user {task.key} has another record when others are played at the same time: "
                    "keep nothing of a user on self"
                )
                break


def no_answer(subject: Subject) -> Iterator[str]:
    for task in subject.tasks:
        subject.engine.check_measure(subject.benchmark, task)
    yield from ()


def values(subject: Subject) -> Iterator[str]:
    """Playing raises where a value is none, missing or out of bounds; a metric that nobody has is suspicious."""
    data = [record.data for record in subject.records]
    for metric in subject.benchmark.metrics if is_measured(subject.benchmark) else ():
        if data and all(one["metrics"][metric.name] is None for one in data):
            yield f"{metric.name} is None for every user"


def saved_answers(subject: Subject) -> Iterator[str]:
    for one, record in zip(subject.played, subject.records, strict=True):
        again = subject.engine.rescored(subject.benchmark, one.task, record.data)
        if orjson.loads(orjson.dumps(again)) != record.data:
            yield f"user {one.task.key}: the saved answer, measured again, gives other values"


def additive_statistics(subject: Subject) -> Iterator[str]:
    """Neither shards nor order change a figure, and what a user adds does not depend on the others."""
    benchmark, records = subject.benchmark, subject.records
    whole = rows_of(benchmark, records)
    singly = np.vstack([rows_of(benchmark, [record]) for record in records])
    if not np.allclose(whole, singly, rtol=AGREE, atol=AGREE):
        yield "statistics: the row of a user depends on the other users that it is computed with"
    totals = np.vstack([whole.sum(axis=0), whole[::-1].sum(axis=0), 2 * whole.sum(axis=0)])
    together = figures_of(benchmark, totals)
    apart = np.vstack([figures_of(benchmark, total[None]) for total in totals])
    if not np.allclose(together, apart, rtol=AGREE, atol=AGREE, equal_nan=True):
        yield "figures: a row of the result depends on the other rows of totals"
    Figures(benchmark).uses(whole.shape[1])
    made = Scorer(benchmark, subject.subset)
    expected = made.running(made.score(records))
    for size, order in ((1, records), (2, records), (7, records), (3, records[::-1])):
        shards = [made.score(order[start : start + size]) for start in range(0, len(order), size)]
        found = {
            "merged": made.running(reduce(made.merge, shards)),
            "merged from the right": made.running(reduce(lambda a, b: made.merge(b, a), shards[::-1])),
            "condensed": made.running(reduce(made.merge, map(made.condense, shards))),
        }
        for how, figures in found.items():
            if wrong := [name for name in expected if not _agree(figures[name], expected[name])]:
                yield f"{wrong[0]} is another in shards of {size} users, {how}"


def _agree(a: float | None, b: float | None) -> bool:
    return a == b if a is None or b is None else math.isclose(a, b, rel_tol=AGREE, abs_tol=AGREE)


def reports(subject: Subject) -> Iterator[str]:
    """A report and its page can be made of nobody, of one user and of all, complete or not; cards and remarks."""
    benchmark = subject.benchmark
    notes = _remarks(subject)
    if wrong := [note for note in notes if type(note) is not str]:
        yield f"remark: expected text, got {shown(wrong[0])}"
        return
    made = Scorer(benchmark, subject.subset)
    for records in ([], subject.records[:1], subject.records):
        for missing in (0, 1):
            facts = RunFacts(subject.subset, "model", "check", benchmark.prompt, len(records) + missing, missing)
            written, _ = made.report(made.score(records), replace(facts, notes=tuple(filter(None, notes))))
            report = typed.read(typed.encoded(written))
            page(report)
    cards = Cards.of(report, benchmark, posts=False)
    for one, record in zip(subject.played, subject.records, strict=True):
        for task in (one.task, None):
            cards.card(record.data, task, list(one.saved.values()))


def _remarks(subject: Subject) -> list[Any]:
    with guarded(subject.benchmark, "remark"):
        return list(dict.fromkeys(map(subject.benchmark.remark, subject.tasks)))


def settings_again(subject: Subject) -> Iterator[str]:
    """Settings, read back from a run's identity, are those that it was made of."""
    benchmark = subject.benchmark
    cls: Any = type(benchmark)
    now = benchmark.settings
    for name, kind in own_settings.kinds(cls.Settings).items():
        for value in _other_values(getattr(now, name), kind):
            try:
                made = cls(replace(now, **{name: value}), asking=benchmark.asking, folder=benchmark.folder)
            except (BadInput, ValueError):  # values that the benchmark itself refuses
                continue
            identity = orjson.loads(orjson.dumps(made.identity()))
            if identity == benchmark.identity():
                yield f"{name}: {value!r} leaves the identity of a run as it was"
            if cls.settings_from(identity, own_settings.files(made.settings)) != made.settings:
                yield f"{name}: {value!r} is not read back from the identity of a run"


def _other_values(now: Any, kind: Any) -> list[Any]:
    if isinstance(kind, tuple):
        return [text for text in kind if text != now]
    if kind is bool:
        return [not now]
    return [(now or 0) + 1] if kind in (int, float) else [f"{now or ''}x"] if kind is str else []


def garbage() -> Callable[[Request], str]:
    """A model none of whose replies can be used."""
    return lambda request: GARBAGE[crc32(repr(request).encode()) % len(GARBAGE)]


def of_baseline(answer: Callable[[Sequence[Mapping[str, str]], int], str]) -> Model:
    def reply(request: Request) -> str:
        return answer([{"role": one.role, "content": one.content} for one in request.messages], 0)

    return lambda: reply


def of_replies(texts: Sequence[str]) -> Model:
    """A model that gives these replies to each user in turn."""

    def begun() -> Callable[[Request], str]:
        left = iter(range(10**9))
        return lambda request: texts[next(left) % len(texts)]

    return begun


CHECKS: Mapping[str, Check] = {
    "declaration": declaration,
    "tasks": readable,
    "settings": settings_again,
    "no answer": no_answer,
    "bad lines": bad_lines,
    "ground truth": unreachable_truth,
    "values": values,
    "replay": deterministic_replay,
    "users": shared_state,
    "saved answers": saved_answers,
    "statistics": additive_statistics,
    "reports": reports,
}
FIRST = frozenset({"declaration", "tasks"})
"""Checks without which no other makes sense."""
