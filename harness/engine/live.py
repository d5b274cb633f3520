"""Running scores: finished users go in shards to the synchronous scorer, in a thread, and are merged.

These are for the display. The report is made in one pass over the finished file (`finish`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

import anyio.to_thread

from harness.config import SHARD_USERS
from harness.model import Record, Scorer


class LiveScores:
    def __init__(self, scorer: Scorer) -> None:
        self.users = 0
        self.figures: Mapping[str, float | None] = {}
        self._scorer = scorer
        self._merged: Any = None
        self._finished: deque[Record] = deque()

    def add(self, record: Record) -> None:
        self._finished.append(record)

    @property
    def shard_is_full(self) -> bool:
        return len(self._finished) >= SHARD_USERS

    async def advance(self) -> None:
        """Scores what has finished, up to one shard."""
        shard = [self._finished.popleft() for _ in range(min(SHARD_USERS, len(self._finished)))]
        if shard:
            self._merged, self.figures = await anyio.to_thread.run_sync(self._scored, shard)
            self.users += len(shard)

    def _scored(self, shard: list[Record]) -> tuple[Any, Mapping[str, float | None]]:
        scores = self._scorer.score(shard)
        merged = scores if self._merged is None else self._scorer.merge(self._merged, scores)
        return merged, self._scorer.running(merged)
