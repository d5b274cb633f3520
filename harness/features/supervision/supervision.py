"""Run a command whose process others may end in a child process, so that its end is reported however it comes about.

Code of an agent file can end its process without a word, and with exit code 0 (`ctypes`, a library in C), and so can a
library that a feature needs. The process that the user has started then only waits. It forwards signals, ends with the
child's exit code, and leaves no process behind that the child has started: the child has a session of its own, so that
each signal comes once, and through here; Ctrl-Z stops both. A child whose parent is killed is killed. On Linux only;
elsewhere nothing is supervised.
"""

from __future__ import annotations

import atexit
import ctypes
import glob
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from harness.agents.hash_seed import MAY_PLAY_AGENTS
from harness.config import secrets
from harness.errors import EXIT_CODES, MachineError
from harness.feature import PLAYING, Threat, features
from harness.ui import streams

KEPT = "agent_"
"""Before the names of agent files in the folder of a run."""
DIE_WITH_PARENT = 1
"""PR_SET_PDEATHSIG of prctl(2)."""


def supervise(words: Sequence[str], args: Any) -> int | None:
    """Have a child process execute a command that something may end: return the exit code, and None in the child.
    Return None also where nothing may."""
    found = threat(words, args)
    return supervised(found) if found else None


def threat(words: Sequence[str], args: Any) -> Threat | None:
    """Return what may end the process of a command, None for nothing but the system."""
    if names := agents(words, args):
        return Threat(f"the process that played {names} ended", "code that the agent file runs has ended it")
    on = [feature for feature in features() if feature.threat and feature.is_on(args)] if words[0] in PLAYING else []
    return on[0].threat if on else None


def agents(words: Sequence[str], args: Any) -> str:
    """Return the names of the agent files that a command may play, empty for none."""
    if words[0] == "run":
        return next((Path(value).name for name, value in secrets.values(words) if name == "--agent"), "")
    if words[0] not in MAY_PLAY_AGENTS:
        return ""
    name: str | None = getattr(args, "name", None)
    found = Path(args.results_dir).glob(f"{glob.escape(name) if name else '*'}/{KEPT}*")
    return ", ".join(sorted({path.name.removeprefix(KEPT) for path in found}))


def supervised(threat: Threat) -> int | None:
    """Go on in a child process, and return None there; return here, once it has ended, the exit code."""
    if sys.platform != "linux":
        return None
    waited = set(EXIT_CODES) | {signal.SIGQUIT, signal.SIGUSR2, signal.SIGWINCH, signal.SIGCHLD, signal.SIGTSTP}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, waited)
    ended, end = os.pipe()
    this, child = os.getpid(), os.fork()
    if not child:
        os.setsid()
        ctypes.CDLL(None).prctl(DIE_WITH_PARENT, signal.SIGKILL)
        if os.getppid() != this:
            os._exit(MachineError.exit_code)
        os.close(ended)
        atexit.register(os.write, end, b".")
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return None
    os.close(end)
    try:
        how = _watched(child, waited)
        os.set_blocking(ended, False)
        with suppress(BlockingIOError):
            if os.read(ended, 1) and how.si_code == os.CLD_EXITED:
                return int(how.si_status)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(ended)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return _reported(how, threat)


def _watched(child: int, waited: set[signal.Signals]) -> Any:
    """Return how the child has ended, which is still to be waited for; until then forward signals."""
    while True:
        number = signal.sigwait(waited)
        if number == signal.SIGCHLD:
            if how := os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                return how
        elif number == signal.SIGTSTP:
            os.killpg(child, signal.SIGSTOP)
            os.kill(os.getpid(), signal.SIGSTOP)
            os.killpg(child, signal.SIGCONT)
        else:
            os.kill(child, number)


def _reported(how: Any, threat: Threat) -> int:
    """Say how the child has ended, if not by a signal that users send; then end by the same."""
    if how.si_code == os.CLD_EXITED:
        end = f"with exit code {how.si_status}"
    else:
        number = signal.Signals(how.si_status)
        if number in {*EXIT_CODES, signal.SIGQUIT}:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        end = f"by signal {number.value} ({signal.strsignal(number)})"
    streams.tell(
        f"{threat.sentence} {end}, and not by the harness: {threat.by}, or the system has (memory, "
        "kill -9); everything saved is intact, and `resume` goes on"
    )
    return MachineError.exit_code
