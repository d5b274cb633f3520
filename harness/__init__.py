"""An async, high-concurrency inference harness for benchmarks of user behaviour."""

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

# Before numpy is loaded: our products are small, and OpenBLAS's threads spin on a second core long after each.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from harness.benchmark import About, Benchmark, Cards, Means, Metric, Records, Scoring, Task, TaskFiles
from harness.chat import Chat
from harness.errors import (
    AnswersUnusable,
    BadInput,
    BenchmarkError,
    EndpointStopped,
    HarnessError,
    InUse,
    InvalidReply,
    MachineError,
    RunStopped,
)

__all__ = [
    "About",
    "AnswersUnusable",
    "BadInput",
    "Benchmark",
    "BenchmarkError",
    "Cards",
    "Chat",
    "EndpointStopped",
    "HarnessError",
    "InUse",
    "InvalidReply",
    "LoadedRun",
    "MachineError",
    "Means",
    "Metric",
    "Records",
    "RunStopped",
    "Scoring",
    "Task",
    "TaskFiles",
    "__version__",
    "aresume",
    "arun",
    "list_runs",
    "load_run",
    "reeval",
    "resume",
    "run",
]

OF_FEATURES = frozenset({"BudgetReached", "compare", "export", "leaderboard", "verify"})
"""What features offer, as long as their folders are there."""

if TYPE_CHECKING:
    from harness.api import LoadedRun, aresume, arun, list_runs, load_run, reeval, resume, run
    from harness.features.budget import BudgetReached as BudgetReached
    from harness.features.compare.command import compare as compare
    from harness.features.exports.command import export as export
    from harness.features.leaderboard.command import leaderboard as leaderboard
    from harness.features.verify.command import verify as verify


def __getattr__(name: str) -> Any:
    """Load the Python interface when it is used: it needs the whole engine, and authors of benchmarks do not."""
    if name in __all__:
        return getattr(import_module("harness.api"), name)
    if name in OF_FEATURES and (found := import_module("harness.feature").function(name)):
        return found
    raise AttributeError(f"harness offers no {name}")
