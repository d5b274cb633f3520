"""The notes under the tables of `stats`: what their marks mean, and what a reader must know about the runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from os import fsencode
from pathlib import Path

from harness.analysis.imported import Imported, imported
from harness.commands.stats.reports import Scored
from harness.commands.stats.tables import AVERAGE, ENOUGH, MetricTable, groups, without_skill
from harness.errors import in_brief
from harness.reporting.report import APPROXIMATE
from harness.store.files import runs
from harness.ui.words import plural

MOST = 10
"""Runs or reports that a sentence names."""
RANKS = (
    "Rank: among the runs with the same prompt and tasks; =: not separable from the best, by the paired test of "
    "`compare` at 5 %, adjusted for the number of runs that are compared with the best."
)
CHANCE = (
    "Chance: what random answers to the same tasks have on average, with its standard error (±) where it is drawn; a "
    "run that is not better is never marked."
)
BIAS = "Bias: how far the mean over other samples of so many users is from that of infinitely many, by the jackknife."
MOST_REPEATS = 1000
"""A larger number of repeats is called any."""
PAYS = 0.2
"""Share of the answers in the variance of a user's mean from which more repeats are worth a word."""
UNFINISHED = "resume continues, report --name NAME scores what exists"


def notes(printed: Sequence[MetricTable], *, show_ranks: bool = True) -> list[str]:
    """Return what a reader of these tables must know, for what occurs in them; of ranks only if these are shown."""
    found = [*_incomplete(printed)]
    averaged = {table.benchmark: len(table.layout.subsets) for table in printed if AVERAGE in table.columns}
    found += dict.fromkeys(f"{AVERAGE}: only where all {number} subsets are complete." for number in averaged.values())
    if show_ranks and (ranked := [table for table in printed if table.is_ranked]):
        found.append(
            f"Bold is the best of its column, underlined the second best, of complete runs with the same prompt on the "
            f"same tasks{_differing(ranked)}; the command compare tests which differences are more than chance."
        )
    found += [*_rules(printed), *_following(printed), *_without_skill(printed)]
    found += [CHANCE] if any(table.chance for table in printed) else []
    found += [BIAS] if any(of.bias is not None for table in printed for of in table.figures) else []
    found += [f"{table.label} is not ranked: {why}." for table in printed if (why := table.metric.unranked)]
    found += [RANKS] if any(table.rank_head for table in printed) else []
    found += _ranked_subsets(printed)
    found += [APPROXIMATE] if any(of.shown.approximate for table in printed for of in table.figures) else []
    found += [*_invalid(printed), *_repeats(printed)]
    reports = [report for table in printed for report in table.reports]
    if synthetic := dict.fromkeys(report.run for report in reports if report.synthetic):
        which = "All runs" if synthetic.keys() == {report.run for report in reports} else ", ".join(synthetic)
        found.append(f"{which}: synthetic tasks, which say nothing about real users.")
    return found + list(dict.fromkeys(table.source.note for table in printed if table.source))


def _incomplete(printed: Sequence[MetricTable]) -> Iterator[str]:
    """Yield which runs are INCOMPLETE, and how many users the marked figures cover, the smallest share first."""
    figures = (figure for table in printed for figure in table.figures)
    marked = (figure.report for figure in figures if figure.report and not figure.complete)
    found = list({(report.run, report.subset): report for report in marked}.values())
    if incomplete := _counts([of for of in found if of.is_incomplete], lambda of: f"{of.scored} of {of.expected}"):
        yield f"INCOMPLETE, not all chosen users are scored: {bounded(incomplete, '; ')}."
    if counts := _counts(found, lambda of: of.covered):
        yield f"*: not all users of the tasks file are scored: {bounded(counts, '; ')}."


def _counts(found: Iterable[Scored], covered: Callable[[Scored], str]) -> list[str]:
    """Return the runs with what they cover, the smallest share of the tasks file first; subsets that are alike
    together."""
    alike: dict[tuple[str, str], list[str]] = {}
    for report in sorted(found, key=lambda report: report.scored / max(report.in_tasks, 1)):
        alike.setdefault((report.run, covered(report)), []).append(report.subset)
    return [f"{run} on {', '.join(subsets)} {words}" for (run, words), subsets in alike.items()]


