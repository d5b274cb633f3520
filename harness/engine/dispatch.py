"""Whose user starts next, of the runs that share an account's slots (docs/design.md, section 4)."""

from __future__ import annotations

import random

import anyio.lowlevel

from harness.client.limiter import Slots
from harness.engine.lane import Lane

STARTS_AT_ONCE = 64
"""Users that start before others have a turn; where all advance together they start at once."""


class Dispatch:
    """Start the users of the lanes on one account's slots, as there is room for them.

    As many users are in play as there are slots, and one more for each that backs off, of each lane
    up to twice the slots: nobody who has begun waits long. Of several lanes each goes in proportion
    to the users that it has left, so that they end together; a chain that could outlast the rest of
    them all goes at once. A lane in an outage has room for its probes only, and takes none of the
    others'.
    """

    def __init__(self, slots: Slots, lanes: list[Lane], seed: int) -> None:
        self.lanes = lanes
        self.slots = slots
        self._rng = random.Random(seed)

    async def serve(self) -> None:
        """Return once every lane has started all its users, or is stopping."""
        left, started = list(self.lanes), 0
        while left:
            for lane in left:
                if not lane.has_more:
                    lane.starts_no_more()
            left = [lane for lane in left if lane.has_more]
            free = self._with_room(left)
            if free:
                self._start_one(free)
                started += 1
                if started % STARTS_AT_ONCE == 0:
                    await anyio.lowlevel.checkpoint()
            elif left:
                await self.slots.changed()

    def _with_room(self, lanes: list[Lane]) -> list[Lane]:
        """Return lanes that may start a user now. A user that backs off takes no place of another
        lane's."""
        probing = [
            lane
            for lane in lanes
            if lane.caller.limiter.probing and _is_open(lane, 1, _active(lane))
        ]
        limit = self.slots.limit
        active = sum([_active(lane) for lane in self.lanes if not lane.caller.limiter.probing])
        return probing + [
            lane
            for lane in lanes
            if not lane.caller.limiter.probing and _is_open(lane, limit, active)
        ]

    def _start_one(self, free: list[Lane]) -> None:
        slots = self.slots.limit
        if len(self.lanes) == 1:
            return free[0].start_next(slots, 0)
        remaining = sum(
            [lane.schedule.remaining_steps for lane in self.lanes if lane.ending is None]
        )
        chosen = max(free, key=lambda lane: lane.schedule.longest())
        if not chosen.schedule.is_urgent(slots, remaining - chosen.schedule.remaining_steps):
            [chosen] = self._rng.choices(free, [lane.schedule.left for lane in free])
        chosen.start_next(slots, remaining - chosen.schedule.remaining_steps)


def _active(lane: Lane) -> int:
    """Users in play that wait neither for another try, nor for the end of a pause, nor for the
    model of a role. Only these count against the limit, so no slot is empty because its user waits,
    and the waiting users of one model take no room from another's."""
    limiter = lane.caller.limiter
    paused = limiter.waiting if limiter.delay() else 0
    return lane.in_play - lane.caller.traffic.backing_off - paused - lane.asking_roles


def _is_open(lane: Lane, limit: int, active: int) -> bool:
    """Whether one more fits in with `active` users, and into the lane: no crowd where everybody
    backs off."""
    return active < limit and lane.in_play < 2 * limit
