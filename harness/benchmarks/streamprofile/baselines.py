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
from operator import itemgetter
from typing import Any

import orjson

from harness.model import Baseline

MAX_CARRIED_TAGS = 40
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
class ParsedPrompt:
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
    baseline: Callable[[ParsedPrompt, int], Opinion],
    messages: Sequence[Mapping[str, Any]],
    seed: int,
) -> str:
    """Return the JSON text of one reply: `persona_summary`, `predicted_tags`, `reasoning`."""
    texts = [message["content"] for message in messages if message["role"] == "user"]
    prompt = read("\n".join(texts))
    summary, ranking, reasoning = baseline(prompt, seed)
    if not prompt.pool:
        reasoning = NO_POOL

    answer = {
        "persona_summary": summary,
        "predicted_tags": ranking[: prompt.asked],
        "reasoning": reasoning,
    }
    return orjson.dumps(answer).decode()


def read(text: str) -> ParsedPrompt:
    """Return the parts of a prompt, empty if it lacks them.

    The persona is the section under our prompt's heading; in another prompt it may be anywhere
    outside of posts.
    """
    posts, outside = _split_posts(text)
    _, heading, section = outside.partition(PERSONA_HEADING)
    persona = outside
    if heading:
        persona = section.partition("\n## ")[0]

    pool = _pool(outside)
    asked = max(1, round(0.25 * len(pool)))
    stated = _ASKED.findall(text)
    if stated:
        asked = int(stated[-1])

    return ParsedPrompt(text, posts, persona, tuple(dict.fromkeys(pool)), asked)


def _split_posts(text: str) -> tuple[tuple[tuple[str, ...], ...], str]:
    """Return the tags of each post, newest (highest number) first, and the text outside of
    posts."""
    posts: list[tuple[int, tuple[str, ...]]] = []
    outside: list[str] = []
    number = 0
    lines = outside
    for line in text.split("\n"):
        head = _HEAD.match(line)
        if head:
            number = int(head[1])
            lines = []
        elif line.startswith("Tags:"):
            posts.append((number, _split_tags(line[len("Tags:") :])))
            lines = outside
        else:
            lines.append(line)

    # The end of a last post without a Tags line is unknown: its text may be the candidates.
    if lines is not outside:
        outside.extend(lines)

    # Of equal numbers the later post is the newer. Sorting is stable.
    posts.reverse()
    posts.sort(key=itemgetter(0), reverse=True)
    return tuple([tags for _, tags in posts]), "\n".join(outside)


def _split_tags(line: str) -> tuple[str, ...]:
    """Return the tags of one line, in order, without repeats."""
    tags = map(str.strip, _SEPARATORS.split(line))
    return tuple(dict.fromkeys(filter(None, tags)))


def _pool(text: str) -> list[str]:
    """Return the longest JSON array of strings, the last of equals: texts have other brackets,
    prompts have examples.

    An array that is a field's value, as in an example of a reply, counts only if there is no other.
    """
    pool: list[str] = []
    best_rank = (False, 0)
    for match in _STRINGS.finditer(text):
        try:
            tags: list[str] = orjson.loads(match[0])
        except orjson.JSONDecodeError:
            continue

        before_it = text[max(0, match.start() - 8) : match.start()].rstrip()
        rank = (not before_it.endswith('":'), len(tags))
        # Of equal arrays the last: examples come before the question.
        if rank >= best_rank:
            best_rank = rank
            pool = tags

    return pool


def _carried(persona: str, marker: str) -> tuple[str, ...]:
    return _split_tags(persona.partition(marker)[2].partition("\n")[0])


def _recency(prompt: ParsedPrompt, seed: int) -> Opinion:
    """Rank tags of the newest posts first, then those of the summary, then the pool in its
    order."""
    posted = chain.from_iterable(prompt.posts)
    seen = list(dict.fromkeys([*posted, *_carried(prompt.persona, RECENT)]))
    in_pool = filter(frozenset(prompt.pool).__contains__, seen)
    ranking = list(dict.fromkeys([*in_pool, *prompt.pool]))
    return (
        _summary(RECENT, seen[:MAX_CARRIED_TAGS]),
        ranking,
        "最近动态里的标签在前，其次是画像里记下的，不足时按候选顺序补齐。",
    )


def _summary(marker: str, entries: Sequence[str]) -> str:
    if not entries:
        return NO_TAGS
    return marker + "、".join(entries)


def _frequency(prompt: ParsedPrompt, seed: int) -> Opinion:
    """Rank the pool by number of posts with the tag, in this batch and in the summary; ties in pool
    order."""
    counts = Counter(chain.from_iterable(prompt.posts))
    for entry in _carried(prompt.persona, COUNTS):
        match = _COUNTED.fullmatch(entry)
        if match:
            counts[match[1]] += int(match[2])

    ranking = sorted(prompt.pool, key=counts.__getitem__, reverse=True)
    carried = counts.most_common(MAX_CARRIED_TAGS)
    return (
        _summary(COUNTS, [f"{tag}×{count}" for tag, count in carried]),
        ranking,
        "按标签至今出现的次数排列，次数相同时按候选顺序。",
    )


def _random(prompt: ParsedPrompt, seed: int) -> Opinion:
    """Shuffle the pool, by seed and prompt. Only `Random.random` gives the same numbers in every
    Python."""
    rng = random.Random(f"{seed}\n{prompt.text}")
    return (
        "随机基线，不读动态，没有画像。",
        sorted(prompt.pool, key=lambda tag: rng.random()),
        "随机抽取。",
    )


def reader(text: str) -> str | None:
    """Return the baseline that answers a prompt for another model, None if the prompt has no
    candidates."""
    if read(text).pool:
        return "baseline/recency"
    return None


BASELINES: Mapping[str, Baseline] = {
    "baseline/random": partial(_answer, _random),
    "baseline/recency": partial(_answer, _recency),
    "baseline/frequency": partial(_answer, _frequency),
}
