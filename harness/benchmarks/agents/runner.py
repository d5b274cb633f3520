"""What the residents of a run share: an agent file, a city, the limits, and warnings."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from sys import _getframe
from typing import NoReturn

from harness.benchmarks.agents.city import City
from harness.benchmarks.agents.environment import MapData
from harness.benchmarks.agents.errors import LONGEST, one_line, warnings_to
from harness.benchmarks.agents.interface import Harness
from harness.benchmarks.agents.loader import AgentFile
from harness.benchmarks.agents.watchdog import Guard, Place, SliceLimits

MAX_LOGGED_LINES = 10_000
"""Lines of agents in a run's log, for each process."""


@dataclass(frozen=True, slots=True)
class World:
    """Where and how long residents live: a city, and a number of steps of some seconds.

    `days` is what agents sense on each day by name, such as `weather`; empty for a benchmark
    without.
    """

    city: City
    steps: int
    seconds: int
    days: Sequence[Mapping[str, str]] = ()


class Runner:
    """One agent file in one world, for residents that play in one event loop, several at the same
    time.

    `finds_memories` is whether a search of the stream finds anything. `warn` gets one line each,
    `log` those that the agent logs or writes to standard error, up to `MAX_LOGGED_LINES`; `playing`
    is the session that runs a slice.
    """

    def __init__(
        self,
        agent: AgentFile,
        world: World,
        *,
        seed: int,
        finds_memories: bool = False,
        warn: Callable[[str], None] | None = None,
        log: Callable[[str], None] | None = None,
        limits: SliceLimits | None = None,
    ) -> None:
        self.agent = agent
        self.world = world
        self.seed = seed
        self.finds_memories = finds_memories
        self.limits = limits or SliceLimits()
        self.guard = Guard(self.limits, agent.place_of)
        self.map = MapData(world.city, self)
        self.playing: Harness | None = None
        self._warn = warn
        self._log = log
        self._logged = 0
        self._warned: set[str] = set()
        self._capture = ExitStack()
        self._players = 0

    def warn_once(self, what: str, key: str = "") -> None:
        """Warn by one line, once for each key (by default the text)."""
        if self._warn is not None and (key or what) not in self._warned:
            self._warned.add(key or what)
            self._warn(one_line(f"{self.agent.name}: {what}", 2 * LONGEST))

    def log_written(self, where: str) -> None:
        """Log what the agent wrote in a slice, `where` names it."""
        for line in self.agent.written.taken():
            self._logged += 1
            if self._logged == MAX_LOGGED_LINES + 1:
                self.warn_once(
                    f"only the first {MAX_LOGGED_LINES} lines that it logs are in the run's log"
                )
            elif self._log is not None and self._logged <= MAX_LOGGED_LINES:
                self._log(f"{where}: {one_line(line, 2 * LONGEST)}")

    def refuse(self, kind: str, what: str) -> NoReturn:
        """Fail the resident whose slice runs: the map is for all of them."""
        if self.playing is None:
            # Outside of slices there is no resident to fail.
            raise AttributeError(what)
        self.playing.refuse(kind, what)

    @contextmanager
    def playing_one(self) -> Iterator[None]:
        """Capture Python's warnings from when the first resident plays until the last has ended."""
        # `warnings.showwarning` belongs to the process: the first resident sets it, the last resets
        # it.
        self._players += 1
        if self._players == 1:
            self._capture.enter_context(warnings_to(self._receive))
            for what in self.agent.warnings:
                self.warn_once(what)

        try:
            yield
        finally:
            self._players -= 1
            if not self._players:
                self._capture.close()

    def _receive(self, text: str, file: str, line: int) -> bool:
        """Pass on warnings that come in a slice or name a file of the agent, once for each line of
        it.

        An agent that was broken off always leaves something never awaited, which is deleted at any
        time after: so outside of slices a coroutine that was never awaited is nobody's mistake.
        """
        is_agents = file in self.agent.sources
        if self.playing is None and not is_agents:
            return text.endswith("was never awaited")

        if self.playing is not None and self.playing.stopped:
            return True

        place: Place | None = (Path(file).name, line)
        if not is_agents:
            place = self.agent.place_of(_getframe(1))

        warning = one_line(text)
        if place is None:
            self.warn_once(warning)
        else:
            self.warn_once(
                f"{warning} ({place[0]}, line {place[1]})",
                key=f"warned at {place}",
            )

        return True
