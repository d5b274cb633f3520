"""What is measured of a day: places, radius, intentions. Source: docs/design.md, section 9."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from math import fsum, hypot

from harness.agents.day import INTENTIONS, SLOTS, Row, intention_number


def visited(rows: Iterable[Row]) -> tuple[int, ...]:
    """Distinct AOIs in order of first visit; rows on the way have none. All 100 rows count, the next day's 4 too."""
    return tuple(dict.fromkeys(row.aoi for row in rows if row.aoi is not None))


def gyration_radius(points: Collection[tuple[float, float]]) -> float:
    """Mean distance from the mean of `points`, in metres; `points` are the distinct AOIs' centroids.

    Sums are exact before they are rounded, so the order of visits does not show. Raises `ValueError` for no point.
    """
    if not points:
        raise ValueError("a radius of gyration needs a place")
    x, y = fsum(x for x, _ in points) / len(points), fsum(y for _, y in points) / len(points)
    return fsum(hypot(at[0] - x, at[1] - y) for at in points) / len(points)


def intention_sequence(rows: Sequence[Row]) -> tuple[int, ...]:
    """Numbers of the intentions in rows 0, 2, ..., 94: one for each of the 48 slots."""
    return tuple(intention_number(row.intention) for row in rows[: 2 * SLOTS : 2])


def proportions(sequence: Sequence[int]) -> tuple[float, ...]:
    """The share of each of the 7 intentions in a sequence."""
    return tuple(sequence.count(number) / len(sequence) for number in INTENTIONS)
