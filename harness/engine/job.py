"""One run of one subset, open: what a command hands to an engine."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from harness.benchmark import Benchmark, Task
from harness.benchmarks import tasks
from harness.endpoint.request_body import Sampling
from harness.store.run import RunStore
from harness.store.tasks import TaskIndex


@dataclass(slots=True)
class Job:
    """`expected` and `done` are masks over the tasks; users expected and not done remain.

    `failed` counts the users given up on in this process, `otherwise` those who sent different requests after they
    were interrupted, so that saved responses went unused, and `warnings` are what the benchmark warned of; all three
    are the engine's to write.
    """

    benchmark: Benchmark
    subset: str
    sampling: Sampling
    endpoint: str
    index: TaskIndex
    store: RunStore
    expected: NDArray[np.bool_]
    failed: int = 0
    otherwise: int = 0
    warnings: list[str] = field(default_factory=list)

    @property
    def done(self) -> NDArray[np.bool_]:
        return self.store.done

    @property
    def remaining(self) -> NDArray[np.int64]:
        return np.flatnonzero(self.expected & ~self.done)

    @property
    def users(self) -> int:
        return int(self.expected.sum())

    @property
    def users_done(self) -> int:
        return int((self.expected & self.done).sum())

    def task(self, position: int) -> Task:
        """The task, read and parsed from its file."""
        return tasks.parse(self.benchmark, self.index.read(position), self.index.where(position), self.subset)
