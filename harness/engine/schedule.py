"""Who starts next (docs/design.md, section 4). Pure: numbers in, positions out.

Users start in a seeded random order, so that at any moment the done ones are a fair sample of all.
Only a user whose chain could outlast the rest of the run starts at once: when its remaining steps
times `SLACK` reach the remaining steps of all, divided by the slots. Near the end that makes the
tail short without making the first half of the run a sample of long chains.

In simulations the makespan is 1 to 6 % above its lower bound, max(work / slots, longest chain), if
lengths are known and latency is even; in the order of the file it is 25 % above. Longest-first is
as short, but then the first half of a run has four times too many long chains, and the running
scores are of those.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

SLACK = 1.5


class Schedule:
    """Over `steps`, the remaining steps of every remaining user; a user is its index in that array.
    With `repeats`, which repeat of a user each is, all first ones start before any second one."""

    def __init__(
        self, steps: NDArray[np.int32], seed: int, repeats: NDArray[np.int64] | None = None
    ) -> None:
        # Read one at a time, memoryviews are several times as fast as arrays.
        self._steps = steps.data
        order = np.random.default_rng(seed).permutation(len(steps))
        if repeats is not None:
            # A stable sort keeps the random order within each repeat.
            order = order[np.argsort(repeats[order], kind="stable")]
        self._random = order.data
        self._longest = np.argsort(-steps, kind="stable").data
        # Marks, and no removal from the two orders: a user stands in both, and each is passed once.
        self._started = bytearray(len(steps))
        self._next_random = self._next_longest = 0
        self._left = len(steps)
        self.remaining_steps = int(steps.sum())

    def __bool__(self) -> bool:
        """Return whether any user has not started."""
        return self._left > 0

    @property
    def left(self) -> int:
        """Return the number of users that have not started."""
        return self._left

    def longest(self) -> int:
        """Return the steps of the longest chain that has not started, 0 if all have."""
        return self._steps[self._first_longest()] if self._left else 0

    def is_urgent(self, slots: int, other_steps: int = 0) -> bool:
        """Return whether the longest chain that has not started could outlast the rest; arguments
        as for `next`."""
        return self.longest() * SLACK >= (self.remaining_steps + other_steps) / max(1, slots)

    def next(self, slots: int, other_steps: int = 0) -> int:
        """Return the user to start now, of those that have not started.

        `slots` is the current limit; `other_steps` are the remaining steps of other schedules on
        the same slots.
        """
        if self.is_urgent(slots, other_steps):
            chosen = self._first_longest()
        else:
            self._next_random = self._skip_started(self._random, self._next_random)
            chosen = self._random[self._next_random]
        self._started[chosen] = 1
        self._left -= 1
        return chosen

    def done(self, steps: int) -> None:
        """Count `steps` of the remaining ones as done or given up."""
        self.remaining_steps -= steps

    def _first_longest(self) -> int:
        self._next_longest = self._skip_started(self._longest, self._next_longest)
        return self._longest[self._next_longest]

    def _skip_started(self, order: memoryview, place: int) -> int:
        while place < len(order) and self._started[order[place]]:
            place += 1
        return place
