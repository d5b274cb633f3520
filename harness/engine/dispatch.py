"""Whose user starts next, of the runs that share an account's slots (docs/design.md, section 4)."""

from __future__ import annotations

import random

import anyio.lowlevel

from harness.client.limiter import Slots
from harness.engine.runner import ModelRunner

STARTS_AT_ONCE = 64
"""Users that start before others have a turn; where all advance together they start at once."""


class Dispatch:
    """Start the users of the runners on one account's slots, as there is room for them.

    As many users are in play as there are slots, and one more for each that backs off, of each
    runner up to twice the slots: nobody who has begun waits long. Of several runners each goes in
    proportion to the users that it has left, so that they end together; a chain that could outlast
    the rest of them all goes at once. A runner in an outage has room for its probes only, and takes
    none of the others'.
    """

    def __init__(self, slots: Slots, runners: list[ModelRunner], seed: int) -> None:
        self.runners = runners
        self.slots = slots
        self._rng = random.Random(seed)

    async def serve(self) -> None:
        """Return once every runner has started all its users, or is stopping."""
        left = self.runners
        started = 0
        while left:
            for runner in left:
                if not runner.has_more:
                    runner.starts_no_more()
            left = [runner for runner in left if runner.has_more]
            free = self._with_room(left)
            if free:
                self._start_one(free)
                started += 1
                # A thousand tasks that start in one turn of the loop would hold up replies that
                # have come.
                if started % STARTS_AT_ONCE == 0:
                    await anyio.lowlevel.checkpoint()
            elif left:
                await self.slots.changed()

    def _with_room(self, runners: list[ModelRunner]) -> list[ModelRunner]:
        """Return runners that may start a user now. A user that backs off takes no place of another
        runner's."""
        limit = self.slots.limit
        active = 0
        for runner in self.runners:
            if not runner.caller.limiter.probing:
                active += _active(runner)
        probing, others = [], []
        for runner in runners:
            if runner.caller.limiter.probing:
                if _is_open(runner, 1, _active(runner)):
                    probing.append(runner)
            elif _is_open(runner, limit, active):
                others.append(runner)
        return probing + others

    def _start_one(self, free: list[ModelRunner]) -> None:
        slots = self.slots.limit
        if len(self.runners) == 1:
            free[0].start_next(slots, 0)
            return
        remaining = 0
        for runner in self.runners:
            if runner.ending is None:
                remaining += runner.schedule.remaining_steps
        # A chain that could outlast all others decides the end of the command, whoever has the
        # turn.
        chosen = max(free, key=lambda runner: runner.schedule.longest())
        if not chosen.schedule.is_urgent(slots, remaining - chosen.schedule.remaining_steps):
            # In proportion to the users left, so that the runs end together.
            [chosen] = self._rng.choices(free, [runner.schedule.left for runner in free])
        chosen.start_next(slots, remaining - chosen.schedule.remaining_steps)


def _active(runner: ModelRunner) -> int:
    """Users in play that wait neither for another try, nor for the end of a pause, nor for the
    model of a role. Only these count against the limit, so no slot is empty because its user waits,
    and the waiting users of one model take no room from another's."""
    limiter = runner.caller.limiter
    paused = limiter.waiting if limiter.delay() else 0
    return runner.in_play - runner.caller.traffic.backing_off - paused - runner.asking_roles


def _is_open(runner: ModelRunner, limit: int, active: int) -> bool:
    """Whether one more fits in with `active` users, and into the runner: no crowd where everybody
    backs off."""
    return active < limit and runner.in_play < 2 * limit
