"""An async, high-concurrency inference harness for benchmarks of user behaviour."""

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

# Before numpy is loaded: our products are small, and OpenBLAS's threads spin on a second core long after each.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from harness.benchmark import Benchmark, Cards, Means, Metric, Records, Scoring, Task
from harness.chat import Chat
from harness.errors import BadInput, HarnessError, InvalidReply

__all__ = [
    "BadInput",
    "Benchmark",
    "Cards",
    "Chat",
    "CommandFailed",
    "HarnessError",
    "InvalidReply",
    "LoadedRun",
    "Means",
    "Metric",
    "Records",
    "Scoring",
    "Task",
    "__version__",
    "list_runs",
    "load_run",
    "reeval",
    "resume",
    "run",
]

if TYPE_CHECKING:
    from harness.api import CommandFailed, LoadedRun, list_runs, load_run, reeval, resume, run


def __getattr__(name: str) -> Any:
    """Load the Python interface when it is used: it needs the whole engine, and authors of benchmarks do not."""
    if name in __all__:
        return getattr(import_module("harness.api"), name)
    raise AttributeError(name)
