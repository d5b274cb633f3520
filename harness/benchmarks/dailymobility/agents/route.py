"""Where one resident means to go, one place after another."""

from __future__ import annotations

from collections import deque

from harness.benchmarks.dailymobility.simulator import Mode, Walker

SETTING_OUT = 2
"""Seconds from an order to the way: upstream's simulator takes it up at its next tick, and moves at the one after."""


class Journey:
    """`plan` is AOIs of the city, each with its mode and the tick to set out at; `tick` counts seconds."""

    def __init__(self, walker: Walker) -> None:
        self.tick = 0
        self._walker = walker
        self._plan: deque[tuple[int, Mode, float]] = deque()
        self._taken_up = 0
        self._interrupts = False

    def replace(self, plan: list[tuple[int, Mode, float]]) -> None:
        """The first is set out for once it is due, from the way to somewhere else too. What was left is dropped."""
        self._plan = deque(plan)
        self._taken_up = self.tick + SETTING_OUT
        self._interrupts = True

    def advance(self, seconds: int) -> None:
        """Second by second only while something is left that is yet to be gone to."""
        while seconds and self._plan:
            self._walker.advance(1)
            self.tick += 1
            seconds -= 1
            self._set_out()
        self._walker.advance(seconds)
        self.tick += seconds

    def _set_out(self) -> None:
        while self._plan and self._is_due(self._plan[0][2]) and (self._interrupts or not self._walker.moving):
            aoi, mode, _ = self._plan.popleft()
            self._walker.go_to(aoi, mode)
            self._interrupts = False

    def _is_due(self, departure: float) -> bool:
        return self.tick >= max(departure, self._taken_up)
