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
    order = expected[np.lexsort((rng.random(len(expected)), run.index.steps[expected]))]
    strata = np.array_split(
        order, min(len(order), max(MIN_USERS, min(MAX_USERS, len(order) // 10)))
    )
    return np.sort(
        np.array(
            [rng.choice(stratum) for stratum in strata if not run.done[stratum].any()], np.int64
        )
    )


def estimate(session: PlanSession) -> CostEstimate | None:
    """Return what a plan will take, None if too few users of a subset have ended."""
    paid, left, bounds = np.zeros((3, 4)), np.zeros(4), np.zeros((DRAWS, 3, 4))
    busy, seconds, rng = 0.0, [0.0], np.random.default_rng(0)
    for run in session.unfinished:
        bills, of_reply = _bills(run)
        users, max_completion = len(bills), run.sampling.most_completion
        remaining = run.steps_left().astype(np.float64)
        paid += _figures(run.store.tally.bill.cost(run.manifest.prices, max_completion))
        if not len(remaining):
            continue
        if users < 2:
            return None
        steps = run.index.steps[list(bills)].astype(np.float64)
        taken = np.array(
            [_figures(bill.cost(run.prices_now, max_completion)) for bill in bills.values()]
        )
        resampled = rng.multinomial(users, np.full(users, 1 / users), DRAWS) / users
        drawn = rng.multinomial(len(remaining), resampled)
        bounds += remaining.sum() * np.tensordot(drawn, taken, 1) / (drawn @ steps)[:, None, None]
        left += remaining.sum() * taken[:, 1].sum(axis=0) / steps.sum()
        busy += remaining.sum() * of_reply
        seconds.append(remaining.max() * of_reply)
    tuning = tuning_of([session.plan])
    limits = (left[0], tuning.rpm), (left[1] + left[2], tuning.tpm)
    seconds += [60 * amount / rate for amount, rate in limits if rate]
    low = paid[0] + np.quantile(bounds[:, 0], BEYOND, axis=0)
    high = paid[2] + np.quantile(bounds[:, 2], 1 - BEYOND, axis=0)
    currencies = {price.currency for price in session.unfinished[0].prices_now if price}
    currency = currencies.pop() if len(currencies) == 1 else ""
    return CostEstimate(
        low, paid[1] + left, high, left, max(busy / tuning.most, *seconds), currency
    )


def _bills(run: Run) -> tuple[dict[int, Bill], float]:
    """Return what each user who is done took, by position, and the mean seconds of a reply."""
    tallies = {
        position: RunTally() for position in np.flatnonzero(run.expected & run.done).tolist()
    }
    seconds = list[float]()
    for _, line in chain(
        log.objects(run.store.files.responses), log.objects(run.store.files.events)
    ):
        if (position := run.index.position_of(line)) not in tallies:
            continue
        if "completion" in line:
            tallies[position].add_reply(line)
            seconds.append(line["seconds"])
        else:
            tallies[position].add_event(line)
    bills = {position: tally.bill for position, tally in tallies.items()}
    return bills, float(np.mean(seconds or [0.0]))


def _figures(cost: Cost) -> Array:
    """Return requests, tokens of prompts and completions, and the amount: the fewest, those
    counted, and the most."""
    fewest, largest = cost.bounds
    requests, money = cost.requests + (cost.requests_without_reply or 0), cost.money
    amounts = map(float, (money.least, money.amount, money.most) if money else (0, 0, 0))
    rows = zip((fewest, cost.tokens, largest), amounts, strict=True)
    return np.array([(requests, *tokens, amount) for tokens, amount in rows])


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
        sums[estimate.currency] += (
            estimate.left[3] if estimate.currency else estimate.left[1] + estimate.left[2]
        )
    amounts = [
        f"{_money(amount)} {unit}" if unit else f"{count(amount)} tokens"
        for unit, amount in sums.items()
    ]
    return f"about {' + '.join(amounts)} more"


def _money(amount: float) -> str:
    return rounded(Decimal(f"{amount:.6g}"))
