"""`run --estimate`: what a whole run will take, from a few users who are played first and kept.

One user is played of each stratum of chain lengths, so short and long chains have their share among them. What these
users needed is extrapolated by steps. Prompts are extrapolated by the bytes of users' requests (`rehearsal.py`). Both
have intervals, and the time has bounds (`prediction.py`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from harness.config.plan import Plan
from harness.cost import Price, cost_of, rounded
from harness.engine.accounts import group, tuning_of
from harness.engine.lane import Lane
from harness.engine.run import Run
from harness.errors import HarnessError
from harness.features.estimate.prediction import NOTHING, Array, Range, draws, parallel, time_left, together, total
from harness.features.preview.rehearsal import rehearsed
from harness.model import RunUsage
from harness.store import log
from harness.store.run import count_line
from harness.ui.words import count, duration

FEWEST, MOST, SHARE = 10, 30, 0.1
"""Users of a subset who are played first: a share of them, between these."""
LONGEST_REHEARSAL = 20.0
"""Seconds in which the sizes of all users' prompts must be known; otherwise they go by steps."""


class Estimated(HarnessError):
    """A run ends after its first users, since the user did not agree to the rest."""

    exit_code = 5


@dataclass(frozen=True)
class Sample:
    """What the played users of a subset needed, an entry for each user.

    `steps` are those of the chains, `prompts` are in bytes (or steps), `usage` and `seconds` are those of the replies.
    `tries` is the mean number of tries of a reply. `left` and `left_prompts` are the steps and prompts of the users who
    have not played yet.
    """

    run: Run
    steps: Array
    prompts: Array
    usage: Sequence[RunUsage]
    seconds: Sequence[Array]
    tries: float
    left: Array
    left_prompts: Array

    @property
    def is_enough(self) -> bool:
        """Return whether anything can be said of those who are left."""
        return len(self.steps) > 1 or not len(self.left)

    @cached_property
    def requests(self) -> Range:
        return self._total(self.steps, self.left, lambda usage: usage.requests, counted=True)

    @cached_property
    def prompt_tokens(self) -> Range:
        return self._total(self.prompts, self.left_prompts, lambda usage: cost_of(usage, None).tokens[0])

    @cached_property
    def completion_tokens(self) -> Range:
        return self._total(self.steps, self.left, lambda usage: cost_of(usage, None).tokens[1])

    def amount(self, price: Price) -> Range:
        """Return what those who are left will cost. A user's size is the cost of its prompts and of its steps."""
        into, out = np.array([cost_of(usage, None).tokens for usage in self.usage], np.float64).sum(axis=0)
        of_prompts = float(price.prompt) * into / max(1.0, self.prompts.sum())
        of_steps = float(price.completion) * out / max(1.0, self.steps.sum()) or (0.0 if of_prompts else 1.0)
        sizes = of_prompts * self.prompts + of_steps * self.steps
        left = of_prompts * self.left_prompts + of_steps * self.left
        return self._total(sizes, left, lambda usage: float(cost_of(usage, price).amount or 0))

    def drawn_seconds(self, rng: np.random.Generator) -> Iterator[Array]:
        """Yield draws of the seconds that the replies of each user who is left will take."""
        return draws(self.steps, np.array([one.sum() for one in self.seconds]), self.left, rng)

    def _total(self, sizes: Array, left: Array, of: Callable[[RunUsage], float], *, counted: bool = False) -> Range:
        if not len(left):
            return NOTHING
        return total(
            sizes, np.array([of(usage) for usage in self.usage], np.float64), left, _rng(self.run), counted=counted
        )


