"""One agent file in one city: it plays residents, and passes Python's warnings about the agent on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from sys import _getframe

from harness.benchmarks.dailymobility.agents.errors import one_line, warnings_to
from harness.benchmarks.dailymobility.agents.loader import AgentFile
from harness.benchmarks.dailymobility.agents.session import Session, Shared
from harness.benchmarks.dailymobility.agents.watchdog import Limits
from harness.benchmarks.dailymobility.city import City
from harness.benchmarks.dailymobility.day import Resident, Row
from harness.benchmarks.dailymobility.simulator import UnknownPlace
from harness.errors import AgentFailed
from harness.model import Ask


class Runner:
    """Plays residents, several at the same time in one event loop. `warn` gets one line each."""

    def __init__(
        self,
        agent: AgentFile,
        city: City,
        *,
        seed: int,
        warn: Callable[[str], None] | None = None,
        limits: Limits | None = None,
    ) -> None:
        self.agent = agent
        self.shared = Shared(agent, city, seed, limits or Limits(), warn)
        self._capture = ExitStack()
        self._players = 0

    async def play(self, resident: Resident, ask: Ask) -> list[Row]:
        """Return the 100 rows of the resident's day.

        Raise `AgentFailed` where the agent fails (`agent_error`, `agent_api`, `agent_blocked`, `agent_stalled`,
        `unknown_place`, or the reason for no reply: `content_filter`, `context_length`, `length`, `only_thinking`,
        `refusal`, `empty`), and errors of `ask` as they are. A home that is not in the city is an `unknown_place` too.
        """
        try:
            session = Session(self.shared, resident, ask)
        except UnknownPlace as error:
            raise AgentFailed("unknown_place", f"the home of resident {resident.key}: {error}") from None
        with self._warnings_captured():
            return await session.play()

    @contextmanager
    def _warnings_captured(self) -> Iterator[None]:
        """Capture Python's warnings from when the first resident plays until the last has ended."""
        self._players += 1
        if self._players == 1:
            self._capture.enter_context(warnings_to(self._receive))
            for what in self.agent.warnings:
                self.shared.warn_once(what)
        try:
            yield
        finally:
            self._players -= 1
            if not self._players:
                self._capture.close()

    def _receive(self, text: str, file: str, line: int) -> bool:
        """Pass on warnings that come in a slice or name a file of the agent, once for each line of it.

        An agent that was broken off always leaves something never awaited, which is deleted at any time after: so
        outside of slices a coroutine that was never awaited is nobody's mistake.
        """
        playing, own = self.shared.playing, file in self.agent.sources
        if playing is None and not own:
            return text.endswith("was never awaited")
        if playing is not None and playing.stopped:
            return True
        place = (Path(file).name, line) if own else self.agent.place_of(_getframe(1))
        where = f" ({place[0]}, line {place[1]})" if place else ""
        self.shared.warn_once(one_line(text) + where, key=f"warned at {place}" if place else "")
        return True
