"""The metrics of one step. Source: docs/design.md, section 8; sets and names as there.

P predicted tags, K kept, N new, G = K ∪ N, D one kind of distractors. `None` is an undefined value.
"""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet

from msgspec import Struct

from harness.benchmarks.streamprofile.task import (
    ERROR_SETS,
    StepInput,
    Truth,
    TruthSets,
)

GAINS = ("Precision", "Recall", "Recall_Novelty", "Recall_Stability")
ERRORS = tuple(ERROR_SETS)
METRICS = (*GAINS, *ERRORS)
F1 = "F1^NS"
NAMES = (*METRICS, F1)
DEFINITIONS = {
    "Precision": "share of predicted tags that are used next",
    "Recall": "share of tags used next that are predicted",
    "Recall_Novelty": "share of new tags used next that are predicted",
    "Recall_Stability": "share of kept tags used next that are predicted",
    "Error_Peer": "share of distractors of the truth's own cluster that are predicted",
    "Error_Viral": "share of distractors viral that day that are predicted",
    "Error_Decay": "share of tags not used again that are predicted",
    "Error_Random": "share of random distractors that are predicted",
    F1: "harmonic mean of a user's mean Recall_Novelty and mean Recall_Stability, 0 if both are 0",
}

Values = dict[str, float | None]
"""Metric name -> fraction, or None if undefined."""


class StepMetrics(Struct, frozen=True):
    """One step's values.

    `values` holds every name of `METRICS`; empty where G is empty, for such a step is not scored.
    `at_asked` is the same for the first `asked` tags; None if the prediction has no more.
    `ceiling` holds the names of `GAINS` (see `ceiling`); empty where G is empty.
    `out_of_pool` counts predicted tags that the pool does not have.
    """

    values: Values
    at_asked: Values | None
    ceiling: Values
    out_of_pool: int


def measure_step(truth: Truth, step: StepInput, prediction: Sequence[str]) -> StepMetrics:
    """Return the values of a prediction without repeated tags; tags outside the pool count in
    Precision, too."""
    predicted = frozenset(prediction)
    out_of_pool = len(predicted - step.tags)
    # Every answer to such a step would score 0, so it counts in no mean.
    if not truth.kept_tags and not truth.new_tags:
        return StepMetrics({}, None, {}, out_of_pool)

    at_asked = None
    if len(prediction) > step.asked:
        at_asked = _measure(truth, frozenset(prediction[: step.asked]))

    return StepMetrics(
        values=_measure(truth, predicted),
        at_asked=at_asked,
        ceiling=ceiling(truth.sets, step.tags, step.asked),
        out_of_pool=out_of_pool,
    )


def ceiling(truth: TruthSets, pool: AbstractSet[str], asked: int) -> Values:
    """Return the values of a stepwise oracle, which answers with exactly `asked` tags, from the
    pool.

    What it maximises is the F1^NS of the step, so a user's F1^NS, which is of means over steps, can
    be higher. It takes as many true tags as it can, tags that are both kept and new first, and
    splits the others so that the step's F1^NS is highest; of equal splits the one with the highest
    sum of recalls, then with most kept.
    """
    new_tags = truth.new_tags & pool
    kept_tags = truth.kept_tags & pool
    hits = min(asked, len(new_tags | kept_tags))
    # Mostly there is room for every true tag of the pool.
    novelty = _overlap(truth.new_tags, new_tags)
    stability = _overlap(truth.kept_tags, kept_tags)
    if hits < len(new_tags | kept_tags):
        novelty, stability = _best_split(truth, new_tags, kept_tags, hits)

    return {
        "Precision": hits / asked,
        "Recall": hits / len(truth.all_tags),
        "Recall_Novelty": novelty,
        "Recall_Stability": stability,
    }


def _best_split(
    truth: TruthSets, new_tags: AbstractSet[str], kept_tags: AbstractSet[str], hits: int
) -> tuple[float | None, float | None]:
    """Return the recalls of the best choice of `hits` tags of the pool: of new and of kept tags."""
    in_both = len(new_tags & kept_tags)
    shared = min(hits, in_both)
    single = hits - shared
    max_new = min(single, len(new_tags) - in_both)
    max_kept = min(single, len(kept_tags) - in_both)
    recalls: list[tuple[float | None, float | None]] = []
    for new_count in range(single - max_kept, max_new + 1):
        new_hits = shared + new_count
        kept_hits = shared + single - new_count
        recalls.append(
            (_share(new_hits, len(truth.new_tags)), _share(kept_hits, len(truth.kept_tags)))
        )

    return max(recalls, key=_split_rank)


def _share(hits: int, total: int) -> float | None:
    if not total:
        return None
    return hits / total


def _split_rank(
    recalls: tuple[float | None, float | None],
) -> tuple[float, float]:
    novelty, stability = recalls
    return harmonic(novelty, stability) or 0.0, (novelty or 0.0) + (stability or 0.0)


def harmonic(novelty: float | None, stability: float | None) -> float | None:
    """Return F1^NS of a novelty and a stability: 0 if both are 0, None if either is None."""
    if novelty is None or stability is None:
        return None
    if novelty + stability == 0:
        return 0.0
    return 2 * novelty * stability / (novelty + stability)


def _measure(truth: Truth, predicted: AbstractSet[str]) -> Values:
    """Return every value of `METRICS`."""
    sets = truth.sets
    values: Values = {
        # An empty prediction is wrong, not undefined: otherwise silence would raise the mean.
        "Precision": _overlap(predicted, sets.all_tags) or 0.0,
        "Recall": _overlap(sets.all_tags, predicted),
        "Recall_Novelty": _overlap(sets.new_tags, predicted),
        "Recall_Stability": _overlap(sets.kept_tags, predicted),
    }
    for name in ERRORS:
        values[name] = _overlap(truth.distractors.get(name), predicted)

    return values


def _overlap(tags: AbstractSet[str] | None, others: AbstractSet[str]) -> float | None:
    """Return the share of `tags` that `others` holds; None where there are no tags."""
    if not tags:
        return None
    return _share(len(tags & others), len(tags))
