"""The words of the synthetic tasks, read from vocabulary.toml."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Any


@dataclass(frozen=True, slots=True)
class Topic:
    name: str
    scenes: tuple[str, ...]
    tags: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Voice:
    """How posts and bios of a platform read; vocabulary.toml explains the places in them."""

    singles: tuple[str, ...]
    pairs: tuple[str, ...]
    closings: tuple[str, ...]
    bios: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """A platform's words. `topic_of` gives a tag's index in `topics`; `hot` words trend and have no topic."""

    topics: tuple[Topic, ...]
    topic_of: Mapping[str, int]
    tags: tuple[str, ...]
    hot: tuple[str, ...]
    voice: Voice


def _topics(text: str) -> tuple[Topic, ...]:
    return tuple(_topic(paragraph) for paragraph in text.strip().split("\n\n"))


def _topic(paragraph: str) -> Topic:
    head, tags = paragraph.split("\n", 1)
    name, *scenes = head.split(" | ")
    return Topic(name, tuple(scenes), tuple(tags.split()))


def _vocabulary(words: Mapping[str, Any], shared: Mapping[str, Topic]) -> Vocabulary:
    topics = _topics(words["own"]) + tuple(shared[name] for name in words["shared"].split())
    return Vocabulary(
        topics=topics,
        topic_of={tag: number for number, topic in enumerate(topics) for tag in topic.tags},
        tags=tuple(tag for topic in topics for tag in topic.tags),
        hot=tuple(words["hot"].split()),
        voice=Voice(*(tuple(words[part]) for part in ("singles", "pairs", "closings", "bios"))),
    )


_DATA = tomllib.loads(resources.files(__package__).joinpath("vocabulary.toml").read_text(encoding="utf-8"))
_SHARED = {topic.name: topic for topic in _topics(_DATA["shared"])}

VOCABULARIES: Mapping[str, Vocabulary] = {
    platform: _vocabulary(words, _SHARED)
    for platform, words in _DATA.items()
    if isinstance(words, dict) and platform != "names"
}
HOT_TOPIC = Topic("热点", tuple(_DATA["hot_scenes"]), ())
"""What a post with a trending word and no topic of its own is written from."""

NAME_HEADS, NAME_TAILS = (tuple(_DATA["names"][part].split()) for part in ("heads", "tails"))
NAME_ENDS = tuple(_DATA["names"]["ends"])
