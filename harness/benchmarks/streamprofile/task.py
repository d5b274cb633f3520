"""Validate a line of a tasks file. Fields: docs/design.md, section 8.

Fields that are not declared here are ignored; of those with a default, null is the same as absent.
"""

from __future__ import annotations

import tomllib
from collections.abc import Collection, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from msgspec import Meta, Struct

from harness.benchmark import Task
from harness.benchmarks.tasks import kind_of, typed
from harness.errors import FieldError
from harness.model import JSON


@dataclass(frozen=True, slots=True)
class Platform:
    """`context` is what a model must know to read a user's posts."""

    name: str
    context: str


_DATA = tomllib.loads(Path(__file__).with_name("platforms.toml").read_text(encoding="utf-8"))
PLATFORMS = {subset: Platform(**fields) for subset, fields in _DATA.items()}
"""Subset -> its platform: the five of platforms.toml."""
ERROR_SETS = {
    "Error_Peer": "D_cluster",
    "Error_Viral": "D_viral",
    "Error_Decay": "D_decay",
    "Error_Random": "D_random",
}
"""Metric name -> the list in `meta` that holds its distractors."""

FALLBACKS = {"T_keep": "keep_tags", "T_new": "new_tags"}
"""List of `meta` -> the list of `ground_truth` that replaces it where it is missing."""

MAX_STEP_ID = 2**31 - 1
"""Learning curves hold a step_id in numpy's integers, which have 32 bits on some machines."""

Positive = Annotated[int, Meta(ge=1)]
Tags = list[str]


class _TagSets(Struct, gc=False):
    T_keep: Tags | None = None
    T_new: Tags | None = None
    D_decay: Tags | None = None
    D_cluster: Tags | None = None
    D_viral: Tags | None = None
    D_random: Tags | None = None


class _GroundTruth(Struct, gc=False):
    # Not typed: files that have `meta` may hold anything here, so `check` looks only at what it
    # needs.
    keep_tags: Any = None
    new_tags: Any = None


class _Step(Struct, gc=False):
    step_id: Annotated[int, Meta(ge=1, le=MAX_STEP_ID)]
    posts_text: str
    candidate_pool: tuple[str, ...]
    ground_truth: _GroundTruth
    meta: _TagSets | None = None
    total_steps: Positive | None = None


class UserLine(Struct):
    user_id: Annotated[str, Meta(min_length=1)] | int
    platform: str
    total_steps: Positive
    prediction_tasks: Annotated[list[_Step], Meta(min_length=1)]
    username: str | None = None
    bio: str | None = None


class StepInput(Struct, frozen=True, dict=True):
    """What the model may see of a step. `pool` is in the file's order."""

    step_id: int
    total_steps: int
    posts_text: str
    pool: tuple[str, ...]

    @cached_property
    def tags(self) -> AbstractSet[str]:
        return frozenset(self.pool)

    @cached_property
    def asked(self) -> int:
        """The number of tags to predict: a quarter of the pool, at least one, rounded half to
        even."""
        return max(1, round(0.25 * len(self.pool)))


class UserInput(Struct, frozen=True):
    """What a prompt is made of. `platform` is the tasks file's spelling of the subset."""

    user_id: str | int
    subset: str
    platform: str
    username: str
    bio: str
    steps: tuple[StepInput, ...]


class TruthSets(NamedTuple):
    """K, N and G = K ∪ N of a step."""

    kept_tags: AbstractSet[str]
    new_tags: AbstractSet[str]
    all_tags: AbstractSet[str]


class Truth(Struct, frozen=True, dict=True):
    """What scores a step: the tags that are kept (K) and new (N), in the file's order, and each
    kind of distractors by metric name."""

    kept_tags: Collection[str]
    new_tags: Collection[str]
    distractors: Mapping[str, AbstractSet[str]]

    @cached_property
    def sets(self) -> TruthSets:
        kept_tags = frozenset(self.kept_tags)
        new_tags = frozenset(self.new_tags)
        return TruthSets(kept_tags, new_tags, kept_tags | new_tags)

    @property
    def listed(self) -> list[str]:
        """Return new, then kept tags: the ground truth as a record shows it."""
        return [*self.new_tags, *self.kept_tags]


def parse(line: JSON, subset: str | None = None) -> Task:
    """Return the validated task of a line of `subset` (None: of any platform).

    `given` is a `UserInput`, `truth` a tuple with a `Truth` for each step. Raise `FieldError`.
    """
    user = check(line, subset)
    steps = user.prediction_tasks
    user_input = UserInput(
        user_id=user.user_id,
        subset=user.platform.lower(),
        platform=user.platform,
        username=user.username or "",
        bio=user.bio or "",
        steps=tuple([_step_input(step, user.total_steps) for step in steps]),
    )
    return Task(
        user.user_id,  # type: ignore[arg-type]  # `tasks.parse` makes it text
        given=user_input,
        truth=tuple(map(_truth, steps)),
        steps=len(steps),
    )


def _step_input(step: _Step, total_steps: int) -> StepInput:
    return StepInput(
        step.step_id,
        step.total_steps or total_steps,
        step.posts_text,
        step.candidate_pool,
    )


def _truth(step: _Step) -> Truth:
    meta = step.meta or _TagSets()
    kept_tags, new_tags = meta.T_keep, meta.T_new
    if kept_tags is None:
        kept_tags = step.ground_truth.keep_tags

    if new_tags is None:
        new_tags = step.ground_truth.new_tags

    distractors = {}
    for metric, name in ERROR_SETS.items():
        tags = getattr(meta, name)
        if tags is not None:
            distractors[metric] = frozenset(tags)

    return Truth(kept_tags, new_tags, distractors)


def check(line: JSON, subset: str | None = None) -> UserLine:
    """Return a decoded line with every field validated. Raise `FieldError`."""
    user = typed(line, UserLine)
    platform = user.platform.lower()
    if platform not in PLATFORMS or platform != (subset or platform):
        expected = subset or f"one of {', '.join(PLATFORMS)}"
        raise FieldError("platform", expected, kind_of(user.platform))

    previous = 0
    for number, step in enumerate(user.prediction_tasks):
        field = f"prediction_tasks[{number}]"
        # Learning curves and the persona depend on the order of steps.
        if step.step_id <= previous:
            expected = f"a whole number above {previous}"
            raise FieldError(f"{field}.step_id", expected, kind_of(step.step_id))

        previous = step.step_id
        for name, fallback in FALLBACKS.items():
            if getattr(step.meta, name, None) is None:
                tags = getattr(step.ground_truth, fallback)
                typed(tags, Tags, f"{field}.ground_truth.{fallback}")

    return user
