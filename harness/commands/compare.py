"""`compare`: paired differences between runs, on the users that both have (docs/statistics.md)."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import combinations
from typing import NamedTuple

from harness.analysis.comparison import figures, runs, verdicts, warnings
from harness.analysis.comparison.runs import Side, Subset
from harness.benchmarks.derived import Figures
from harness.config import options
from harness.errors import BadInput
from harness.model import JSON
from harness.report import compare, text, xlsx
from harness.scoring.paired import RESAMPLES
from harness.store import atomic
from harness.ui.console import console
from harness.ui.streams import show_json, tell

FORMAT = 1
WIDTH_MOST = 120
FEWEST, MOST = 1000, 1_000_000
"""Resamples: with fewer, the second digit of an interval would be random."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("runs", nargs="+", metavar="RUN", help="names of at least two runs, or their folders")
    options.add_platform(parser, "one subset; may be repeated (default: all that both of a pair have)")
    options.add_earlier(parser)
    words = f"of the bootstrap, and permutations (default: {RESAMPLES})"
    options.add(parser, "--resamples N", words, type=options.whole(FEWEST, MOST), default=RESAMPLES)
    options.add_json(parser)
    options.add(parser, "--out FILE.xlsx", "write an Excel file too", type=options.file_of(".xlsx"))
    options.add(parser, "--html FILE.html", "write a page too", type=options.file_of(".html"))


def execute(args: argparse.Namespace) -> int:
    data = _data(args)
    if args.out is not None:
        xlsx.write(args.out, compare.sheets(data))
    if args.html is not None:
        from harness.report import html  # its template engine, which the other formats need not wait for

        title = f"{', '.join(run['name'] for run in data['runs'])}: compared"
        atomic.make_folder(args.html.parent)
        atomic.write(args.html, html.page(title, list(compare.blocks(data))).encode("utf-8", "replace"))
    written = [path for path in (args.out, args.html) if path is not None]
    if args.json:
        show_json(data)
    else:
        screen = console()
        whole = text.rendered(list(compare.blocks(data)), min(screen.width, WIDTH_MOST))
        screen.print(*whole.removesuffix("\n").split("\n"), sep="\n", soft_wrap=True)
    for path in written:
        tell(f"written: {path}")
    return 0


class _Pair(NamedTuple):
    """Two runs on the subsets of one benchmark that both have, in the same order; `alone` are subsets of one."""

    a: Sequence[Side]
    b: Sequence[Side]
    figures: Figures
    alone: Mapping[str, Sequence[str]]


def _data(args: argparse.Namespace) -> JSON:
    """Return the whole comparison. Raise `BadInput` if no two runs have anything in common."""
    folders = runs.folders(args.runs, args.results_dir)
    found = {run: runs.subsets(run, folder, args) for run, folder in folders.items()}
    for run, subsets in found.items():
        if not subsets:
            wanted = f" for {', '.join(args.platform)}" if args.platform else ""
            raise BadInput(f"{folders[run]} holds no run{wanted}")
    pairs = _pairs(found, args)
    tests = sum(len(pair.a) * len(pair.figures.names) for pair in pairs)
    permutations = max(args.resamples, figures.FOR_EACH_TEST * tests)
    reports = [_report(pair, args.resamples, permutations) for pair in pairs]
    if not any(pair["figures"] for pair in reports):
        raise BadInput(" ".join(dict.fromkeys(words for pair in reports for words in pair["left_out"])))
    for benchmark in dict.fromkeys(pair["benchmark"] for pair in reports):
        figures.correct([pair["figures"] for pair in reports if pair["benchmark"] == benchmark])
    for one, pair in zip(reports, pairs, strict=True):
        one["verdicts"] = verdicts.verdicts(one["figures"], one, pair.figures)
    return {
        "format": FORMAT,
        "runs": [_run(run, list(subsets.values())) for run, subsets in found.items()],
        "resamples": args.resamples,
        "permutations": permutations,
        "seed": figures.SEED,
        "pairs": reports,
    }


def _run(run: str, subsets: Sequence[Subset]) -> JSON:
    models = dict.fromkeys(of.manifest.identity["model"] for of in subsets if of.manifest)
    return {
        "name": run,
        "benchmark": ", ".join(dict.fromkeys(of.benchmark for of in subsets)),
        "model": ", ".join(models) or None,
        "platforms": ", ".join(of.name for of in subsets),
    }


def _pairs(found: Mapping[str, Mapping[str, Subset]], args: argparse.Namespace) -> list[_Pair]:
    """Return every pair of runs, for each benchmark that both have; each file is read once."""
    by_subset: dict[str, list[Subset]] = {}
    for subsets in found.values():
        for name, subset in subsets.items():
            by_subset.setdefault(name, []).append(subset)
    measured = {name: runs.figures(of, args.tasks_dir) for name, of in by_subset.items() if len(of) > 1}
    read = cache(lambda run, subset: runs.read(found[run][subset], measured[subset]))
    pairs = []
    for a, b in combinations(found, 2):
        alone = {run: sorted(found[run].keys() - found[other].keys()) for run, other in ((a, b), (b, a))}
        groups: dict[str, list[str]] = {}
        for name in found[a].keys() & found[b].keys():
            groups.setdefault(found[a][name].benchmark, []).append(name)
        for names in map(sorted, groups.values()):
            side_a, side_b = ([read(run, name) for name in names] for run in (a, b))
            pairs.append(_Pair(side_a, side_b, measured[names[0]], alone))
    if not pairs:
        has = {run: ", ".join(f"{one.name} ({one.benchmark})" for one in of.values()) for run, of in found.items()}
        which = "; ".join(f"{run} has {names}" for run, names in has.items())
        raise BadInput(f"the runs have no platform in common: {which}")
    return pairs


def _report(pair: _Pair, resamples: int, permutations: int) -> JSON:
    """Return everything about two runs except what depends on the other pairs: corrected p-values and verdicts."""
    a, b = pair.a[0].of, pair.b[0].of
    strata = [figures.Stratum.of(*both, pair.figures) for both in zip(pair.a, pair.b, strict=True)]
    there = [stratum for stratum in strata if stratum.users]
    alone = [f"Only {run} has {', '.join(names)}: left out." for run, names in pair.alone.items() if names]
    return {
        "a": a.run,
        "b": b.run,
        "benchmark": a.benchmark,
        "main": list(pair.figures.main),
        "metric_units": {name: metric.data for name, metric in pair.figures.metrics.items()},
        "coverage": [warnings.coverage(*both, pair.figures) for both in zip(pair.a, pair.b, strict=True)],
        "left_out": [*_nobody(pair), *alone],
        "warnings": warnings.warnings(pair.a, pair.b),
        "figures": figures.compared(there, pair.figures, resamples, permutations) if there else [],
        "most_different": figures.most_different(there, pair.figures),
    }


def _nobody(pair: _Pair) -> list[str]:
    """Return why a subset that both have gives nothing to compare."""
    found = []
    for a, b in zip(pair.a, pair.b, strict=True):
        empty = [side.of.run for side in (a, b) if not side.tasks]
        if empty:
            has = "has" if len(empty) == 1 else "have"
            found.append(f"On {a.of.name} {' and '.join(empty)} {has} no scored user.")
        elif not a.tasks.items() & b.tasks.items():
            why = "no user with the same task" if a.tasks.keys() & b.tasks.keys() else "no user in common"
            found.append(f"On {a.of.name} {a.of.run} and {b.of.run} have {why}.")
    return found
