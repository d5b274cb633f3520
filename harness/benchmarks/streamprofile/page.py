"""The page of a report: tiles, pictures and tables from the JSON report alone, and cards of users from their records.

Source: docs/design.md, sections 5 and 8. The key stands for a user's name; posts are shown only where asked for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice

from harness.benchmark import VALID, Task
from harness.benchmarks.rendering import called, quotes, reply_text
from harness.benchmarks.streamprofile import summary
from harness.benchmarks.streamprofile.metrics import ERRORS, F1, GAINS, METRICS, NAMES, harmonic
from harness.benchmarks.streamprofile.naming import unnamed, without_name
from harness.benchmarks.streamprofile.platforms import PLATFORMS
from harness.benchmarks.streamprofile.reply import read
from harness.benchmarks.streamprofile.scores import BINS
from harness.benchmarks.streamprofile.task import GivenStep, Truth
from harness.defaults import PARSE_RETRIES
from harness.errors import InvalidReply
from harness.model import (
    JSON,
    Block,
    Card,
    Chart,
    Completion,
    Heading,
    Page,
    Paragraph,
    Quote,
    Series,
    Table,
    Tags,
    Tile,
)

WITHOUT_POSTS = "Posts are left out, but personas, reasoning and replies may quote them."
KINDS = {"Error_Peer": "peer", "Error_Viral": "viral", "Error_Decay": "decayed", "Error_Random": "random"}
"""Metric of a kind of distractors -> what a tag of it is called on a page."""


def page(data: JSON) -> Page:
    of = data["coverage"]
    title = f"{called(data)} · StreamProfileBench, {PLATFORMS[data['subset']].name} ({data['subset']})"
    covered = f"{of['scored_users']} of {of['expected_users']} users are scored, {of['failed_users']} failed"
    missing = "" if of["complete"] else f"INCOMPLETE: {covered}"
    return Page(title, missing, tuple(_tiles(data)), tuple(_blocks(data)))


def _tiles(data: JSON) -> Iterator[Tile]:
    of = data["coverage"]
    for name in (F1, "Recall", "Precision"):
        found = data["metrics"][name]
        unit = "" if found["value"] is None else " %"
        yield Tile(name, summary.percent(found["value"]) + unit, f"95 % interval {summary.span(found['ci95'])}")
    yield Tile("users scored", str(of["scored_users"]), f"of {of['expected_users']}, over {of['scored_steps']} steps")


def _blocks(data: JSON) -> Iterator[Block]:
    yield Paragraph(f"Run {data['name']}, model {data['model']}, platform {data['subset']}.")
    yield from map(Paragraph, data["notes"])
    yield from summary.coverage(data)
    yield from summary.macro(data)
    yield _intervals("Means over users", {"mean": data["metrics"]}, NAMES)
    yield Heading("Distribution over users")
    yield from _distribution(data)
    yield from _curves(data)
    yield from summary.cold_start(data)
    parts = {"cold start": data["cold_start"], "later steps": data["persona_augmented"]}
    yield _intervals("Cold start and later steps", parts, (F1, *GAINS))
    yield Heading("Distractors")
    yield Paragraph(
        "The share of each kind of distractors in the pool that is predicted all the same; lower is better."
    )
    yield _intervals("Error rates by distractor", parts, ERRORS)
    yield from summary.forward_transfer(data)
    yield from summary.checks(data)
    yield Heading("What was run")
    yield Paragraph(summary.about_prompt(data))
    yield from summary.about_run(data["run"])
    yield from summary.footing(data)


def _intervals(title: str, parts: Mapping[str, JSON], names: Sequence[str]) -> Chart:
    """A row a metric, a dot a part."""
    series = tuple(
        Series(part, tuple(of[name]["value"] for name in names), *_bounds([of[name]["ci95"] for name in names]))
        for part, of in parts.items()
    )
    return Chart("intervals", f"{title}, with 95 % intervals", tuple(names), "%", "", series)


def _bounds(found: Sequence[Sequence[float] | None]) -> tuple[tuple[float | None, ...], tuple[float | None, ...]]:
    return tuple(one[0] if one else None for one in found), tuple(one[1] if one else None for one in found)


def _distribution(data: JSON) -> Iterator[Block]:
    edges = tuple(100 * number / BINS for number in range(BINS + 1))
    for name, counts in data["distribution"].items():
        users = sum(counts)
        yield Paragraph(
            f"{name} of each of {users} users; {counts[0]} of them have less than {100 / BINS:g} %, "
            f"{counts[-1]} at least {100 - 100 / BINS:g} %."
        )
        series = (Series("users", tuple(counts)),)
        yield Chart("histogram", f"{name} by user", edges, f"{name}, %", "users", series, percent=False)


def _curves(data: JSON) -> Iterator[Block]:
    """Each table with its pictures before it."""
    curves = iter((data["learning_curve"], data["cohort_curve"]))
    for block in summary.curves(data):
        if isinstance(block, Table):
            points = [point for point in next(curves) if summary.is_told(point)]
            yield _curve("Hits, with 95 % bands", points, (F1, "Recall_Novelty", "Recall_Stability"))
            yield _curve("Errors, with 95 % bands", points, ERRORS)
        yield block


def _curve(title: str, points: Sequence[JSON], names: Sequence[str]) -> Chart:
    """Bands are t-intervals over the users of each step."""
    series = tuple(
        Series(
            name,
            tuple(point["metrics"][name] for point in points),
            *_bounds([point["ci95"][name] for point in points]),
        )
        for name in names
    )
    return Chart("curve", title, tuple(point["step_id"] for point in points), "step", "%", series)


class UserCards:
    """Cards of users, by the settings of their run."""

    columns = ("steps", F1, "Recall", "invalid")
    user = "user"

    def __init__(self, run: JSON, posts: bool) -> None:
        self._retries = run.get("parse_retries", PARSE_RETRIES)
        self._posts = posts

    def mark(self, kind: str) -> bytes:
        return b'"outcome":"%s"' % kind.encode()

    def card(self, data: JSON, task: Task | None, replies: Sequence[Completion]) -> Card:
        steps = data["steps"]
        values = [step["metrics"] for step in steps if step["metrics"]]
        means = {name: _mean([of[name] for of in values]) for name in METRICS}
        f1 = harmonic(means["Recall_Novelty"], means["Recall_Stability"])
        invalid = sum(1 for step in steps if step["outcome"] != VALID)
        figures = (str(len(steps)), summary.percent(f1), summary.percent(means["Recall"]), str(invalid))
        hide, blocks = unnamed(data), self._blocks(steps, task, replies)
        return Card(str(data["user_id"]), figures, tuple(without_name(block, hide) for block in blocks))

    def missing(self, tasks: bool) -> str:
        kinds = "" if tasks else "The tasks were not at hand: what is wrong is not told by its kind. "
        return f"{kinds}{'' if self._posts and tasks else WITHOUT_POSTS}".strip()

    def together(self, records: Sequence[JSON]) -> tuple[Block, ...]:
        return ()

    def example(self, data: JSON, replies: Sequence[Completion], kind: str) -> str | None:
        steps = data["steps"]
        by_step = _by_step(steps, replies, self._retries)
        pairs = zip(steps, by_step, strict=True) if by_step else ()
        text = next((reply_text(mine[-1]) for step, mine in pairs if step["outcome"] == kind), None)
        return None if text is None else unnamed(data)(text)

    def _blocks(self, steps: Sequence[JSON], task: Task | None, replies: Sequence[Completion]) -> Iterator[Block]:
        by_step = _by_step(steps, replies, self._retries)
        pairs = zip(task.given.steps, task.truth, strict=True) if task else ()
        parts = {step.step_id: (step, truth) for step, truth in pairs}
        for number, step in enumerate(steps):
            given, truth = parts.get(step["step_id"], (None, None))
            yield Heading(f"Step {step['step_id']}")
            if step["outcome"] != VALID:
                yield Paragraph(f"Invalid answer ({step['outcome']}): scored as an empty prediction.")
            yield Tags("Predicted", tuple((tag, _kind(tag, step, given, truth)) for tag in step["prediction"]))
            yield Tags("Missed", tuple(_missed(step, truth)))
            yield from _metrics(step)
            yield Quote("Persona summary after this step", step["persona_summary"] or "", open=True)
            if step["reasoning"]:
                yield Quote("Reasoning", step["reasoning"])
            for order, completion in enumerate(by_step[number] if by_step else (), 1):
                yield from quotes(completion, f"Reply {order}" if by_step and len(by_step[number]) > 1 else "Reply")
            if self._posts and given is not None:
                yield Quote("Posts", given.posts_text)
        if by_step is None and replies:
            yield Heading("Replies")
            yield Paragraph("In the order in which they came; which of them is whose step cannot be told.")
            for order, completion in enumerate(replies, 1):
                yield from quotes(completion, f"Reply {order}")


def _metrics(step: JSON) -> Iterator[Block]:
    values = step["metrics"]
    if not values:
        yield Paragraph("Not scored: the truth is empty.")
        return
    figures = [f"{name.replace('_', ' ')} {100 * value:.1f}" for name in METRICS if (value := values[name]) is not None]
    yield Paragraph(f"In %: {' · '.join(figures)}.")


def _kind(tag: str, step: JSON, given: GivenStep | None, truth: Truth | None) -> str:
    """What a predicted tag is, as finely as can be told without the task."""
    if truth is None or given is None:
        return "hit" if tag in step["ground_truth"] else "wrong"
    if tag in truth.new:
        return "hit, new"
    if tag in truth.kept:
        return "hit, kept"
    found = next((kind for name, kind in KINDS.items() if tag in truth.distractors.get(name, ())), None)
    return f"wrong, {found}" if found else "wrong" if tag in given.pool else "wrong, not in the pool"


def _missed(step: JSON, truth: Truth | None) -> Iterator[tuple[str, str]]:
    for tag in dict.fromkeys(step["ground_truth"]):
        if tag not in step["prediction"]:
            yield tag, "missed" if truth is None else "missed, new" if tag in truth.new else "missed, kept"


def _by_step(steps: Sequence[JSON], replies: Sequence[Completion], retries: int) -> list[list[Completion]] | None:
    """The replies of each step; None where it cannot be told, as after other settings were allowed.

    A step takes one reply, and one more for each that cannot be read, up to one that can, is final, or is the last.
    """
    left, found = iter(replies), []
    for step in steps:
        mine, outcome = [], ""
        for completion in islice(left, retries + 1):
            mine.append(completion)
            try:
                read(completion, ())
            except InvalidReply as error:
                outcome = error.kind
                if error.final:
                    break
            else:
                outcome = VALID
                break
        if outcome != step["outcome"]:
            return None
        found.append(mine)
    return None if next(left, None) else found


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
