"""Pairs of runs on the users that both have: everything that `compare` finds, as JSON
(docs/statistics.md)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import NamedTuple

from msgspec import to_builtins

from harness.commands.compare import sides as runs
from harness.commands.compare.sides import Subset
from harness.commands.compare.warnings import coverage, warnings
from harness.cost import money_text
from harness.cost import together as summed
from harness.errors import BadInput, which_is_known
from harness.model import JSON
from harness.reply_facts import together
from harness.reporting.verdicts import reservations, verdict
from harness.scoring import differences
from harness.scoring.compared import Figures
from harness.scoring.differences import Difference, NonInferiority, Side, Stratum

FORMAT = 3


@dataclass(frozen=True, slots=True)
class CompareOptions:
    """Which runs are compared, by `names` of `results` or folders, on which `subsets` (all
    without). `tasks` is a folder, None for each run's own; code of others is run with `trust`, or
    from the file `benchmark`."""

    names: Sequence[str]
    results: Path
    tasks: Path | None
    subsets: Sequence[str]
    trust: bool
    benchmark: str | None


Runs = Mapping[str, Mapping[str, Subset]]
"""The subsets of each run, by the names of both."""


class Pair(NamedTuple):
    """Runs `a` and `b` on the subsets of one benchmark that both have; `alone` are the names of
    those that only one has."""

    a: str
    b: str
    benchmark: str
    subsets: Sequence[tuple[Subset, Subset]]
    sides: Sequence[tuple[Side, Side]]
    figures: Figures
    alone: Mapping[str, Sequence[str]]

    @property
    def strata(self) -> list[Stratum]:
        """Return the subsets on which both have users with the same task."""
        reports = [[of.report for of in of_subset] for of_subset in self.subsets]
        with_chance = [
            next((report for report in both if report and report.chance), None) for both in reports
        ]
        strata = [
            Stratum.of(a, b, self.figures, report)
            for (a, b), report in zip(self.sides, with_chance, strict=True)
        ]
        return [stratum for stratum in strata if stratum.users]

    @property
    def left_out(self) -> list[str]:
        """Return why a subset that both have gives nothing to compare, and which subsets only one
        run has."""
        sentences = []
        for a, b in self.sides:
            empty = [side.run for side in (a, b) if not side.tasks]
            if empty:
                has = "has" if len(empty) == 1 else "have"
                sentences.append(f"On {a.subset} {' and '.join(empty)} {has} no scored user.")
            elif not a.tasks.items() & b.tasks.items():
                why = (
                    "no user with the same task"
                    if a.tasks.keys() & b.tasks.keys()
                    else "no user in common"
                )
                sentences.append(f"On {a.subset} {a.run} and {b.run} have {why}.")
        return sentences + [
            f"Only {run} has {', '.join(names)}: left out."
            for run, names in self.alone.items()
            if names
        ]


def compared(
    chosen: CompareOptions, resamples: int, points: float | None = None, metric: str | None = None
) -> JSON:
    """Return the whole comparison, as `compare --json` prints it. Raise `BadInput` if no two runs
    share a user.

    With `points`, each pair says whether its first run is not worse by more than that in a primary
    `metric`, by default the last one.
    """
    found = _found(chosen)
    pairs = _pairs(found, chosen.tasks)
    strata = [pair.strata for pair in pairs]
    if not any(strata):
        raise BadInput(" ".join(dict.fromkeys(words for pair in pairs for words in pair.left_out)))
    figures = {}
    for benchmark in dict.fromkeys(pair.benchmark for pair in pairs):
        family = [
            of_pair
            for pair, of_pair in zip(pairs, strata, strict=True)
            if pair.benchmark == benchmark
        ]
        figures[benchmark] = iter(differences.compared(family, resamples))
    return {
        "format": FORMAT,
        "runs": [_run(*run) for run in found.items()],
        "resamples": resamples,
        "seed": differences.SEED,
        "pairs": [
            _report(pair, of_pair, next(figures[pair.benchmark]), points, metric)
            for pair, of_pair in zip(pairs, strata, strict=True)
        ],
    }


def _found(chosen: CompareOptions) -> Runs:
    """Return the subsets of each run. Raise `BadInput` for a run without any."""
    found = {}
    for run, folder in runs.folders(chosen.names, chosen.results).items():
        found[run] = runs.subsets(run, folder, chosen.subsets, chosen.trust, chosen.benchmark)
        if not found[run]:
            wanted = f" for {', '.join(chosen.subsets)}" if chosen.subsets else ""
            raise BadInput(f"{folder} holds no run{wanted}")
    return found


def _run(run: str, subsets: Mapping[str, Subset]) -> JSON:
    manifests = [subset.manifest for subset in subsets.values() if subset.manifest]
    models = dict.fromkeys(manifest.identity["model"] for manifest in manifests)
    replies = to_builtins(together(manifest.reply_facts for manifest in manifests))
    costs = [report.cost for subset in subsets.values() if (report := subset.report)]
    cost = money_text(summed(cost.money for cost in costs if cost))
    return {
        "name": run,
        "benchmark": ", ".join(dict.fromkeys(subset.benchmark for subset in subsets.values())),
        "model": ", ".join(models) or None,
        "subsets": ", ".join(subsets),
        **({"replies": replies} if replies else {}),
        **({"cost": cost} if cost else {}),
    }


def _pairs(found: Runs, tasks: Path | None) -> list[Pair]:
    """Return every pair of runs, for each benchmark that both have; each file is read once."""
    by_subset: dict[str, list[Subset]] = {}
    for subsets in found.values():
        for name, subset in subsets.items():
            by_subset.setdefault(name, []).append(subset)
    measured = {name: runs.figures(of, tasks) for name, of in by_subset.items() if len(of) > 1}
    read = cache(lambda run, subset: runs.read(found[run][subset], measured[subset]))
    pairs = []
    for a, b in combinations(found, 2):
        alone = {
            run: sorted(found[run].keys() - found[other].keys()) for run, other in ((a, b), (b, a))
        }
        groups: dict[str, list[str]] = {}
        for name in sorted(found[a].keys() & found[b].keys()):
            groups.setdefault(found[a][name].benchmark, []).append(name)
        for benchmark, names in groups.items():
            subsets_of_both = [(found[a][name], found[b][name]) for name in names]
            sides = [(read(a, name), read(b, name)) for name in names]
            pairs.append(Pair(a, b, benchmark, subsets_of_both, sides, measured[names[0]], alone))
    if not pairs:
        has = {
            run: ", ".join(f"{of.name} ({of.benchmark})" for of in subsets.values())
            for run, subsets in found.items()
        }
        which = "; ".join(f"{run} has {names}" for run, names in has.items())
        raise BadInput(f"the runs have no subset in common: {which}")
    return pairs


def _report(
    pair: Pair,
    strata: Sequence[Stratum],
    figures: Sequence[Difference],
    points: float | None,
    metric: str | None,
) -> JSON:
    """Return everything about two runs."""
    names = {"a": pair.a, "b": pair.b}
    covered = [
        coverage(subsets, sides, pair.figures)
        for subsets, sides in zip(pair.subsets, pair.sides, strict=True)
    ]
    units = pair.figures.metrics
    verdicts = [
        " ".join(
            [
                verdict(of, units[of.metric], pair.a, pair.b),
                *reservations(of, units[of.metric], names),
            ]
        )
        for of in reversed(figures)
        if not of.exploratory
    ]
    gate = None if points is None else _gate(pair, strata, figures, points, metric)
    return {
        **names,
        "benchmark": pair.benchmark,
        "main": list(pair.figures.main),
        "metric_units": {name: metric.data for name, metric in units.items()},
        "coverage": covered,
        "left_out": pair.left_out,
        "warnings": warnings(pair.subsets, names, covered),
        "figures": to_builtins(figures),
        "most_different": differences.most_different(strata),
        "verdicts": verdicts or ["Nothing to compare."],
        **({"non_inferiority": asdict(gate)} if gate else {}),
    }


def _gate(
    pair: Pair,
    strata: Sequence[Stratum],
    figures: Sequence[Difference],
    points: float,
    name: str | None,
) -> NonInferiority | None:
    """Return whether A is not worse than B by more than so many points of a primary metric, by
    default the last one. Raise `BadInput` for a metric that is none of them."""
    main = pair.figures.main
    name = name or main[-1]
    if name not in main:
        known = which_is_known(name, main)
        raise BadInput(f"--metric: {name} is no primary metric of {pair.benchmark}{known}")
    primary = [figure for figure in figures if figure.metric == name and not figure.exploratory]
    if not primary:
        return None
    metric, column = pair.figures.metrics[name], pair.figures.names.index(name)
    return differences.non_inferiority(primary[0], strata, column, points / metric.scale)
