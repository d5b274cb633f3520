"""The chance level: what answers drawn at random from the pools of the same steps have on average.

For shares of hits it is exact: the mean of the hypergeometric distribution. For other metrics
answers are drawn. No request is sent. The user's key, the step and the draw's number decide every
draw, so neither the order of users, nor their grouping, nor the version of Python or numpy changes
a digit (docs/statistics.md, Chance level).
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from hashlib import blake2b
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from harness.benchmarks.streamprofile.task import StepInput, Truth
from harness.scoring.bootstrap import Array

DRAWS = 64
"""Answers to each step. For a sample of 2,000 users, the largest, they take less than a second."""

Urn = tuple[int, ...]
"""A step as random answers see it: the seed of its draws, and then numbers of tags: in its pool;
asked for; in its pool and only new, only kept, both; in the truth and new, kept, either."""


def urn(key: str, truth: Truth, step: StepInput) -> Urn:
    sets = truth.sets
    # Python's own hash differs between processes.
    identity = f"{key}\n{step.step_id}".encode("utf-8", "surrogatepass")
    new_tags = step.tags & sets.new_tags
    kept_tags = step.tags & sets.kept_tags
    return (
        int.from_bytes(blake2b(identity, digest_size=8).digest()),
        len(step.tags),
        step.asked,
        len(new_tags - kept_tags),
        len(kept_tags - new_tags),
        len(new_tags & kept_tags),
        len(sets.new_tags),
        len(sets.kept_tags),
        len(sets.all_tags),
    )


def expected(urns: Sequence[Urn]) -> Array:
    """Return the mean Precision, Recall, Recall_Novelty and Recall_Stability of random answers:
    steps x 4.

    Each tag of the pool is drawn with the same probability. NaN where undefined.
    """
    pool, asked, only_new, only_kept, in_both, new, kept_count, either = _columns(urns)
    probability = np.minimum(asked, pool) / np.maximum(pool, 1)
    true = only_new + only_kept + in_both
    hits = np.stack([true, true, only_new + in_both, only_kept + in_both], axis=1)
    divisors = np.stack([asked, either, new, kept_count], axis=1)
    with np.errstate(invalid="ignore", divide="ignore"):
        means: Array = probability[:, None] * hits / divisors

    return means


def _columns(urns: Sequence[Urn]) -> Array:
    """Return the numbers of tags: 8 x steps."""
    # numpy reads lists slowly, and buffers fast.
    counts = array("d", chain.from_iterable(urn[1:] for urn in urns))
    return np.frombuffer(counts).reshape(len(urns), -1).T


def drawn(urns: Sequence[Urn]) -> Array:
    """Return Precision, Recall, Recall_Novelty and Recall_Stability of each draw and step: DRAWS x
    steps x 4.

    Tags are drawn one after another, without replacement, in all draws and steps at once: the
    probability that a tag is of a kind is the kind's share of the tags that are left. NaN where
    undefined.
    """
    seeds = np.array([urn[0] for urn in urns], dtype=np.uint64)
    pool, asked, only_new, only_kept, in_both, new, kept_count, either = _columns(urns)
    # The tags that are left of the first kind, of the first two, and of all three: a draw below
    # such a bound lowers it.
    bounds = np.cumsum([only_new, only_kept, in_both], axis=0)[:, None]
    left = np.repeat(bounds, DRAWS, axis=1)
    for number in range(int(asked.max())):
        tags = np.maximum(pool - number, 0)
        position = _uniform(seeds, number) * tags
        # A step that asks for fewer tags draws no more: infinity is below no bound.
        position[:, number >= asked] = np.inf
        left -= position < left

    hits_new, hits_single, hits = bounds - left
    hits_both = hits - hits_single
    with np.errstate(invalid="ignore", divide="ignore"):
        shares = [
            hits / asked,
            hits / either,
            (hits_new + hits_both) / new,
            (hits - hits_new) / kept_count,
        ]

    return np.stack(shares, axis=2)


def _uniform(seeds: NDArray[np.uint64], number: int) -> Array:
    """Return a number from 0 to 1 for each draw and step (SplitMix64: Steele, Lea & Flood 2014).

    `seeds` are those of the steps; `number` counts the tags that were drawn before.
    """
    # Arithmetic is modulo 2**64; the constants are those of the paper.
    places = np.arange(DRAWS, dtype=np.uint64) + np.uint64(number * DRAWS + 1)
    mixed = seeds + places[:, None] * np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed ^= mixed >> np.uint64(31)
    # The upper 53 bits, as many as a float has.
    fractions: Array = (mixed >> np.uint64(11)).view(np.int64) * 2.0**-53
    return fractions
