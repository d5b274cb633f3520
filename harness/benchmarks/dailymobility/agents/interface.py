"""What the objects that an agent sees need of the harness behind them."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import NoReturn, Protocol

from harness.benchmarks.dailymobility.simulator import Mode, Walker
from harness.model import Completion, Request


class Backstage(Protocol):
    """`tick` is the second of the simulation, 0 before its first step."""

    walker: Walker
    number: int
    json_object: bool

    @property
    def tick(self) -> int: ...

    def refuse(self, kind: str, what: str) -> NoReturn:
        """Fails the resident, whatever the agent catches. `kind` is the failure's, `what` is said to the user."""
        ...

    def warn_once(self, what: str) -> None:
        """Once a run, whichever resident it is that it was noticed with."""
        ...

    def send(self, request: Request) -> Awaitable[Completion]:
        """Hands a request over to be asked once the agent waits."""
        ...

    def travel(self, plan: list[tuple[int, Mode, float]]) -> None:
        """Replaces where the resident means to go: AOIs of the city, each with its mode and the tick to set out at."""
        ...


class Bounded:
    """Something with less to it than upstream's, which says so where an agent asks for the rest.

    `LACKS` are the names that upstream has and this has not. Any other name that is not here does not exist upstream
    either, and asking for it is, as there, an `AttributeError`: agents look for things with `hasattr` and `getattr`.
    """

    LACKS: frozenset[str] = frozenset()
    _backstage: Backstage

    def __getattr__(self, name: str) -> NoReturn:
        of = type(self)
        if name in of.LACKS and "_backstage" in self.__dict__:
            self._backstage.refuse("agent_api", f"{of.__name__}.{name} is not available here")
        raise AttributeError(f"{of.__name__!r} object has no attribute {name!r}", name=name, obj=self)


def names(text: str) -> frozenset[str]:
    return frozenset(text.split())
