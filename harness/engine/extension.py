"""The places at which a feature takes part in a run. Composed once, of what is switched on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, ExitStack, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from harness.benchmark import Benchmark
from harness.client.limiter import Slots
from harness.cost import Rate
from harness.model import Load, Snapshots
from harness.options.plan import Plan
from harness.store.manifest import Manifest, Selection

if TYPE_CHECKING:  # these call extensions, which nothing here does: a circle of types alone
    from harness.client.caller import Trying
    from harness.engine.accounts import OpenLanes
    from harness.engine.lane import Lane, Play, Send, Settle
    from harness.engine.run import Run
    from harness.engine.session import PlayAlone, Session

Observe = Callable[[Snapshots], None]
Say = Callable[[str], None]
"""Prints a line."""


class Companion(Protocol):
    """A feature's part in one lane, in the background."""

    async def serve(self) -> None:
        """Work until it is cancelled, once the last user has ended."""
        ...

    def flushed(self) -> None:
        """Note that every reply is saved, after the last user has ended."""
        ...

    @property
    def load(self) -> Load:
        """Return what the display shows instead of requests in flight, where all users advance together."""
        ...


class Extension:
    """A feature, switched on by the options of one `run` or `resume`. Each member adds nothing by default.

    Those that take a function return it, or one that does something before, after or instead of it.
    """

    resume_words: Sequence[str] = ()
    """Options with which `resume` goes on in the same way."""

    def __init__(self, args: Any) -> None:
        pass

    def missing(self, cls: type[Benchmark], subsets: Sequence[str], folder: Path) -> None:
        """Get the tasks files of these subsets that a folder lacks."""

    def choosing(self, name: str, selection: Selection) -> tuple[str, Selection]:
        """Take part in the name of a new run's folder, and in which users it takes."""
        return name, selection

    def begin(self, plans: Sequence[Plan], held: ExitStack, say: Say) -> None:
        """Prepare for plans before any file of theirs is opened, for as long as `held`. Raise `HarnessError` for what
        cannot work."""

    def opened(self, plan: Plan, manifest: Manifest, old: Manifest | None) -> None:
        """Note in the manifest of a run what this session adds; `old` is that of the session before."""

    def check(self, plans: Sequence[Plan]) -> None:
        """Raise `BadInput` for plans that cannot be played. Called before `begin`, and where nothing will be sent."""

    def rated(self, plan: Plan, rate: Rate) -> Rate:
        """Take part in which price a plan's requests have."""
        return rate

    def expected(self, plan: Plan, longest: Callable[[], int]) -> Iterable[str]:
        """Yield what to know of a plan before its first request; `longest` returns the most steps that a user has."""
        return ()

    def limiting(self, runs: Sequence[Run], slots: Slots) -> Slots:
        """Take part in how many requests of a plan's runs are in flight at once."""
        return slots

    def joining(self, lane: Lane) -> Companion | None:
        """Return what works next to the users of a lane."""
        return None

    def before(self, sessions: Sequence[Session], play: PlayAlone, say: Say) -> Sequence[Session]:
        """Act once the runs of all plans are open, before any user is played; return the sessions that are still to be
        played. Raise `BadInput` for what cannot go on so."""
        return sessions

    def opening(self, open_lanes: OpenLanes, held: ExitStack, say: Say) -> OpenLanes:
        """Take part in how lanes are opened. Called in the main thread before the event loop starts, which ends before
        `held`."""
        return open_lanes

    def playing(self, plan: Plan, runs: Sequence[Run], play: Play) -> Play:
        """Take part in how a plan's users are played."""
        return play

    def settling(self, settle: Settle) -> Settle:
        """Take part in how a new request gets its saved reply."""
        return settle

    def sending(self, send: Send) -> Send:
        """Take part in how a request is sent until it is answered."""
        return send

    def trying(self, lane: Lane, trying: Trying) -> Trying:
        """Take part in each try of the requests of a lane."""
        return trying

    def observing(self, observe: Observe) -> AbstractAsyncContextManager[Observe]:
        """Take part in what gets the snapshots."""
        return nullcontext(observe)

    def stopped(self, runs: Sequence[Run]) -> Iterable[str]:
        """Yield what to know of the runs of a plan that has stopped early."""
        return ()
