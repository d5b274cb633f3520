"""The contract of `harness.benchmark`, as the promises that `check-benchmark` checks.

Each check is a function of a `Subject`. Its first line is the promise; it yields each breach as a
sentence that names the user or the line.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property, reduce
from itertools import cycle, islice
from typing import Any
from zlib import crc32

import numpy as np
import orjson
from msgspec import structs

from harness.benchmark import VALID, Benchmark, Means, Task, remark, role_baselines
from harness.benchmarks import registry, tasks
from harness.benchmarks import settings as own_settings
from harness.benchmarks.user_code import described
from harness.client.baselines import completion_of_answer
from harness.commands.check import line_changes
from harness.engine import play
from harness.errors import BadInput, BenchmarkError, HarnessError
from harness.model import JSON, Ask, Baseline, Completion, Record, Request, RunFacts, Where
from harness.reporting import report_files
from harness.reporting.cards import ReportCards
from harness.reporting.report import page
from harness.scoring import reports as typed
from harness.scoring.compared import Figures
from harness.scoring.rows import figures_of
from harness.scoring.scorer import Scorer

MAX_FINDINGS = 3
"""Lines that are changed field by field, and findings reported for one check."""

GARBAGE_REPLIES = (
    "",
    "I cannot help with that.",
    "[]",
    "{}",
    '{"x": 1}',
    '{"x"',
    "<think>hm</think> {}",
    "null",
)

Model = Callable[[], Callable[[Request], str | Mapping[str, Any]]]
"""Begins one user: returns what answers its requests. The same requests get the same replies."""


@dataclass(frozen=True)
class Trial:
    """One user with one model: the task, the record, and the completions in the order of their
    requests, by request and number of the same request before."""

    task: Task
    saved: Mapping[tuple[Request, int], Completion]
    data: JSON


@dataclass(frozen=True)
class Subject:
    """What is checked: a benchmark on one subset, with lines of its tasks `file` and models by
    name."""

    benchmark: Benchmark
    subset: str
    file: str
    lines: Sequence[bytes]
    models: Mapping[str, Model]

    def parse(self, line: bytes, number: int) -> Task:
        return tasks.parse(self.benchmark, line, Where(self.file, number), self.subset)

    @cached_property
    def tasks(self) -> list[Task]:
        return [self.parse(line, number) for number, line in enumerate(self.lines, 1)]

    @cached_property
    def decoded(self) -> list[JSON]:
        return [orjson.loads(line) for line in self.lines]

    @cached_property
    def trials(self) -> list[Trial]:
        return [self.play(task, model) for model in self.models.values() for task in self.tasks]

    @cached_property
    def records(self) -> list[Record]:
        return [
            Record(trial.task.key, orjson.loads(orjson.dumps(trial.data))) for trial in self.trials
        ]

    def play(self, task: Task, model: Model) -> Trial:
        saved: dict[tuple[Request, int], Completion] = {}
        ask = _answering(model, self.benchmark, saved)
        played = asyncio.run(play.play(self.benchmark, task, ask))
        return Trial(task, saved, play.recorded(self.benchmark, task, played))

    def requests(self, line: bytes, number: int) -> dict[str, list[tuple[Request, int]]]:
        """Return the requests for the user of a line, by model."""
        return {
            name: list(self.play(self.parse(line, number), model).saved)
            for name, model in self.models.items()
        }

    def at_once(self, model: Model) -> list[JSON]:
        """Return the records of all users, played at the same time, then measured."""

        async def play_all() -> list[Any]:
            plays = (
                play.play(self.benchmark, task, _answering(model, self.benchmark, {}))
                for task in self.tasks
            )
            return await asyncio.gather(*plays)

        users = zip(self.tasks, asyncio.run(play_all()), strict=True)
        return [play.recorded(self.benchmark, task, played) for task, played in users]

    def replay(self, trial: Trial) -> JSON:
        """Return the record of the saved completions. Raise `BenchmarkError` if another request is
        made."""
        sent = Counter[Request]()

        async def ask(request: Request) -> Completion:
            # Requests are counted as they are sent: one that equals another has a reply of its own.
            completion = trial.saved.get((request, sent[request]))
            if completion is None:
                raise BenchmarkError("asks something else when its saved replies are read again")
            sent[request] += 1
            return completion

        played = asyncio.run(play.play(self.benchmark, trial.task, ask))
        data = play.recorded(self.benchmark, trial.task, played)
        if sent.total() < len(trial.saved):
            raise BenchmarkError("asks less when its saved replies are read again")
        return data


def _answering(
    model: Model, benchmark: Benchmark, saved: dict[tuple[Request, int], Completion]
) -> Ask:
    """Return the `ask` of one user; it adds to `saved`. In roles the benchmark's baselines
    answer."""
    reply_of_model = model()
    replies_of_roles = {
        role: baseline_model(answer)() for role, answer in role_baselines(benchmark).items()
    }
    sent = Counter[Request]()

    async def ask(request: Request) -> Completion:
        await asyncio.sleep(0)  # as over a network, others run meanwhile
        role = request.role
        if role and role not in replies_of_roles:
            raise BenchmarkError(
                f"asks the role {role}: to check that, declare a baseline of this name"
            )
        reply = replies_of_roles[role] if role else reply_of_model
        answer = completion_of_answer(reply(request))
        characters = sum(len(message.text) for message in request.messages)
        completion = structs.replace(
            answer, prompt_tokens=characters // 2, completion_tokens=len(answer.text) // 2
        )
        saved[request, sent[request]] = completion
        sent[request] += 1
        return completion

    return ask


@dataclass(frozen=True, slots=True)
class CheckResult:
    """What a check has found, None for nothing. `waived` is the reason why its findings are no
    breach: an exception is one all the same."""

    check: str
    wrong: str | None
    waived: str | None = None


def results(subject: Subject, seen: dict[str, str] | None = None) -> Iterator[CheckResult]:
    """Yield the result of each check. An exception is a finding.

    A finding is shown once: `seen` has those of earlier checks, and where they were.
    """
    seen = {} if seen is None else seen
    for name, check in CHECKS.items():
        findings = list[str]()
        waived = subject.benchmark.about.waived.get(name)
        try:
            findings += islice(check(subject), MAX_FINDINGS)
        except Exception as error:
            # The author's code where nothing guards it, or an assumption of a check.
            findings.append(str(error) if isinstance(error, HarnessError) else described(error))
            waived = None
        new = list[str]()
        repeated = list[str]()
        for finding in findings:
            places = [place for text, place in seen.items() if text in finding]
            if places:
                repeated.append(f"fails as {places[-1]} does")
            else:
                new.append(finding)
        shown = new or dict.fromkeys(repeated)
        seen |= dict.fromkeys(new, f"{subject.subset}, {name}")
        yield CheckResult(name, "; ".join(shown) or None, waived)
        # Without these there is no user to play, and every other check would fail with the same
        # words.
        if findings and name in REQUIRED_CHECKS:
            return


def without_valid_answer(subject: Subject) -> str | None:
    """Return which checks prove little because no model gave a valid answer, None if one did."""
    outcomes = subject.benchmark.records.outcomes
    try:
        if any(VALID in outcomes(record.data) for record in subject.records):
            return None
    except Exception:  # the author's code or the harness's, which the checks have reported
        return None
    return (
        "no reply made a valid answer: values, statistics and saved answers were checked of invalid"
        " ones alone; declare `baselines`, or give replies with --replies"
    )


# The promises


def declaration(subject: Subject) -> Iterator[str]:
    """A class declares all that is required, and a report can save it."""
    undeclared = registry.undeclared(type(subject.benchmark))
    if undeclared:
        yield undeclared
    waived = subject.benchmark.about.waived
    waivable = CHECKS.keys() - REQUIRED_CHECKS
    for name in waived:
        if name not in waivable:
            yield f"waived: {name} is no check that can be waived: these are {', '.join(waivable)}"
            break
    for name, reason in waived.items():
        if type(reason) is not str or not reason.strip():
            yield f"waived: {name}: expected the reason"
            break
    orjson.dumps(typed.declared(type(subject.benchmark)))


def readable(subject: Subject) -> Iterator[str]:
    """The tasks file has a line, and every line is a task."""
    if not subject.tasks:
        yield f"{subject.file} has no line"


def settings_again(subject: Subject) -> Iterator[str]:
    """Settings that are read back from a run's identity are those that it was made of."""
    benchmark = subject.benchmark
    settings = benchmark.settings
    cls = type(benchmark)
    for name, kind in own_settings.kinds(cls.Settings).items():
        for value in _other_values(getattr(settings, name), kind):
            try:
                changed = cls(
                    replace(settings, **{name: value}),
                    asking=benchmark.asking,
                    folder=benchmark.folder,
                )
            except (BadInput, ValueError):  # values that the benchmark itself refuses
                continue
            identity = orjson.loads(orjson.dumps(changed.configuration.identity))
            if identity == benchmark.configuration.identity:
                yield f"{name}: {value!r} leaves the identity of a run as it was"
            files = own_settings.files(changed.settings)
            if own_settings.of_run(cls, identity, files) != changed.settings:
                yield f"{name}: {value!r} is not read back from the identity of a run"


