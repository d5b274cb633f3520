"""Running scores: finished users go in shards to the synchronous scorer, in a thread, and are merged.

These are for the display, and hold sums and counts only, so that a run's memory does not grow with its users. The
report is made in one pass over the finished file (`finish`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

import anyio.to_thread

from harness.benchmarks.derived import Scorer, Totals
from harness.defaults import SHARD_USERS
from harness.model import Record


class RunningScores:
    def __init__(self, scorer: Scorer) -> None:
        self.users = 0
        self.figures: Mapping[str, float | None] = {}
        self._scorer = scorer
        self._merged: Totals | None = None
        self._finished: deque[Record] = deque()

    def add(self, record: Record) -> None:
        self._finished.append(record)

    @property
    def shard_is_full(self) -> bool:
        return len(self._finished) >= SHARD_USERS

    async def advance(self) -> None:
        """Score all users that have finished, shard by shard, in one call of the thread: a call may take long."""
        if finished := list(self._finished):
            self._merged, self.figures = await anyio.to_thread.run_sync(self._scored, finished)
            self.users += len(finished)
            for _ in finished:  # only now: a call that is cancelled leaves them to the next
                self._finished.popleft()

    def _scored(self, finished: list[Record]) -> tuple[Totals | None, Mapping[str, float | None]]:
        merged = self._merged
        for start in range(0, len(finished), SHARD_USERS):
            scores = self._scorer.score(finished[start : start + SHARD_USERS])
            merged = self._scorer.condense(scores if merged is None else self._scorer.merge(merged, scores))
        return merged, self._scorer.running(merged) if merged is not None else {}
