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
    # The module's default is CRLF, whose CR tools on Unix take for a part of the last cell.
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
    if data["ci95"]:
        data["from"], data["to"] = data["ci95"]
    else:
        data["approximate"] = None

    for name in ("value", "from", "to", "ranked_value", "chance", "chance_error", "bias"):
        if data.get(name) is not None:
            data[name] = metric.text(data[name])

    # A share of the answers, whatever the metric's own unit.
    if figure.following is not None:
        data["following"] = SHARE.text(figure.following)
    if not row.reports:
        data["complete"] = None

    data |= {
        "benchmark": standing.benchmark,
        "metric": metric.name,
        "run": row.name,
        # No subset of several may have this name.
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
        data: JSON = {
            "benchmark": standing.benchmark,
            "metric": name,
            "run": row.name,
            "subset": report.subset,
            "value": plain_amount(money.amount),
            "unit": money.currency,
            "users": report.scored,
            "expected": report.expected,
            "answers": report.answers,
            "invalid": report.invalid,
            "complete": report.complete,
            "published": False,
            "what": about_run(row.reports),
        }
        if money.high is not None:
            data |= {"from": plain_amount(money.least), "to": plain_amount(money.most)}

        yield _in_cells(data)


def _in_cells(data: JSON) -> JSON:
    """Return the cells of a line; what is true or not is yes or no there."""
    cells: JSON = {}
    for name in CSV_COLUMNS:
        value = data.get(name)
        if name in NAMES:
            # A name may be somebody else's, and a spreadsheet would compute one that begins with
            # `=`.
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
            # null where a run lacks a subset: all runs have the same keys.
            by_run[row.name] = figures = dict.fromkeys(row.figures)
            for column, figure in row.figures.items():
                if figure:
                    figures[column] = _figure(standing, figure)

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
            ranks[row.name] = {
                "subsets": row.subsets,
                "value": row.mean.number,
                **_rank(row.mean.rank),
            }

    return ranks


def _rank(rank: Rank | None) -> JSON:
    if rank is None:
        return {"rank": None, "separable": None}

    return {"rank": rank.place, "separable": rank.separable}


def _figure(standing: Standing, figure: StandingFigure) -> JSON:
    """Return a figure with how many users have it and how many should, of how many answers how many
    were invalid, and what ranks it."""
    value = figure.value
    chance, chance_error = figure.chance or (None, None)
    data: JSON = {
        "value": value.value,
        "ci95": value.ci95,
        "users": value.users,
        "expected": None,
        "answers": None,
        "invalid": None,
        "complete": figure.complete,
        "place": figure.place,
        **_rank(figure.rank),
        "ranked_by": None,
        "ranked_value": None,
        "ranked_users": None,
        "following": figure.following,
        "chance": chance,
        "chance_error": chance_error,
        "approximate": bool(value.approximate),
        "bias": figure.bias,
    }
    report = figure.report
    # A mean and a published figure are of no single report.
    if report:
        data |= {
            "expected": report.expected,
            "answers": report.answers,
            "invalid": report.invalid,
        }

    if figure.ranked:
        data |= {
            "ranked_by": standing.ranking,
            "ranked_value": figure.number,
            "ranked_users": figure.shown.users,
        }

    return data
