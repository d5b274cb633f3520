"""The part of the harness that the objects an agent sees use, and the names of upstream that they
lack."""

from __future__ import annotations

import tomllib
from collections.abc import Awaitable
from pathlib import Path
from typing import Any, NoReturn, Protocol

from harness.benchmarks.agents.simulator import Route
from harness.model import Completion, Request

UPSTREAM: dict[str, Any] = tomllib.loads(
    Path(__file__).with_name("upstream.toml").read_text(encoding="utf-8")
)
LACKS = {cls: frozenset(names.split()) for cls, names in UPSTREAM["lacks"].items()}
"""The names of upstream that each class lacks."""


class Refuses(Protocol):
    def refuse(self, kind: str, what: str) -> NoReturn:
        """Fail the resident, whatever the agent catches. `kind` is the failure's, `what` is for the
        user."""
        ...


class Harness(Refuses, Protocol):
    """One resident's side of the harness: its number, where it goes, what it requests, and whether
    it has ended."""

    number: int
    route: Route
    stopped: bool

    def warn_once(self, what: str) -> None:
        """Warn once a run, for whichever resident comes first."""
        ...

    def send(self, request: Request) -> Awaitable[Completion]:
        """Hand over a request, which is sent once the agent waits."""
        ...


class PartialInterface:
    """An object that lacks some of the names that upstream's has, and fails the resident where an
    agent uses one.

    Any other name that is not here does not exist upstream either, and is, as there, an
    `AttributeError`: agents look for things with `hasattr` and `getattr`.
    """

    _harness: Refuses

    def __getattr__(self, name: str) -> NoReturn:
        cls = type(self)
        ours = (
            base.__name__ for base in cls.__mro__ if base.__module__.startswith(f"{__package__}.")
        )
        if any(name in LACKS.get(base, ()) for base in ours) and "_harness" in self.__dict__:
            self._harness.refuse("agent_api", f"{cls.__name__}.{name} is not available here")

        raise AttributeError(
            f"{cls.__name__!r} object has no attribute {name!r}",
            name=name,
            obj=self,
        )
