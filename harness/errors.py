"""Every error that the harness raises on purpose.

HarnessError                 one sentence for the user, and the `exit_code` of the process
├── BadInput            2    arguments, tasks, prompt or results that cannot be used
├── MachineError        4    this machine: disk, permissions
│   └── InUse                a run that another process holds
├── EndpointStopped     3    the endpoint cannot serve this run at all: key, model, quota, address
│   └── ConfigurationRefused its model or parameters: resuming it could not help
├── (of extensions)     5    more may be paid only if the user says so
├── AnswersUnusable     6    almost none of the first answers can be used
├── RunStopped  129/130/143  a signal asked the run to stop
├── BenchmarkError      2    a benchmark's code failed or broke its contract
└── OfKind                   with the `kind` that files and displays have
    ├── AgentFailed          a user's file (an agent) failed for one user, who becomes a failure
    └── CallError            one request, for the engine only
        ├── TransportFault   no whole reply came; worth another try
        ├── Rejected         the endpoint refuses this very request; no other try would help
        └── GaveUp           the tries are used up; the user becomes a failure
"""

from __future__ import annotations

import reprlib
import shlex
import signal
import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from difflib import get_close_matches
from typing import Any


class _Short(reprlib.Repr):
    def repr_int(self, x: int, level: int) -> str:
        """Python may refuse to write the digits of a large one."""
        if x.bit_length() > 64:
            return "a number beyond 64 bits"
        return super().repr_int(x, level)


def to_install(requirement: str) -> str:
    """Return the command that installs a package, or an extra of this one, for the Python that
    runs."""
    return f"{shlex.quote(sys.executable)} -m pip install {shlex.quote(requirement)}"


def in_brief(value: object) -> str:
    """Return a value on one line of limited length, however long or deep it is."""
    return _SHOWN.repr(value)


_SHOWN = _Short()
_SHOWN.maxstring = _SHOWN.maxother = 60


def which_is_known(word: str, known: Collection[str], repeats: str = "") -> str:
    """Return the end of a message on an unknown name: the known one that was meant, else all.

    `repeats` is the option that takes such names one by one, for those who give it a list with
    commas.
    """
    if repeats and "," in word:
        return f": give {repeats} once for each"
    return did_you_mean(word, known) or f"; there are {', '.join(known) or 'none'}"


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return the end of a message on an unknown name: the known one that was meant; empty if none
    is near."""
    names = {_plain(name): name for name in known}
    spelt = _plain(word)
    # One letter begins too many names.
    longer = [name for name in names if len(spelt) > 1 and name.startswith(spelt)]
    # The beginning of a name counts before a similar one: `--conc` means `--concurrency`.
    near = [*longer, *get_close_matches(spelt, names, 1, 0.65)]
    if near:
        return f": did you mean {names[near[0]]}?"
    return ""


def _plain(name: str) -> str:
    return name.lstrip("-").casefold().replace("_", "-")


class HarnessError(Exception):
    """Base of all: a sentence for the user, or several, and the `exit_code` of a command that ends
    with it."""

    exit_code: int = 1
    runs: Sequence[Any] = ()
    """The runs (`harness.LoadedRun`) that a function of the Python interface has so far, where it
    raises."""

    def __str__(self) -> str:
        return "\n".join(map(str, self.args))

    def __reduce__(self) -> tuple[Any, ...]:
        """Have a process that unpickles it make it without its constructor, which may take other
        arguments."""
        return _made_again, (type(self), self.args, vars(self))


def _made_again(
    cls: type[HarnessError], arguments: tuple[Any, ...], state: dict[str, Any]
) -> HarnessError:
    error = cls.__new__(cls, *arguments)
    vars(error).update(state)
    return error


class ExitCode(int):
    """An exit code, with the error that it is of: `max` of several keeps the worst one's."""

    error: HarnessError

    @classmethod
    def of(cls, error: HarnessError) -> ExitCode:
        code = cls(error.exit_code)
        code.error = error
        return code


class BadInput(HarnessError):
    """Arguments, tasks, prompts or results that cannot be used; names file, line and field where
    they exist."""

    exit_code = 2


class MachineError(HarnessError):
    """This machine cannot do it: disk, permissions, memory. Everything saved is intact."""

    exit_code = 4


class InUse(MachineError):
    """Another process holds the lock of a run."""


class EndpointStopped(HarnessError):
    """The endpoint cannot serve this run: key, model, quota, address, or no answer for too long."""

    exit_code = 3


class AnswersUnusable(HarnessError):
    """Almost none of a process's first answers can be used; `--allow-invalid` goes on all the
    same."""

    exit_code = 6


EXIT_CODES = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGUSR1: 143, signal.SIGHUP: 129}
"""Signals that end a command, and its exit code then; job schedulers send SIGUSR1, a terminal that
closes SIGHUP."""


def heeded() -> list[signal.Signals]:
    """Return the signals to obey: not those that are ignored, as `nohup` and shells have it for
    what they start in the background."""
    # Job schedulers send signals that a shell's `nohup` has switched off on purpose.
    return [number for number in EXIT_CODES if signal.getsignal(number) != signal.SIG_IGN]