def _other_values(current: Any, kind: object) -> list[Any]:
    """Return values of a setting other than the current one: none of a type that is not known."""
    if isinstance(kind, tuple):
        return [text for text in kind if text != current]
    if kind is bool:
        return [not current]
    if kind in (int, float):
        return [(current or 0) + 1]
    if kind is str:
        return [f"{current or ''}x"]
    return []


def no_answer(subject: Subject) -> Iterator[str]:
    """A user without an answer has values."""
    for task in subject.tasks:
        play.check_measure(subject.benchmark, task)
    yield from ()


def bad_lines(subject: Subject) -> Iterator[str]:
    """A field that is read and missing is refused under its name; of another type it is refused, or
    can be played."""
    reported = set()
    for number, line in enumerate(subject.decoded[:MAX_FINDINGS], 1):
        watched = tasks.TrackedLine(line)
        subject.benchmark.parse(watched, subject.subset)
        for path in line_changes.paths(line):
            # A field's other values, and other lines, most likely have the same mistake.
            if path in reported:
                continue
            wrong = _bad_field(subject, number, path, watched.read)
            if wrong:
                reported.add(path)
                yield wrong


def _bad_field(
    subject: Subject, number: int, path: tuple[str | int, ...], read: Container[str]
) -> str | None:
    """Return what is wrong once a field of a line is missing, or of another type; None for
    nothing."""
    line = subject.decoded[number - 1]
    name = path[0]
    try:
        refusal = _refusal(subject, number, line_changes.without(line, path))
        is_named = refusal is None or f"field {name}" in refusal
        if len(path) == 1 and name in read and not is_named:
            return f"line {number} without {name}: the error does not name the field: {refusal}"
        for value in line_changes.OTHER_TYPES:
            _refusal(subject, number, line_changes.replaced(line, path, value))
    except HarnessError as error:
        return str(error)
    return None


