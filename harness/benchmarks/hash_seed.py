"""A fixed hash seed for runs of agents: the order of a set of strings depends on it, and so may
what an agent asks."""

from __future__ import annotations

import glob
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol

VARIABLE = "PYTHONHASHSEED"
SEED = "0"
COPY_PREFIX = "agent_"
"""Before the names of agent files in a run's folder."""
REPLAYING = ("resume", "reeval", "verify")


class SelectsRuns(Protocol):
    """Options of a command about saved runs."""

    @property
    def runs(self) -> Sequence[str]: ...
    @property
    def results_dir(self) -> Path: ...


def fixed(environment: Mapping[str, str]) -> str | None:
    """Return the hash seed of this process, None for a random one."""
    seed = environment.get(VARIABLE, "")
    if seed.isdigit() and not sys.flags.ignore_environment:
        return seed
    return None


def fix(command: str, args: SelectsRuns, environment: Mapping[str, str]) -> None:
    """Start this process again with a fixed hash seed if its command plays an agent file.

    Must be called before anything is opened. The new process has the seed in its environment and
    goes on; so does one that ignores its environment (`python -I`), or cannot be replaced.
    """
    if sys.flags.ignore_environment or fixed(environment) is not None:
        return

    if not plays_agent(command, args):
        return

    arguments = [sys.executable, *sys.orig_argv[1:]]
    # Without a new process the order of sets is random, and the manifest says so.
    with suppress(OSError):
        os.execve(sys.executable, arguments, {**environment, VARIABLE: SEED})


def plays_agent(command: str, args: SelectsRuns) -> bool:
    """Return whether a command plays an agent file: that of `run --agent`, or the copy in a saved
    run's folder."""
    if command == "run":
        return "agent" in (getattr(args, "benchmark_settings", None) or ())

    if command not in REPLAYING or not getattr(args, "reparse", True):
        return False

    for pattern in [*map(glob.escape, args.runs)] or ["*"]:
        if any(args.results_dir.glob(f"{pattern}/{COPY_PREFIX}*")):
            return True

    return False
