"""What runs cost, next to their scores: a table for each benchmark, if the price of any of its runs
is known."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec

from harness.commands.stats.leaderboard import RUN, cells
from harness.commands.stats.notes import bounded
from harness.commands.stats.run_reports import RunReport
from harness.commands.stats.standings import Row, Standing
from harness.cost import Cost, each, money_text, plain, together
from harness.document import Cell, Table, without_empty_columns
from harness.model import JSON, Money

COLUMNS = ("cost", "cost a user", "tokens a user: prompt", "completion", "cached", "reasoning")
COUNTED = (
    "Cost: of all saved replies, also of users that are not scored, each at the price of its time."
)
ESTIMATED = (
    "About: without reported usage, tokens are estimated from bytes by the run's own ratios."
)
BOUNDED = "Bounds: from what the endpoint reported, to all that may have been billed."


@dataclass(frozen=True, slots=True)
class Spent:
    """What a run cost on those of its subsets whose tokens are known, together."""

    reports: tuple[tuple[RunReport, Cost], ...]

    @property
    def users(self) -> int:
        """Return the scored users of these subsets."""
        return sum(report.scored for report, _ in self.reports)

    @property
    def money(self) -> tuple[Money, ...]:
        """Return the cost in each currency."""
        return together(cost.money for _, cost in self.reports)

    @property
    def each(self) -> tuple[Money, ...]:
        """Return the cost of a scored user in each currency, of the subsets whose price is
        known."""
        return each(self.money, sum(report.scored for report, cost in self.reports if cost.money))

    def total(self, name: str) -> int:
        """Return a count of `Cost`, over the subsets."""
        return sum(getattr(cost, name) for _, cost in self.reports)


def spent(reports: Sequence[RunReport]) -> Spent:
    """Return what the reports of one run cost."""
    return Spent(tuple((report, report.report.cost) for report in reports if report.report.cost))


def is_known(reports: Sequence[RunReport]) -> bool:
    """Return whether the cost of any report is known."""
    return bool(spent(reports).money)


def first(standings: Sequence[Standing]) -> list[Standing]:
    """Return the first metric of each benchmark that has a run whose cost is known."""
    by_benchmark = {standing.benchmark: standing for standing in reversed(standings)}
    return [standing for standing in reversed(by_benchmark.values()) if is_known(standing.reports)]


def table(standing: Standing, *, notes: bool) -> Table:
    """Return what the runs of a benchmark cost, next to their means in one metric."""
    rows = tuple((row.label, *cells(standing, row.mean), *_cells(row)) for row in standing.runs)
    columns = (RUN, f"{standing.label}, {standing.mean}", *COLUMNS)
    beneath = tuple(cost_notes([standing])) if notes else ()
    return without_empty_columns(Table(columns, rows, f"Cost ({standing.benchmark})", beneath))


def _cells(row: Row) -> list[str | Cell]:
    run = spent(row.reports)
    if not run.reports:  # a baseline, or a report of an earlier version
        return [""] * len(COLUMNS)
    tokens = [sum(cost.tokens[place] for _, cost in run.reports) for place in (0, 1)]
    a_user = (f"{total / run.users:.0f}" if run.users else "" for total in tokens)
    shares = (
        _share(run.total("cached_tokens"), run.total("prompt_tokens")),
        _share(run.total("reasoning_tokens"), tokens[1]),
    )
    return [money_text(run.money), money_text(run.each), *a_user, *shares]


def _share(tokens: int, total: int) -> str:
    return f"{100 * tokens / total:.1f} %" if tokens else ""


def cost_notes(standings: Sequence[Standing]) -> list[str]:
    """Return how costs were counted, and every price."""
    reports = [report for standing in standings for report in standing.reports]
    costs = [(report, cost) for report, cost in spent(reports).reports]
    lines = [COUNTED] if costs else []
    lines += [ESTIMATED] if any(cost.requests_without_usage for _, cost in costs) else []
    lines += (
        [BOUNDED] if any(cost.money and cost.money.high is not None for _, cost in costs) else []
    )
    lines += [
        f"Price of {report.report.model}: {price.described}."
        for report, cost in costs
        for price in cost.prices
    ]
    if unpriced := dict.fromkeys(report.run for report, cost in costs if not cost.price):
        lines.append(f"Tokens only, since no price is known: {bounded(unpriced)}.")
    return list(dict.fromkeys(lines))


def as_json(standings: Sequence[Standing]) -> JSON:
    """Return the cost of each run and subset: its counts, the exact amount and that of a user as
    text, the price."""
    reports = {
        (report.run, report.subset): report for standing in standings for report in standing.reports
    }
    by_run: JSON = {}
    for report, cost in spent(list(reports.values())).reports:
        of_user = spent([report]).each
        about = {
            "users": report.scored,
            "amount_per_user": plain(of_user[0].amount) if of_user else None,
        }
        by_run.setdefault(report.run, {})[report.subset] = {**msgspec.to_builtins(cost), **about}
    return by_run


def amounts(standing: Standing) -> Iterator[tuple[str, Row, RunReport, Money]]:
    """Yield name, row, report and amount of each cost for CSV."""
    for row in standing.runs:
        for report in row.reports:
            run = spent([report])
            for name, money in (("cost", run.money), ("cost a user", run.each)):
                yield from ((name, row, report, amount) for amount in money)