def _refusal(subject: Subject, number: int, line: JSON) -> str | None:
    """Return the sentence that refuses a line, None for an accepted one, which then can be played
    and measured."""
    text = orjson.dumps(line)
    try:
        task = subject.parse(text, number)
    except BadInput as error:
        return str(error)
    try:
        play.check_measure(subject.benchmark, task)
        subject.play(task, garbage)
    except HarnessError as error:
        raise BenchmarkError(
            f"parse takes line {number} once it is {text.decode():.200}, and then: {error}"
        ) from None
    return None


def unreachable_truth(subject: Subject) -> Iterator[str]:
    """A field that changes the truth of a user changes no request."""
    pools = line_changes.pools(subject.decoded)
    for number, line in enumerate(subject.decoded[:MAX_FINDINGS], 1):
        task = subject.tasks[number - 1]
        text = subject.lines[number - 1]
        if subject.parse(text, number).truth != task.truth:
            yield "the truth of one line, parsed twice, is not equal: give its class an __eq__"
            return
        expected = subject.requests(text, number)
        for path, copies in line_changes.other_values(line, pools):
            other_line = _other_truth(subject, task, number, copies)
            if other_line is None:
                continue
            requests = subject.requests(other_line, number)
            models = [model for model in expected if requests[model] != expected[model]]
            if models:
                yield (
                    f"line {number}: {line_changes.path_text(path)} changes the truth and, with"
                    f" {models[0]}, a request"
                )


