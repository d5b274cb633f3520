"""Whether `not separable from the best` keeps its word: simulated models on the same users, whose
order is known.

Prints the table of docs/statistics.md, Leaderboard: `python -m bench.ranking`. Of each data set:
whether the truly best model is among those that are not separable from the best, how many these
are, whether it is alone there, and whether it has the highest average.
"""

from __future__ import annotations

import argparse
from typing import NamedTuple

import numpy as np

from harness.benchmark import Benchmark, Metric
from harness.scoring.compared import Figures
from harness.scoring.differences import Side, Stratum, worse_than_best

SETS, MODELS, SEED, SWAPS = 1000, 14, 7, 1000


class Study(NamedTuple):
    """Describe data sets: each model's true mean is `step` below that of the one before; users of
    each platform."""

    name: str
    step: float
    users: tuple[int, ...]


STUDIES = (
    Study("equal", 0.0, (200,)),
    Study("equal", 0.0, (40,)),
    Study("equal", 0.0, (40, 60, 80, 100, 120)),
    Study("steps of 1 point", 0.01, (200,)),
    Study("steps of 3 points", 0.03, (200,)),
)


class Hits(Benchmark):
    """A benchmark of one share."""

    name = "hits"
    metrics = (Metric("hits"),)


FIGURES = Figures(Hits())  # type: ignore[abstract]


def answers(rng: np.random.Generator, users: int, step: float, subset: str) -> list[Side]:
    """Return each model's users: the share of hits of 2 to 80 predictions, easy or hard for all
    models."""
    ease, chances = (
        0.45 + 0.5 * rng.beta(2, 3, users),
        2 * np.minimum(rng.geometric(1 / 6, users), 40),
    )
    hits = (rng.binomial(chances, ease - step * model) / chances for model in range(MODELS))
    tasks = {str(user): "" for user in range(users)}
    rows = (np.column_stack([hit, np.ones(users)]) for hit in hits)
    return [Side("", subset, tasks, row, row, (), {}) for row in rows]


def one(study: Study, rng: np.random.Generator) -> tuple[bool, int, bool, bool]:
    """Return what the module's description lists, of one data set."""
    subsets = [
        answers(rng, users, study.step, str(number)) for number, users in enumerate(study.users)
    ]
    means = np.mean(
        [[side.contributions[:, 0].mean() for side in sides] for sides in subsets], axis=0
    )
    best, *others = np.argsort(-means).tolist()
    pairs = [
        [Stratum.of(sides[best], sides[other], FIGURES) for sides in subsets] for other in others
    ]
    worse = worse_than_best(pairs, FIGURES, "hits", SWAPS)
    separable = dict(zip((best, *others), (False, *worse), strict=True))
    left = MODELS - sum(worse)
    return not separable[0], left, best == 0 and left == 1, best == 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--sets", type=int, default=SETS, help=f"data sets of each study (default: {SETS})"
    )
    args = parser.parse_args()
    heads = "best not separated", "not separated", "best alone", "best on top"
    print(f"| {MODELS} models | users | {' | '.join(heads)} |")
    print("|---|---|---|---|---|---|")
    for number, study in enumerate(STUDIES):
        rng = np.random.default_rng([SEED, number])
        shares = np.mean([one(study, rng) for _ in range(args.sets)], axis=0)
        cells = [
            f"{share:.1f}" if place == 1 else f"{100 * share:.1f} %"
            for place, share in enumerate(shares)
        ]
        print(
            f"| {study.name} | {' + '.join(map(str, study.users))} | {' | '.join(cells)} |",
            flush=True,
        )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
