"""How often DailyMobility's 95 % intervals hold the true figure. Prints the table of
docs/statistics.md.

Figures and true values are computed here, from residents' counts by bin, and the populations are
lists of residents: those of `synth`, played by the shipped baselines, or made here. A true value is
the mean of the figure over other data sets of the same size, with the same ground truth ("run"), or
with others of 100 residents as well ("both"). What is studied is
`harness.benchmarks.dailymobility.spread`: `python -m bench.days`.
"""

from __future__ import annotations

import argparse
import subprocess
import tempfile
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import orjson
from numpy.typing import NDArray

from bench.processes import HARNESS
from harness.benchmarks.dailymobility.spread import SampleSide, mixed, spread_of_both

SETS, POOL, SEED = 1000, 4000, 7
OTHERS = 5
"""Times as many data sets whose mean is the true value."""
USERS = (100, 400)
"""Fewer have no interval."""
TRUTH = 100
"""Residents of a ground truth, as published."""
LEAST = 0.1
"""A cell whose data sets have an interval less often is `too few`."""
ENDS = np.cumsum([51, 12, 7])
"""Bins of radius, locations, intentions; 50 of proportions follow."""

Array = NDArray[np.float64]
Counts = NDArray[np.int64]


class Residents(NamedTuple):
    """Radius in metres and number of locations (n), slots of 48 with each intention and their
    shares (n x 7)."""

    radius: NDArray[Any]
    locations: NDArray[Any]
    slots: NDArray[Any]
    shares: NDArray[Any]

    def some(self, rng: np.random.Generator, number: int) -> Residents:
        """Draw residents with replacement."""
        at = rng.integers(len(self.radius), size=number)
        return Residents(*(column[at] for column in self))

    def counts(self, reach: float) -> Counts:
        """Return residents x 120 bins of the protocol aligned; `reach` is the ground truth's
        largest radius."""
        found, rows = np.zeros((len(self.radius), 120), dtype=np.int64), np.arange(len(self.radius))
        found[rows, np.where(self.radius > reach, 50, _equal(self.radius, reach))] = 1
        found[
            rows, ENDS[0] + np.searchsorted(np.arange(11) + 0.5, self.locations, side="right")
        ] = 1
        found[:, ENDS[1] : ENDS[2]] = self.slots
        for place in ENDS[2] + _equal(self.shares, 1.0).T:
            np.add.at(found, (rows, place), 1)
        return found


def _equal(values: Array, reach: float) -> Counts:
    edges = np.linspace(0, reach, 51)
    found: Counts = np.clip(np.searchsorted(edges, values, side="right") - 1, 0, 49)
    return found


def figures(truth: Counts, totals: Counts) -> Array:
    """Return score and divergences (... x 5) of totals by bin (... x 120), in bits by the entropies
    of both sides."""
    sides = zip(*(np.split(side, ENDS, axis=-1) for side in (truth, totals)), strict=True)
    found = np.stack([_divergence(p, q) for p, q in sides], axis=-1)
    return np.concatenate([1 - found.mean(axis=-1, keepdims=True), found], axis=-1)


def _divergence(p: Counts, q: Counts) -> Array:
    a, b = (side / side.sum(axis=-1, keepdims=True) for side in (p, q))
    found: Array = _entropy((a + b) / 2) - (_entropy(a) + _entropy(b)) / 2
    return found


def _entropy(shares: Array) -> Array:
    found: Array = -(shares * np.log2(np.where(shares > 0, shares, 1))).sum(axis=-1)
    return found


# Populations


def populations(folder: Path) -> tuple[Residents, dict[str, Residents]]:
    """Return the synthetic residents that ground truths are drawn of, and the populations of runs
    by name."""
    subprocess.run(
        [*HARNESS, "synth", "dailymobility", "--out", str(folder), "--users", str(POOL)], check=True
    )
    truth = ground_truth(folder / "dailymobility" / "groundtruth")
    rng, commuters = np.random.default_rng(SEED), played(folder, "commuter")
    return truth, {
        "baseline/commuter": commuters,
        "baseline/random-day": played(folder, "random-day"),
        "commuters much alike": alike(rng, truth),
        "the ground truth's days with noise": noisy(rng, truth),
        "other residents as in the ground truth": truth,
        "half invalid, half commuter": half_invalid(rng, commuters),
    }


def ground_truth(folder: Path) -> Residents:
    radius, locations, sequences, shares = (
        np.load(folder / f"{name}.npy")
        for name in (
            "gyration_radius",
            "daily_location_numbers",
            "daily_intentions_2d",
            "intention_proportions_2d",
        )
    )
    return Residents(radius, locations, _slots(sequences), shares)


def played(folder: Path, baseline: str) -> Residents:
    """Return the days of a shipped baseline."""
    results = folder / "results"
    options = ["--tasks-dir", str(folder), "--results-dir", str(results), "--name", baseline]
    command = [*HARNESS, "run", "dailymobility", "--model", f"baseline/{baseline}", *options]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    of = orjson.loads((results / baseline / "generated_beijing.json").read_bytes())
    names = (
        "gyration_radius",
        "daily_location_numbers",
        "intention_sequences",
        "intention_proportions",
    )
    radius, locations, sequences, shares = (np.array(of[name]) for name in names)
    return Residents(radius, locations, _slots(sequences), shares)


