"""One line of a tasks file as a validated task. Fields as in docs/design.md, section 8.

Checks are plain comparisons of types, since every line of a file of any size passes through them.
Fields that are not named here are ignored; of those that may be absent, null is the same as absent.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn, TypeGuard

import orjson

from harness.benchmarks.streamprofile.platforms import PLATFORMS
from harness.errors import BadInput
from harness.model import Where

ERROR_SETS = {"Error_Peer": "D_cluster", "Error_Viral": "D_viral", "Error_Decay": "D_decay", "Error_Random": "D_random"}
"""Metric name -> the list in `meta` that holds its distractors."""

STRINGS = frozenset({str})
NO_META: dict[str, Any] = {}


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
    user_id: str | int
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


@dataclass(frozen=True, slots=True)
class ProfileTask:
    """`given` is for play, `truth` (a step each, same order) for measure alone."""

    key: str
    subset: str
    platform: str
    given: Given
    truth: tuple[Truth, ...]
    synthetic: bool = False


def parse(line: bytes, where: Where, subset: str | None = None) -> ProfileTask:
    """A validated task of `subset` (of any platform where none is given).

    Raises `BadInput` with file, line, field and what was expected.
    """
    try:
        data = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise BadInput(f"{where}: expected a JSON object, got what is not JSON ({error.msg})") from None
    if type(data) is not dict:
        raise BadInput(f"{where}: expected a JSON object, got {_kind(data)}")
    user_id = data.get("user_id")
    if not (type(user_id) is str and user_id) and type(user_id) is not int:
        _expected(where, "user_id", "a non-empty string or a whole number", user_id)
    platform = data.get("platform")
    if type(platform) is not str or platform.lower() not in ((subset,) if subset else PLATFORMS):
        _expected(where, "platform", subset or f"one of {', '.join(PLATFORMS)}", platform)
    steps = data.get("prediction_tasks")
    if type(steps) is not list or not steps:
        _expected(where, "prediction_tasks", "a list of at least one step", steps)
    total = data.get("total_steps")
    if type(total) is not int or total < 1:
        _expected(where, "total_steps", "a whole number from 1", total)
    given, truth, previous = [], [], 0
    for number, step in enumerate(steps):
        if type(step) is not dict:
            _expected(where, f"prediction_tasks[{number}]", "an object", step)
        given.append(_given_step(step, number, where, previous, total))
        truth.append(_truth(step, number, where))
        previous = given[-1].step_id
    return ProfileTask(
        key=str(user_id),
        subset=platform.lower(),
        platform=platform,
        given=Given(user_id, _text(data, "username", where), _text(data, "bio", where), tuple(given)),
        truth=tuple(truth),
        synthetic=data.get("synthetic") is True,
    )


def _given_step(step: dict[str, Any], number: int, where: Where, previous: int, user_total: int) -> GivenStep:
    step_id = step.get("step_id")
    if type(step_id) is not int or step_id <= previous:
        _expected(where, f"prediction_tasks[{number}].step_id", f"a whole number above {previous}", step_id)
    total = step.get("total_steps")
    if total is None:
        total = user_total
    if type(total) is not int or total < 1:
        _expected(where, f"prediction_tasks[{number}].total_steps", "a whole number from 1", total)
    posts = step.get("posts_text")
    if type(posts) is not str:
        _expected(where, f"prediction_tasks[{number}].posts_text", "a string", posts)
    pool = step.get("candidate_pool")
    if not _are_tags(pool):
        _not_tags(where, number, "", "candidate_pool", pool)
    return GivenStep(step_id, total, posts, tuple(pool))


def _truth(step: dict[str, Any], number: int, where: Where) -> Truth:
    told, meta = step.get("ground_truth"), step.get("meta")
    if type(told) is not dict:
        _expected(where, f"prediction_tasks[{number}].ground_truth", "an object", told)
    if meta is None:
        meta = NO_META
    elif type(meta) is not dict:
        _expected(where, f"prediction_tasks[{number}].meta", "an object", meta)
    distractors = {}
    for metric, name in ERROR_SETS.items():
        tags = meta.get(name)
        if tags is not None:
            if not _are_tags(tags):
                _not_tags(where, number, ".meta", name, tags)
            distractors[metric] = tags
    kept = _true_tags(meta, "T_keep", told, "keep_tags", number, where)
    return Truth(kept, _true_tags(meta, "T_new", told, "new_tags", number, where), distractors)


def _true_tags(
    meta: dict[str, Any], name: str, told: dict[str, Any], instead: str, number: int, where: Where
) -> list[str]:
    """The tags that `meta` lists, or where it lacks them the ground truth."""
    tags: object = meta.get(name)
    if tags is None:
        tags = told.get(instead)
        if not _are_tags(tags):
            _not_tags(where, number, ".ground_truth", instead, tags)
    elif not _are_tags(tags):
        _not_tags(where, number, ".meta", name, tags)
    return tags


def _are_tags(value: object) -> TypeGuard[list[str]]:
    return type(value) is list and STRINGS.issuperset(map(type, value))


def _not_tags(where: Where, number: int, part: str, name: str, value: object) -> NoReturn:
    """Names of places are made here and not before, since every list of every line passes by."""
    field = f"prediction_tasks[{number}]{part}.{name}"
    if type(value) is list:
        odd = next(tag for tag in value if type(tag) is not str)
        _expected(where, field, "a list of strings", odd, "one that holds ")
    _expected(where, field, "a list of strings", value)


def _text(data: dict[str, Any], name: str, where: Where) -> str:
    value = data.get(name)
    if value is None:
        return ""
    if type(value) is not str:
        _expected(where, name, "a string or null", value)
    return value


def _expected(where: Where, name: str, wanted: str, got: object, holding: str = "") -> NoReturn:
    raise BadInput(f"{where}: field {name}: expected {wanted}, got {holding}{_kind(got)}")


def _kind(value: object) -> str:
    """A short value as it is, else what kind of thing it is: values may be huge, or nested without end."""
    if value is None:
        return "nothing (missing or null)"
    if type(value) is list:
        return "a list" if value else "an empty list"
    if type(value) is dict:
        return "an object"
    if type(value) is str and len(value) > 40:
        return "a long string"
    return repr(value)
