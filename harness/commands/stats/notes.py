"""The notes under the tables of `stats`: what their marks mean, and what a reader must know about
the runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain

from harness.commands.stats.run_reports import RunReport, grouped
from harness.commands.stats.standings import (
    AVERAGE,
    MIN_FOLLOWING,
    Standing,
    StandingFigure,
    comparable_groups,
    metrics_without_skill,
)
from harness.scoring.intervals import FEWEST

MAX_NAMED = 10
"""Runs or reports that a sentence names."""
BEST = "Bold: best of its column, underlined: second; of complete runs, same prompt and tasks."
CHANCE = "Chance: random answers to the same tasks; ±: standard error, where it is drawn."
BIAS = "Bias: of the mean, by the number of users (jackknife)."
RANK = "Rank: among runs of the same prompt and tasks; =: not separable from the best."
APPROXIMATE = (
    f"~: shows the order of magnitude alone: fewer than {FEWEST} users, or few that differ."
)


def notes(
    standings: Sequence[Standing],
    *,
    places: bool = True,
    intervals: bool = True,
) -> list[str]:
    """Return what a reader of these tables must know, a line for each fact that occurs; of best and
    second best only if these `places` are shown, and of intervals likewise."""
    figures = list(chain.from_iterable(standing.figures for standing in standings))
    lines = list(_partial(figures))
    for standing in standings:
        if AVERAGE in standing.columns:
            size = len(standing.subsets)
            lines.append(f"{AVERAGE}: of runs that are complete on all {size} subsets.")

    if places and any(figure.place for figure in figures):
        lines += [BEST, *_settings(standings)]

    lines += _rules(standings)
    lines += _without_skill(standings)
    if any(standing.chance for standing in standings):
        lines.append(CHANCE)
    if any(figure.bias is not None for figure in figures):
        lines.append(BIAS)

    lines += _ranks(standings)
    if intervals and any(figure.shown.approximate for figure in figures):
        lines.append(APPROXIMATE)

    lines += _about_reports(standings)
    lines += [standing.source.note for standing in standings if standing.source]

    # The metrics of one benchmark have most notes in common.
    return list(dict.fromkeys(lines))


def _partial(figures: Iterable[StandingFigure]) -> Iterator[str]:
    """Yield which runs are INCOMPLETE, and how many users the marked figures cover, the smallest
    share first."""
    partial = {}
    for figure in figures:
        if figure.report and not figure.complete:
            partial[figure.report.key] = figure.report

    incomplete: dict[tuple[str, str], list[str]] = {}
    covered: dict[tuple[str, str], list[str]] = {}
    for report in sorted(
        partial.values(), key=lambda report: report.scored / max(report.users_in_tasks, 1)
    ):
        covered.setdefault((report.run, report.covered), []).append(report.subset)
        if report.is_incomplete:
            users = f"{report.scored} of {report.expected}"
            incomplete.setdefault((report.run, users), []).append(report.subset)

    if incomplete:
        yield f"INCOMPLETE, not all chosen users are scored: {_users_text(incomplete)}."
    if covered:
        yield f"*: only some users of the tasks file: {_users_text(covered)}."


def _users_text(subsets: Mapping[tuple[str, str], Sequence[str]]) -> str:
    """Return the users of each run, with the subsets on which they are as many."""
    return bounded(
        (f"{run} on {', '.join(names)} {users}" for (run, users), names in subsets.items()), "; "
    )


def _settings(standings: Sequence[Standing]) -> Iterator[str]:
    """Yield the settings of runs that are ranked together although these differ."""
    differing: dict[str, str] = {}
    for group in chain.from_iterable(map(comparable_groups, standings)):
        reports = [figure.report for figure in group.figures.values() if figure.report]
        # Settings may differ between runs that compare; their prompt and tasks may not.
        if len({report.settings for report in reports}) < 2:
            continue

        for report in reports:
            if report.settings:
                differing[report.run] = f"{report.run}: {', '.join(report.settings)}"

    if differing:
        yield f"Ranked together with other settings: {bounded(differing.values(), '; ')}."


def _rules(standings: Sequence[Standing]) -> Iterator[str]:
    """Yield what ranks where answers against the rules could win, how many of the answers figures
    are over that leave some out, the smallest share first, and which runs are not ranked
    therefore."""
    ranked_by_others = []
    shares = list[tuple[float, str]]()
    runs_by_reason: dict[str, list[str]] = {}
    for standing in standings:
        if standing.is_ranked_by_other:
            ranked_by_others.append(f"{standing.label} by {standing.ranking}")

        for figure in standing.figures:
            if not figure.report:
                continue

            reason = _not_ranked_reason(figure)
            if reason and not standing.metric.unranked:
                run = f"{figure.report.run} ({standing.ranking})"
                runs_by_reason.setdefault(reason, []).append(run)

            shares += _following_share(standing, figure, figure.report)

    if ranked_by_others:
        yield (
            "Ranked by what answers against the rules cannot win:"
            f" {', '.join(ranked_by_others)}; as published in brackets."
        )

    if shares:
        texts = (text for _, text in sorted(shares))
        yield f"Over the answers that keep the rules: {bounded(texts, '; ')}."

    for reason, runs in runs_by_reason.items():
        yield f"Not ranked ({reason}): {bounded(runs)}."


def _not_ranked_reason(figure: StandingFigure) -> str:
    """Return why the answers of a run do not rank it; empty if they do."""
    if not figure.ranking_value:
        return "no answer keeps the rules, or the report is old: run reeval"
    if figure.following is None:
        return "report of an earlier version: run reeval"
    if figure.following < MIN_FOLLOWING:
        return f"fewer than {100 * MIN_FOLLOWING:.0f} % of the answers keep the rules"

    return ""


def _following_share(
    standing: Standing,
    figure: StandingFigure,
    report: RunReport,
) -> Iterator[tuple[float, str]]:
    """Yield the share of the answers that a figure is over, for sorting and as text, unless it is
    over all."""
    share, value = figure.following, figure.ranking_value
    if value and share is not None and share < 1:
        users = f"{100 * share:.1f} % ({value.users} of {report.scored} users)"
        yield share, f"{report.run} on {report.subset}, {standing.label}: {users}"


def _without_skill(standings: Sequence[Standing]) -> Iterator[str]:
    """Yield which runs have no marks since headline figures of theirs are not better than
    chance."""
    metrics_by_run: dict[str, list[str]] = {}
    for standing in standings:
        if standing.metric.unranked:
            continue

        for report in standing.reports:
            names = metrics_without_skill(report, standing)
            if names:
                metrics_by_run.setdefault(report.run, []).extend(names)

    if metrics_by_run:
        runs = []
        for run, names in metrics_by_run.items():
            runs.append(f"{run} ({', '.join(dict.fromkeys(names))})")

        yield f"Never marked, not shown to be better than chance: {bounded(runs, '; ')}."


def _ranks(standings: Sequence[Standing]) -> Iterator[str]:
    """Yield which metrics do not rank, what a rank is, and which runs are ranked in a mean over
    some of the subsets."""
    for standing in standings:
        if standing.metric.unranked:
            yield f"{standing.label} is not ranked: {standing.metric.unranked}."

    rows = chain.from_iterable(standing.rows for standing in standings)
    if any(row.rank for row in rows):
        yield RANK

    runs_by_subsets: dict[tuple[str, ...], list[str]] = {}
    for standing in standings:
        runs_by_subsets |= standing.subsets_ranked_apart

    if runs_by_subsets:
        runs = (f"{bounded(names)} on {', '.join(key)}" for key, names in runs_by_subsets.items())
        yield f"Ranked in the mean over the same subsets: {bounded(runs, '; ')}."


def _about_reports(standings: Sequence[Standing]) -> Iterator[str]:
    """Yield how many answers were invalid, which runs have repeats, and whose tasks are
    synthetic."""
    # A report is in the standings of all metrics of its benchmark.
    by_key = {}
    for report in chain.from_iterable(standing.reports for standing in standings):
        by_key[report.key] = report

    reports = by_key.values()
    yield from _invalid(reports)
    repeated = []
    synthetic = []
    for report in reports:
        if report.repeats:
            repeated.append(f"{report.run} {report.repeats.repeats}")
        if report.report.is_synthetic:
            synthetic.append(report.run)

    if repeated:
        yield f"Each user counts with the mean over its repeats: {bounded(sorted(repeated))}."

    if synthetic:
        is_all = {report.run for report in reports} == set(synthetic)
        names = "All runs" if is_all else ", ".join(dict.fromkeys(synthetic))
        yield f"{names}: synthetic tasks, which say nothing about real users."


def _invalid(reports: Iterable[RunReport]) -> Iterator[str]:
    """Yield how many answers of each run were invalid, on all its subsets together, the largest
    share first."""
    runs = grouped(((report.report.invalid_as, report.run), report) for report in reports)
    # Each benchmark has its own sentence on what becomes of invalid answers.
    shares: dict[str, list[tuple[float, str]]] = {}
    for (rule, run), reports_of_run in runs.items():
        invalid = sum(report.invalid for report in reports_of_run)
        answers = sum(report.answers for report in reports_of_run)
        if invalid:
            text = f"{run} {invalid} of {answers}"
            shares.setdefault(rule, []).append((-invalid / answers, text))

    for rule, counts in shares.items():
        yield f"{rule}: {bounded(text for _, text in sorted(counts))}."


def bounded(entries: Iterable[str], separator: str = ", ") -> str:
    """Return the first entries, each once, and how many more there are."""
    texts = list(dict.fromkeys(entries))
    text = separator.join(texts[:MAX_NAMED])
    if len(texts) > MAX_NAMED:
        text += f" and {len(texts) - MAX_NAMED} more"

    return text