class ConfigurationRefused(EndpointStopped):
    """The endpoint refuses what the run's identity fixes, its model or parameters: resuming it
    could not help."""


class RunStopped(HarnessError):
    def __init__(self, exit_code: int) -> None:
        super().__init__("stopped by a signal")
        self.exit_code = exit_code


class OfKind(HarnessError):
    """`kind` is the failure's name in files and displays (`http_503`, `timeout`, `agent_error`,
    ...)."""

    def __init__(self, kind: str, detail: str) -> None:
        super().__init__(f"{kind}: {detail}")
        self.kind = kind
        self.detail = detail


class AgentFailed(OfKind):
    """The code of an agent file that the user gave to a benchmark failed or was stopped."""


class RoleFailed(AgentFailed):
    """A role, such as a judge, gave no usable reply: no score follows for the model under test."""


class CallError(OfKind):
    pass


TOO_MANY_REQUESTS = "http_429"


class TransportFault(CallError):
    """`retry_after` is the wait that the endpoint requests, in seconds.

    `unreachable`: the address itself does not answer (refused, unknown, 404). Before any success
    that means a wrong address, not a busy server. `foreign`: a server of something else answers,
    such as another API; likewise. `billed`: the try may have reached a model. `refusal`: the
    endpoint refuses the key, the model or the like; the run ends with this error unless the
    endpoint answers another request.
    """

    def __init__(
        self,
        kind: str,
        detail: str,
        *,
        retry_after: float | None = None,
        unreachable: bool = False,
        foreign: bool = False,
        billed: bool = True,
        refusal: EndpointStopped | None = None,
    ) -> None:
        super().__init__(kind, detail)
        self.retry_after = retry_after
        self.unreachable = unreachable
        self.foreign = foreign
        # Where no request has reached the endpoint, or it has refused to serve, nothing is billed.
        self.billed = billed and not (unreachable or self.asks_to_wait)
        self.refusal = refusal

    @property
    def may_count(self) -> bool:
        """Whether the try may count against its request."""
        return not (self.asks_to_wait or self.refusal)

    @property
    def asks_to_wait(self) -> bool:
        """Whether the endpoint serves, but not this many or this often: that is paced, and no
        failed try."""
        # A 503 with Retry-After is a server that is full, without it one that fails.
        names_a_time = self.kind == "http_503" and self.retry_after is not None
        return self.kind == TOO_MANY_REQUESTS or names_a_time


class Rejected(CallError):
    pass


class GaveUp(CallError):
    def __init__(self, kind: str, detail: str, tries: int) -> None:
        super().__init__(kind, detail)
        self.tries = tries


class BenchmarkError(HarnessError):
    """The code of a benchmark broke its contract or failed: which one, for which user, where in its
    file.

    A user that is played becomes a failure with this `kind` and `detail`.
    """

    exit_code = 2
    kind = "benchmark_error"

    @property
    def detail(self) -> str:
        return str(self)


class InvalidReply(Exception):
    """A reply that cannot be used, raised by a benchmark that reads it. It is counted by `kind`;
    `why` is the reason in the note that asks the model again. With `final` the model is not asked
    again. `role` is whose reply it is, empty for the model under test."""

    role = ""

    def __init__(self, kind: str, why: str = "", *, final: bool = False) -> None:
        super().__init__(f"{kind}: {why}" if why else kind)
        self.kind = kind
        self.why = why
        self.final = final


class FieldError(ValueError):
    """A field of a task line that cannot be used, by its path (`steps[2].pool`); the harness adds
    file and line."""

    def __init__(self, field: str, expected: str, got: str = "") -> None:
        message = f"field {field}: expected {expected}"
        if got:
            message += f", got {got}"
        super().__init__(message)


@contextmanager
def memory_for(doing: str, remedy: str) -> Iterator[None]:
    """Raise `MachineError` if memory runs out, also within a library."""
    try:
        yield
    except (MemoryError, OSError, ValueError, RuntimeError, ImportError) as error:
        if not lacks_memory(error):
            raise
        detail = f" ({error})" if str(error) else ""
        raise MachineError(f"no memory left to {doing}{detail}: {remedy}") from None


NO_MEMORY = (
    "Not enough memory",
    "Cannot allocate memory",
    "can't start new thread",
    "failed to map segment",
)
"""In errors of other classes than `MemoryError`: orjson, the system, threading, the dynamic
linker."""


def lacks_memory(error: BaseException) -> bool:
    """Return whether an error means that this process has no memory left."""
    return isinstance(error, MemoryError) or any(text in str(error) for text in NO_MEMORY)


@contextmanager
def as_machine_error(what: str, consequence: str = "") -> Iterator[None]:
    """Raise `MachineError` where the system refuses a step: `what` could not be done, the system's
    reason, and the consequence."""
    try:
        yield
    except OSError as error:
        raise MachineError(f"{what}: {error.strerror}{consequence}") from error


def reading(path: object) -> AbstractContextManager[None]:
    """Raise `MachineError` if a file of a run cannot be read."""
    return as_machine_error(f"cannot read {path}")
