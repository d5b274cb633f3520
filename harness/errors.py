"""Every error that the harness raises on purpose.

HarnessError                 what a user is shown in one sentence; `exit_code` is the process's
├── BadInput            2    arguments, tasks, prompt or results that cannot be used
├── MachineError        4    this machine: disk, permissions, a run that another process holds
├── EndpointStopped     3    the endpoint will not serve this run at all: key, model, quota, address
├── RunStopped      130/143  a signal asked the run to stop
├── BenchmarkError      2    a benchmark's code failed or broke its contract
├── AgentFailed              code that a benchmark was given failed for one user, who becomes a failure
└── CallError                one request, seen by the engine only
    ├── TransportFault       no whole reply came; worth another try
    ├── Rejected             the endpoint refuses this very request; no other try would help
    └── GaveUp               the tries are used up; the user becomes a failure
"""

from __future__ import annotations

import reprlib
from collections.abc import Iterator
from contextlib import contextmanager


def shown(value: object) -> str:
    """A value in a sentence: on one line, of bearable length, however long or deep it is and whatever it holds."""
    return _SHOWN.repr(value)


class _Short(reprlib.Repr):
    def repr_int(self, x: int, level: int) -> str:
        """Python may refuse to write the digits of a large one."""
        return "a number beyond 64 bits" if x.bit_length() > 64 else super().repr_int(x, level)


_SHOWN = _Short()
_SHOWN.maxstring = _SHOWN.maxother = 60


class HarnessError(Exception):
    exit_code = 1


class BadInput(HarnessError):
    exit_code = 2


class MachineError(HarnessError):
    exit_code = 4


class EndpointStopped(HarnessError):
    exit_code = 3


class RunStopped(HarnessError):
    def __init__(self, exit_code: int) -> None:
        super().__init__("stopped by a signal")
        self.exit_code = exit_code


class AgentFailed(HarnessError):
    """The code of a file that the user gave to a benchmark, as an agent, failed or was stopped.

    `kind` is the failure's name in files and displays (`agent_error`, `agent_blocked`, ...).
    """

    def __init__(self, kind: str, detail: str) -> None:
        super().__init__(f"{kind}: {detail}")
        self.kind = kind
        self.detail = detail


class CallError(HarnessError):
    """`kind` is the failure's name in files and displays (`http_503`, `timeout`, ...)."""

    def __init__(self, kind: str, detail: str) -> None:
        super().__init__(f"{kind}: {detail}")
        self.kind = kind
        self.detail = detail


class TransportFault(CallError):
    """`retry_after` is what the endpoint asked to wait, in seconds.

    `unreachable` says that the address itself does not answer (refused, unknown, 404), which before
    any success means a wrong address rather than a busy server.
    """

    def __init__(self, kind: str, detail: str, *, retry_after: float | None = None, unreachable: bool = False) -> None:
        super().__init__(kind, detail)
        self.retry_after = retry_after
        self.unreachable = unreachable


class Rejected(CallError):
    pass


class GaveUp(CallError):
    def __init__(self, kind: str, detail: str, tries: int) -> None:
        super().__init__(kind, detail)
        self.tries = tries


class BenchmarkError(HarnessError):
    """The code of a benchmark broke its contract or failed: which one, for which user, where in its file.

    While a user is played it gives this user up, whose failure has this `kind` and `detail`.
    """

    exit_code = 2
    kind = "benchmark_error"

    @property
    def detail(self) -> str:
        return str(self)


class InvalidReply(Exception):
    """A reply that cannot be used. `kind` is what it is counted under, `why` is for the model when it is asked again;
    a `final` one is not asked for again. A benchmark raises it while it reads a reply."""

    def __init__(self, kind: str, why: str = "", *, final: bool = False) -> None:
        super().__init__(f"{kind}: {why}" if why else kind)
        self.kind = kind
        self.why = why
        self.final = final


class FieldError(ValueError):
    """A field of a task line that cannot be used; the harness adds file and line.

    `field` is its path (`steps[2].pool`), `expected` and `got` are in words.
    """

    def __init__(self, field: str, expected: str, got: str = "") -> None:
        super().__init__(f"field {field}: expected {expected}{f', got {got}' if got else ''}")


@contextmanager
def memory_for(doing: str, remedy: str) -> Iterator[None]:
    """Dispatch running out of memory, also within a library, into the sentence of a `MachineError`."""
    try:
        yield
    except (MemoryError, OSError, ValueError, RuntimeError, ImportError) as error:
        if not lacks_memory(error):
            raise
        raise MachineError(f"no memory left to {doing}{f' ({error})' if str(error) else ''}: {remedy}") from None


NO_MEMORY = ("Not enough memory", "Cannot allocate memory", "can't start new thread", "failed to map segment")
"""Words of libraries that report it by errors of other classes: orjson, the system, threading, the dynamic linker."""


def lacks_memory(error: BaseException) -> bool:
    """Whether an error says that this process has no memory left."""
    return isinstance(error, MemoryError) or any(words in str(error) for words in NO_MEMORY)


@contextmanager
def reading(path: object) -> Iterator[None]:
    """Raise `MachineError` if a file of a run cannot be read."""
    try:
        yield
    except OSError as error:
        raise MachineError(f"cannot read {path}: {error.strerror}") from error
