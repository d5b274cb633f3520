"""Cards of users: each step with its tags, values, persona and replies (docs/design.md, sections 5
and 8).

The key is shown instead of a user's name. Prompts name the user, so personas, thoughts and replies
may. A name is found in any case and as JSON escapes it, since replies are JSON; of Latin letters
not within a longer word. Not covered: one character, which is a word like any other and names
nobody, and whatever a model makes of a name (a short form, another script).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from msgspec.structs import replace

from harness.benchmark import VALID, Cards, Metric, Task
from harness.benchmarks.rendering import numbered, quotes
from harness.benchmarks.streamprofile.metrics import F1, METRICS, harmonic
from harness.benchmarks.streamprofile.reply import read
from harness.benchmarks.streamprofile.task import StepInput, Truth
from harness.chat import ASKING
from harness.document import Block, Heading, Paragraph, Quote, Tags
from harness.errors import InvalidReply
from harness.model import JSON, Completion

KINDS = {
    "Error_Peer": "peer",
    "Error_Viral": "viral",
    "Error_Decay": "decayed",
    "Error_Random": "random",
}
"""Metric of a kind of distractors -> what a tag of it is called on a page."""

WORD = re.compile(r"[A-Za-z0-9_]")
WORD_START = r"(?:(?<![A-Za-z0-9_])|(?<=\\[bfnrtBFNRT])|(?<=\\[uU][0-9A-Fa-f]{4}))"
"""Where a word can begin: the letters of an escape before it are not part of it."""
WORD_END = r"(?![A-Za-z0-9_])"


@dataclass(frozen=True)
class UserCards(Cards):
    """`retries` is how often a step asked again for a reply that could not be read."""

    columns = ("steps", F1, "Recall", "invalid")
    private = "Posts"
    retries: int = ASKING.parse_retries

    def figures(self, record: JSON) -> tuple[str, ...]:
        share = Metric("share")
        steps = record["steps"]
        f1 = harmonic(_mean(steps, "Recall_Novelty"), _mean(steps, "Recall_Stability"))
        invalid = sum(step["outcome"] != VALID for step in steps)
        return (
            str(len(steps)),
            share.text(f1),
            share.text(_mean(steps, "Recall")),
            str(invalid),
        )

    def card(
        self, record: JSON, task: Task | None, replies: Sequence[Completion]
    ) -> Iterator[Block]:
        """Yield a user's blocks, without the user's name."""
        hide = unnamed(record)
        for block in _blocks(record["steps"], task, replies, self.retries):
            if isinstance(block, Quote):
                block = replace(block, text=hide(block.text))
            elif isinstance(block, Tags):
                # Users use their own names as tags.
                tags = [(hide(tag), kind) for tag, kind in block.tags]
                block = replace(block, tags=tuple(tags))

            yield block

    def example(self, record: JSON, replies: Sequence[Completion], kind: str) -> str | None:
        """Return the last reply of the first step with an invalid answer of this kind, None if
        unknown."""
        steps = record["steps"]
        replies_by_step = _replies_by_step(steps, replies, self.retries)
        if replies_by_step is None:
            return None

        for step, step_replies in zip(steps, replies_by_step, strict=True):
            if step["outcome"] == kind:
                return unnamed(record)(step_replies[-1].shown)

        return None


def unnamed(data: JSON) -> Callable[[str], str]:
    """Return a function that replaces the name in a record by the key."""
    username = data.get("username")
    if not isinstance(username, str):
        return str

    name = username.strip()
    # One character is a word like any other.
    if len(name) < 2:
        return str

    spellings = (
        name,
        json.dumps(name, ensure_ascii=False)[1:-1],
        json.dumps(name)[1:-1],
    )
    pattern = re.compile("|".join(map(_word_pattern, dict.fromkeys(spellings))))
    key = str(data["user_id"])
    # A function, since a backslash in a replacement string would be an escape.
    return lambda text: pattern.sub(lambda _: key, text)


def _word_pattern(name: str) -> str:
    # Only the name ignores case: classes that ignore case take long to compile.
    pattern = f"(?i:{re.escape(name)})"
    if WORD.match(name[0]):
        pattern = WORD_START + pattern
    if WORD.match(name[-1]):
        pattern += WORD_END
    return pattern


def _blocks(
    steps: Sequence[JSON],
    task: Task | None,
    replies: Sequence[Completion],
    retries: int,
) -> Iterator[Block]:
    replies_by_step = _replies_by_step(steps, replies, retries)
    task_steps: dict[int, tuple[StepInput, Truth]] = {}
    if task:
        for step_input, truth in zip(task.given.steps, task.truth, strict=True):
            task_steps[step_input.step_id] = (step_input, truth)

    for number, step in enumerate(steps):
        yield Heading(f"Step {step['step_id']}")
        if step["outcome"] != VALID:
            yield Paragraph(f"Invalid answer ({step['outcome']}): scored as an empty prediction.")

        task_step = task_steps.get(step["step_id"])
        yield from _tags(step, task_step)
        yield from _metrics(step)
        yield Quote(
            "Persona summary after this step",
            step["persona_summary"] or "",
            open=True,
        )
        if step["reasoning"]:
            yield Quote("Reasoning", step["reasoning"])

        if replies_by_step:
            yield from numbered(replies_by_step[number])

        if task_step:
            yield Quote("Posts", task_step[0].posts_text, private=True)

    if replies_by_step is None and replies:
        yield Heading("Replies")
        yield Paragraph(
            "In the order in which they came; it is unknown which step each belongs to."
        )
        for number, completion in enumerate(replies, 1):
            yield from quotes(completion, f"Reply {number}")


def _metrics(step: JSON) -> Iterator[Block]:
    values = step["metrics"]
    if not values:
        yield Paragraph("Not scored: the truth is empty.")
        return

    figures = []
    for name in METRICS:
        if values[name] is not None:
            figures.append(f"{name.replace('_', ' ')} {100 * values[name]:.1f}")

    yield Paragraph(f"In %: {' · '.join(figures)}.")


def _tags(step: JSON, task_step: tuple[StepInput, Truth] | None) -> Iterator[Block]:
    """Yield the predicted and the missed tags, each with its kind if the task is there."""
    true_tags = dict.fromkeys(step["ground_truth"])
    predicted = []
    for tag in step["prediction"]:
        kind = "hit" if tag in true_tags else "wrong"
        if task_step:
            kind = _kind(tag, *task_step)

        predicted.append((tag, kind))

    missed = []
    for tag in true_tags:
        if tag in step["prediction"]:
            continue

        kind = "missed"
        if task_step:
            kind = "missed, new" if tag in task_step[1].new_tags else "missed, kept"

        missed.append((tag, kind))

    yield Tags("Predicted", tuple(predicted))
    yield Tags("Missed", tuple(missed))


def _kind(tag: str, step: StepInput, truth: Truth) -> str:
    if tag in truth.new_tags:
        return "hit, new"

    if tag in truth.kept_tags:
        return "hit, kept"

    for name, kind in KINDS.items():
        if tag in truth.distractors.get(name, ()):
            return f"wrong, {kind}"

    if tag in step.pool:
        return "wrong"

    return "wrong, not in the pool"


def _replies_by_step(
    steps: Sequence[JSON], replies: Sequence[Completion], retries: int
) -> list[list[Completion]] | None:
    """Return the replies of each step; None if that is unknown, as after other settings were
    allowed.

    A step takes one reply, and one more for each that cannot be read, up to one that can, is final,
    or is the last.
    """
    # The log has replies in the order in which they came, without their steps.
    remaining = iter(replies)
    replies_by_step = []
    for step in steps:
        step_replies = []
        outcome = ""
        for completion in islice(remaining, retries + 1):
            step_replies.append(completion)
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

        replies_by_step.append(step_replies)

    # Replies that no step took: which step they belong to is unknown.
    if next(remaining, None):
        return None

    return replies_by_step


def _mean(steps: Sequence[JSON], name: str) -> float | None:
    """Return the mean of a metric over the scored steps that have it."""
    values: list[float | None] = [step["metrics"][name] for step in steps if step["metrics"]]
    defined = [value for value in values if value is not None]
    if not defined:
        return None
    return sum(defined) / len(defined)
