"""Where one resident means to go, one place after another."""

from __future__ import annotations

from collections import deque

from harness.benchmarks.dailymobility.simulator import Mode, Walker


class Journey:
    """`plan` is AOIs of the city, each with its mode and the tick to set out at; `tick` counts seconds."""

    def __init__(self, walker: Walker) -> None:
        self.tick = 0
        self._walker = walker
        self._plan: deque[tuple[int, Mode, float]] = deque()

    def replace(self, plan: list[tuple[int, Mode, float]]) -> None:
        """The first is gone to at once if it is due, from the way to somewhere else too."""
        self._plan = deque(plan)
        self._set_out(interrupt=True)

    def advance(self, seconds: int) -> None:
        """Second by second only while something is left that is yet to be gone to."""
        while seconds and self._plan:
            self._walker.advance(1)
            self.tick += 1
            seconds -= 1
            self._set_out(interrupt=False)
        self._walker.advance(seconds)
        self.tick += seconds

    def _set_out(self, interrupt: bool) -> None:
        while self._plan and self._plan[0][2] <= self.tick and (interrupt or not self._walker.moving):
            aoi, mode, _ = self._plan.popleft()
            self._walker.go_to(aoi, mode)
            interrupt = False
