"""The metrics of one step. Source: docs/design.md, section 8; sets and names as there.

P predicted tags, K kept, N new, G = K ∪ N, D one kind of distractors. `None` is an undefined value.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet

from msgspec import Struct

from harness.benchmarks.streamprofile.task import ERROR_SETS, GivenStep, Sets, Truth

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


def measure_step(truth: Truth, step: GivenStep, prediction: Sequence[str]) -> StepMetrics:
    """Return the values of a prediction without repeated tags; tags outside the pool count in
    Precision, too."""
    pool, predicted, asked = step.tags, frozenset(prediction), step.asked
    out_of_pool = len(predicted - pool)
    if not truth.kept and not truth.new:
        return StepMetrics({}, None, {}, out_of_pool)
    sets, wrong = truth.sets, truth.distractors
    return StepMetrics(
        values=_measure(sets, wrong, predicted),
        at_asked=_measure(sets, wrong, frozenset(prediction[:asked]))
        if len(prediction) > asked
        else None,
        ceiling=ceiling(sets, pool, asked),
        out_of_pool=out_of_pool,
    )


def ceiling(truth: Sets, pool: AbstractSet[str], asked: int) -> Values:
    """Return the values of a stepwise oracle, which answers with exactly `asked` tags, from the
    pool.

    What it maximises is the F1^NS of the step, so a user's F1^NS, which is of means over steps, can
    be higher. It takes as many true tags as it can, tags that are both kept and new first, and
    splits the rest so that the step's F1^NS is highest; of equal splits the one with the highest
    sum of recalls, then with most kept.
    """
    new, kept = truth.new & pool, truth.kept & pool
    both = len(new & kept)
    hits = min(asked, len(new) + len(kept) - both)
    novelty: float | None
    stability: float | None
    if hits == len(truth.true):  # it has room for all of them
        novelty, stability = 1.0 if new else None, 1.0 if kept else None
    else:
        shared = min(hits, both)
        rest = hits - shared
        most_new, most_kept = min(rest, len(new) - both), min(rest, len(kept) - both)
        recalls = (
            (_share(shared + taken, len(truth.new)), _share(shared + rest - taken, len(truth.kept)))
            for taken in range(rest - most_kept, most_new + 1)
        )
        novelty, stability = max(
            recalls,
            key=lambda pair: (harmonic(*pair) or 0.0, sum(recall or 0.0 for recall in pair)),
        )
    return {
        "Precision": hits / asked,
        "Recall": hits / len(truth.true),
        "Recall_Novelty": novelty,
        "Recall_Stability": stability,
    }


def harmonic(a: float | None, b: float | None) -> float | None:
    """Return F1^NS of a novelty and a stability: 0 if both are 0, None if either is None."""
    if a is None or b is None:
        return None
    return 2 * a * b / (a + b) if a + b > 0 else 0.0


def _measure(
    truth: Sets, wrong: Mapping[str, AbstractSet[str]], predicted: AbstractSet[str]
) -> Values:
    """Return every value of `METRICS`; `wrong` holds the kinds of D by metric."""
    hits = len(predicted & truth.true)
    values: Values = {
        "Precision": hits / len(predicted) if predicted else 0.0,
        "Recall": hits / len(truth.true),
        "Recall_Novelty": _share(len(predicted & truth.new), len(truth.new)),
        "Recall_Stability": _share(len(predicted & truth.kept), len(truth.kept)),
    }
    for name in ERRORS:
        values[name] = len(predicted & kind) / len(kind) if (kind := wrong.get(name)) else None
    return values


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None