def _other_truth(subject: Subject, task: Task, number: int, copies: Sequence[JSON]) -> bytes | None:
    """Return the first of the copies of a line that has another truth of the same user."""
    for line in map(orjson.dumps, copies):
        try:
            other_task = subject.parse(line, number)
        except BadInput:
            continue
        if other_task.truth != task.truth and other_task.key == task.key:
            return line
    return None


def values(subject: Subject) -> Iterator[str]:
    """Every metric is defined for a user. (Playing raises where a value is missing or out of
    bounds.)"""
    records = subject.records
    if not records or not subject.benchmark.scoring.is_measured:
        return
    for metric in subject.benchmark.metrics:
        if all(record.data["metrics"][metric.name] is None for record in records):
            yield f"{metric.name} is None for every user"


def deterministic_replay(subject: Subject) -> Iterator[str]:
    """The saved replies of a user give the same record again, without another request."""
    for trial in subject.trials:
        try:
            replayed = subject.replay(trial)
        except HarnessError as error:
            yield f"user {trial.task.key}: {error}"
            continue
        if orjson.dumps(replayed) != orjson.dumps(trial.data):
            yield f"user {trial.task.key}: the saved replies give another record than the live ones"


def shared_state(subject: Subject) -> Iterator[str]:
    """Users that one instance plays at the same time have the records that they have alone."""
    alone = iter(subject.trials)
    for model in subject.models.values():
        trials = list(islice(alone, len(subject.tasks)))
        try:
            together = subject.at_once(model)
        except HarnessError as error:
            yield f"users share state: played at the same time, {error}"
            continue
        for trial, data in zip(trials, together, strict=True):
            if orjson.dumps(trial.data) != orjson.dumps(data):
                yield (
                    f"users share state: user {trial.task.key} has another record when others are"
                    " played at the same time: keep nothing of a user on self"
                )
                break


def saved_answers(subject: Subject) -> Iterator[str]:
    """The saved answer of a user, measured again, has the same values."""
    for trial, record in zip(subject.trials, subject.records, strict=True):
        rescored = play.rescored(subject.benchmark, trial.task, record.data)
        # A record holds them in a file: what JSON rounds or turns into a list is not a difference.
        if orjson.loads(orjson.dumps(rescored)) != record.data:
            yield f"user {trial.task.key}: the saved answer, measured again, gives other values"


def additive_statistics(subject: Subject) -> Iterator[str]:
    """Neither shards nor order change a figure, and the row of a user does not depend on the
    others."""
    benchmark = subject.benchmark
    records = subject.records
    compared = Figures(benchmark)

    def rows_of(records: Sequence[Record]) -> Any:
        return compared.contributions(compared.raw(records), range(len(records)))[0]

    rows = rows_of(records)
    rows_alone = np.vstack([rows_of([record]) for record in records])
    if not _close(rows, rows_alone).all():
        yield "statistics: the row of a user depends on the other users that it is computed with"
    total = rows.sum(axis=0)
    yield from _wrong_figures(benchmark, np.vstack([total, rows[::-1].sum(axis=0), 2 * total]))
    compared.uses(rows.shape[1])
    yield from _unlike_in_shards(Scorer(benchmark, subject.subset), records)


