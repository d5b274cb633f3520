"""Pairs of runs on the users that both have: everything that `compare` finds, as JSON
(docs/statistics.md)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from itertools import chain, combinations
from pathlib import Path
from typing import NamedTuple

from msgspec import to_builtins

from harness.commands.compare import sides
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


class RunPair(NamedTuple):
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
        strata = []
        for (a, b), subsets in zip(self.sides, self.subsets, strict=True):
            # The chance level is of the tasks: either report has it, unless it is an earlier one.
            reports = filter(None, (subset.report for subset in subsets))
            with_chance = next((report for report in reports if report.chance), None)
            stratum = Stratum.of(a, b, self.figures, with_chance)

            if stratum.users:
                strata.append(stratum)

        return strata

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
                has_same_users = a.tasks.keys() & b.tasks.keys()
                lack = "no user with the same task" if has_same_users else "no user in common"
                sentences.append(f"On {a.subset} {a.run} and {b.run} have {lack}.")

        for run, names in self.alone.items():
            if names:
                sentences.append(f"Only {run} has {', '.join(names)}: left out.")

        return sentences


def compared(
    chosen: CompareOptions,
    resamples: int,
    points: float | None = None,
    metric: str | None = None,
) -> JSON:
    """Return the whole comparison, as `compare --json` prints it. Raise `BadInput` if no two runs
    share a user.

    With `points`, each pair says whether its first run is not worse by more than that in a primary
    `metric`, by default the last one.
    """
    runs = _runs(chosen)
    pairs = _pairs(runs, chosen.tasks)
    strata = [pair.strata for pair in pairs]

    if not any(strata):
        sentences = chain.from_iterable(pair.left_out for pair in pairs)
        raise BadInput(" ".join(dict.fromkeys(sentences)))

    # All pairs of a benchmark are one family of tests, whose p-values are adjusted together.
    families: dict[str, list[list[Stratum]]] = {}
    for pair, strata_of_pair in zip(pairs, strata, strict=True):
        families.setdefault(pair.benchmark, []).append(strata_of_pair)

    figures = {}
    for benchmark, family in families.items():
        figures[benchmark] = iter(differences.compared(family, resamples))

    return {
        "format": FORMAT,
        "runs": list(map(_run_data, runs, runs.values())),
        "resamples": resamples,
        "seed": differences.SEED,
        "pairs": [
            _pair_data(pair, strata_of_pair, next(figures[pair.benchmark]), points, metric)
            for pair, strata_of_pair in zip(pairs, strata, strict=True)
        ],
    }


def _runs(chosen: CompareOptions) -> Runs:
    """Return the subsets of each run. Raise `BadInput` for a run without any."""
    runs = {}
    for run, folder in sides.folders(chosen.names, chosen.results).items():
        runs[run] = sides.subsets(
            run,
            folder,
            chosen.subsets,
            chosen.trust,
            chosen.benchmark,
        )
        if not runs[run]:
            wanted = f" for {', '.join(chosen.subsets)}" if chosen.subsets else ""
            raise BadInput(f"{folder} holds no run{wanted}")

    return runs


def _run_data(run: str, by_name: Mapping[str, Subset]) -> JSON:
    benchmarks = []
    models = []
    facts = []
    costs = []
    for subset in by_name.values():
        report = subset.report
        benchmarks.append(subset.benchmark)
        if subset.manifest:
            models.append(subset.manifest.identity["model"])
            facts.append(subset.manifest.reply_facts)
        if report and report.cost:
            costs.append(report.cost.money)

    data: JSON = {
        "name": run,
        "benchmark": ", ".join(dict.fromkeys(benchmarks)),
        "model": ", ".join(dict.fromkeys(models)) or None,
        "subsets": ", ".join(by_name),
    }
    replies = to_builtins(together(facts))

    if replies:
        data["replies"] = replies

    cost = money_text(summed(costs))
    if cost:
        data["cost"] = cost

    return data


def _pairs(runs: Runs, tasks: Path | None) -> list[RunPair]:
    """Return every pair of runs, for each benchmark that both have; each file is read once."""
    figures = _common_figures(runs, tasks)
    # A run is in several pairs.
    read = cache(lambda run, name: sides.read_side(runs[run][name], figures[name]))
    pairs = []
    for a, b in combinations(runs, 2):
        in_a, in_b = runs[a], runs[b]
        alone = {
            a: sorted(in_a.keys() - in_b.keys()),
            b: sorted(in_b.keys() - in_a.keys()),
        }
        groups: dict[str, list[str]] = {}
        for name in sorted(in_a.keys() & in_b.keys()):
            groups.setdefault(in_a[name].benchmark, []).append(name)

        for benchmark, names in groups.items():
            subsets = [(in_a[name], in_b[name]) for name in names]
            sides_of_subsets = [(read(a, name), read(b, name)) for name in names]
            common = figures[names[0]]
            pairs.append(RunPair(a, b, benchmark, subsets, sides_of_subsets, common, alone))

    if not pairs:
        raise BadInput(f"the runs have no subset in common: {_subsets_text(runs)}")

    return pairs


def _common_figures(runs: Runs, tasks: Path | None) -> dict[str, Figures]:
    """Return the figures on each subset that several runs have."""
    subsets_by_name: dict[str, list[Subset]] = {}
    for subsets in runs.values():
        for name, subset in subsets.items():
            subsets_by_name.setdefault(name, []).append(subset)

    figures = {}
    for name, of_runs in subsets_by_name.items():
        if len(of_runs) > 1:
            figures[name] = sides.common_figures(of_runs, tasks)

    return figures


def _subsets_text(runs: Runs) -> str:
    sentences = []
    for run, subsets in runs.items():
        names = ", ".join(f"{subset.name} ({subset.benchmark})" for subset in subsets.values())
        sentences.append(f"{run} has {names}")

    return "; ".join(sentences)


def _pair_data(
    pair: RunPair,
    strata: Sequence[Stratum],
    figures: Sequence[Difference],
    points: float | None,
    gate_metric: str | None,
) -> JSON:
    """Return everything about two runs."""
    names = {"a": pair.a, "b": pair.b}
    covered = []
    for subsets, sides_of_subset in zip(pair.subsets, pair.sides, strict=True):
        covered.append(coverage(subsets, sides_of_subset, pair.figures))

    units = pair.figures.metrics
    verdicts = []
    for figure in reversed(figures):
        if not figure.exploratory:
            metric = units[figure.metric]
            sentences = reservations(figure, metric, names)
            verdicts.append(" ".join([verdict(figure, metric, pair.a, pair.b), *sentences]))

    data = {
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
    }
    if points is not None:
        gate = _gate(pair, strata, figures, points, gate_metric)
        if gate:
            data["non_inferiority"] = asdict(gate)

    return data


def _gate(
    pair: RunPair,
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

    for figure in figures:
        if figure.metric == name and not figure.exploratory:
            column = pair.figures.names.index(name)
            margin = points / pair.figures.metrics[name].scale
            return differences.non_inferiority(figure, strata, column, margin)

    return None