def _differing(ranked: Sequence[MetricTable]) -> str:
    """Return the settings of runs that are ranked together although these differ."""
    found: dict[str, str] = {}
    for table in ranked:
        for _, group in groups(table.rows, table.columns):
            of = {table.rows[number].name: figure.report.settings for number, figure in group.items() if figure.report}
            if len(set(of.values())) > 1:
                found |= {name: f"{name}: {', '.join(settings)}" for name, settings in of.items() if settings}
    return f", though not all with the same settings ({bounded(found.values(), '; ')})" if found else ""


def _ranked_subsets(printed: Sequence[MetricTable]) -> Iterator[str]:
    """Yield which runs are ranked with each other where not all have the same subsets."""
    found = {subsets: names for table in printed for subsets, names in table.ranked_subsets.items()}
    if found:
        each = (f"{bounded(names)} on {', '.join(subsets)}" for subsets, names in found.items())
        yield f"A run is ranked in the mean over its subsets, among the runs that have the same: {bounded(each, '; ')}."


def _rules(printed: Sequence[MetricTable]) -> Iterator[str]:
    """Yield what metrics are ranked by where their own values would reward answers against the rules, and which of
    several runs has no such value."""
    if unlike := [f"{table.label} by {table.metric.ranked_by}" for table in printed if table.is_ranked_by_other]:
        yield (
            "Some answers break the rules of the task. Tables show, and rank by, figures that such answers cannot win: "
            f"{', '.join(unlike)}. In brackets: the figure as published, where it is another."
        )
    without = {
        f"{of.report.run} ({table.metric.ranked_by})": None
        for table in printed
        if table.metric.ranked_by and len(table.runs) > 1
        for of in table.figures
        if of.report and of.by is None
    }
    if without:
        yield (
            f"Not ranked, without a value: {bounded(without)}. Either no answer follows the rules, or the report is of "
            "an earlier version, and reeval adds the value."
        )


def _following(printed: Sequence[MetricTable]) -> Iterator[str]:
    """Yield how many of the answers figures are over that leave some out, with the users that they are over, the
    smallest share first; and which runs have no place therefore."""
    kept, few, unknown = list[tuple[float, str]](), dict[str, None](), dict[str, None]()
    ranked = ((table, of.report, of.by, of.following) for table in printed for of in table.figures)
    for table, report, by, share in ranked:
        if report and by and share is None:
            unknown[report.run] = None
        elif report and by and share is not None and share < 1:
            few |= {report.run: None} if share < ENOUGH else {}
            users = f"{by.users} of {report.scored} users"
            kept.append((share, f"{report.run} on {report.subset}, {table.label}: {100 * share:.1f} % ({users})"))
    kept.sort(key=lambda one: one[0])
    if kept:
        shares = bounded((words for _, words in kept), "; ")
        yield f"Figures over the answers that keep the rules of the task alone, with their share: {shares}."
    if few:
        yield (
            f"Not ranked by these: {bounded(few)}. Fewer than {100 * ENOUGH:.0f} % of the answers keep the rules, so "
            "the figure is about those that the model chose to give."
        )
    if unknown:
        yield f"Not ranked: {bounded(unknown)}. Reports of an earlier version do not count such answers: run reeval."


def _without_skill(printed: Sequence[MetricTable]) -> Iterator[str]:
    """Yield which runs have no marks since headline figures of theirs are not better than chance."""
    found: dict[str, dict[str, None]] = {}
    for table in printed:
        for report in table.reports if not table.metric.unranked else ():
            if names := without_skill(report, table.metric, table.layout):
                found.setdefault(report.run, {}).update(dict.fromkeys(names))
    if found:
        who = bounded((f"{run} ({', '.join(names)})" for run, names in found.items()), "; ")
        yield f"Never marked, since not better than chance by the interval, where there is one: {who}."


def _invalid(printed: Sequence[MetricTable]) -> Iterator[str]:
    """Yield how many answers of each run were invalid, on all its subsets together, the largest share first."""
    for layout in {table.benchmark: table.layout for table in printed}.values():
        of = [table for table in printed if table.benchmark == layout.benchmark]
        rows = {row.name: row for table in of for row in table.rows if row.reports}
        found = [
            (name, sum(report.invalid for report in row.reports), sum(report.answers for report in row.reports))
            for name, row in rows.items()
        ]
        found.sort(key=lambda one: -one[1] / max(one[2], 1))
        counts = [f"{run} {invalid} of {answers}" for run, invalid, answers in found if invalid]
        if counts:
            yield f"{layout.invalid_as}: {bounded(counts)}."


