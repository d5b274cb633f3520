"""What runs cost, next to their scores: of each benchmark a table, if the price of any of its runs is known."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec

from harness.commands.stats.footnotes import bounded
from harness.commands.stats.grid import Grid, Number
from harness.commands.stats.reports import Scored
from harness.commands.stats.tables import MEAN, MetricTable, Row
from harness.cost import Cost, each, money_text, plain, together
from harness.model import JSON, Money

COLUMNS = ("cost", "cost a user", "tokens a user: prompt", "completion", "cached", "reasoning")
COUNTED = "Cost: of all saved replies, of users that are not scored too, each at the price of its time."
ESTIMATED = "About: where the endpoint reported no usage, tokens are estimated from bytes by the run's own ratios."
BOUNDED = (
    "Bounds: at least what the endpoint reported; at most also tries without a reply that may have been billed, and "
    "what it did not report as the most that it may be."
)


@dataclass(frozen=True, slots=True)
class Spent:
    """What a run cost on those of its subsets whose tokens are known, together."""

    reports: tuple[tuple[Scored, Cost], ...]

    @property
    def users(self) -> int:
        """Return the scored users of these subsets."""
        return sum([report.scored for report, _ in self.reports])

    @property
    def money(self) -> tuple[Money, ...]:
        """Return the cost in each currency."""
        return together(cost.money for _, cost in self.reports)

    @property
    def each(self) -> tuple[Money, ...]:
        """Return the cost of a scored user in each currency, of the subsets whose price is known."""
        return each(self.money, sum([report.scored for report, cost in self.reports if cost.money]))

    def total(self, name: str) -> int:
        """Return a count of `Cost`, over the subsets."""
        return sum([getattr(cost, name) for _, cost in self.reports])


def spent(reports: Sequence[Scored]) -> Spent:
    """Return what the reports of one run cost."""
    return Spent(tuple((report, report.cost) for report in reports if report.cost))


def is_known(reports: Sequence[Scored]) -> bool:
    """Return whether the cost of any report is known."""
    return any(report.cost and report.cost.money for report in reports)


def grids(chosen: Sequence[MetricTable]) -> list[Grid]:
    """Return a table for each benchmark with the first of its chosen metrics and what its runs cost."""
    return [
        Grid(
            f"Cost ({table.benchmark})",
            "run",
            (f"{table.label}, {table.same_mean or MEAN}", *COLUMNS),
            (tuple((row.label, _cells(table, row)) for row in table.runs),),
            tuple(_notes(table.reports)),
            f"cost {table.benchmark}",
        )
        for table in first(chosen)
    ]


def notes(chosen: Sequence[MetricTable]) -> list[str]:
    """Return what a reader of these tables must know."""
    return list(dict.fromkeys(note for table in first(chosen) for note in _notes(table.reports)))


def first(chosen: Sequence[MetricTable]) -> list[MetricTable]:
    """Return the first table of each benchmark that has a run whose cost is known."""
    of = {table.benchmark: table for table in reversed(chosen)}
    return [table for table in reversed(of.values()) if is_known(table.reports)]


def _cells(table: MetricTable, row: Row) -> tuple[Number | None, ...]:
    of, figure = spent(row.reports), row.own
    score = None
    if figure:
        text, published = table.metric.text(figure.shown.value), table.published(figure)
        score = Number(text, None, not figure.complete, published=published)
    if not of.reports:  # a baseline, or a report of before
        return (score, *(None for _ in COLUMNS))
    into, out = (sum([cost.tokens[place] for _, cost in of.reports]) for place in (0, 1))
    texts = (
        money_text(of.money),
        money_text(of.each),
        *(f"{total / of.users:.0f}" if of.users else "" for total in (into, out)),
        _share(of.total("cached_tokens"), of.total("prompt_tokens")),
        _share(of.total("reasoning_tokens"), out),
    )
    return (score, *(Number(text) if text else None for text in texts))


def _share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f} %" if part else ""


def _notes(reports: Sequence[Scored]) -> Iterator[str]:
    """Yield how costs were counted, and every price."""
    yield COUNTED
    if any(report.cost and report.cost.requests_without_usage for report in reports):
        yield ESTIMATED
    if any(report.cost and report.cost.money and report.cost.money.high is not None for report in reports):
        yield BOUNDED
    priced = [(report.model, price) for report in reports if report.cost for price in report.cost.prices]
    yield from dict.fromkeys(f"Price of {model}: {price.described}." for model, price in priced)
    if unknown := dict.fromkeys(report.run for report in reports if report.cost and not report.cost.price):
        yield f"Tokens only, since no price is known: {bounded(unknown)}."


def as_json(chosen: Sequence[MetricTable]) -> JSON:
    """Return the cost of each run and subset: its counts, the exact amount and that of a user as text, the price."""
    reports = {(report.run, report.subset): report for table in chosen for report in table.reports}
    made: JSON = {}
    for (run, subset), report in reports.items():
        if report.cost:
            of_each = spent([report]).each
            about = {"users": report.scored, "amount_per_user": plain(of_each[0].amount) if of_each else None}
            made.setdefault(run, {})[subset] = {**msgspec.to_builtins(report.cost), **about}
    return made


def lines(table: MetricTable) -> Iterator[tuple[str, Row, Scored, Money]]:
    """Yield name, row, report and amount of each figure for CSV."""
    for row in table.runs:
        for report in row.reports:
            of = spent([report])
            for name, amounts in (("cost", of.money), ("cost a user", of.each)):
                yield from ((name, row, report, money) for money in amounts)
