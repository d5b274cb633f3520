"""How long replies take: quantiles of the last ones, and from when on a request is far beyond the
usual."""

from __future__ import annotations

from collections import deque

import numpy as np
from numpy.typing import NDArray

REPLIES = 512
"""Latency is computed from this many last replies: exact quantiles, whatever the distribution."""
MIN_REPLIES = 20
"""Replies before a 99th percentile is taken as the usual."""
BEYOND, LEAST_BEYOND = 4.0, 10.0
"""A straggler has taken this many times the 99th percentile, and at least so many seconds."""


class Latency:
    """Seconds in flight of the last `REPLIES` tries of a kind; adding one costs some 50 ns."""

    def __init__(self) -> None:
        self._seconds: deque[float] = deque(maxlen=REPLIES)
        self.add = self._seconds.append

    @property
    def seconds(self) -> NDArray[np.float64]:
        return np.fromiter(self._seconds, np.float64)

    @property
    def mean(self) -> float | None:
        if not self._seconds:
            return None
        return sum(self._seconds) / len(self._seconds)

    @property
    def quantiles(self) -> tuple[float, float] | None:
        """Median and 95th percentile; None before the first reply."""
        if not self._seconds:
            return None
        median, late = np.percentile(self.seconds, (50, 95))
        return float(median), float(late)

    @property
    def tail(self) -> float | None:
        """The 99th percentile; None before `MIN_REPLIES` replies."""
        if len(self._seconds) < MIN_REPLIES:
            return None
        return float(np.percentile(self.seconds, 99))

    @property
    def beyond(self) -> float | None:
        """Seconds from which on a request is a straggler; None as for `tail`."""
        tail = self.tail
        return None if tail is None else max(LEAST_BEYOND, BEYOND * tail)

    def left(self, seconds: float) -> float:
        """Return the seconds that a request of this age still takes: the mean of the replies that
        took longer; where none did, as long again."""
        longer = self.seconds[self.seconds > seconds]
        return float(longer.mean()) - seconds if len(longer) else seconds
