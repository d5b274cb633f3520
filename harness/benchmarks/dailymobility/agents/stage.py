"""What the residents of a run share when an agent file plays them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from traceback import walk_tb
from types import FrameType
from typing import NoReturn

from harness.benchmarks.dailymobility.agents.host import Host
from harness.benchmarks.dailymobility.agents.loader import AgentFile
from harness.benchmarks.dailymobility.agents.places import MapData
from harness.benchmarks.dailymobility.agents.slices import Guard, Place
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

    async def play(self, resident: Resident, ask: Ask) -> list[Row]:
        """The 100 rows of the resident's day.

        Raises `AgentFailed` where the agent fails (`agent_error`, `agent_api`, `agent_blocked`, `agent_stalled`,
        `unknown_place`, or why it had no reply: `content_filter`, `context_length`, `length`, `refusal`, `empty`), and
        what `ask` raises as it is. A home that the city does not have is an `unknown_place` too.
        """
        try:
            host = Host(self, resident, ask)
        except UnknownPlace as error:
            raise AgentFailed("unknown_place", f"the home of resident {resident.key}: {error}") from None
        return await host.play()

    def warn_once(self, what: str, key: str = "") -> None:
        if (key or what) not in self._warned:
            self._warned.add(key or what)
            self._warn(f"{self.agent.name}: {what}")

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
