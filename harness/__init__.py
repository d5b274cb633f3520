"""An async, high-concurrency inference harness for benchmarks of user behaviour."""

import os

__version__ = "0.1.0"

# Before numpy is loaded: our products are small, and OpenBLAS's threads spin on a second core long after each.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from harness.benchmark import Benchmark, Metric, Task
from harness.chat import Chat
from harness.errors import InvalidReply

__all__ = ["Benchmark", "Chat", "InvalidReply", "Metric", "Task", "__version__"]
