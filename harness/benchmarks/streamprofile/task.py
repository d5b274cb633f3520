"""One line of a tasks file as a validated task. Fields as in docs/design.md, section 8.

Checks are plain comparisons of types, since every line of a file of any size passes through them.
Fields that are not named here are ignored; of those that may be absent, null is the same as absent.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NoReturn

import orjson

from harness.benchmarks.streamprofile.platforms import PLATFORMS
from harness.errors import BadInput
from harness.model import Where

ERROR_SETS = {"Error_Peer": "D_cluster", "Error_Viral": "D_viral", "Error_Decay": "D_decay", "Error_Random": "D_random"}
"""Metric name -> the list in `meta` that holds its distractors."""

STRINGS = frozenset({str})


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

    `listed` is new, then kept tags as the file lists them, which is what a record shows as the ground truth.
    """

    kept: frozenset[str]
    new: frozenset[str]
    distractors: dict[str, frozenset[str]]
    listed: tuple[str, ...]


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
        at = f"prediction_tasks[{number}]"
        if type(step) is not dict:
            _expected(where, at, "an object", step)
        given.append(_given_step(step, at, where, previous, total))
        truth.append(_truth(step, at, where))
        previous = given[-1].step_id
    return ProfileTask(
        key=str(user_id),
        subset=platform.lower(),
        platform=platform,
        given=Given(user_id, _text(data, "username", where), _text(data, "bio", where), tuple(given)),
        truth=tuple(truth),
        synthetic=data.get("synthetic") is True,
    )


def _given_step(step: dict[str, Any], at: str, where: Where, previous: int, user_total: int) -> GivenStep:
    step_id = step.get("step_id")
    if type(step_id) is not int or step_id <= previous:
        _expected(where, f"{at}.step_id", f"a whole number above {previous}", step_id)
    total = step.get("total_steps")
    if total is None:
        total = user_total
    if type(total) is not int or total < 1:
        _expected(where, f"{at}.total_steps", "a whole number from 1", total)
    posts = step.get("posts_text")
    if type(posts) is not str:
        _expected(where, f"{at}.posts_text", "a string", posts)
    return GivenStep(step_id, total, posts, tuple(_tags(step, "candidate_pool", at, where)))


def _truth(step: dict[str, Any], at: str, where: Where) -> Truth:
    told = step.get("ground_truth")
    if type(told) is not dict:
        _expected(where, f"{at}.ground_truth", "an object", told)
    meta = step.get("meta")
    if meta is None:
        meta = {}
    elif type(meta) is not dict:
        _expected(where, f"{at}.meta", "an object", meta)

    def tags(name: str, instead: str) -> list[str]:
        if meta.get(name) is None:
            return _tags(told, instead, f"{at}.ground_truth", where)
        return _tags(meta, name, f"{at}.meta", where)

    kept, new = tags("T_keep", "keep_tags"), tags("T_new", "new_tags")
    distractors = {
        metric: frozenset(_tags(meta, name, f"{at}.meta", where))
        for metric, name in ERROR_SETS.items()
        if meta.get(name) is not None
    }
    return Truth(frozenset(kept), frozenset(new), distractors, (*new, *kept))


def _text(data: dict[str, Any], name: str, where: Where) -> str:
    value = data.get(name)
    if value is None:
        return ""
    if type(value) is not str:
        _expected(where, name, "a string or null", value)
    return value


def _tags(holder: dict[str, Any], name: str, at: str, where: Where) -> list[str]:
    tags = holder.get(name)
    if type(tags) is not list:
        _expected(where, f"{at}.{name}", "a list of strings", tags)
    if not STRINGS.issuperset(map(type, tags)):
        odd = next(tag for tag in tags if type(tag) is not str)
        _expected(where, f"{at}.{name}", "a list of strings", odd, "one that holds ")
    return tags


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
