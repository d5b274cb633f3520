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
from harness.benchmarks.rendering import quotes
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

FIGURES = tuple((name, name.replace("_", " ")) for name in METRICS)
"""Metrics as values name them, and as a page does."""

WORD = re.compile(r"[A-Za-z0-9_]")
BEFORE = r"(?:(?<![A-Za-z0-9_])|(?<=\\[bfnrtBFNRT])|(?<=\\[uU][0-9A-Fa-f]{4}))"
"""Where a word can begin: the letters of an escape before it are not part of it."""
AFTER = r"(?![A-Za-z0-9_])"


@dataclass(frozen=True)
class UserCards(Cards):
    """`retries` is how often a step asked again for a reply that could not be read."""

    columns = ("steps", F1, "Recall", "invalid")
    private = "Posts"
    retries: int = ASKING.parse_retries

    def figures(self, record: JSON) -> tuple[str, ...]:
        steps, share = record["steps"], Metric("share")
        values = [step["metrics"] for step in steps if step["metrics"]]
        recall, novelty, stability = (
            _mean([of[name] for of in values])
            for name in ("Recall", "Recall_Novelty", "Recall_Stability")
        )
        invalid = sum(1 for step in steps if step["outcome"] != VALID)
        return (
            str(len(steps)),
            share.text(harmonic(novelty, stability)),
            share.text(recall),
            str(invalid),
        )

    def card(
        self, record: JSON, task: Task | None, replies: Sequence[Completion]
    ) -> Iterator[Block]:
        """Yield a user's blocks, without the user's name."""
        hide = unnamed(record)
        for block in _blocks(record["steps"], task, replies, self.retries):
            if isinstance(block, Quote):
                text = hide(block.text)
                yield block if text == block.text else replace(block, text=text)
            elif isinstance(block, Tags):
                yield replace(block, tags=tuple((hide(tag), kind) for tag, kind in block.tags))
            else:
                yield block

    def example(self, record: JSON, replies: Sequence[Completion], kind: str) -> str | None:
        """Return the last reply of the first step with an invalid answer of this kind, None if
        unknown."""
        steps = record["steps"]
        by_step = _by_step(steps, replies, self.retries)
        pairs = zip(steps, by_step, strict=True) if by_step else ()
        text = next((mine[-1].shown for step, mine in pairs if step["outcome"] == kind), None)
        return None if text is None else unnamed(record)(text)


def unnamed(data: JSON) -> Callable[[str], str]:
    """Return a function that replaces the name in a record by the key."""
    name = data.get("username")
    if not isinstance(name, str) or len(name := name.strip()) < 2:
        return str
    spelt = dict.fromkeys(
        (name, json.dumps(name, ensure_ascii=False)[1:-1], json.dumps(name)[1:-1])
    )
    found, key = re.compile("|".join(map(_whole, spelt))), str(data["user_id"])
    return lambda text: found.sub(lambda _: key, text)


def _whole(name: str) -> str:
    before, after = (
        edge if WORD.match(end) else "" for edge, end in ((BEFORE, name[0]), (AFTER, name[-1]))
    )
    return f"{before}(?i:{re.escape(name)}){after}"  # classes that ignore case take long to compile


def _blocks(
    steps: Sequence[JSON], task: Task | None, replies: Sequence[Completion], retries: int
) -> Iterator[Block]:
    by_step = _by_step(steps, replies, retries)
    pairs = zip(task.given.steps, task.truth, strict=True) if task else ()
    parts = {step.step_id: (step, truth) for step, truth in pairs}
    for number, step in enumerate(steps):
        given, truth = parts.get(step["step_id"], (None, None))
        yield Heading(f"Step {step['step_id']}")
        if step["outcome"] != VALID:
            yield Paragraph(f"Invalid answer ({step['outcome']}): scored as an empty prediction.")
        yield Tags(
            "Predicted", tuple((tag, _kind(tag, step, given, truth)) for tag in step["prediction"])
        )
        yield Tags("Missed", tuple(_missed(step, truth)))
        yield from _metrics(step)
        yield Quote("Persona summary after this step", step["persona_summary"] or "", open=True)
        if step["reasoning"]:
            yield Quote("Reasoning", step["reasoning"])
        for order, completion in enumerate(by_step[number] if by_step else (), 1):
            yield from quotes(
                completion, f"Reply {order}" if by_step and len(by_step[number]) > 1 else "Reply"
            )
        if given is not None:
            yield Quote("Posts", given.posts_text, private=True)
    if by_step is None and replies:
        yield Heading("Replies")
        yield Paragraph(
            "In the order in which they came; it is unknown which step each belongs to."
        )
        for order, completion in enumerate(replies, 1):
            yield from quotes(completion, f"Reply {order}")


def _metrics(step: JSON) -> Iterator[Block]:
    values = step["metrics"]
    if not values:
        yield Paragraph("Not scored: the truth is empty.")
        return
    figures = [
        f"{shown} {100 * value:.1f}"
        for name, shown in FIGURES
        if (value := values[name]) is not None
    ]
    yield Paragraph(f"In %: {' · '.join(figures)}.")


def _kind(tag: str, step: JSON, given: StepInput | None, truth: Truth | None) -> str:
    """Return what a predicted tag is: its kind if the task is there, else only whether it is a
    hit."""
    if truth is None or given is None:
        return "hit" if tag in step["ground_truth"] else "wrong"
    if tag in truth.new_tags:
        return "hit, new"
    if tag in truth.kept_tags:
        return "hit, kept"
    found = next(
        (kind for name, kind in KINDS.items() if tag in truth.distractors.get(name, ())), None
    )
    return (
        f"wrong, {found}" if found else "wrong" if tag in given.pool else "wrong, not in the pool"
    )


def _missed(step: JSON, truth: Truth | None) -> Iterator[tuple[str, str]]:
    for tag in dict.fromkeys(step["ground_truth"]):
        if tag not in step["prediction"]:
            yield (
                tag,
                "missed"
                if truth is None
                else "missed, new"
                if tag in truth.new_tags
                else "missed, kept",
            )


def _by_step(
    steps: Sequence[JSON], replies: Sequence[Completion], retries: int
) -> list[list[Completion]] | None:
    """Return the replies of each step; None if that is unknown, as after other settings were
    allowed.

    A step takes one reply, and one more for each that cannot be read, up to one that can, is final,
    or is the last.
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
