"""A fixed hash seed for runs of agents: the order of a set of strings depends on it, and so may what an agent asks."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence

VARIABLE = "PYTHONHASHSEED"
SEED = "0"
HELP = frozenset({"-h", "--help", "--help-all"})
MAY_PLAY_AGENTS = frozenset({"resume", "reeval", "export"})


def fixed(environment: Mapping[str, str]) -> str | None:
    """Return the hash seed of this process, None for a random one."""
    seed = environment.get(VARIABLE, "")
    return seed if seed.isdigit() and not sys.flags.ignore_environment else None


def fix(arguments: Sequence[str], environment: Mapping[str, str]) -> None:
    """Start this process again with a fixed hash seed if it may play agents: `run --agent`, `resume`, `reeval`,
    `export`.

    Must be called before anything is opened. The new process has the seed in its environment and goes on; so does one
    that ignores its environment (`python -I`), or cannot be replaced.
    """
    if HELP.intersection(arguments):
        return
    plays = arguments[:1] == ["run"] and any(word.partition("=")[0] == "--agent" for word in arguments)
    if not (plays or MAY_PLAY_AGENTS.intersection(arguments[:1])) or os.name != "posix":
        return
    if fixed(environment) is None and not sys.flags.ignore_environment:
        try:
            os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], {**environment, VARIABLE: SEED})
        except OSError:  # the order of sets is then this process's own, and the manifest says so
            return
