"""`run --estimate`: what a whole run will take, from a few users who are played first and kept.

What the users who are left take is the mean of the played ones, a step of their chains. Its
interval is a bootstrap: 1,000 times, as many users as are left are drawn from a resample of the
played ones. Its bounds are at least what the endpoint reports, and at most what it may bill, tries
without a reply included.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from harness.cost import Bill, Cost, rounded
from harness.engine.accounts import tuning_of
from harness.engine.run import Run
from harness.engine.session import PlanSession
from harness.store import log
from harness.store.tally import RunTally
from harness.ui.words import count, duration

MIN_USERS, MAX_USERS = 10, 30
"""Users of a subset who are played first: a tenth of them, between these."""
DRAWS, BEYOND = 1000, 0.025
"""Draws, and the share of them beyond each bound: with so few users some 90 % of intervals then
hold."""

Array = NDArray[np.float64]


@dataclass(frozen=True)
class CostEstimate:
    """What a plan takes as a whole: requests, tokens of prompts and of completions, and the cost.

    `low`, `value` and `high` have a number for each; `left` is the part of `value` that is still to
    be paid. `seconds` is the least time that this takes. `currency` is empty without a price.
    """

    low: Array
    value: Array
    high: Array
    left: Array
    seconds: float
    currency: str


def choose(run: Run) -> NDArray[np.int64]:
    """Return the positions of the users of a run to play first: one of each stratum of chain
    lengths of which nobody is done."""
    expected = np.flatnonzero(run.expected)
    rng = np.random.default_rng(run.manifest.selection["sample_seed"])
    # Among chains of one length the order is random, since a file of tasks may be sorted by
    # anything.
    order = expected[np.lexsort((rng.random(len(expected)), run.index.steps[expected]))]
    wanted = max(MIN_USERS, min(MAX_USERS, len(order) // 10))
    chosen: list[np.int64] = []
    for stratum in np.array_split(order, min(len(order), wanted)):
        if not run.done[stratum].any():
            chosen.append(rng.choice(stratum))
    return np.sort(np.array(chosen, np.int64))


def estimate(session: PlanSession) -> CostEstimate | None:
    """Return what a plan will take, None if too few users of a subset have ended."""
    paid = np.zeros((3, 4))
    left = np.zeros(4)
    bounds = np.zeros((DRAWS, 3, 4))
    busy = 0.0
    seconds = [0.0]
    # The same replies give the same estimate.
    rng = np.random.default_rng(0)
    for run in session.unfinished:
        bills, reply_seconds = _bills(run)
        max_completion = run.sampling.most_completion
        paid += _figures(run.store.tally.bill.cost(run.manifest.prices, max_completion))
        remaining = run.steps_left().astype(np.float64)
        if not len(remaining):
            continue
        # A single user has no spread, so there would be no interval.
        if len(bills) < 2:
            return None
        steps = run.index.steps[list(bills)].astype(np.float64)
        costs = [bill.cost(run.prices_now, max_completion) for bill in bills.values()]
        taken = np.array(list(map(_figures, costs)))
        bounds += _draws(rng, taken, steps, remaining)
        # A ratio of sums, not a mean of users' ratios: long chains count by their length.
        left += remaining.sum() * taken[:, 1].sum(axis=0) / steps.sum()
        busy += remaining.sum() * reply_seconds
        # The steps of one user follow one another.
        seconds.append(remaining.max() * reply_seconds)
    tuning = tuning_of([session.plan])
    if tuning.rpm:
        seconds.append(60 * left[0] / tuning.rpm)
    if tuning.tpm:
        seconds.append(60 * (left[1] + left[2]) / tuning.tpm)
    low = paid[0] + np.quantile(bounds[:, 0], BEYOND, axis=0)
    high = paid[2] + np.quantile(bounds[:, 2], 1 - BEYOND, axis=0)
    currencies = {price.currency for price in session.unfinished[0].prices_now if price}
    # Amounts in several currencies have no sum.
    currency = currencies.pop() if len(currencies) == 1 else ""
    shortest = max(busy / tuning.most, *seconds)
    return CostEstimate(low, paid[1] + left, high, left, shortest, currency)


def _draws(rng: np.random.Generator, taken: Array, steps: Array, remaining: Array) -> Array:
    """Return what the users who are left take, by draw: `remaining` are their steps, `taken` and
    `steps` are of the played users."""
    users = len(steps)
    # The first draw is the doubt about the mean of those played, the second the chance of those
    # left.
    resampled = rng.multinomial(users, np.full(users, 1 / users), DRAWS) / users
    drawn = rng.multinomial(len(remaining), resampled)
    steps_drawn = (drawn @ steps)[:, None, None]
    draws: Array = remaining.sum() * np.tensordot(drawn, taken, 1) / steps_drawn
    return draws


def _bills(run: Run) -> tuple[dict[int, Bill], float]:
    """Return what each user who is done took, by position, and the mean seconds of a reply."""
    files = run.store.files
    bills: dict[int, Bill] = {}
    tallies: dict[int | None, RunTally] = {}
    for position in np.flatnonzero(run.expected & run.done).tolist():
        tally = tallies[position] = RunTally()
        bills[position] = tally.bill
    seconds: list[float] = []
    for _, line in chain(log.objects(files.responses), log.objects(files.events)):
        tally_of_user = tallies.get(run.index.position_of(line))
        if tally_of_user is None:
            continue
        if "completion" in line:
            tally_of_user.add_reply(line)
            seconds.append(line["seconds"])
        else:
            tally_of_user.add_event(line)
    return bills, float(np.mean(seconds or [0.0]))


def _figures(cost: Cost) -> Array:
    """Return requests, tokens of prompts and completions, and the amount: the fewest, those
    counted, and the most."""
    requests = cost.requests + (cost.requests_without_reply or 0)
    fewest, largest = cost.bounds
    money = cost.money
    amounts = [Decimal(0)] * 3
    if money:
        amounts = [money.least, money.amount, money.most]
    rows = zip((fewest, cost.tokens, largest), amounts, strict=True)
    return np.array([(requests, *tokens, float(amount)) for tokens, amount in rows])


def lines(name: str, estimate: CostEstimate) -> Iterator[str]:
    """Yield an estimate in words."""
    requests, prompt, completion, amount = zip(
        estimate.value, estimate.low, estimate.high, strict=True
    )
    yield f"{name}: the whole run will take about (90 % intervals):"
    yield "  requests {:.0f} ({:.0f} to {:.0f})".format(*requests)
    yield "  tokens {} ({} to {}) in, {} ({} to {}) out".format(*map(count, (*prompt, *completion)))
    if estimate.currency:
        yield "  cost {} ({} to {}) {}".format(*map(_money, amount), estimate.currency)
    yield f"  time at least {duration(estimate.seconds)} more, if replies stay as fast"


def in_short(estimates: Iterable[CostEstimate]) -> str:
    """Return what all plans will take from now on: their cost in each currency, or their tokens."""
    sums = Counter[str]()
    for estimate in estimates:
        if estimate.currency:
            sums[estimate.currency] += estimate.left[3]
        else:
            sums["tokens"] += estimate.left[1] + estimate.left[2]
    amounts = []
    for unit, amount in sums.items():
        shown = count(amount) if unit == "tokens" else _money(amount)
        amounts.append(f"{shown} {unit}")
    return f"about {' + '.join(amounts)} more"


def _money(amount: float) -> str:
    return rounded(Decimal(f"{amount:.6g}"))