def _slots(sequences: Counts) -> Counts:
    return np.stack([(sequences == number).sum(axis=1) for number in range(1, 8)], axis=1)


def _made(radius: NDArray[Any], locations: NDArray[Any], slots: Counts) -> Residents:
    return Residents(radius, locations, slots, slots / 48)


def noisy(rng: np.random.Generator, truth: Residents) -> Residents:
    drawn = truth.some(rng, POOL)
    slots = np.stack([rng.multinomial(48, (row + 0.3) / (row + 0.3).sum()) for row in drawn.slots])
    locations = np.maximum(1, np.round(drawn.locations + rng.normal(0, 0.5, POOL)))
    return _made(drawn.radius * rng.lognormal(0, 0.15, POOL), locations, slots)


def alike(rng: np.random.Generator, truth: Residents) -> Residents:
    """Seven in ten work, from 7 to 10 hours; the others are at home."""
    works, long = rng.random(POOL) < 0.7, rng.integers(14, 20, POOL)
    slots = np.zeros((POOL, 7), dtype=np.int64)
    slots[:, 0], slots[:, 1], slots[:, 3] = (
        36 - long,
        12 + np.where(works, 0, long),
        np.where(works, long, 0),
    )
    radius = np.where(works, rng.choice(truth.radius, POOL), 0.0)
    return _made(radius, 1.0 + works + (rng.random(POOL) < 0.2), slots)


def half_invalid(rng: np.random.Generator, commuters: Residents) -> Residents:
    valid = rng.random(POOL) < 0.5
    slots = np.where(valid[:, None], commuters.slots, 48 * (np.arange(7) == 2))
    return _made(
        np.where(valid, commuters.radius, 0.0), np.where(valid, commuters.locations, 1.0), slots
    )


# The study


class Drawn(NamedTuple):
    """A data set: counts by bin of the residents of both sides."""

    run: Counts
    truth: Counts

    @property
    def values(self) -> Array:
        return figures(self.truth.sum(axis=0), self.run.sum(axis=0))

    def intervals(self, whole: bool) -> Array:
        """Return low and high of each figure (5 x 2), NaN without: over both sides (`whole`), or
        the run's."""
        p, q, values = self.truth.sum(axis=0), self.run.sum(axis=0), self.values
        run = SampleSide.from_counts([self.run], q, p, values)
        spread = (
            spread_of_both(run, SampleSide.from_counts([self.truth], p, q, values), mixed(p, q))
            if whole
            else run.spread
        )
        found = spread.intervals(values, len(self.run))
        return np.array([(np.nan, np.nan) if ends is None else ends for ends in found.values()])


def drawn(rng: np.random.Generator, users: int, people: Residents, truths: Residents) -> Drawn:
    """Draw both sides, with the reach of this ground truth."""
    truth = truths.some(rng, TRUTH)
    reach = float(truth.radius.max())
    return Drawn(people.some(rng, users).counts(reach), truth.counts(reach))


def drawn_run(rng: np.random.Generator, users: int, rows: Counts, truth: Counts) -> Drawn:
    return Drawn(rows[rng.integers(len(rows), size=users)], truth)


def cell(
    draw: partial[Drawn], users: int, sets: int, rng: np.random.Generator, whole: bool
) -> list[str]:
    """Return how often the interval of each figure holds its mean, in percent, or `too few`."""
    values, ends = np.empty((sets, 5)), np.empty((sets, 5, 2))
    for at in range(sets):
        of = draw(rng, users)
        values[at], ends[at] = of.values, of.intervals(whole)
    true = np.concatenate([values, [draw(rng, users).values for _ in range(OTHERS * sets)]]).mean(
        axis=0
    )
    printed = ~np.isnan(ends[..., 0])
    held = (ends[..., 0] <= true) & (true <= ends[..., 1])
    return [_shown(printed[:, at], held[:, at]) for at in range(len(true))]


def _shown(printed: NDArray[np.bool_], held: NDArray[np.bool_]) -> str:
    if printed.mean() < LEAST:
        return "too few"
    return f"{100 * held[printed].mean():.1f}" + (
        "" if printed.mean() > 0.99 else f" ({100 * printed.mean():.0f})"
    )


def studies(
    truths: Residents, people: Mapping[str, Residents]
) -> dict[tuple[str, str], partial[Drawn]]:
    truth = Residents(*(column[:TRUTH] for column in truths))
    reach = float(truth.radius.max())
    run = {
        ("run", name): partial(drawn_run, rows=of.counts(reach), truth=truth.counts(reach))
        for name, of in people.items()
    }
    return run | {
        ("both", name): partial(drawn, people=of, truths=truths) for name, of in people.items()
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--sets", type=int, default=SETS, help=f"data sets of each cell (default: {SETS})"
    )
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = studies(*populations(Path(folder)))
    print(
        "| interval | population | users | Score | radius | locations | intentions | proportions |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for (kind, name), draw in found.items():
        for users in USERS:
            cells = cell(
                draw, users, args.sets, np.random.default_rng([SEED, users]), kind == "both"
            )
            if set(cells) != {"too few"}:
                print(f"| {kind} | {name} | {users} | {' | '.join(cells)} |", flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
