"""Play a run in disjoint parts, in processes or on machines of their own, and combine them (`run --part`, `merge`)."""

from __future__ import annotations

import argparse
import operator
import re

from harness.config import options
from harness.errors import in_brief
from harness.feature import Command, Feature
from harness.store.manifest import PART


def _part(text: str) -> str:
    """Parse which part of how many, such as 2/4."""
    if not re.match(PART, text) or operator.gt(*map(int, text.split("/"))):
        raise argparse.ArgumentTypeError(f"expected a part of so many, such as 2/4, got {in_brief(text)}")
    return text


def _options(command: str, parser: argparse.ArgumentParser) -> None:
    if command == "run":
        words = "play the I-th of N disjoint parts of the users, in the folder NAME.partIofN; `merge` combines the "
        words += "parts; limits and rates are those of all parts together"
        options.add(parser, "--part I/N", words, type=_part)


FEATURE = Feature(
    "parts",
    commands={
        "merge": Command("harness.features.parts.command", "combine the parts that `run --part` played into one run")
    },
    options=_options,
    is_on=lambda args: getattr(args, "part", None) is not None,
    extension="harness.features.parts.part:Part",
    per_call=frozenset({"part"}),
)
