"""One decoded line of a tasks file as a validated task. Fields as in docs/design.md, section 8.

Checks are plain comparisons of types, since every line of a file of any size passes through them.
Fields that are not named here are ignored; of those that may be absent, null is the same as absent.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from itertools import chain
from operator import itemgetter
from typing import NoReturn, TypeGuard

from harness.benchmark import Task
from harness.benchmarks.streamprofile.platforms import PLATFORMS
from harness.benchmarks.tasks import kind_of
from harness.errors import FieldError
from harness.model import JSON

ERROR_SETS = {"Error_Peer": "D_cluster", "Error_Viral": "D_viral", "Error_Decay": "D_decay", "Error_Random": "D_random"}
"""Metric name -> the list in `meta` that holds its distractors."""

INSTEAD = {"T_keep": "keep_tags", "T_new": "new_tags"}
"""List in `meta` -> list in `ground_truth` that stands for it where `meta` lacks it."""

TAG_LISTS = (*ERROR_SETS.values(), *INSTEAD)
IN_META = itemgetter(*TAG_LISTS)
ALL_LISTS = [list] * (1 + len(TAG_LISTS))
STRINGS = frozenset({str})
NO_META: JSON = {}

LARGEST_STEP = 2**31 - 1
"""Learning curves count in whole numbers of the machine's."""


@dataclass(frozen=True, slots=True)
class GivenStep:
    """What the model may see of a step. `pool` is in the file's order."""

    step_id: int
    total_steps: int
    posts_text: str
    pool: tuple[str, ...]

    @property
    def asked(self) -> int:
        """Number of tags asked for: a quarter of the pool, at least one, rounded half to even."""
        return max(1, round(0.25 * len(self.pool)))


@dataclass(frozen=True, slots=True)
class Given:
    """What a prompt is made of. `platform` is the tasks file's spelling of the subset."""

    user_id: str | int
    subset: str
    platform: str
    username: str
    bio: str
    steps: tuple[GivenStep, ...]


@dataclass(frozen=True, slots=True)
class Truth:
    """What scores a step: tags that are kept (K), new (N), and each kind of distractor by metric name.

    As the file lists them: `measure` makes sets, which tasks that are only validated never need.
    """

    kept: Collection[str]
    new: Collection[str]
    distractors: Mapping[str, Collection[str]]

    @property
    def listed(self) -> list[str]:
        """New, then kept tags, which is what a record shows as the ground truth."""
        return [*self.new, *self.kept]


def parse(line: JSON, subset: str | None = None) -> Task:
    """Return the validated task of a line of `subset` (of any platform where none is given).

    `given` is a `Given`, `truth` a tuple with a `Truth` for each step. Raise `FieldError`.
    """
    check(line, subset)
    steps = line["prediction_tasks"]
    return Task(
        line["user_id"],
        given=Given(
            line["user_id"],
            line["platform"].lower(),
            line["platform"],
            line.get("username") or "",
            line.get("bio") or "",
            tuple([_given_step(step, line["total_steps"]) for step in steps]),
        ),
        truth=tuple([_truth(step) for step in steps]),
        steps=len(steps),
    )


def _given_step(step: JSON, user_total: int) -> GivenStep:
    total = step.get("total_steps")
    pool = tuple(step["candidate_pool"])
    return GivenStep(step["step_id"], user_total if total is None else total, step["posts_text"], pool)


def _truth(step: JSON) -> Truth:
    truth, meta = step["ground_truth"], step.get("meta") or NO_META
    kept, new = meta.get("T_keep"), meta.get("T_new")
    return Truth(
        kept=truth["keep_tags"] if kept is None else kept,
        new=truth["new_tags"] if new is None else new,
        distractors={metric: tags for metric, name in ERROR_SETS.items() if (tags := meta.get(name)) is not None},
    )


