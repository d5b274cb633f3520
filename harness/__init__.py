"""An async, high-concurrency inference harness for benchmarks of user behaviour."""

import os
from typing import TYPE_CHECKING, Any

__version__ = "0.2.0"

# Before numpy is loaded: our products are small, and OpenBLAS's threads spin on a second core long
# after each.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from harness.benchmark import (
    About,
    Benchmark,
    Cards,
    Means,
    Metric,
    Records,
    Role,
    Scoring,
    Task,
    TaskFiles,
)
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
    "Role",
    "RunStopped",
    "Scoring",
    "Task",
    "TaskFiles",
    "__version__",
]

# Type checkers do not follow `__getattr__`; to them `import X as X` exports the name.
if TYPE_CHECKING:
    from harness.commands.compare.command import compare as compare
    from harness.commands.export.command import export as export
    from harness.commands.stats.command import leaderboard as leaderboard
    from harness.commands.verify.command import verify as verify
    from harness.extensions.budget import BudgetReached as BudgetReached
    from harness.interface import LoadedRun as LoadedRun
    from harness.interface import aresume as aresume
    from harness.interface import arun as arun
    from harness.interface import list_runs as list_runs
    from harness.interface import load_run as load_run
    from harness.interface import reeval as reeval
    from harness.interface import resume as resume
    from harness.interface import run as run


def __getattr__(name: str) -> Any:
    """Import the Python interface, which takes a while, when it is used."""
    match name:
        case "BudgetReached":
            from harness.extensions.budget import BudgetReached

            return BudgetReached
        case "compare":
            from harness.commands.compare.command import compare

            return compare
        case "export":
            from harness.commands.export.command import export

            return export
        case "leaderboard":
            from harness.commands.stats.command import leaderboard

            return leaderboard
        case "verify":
            from harness.commands.verify.command import verify

            return verify
        case (
            "LoadedRun"
            | "aresume"
            | "arun"
            | "list_runs"
            | "load_run"
            | "reeval"
            | "resume"
            | "run"
        ):
            from harness import interface

            return getattr(interface, name)
    raise AttributeError(f"harness offers no {name}")
