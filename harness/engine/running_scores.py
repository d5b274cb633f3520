"""Running scores: the figures of all users with a record, in a thread, as they end; in any order,
those of the report.

A user's row is the mean over its repeats that have ended, as in the report (docs/statistics.md,
"Repeats"). So a row is final, and goes into sums, only with the user's last repeat; until then the
user's own sums are kept. Memory does not grow with users, except with `--repeats`: by some hundred
bytes for each user of whom a repeat is missing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import NamedTuple

import anyio
import anyio.to_thread
import numpy as np

from harness.benchmarks.records import made_of
from harness.benchmarks.user_code import guarded
from harness.defaults import SHARD_USERS
from harness.model import Record
from harness.scoring.bootstrap import Array
from harness.scoring.rows import expanded, raw_rows
from harness.scoring.scorer import Scorer
from harness.scoring.totals import Summed

SAVED_AT_ONCE = 16 * SHARD_USERS
"""Records of earlier sessions that are scored in one call of the thread."""


class _Row(NamedTuple):
    """What a user's ended repeats add up to: the `sums` of defined values, how many these are, and
    the `plays`."""

    sums: Array
    defined: Array
    plays: int


class RunningScores:
    """`saved` are the records of earlier sessions, read in the thread; `add` gives those of this
    one."""

    def __init__(self, scorer: Scorer, repeats: int = 1, saved: Iterable[Record] = ()) -> None:
        self.users = 0
        self.figures: Mapping[str, float | None] = {}
        self._scorer = scorer
        self._repeats = repeats
        self._saved = iter(saved)
        self._has_saved = True
        self._finished: deque[Record] = deque()
        self._nobody = scorer.score(())
        self._tally: Summed | None = None
        self._whole: Array = np.zeros(1)
        self._open: dict[str, _Row] = {}
        self._one_at_a_time = anyio.Lock()
        self._ended = False

    def add(self, ended: Record) -> None:
        self._finished.append(ended)

    @property
    def is_behind(self) -> bool:
        """Return whether a whole shard waits, or saved records do."""
        return not self._ended and (self._has_saved or len(self._finished) >= SHARD_USERS)

    def end(self) -> None:
        """Score no more users: a signal asks the process to end, and a benchmark may take long for
        those who wait."""
        self._ended = True

    async def advance(self) -> None:
        """Score the users that have ended in one call of the thread, which may take long, and some
        of those saved."""
        async with self._one_at_a_time:
            if not self._ended and (self._has_saved or self._finished):
                await anyio.to_thread.run_sync(self._advance)

    def _advance(self) -> None:
        records = list(islice(self._saved, SAVED_AT_ONCE))
        self._has_saved = len(records) == SAVED_AT_ONCE
        # Records of this session are few in one call, and all are taken, so that the figures keep
        # up.
        while self._finished:
            records.append(self._finished.popleft())
        for start in range(0, len(records), SHARD_USERS):
            # Scoring may take long, so a signal is looked for between two shards.
            if self._ended:
                break
            self._add(records[start : start + SHARD_USERS])
        if self.users:
            total = self._whole + self._total(self._open.values())
            scores = replace(self._nobody, users=self.users, sums=(total,), tally=self._tally)
            self.figures = self._scorer.running(scores)

    def _add(self, shard: list[Record]) -> None:
        benchmark = self._scorer.benchmark
        rows, tally = made_of(partial(raw_rows, benchmark, live=True), shard)
        if tally is not None:
            with guarded(benchmark, "the sum of two tallies"):
                self._tally = tally if self._tally is None else self._tally + tally
        if self._repeats == 1:
            self.users += len(shard)
            self._whole = self._whole + expanded(benchmark, rows).sum(axis=0)
        else:
            self._add_repeats(shard, rows)

    def _add_repeats(self, shard: list[Record], rows: Array) -> None:
        """Add the rows of some of the users' repeats; those of a user count once all have ended."""
        # A value that is not defined (NaN) has no part in its user's mean.
        defined = ~np.isnan(rows)
        values = np.where(defined, rows, 0.0)
        zeros = np.zeros(rows.shape[1])
        complete = []
        for place, record in enumerate(shard):
            earlier = self._open.pop(record.key, None)
            if earlier is None:
                self.users += 1
                earlier = _Row(zeros, zeros, 0)
            sums = earlier.sums + values[place]
            row = _Row(sums, earlier.defined + defined[place], earlier.plays + 1)
            if row.plays == self._repeats:
                complete.append(row)
            else:
                self._open[record.key] = row
        self._whole = self._whole + self._total(complete)

    def _total(self, rows: Iterable[_Row]) -> Array:
        """Return what users add to the figures."""
        user_rows = list(rows)
        if not user_rows:
            return np.zeros(1)
        sums = np.stack([row.sums for row in user_rows])
        counts = np.stack([row.defined for row in user_rows])
        # A mean of nothing stays NaN, as in a report's rows.
        means = np.divide(sums, counts, out=np.full(sums.shape, np.nan), where=counts > 0)
        total: Array = expanded(self._scorer.benchmark, means).sum(axis=0)
        return total
