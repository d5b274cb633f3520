"""What every display says, as plain data: rows on runs and subsets, and sentences on the command as
a whole."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain

from harness.cost import money_text, together
from harness.model import Snapshot, Snapshots, SubsetProgress
from harness.ui import words

BETWEEN = " | "
"""Between two sentences on a line."""
COUNTS = ("steps", "steps_done", "users", "done", "failed")


@dataclass(frozen=True, slots=True)
class ProgressRow:
    """A run, or a subset of it, which has no ETA of its own. `share` is what is done of it, from 0
    to 1."""

    name: str
    share: float
    users: str
    figures: Sequence[str]
    eta: str
    failed: str


def rows(snapshots: Snapshots, *, with_subsets: bool) -> list[ProgressRow]:
    """Return a row for each run; below one of several subsets a row for each subset, if
    `with_subsets`."""
    result = []
    for s in snapshots:
        result.append(_row(s.name, s.subsets, words.eta_text(s)))
        if with_subsets and len(s.subsets) > 1:
            result += [_row(f"  {subset.subset}", [subset], "") for subset in s.subsets]
    return result


def _row(name: str, subsets: Sequence[SubsetProgress], eta: str) -> ProgressRow:
    """Return the row of subsets: figures of several have no sum."""
    totals = Counter[str]()
    for subset in subsets:
        for count in COUNTS:
            totals[count] += getattr(subset, count)
    figures = []
    if len(subsets) == 1:
        for metric, value in subsets[0].scores.items():
            figures.append(f"{metric} {words.figure(value, subsets[0].units.get(metric))}")
    failed = totals["failed"]
    return ProgressRow(
        name,
        totals["steps_done"] / totals["steps"] if totals["steps"] else 1.0,
        f"{totals['done']:,}/{totals['users']:,}",
        figures,
        eta,
        f"{failed:,} failed" if failed else "",
    )


def traffic(snapshots: Snapshots) -> list[str]:
    """Return how the command goes, what matters most first: in flight, speed, cost, tokens,
    time."""
    running = [s for s in snapshots if not s.over]
    sentences = _load(running)
    cost = together(chain.from_iterable(s.cost for s in snapshots))
    if cost:
        sentences.append(money_text(cost))
    into = sum([s.prompt_tokens for s in snapshots])
    out = sum([s.completion_tokens for s in snapshots])
    sentences += words.tokens_of(into, out)
    sentences.append(f"{words.duration(max([s.seconds for s in snapshots]))} gone")
    for s in running:
        sentences += [*s.load, *s.allowance]
    if len(snapshots) == len(running) == 1:
        sentences += words.by_the_end(running[0])
    return list(dict.fromkeys(sentences))


def _load(running: Sequence[Snapshot]) -> list[str]:
    """Return the requests in flight and the speed; nothing if no run goes on."""
    if not running:
        return []
    requests = [f"{sum([s.in_flight for s in running]):,} in flight"]
    if len(running) == 1:
        requests = words.in_flight(running[0])
    return [*requests, words.pace(sum([s.rate for s in running]))]


def troubles(snapshots: Snapshots) -> list[str]:
    """Return why runs stop or are slow, each reason once, and what failed."""
    reasons: dict[str, None] = {}
    for s in snapshots:
        if not s.over:
            reasons |= dict.fromkeys(words.held_back(s))
    return [*reasons, *words.failed_counts(snapshots)]


def developer_details(s: Snapshot) -> list[str]:
    """Return what developers read of a run."""
    return [
        *words.in_flight(s),
        f"{s.waiting:,} waiting",
        f"{s.backing_off:,} backing off",
        *words.requests_sent(s),
        *words.latency(s),
        f"if killed: {s.in_flight:,} to repeat",
        (
            f"by power loss: last {s.at_risk.seconds:.3g} s, at most"
            f" {words.plural(s.at_risk.users, 'user')}"
        ),
    ]


def warnings(snapshots: Snapshots) -> dict[str, str]:
    """Return warnings in words, by their text, the newest first: the same one of several runs
    once."""
    all_warnings = []
    for s in snapshots:
        run = f"{s.name}: " if len(snapshots) > 1 else ""
        all_warnings += [(warning, run) for warning in s.warnings]
    all_warnings.sort(key=lambda item: item[0].age)
    newest: dict[str, str] = {}
    for warning, run in all_warnings:
        # Sorted by age, so the first of a text is the newest.
        newest.setdefault(warning.text, words.warned(replace(warning, text=run + warning.text)))
    return newest
