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
PLATFORMS = {subset: Platform(**words) for subset, words in _DATA.items()}
"""The five, read from platforms.toml."""
ERROR_SETS = {
    "Error_Peer": "D_cluster",
    "Error_Viral": "D_viral",
    "Error_Decay": "D_decay",
    "Error_Random": "D_random",
}
"""Metric name -> the list in `meta` that holds its distractors."""

INSTEAD = {"T_keep": "keep_tags", "T_new": "new_tags"}
"""List of `meta` -> that of `ground_truth` which stands for it where it is missing."""

LARGEST_STEP = 2**31 - 1
"""Learning curves count in whole numbers of the machine's."""

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
    """`keep_tags` and `new_tags` replace `T_keep` and `T_new` that `meta` lacks; otherwise they are
    not looked at."""

    keep_tags: Any = None
    new_tags: Any = None


class _Step(Struct, gc=False):
    step_id: Annotated[int, Meta(ge=1, le=LARGEST_STEP)]
    posts_text: str
    candidate_pool: tuple[str, ...]
    ground_truth: _GroundTruth
    meta: _TagSets | None = None
    total_steps: Positive | None = None


class Line(Struct):
    user_id: Annotated[str, Meta(min_length=1)] | int
    platform: str
    total_steps: Positive
    prediction_tasks: Annotated[list[_Step], Meta(min_length=1)]
    username: str | None = None
    bio: str | None = None


class GivenStep(Struct, frozen=True, dict=True):
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


class Given(Struct, frozen=True):
    """What a prompt is made of. `platform` is the tasks file's spelling of the subset."""

    user_id: str | int
    subset: str
    platform: str
    username: str
    bio: str
    steps: tuple[GivenStep, ...]


class Sets(NamedTuple):
    """K, N and G = K ∪ N of a step."""

    kept: AbstractSet[str]
    new: AbstractSet[str]
    true: AbstractSet[str]


class Truth(Struct, frozen=True, dict=True):
    """What scores a step: tags that are kept (K), new (N), as the file lists them, and each kind of
    distractors by metric name."""

    kept: Collection[str]
    new: Collection[str]
    distractors: Mapping[str, AbstractSet[str]]

    @cached_property
    def sets(self) -> Sets:
        kept, new = frozenset(self.kept), frozenset(self.new)
        return Sets(kept, new, kept | new)

    @property
    def listed(self) -> list[str]:
        """Return new, then kept tags: the ground truth as a record shows it."""
        return [*self.new, *self.kept]


def parse(line: JSON, subset: str | None = None) -> Task:
    """Return the validated task of a line of `subset` (None: of any platform).

    `given` is a `Given`, `truth` a tuple with a `Truth` for each step. Raise `FieldError`.
    """
    user = check(line, subset)
    steps = user.prediction_tasks
    given = [
        GivenStep(
            step.step_id, step.total_steps or user.total_steps, step.posts_text, step.candidate_pool
        )
        for step in steps
    ]
    name, bio = user.username or "", user.bio or ""
    return Task(
        user.user_id,  # type: ignore[arg-type]  # `tasks.parse` makes it text
        given=Given(user.user_id, user.platform.lower(), user.platform, name, bio, tuple(given)),
        truth=tuple(map(_truth, steps)),
        steps=len(steps),
    )


def _truth(step: _Step) -> Truth:
    truth, meta = step.ground_truth, step.meta or _TagSets()
    return Truth(
        kept=truth.keep_tags if meta.T_keep is None else meta.T_keep,
        new=truth.new_tags if meta.T_new is None else meta.T_new,
        distractors={
            metric: frozenset(tags)
            for metric, name in ERROR_SETS.items()
            if (tags := getattr(meta, name)) is not None
        },
    )


def check(line: JSON, subset: str | None = None) -> Line:
    """Return a decoded line with every field validated. Raise `FieldError`."""
    user = typed(line, Line)
    if user.platform.lower() not in ((subset,) if subset else PLATFORMS):
        raise FieldError(
            "platform", subset or f"one of {', '.join(PLATFORMS)}", kind_of(user.platform)
        )
    previous = 0
    for number, step in enumerate(user.prediction_tasks):
        if step.step_id <= previous:
            field = f"prediction_tasks[{number}].step_id"
            raise FieldError(field, f"a whole number above {previous}", kind_of(step.step_id))
        previous, truth, meta = step.step_id, step.ground_truth, step.meta
        for name, instead in INSTEAD.items():
            if getattr(meta, name, None) is None:
                typed(
                    getattr(truth, instead),
                    Tags,
                    f"prediction_tasks[{number}].ground_truth.{instead}",
                )
    return user
