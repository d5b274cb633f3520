"""Pairs of runs on the users that both have, and what `compare` shows of them (docs/statistics.md)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import NamedTuple

from msgspec import to_builtins

from harness.commands.compare import figures, verdicts, warnings
from harness.commands.compare import sides as runs
from harness.commands.compare.figures import Stratum
from harness.commands.compare.sides import Side, Subset
from harness.errors import BadInput
from harness.model import JSON
from harness.reply_facts import together
from harness.scoring.compared import Figures

FORMAT = 3


@dataclass(frozen=True, slots=True)
class CompareOptions:
    """Which runs are compared, by `names` of `results` or folders, on which `subsets` (all without). `tasks` is a
    folder, None for each run's own; code of others is run with `trust`, or from the file `benchmark`."""

    names: Sequence[str]
    results: Path
    tasks: Path | None
    subsets: Sequence[str]
    trust: bool
    benchmark: str | None


class Pair(NamedTuple):
    """Two runs on the `subsets` of one benchmark that both have; `alone` are the names of those that only one has."""

    subsets: Sequence[tuple[Side, Side]]
    figures: Figures
    alone: Mapping[str, Sequence[str]]

    @property
    def runs(self) -> tuple[Subset, Subset]:
        """Return both on the first of the subsets."""
        a, b = self.subsets[0]
        return a.of, b.of


def _found(chosen: CompareOptions) -> dict[str, dict[str, Subset]]:
    """Return the subsets of each run. Raise `BadInput` for a run without any."""
    folders = runs.folders(chosen.names, chosen.results)
    found = {
        run: runs.subsets(run, folder, chosen.subsets, chosen.trust, chosen.benchmark)
        for run, folder in folders.items()
    }
    for run, subsets in found.items():
        if not subsets:
            wanted = f" for {', '.join(chosen.subsets)}" if chosen.subsets else ""
            raise BadInput(f"{folders[run]} holds no run{wanted}")
    return found


def compared(chosen: CompareOptions, resamples: int) -> JSON:
    """Return the whole comparison, as `compare --json` prints it. Raise `BadInput` if no two runs share a user."""
    found = _found(chosen)
    pairs = _pairs(found, chosen.tasks)
    every = [(pair, strata, _report(pair)) for pair, strata in zip(pairs, _strata(pairs), strict=True)]
    for benchmark in dict.fromkeys(report["benchmark"] for _, _, report in every):
        _compare([one for one in every if one[2]["benchmark"] == benchmark], resamples)
    return {
        "format": FORMAT,
        "runs": [_run(*one) for one in found.items()],
        "resamples": resamples,
        "seed": figures.SEED,
        "pairs": [report for _, _, report in every],
    }


def _compare(family: Sequence[tuple[Pair, Sequence[Stratum], JSON]], resamples: int) -> None:
    """Put figures and verdicts into the reports of all pairs of runs of one benchmark."""
    places = figures.users_of(strata for _, strata, _ in family)
    tests = []
    for pair, strata, report in family:
        found = figures.compared(strata, pair.figures, places, resamples) if strata else []
        reports = {
            a.of.name: next((of for of in (a.of.report, b.of.report) if of and of.chance), None)
            for a, b in pair.subsets
        }
        for test in found:
            test.entry.update(test.chance(reports))
        report["figures"] = [test.entry for test in found]
        report["most_different"] = figures.most_different(strata, pair.figures)
        tests += [test for test in found if not test.entry["exploratory"]]
    figures.adjust(tests, places, resamples)
    for pair, _, report in family:
        report["verdicts"] = verdicts.verdicts(report["figures"], report, pair.figures)


def _run(run: str, subsets: Mapping[str, Subset]) -> JSON:
    of = subsets.values()
    models = dict.fromkeys(one.manifest.identity["model"] for one in of if one.manifest)
    replies = to_builtins(together(one.manifest.reply_facts for one in of if one.manifest))
    return {
        "name": run,
        "benchmark": ", ".join(dict.fromkeys(one.benchmark for one in of)),
        "model": ", ".join(models) or None,
        "subsets": ", ".join(subsets),
        **({"replies": replies} if replies else {}),
    }


def _pairs(found: Mapping[str, Mapping[str, Subset]], tasks: Path | None) -> list[Pair]:
    """Return every pair of runs, for each benchmark that both have; each file is read once."""
    by_subset: dict[str, list[Subset]] = {}
    for subsets in found.values():
        for name, subset in subsets.items():
            by_subset.setdefault(name, []).append(subset)
    measured = {name: runs.figures(of, tasks) for name, of in by_subset.items() if len(of) > 1}
    read = cache(lambda run, subset: runs.read(found[run][subset], measured[subset]))
    pairs = []
    for a, b in combinations(found, 2):
        alone = {run: sorted(found[run].keys() - found[other].keys()) for run, other in ((a, b), (b, a))}
        groups: dict[str, list[str]] = {}
        for name in found[a].keys() & found[b].keys():
            groups.setdefault(found[a][name].benchmark, []).append(name)
        pairs += [
            Pair([(read(a, name), read(b, name)) for name in names], measured[names[0]], alone)
            for names in map(sorted, groups.values())
        ]
    if not pairs:
        has = {run: ", ".join(f"{one.name} ({one.benchmark})" for one in of.values()) for run, of in found.items()}
        which = "; ".join(f"{run} has {names}" for run, names in has.items())
        raise BadInput(f"the runs have no subset in common: {which}")
    return pairs


def _strata(pairs: Sequence[Pair]) -> list[list[Stratum]]:
    """Return the subsets on which both runs of a pair have users with the same task. Raise `BadInput` if no two runs
    have any."""
    made = ([Stratum.of(*both, pair.figures) for both in pair.subsets] for pair in pairs)
    found = [[stratum for stratum in strata if stratum.users] for strata in made]
    if not any(found):
        raise BadInput(" ".join(dict.fromkeys(words for pair in pairs for words in _left_out(pair))))
    return found


def _report(pair: Pair) -> JSON:
    """Return everything about two runs except their figures."""
    a, b = pair.runs
    return {
        "a": a.run,
        "b": b.run,
        "benchmark": a.benchmark,
        "main": list(pair.figures.main),
        "metric_units": {name: metric.data for name, metric in pair.figures.metrics.items()},
        "coverage": [warnings.coverage(*both, pair.figures) for both in pair.subsets],
        "left_out": _left_out(pair),
        "warnings": warnings.warnings(pair.subsets),
    }


def _left_out(pair: Pair) -> list[str]:
    """Return why a subset that both have gives nothing to compare, and which subsets only one run has."""
    found = []
    for a, b in pair.subsets:
        empty = [side.of.run for side in (a, b) if not side.tasks]
        if empty:
            has = "has" if len(empty) == 1 else "have"
            found.append(f"On {a.of.name} {' and '.join(empty)} {has} no scored user.")
        elif not a.tasks.items() & b.tasks.items():
            why = "no user with the same task" if a.tasks.keys() & b.tasks.keys() else "no user in common"
            found.append(f"On {a.of.name} {a.of.run} and {b.of.run} have {why}.")
    return found + [f"Only {run} has {', '.join(names)}: left out." for run, names in pair.alone.items() if names]
