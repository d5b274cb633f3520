"""How far a schedule is: counts kept by the engine, and the frozen snapshot that displays get."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from harness.benchmarks.derived import Scorer
from harness.endpoint.caller import Caller
from harness.engine.job import Job
from harness.engine.recent import WARNINGS, Counts, Latency, Rates, Warnings
from harness.engine.running_scores import RunningScores
from harness.model import JSON, AtRisk, Snapshot, SubsetProgress, Warned

REPLIES_TO_PROJECT = 20
"""Replies of users that have ended, before anything is made of how many the rest will take."""


@dataclass(slots=True)
class Part:
    """One job in the schedule: where its remaining users begin in it, and its progress."""

    job: Job
    first: int
    positions: NDArray[np.int64]
    live: RunningScores
    steps: int
    steps_done: int

    def progress(self) -> SubsetProgress:
        return SubsetProgress(
            subset=self.job.subset,
            users=self.job.users,
            done=self.job.users_done,
            failed=self.job.failed,
            steps=self.steps,
            steps_done=self.steps_done,
            scores=self.live.figures,
            units={metric.name: metric.unit for metric in self.job.benchmark.metrics if metric.unit is not None},
            scored_users=self.live.users,
        )


def parts(jobs: list[Job]) -> tuple[list[Part], NDArray[np.int32]]:
    """Return the jobs laid end to end in one schedule, and the remaining steps of all remaining users.

    A user with saved responses has that many steps fewer to go, though never none.
    """
    made, lengths, first = [], [], 0
    for job in jobs:
        positions = job.remaining
        saved = np.zeros(len(job.index), np.int32)
        for key, count in job.store.saved_counts().items():
            saved[job.index.find(key)] = count
        steps = np.maximum(1, job.index.steps[positions] - saved[positions])
        total = int(job.index.steps[job.expected].sum())
        live = RunningScores(Scorer(job.benchmark, job.subset))
        made.append(Part(job, first, positions, live, total, total - int(steps.sum())))
        lengths.append(steps)
        first += len(positions)
    return made, np.concatenate(lengths)


@dataclass(frozen=True, slots=True)
class Ahead:
    """The steps that remain in a lane: of all users, and of the user with the longest chain.

    `stopping` is why it ends early, if it does; `over` says that it has ended.
    """

    steps: int
    longest: int
    stopping: str | None = None
    over: bool = False


@dataclass(slots=True)
class Ended:
    """Users that have ended in this session: the replies that they took, and the steps counted for them before.

    Both are the same but for replies asked for again, and for plays that ask as often as they like: each is counted
    with the expected number of steps.
    """

    replies: int = 0
    steps: int = 0

    @property
    def replies_per_step(self) -> float | None:
        return self.replies / self.steps if self.replies >= REPLIES_TO_PROJECT else None


class Progress:
    """Counts and clocks of one lane. `requested` is the requested concurrency, None for auto; `power` means that
    records are synced before they count."""

    def __init__(
        self,
        name: str,
        parts: list[Part],
        caller: Caller,
        requested: int | None,
        clock: Callable[[], float],
        power: bool = False,
    ) -> None:
        self.name = name
        self.replayed = 0
        self.rejected = 0
        self.lag = 0.0
        self.latency = Latency()
        self._answered = 0
        self._faults: Counter[str] = Counter()
        self._failures: Counter[str] = Counter()
        self._warnings = Warnings(WARNINGS)
        self._last_fault = Warnings(1)
        self._ended = Ended()
        self._power = power
        self._parts = parts
        self._caller = caller
        self._requested = requested
        self._steps_before = self._steps_done()
        self._clock = clock
        self._started = clock()
        self._rates = Rates(self._started, self._counts())
        self._work = 0.0
        self._longest_chain = 0.0
        self._slots = 0.0
        self._slots_since = self._started

    def warn(self, text: str) -> None:
        """Show a finding on the display until newer ones replace it."""
        self._warnings.add(self._clock(), text)

    def answered(self, seconds: float) -> None:
        """Count a new reply (not one from saved responses) that took `seconds` in flight."""
        self._answered += 1
        self.latency.add(seconds)

    def try_failed(self, kind: str, detail: str) -> None:
        self._faults[kind] += 1
        self._last_fault.add(self._clock(), f"{kind}: {detail}")

    def user_failed(self, key: str, kind: str, message: str) -> None:
        self._failures[kind] += 1
        self._last_fault.add(self._clock(), f"{key}: {message}")

    def user_ended(self, busy_seconds: float, replies: int, steps: int) -> None:
        """Count a finished user: the sum of its requests' seconds in flight, its replies, and its steps."""
        self._ended.replies += replies
        self._ended.steps += steps
        self._work += busy_seconds
        self._longest_chain = max(self._longest_chain, busy_seconds)

    def tick(self, lag: float) -> None:
        """Update the clocks; `lag` is how many seconds late the event loop was."""
        now = self._clock()
        self.lag = lag
        self._slots += self._caller.limiter.slots.limit * (now - self._slots_since)
        self._slots_since = now

    def schedule(self, others: Sequence[Progress] = ()) -> JSON:
        """Return how close the runs on these slots came to the shortest time that their requests allow
        (docs/design.md, section 4); `others` are those of the other runs.

        The bound is the larger of all requests' time divided by the slots, and the longest user's chain.
        """
        self.tick(self.lag)
        seconds = self._clock() - self._started
        slots = self._slots / max(1e-9, self._slots_since - self._started)
        work = sum([each._work for each in (self, *others)])
        bound = max(work / slots if slots else 0.0, *[each._longest_chain for each in (self, *others)])
        return {
            "seconds": round(seconds, 3),
            "slots": round(slots, 1),
            "lower_bound_seconds": round(bound, 3),
            "ratio": round(seconds / bound, 3) if bound else None,
            "runs": 1 + len(others),
        }

    def snapshot(self, ahead: Ahead) -> Snapshot:
        traffic, limiter, now = self._caller.traffic, self._caller.limiter, self._clock()
        rate, *token_rates = self._rates.of(now, self._counts())
        outage = self._caller.outage.lasted(now)
        eta, chain_bound = time_to_go(ahead, rate, self._step_seconds(), outage > 0)
        return Snapshot(
            name=self.name,
            model=self._parts[0].job.sampling.model,
            seconds=now - self._started,
            subsets=tuple(part.progress() for part in self._parts),
            requested=self._requested,
            limit=limiter.limit,
            in_flight=limiter.in_flight,
            held_by=limiter.held_by,
            outage=outage,
            lag=self.lag,
            slowest_write=max(part.job.store.slowest_write() for part in self._parts),
            waiting=limiter.waiting,
            backing_off=traffic.backing_off,
            requests=traffic.requests,
            replayed=self.replayed,
            retries=traffic.retries,
            prompt_tokens=traffic.prompt_tokens,
            completion_tokens=traffic.completion_tokens,
            rate=rate,
            eta=eta,
            stopping=ahead.stopping,
            chain_bound=chain_bound,
            token_rates=(token_rates[0], token_rates[1]),
            latency=self.latency.quantiles,
            faults=tuple(self._faults.most_common()),
            failures=tuple(self._failures.most_common()),
            projected_tokens=self._projected_tokens(ahead.steps),
            warnings=self._recent_warnings(now),
            at_risk=self._at_risk(),
            silence=now - self._caller.outage.last_success,
            over=ahead.over,
            others_in_flight=limiter.slots.in_flight - limiter.in_flight,
        )

    def _counts(self) -> Counts:
        traffic = self._caller.traffic
        return Counts(self._steps_done(), traffic.prompt_tokens, traffic.completion_tokens)

    def _steps_done(self) -> int:
        return sum(part.steps_done for part in self._parts)

    def _recent_warnings(self, now: float) -> tuple[Warned, ...]:
        recent = [*self._warnings.recent(now), *self._last_fault.recent(now)]
        return tuple(sorted(recent, key=lambda warned: warned.age))

    def _step_seconds(self) -> float | None:
        """A counted step of a chain at the last replies' latency; until users have ended, a step is a reply."""
        mean, per_step = self.latency.mean, self._ended.replies_per_step
        return mean if mean is None or per_step is None else mean * per_step

    def _projected_tokens(self, steps: int) -> tuple[int, int] | None:
        """Tokens of this session at its end, if all its users take as many replies a step as those who have ended, and
        a reply as many tokens as so far; `steps` remain."""
        traffic, per_step = self._caller.traffic, self._ended.replies_per_step
        if per_step is None or not traffic.prompt_tokens:
            return None
        replies = per_step * (self._steps_done() - self._steps_before + steps)
        grown = max(1.0, replies / self._answered)
        return round(traffic.prompt_tokens * grown), round(traffic.completion_tokens * grown)

    def _at_risk(self) -> AtRisk:
        unsynced = [part.job.store.unsynced() for part in self._parts]
        users, seconds = sum(users for users, _ in unsynced), max(seconds for _, seconds in unsynced)
        return AtRisk(users, seconds, self._power)


def time_to_go(ahead: Ahead, rate: float, step_seconds: float | None, outage: bool) -> tuple[float | None, bool]:
    """Return the seconds to go, and whether the longest chain determines them: its steps come one after another.

    `rate` in steps a second, `step_seconds` in flight for a step of a chain. None in an outage, or before the first
    steps.
    """
    if not ahead.steps:
        return 0.0, False
    if outage or not rate:
        return None, False
    chain, work = ahead.longest * (step_seconds or 0.0), ahead.steps / rate
    return max(chain, work), chain > work
