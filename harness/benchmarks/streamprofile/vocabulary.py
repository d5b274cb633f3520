"""The words of the synthetic tasks, read from vocabulary.toml."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Topic:
    name: str
    scenes: Sequence[str]
    tags: Sequence[str]


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """A platform's words. `topic_of` is the index of a tag's topic; `hot` words trend and have no topic.

    The other fields are patterns of posts and bios; vocabulary.toml explains the places in them.
    """

    topics: Sequence[Topic]
    topic_of: Mapping[str, int]
    tags: Sequence[str]
    hot: Sequence[str]
    singles: Sequence[str]
    pairs: Sequence[str]
    closings: Sequence[str]
    bios: Sequence[str]


def _topics(text: str) -> list[Topic]:
    heads_and_tags = (paragraph.split("\n", 1) for paragraph in text.strip().split("\n\n"))
    names_and_tags = ((head.split(" | "), tags.split()) for head, tags in heads_and_tags)
    return [Topic(name, scenes, tags) for (name, *scenes), tags in names_and_tags]


def _vocabulary(own: str, shared: str, hot: str, **patterns: Any) -> Vocabulary:
    topics = [*_topics(own), *(_SHARED[name] for name in shared.split())]
    topic_of = {tag: number for number, topic in enumerate(topics) for tag in topic.tags}
    return Vocabulary(topics, topic_of, [tag for topic in topics for tag in topic.tags], hot.split(), **patterns)


_DATA = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
_SHARED = {topic.name: topic for topic in _topics(_DATA.pop("shared"))}
HOT_TOPIC = Topic("热点", _DATA.pop("hot_scenes"), ())
"""What a post with a trending word and no topic of its own is written from."""

_NAMES = _DATA.pop("names")
NAME_HEADS, NAME_TAILS, NAME_ENDS = _NAMES["heads"].split(), _NAMES["tails"].split(), _NAMES["ends"]
VOCABULARIES: Mapping[str, Vocabulary] = {platform: _vocabulary(**words) for platform, words in _DATA.items()}
