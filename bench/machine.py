"""What the figures of a benchmark hang on: the machine, the versions, and the memory of a
process."""

from __future__ import annotations

import os
import platform
import re
import resource
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

PACKAGES = ("aiohttp", "anyio", "numpy", "orjson", "rich", "scipy", "tenacity", "uvloop")


def facts(folder: Path) -> dict[str, Any]:
    """Return the machine as results files and the terminal show it; the load tells whether others
    were at work."""
    return {
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1),
        "free_disk_gb": round(shutil.disk_usage(folder).free / 1e9, 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "load": round(os.getloadavg()[0], 2),
        "versions": {name: version(name) for name in PACKAGES},
    }


def _cpu_model() -> str:
    try:
        found = re.search(r"^model name\s*: (.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        found = None
    return found[1] if found else platform.processor() or platform.machine()


def memory_mb(what: str, process: int | str = "self") -> float | None:
    """`VmHWM` (the most so far) or `VmRSS` (now) of a process in MB, None where it has gone or
    there is no /proc.

    The kernel's own `ru_maxrss` of a child would begin with the size of the process that started
    it.
    """
    try:
        found = re.search(
            rf"^{what}:\s+(\d+) kB$", Path(f"/proc/{process}/status").read_text(), re.MULTILINE
        )
    except OSError:
        return None
    return int(found[1]) * 1024 / 1e6 if found else None


def peak_mb() -> float:
    """Return the most memory that this process has held, in MB."""
    peak = memory_mb("VmHWM")
    if peak is not None:
        return peak
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6


@contextmanager
def starting_on(cores: slice) -> Iterator[None]:
    """Let processes started inside keep to these of the machine's cores, where it has several and
    lets us choose."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    every = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, every[cores] or every)
    try:
        yield
    finally:
        os.sched_setaffinity(0, every)
