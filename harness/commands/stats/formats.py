"""Figures of runs for programs: CSV and JSON."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence

from harness.benchmark import Metric
from harness.commands.stats import costs
from harness.commands.stats.run_reports import about_run
from harness.commands.stats.standings import AVERAGE, Rank, Standing, StandingFigure, StandingRow
from harness.cost import plain as plain_amount
from harness.model import JSON
from harness.printable import in_cell
from harness.scoring.differences import ALL

CSV_COLUMNS = (
    *("benchmark", "metric", "run", "subset", "value", "unit", "from", "to", "users", "expected"),
    *("answers", "invalid", "complete", "place", "published", "what", "rank", "separable"),
    *("ranked_by", "ranked_value", "ranked_users", "following", "chance", "chance_error"),
    *("approximate", "bias"),
)
NAMES = ("benchmark", "metric", "run", "subset", "unit", "what", "ranked_by")
SHARE = Metric("share")


def as_csv(standings: Sequence[Standing]) -> str:
    """Return one line for each figure and cost, so that every benchmark and metric has the same
    columns."""
    content = io.StringIO()
    lines = csv.DictWriter(content, CSV_COLUMNS, lineterminator="\n")
    lines.writeheader()

    for standing in standings:
        for row in standing.rows:
            for column, figure in row.figures.items():
                if figure:
                    lines.writerow(_csv_line(standing, row, column, figure))

    for standing in costs.first_priced(standings):
        lines.writerows(_csv_costs(standing))

    return content.getvalue()


def _csv_line(
    standing: Standing,
    row: StandingRow,
    column: str,
    figure: StandingFigure,
) -> JSON:
    metric = standing.metric
    data = _figure(standing, figure)
    data["from"], data["to"] = data["ci95"] or (None, None)

    for name in ("value", "from", "to", "ranked_value", "chance", "chance_error", "bias"):
        if data[name] is not None:
            data[name] = metric.text(data[name])

    if figure.following is not None:
        data["following"] = SHARE.text(figure.following)
    if not data["ci95"]:
        data["approximate"] = None
    if not row.reports:
        data["complete"] = None

    data |= {
        "benchmark": standing.benchmark,
        "metric": metric.name,
        "run": row.name,
        "subset": ALL if column == AVERAGE else column,
        "unit": metric.shown_unit,
        "published": not row.reports,
        "what": about_run(row.reports),
    }

    return _in_cells(data)


def _csv_costs(standing: Standing) -> Iterator[JSON]:
    """Yield lines with a cost as the value of a metric, over the scored users, and its bounds where
    it has some."""
    for name, row, report, money in costs.amounts(standing):
        has_bounds = money.low is not None or money.high is not None
        yield _in_cells(
            {
                "benchmark": standing.benchmark,
                "metric": name,
                "run": row.name,
                "subset": report.subset,
                "value": plain_amount(money.amount),
                "unit": money.currency,
                "from": plain_amount(money.least) if has_bounds else "",
                "to": plain_amount(money.most) if has_bounds else "",
                "users": report.scored,
                "expected": report.expected,
                "answers": report.answers,
                "invalid": report.invalid,
                "complete": report.complete,
                "published": False,
                "what": about_run(row.reports),
            }
        )


def _in_cells(data: JSON) -> JSON:
    """Return the cells of a line; what is true or not is yes or no there."""
    cells: JSON = {}
    for name in CSV_COLUMNS:
        value = data.get(name)
        if name in NAMES:
            value = in_cell(value or "")
        elif isinstance(value, bool):
            value = "yes" if value else "no"

        cells[name] = value

    return cells


def as_json(standings: Sequence[Standing]) -> JSON:
    """Return figures by metric, run and column, in the metric's own unit, which for a share is a
    fraction.

    Published scores have a key of their own, as they were printed; so have the units of metrics
    that are no shares, costs, and the ranks of runs where not all have the same subsets.
    """
    data: JSON = {}
    for standing in standings:
        by_run: JSON = {}
        for row in standing.runs:
            columns = row.figures.items()
            by_run[row.name] = {
                name: figure and _figure(standing, figure) for name, figure in columns
            }

        data[standing.label] = by_run

    for standing in standings:
        metric = standing.metric
        if standing.subsets_ranked_apart:
            data.setdefault("ranks", {})[standing.label] = _ranks(standing)
        if metric.unit is not None:
            data.setdefault("units", {})[standing.label] = metric.unit

        if standing.source:
            published = data.setdefault("published", {"source": standing.source.source})
            published[standing.label] = {
                model: dict(zip(values, map(metric.shown, values.values()), strict=True))
                for model, values in standing.source.figures[metric.name].items()
            }

    if costs.first_priced(standings):
        data["costs"] = costs.as_json(standings)

    return data


def _ranks(standing: Standing) -> JSON:
    """Return the rank of each run in the mean over its subsets."""
    ranks: JSON = {}
    for row in standing.rows:
        if row.mean and row.mean.rank:
            rank = _rank(row.mean.rank)
            ranks[row.name] = {"subsets": row.subsets, "value": row.mean.ranked, **rank}

    return ranks


def _rank(rank: Rank | None) -> JSON:
    return {"rank": rank and rank.place, "separable": rank and rank.separable}


def _figure(standing: Standing, figure: StandingFigure) -> JSON:
    """Return a figure with how many users have it and how many should, of how many answers how many
    were invalid, and what ranks it."""
    report = figure.report
    ranking_value = None if figure.ranked is None else figure.ranking_value
    chance, chance_error = figure.chance or (None, None)

    return {
        "value": figure.value.value,
        "ci95": figure.value.ci95,
        "users": figure.value.users,
        "expected": report and report.expected,
        "answers": report and report.answers,
        "invalid": report and report.invalid,
        "complete": figure.complete,
        "place": figure.place,
        **_rank(figure.rank),
        "ranked_by": standing.ranking if ranking_value else None,
        "ranked_value": ranking_value and ranking_value.value,
        "ranked_users": ranking_value and ranking_value.users,
        "following": figure.following,
        "chance": chance,
        "chance_error": chance_error,
        "approximate": bool(figure.value.approximate),
        "bias": figure.bias,
    }
