"""The notes under the tables of `stats`: what their marks mean, and what a reader must know about
the runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from harness.commands.stats.run_reports import RunReport
from harness.commands.stats.standings import AVERAGE, ENOUGH, Standing, groups, without_skill
from harness.scoring.intervals import FEWEST

MOST = 10
"""Runs or reports that a sentence names."""
BEST = "Bold: best of its column, underlined: second; of complete runs, same prompt and tasks."
CHANCE = "Chance: random answers to the same tasks; ±: standard error, where it is drawn."
BIAS = "Bias: of the mean, by the number of users (jackknife)."
RANK = "Rank: among runs of the same prompt and tasks; =: not separable from the best."
APPROXIMATE = (
    f"~: shows the order of magnitude alone: fewer than {FEWEST} users, or few that differ."
)
Reports = dict[tuple[str, str], RunReport]


def notes(
    standings: Sequence[Standing], *, places: bool = True, intervals: bool = True
) -> list[str]:
    """Return what a reader of these tables must know, a line for each fact that occurs; of best and
    second best only if these `places` are shown, and of intervals likewise."""
    shown = [figure for standing in standings for figure in standing.figures]
    reports = {(of.run, of.subset): of for standing in standings for of in standing.reports}
    lines = [
        *_partial(
            {
                (of.run, of.subset): of
                for figure in shown
                if (of := figure.report) and not figure.complete
            }
        )
    ]
    sizes = {len(standing.subsets) for standing in standings if AVERAGE in standing.columns}
    lines += [f"{AVERAGE}: of runs that are complete on all {size} subsets." for size in sizes]
    if places and any(figure.place for figure in shown):
        lines += [BEST, *_settings(standings)]
    lines += [*_rules(standings), *_without_skill(standings)]
    lines += [CHANCE] if any(standing.chance for standing in standings) else []
    lines += [BIAS] if any(figure.bias is not None for figure in shown) else []
    lines += [
        f"{standing.label} is not ranked: {why}."
        for standing in standings
        if (why := standing.metric.unranked)
    ]
    lines += [RANK] if any(row.rank for standing in standings for row in standing.rows) else []
    apart = {
        subsets: runs
        for standing in standings
        for subsets, runs in standing.subsets_ranked_apart.items()
    }
    if apart:
        each = (f"{bounded(runs)} on {', '.join(subsets)}" for subsets, runs in apart.items())
        lines.append(f"Ranked in the mean over the same subsets: {bounded(each, '; ')}.")
    lines += (
        [APPROXIMATE] if intervals and any(figure.shown.approximate for figure in shown) else []
    )
    lines += _invalid(reports.values())
    if repeated := sorted(
        {f"{of.run} {of.repeats.repeats}" for of in reports.values() if of.repeats}
    ):
        lines.append(f"Each user counts with the mean over its repeats: {bounded(repeated)}.")
    if synthetic := dict.fromkeys(of.run for of in reports.values() if of.is_synthetic):
        runs = (
            "All runs" if synthetic.keys() == {run for run, _ in reports} else ", ".join(synthetic)
        )
        lines.append(f"{runs}: synthetic tasks, which say nothing about real users.")
    lines += [standing.source.note for standing in standings if standing.source]
    return list(dict.fromkeys(lines))


def _partial(partial: Reports) -> Iterator[str]:
    """Yield which runs are INCOMPLETE, and how many users the marked figures cover, the smallest
    share first."""
    ordered = sorted(partial.values(), key=lambda report: report.scored / max(report.in_tasks, 1))
    incomplete = [report for report in ordered if report.is_incomplete]
    yield from _covered(
        "INCOMPLETE, not all chosen users are scored",
        incomplete,
        lambda of: f"{of.scored} of {of.expected}",
    )
    yield from _covered("*: only some users of the tasks file", ordered, lambda of: of.covered)


def _covered(
    what: str, reports: Iterable[RunReport], users: Callable[[RunReport], str]
) -> Iterator[str]:
    """Yield a line with the users of each run, subsets that are alike together."""
    alike: dict[tuple[str, str], list[str]] = {}
    for report in reports:
        alike.setdefault((report.run, users(report)), []).append(report.subset)
    if alike:
        each = (f"{run} on {', '.join(subsets)} {count}" for (run, count), subsets in alike.items())
        yield f"{what}: {bounded(each, '; ')}."


def _settings(standings: Sequence[Standing]) -> Iterator[str]:
    """Yield the settings of runs that are ranked together although these differ."""
    differing: dict[str, str] = {}
    for standing in standings:
        for _, _, group in groups(standing):
            of = {
                figure.report.run: figure.report.settings
                for figure in group.values()
                if figure.report
            }
            if len(set(of.values())) > 1:
                differing |= {
                    run: f"{run}: {', '.join(settings)}" for run, settings in of.items() if settings
                }
    if differing:
        yield f"Ranked together with other settings: {bounded(differing.values(), '; ')}."


def _rules(standings: Sequence[Standing]) -> Iterator[str]:
    """Yield what ranks where answers against the rules could win, how many of the answers figures
    are over that leave some out, the smallest share first, and which runs are not ranked
    therefore."""
    others = [
        f"{standing.label} by {standing.ranking}"
        for standing in standings
        if standing.is_ranked_by_other
    ]
    if others:
        yield (
            f"Ranked by what answers against the rules cannot win: {', '.join(others)}; as"
            " published in brackets."
        )
    shares = list[tuple[float, str]]()
    reasons: dict[str, dict[str, None]] = {}
    figures = [(standing, figure) for standing in standings for figure in standing.figures]
    for standing, figure in figures:
        if not (report := figure.report):
            continue
        if not (by := figure.by):
            why = "no answer keeps the rules, or the report is old: run reeval"
        elif figure.following is None:
            why = "report of an earlier version: run reeval"
        elif figure.following < ENOUGH:
            why = f"fewer than {100 * ENOUGH:.0f} % of the answers keep the rules"
        else:
            why = ""
        if why and not standing.metric.unranked:
            reasons.setdefault(why, {})[f"{report.run} ({standing.ranking})"] = None
        if by and figure.following is not None and figure.following < 1:
            users = f"{100 * figure.following:.1f} % ({by.users} of {report.scored} users)"
            shares.append(
                (figure.following, f"{report.run} on {report.subset}, {standing.label}: {users}")
            )
    if shares:
        yield (
            "Over the answers that keep the rules:"
            f" {bounded((text for _, text in sorted(shares)), '; ')}."
        )
    yield from (f"Not ranked ({why}): {bounded(runs)}." for why, runs in reasons.items())


def _without_skill(standings: Sequence[Standing]) -> Iterator[str]:
    """Yield which runs have no marks since headline figures of theirs are not better than
    chance."""
    by_run: dict[str, dict[str, None]] = {}
    for standing in standings:
        for report in standing.reports if not standing.metric.unranked else ():
            for name in without_skill(report, standing):
                by_run.setdefault(report.run, {})[name] = None
    if by_run:
        each = (f"{run} ({', '.join(names)})" for run, names in by_run.items())
        yield f"Never marked, not shown to be better than chance: {bounded(each, '; ')}."


def _invalid(reports: Iterable[RunReport]) -> Iterator[str]:
    """Yield how many answers of each run were invalid, on all its subsets together, the largest
    share first."""
    runs: dict[tuple[str, str], list[RunReport]] = {}
    for report in reports:
        runs.setdefault((report.report.invalid_as, report.run), []).append(report)
    rules: dict[str, list[tuple[float, str]]] = {}
    for (rule, run), some in runs.items():
        invalid, answers = (
            sum(report.invalid for report in some),
            sum(report.answers for report in some),
        )
        if invalid:
            rules.setdefault(rule, []).append((-invalid / answers, f"{run} {invalid} of {answers}"))
    yield from (
        f"{rule}: {bounded(text for _, text in sorted(counts))}." for rule, counts in rules.items()
    )


def bounded(entries: Iterable[str], between: str = ", ") -> str:
    """Return the first entries, and how many more there are."""
    there = list(entries)
    return between.join(there[:MOST]) + (
        f" and {len(there) - MOST} more" if len(there) > MOST else ""
    )
