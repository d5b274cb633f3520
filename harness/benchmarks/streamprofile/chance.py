"""The chance level: what answers drawn at random from the pools of the same steps have on average.

Shares of hits have it exactly, by the mean of the hypergeometric distribution. What is no such
share is drawn. No request is sent. Every draw is decided by the user's key, the step and its number
alone, so neither the order of users, nor their grouping, nor the version of Python or numpy changes
a digit (docs/statistics.md, Chance level).
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from hashlib import blake2b
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from harness.benchmarks.streamprofile.task import GivenStep, Truth
from harness.scoring.bootstrap import Array

DRAWS = 64
"""Answers to each step: of the 2,000 users that are drawn for at most, they take less than a
second."""

Urn = tuple[int, ...]
"""A step as random answers see it: the seed of its draws, the tags of its pool, how many are asked
for, how many of the pool are new alone, kept alone, and both, and how many tags are new, kept, and
either in the truth."""

Whole = NDArray[np.uint64]


def urn(key: str, truth: Truth, step: GivenStep) -> Urn:
    pool, sets = step.tags, truth.sets
    seed = int.from_bytes(
        blake2b(f"{key}\n{step.step_id}".encode("utf-8", "surrogatepass"), digest_size=8).digest()
    )
    new, kept = pool & sets.new, pool & sets.kept
    both = len(new & kept)
    inside = len(new) - both, len(kept) - both, both
    return seed, len(pool), step.asked, *inside, len(sets.new), len(sets.kept), len(sets.true)


def expected(urns: Sequence[Urn]) -> Array:
    """Return the mean Precision, Recall, Recall_Novelty and Recall_Stability of random answers:
    steps x 4.

    Each tag of the pool is drawn with the same probability. NaN where undefined.
    """
    pool, asked, *inside, new, kept, either = _columns(urns)
    only_new, only_kept, both = inside
    probability = np.minimum(asked, pool) / np.maximum(pool, 1)
    hits = np.stack([sum(inside), sum(inside), only_new + both, only_kept + both], axis=1)
    with np.errstate(invalid="ignore", divide="ignore"):
        found: Array = probability[:, None] * hits / np.stack([asked, either, new, kept], axis=1)
    return found


def _columns(urns: Sequence[Urn]) -> Array:
    counts = array("d", chain.from_iterable(urn[1:] for urn in urns))  # numpy reads lists slowly
    return np.frombuffer(counts).reshape(len(urns), -1).T


def drawn(urns: Sequence[Urn]) -> Array:
    """Return Precision, Recall, Recall_Novelty and Recall_Stability of each draw and step: DRAWS x
    steps x 4.

    Tags are drawn one after the other without putting them back, in all draws and steps at once: a
    tag is of a kind with the share that the kind has of the tags that are left. NaN where
    undefined.
    """
    seeds = np.array([one[0] for one in urns], dtype=np.uint64)
    pool, asked, *inside, new, kept, either = _columns(urns)
    # The tags that are left of the first kind, of the first two, and of all three: a draw below
    # such a bound lowers it.
    bounds = np.cumsum(inside, axis=0)
    left = [np.broadcast_to(bound, (DRAWS, len(urns))).copy() for bound in bounds]
    for number in range(int(asked.max())):
        tags = np.maximum(pool - number, 0)
        position = _uniform(seeds, number) * tags
        position[:, number >= asked] = np.inf
        for bound in left:
            bound -= position < bound
    first, first_two, hits = (bound - rest for bound, rest in zip(bounds, left, strict=True))
    only_new, only_kept, both = first, first_two - first, hits - first_two
    with np.errstate(invalid="ignore", divide="ignore"):
        shares = [hits / asked, hits / either, (only_new + both) / new, (only_kept + both) / kept]
    return np.stack(shares, axis=2)


def _uniform(seeds: Whole, number: int) -> Array:
    """Return a number from 0 to 1 for each draw and step (SplitMix64: Steele, Lea & Flood 2014)."""
    places = np.arange(DRAWS, dtype=np.uint64) + np.uint64(number * DRAWS + 1)
    mixed = seeds + places[:, None] * np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed ^= mixed >> np.uint64(31)
    found: Array = (mixed >> np.uint64(11)).view(np.int64) * 2.0**-53
    return found
