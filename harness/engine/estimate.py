"""`run --estimate`: what a whole run will take, from a few users who are played first and kept.

They are one of each stratum of chain lengths, so that short and long ones are among them as often as among all. What
they took is extrapolated by their steps (`scoring/prediction.py`), the time by simulating the schedule (`forecast.py`).
Every interval is one of 90 %.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal

import numpy as np
from numpy.typing import NDArray

from harness.config.plan import Plan
from harness.cost import cost_of, rounded
from harness.engine import forecast
from harness.engine.accounts import group, tuning_of
from harness.engine.forecast import Pace
from harness.engine.lane import Lane
from harness.engine.run import Run
from harness.errors import HarnessError
from harness.model import RunUsage
from harness.scoring.prediction import Array, Range, together, total
from harness.store import log
from harness.store.run import count_line
from harness.ui.words import count, duration

FEWEST, MOST, SHARE = 10, 30, 0.1
"""Users of a subset who are played first: a share of those left, between these."""


class Estimated(HarnessError):
    """The end of a run of which the first users were played, and nobody said that it goes on."""

    exit_code = 0


@dataclass(frozen=True)
class Sample:
    """What the played users of a subset took, each an entry: the `steps` of their chains, the usage of their replies
    and the seconds of each. `left` are the steps of those who are left."""

    run: Run
    steps: Array
    usage: Sequence[RunUsage]
    seconds: Sequence[Array]
    left: NDArray[np.int32]

    @property
    def is_enough(self) -> bool:
        """Return whether anything can be said of those who are left."""
        return len(self.steps) > 1 or not len(self.left)

    def total(self, of: Callable[[RunUsage], float], *, counted: bool = False) -> Range:
        """Return what those who are left will take of something; arguments as for `prediction.total`."""
        if not len(self.left):
            return Range(0.0, 0.0, 0.0)
        values = np.array([of(usage) for usage in self.usage], np.float64)
        return total(self.steps, values, float(self.left.sum()), counted=counted)


@dataclass(frozen=True)
class Estimate:
    """What a plan's runs take as a whole, with what is saved already; `amount` in its currency, None without a price.
    `seconds` are those of all plans on the same account, since the command began."""

    users: int
    requests: Range
    prompt_tokens: Range
    completion_tokens: Range
    amount: Range | None
    currency: str
    seconds: Range


def choose(run: Run) -> NDArray[np.int64]:
    """Return the positions of the users of a run to play first."""
    remaining, rng = run.remaining, np.random.default_rng(run.manifest.selection["sample_seed"])
    order = remaining[np.lexsort((rng.random(len(remaining)), run.index.steps[remaining]))]
    strata = np.array_split(order, min(len(order), max(FEWEST, min(MOST, round(SHARE * len(order))))))
    return np.sort(np.array([rng.choice(stratum) for stratum in strata], np.int64))


def sample_of(run: Run) -> Sample:
    """Return what the first users of a run took, from its saved replies; failed ones are left out."""
    assert run.first is not None
    played = [int(position) for position in run.first if run.done[position]]
    usage, seconds = {position: RunUsage() for position in played}, {position: list[float]() for position in played}
    for _, line in log.objects(run.store.files.responses):
        if (position := run.index.of(line)) in usage:
            count_line(usage[position], line)
            seconds[position].append(line["seconds"])
    answered = [position for position in played if seconds[position]]
    return Sample(
        run,
        run.index.steps[answered].astype(np.float64),
        [usage[position] for position in answered],
        [np.array(seconds[position]) for position in answered],
        run.steps_left(),
    )


def estimates(plans: Sequence[tuple[Plan, Lane, Sequence[Sample]]], gone: float) -> list[Estimate] | None:
    """Return the estimate of each plan after so many seconds, None where a subset has too few users who ended."""
    if not all(sample.is_enough for _, _, samples in plans for sample in samples):
        return None
    made: dict[int, Estimate] = {}
    for places in group([plan for plan, *_ in plans]):
        seconds = together([_seconds([plans[place] for place in places])], gone)
        for place in places:
            made[place] = _estimate(plans[place][2], seconds)
    return [made[place] for place in range(len(plans))]


def _estimate(samples: Sequence[Sample], seconds: Range) -> Estimate:
    def whole(of: Callable[[RunUsage], float], *, counted: bool = False) -> Range:
        known = sum(of(sample.run.store.usage) for sample in samples)
        return together([sample.total(of, counted=counted) for sample in samples], known)

    price = samples[0].run.manifest.price
    return Estimate(
        users=sum(len(sample.steps) for sample in samples),
        requests=whole(lambda usage: usage.requests, counted=True),
        prompt_tokens=whole(lambda usage: cost_of(usage, None).tokens[0]),
        completion_tokens=whole(lambda usage: cost_of(usage, None).tokens[1]),
        amount=whole(lambda usage: float(cost_of(usage, price).amount or 0)) if price else None,
        currency=price.currency if price else "",
        seconds=seconds,
    )


def _seconds(plans: Sequence[tuple[Plan, Lane, Sequence[Sample]]]) -> Range:
    """Return how long plans on one account will take."""
    left = [(sample.left, _pace(sample, lane)) for _, lane, samples in plans for sample in samples if len(sample.left)]
    tuning, slots = tuning_of([plan for plan, *_ in plans]), plans[0][1].caller.limiter.slots.limit
    return forecast.seconds(left, slots, tuning.rpm, tuning.tpm, plans[0][0].selection["sample_seed"])


def _pace(sample: Sample, lane: Lane) -> Pace:
    """Return the pace of a subset's users; failed tries are those of the lane, in proportion to its replies."""
    traffic = lane.caller.traffic
    failed, replies = traffic.requests - traffic.successes, sum(map(len, sample.seconds))
    tokens = [sum(cost_of(usage, None).tokens) for usage in sample.usage]
    return Pace(
        sample.seconds,
        sample.steps,
        np.array(tokens, np.float64),
        round(failed * replies / max(1, traffic.successes)),
        lane.caller.failed_tries.seconds,
    )


def lines(name: str, of: Estimate, at_once: int) -> Iterator[str]:
    """Yield an estimate in words."""
    yield f"{name}: after {of.users} users, the whole run will take (90 % intervals):"
    yield f"  requests {_shown(of.requests, '{:.0f}'.format)}"
    yield f"  tokens {_shown(of.prompt_tokens, count)} in, {_shown(of.completion_tokens, count)} out"
    if of.amount:
        yield f"  cost {_shown(of.amount, _money)} {of.currency}"
    yield f"  time {_shown(of.seconds, duration)} with {at_once} requests at once"


def in_short(estimates: Sequence[Estimate]) -> str:
    """Return what all plans will take together: their cost in each currency, or their tokens, and the time."""
    sums: dict[str, float] = {}
    for of in estimates:
        taken = of.amount.value if of.amount else of.prompt_tokens.value + of.completion_tokens.value
        sums[of.currency] = sums.get(of.currency, 0.0) + taken
    parts = [f"{_money(taken)} {unit}" if unit else f"{count(taken)} tokens" for unit, taken in sums.items()]
    longest = max(of.seconds.value for of in estimates)
    return f"about {' + '.join(parts)}, in about {duration(longest)}"


def _shown(of: Range, words: Callable[[float], str]) -> str:
    return f"{words(of.value)} ({words(of.low)} to {words(of.high)})"


def _money(amount: float) -> str:
    return rounded(Decimal(f"{amount:.6g}"))