@dataclass(frozen=True)
class Estimate:
    """What a plan's runs take as a whole, with what is saved already; `amount` in its currency, None without a price.
    `paid` is what the saved replies cost, in tokens without a price. `seconds` are those of all plans on the same
    account, since the command began, of which some are `gone`. The time lies where it does because the endpoint was
    seen with about `seen` requests in flight, and at most `most` will be."""

    users: int
    requests: Range
    prompt_tokens: Range
    completion_tokens: Range
    amount: Range | None
    currency: str
    paid: float
    seconds: Range
    gone: float
    seen: float
    most: int

    @property
    def left(self) -> float:
        """Return what is still to be paid, in tokens without a price."""
        whole = self.amount.value if self.amount else self.prompt_tokens.value + self.completion_tokens.value
        return whole - self.paid


def choose(run: Run) -> NDArray[np.int64]:
    """Return the positions of the users of a run to play first: one of each stratum; after an earlier estimate, of
    each of which nobody is done."""
    expected, rng = np.flatnonzero(run.expected), _rng(run)
    order = expected[np.lexsort((rng.random(len(expected)), run.index.steps[expected]))]
    strata = np.array_split(order, min(len(order), max(FEWEST, min(MOST, round(SHARE * len(order))))))
    left = [stratum[~run.done[stratum]] for stratum in strata]
    if "parallel" in run.manifest.times:
        left = [some for some, stratum in zip(left, strata, strict=True) if len(some) == len(stratum)]
    return np.sort(np.array([rng.choice(some) for some in left if len(some)], np.int64))


def _rng(run: Run) -> np.random.Generator:
    return np.random.default_rng(run.manifest.selection["sample_seed"])


def sample_of(run: Run) -> Sample:
    """Return what the users of a run who are done took, from its saved replies; failed ones are left out."""
    played = np.flatnonzero(run.expected & run.done).tolist()
    usage, seconds = {position: RunUsage() for position in played}, {position: list[float]() for position in played}
    tries = replies = 0
    for _, line in log.objects(run.store.files.responses):
        if (position := run.index.of(line)) in usage:
            count_line(usage[position], line)
            seconds[position].append(line["seconds"])
            tries, replies = tries + line["tries"], replies + 1
    answered = [position for position in played if seconds[position]]
    steps, remaining, left = run.index.steps.astype(np.float64), run.remaining, run.steps_left().astype(np.float64)
    prompts = _prompts(run, [*answered, *remaining.tolist()])
    return Sample(
        run,
        steps[answered],
        prompts[answered],
        [usage[position] for position in answered],
        [np.array(seconds[position]) for position in answered],
        tries / max(1, replies),
        left,
        prompts[remaining] * left / steps[remaining],
    )


def _prompts(run: Run, positions: Sequence[int]) -> Array:
    """Return the bytes of users' prompts if a baseline plays them, by position; steps where that takes too long."""
    benchmark, began = run.benchmark, time.monotonic()
    sizes, of_user = np.ones(len(run.index)), dict[int, int]()
    kept = benchmark.warnings, benchmark.logged
    benchmark.warnings, benchmark.logged = [], []  # those of a baseline are of no interest
    with asyncio.Runner() as loop:
        for position in positions:
            user = position // run.index.repeats
            if user not in of_user and time.monotonic() - began < LONGEST_REHEARSAL:
                of_user[user] = rehearsed(benchmark, run.sampling, run.task(position), 1, loop).size
            sizes[position] = of_user.get(user, 0)
    benchmark.warnings, benchmark.logged = kept
    return sizes if sizes.all() else run.index.steps.astype(np.float64)


def estimates(plans: Sequence[tuple[Plan, Lane, Sequence[Sample]]], gone: float) -> list[Estimate] | None:
    """Return the estimate of each plan after so many seconds, None where a subset has too few users who ended."""
    if not all(sample.is_enough for _, _, samples in plans for sample in samples):
        return None
    made: dict[int, Estimate] = {}
    for places in group([plan for plan, *_ in plans]):
        seconds, seen, most = _seconds([plans[place] for place in places])
        for place in places:
            made[place] = _estimate(plans[place][2], together([seconds], gone), gone, seen, most)
    return [made[place] for place in range(len(plans))]


