"""Keep the process, which everybody shares, from what an agent's code does to it by accident.

While an agent file loads or its residents play, the functions of Python in `ENDS` and `STARTS` are replaced by ones
that refuse calls of the agent: from a slice (session.py), or from a thread that one has started. Calls of everybody
else pass. It is no sandbox: C code (`ctypes`), a function that a package has imported by name before (`from os import
fork`), and threads of `_thread` and of anyio are not refused. the feature `supervision` reports what they end.
"""

from __future__ import annotations

import _posixsubprocess
import concurrent.futures.thread
import faulthandler
import gc
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial, wraps
from threading import Thread, current_thread, get_ident
from typing import Any
from weakref import WeakKeyDictionary

from harness.agents.interface import Harness

KIND = "agent_process"
ENDS: Mapping[Any, str] = {
    os: "_exit abort close closerange dup2 execv execve kill killpg chroot setgid setgroups setpgid setregid setresgid "
    "setresuid setreuid setsid setuid setegid seteuid",
    signal: "pthread_kill raise_signal",
    faulthandler: "_fatal_error_c_thread _read_null _sigabrt _sigfpe _sigsegv _stack_overflow",
}
"""What ends, breaks or replaces the process."""
STARTS: Mapping[Any, str] = {
    os: "fork forkpty posix_spawn posix_spawnp system",
    _posixsubprocess: "fork_exec",
    subprocess.Popen: "__init__",
    signal: "pthread_sigmask set_wakeup_fd siginterrupt signal",
}
"""What starts others, or takes over signals. Packages do so while they are imported, hence not refused in loading."""
OPENS = "dup memfd_create open openpty pipe pipe2"
"""Of `os`: what an agent opens by these, it may close by `os.close`."""


class Refused(SystemExit):
    """Raised where no resident is known: while a file loads, and to whoever waits for a thread of a pool."""


class Process:
    """What of the process's code is one agent file's: the slice that runs, and threads that were started in slices.

    Those threads have the file's `name` before their own.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._player: Harness | None = None
        self._slice = 0
        self._threads: WeakKeyDictionary[Thread, Harness | None] = WeakKeyDictionary()
        self._opened: set[int] = set()

    @contextmanager
    def running(self, player: Harness | None) -> Iterator[None]:
        """Take what this thread runs while this is open for the agent's; without a player its file is loaded."""
        self._player, self._slice = player, get_ident()
        try:
            yield
        finally:
            self._player, self._slice = None, 0

    @contextmanager
    def guarded(self) -> Iterator[None]:
        """Refuse while this is open."""
        _guarding.append(self)
        if len(_guarding) == 1:
            _replace()
        try:
            yield
        finally:
            _guarding.remove(self)
            if not _guarding:
                _put_back()

    @property
    def _runs(self) -> bool:
        return get_ident() == self._slice or current_thread() in self._threads

    def check(self, name: str, args: tuple[Any, ...], ends: bool) -> None:
        """Raise if the agent calls a function that it must not call."""
        if not self._runs or self._is_harmless(name, args):
            return
        what = f"{name} is refused: all residents share this process"
        if get_ident() != self._slice:
            if player := self._threads[current_thread()]:
                player.refuse_thread(KIND, what)
                raise SystemExit(what)  # a thread that it ends prints nothing, which holds for no class below it
            raise Refused(what)
        if self._player is not None:
            self._player.refuse(KIND, what)
        if ends:
            raise Refused(what)

    def _is_harmless(self, name: str, args: tuple[Any, ...]) -> bool:
        if name == "os.close" and args and args[0] in self._opened:
            self._opened.discard(args[0])
            return True
        looks = name in ("os.kill", "os.killpg") and args[1:] == (0,)
        return looks or (name == "signal.signal" and args[:1] == (getattr(signal, "SIGALRM", 0),))

    def opened(self, result: Any) -> None:
        """Note what the agent has opened."""
        if self._runs:
            self._opened.update(result if isinstance(result, tuple) else (result,))

    def adopt(self, thread: Thread, pooled: bool) -> None:
        """Note a thread that the agent starts. What a pool's does is the doing of whoever waits for the result."""
        if self._runs:
            starter = self._player or self._threads.get(current_thread())
            self._threads[thread] = None if pooled else starter
            thread.name = f"{self._name}: {thread.name}"


_guarding: list[Process] = []
_originals: list[tuple[Any, str, Any]] = []
"""What is replaced now, of the process's own modules."""


def _replace() -> None:
    for functions, ends in ((ENDS, True), (STARTS, False)):
        for owner, names in functions.items():
            for name in names.split():
                _set(owner, name, partial(_refusing, ends))
    for name in OPENS.split():
        _set(os, name, _noting)
    _set(Thread, "start", _adopting)


def _set(owner: Any, name: str, made: Callable[[Any, str], Any]) -> None:
    """Replace a function, where this platform has it."""
    if (original := getattr(owner, name, None)) is not None:
        _originals.append((owner, name, original))
        words = owner.__name__ if name == "__init__" else name
        setattr(owner, name, made(original, f"{getattr(owner, '__module__', owner.__name__)}.{words}"))


def _put_back() -> None:
    while _originals:
        setattr(*_originals.pop())


def _refusing(ends: bool, original: Any, name: str) -> Any:
    @wraps(original)
    def refusing(*args: Any, **named: Any) -> Any:
        for process in tuple(_guarding):
            process.check(name, args, ends)
        return original(*args, **named)

    return refusing


def _noting(original: Any, name: str) -> Any:
    @wraps(original)
    def noting(*args: Any, **named: Any) -> Any:
        result = original(*args, **named)
        for process in tuple(_guarding):
            process.opened(result)
        return result

    return noting


def _adopting(original: Any, name: str) -> Any:
    @wraps(original)
    def start(thread: Thread) -> None:
        shared = type(thread).__module__.startswith("anyio.")  # the harness works in these, too
        pooled = sys._getframe(1).f_code.co_filename == concurrent.futures.thread.__file__
        for process in () if shared else tuple(_guarding):
            process.adopt(thread, pooled)
        original(thread)

    return start


class Pool(ThreadPoolExecutor):
    """Threads for `asyncio.to_thread`, which the end of an event loop does not wait for: one may never return."""

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        super().shutdown(wait=False, cancel_futures=True)


class Surroundings:
    """State of the process that an agent may change for itself in a slice, as it is now."""

    def __init__(self) -> None:
        self._folder = working_directory()
        self._umask = os.umask(0o077)
        os.umask(self._umask)
        self._recursion = sys.getrecursionlimit()
        self._collects = gc.isenabled()
        self._environment = dict(os.environ)

    def put_back_files(self) -> list[str]:
        """Put back what decides on files; return what was another."""
        changed = []
        if working_directory() != self._folder:
            with suppress(OSError):
                os.chdir(self._folder)
                changed.append("the working directory")
        if os.umask(self._umask) != self._umask:
            changed.append("the umask")
        return changed

    def put_back(self) -> list[str]:
        """Put back all but the environment, which residents share; return what was another."""
        changed = self.put_back_files()
        if sys.getrecursionlimit() != self._recursion:
            sys.setrecursionlimit(self._recursion)
            changed.append("the recursion limit")
        if gc.isenabled() != self._collects:
            (gc.enable if self._collects else gc.disable)()
            changed.append("the garbage collector")
        return changed

    def put_back_environment(self) -> None:
        if os.environ != self._environment:
            os.environ.clear()
            os.environ.update(self._environment)


def working_directory() -> str:
    """Return nothing where it has been removed."""
    try:
        return os.getcwd()
    except OSError:
        return ""
