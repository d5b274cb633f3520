"""How far a schedule is: counts kept by the engine, and the frozen snapshot that displays get."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from harness.endpoint.caller import Caller
from harness.engine.job import Job
from harness.engine.live import LiveScores
from harness.model import JSON, Snapshot, SubsetProgress

RATE_SECONDS, RATE_STEPS = 30.0, 20
"""The rate is that of the last half minute, or further back where fewer steps than this were done in it."""


@dataclass(slots=True)
class Part:
    """One job in the schedule: where its owed users begin in it, and its progress."""

    job: Job
    first: int
    positions: NDArray[np.int64]
    live: LiveScores
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
            scored_users=self.live.users,
        )


def parts(jobs: list[Job]) -> tuple[list[Part], NDArray[np.int32]]:
    """The jobs laid end to end in one schedule, and the remaining steps of all owed users.

    A user with saved responses has that many steps fewer to go, though never none.
    """
    made, lengths, first = [], [], 0
    for job in jobs:
        positions = job.owed
        saved = np.zeros(len(job.index), np.int32)
        for key, count in job.store.saved_counts().items():
            saved[job.index.find(key)] = count
        steps = np.maximum(1, job.index.steps[positions] - saved[positions])
        total = int(job.index.steps[job.expected].sum())
        live = LiveScores(job.benchmark.scorer(job.subset))
        made.append(Part(job, first, positions, live, total, total - int(steps.sum())))
        lengths.append(steps)
        first += len(positions)
    return made, np.concatenate(lengths)


class Progress:
    """Counts and clocks of one lane. `requested` is the concurrency that was asked for, None for auto."""

    def __init__(
        self, name: str, parts: list[Part], caller: Caller, requested: int | None, clock: Callable[[], float]
    ) -> None:
        self.name = name
        self.replayed = 0
        self.rejected = 0
        self.lag = 0.0
        self.last_warning: str | None = None
        self._parts = parts
        self._caller = caller
        self._requested = requested
        self._clock = clock
        self._started = clock()
        self._history = deque([(self._started, sum(part.steps_done for part in parts))])
        self._work = 0.0
        self._longest_chain = 0.0
        self._slots = 0.0
        self._slots_since = self._started

    def user_ended(self, busy_seconds: float) -> None:
        """A user's requests took so long on the wire, together."""
        self._work += busy_seconds
        self._longest_chain = max(self._longest_chain, busy_seconds)

    def tick(self, lag: float) -> None:
        """A moment has passed; `lag` is how late the event loop noticed."""
        now = self._clock()
        self.lag = lag
        self._slots += self._caller.limiter.slots.limit * (now - self._slots_since)
        self._slots_since = now

    def schedule(self, beside: Sequence[Progress] = ()) -> JSON:
        """How close the runs on these slots came to the shortest time that their requests allow
        (docs/design.md, section 4); `beside` are the others.

        The bound is the larger of all requests' time divided by the slots, and the longest user's chain.
        """
        self.tick(self.lag)
        seconds = self._clock() - self._started
        slots = self._slots / max(1e-9, self._slots_since - self._started)
        work = sum([each._work for each in (self, *beside)])
        bound = max(work / slots if slots else 0.0, *[each._longest_chain for each in (self, *beside)])
        return {
            "seconds": round(seconds, 3),
            "slots": round(slots, 1),
            "lower_bound_seconds": round(bound, 3),
            "ratio": round(seconds / bound, 3) if bound else None,
            "runs": 1 + len(beside),
        }

    def snapshot(self, remaining_steps: int, stopping: str | None) -> Snapshot:
        traffic, limiter = self._caller.traffic, self._caller.limiter
        rate = self._rate(sum(part.steps_done for part in self._parts))
        return Snapshot(
            name=self.name,
            model=self._parts[0].job.sampling.model,
            seconds=self._clock() - self._started,
            subsets=tuple(part.progress() for part in self._parts),
            requested=self._requested,
            limit=limiter.limit,
            in_flight=limiter.in_flight,
            held_by=limiter.held_by,
            outage=self._caller.outage.lasted(self._clock()),
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
            eta=remaining_steps / rate if rate else (None if remaining_steps else 0.0),
            last_warning=self.last_warning,
            stopping=stopping,
        )

    def _rate(self, done: int) -> float:
        """Steps a second."""
        now, history = self._clock(), self._history
        history.append((now, done))
        while len(history) > 2 and now - history[1][0] > RATE_SECONDS and done - history[1][1] > RATE_STEPS:
            history.popleft()
        start, before = history[0]
        return (done - before) / (now - start) if now > start else 0.0
