"""What runs cost, next to their scores: a table for each benchmark, if the price of any of its runs
is known."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

import msgspec

from harness.commands.stats.leaderboard import RUN, cells
from harness.commands.stats.notes import bounded
from harness.commands.stats.run_reports import RunReport
from harness.commands.stats.standings import Standing, StandingRow
from harness.cost import Cost, each, money_text, plain, together
from harness.document import Table, without_empty_columns
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
class RunCost:
    """What a run cost on those of its subsets whose tokens are known, together."""

    costs: tuple[tuple[RunReport, Cost], ...]

    @property
    def users(self) -> int:
        """Return the scored users of these subsets."""
        return sum(report.scored for report, _ in self.costs)

    @property
    def money(self) -> tuple[Money, ...]:
        """Return the cost in each currency."""
        return together(cost.money for _, cost in self.costs)

    @property
    def money_per_user(self) -> tuple[Money, ...]:
        """Return the cost of a scored user in each currency, of the subsets whose price is
        known."""
        users = sum(report.scored for report, cost in self.costs if cost.money)
        return each(self.money, users)

    def total(self, name: str) -> int:
        """Return a count of `Cost`, over the subsets."""
        return sum(getattr(cost, name) for _, cost in self.costs)


def run_cost(reports: Iterable[RunReport]) -> RunCost:
    """Return what the reports of one run cost."""
    costs = ((report, report.report.cost) for report in reports)
    return RunCost(tuple((report, cost) for report, cost in costs if cost))


def is_known(reports: Sequence[RunReport]) -> bool:
    """Return whether the cost of any report is known."""
    return bool(run_cost(reports).money)


def first_priced(standings: Sequence[Standing]) -> list[Standing]:
    """Return the first metric of each benchmark that has a run whose cost is known."""
    first_by_benchmark: dict[str, Standing] = {}
    for standing in standings:
        first_by_benchmark.setdefault(standing.benchmark, standing)

    return [standing for standing in first_by_benchmark.values() if is_known(standing.reports)]


def table(standing: Standing, *, notes: bool) -> Table:
    """Return what the runs of a benchmark cost, next to their means in one metric."""
    rows = tuple((row.label, *cells(standing, row.mean), *_cells(row)) for row in standing.runs)
    columns = (RUN, f"{standing.label}, {standing.mean}", *COLUMNS)
    table_notes = tuple(cost_notes([standing])) if notes else ()
    title = f"Cost ({standing.benchmark})"

    return without_empty_columns(Table(columns, rows, title, table_notes))


def _cells(row: StandingRow) -> Sequence[str]:
    run = run_cost(row.reports)
    if not run.costs:  # a baseline, or a report of an earlier version
        return [""] * len(COLUMNS)

    prompt, completion = map(sum, zip(*(cost.tokens for _, cost in run.costs), strict=True))

    return (
        money_text(run.money),
        money_text(run.money_per_user),
        _per_user(prompt, run.users),
        _per_user(completion, run.users),
        _share(run.total("cached_tokens"), run.total("prompt_tokens")),
        _share(run.total("reasoning_tokens"), completion),
    )


def _per_user(tokens: int, users: int) -> str:
    return f"{tokens / users:.0f}" if users else ""


def _share(tokens: int, total: int) -> str:
    # 0 is mostly an endpoint that does not report them, so the cell claims nothing.
    return f"{100 * tokens / total:.1f} %" if tokens else ""


def cost_notes(standings: Sequence[Standing]) -> list[str]:
    """Return how costs were counted, and every price."""
    reports = chain.from_iterable(standing.reports for standing in standings)
    costs = run_cost(reports).costs
    if not costs:
        return []

    lines = [COUNTED]
    if any(cost.requests_without_usage for _, cost in costs):
        lines.append(ESTIMATED)
    if any(cost.money and cost.money.high is not None for _, cost in costs):
        lines.append(BOUNDED)

    # Prices may differ between the subsets of a run, and change while it is continued.
    for report, cost in costs:
        priced = " and ".join([report.report.model, *report.role_models.values()])
        lines += [f"Price of {priced}: {price.described}." for price in cost.prices]

    unpriced = [report.run for report, cost in costs if not cost.price]
    if unpriced:
        lines.append(f"Tokens only, since no price is known: {bounded(unpriced)}.")

    return list(dict.fromkeys(lines))


def as_json(standings: Sequence[Standing]) -> JSON:
    """Return the cost of each run and subset: its counts, the exact amount and that of a user as
    text, the price."""
    reports: dict[tuple[str, str], RunReport] = {}
    for standing in standings:
        reports |= {report.key: report for report in standing.reports}

    by_run: JSON = {}
    for report, cost in run_cost(reports.values()).costs:
        per_user = run_cost([report]).money_per_user
        data = msgspec.to_builtins(cost)
        data["users"] = report.scored
        # As text: a reader of JSON would make a float of a number, which is not exact.
        data["amount_per_user"] = plain(per_user[0].amount) if per_user else None
        by_run.setdefault(report.run, {})[report.subset] = data

    return by_run


def amounts(standing: Standing) -> Iterator[tuple[str, StandingRow, RunReport, Money]]:
    """Yield name, row, report and amount of each cost for CSV."""
    for row in standing.runs:
        for report in row.reports:
            # Without a price there is no amount.
            run = run_cost([report])
            for amount in run.money:
                yield "cost", row, report, amount

            for amount in run.money_per_user:
                yield "cost a user", row, report, amount
