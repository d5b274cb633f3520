"""Scores that workers make, and that the driver adds.

For the report a worker scores whole shards of records, those that one process would score, so that their totals have
the same bytes. For the display it scores the users that it has played. What no worker can score or send, the driver
scores itself, and meets the same error.
"""

from __future__ import annotations

import pickle
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from io import BytesIO
from typing import Any

from harness.benchmark import Benchmark
from harness.benchmarks.scorer import Scorer
from harness.defaults import SHARD_USERS
from harness.engine.finish import ReportScores, facts_of, with_facts
from harness.engine.run import Run
from harness.engine.running_scores import sums_of
from harness.features.ray import messages as m
from harness.model import Record, Where
from harness.store.run import record_of

SENT_MOST = 64
"""Shards that are sent and not scored yet, at most: some 30 MB."""

Send = Callable[[Sequence[bytes], Sequence[m.TaskLine]], Future[bytes | None]]
"""Has a worker score a shard, by the lines of its records and those of tasks; None if it could not."""


class SentScores(ReportScores):
    """The scores of a run for its report, shard by shard in the order of the tasks file."""

    def __init__(self, run: Run, send: Send) -> None:
        super().__init__(run.benchmark, run.subset, run.index, run.facts)
        self._run, self._send = run, send
        self._lines: list[tuple[int, bytes]] = []
        self._sent: deque[tuple[list[tuple[int, bytes]], Future[bytes | None]]] = deque()

    def add_line(self, position: int, line: bytes) -> None:
        repeats = self._run.index.repeats
        if len(self._lines) >= SHARD_USERS and position // repeats != self._lines[-1][0] // repeats:
            self._send_shard()
        self._lines.append((position, line))

    def flush(self) -> Any:
        if self._lines:
            self._send_shard()
        while self._sent:
            self._take()
        return super().flush()

    def _send_shard(self) -> None:
        lines, self._lines = self._lines, []
        while len(self._sent) >= SENT_MOST or (self._sent and self._sent[0][1].done()):
            self._take()
        self._sent.append((lines, self._send([line for _, line in lines], list(self._tasks(lines)))))

    def _tasks(self, lines: Sequence[tuple[int, bytes]]) -> Iterator[m.TaskLine]:
        """Yield the tasks that the report needs, by the places of their users' records."""
        index = self._run.index
        for place, (position, _) in enumerate(lines):
            if self._run.drawn[position]:
                where = index.where(position)
                yield place, where.file, where.line, index.read(position)

    def _take(self) -> None:
        """Add the scores of the shard that was sent first."""
        lines, scores = self._sent.popleft()
        if (totals := loaded(self._run.benchmark, scores.result())) is not None:
            return self.merge(totals)
        for _, line in lines:
            self.add(record_of(line))
        super().flush()


def shard_totals(benchmark: Benchmark, shard: m.Score) -> bytes | None:
    """Return the totals of a shard, as `packed`."""

    def scored() -> Any:
        records = [record_of(line) for line in shard.lines]
        for place, file, number, line in shard.tasks:
            known = facts_of(benchmark, line, Where(file, number), shard.subset)
            records[place] = with_facts(benchmark, records[place], known)
        return Scorer(benchmark, shard.subset).score(records)

    return packed(benchmark, scored)


def running_sums(benchmark: Benchmark, subset: str, records: Sequence[Record]) -> bytes | None:
    """Return what users add to the running scores, as `packed`."""
    return packed(benchmark, lambda: sums_of(Scorer(benchmark, subset), records))


def packed(benchmark: Benchmark, make: Callable[[], Any]) -> bytes | None:
    """Return scores for `loaded`, None if they cannot be made or sent. Objects of the benchmark's `scoring`, such as a
    ground truth, are not sent: the driver has them."""
    content = BytesIO()
    try:
        pickler = pickle.Pickler(content, 5)
        if names := {id(value): name for name, value in _objects(benchmark).items()}:
            pickler.persistent_id = lambda value: names.get(id(value))  # type: ignore[method-assign]
        pickler.dump(make())
    except Exception:  # of a benchmark's code too: the driver scores these users, and reports it
        return None
    return content.getvalue()


def loaded(benchmark: Benchmark, data: bytes | None) -> Any:
    """Return scores that a worker has packed, None for none."""
    if data is None:
        return None
    unpickler = pickle.Unpickler(BytesIO(data))
    unpickler.persistent_load = _objects(benchmark).__getitem__  # type: ignore[method-assign]
    try:
        return unpickler.load()
    except Exception:  # of a class that only the worker knows
        return None


def _objects(benchmark: Benchmark) -> Mapping[str, Any]:
    held: dict[str, Any] = getattr(benchmark.scoring, "__dict__", {})
    return {name: value for name, value in held.items() if type(value).__module__ != "builtins"}