def _repeats(printed: Sequence[MetricTable]) -> Iterator[str]:
    """Yield how many repeats runs have, and for which figures more would pay."""
    reports = [(table.metric.name, of.report) for table in printed for of in table.figures if of.report]
    repeated = [(name, report, report.repeats) for name, report in reports if report.repeats]
    if counts := {f"{report.run} {repeats.repeats}" for _, report, repeats in repeated}:
        yield f"Each user counts with the mean over its repeats: {bounded(sorted(counts))}."
    paying = dict[str, None]()
    for name, report, repeats in repeated:
        of = repeats.components.get(name)
        if of and of.share is not None and of.share > PAYS and of.removable is not None:
            needed = of.within * (1 - PAYS) / PAYS
            enough = f"up to {math.ceil(needed / of.between)}" if of.between * MOST_REPEATS > needed else "any number"
            shorter = f"intervals at most {100 * of.removable:.0f} % shorter"
            paying[f"{report.run} on {report.subset}, {name}: {enough} ({shorter})"] = None
    if paying:
        yield f"More repeats would pay: {bounded(paying, '; ')}."


def bounded(entries: Iterable[str], between: str = ", ") -> str:
    """Return the first entries, and how many more there are."""
    there = list(entries)
    return between.join(there[:MOST]) + (f" and {len(there) - MOST} more" if len(there) > MOST else "")


# What is in no table


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Runs and subsets without a row: those in `nobody` have no scored user, `unfinished` ones no report yet;
    `unscored` are results of another program."""

    nobody: tuple[tuple[str, str], ...]
    unfinished: tuple[tuple[str, str], ...]
    unscored: tuple[Imported, ...] = ()

    @property
    def outdated(self) -> set[tuple[str, str]]:
        """Return run and subset of reports, as `Scored` has them, whose results were written again since."""
        return {(_text(one.name), one.files.subset) for one in self.unscored}

    def sentences(self) -> list[str]:
        """Return a line for each kind that occurs."""
        kinds = (self.nobody, "no user is scored"), (self.unfinished, f"unfinished: no report yet; {UNFINISHED}")
        return [f"Left out: {_by_run(which)} ({why})." for which, why in kinds if which] + self._unscored()

    def _unscored(self) -> list[str]:
        """Return a line for each folder of another program's results that are not scored as they are now."""
        each = {one.name: f"{one.label}: {one.remedy}." for one in self.unscored}
        return [_text(line) for line in each.values()]

    def nothing_else(self, results: Path, names: Sequence[str]) -> str:
        """Return why there is nothing to show of the named runs (of all if none is named)."""
        number = len(self.unfinished)
        unfinished = f"{plural(number, 'unfinished run')}: {UNFINISHED}" if number else ""
        if self.nobody:
            also = f", and {unfinished}" if unfinished else ""
            return f"no user is scored in {_by_run(self.nobody)} under {results}{also}"
        if not number and self.unscored:
            return f"no reports under {results}. {' '.join(self._unscored()[:MOST])}"
        of = f" of {bounded(map(in_brief, dict.fromkeys(names)))}" if names else ""
        return f"no reports{of} under {results}{f', but {unfinished}' if unfinished else ': run something first'}"


def left_out(reports: Sequence[Scored], there: Collection[Path], results: Path, names: Sequence[str]) -> LeftOut:
    """Return which of the named runs (of all if none is named) are in no table.

    `there` are the files of all reports, also of those that could not be read.
    """
    nobody = tuple((report.run, report.subset) for report in reports if not report.scored)
    unfinished = tuple(
        (_text(files.folder.name), _text(files.subset))
        for files in runs(results)
        if (not names or files.folder.name in names) and files.report("json") not in there
    )
    unscored = (one for one in imported(results) if (not names or one.name in names) and not one.is_current)
    return LeftOut(nobody, unfinished, tuple(unscored))


def _text(name: str) -> str:
    return fsencode(name).decode("utf-8", "backslashreplace")  # a file's name may be no text


def _by_run(which: Iterable[tuple[str, str]]) -> str:
    of: dict[str, list[str]] = {}
    for run, subset in which:
        of.setdefault(run, []).append(subset)
    return bounded((f"{run} on {', '.join(subsets)}" for run, subsets in of.items()), "; ")