def _estimate(samples: Sequence[Sample], seconds: Range, gone: float, seen: float, most: int) -> Estimate:
    runs = [sample.run for sample in samples]
    costs = [run.store.bill.cost(run.manifest.prices, run.sampling.most_completion) for run in runs]
    requests, into, out = np.array([(cost.requests, *cost.tokens) for cost in costs], np.float64).sum(axis=0).tolist()
    price = runs[0].price
    paid = float(sum([cost.amount or 0 for cost in costs])) if price else into + out
    return Estimate(
        users=sum(len(sample.steps) for sample in samples),
        requests=together([sample.requests for sample in samples], requests),
        prompt_tokens=together([sample.prompt_tokens for sample in samples], into),
        completion_tokens=together([sample.completion_tokens for sample in samples], out),
        amount=together([sample.amount(price) for sample in samples], paid) if price else None,
        currency=price.currency if price else "",
        paid=paid,
        seconds=seconds,
        gone=gone,
        seen=seen,
        most=most,
    )


def _seconds(plans: Sequence[tuple[Plan, Lane, Sequence[Sample]]]) -> tuple[Range, float, int]:
    """Return how long plans on one account will take, how many requests were in flight, and how many may be."""
    samples = [sample for *_, samples in plans for sample in samples]
    left = [sample for sample in samples if len(sample.left)]
    tuning = tuning_of([plan for plan, *_ in plans])
    times = [moment for _, lane, _ in plans for moment in lane.progress.reply_times or ()]
    replies = np.concatenate([seconds for sample in samples for seconds in sample.seconds])
    before = [sample.run.manifest.times.get("parallel", 0.0) for sample in samples]
    seen = max(1.0, min(tuning.most, max(parallel(times, float(replies.mean())), *before)))
    for sample in samples:
        sample.run.manifest.times["parallel"] = round(seen, 3)
    tokens = together([one for sample in left for one in (sample.prompt_tokens, sample.completion_tokens)])
    tries = together([sample.requests.times(sample.tries) for sample in left])
    rated = [of.times(60 / rate) for of, rate in ((tries, tuning.rpm), (tokens, tuning.tpm)) if rate]
    longest = Range(*map(max, zip(NOTHING, *rated, strict=True)))
    rng = _rng((left or samples)[0].run)
    found = time_left([sample.drawn_seconds(rng) for sample in left], seen, tuning.most, longest)
    return found, seen, tuning.most


def lines(name: str, of: Estimate) -> Iterator[str]:
    """Yield an estimate in words."""
    yield f"{name}: after {of.users} users, the whole run will take (90 % intervals):"
    yield f"  requests {_shown(of.requests, '{:.0f}'.format)}"
    yield f"  tokens {_shown(of.prompt_tokens, count)} in, {_shown(of.completion_tokens, count)} out"
    if of.amount:
        yield f"  cost {_shown(of.amount, _money)} {of.currency}"
    yield f"  time {duration(of.seconds.low)} to {duration(of.seconds.high)}"
    if round(of.seen) < of.most:
        yield (
            f"    the first if replies come as fast with {of.most} requests at once as with {of.seen:.0f} so far, the "
            "second if no more come in a second"
        )


def in_short(estimates: Sequence[Estimate]) -> str:
    """Return what all plans will take from now on: their cost in each currency, or their tokens, and the time."""
    sums: dict[str, float] = {}
    for of in estimates:
        sums[of.currency] = sums.get(of.currency, 0.0) + of.left
    parts = [f"{_money(taken)} {unit}" if unit else f"{count(taken)} tokens" for unit, taken in sums.items()]
    longest = max(estimates, key=lambda of: of.seconds.high)
    first, last = longest.seconds.low - longest.gone, longest.seconds.high - longest.gone
    return f"about {' + '.join(parts)} more, in {duration(first)} to {duration(last)}"


def _shown(of: Range, words: Callable[[float], str]) -> str:
    return f"{words(of.value)} ({words(of.low)} to {words(of.high)})"


def _money(amount: float) -> str:
    return rounded(Decimal(f"{amount:.6g}"))
