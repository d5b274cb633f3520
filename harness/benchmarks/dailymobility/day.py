"""The terms of DailyMobility: a day, and what is measured of it. Source:
docs/design.md, section 9."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from math import hypot
from statistics import fmean

from harness.benchmarks.agents.resident import Row

SLOTS = 48
"""Half hours of a day."""

ROWS, ROW_SECONDS = 100, 900
"""Steps of a simulated day, 96 of the day and 4 of the next, and the seconds that each takes."""

_NAMES = (
    "sleep",
    "home activity",
    "other",
    "work",
    "shopping",
    "eating out",
    "leisure and entertainment",
)
INTENTIONS = dict(enumerate(_NAMES, 1))
NUMBERS = {name: number for number, name in INTENTIONS.items()}
OTHER = 3


def clock(slot: int) -> str:
    """Return when a slot begins: 15 -> `07:30`."""
    return f"{slot // 2:02}:{slot % 2 * 30:02}"


@dataclass(frozen=True, slots=True)
class Day:
    """An answer. `intentions` and `places` have 48 entries; `visited` are the distinct AOIs in
    order of first visit.

    `outcome` is `valid` or the kind of an invalid answer, whose day is that of somebody who stayed
    home with the intention `other`. `repairs` names what reading the answer took, `warnings` what
    is odd about the day.
    """

    mode: str
    intentions: tuple[int, ...]
    places: tuple[int | None, ...]
    visited: tuple[int, ...]
    outcome: str
    repairs: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def visited(rows: Iterable[Row]) -> tuple[int, ...]:
    """Return distinct AOIs in order of first visit; rows on the way have none. All 100 rows count,
    the next day's 4 too."""
    return tuple(dict.fromkeys(row.aoi for row in rows if row.aoi is not None))


def gyration_radius(points: Collection[tuple[float, float]]) -> float:
    """Return the mean distance from the mean of `points`, in metres; `points` are the distinct
    AOIs' centroids.

    Sums are exact before they are rounded, so the order of visits does not show. Raise `ValueError`
    for no point.
    """
    if not points:
        raise ValueError("a radius of gyration needs a place")
    xs, ys = zip(*points, strict=True)
    mean_x = fmean(xs)
    mean_y = fmean(ys)
    return fmean([hypot(x - mean_x, y - mean_y) for x, y in points])


def intention_sequence(rows: Sequence[Row]) -> tuple[int, ...]:
    """Return numbers of the intentions in rows 0, 2, ..., 94: one for each of the 48 slots; any
    that is unknown is `other`."""
    # A row is a quarter of an hour, and a slot two of them: the first one decides.
    return tuple(NUMBERS.get(row.intention or "", OTHER) for row in rows[: 2 * SLOTS : 2])


def proportions(sequence: Sequence[int]) -> tuple[float, ...]:
    """Return the share of each of the 7 intentions in a sequence."""
    return tuple(sequence.count(number) / len(sequence) for number in INTENTIONS)
