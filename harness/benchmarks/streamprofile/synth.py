"""Synthetic StreamProfileBench tasks of any size. Source: docs/design.md, section 8, for form and
pool rule.

A user has a few topics of interest and favourite tags in each. From batch to batch tags stay,
return, emerge from those topics or are picked up from the day's trends, and now and then one topic
gives way to another. So the newest posts predict stability well, and the history (a persona)
predicts some of the novelty.

Only `Random.random()` is called: Python guarantees its sequence across versions, and that of no
other method, so a file has the same bytes on every machine.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from itertools import chain
from pathlib import Path
from random import Random
from typing import NamedTuple, TypeVar

import orjson

from harness.errors import BadInput
from harness.model import JSON

T = TypeVar("T")

MAX_STEPS = 40
MAX_TAGS = 14
"""Most tags of a batch, hence the largest ground truth; a pool of 50 always has room for it."""
POOL_SMALLEST, POOL_LARGEST = 10, 50
FIRST_DAY, START_DAYS = date(2025, 1, 1).toordinal(), 180
CLUSTER_SHARE, VIRAL_SHARE, DECAY_SHARE = 0.3, 0.2, 0.3
"""Of a pool's distractors; what is left, and what a kind that runs out leaves, is random."""


@dataclass(frozen=True, slots=True)
class Topic:
    name: str
    scenes: Sequence[str]
    tags: Sequence[str]


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """A platform's words. `topic_index` is by tag; `hot` words trend and have no topic.

    The other fields are patterns of posts and bios; vocabulary.toml explains the places in them.
    """

    topics: Sequence[Topic]
    topic_index: Mapping[str, int]
    tags: Sequence[str]
    hot: Sequence[str]
    singles: Sequence[str]
    pairs: Sequence[str]
    closings: Sequence[str]
    bios: Sequence[str]


def _topics(text: str) -> list[Topic]:
    topics = []
    for paragraph in text.strip().split("\n\n"):
        head, tags = paragraph.split("\n", 1)
        name, *scenes = head.split(" | ")
        topics.append(Topic(name, scenes, tags.split()))
    return topics


def _vocabulary(platform: JSON) -> Vocabulary:
    topics = _topics(platform["own"])
    topics += map(_SHARED.__getitem__, platform["shared"].split())
    tags: list[str] = []
    topic_index: dict[str, int] = {}
    for index, topic in enumerate(topics):
        tags += topic.tags
        topic_index |= dict.fromkeys(topic.tags, index)

    return Vocabulary(
        topics=topics,
        topic_index=topic_index,
        tags=tags,
        hot=platform["hot"].split(),
        singles=platform["singles"],
        pairs=platform["pairs"],
        closings=platform["closings"],
        bios=platform["bios"],
    )


_DATA = tomllib.loads(Path(__file__).with_name("vocabulary.toml").read_text(encoding="utf-8"))
_SHARED = {topic.name: topic for topic in _topics(_DATA.pop("shared"))}
HOT_TOPIC = Topic("热点", _DATA.pop("hot_scenes"), ())
"""What a post with a trending word and no topic of its own is written from."""

_NAMES = _DATA.pop("names")
NAME_HEADS, NAME_TAILS, NAME_ENDS = (
    _NAMES["heads"].split(),
    _NAMES["tails"].split(),
    _NAMES["ends"],
)
VOCABULARIES: Mapping[str, Vocabulary] = {
    platform: _vocabulary(data) for platform, data in _DATA.items()
}


def generate(platform: str, users: int, seed: int, mean_steps: float) -> Iterator[bytes]:
    """Return the lines of a tasks file, one a user, made one by one, each with its line break.

    User i depends on (seed, platform, i, mean_steps) alone, so a smaller file is a prefix of a
    larger one. `mean_steps` is in 1..40: the mean before chains are cut at 40; 1 gives every user
    exactly one step. Raise `BadInput` for `mean_steps` out of range.
    """
    if not 1 <= mean_steps <= MAX_STEPS:
        raise BadInput(f"steps: expected a mean from 1 to {MAX_STEPS}, got {mean_steps:g}")
    world = _World(platform, seed)
    return (
        orjson.dumps(_user(world, index, mean_steps), option=orjson.OPT_APPEND_NEWLINE)
        for index in range(users)
    )


class _Day(NamedTuple):
    text: str
    trending: Sequence[str]


class _World:
    """What all users of a platform share. Days are cached; there are fewer than 500."""

    def __init__(self, platform: str, seed: int) -> None:
        self.platform = platform
        self.vocabulary: Vocabulary = VOCABULARIES[platform]
        self._seed = seed
        self._days: dict[int, _Day] = {}

    def random(self, name: object) -> Random:
        return Random(f"{self._seed}/{self.platform}/{name}")

    def day(self, ordinal: int) -> _Day:
        if ordinal not in self._days:
            text = date.fromordinal(ordinal).isoformat()
            rng = self.random(text)
            trending = _sample(rng, self.vocabulary.hot, 10)
            trending += _sample(rng, self.vocabulary.tags, 10)
            self._days[ordinal] = _Day(text, trending)
        return self._days[ordinal]


