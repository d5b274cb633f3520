"""Baseline models: honest floors for a table of models, which read the prompt and nothing else.

They read text: post blocks (`[3] Content: ...` up to a line `Tags: a, b`), a candidate pool as a
JSON array of strings, the number of tags to predict, and their own earlier summary if the prompt
contains it. Only model, user messages and seed of the request (`run --seed`) decide the answer.
Source: docs/design.md, section 7.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any

import orjson

from harness.model import Baseline

CARRIED = 40
"""Number of tags that a summary carries to the next step at most, so that prompts do not grow with
the chain."""

PERSONA_HEADING = "## 此前的画像"
RECENT = "近期标签："
COUNTS = "标签频次："
NO_TAGS = "尚未见到标签。"
NO_POOL = "提示中没有候选标签（字符串的 JSON 数组），因此不作预测。"

_HEAD = re.compile(r"\[(\d{1,9})\][ \t]*Content:")
_SEPARATORS = re.compile(r"[,，、]")
_ASKED = re.compile(r"最可能使用的\s*(\d{1,9})\s*个")
_COUNTED = re.compile(r"(.+)×(\d{1,9})")
_STRING = r'"(?:[^"\\\x00-\x1f]|\\.)*+"'
_STRINGS = re.compile(rf"\[\s*{_STRING}(?:\s*,\s*{_STRING})*+\s*\]")


@dataclass(frozen=True, slots=True)
class Reading:
    """What a baseline reads in a prompt. `posts` holds the tags of each post, newest first; `pool`
    has no repeats."""

    text: str
    posts: tuple[tuple[str, ...], ...]
    persona: str
    pool: tuple[str, ...]
    asked: int


Opinion = tuple[str, Sequence[str], str]
"""A baseline's summary, the pool from most to least likely, and the reasoning."""


def _answer(
    baseline: Callable[[Reading, int], Opinion], messages: Sequence[Mapping[str, Any]], seed: int
) -> str:
    """Return the JSON text of one reply: `persona_summary`, `predicted_tags`, `reasoning`."""
    reading = read(
        "\n".join([message["content"] for message in messages if message["role"] == "user"])
    )
    summary, ranking, reasoning = baseline(reading, seed)
    tags, why = ranking[: reading.asked], reasoning if reading.pool else NO_POOL
    return orjson.dumps(
        {"persona_summary": summary, "predicted_tags": tags, "reasoning": why}
    ).decode()


def read(text: str) -> Reading:
    """Return the parts of a prompt, empty if it lacks them.

    The persona is the section under our prompt's heading; in another prompt it may be anywhere
    outside of posts.
    """
    posts, rest = _split_posts(text)
    _, headed, after = rest.partition(PERSONA_HEADING)
    listed = _pool(rest)
    asked = _ASKED.findall(text)
    return Reading(
        text=text,
        posts=posts,
        persona=after.partition("\n## ")[0] if headed else rest,
        pool=tuple(dict.fromkeys(listed)),
        asked=int(asked[-1]) if asked else max(1, round(0.25 * len(listed))),
    )


def _split_posts(text: str) -> tuple[tuple[tuple[str, ...], ...], str]:
    """Return the tags of each post, newest (highest number) first, and the text outside of
    posts."""
    numbered: list[tuple[int, tuple[str, ...]]] = []
    rest: list[str] = []
    number, post = 0, rest
    for line in text.split("\n"):
        head = _HEAD.match(line)
        if head:
            number, post = int(head[1]), []
        elif line.startswith("Tags:"):
            numbered.append((number, _split_tags(line[len("Tags:") :])))
            post = rest
        else:
            post.append(line)
    if post is not rest:  # a last post without a Tags line has no known end
        rest.extend(post)
    newest_first = sorted(
        enumerate(numbered), key=lambda entry: (entry[1][0], entry[0]), reverse=True
    )
    return tuple([tags for _, (_, tags) in newest_first]), "\n".join(rest)


def _split_tags(line: str) -> tuple[str, ...]:
    """Return the tags of one line, in order, without repeats."""
    return tuple(dict.fromkeys(tag for part in _SEPARATORS.split(line) if (tag := part.strip())))


def _pool(text: str) -> list[str]:
    """Return the longest JSON array of strings, the last of equals: texts have other brackets,
    prompts have examples.

    An array that is a field's value, as in an example of a reply, counts only if there is no other.
    """
    best: tuple[bool, int, list[str]] = (False, 0, [])
    for match in _STRINGS.finditer(text):
        try:
            tags: list[str] = orjson.loads(match[0])
        except orjson.JSONDecodeError:
            continue
        is_value = text[max(0, match.start() - 8) : match.start()].rstrip().endswith('":')
        if (not is_value, len(tags)) >= best[:2]:
            best = (not is_value, len(tags), tags)
    return best[2]


def _carried(persona: str, marker: str) -> tuple[str, ...]:
    return _split_tags(persona.partition(marker)[2].partition("\n")[0])


def _recency(reading: Reading, seed: int) -> Opinion:
    """Rank tags of the newest posts first, then those of the summary, then the pool in its
    order."""
    seen = list(
        dict.fromkeys([*chain.from_iterable(reading.posts), *_carried(reading.persona, RECENT)])
    )
    pool = frozenset(reading.pool)
    ranking = list(dict.fromkeys([*(tag for tag in seen if tag in pool), *reading.pool]))
    summary = RECENT + "、".join(seen[:CARRIED]) if seen else NO_TAGS
    return summary, ranking, "最近动态里的标签在前，其次是画像里记下的，不足时按候选顺序补齐。"


def _frequency(reading: Reading, seed: int) -> Opinion:
    """Rank the pool by number of posts with the tag, in this batch and in the summary; ties in pool
    order."""
    counts = Counter(chain.from_iterable(reading.posts))
    for entry in _carried(reading.persona, COUNTS):
        if counted := _COUNTED.fullmatch(entry):
            counts[counted[1]] += int(counted[2])
    ranking = sorted(reading.pool, key=lambda tag: -counts[tag])
    listed = "、".join([f"{tag}×{count}" for tag, count in counts.most_common(CARRIED)])
    return (
        COUNTS + listed if listed else NO_TAGS,
        ranking,
        "按标签至今出现的次数排列，次数相同时按候选顺序。",
    )


def _random(reading: Reading, seed: int) -> Opinion:
    """Shuffle the pool, by seed and prompt. Only `Random.random` gives the same numbers in every
    Python."""
    rng = random.Random(f"{seed}\n{reading.text}")
    return (
        "随机基线，不读动态，没有画像。",
        sorted(reading.pool, key=lambda tag: rng.random()),
        "随机抽取。",
    )


def reader(text: str) -> str | None:
    """Return the baseline that answers a prompt for another model, None if the prompt has no
    candidates."""
    return "baseline/recency" if read(text).pool else None


BASELINES: Mapping[str, Baseline] = {
    "baseline/random": partial(_answer, _random),
    "baseline/recency": partial(_answer, _recency),
    "baseline/frequency": partial(_answer, _frequency),
}
