"""Play a run in disjoint parts, in processes or on machines of their own, and combine them (`run --part`, `merge`)."""

from __future__ import annotations

import operator
import re
from dataclasses import dataclass

from harness.errors import in_brief
from harness.feature import Command, Feature
from harness.option import option
from harness.store.manifest import PART


def _part(text: str) -> str:
    """Parse which part of how many, such as 2/4."""
    if not re.match(PART, text) or operator.gt(*map(int, text.split("/"))):
        raise ValueError(f"expected a part of so many, such as 2/4, got {in_brief(text)}")
    return text


@dataclass(frozen=True)
class Parts:
    """The part of the users that is played, such as `Parts("1/4")`."""

    part: str | None = option(
        None,
        "play the I-th of N disjoint parts of the users, in the folder NAME.partIofN; `merge` combines the parts; "
        "limits and rates are those of all parts together",
        unit="I/N",
        read=_part,
        own=True,
    )


FEATURE = Feature(
    "parts",
    commands={
        "merge": Command("harness.commands.merge.command", "combine the parts that `run --part` played into one run")
    },
    options={Parts: ("run",)},
    extension="harness.extensions.parts.part:Part",
)