class _Person:
    """A user's latent state; it moves on with every batch. `seen` holds the tags of all batches so
    far."""

    def __init__(self, world: _World, rng: Random) -> None:
        self.world = world
        self.rng = rng
        self.vocabulary = world.vocabulary
        topics = self.vocabulary.topics
        self.interests = _sample(rng, range(len(topics)), 2 + int(rng.random() * 3))
        self.size = 1 + 9.5 * rng.random()
        self.loyalty = 0.2 + 0.45 * rng.random()
        self.favourites = [_sample(rng, topics[topic].tags, 6) for topic in self.interests]
        self.seen: list[str] = []

    def next_batch(self, current: Sequence[str], day: _Day) -> list[str]:
        """Return the tags of the next batch, kept ones first; never empty."""
        self._drift()
        liked = set(chain.from_iterable(self.favourites))
        batch = []
        for tag in current:
            loyalty = self.loyalty - 0.2
            if tag in liked:
                loyalty = self.loyalty + 0.15

            if self.rng.random() < loyalty:
                batch.append(tag)

        size = int(self.size * (0.6 + 0.8 * self.rng.random()) + 0.5)
        size = min(MAX_TAGS, max(1, size))
        taken = set(current)
        # Limited, since a person with few interests may run out of tags.
        for _ in range(3 * size):
            if len(batch) >= size:
                break

            tag = self._emerging(day)
            if tag not in taken:
                taken.add(tag)
                batch.append(tag)

        batch = batch or [current[0]]
        # In the order of first use: a set would have another order in each process.
        self.seen.extend([tag for tag in batch if tag not in self.seen])
        return batch

    def _drift(self) -> None:
        rng = self.rng
        if rng.random() < 0.12:
            index = int(rng.random() * len(self.interests))
            topic = int(rng.random() * len(self.vocabulary.topics))
            if topic not in self.interests:
                self.interests[index] = topic
                self.favourites[index] = _sample(rng, self.vocabulary.topics[topic].tags, 6)

    def _emerging(self, day: _Day) -> str:
        rng = self.rng
        position = rng.random()
        if position < 0.3 and self.seen:
            return _pick(rng, self.seen)

        if position < 0.8:
            return _pick(rng, _pick(rng, self.favourites))

        if position < 0.93:
            topic = self.vocabulary.topics[_pick(rng, self.interests)]
            return _pick(rng, topic.tags)

        return _pick(rng, day.trending)


def _user(world: _World, index: int, mean_steps: float) -> JSON:
    rng = world.random(index)
    person = _Person(world, rng)
    head, tail, end = (_pick(rng, syllables) for syllables in (NAME_HEADS, NAME_TAILS, NAME_ENDS))
    user: JSON = {
        "user_id": f"synth-{world.platform}-{index + 1:07d}",
        "platform": world.platform,
        "username": head + tail + end,
        "synthetic": True,
    }
    # A bio is text, null or absent, as in real files.
    form = rng.random()
    if form < 0.6:
        first, second, *_ = (world.vocabulary.topics[topic].name for topic in person.interests)
        user["bio"] = _pick(rng, world.vocabulary.bios).format(t=first, u=second)
    elif form < 0.8:
        user["bio"] = None

    total = step_count(rng, mean_steps)
    user["total_steps"] = total
    user["prediction_tasks"] = _steps(person, total)
    return user


def step_count(rng: Random, mean: float) -> int:
    """Return the steps of a user, 1 to 40: 1 + a geometric number, with a far larger mean for a
    fifth of the users.

    The mixture has this mean; the cut at 40 takes some of it away (6 becomes 5.89).
    """
    factor = 0.65
    if rng.random() < 0.2:
        factor = 2.4

    extra = (mean - 1) * factor
    probability = extra / (1 + extra)
    steps = 1
    while steps < MAX_STEPS and rng.random() < probability:
        steps += 1

    return steps


def _steps(person: _Person, total: int) -> list[JSON]:
    world, rng = person.world, person.rng
    ordinal = FIRST_DAY + int(rng.random() * START_DAYS)
    day = world.day(ordinal)
    batch = person.next_batch((), day)
    steps = []
    for number in range(1, total + 1):
        ordinal += 1 + int(rng.random() * 7)
        target = world.day(ordinal)
        following = person.next_batch(batch, target)
        steps.append(
            {
                "step_id": number,
                "total_steps": total,
                "date_input": day.text,
                "date_target": target.text,
                "posts_text": _posts(person, batch),
                **_pool_and_truth(person, batch, following, target),
            }
        )
        day = target
        batch = following

    return steps