def check(data: JSON, subset: str | None = None) -> None:
    """Validate every field of a decoded line. Raise `FieldError`."""
    user_id = data.get("user_id")
    if not (type(user_id) is str and user_id) and type(user_id) is not int:
        _expected("user_id", "a non-empty string or a whole number", user_id)
    platform = data.get("platform")
    if type(platform) is not str or platform.lower() not in ((subset,) if subset else PLATFORMS):
        _expected("platform", subset or f"one of {', '.join(PLATFORMS)}", platform)
    steps = data.get("prediction_tasks")
    if type(steps) is not list or not steps:
        _expected("prediction_tasks", "a list of at least one step", steps)
    total = data.get("total_steps")
    if type(total) is not int or total < 1:
        _expected("total_steps", "a whole number from 1", total)
    previous = 0
    for number, step in enumerate(steps):
        if type(step) is not dict:
            _expected(f"prediction_tasks[{number}]", "an object", step)
        previous = _check_step(step, number, previous)
    for name in ("username", "bio"):
        text = data.get(name)
        if text is not None and type(text) is not str:
            _expected(name, "a string or null", text)


def _check_step(step: JSON, number: int, previous: int) -> int:
    """Validates a step; returns its step_id."""
    step_id, truth = step.get("step_id"), step.get("ground_truth")
    if type(step_id) is not int or not previous < step_id <= LARGEST_STEP:
        too_large = type(step_id) is int and step_id > LARGEST_STEP
        wanted = f"a whole number above {previous}{f' and at most {LARGEST_STEP}' if too_large else ''}"
        _expected(f"prediction_tasks[{number}].step_id", wanted, step_id)
    total = step.get("total_steps")
    if total is not None and (type(total) is not int or total < 1):
        _expected(f"prediction_tasks[{number}].total_steps", "a whole number from 1", total)
    posts = step.get("posts_text")
    if type(posts) is not str:
        _expected(f"prediction_tasks[{number}].posts_text", "a string", posts)
    if type(truth) is not dict:
        _expected(f"prediction_tasks[{number}].ground_truth", "an object", truth)
    if not _has_all_lists(step):
        _check_lists(step, truth, number)
    return step_id


def _has_all_lists(step: JSON) -> bool:
    """Whether pool and `meta` are whole, as nearly every step's are: all tags in one go, for they are most of it."""
    try:
        lists = (step["candidate_pool"], *IN_META(step["meta"]))
    except (KeyError, TypeError):
        return False
    return [*map(type, lists)] == ALL_LISTS and STRINGS.issuperset(map(type, chain.from_iterable(lists)))


def _check_lists(step: JSON, truth: JSON, number: int) -> None:
    pool, meta = step.get("candidate_pool"), step.get("meta")
    if not _are_tags(pool):
        _not_tags(number, "", "candidate_pool", pool)
    if meta is None:
        meta = NO_META
    elif type(meta) is not dict:
        _expected(f"prediction_tasks[{number}].meta", "an object", meta)
    for name in TAG_LISTS:
        tags = meta.get(name)
        if tags is not None:
            if not _are_tags(tags):
                _not_tags(number, ".meta", name, tags)
        elif name in INSTEAD and not _are_tags(truth.get(INSTEAD[name])):
            _not_tags(number, ".ground_truth", INSTEAD[name], truth.get(INSTEAD[name]))


def _are_tags(value: object) -> TypeGuard[list[str]]:
    return type(value) is list and STRINGS.issuperset(map(type, value))


def _not_tags(number: int, part: str, name: str, value: object) -> NoReturn:
    """Names of places are made here and not before, since every list of every line passes by."""
    field = f"prediction_tasks[{number}]{part}.{name}"
    if type(value) is list:
        odd = next(tag for tag in value if type(tag) is not str)
        _expected(field, "a list of strings", odd, "one that holds ")
    _expected(field, "a list of strings", value)


def _expected(field: str, wanted: str, got: object, holding: str = "") -> NoReturn:
    raise FieldError(field, wanted, f"{holding}{kind_of(got)}")