def _wrong_figures(benchmark: Benchmark, totals: Any) -> Iterator[str]:
    """Yield what is wrong with the figures of totals, a row for each: they depend on one another,
    or are declared as means and are none."""
    figures = figures_of(benchmark, totals)
    figures_alone = np.vstack([figures_of(benchmark, total[None]) for total in totals])
    if not _close(figures, figures_alone).all():
        yield "figures: a row of the result depends on the other rows of totals"
    if benchmark.scoring.is_mean:
        with np.errstate(invalid="ignore"):  # a mean of nothing
            means = Means().figures(totals)[:, : figures.shape[1]]
        if not _close(figures, means).all():
            yield "figures: other than means: for these extend `Scoring`"


def _unlike_in_shards(scorer: Scorer, records: Sequence[Record]) -> Iterator[str]:
    """Yield a figure that is another one when the records are scored in shards, for each way."""
    expected = scorer.running(scorer.score(records))
    # Sizes that do not divide the users, and an order from the end, show a figure that depends on
    # either.
    for size, order in ((1, records), (2, records), (7, records), (3, records[::-1])):
        shards = list[Any]()
        for start in range(0, len(order), size):
            shards.append(scorer.score(order[start : start + size]))
        scores = {
            "merged": reduce(scorer.merge, shards),
            "condensed": reduce(scorer.merge, map(scorer.condense, shards)),
        }
        for how, score in scores.items():
            figures = scorer.running(score)
            wrong = [name for name in expected if not _close(figures[name], expected[name])]
            if wrong:
                yield f"{wrong[0]} is another in shards of {size} users, {how}"


def _close(a: object, b: object) -> Any:
    """Return whether numbers or arrays are equal but for rounding; None is NaN, and equals NaN."""
    left = np.asarray(a, dtype=np.float64)
    right = np.asarray(b, dtype=np.float64)
    return np.isclose(left, right, rtol=1e-9, atol=1e-9, equal_nan=True)


def reports(subject: Subject) -> Iterator[str]:
    """Report and page can be made of no user, one and all, complete or not; cards can be made."""
    benchmark = subject.benchmark
    notes = tuple(filter(None, dict.fromkeys(remark(benchmark, task) for task in subject.tasks)))
    scorer = Scorer(benchmark, subject.subset)
    source = benchmark.configuration.source
    for records in ([], subject.records[:1], subject.records):
        for missing in (0, 1):
            users = len(records) + missing
            facts = RunFacts(subject.subset, "model", "check", source, users, missing, notes)
            saved, _ = scorer.report(scorer.score(records), facts)
            # Read back from its file's bytes, as `stats` and pages do.
            report = report_files.read(typed.encoded(saved))
            page(report)
    cards = ReportCards.of(report, benchmark, posts=False)
    for trial, record in zip(subject.trials, subject.records, strict=True):
        for task in (trial.task, None):
            cards.card(record.data, task, list(trial.saved.values()))
    yield from ()  # what fails raises


CHECKS: Mapping[str, Callable[[Subject], Iterator[str]]] = {
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
REQUIRED_CHECKS = frozenset({"declaration", "tasks"})
"""Checks without which no other makes sense."""


# Models


def garbage() -> Callable[[Request], str]:
    """Return a model without a usable reply."""
    return lambda request: GARBAGE_REPLIES[crc32(repr(request).encode()) % len(GARBAGE_REPLIES)]


def baseline_model(answer: Baseline) -> Model:
    return lambda: lambda request: answer([asdict(message) for message in request.messages], 0)


def replies_model(texts: Sequence[str]) -> Model:
    """Return a model that gives these replies to each user in turn."""

    def new_user() -> Callable[[Request], str]:
        replies = cycle(texts)
        return lambda request: next(replies)

    return new_user