def _pool_and_truth(person: _Person, current: list[str], truth: list[str], day: _Day) -> JSON:
    """Return pool, ground truth and meta of a step; the pool is the disjoint union of the six lists
    in meta."""
    rng = person.rng
    vocabulary = person.vocabulary
    kept_tags = [tag for tag in truth if tag in current]
    new_tags = [tag for tag in truth if tag not in current]
    unused = [tag for tag in current if tag not in truth]
    size = min(POOL_LARGEST, max(POOL_SMALLEST, 4 * len(truth))) - len(truth)
    taken = {*current, *truth}
    # Tags that the user drops are the hardest distractors: they were just used.
    decay = _sample(rng, unused, int(size * DECAY_SHARE + 0.5))
    topics = {vocabulary.topic_index[tag] for tag in truth if tag in vocabulary.topic_index}
    near_tags: list[str] = []
    for topic in sorted(topics):
        near_tags += vocabulary.topics[topic].tags

    cluster = _fresh(rng, near_tags, int(size * CLUSTER_SHARE), taken)
    viral = _fresh(rng, day.trending, int(size * VIRAL_SHARE), taken)
    left = size - len(decay) - len(cluster) - len(viral)
    random = _fresh(rng, vocabulary.tags, left, taken)
    meta = {
        "T_keep": kept_tags,
        "T_new": new_tags,
        "D_decay": decay,
        "D_cluster": cluster,
        "D_viral": viral,
        "D_random": random,
    }
    pool = [*chain.from_iterable(meta.values())]
    return {
        "candidate_pool": _sample(rng, pool, len(pool)),
        "ground_truth": {
            "all_tags": truth,
            "new_tags": new_tags,
            "keep_tags": kept_tags,
        },
        "meta": meta,
    }


def _posts(person: _Person, tags: Sequence[str]) -> str:
    """Return posts, oldest first, with every tag of the batch at least once and no other."""
    rng = person.rng
    vocabulary = person.vocabulary
    groups = _groups(rng, vocabulary, tags)
    groups += [[_pick(rng, tags)] for _ in range(int(rng.random() * 3))]
    posts = []
    for number, group in enumerate(_sample(rng, groups, len(groups)), 1):
        topic = _topic(vocabulary, group[0])
        scene = _pick(rng, topic.scenes)
        closing = _pick(rng, vocabulary.closings)
        patterns = vocabulary.singles
        if len(group) > 1:
            patterns = vocabulary.pairs

        sentence = _pick(rng, patterns)
        text = sentence.format(a=group[0], b=group[:2][-1], t=topic.name, s=scene) + closing
        # The form of the published tasks, which baselines read.
        posts.append(f"[{number}] Content: {text}\nTags: {', '.join(group)}")

    return "\n".join(posts)


def _groups(rng: Random, vocabulary: Vocabulary, tags: Sequence[str]) -> list[list[str]]:
    """Return the tags in groups of one to three of the same topic, a post each."""
    groups: list[list[str]] = []
    last_topic = HOT_TOPIC
    room = 0
    for tag in sorted(tags, key=lambda tag: vocabulary.topic_index.get(tag, -1)):
        topic = _topic(vocabulary, tag)
        if room == 0 or topic is not last_topic:
            groups.append([])
            last_topic = topic
            room = 1 + int(rng.random() * 3)

        groups[-1].append(tag)
        room -= 1

    return groups


def _topic(vocabulary: Vocabulary, tag: str) -> Topic:
    index = vocabulary.topic_index.get(tag)
    if index is None:
        return HOT_TOPIC
    return vocabulary.topics[index]


def _pick(rng: Random, items: Sequence[T]) -> T:
    return items[int(rng.random() * len(items))]


def _sample(rng: Random, items: Sequence[T], count: int) -> list[T]:
    """Return `count` of the items (all, if there are fewer), in random order, each place at most
    once."""
    shuffled = list(items)
    size = len(shuffled)
    count = min(count, size)
    # Fisher-Yates, as far as needed: `Random.sample` may differ between versions of Python.
    for place in range(count):
        drawn = place + int(rng.random() * (size - place))
        shuffled[place], shuffled[drawn] = shuffled[drawn], shuffled[place]

    return shuffled[:count]


def _fresh(rng: Random, items: Sequence[str], count: int, taken: set[str]) -> list[str]:
    """Return `count` of the items that are not in `taken` (all such, if there are fewer), and add
    them to it."""
    fresh = _sample(rng, [tag for tag in items if tag not in taken], count)
    taken.update(fresh)
    return fresh
