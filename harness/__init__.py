"""An async, high-concurrency inference harness for benchmarks of user behaviour."""

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.2.0"

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
    "MachineError",
    "Means",
    "Metric",
    "Records",
    "RunStopped",
    "Scoring",
    "Task",
    "TaskFiles",
    "__version__",
]

OF_FEATURES = frozenset(
    {"BudgetReached", "LoadedRun", "aresume", "arun", "compare", "export", "leaderboard", "list_runs", "load_run"}
    | {"reeval", "resume", "run", "verify"}
)
"""What features offer, as long as their folders are there; it is imported when it is used."""

if TYPE_CHECKING:
    from harness.features.budget import BudgetReached as BudgetReached
    from harness.features.compare.command import compare as compare
    from harness.features.exports.command import export as export
    from harness.features.leaderboard.command import leaderboard as leaderboard
    from harness.features.python.interface import LoadedRun as LoadedRun
    from harness.features.python.interface import aresume as aresume
    from harness.features.python.interface import arun as arun
    from harness.features.python.interface import list_runs as list_runs
    from harness.features.python.interface import load_run as load_run
    from harness.features.python.interface import reeval as reeval
    from harness.features.python.interface import resume as resume
    from harness.features.python.interface import run as run
    from harness.features.verify.command import verify as verify


def __getattr__(name: str) -> Any:
    if name in OF_FEATURES and (found := import_module("harness.feature").function(name)):
        return found
    raise AttributeError(f"harness offers no {name}")
