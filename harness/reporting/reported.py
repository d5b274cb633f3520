"""A run whose report is new: what a page of it needs."""

from __future__ import annotations

from dataclasses import dataclass

from harness.benchmark import Benchmark
from harness.scoring.reports import Report
from harness.store.files import RunFiles
from harness.store.tasks import TaskIndex


@dataclass(frozen=True, slots=True)
class Reported:
    """A run's folder and its report, with what else is needed to show its users: the seed that
    draws them, and the benchmark and the tasks, None where these are missing."""

    files: RunFiles
    report: Report
    seed: int
    benchmark: Benchmark | None = None
    index: TaskIndex | None = None
