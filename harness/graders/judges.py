"""Ask a judge: grades by a rubric, and a preference between two answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from harness.chat import Chat
from harness.errors import InvalidReply
from harness.model import JSON

RUBRIC_PROMPT = """\
Grade an answer by each criterion below, with a whole number from {low} to {high}, where {high} is
best. Length alone is no merit.

[Criteria]
{criteria}

[Task]
{task}

[Answer]
{answer}

Reply as JSON: first "reason", one sentence, then the number for each criterion: {names}."""

PAIR_PROMPT = """\
Two answers to the same task follow. Decide which is better. Their order and their length are no
merits.

[Task]
{task}

[Answer 1]
{first}

[Answer 2]
{second}

Reply as JSON: {{"reason": "one sentence", "better": 1, 2, or 0 if neither is}}"""

PAIR_SCHEMA: JSON = {
    "type": "object",
    "properties": {"reason": {"type": "string"}, "better": {"type": "integer", "enum": [0, 1, 2]}},
    "required": ["reason", "better"],
    "additionalProperties": False,
}


@dataclass(frozen=True, slots=True)
class Rubric:
    """Criteria by name, each with its description, and the lowest and the highest grade."""

    criteria: Mapping[str, str]
    low: int = 1
    high: int = 5

    @property
    def schema(self) -> JSON:
        """Return the JSON schema of a reply, in the strict dialect."""
        grade = {"type": "integer", "enum": list(range(self.low, self.high + 1))}
        properties = {"reason": {"type": "string"}, **dict.fromkeys(self.criteria, grade)}
        return {
            "type": "object",
            "properties": properties,
            "required": list(properties),
            "additionalProperties": False,
        }

    async def grade(
        self, chat: Chat, task: str, answer: str, *, role: str = "judge"
    ) -> dict[str, int]:
        """Return the judge's grade of an answer by each criterion. Raise `InvalidReply` if the
        judge gives none after all retries; the user has then failed."""
        criteria = "\n".join(f"- {name}: {text}" for name, text in self.criteria.items())
        prompt = RUBRIC_PROMPT.format(
            low=self.low,
            high=self.high,
            criteria=criteria,
            task=task,
            answer=answer,
            names=", ".join(self.criteria),
        )
        return await chat.json(prompt, self._grades, self.schema, role=role)

    def _grades(self, reply: JSON) -> dict[str, int]:
        grades: dict[str, int] = {}
        for name in self.criteria:
            grade: Any = reply.get(name)
            # JSON's `true` is no grade, though it equals 1.
            if type(grade) is not int or not self.low <= grade <= self.high:
                why = f"{name}: expected a whole number from {self.low} to {self.high}"
                raise InvalidReply("no_grade", why)

            grades[name] = grade

        return grades


@dataclass(frozen=True, slots=True)
class Preference:
    """What a judge prefers, asked in both orders: `value` is 1 for the first answer, 0 for the
    second, and 0.5 for neither or for different ones. `consistent`: both orders gave the same."""

    value: float
    consistent: bool


async def prefer(
    chat: Chat, task: str, first: str, second: str, *, role: str = "judge"
) -> Preference:
    """Return which of two answers a judge prefers. It is asked twice, the second time with the
    answers in the other order: judges prefer a place, too. Raise `InvalidReply` as
    `Rubric.grade`."""
    better = await _better(chat, task, first, second, role)
    better_swapped = await _better(chat, task, second, first, role)
    # The first answer is the second one of the other order.
    if better_swapped != {0: 0, 1: 2, 2: 1}[better]:
        return Preference(0.5, consistent=False)

    return Preference({0: 0.5, 1: 1.0, 2: 0.0}[better], consistent=True)


async def _better(chat: Chat, task: str, first: str, second: str, role: str) -> int:
    prompt = PAIR_PROMPT.format(task=task, first=first, second=second)
    return await chat.json(prompt, _place, PAIR_SCHEMA, role=role)


def _place(reply: JSON) -> int:
    place: Any = reply.get("better")
    if type(place) is not int or place not in (0, 1, 2):
        raise InvalidReply("no_preference", "better: expected 1, 2 or 0")
    return place
