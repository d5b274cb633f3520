"""What the residents of a run share when an agent file plays them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from sys import _getframe
from traceback import walk_tb
from types import FrameType
from typing import NoReturn

from harness.benchmarks.dailymobility.agents.errors import LONGEST, heard, one_line
from harness.benchmarks.dailymobility.agents.loader import AgentFile
from harness.benchmarks.dailymobility.agents.places import MapData
from harness.benchmarks.dailymobility.agents.session import Host
from harness.benchmarks.dailymobility.agents.watchdog import Guard, Place
from harness.benchmarks.dailymobility.city import City
from harness.benchmarks.dailymobility.day import Resident, Row
from harness.benchmarks.dailymobility.simulator import UnknownPlace
from harness.errors import AgentFailed
from harness.model import Ask

NOTICE_SECONDS, LIMIT_SECONDS = 0.25, 5.0
"""How long an agent may hold up the event loop before it is noticed, and before it is broken off."""

STALL_SECONDS = 600.0
"""How long an agent may wait for something else than a reply; between one and two such times it is given up."""


def _unheard(warning: str) -> None: ...


class Stage:
    """One agent file in one city. Residents may play at the same time, in one event loop."""

    def __init__(
        self,
        agent: AgentFile,
        city: City,
        *,
        seed: int,
        json_object: bool = False,
        warn: Callable[[str], None] = _unheard,
        notice: float = NOTICE_SECONDS,
        limit: float = LIMIT_SECONDS,
        stall: float = STALL_SECONDS,
    ) -> None:
        """`json_object` is for requests of agents that do not say what they want; `warn` gets one line each."""
        self.agent = agent
        self.city = city
        self.seed = seed
        self.json_object = json_object
        self.notice = notice
        self.limit = limit
        self.stall = stall
        self.playing: Host | None = None
        self.guard = Guard(notice, limit, self.place_of)
        self.map = MapData(city, self._refuse)
        self._warn = warn
        self._warned: set[str] = set()
        self._sources = agent.sources
        self._hearing = ExitStack()
        self._players = 0

    async def play(self, resident: Resident, ask: Ask) -> list[Row]:
        """The 100 rows of the resident's day.

        Raises `AgentFailed` where the agent fails (`agent_error`, `agent_api`, `agent_blocked`, `agent_stalled`,
        `unknown_place`, or why it had no reply: `content_filter`, `context_length`, `length`, `only_thinking`,
        `refusal`, `empty`), and what `ask` raises as it is. A home that the city does not have is an `unknown_place`
        too.
        """
        try:
            host = Host(self, resident, ask)
        except UnknownPlace as error:
            raise AgentFailed("unknown_place", f"the home of resident {resident.key}: {error}") from None
        with self._heard():
            return await host.play()

    def warn_once(self, what: str, key: str = "") -> None:
        if (key or what) not in self._warned:
            self._warned.add(key or what)
            self._warn(one_line(f"{self.agent.name}: {what}", 2 * LONGEST))

    @contextmanager
    def _heard(self) -> Iterator[None]:
        """Python's warnings are heard from when the first resident plays until the last has ended."""
        self._players += 1
        if self._players == 1:
            self._hearing.enter_context(heard(self._hear))
            for what in self.agent.warnings:
                self.warn_once(what)
        try:
            yield
        finally:
            self._players -= 1
            if not self._players:
                self._hearing.close()

    def _hear(self, text: str, file: str, line: int) -> bool:
        """A warning is an agent's that comes in a slice or names its file; once for each line of it.

        Of an agent that was broken off something is always left to await, and that is taken away at any time after:
        so outside of slices a coroutine that was never awaited is nobody's mistake.
        """
        own = file in self._sources
        if self.playing is None and not own:
            return text.endswith("was never awaited")
        if self.playing is not None and self.playing.stopped:
            return True
        place = (Path(file).name, line) if own else self.place_of(_getframe(1))
        where = f" ({place[0]}, line {place[1]})" if place else ""
        self.warn_once(one_line(text) + where, key=f"warned at {place}" if place else "")
        return True

    def place_of(self, frame: FrameType | None) -> Place | None:
        """The innermost place in the agent's files from a frame outwards."""
        while frame is not None:
            if frame.f_code.co_filename in self._sources:
                return Path(frame.f_code.co_filename).name, frame.f_lineno
            frame = frame.f_back
        return None

    def place_of_error(self, error: BaseException) -> Place | None:
        """The innermost place in the agent's files that an error passed through."""
        found = None
        for frame, line in walk_tb(error.__traceback__):
            if frame.f_code.co_filename in self._sources:
                found = Path(frame.f_code.co_filename).name, line
        return found

    def _refuse(self, what: str) -> NoReturn:
        if self.playing is None:
            raise AttributeError(what)
        self.playing.refuse("agent_api", what)
