"""Whether the ranks of `stats` keep their word: simulated models on the same users, whose true order is known.

Prints the table of docs/statistics.md, Leaderboard: `python -m bench.ranking`. Of each data set: whether every model's
true rank (1 + the models that are truly better) is among its ranks; whether the best model is among those that are not
separable from the best, how many these are, and whether it is alone there; whether it has the highest average.
"""

from __future__ import annotations

import argparse
from typing import NamedTuple

import numpy as np

from harness.features.leaderboard.ranking import ranks, stratum
from harness.scoring.bootstrap import Array

SETS, MODELS, SEED = 1000, 14, 7


class Study(NamedTuple):
    """Describe data sets: each model's true mean is `step` below that of the one before; users of each platform."""

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


def answers(rng: np.random.Generator, users: int, step: float) -> list[Array]:
    """Return the rows of each model's users: the share of hits of 2 to 80 predictions, easy or hard for all models."""
    ease, chances = 0.45 + 0.5 * rng.beta(2, 3, users), 2 * np.minimum(rng.geometric(1 / 6, users), 40)
    hits = (rng.binomial(chances, ease - step * model) / chances for model in range(MODELS))
    return [np.column_stack([hit, np.ones(users)]) for hit in hits]


def means(totals: Array) -> Array:
    found: Array = totals[:, :1] / totals[:, 1:]
    return found


def one(study: Study, rng: np.random.Generator) -> tuple[bool, bool, int, bool, bool]:
    """Return what the module's description lists, of one data set."""
    strata = [stratum(answers(rng, users, study.step), means, rng) for users in study.users]
    found, averages = ranks(strata, 0, lower_is_better=False), np.mean([of.figures[:, 0] for of in strata], axis=0)
    true = [1 + model * (study.step > 0) for model in range(MODELS)]
    holds = all(low <= rank <= high for (low, high), rank in zip(found, true, strict=True))
    first = [low == 1 for low, _ in found]
    return holds, first[0], sum(first), found[0] == (1, 1), bool(averages.argmax() == 0)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sets", type=int, default=SETS, help=f"data sets of each study (default: {SETS})")
    args = parser.parse_args()
    heads = "all true ranks hold", "best not separated", "not separated", "best alone", "best on top"
    print(f"| {MODELS} models | users | {' | '.join(heads)} |")
    print("|---|---|---|---|---|---|---|")
    for number, study in enumerate(STUDIES):
        rng = np.random.default_rng([SEED, number])
        shares = np.mean([one(study, rng) for _ in range(args.sets)], axis=0)
        cells = [f"{share:.1f}" if place == 2 else f"{100 * share:.1f} %" for place, share in enumerate(shares)]
        print(f"| {study.name} | {' + '.join(map(str, study.users))} | {' | '.join(cells)} |", flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
