"""Points and lines in the plane, found by where they are. Units are metres. Source: docs/design.md, section 9.

Indexes are made at first use: scoring needs none of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from harness.errors import BadInput, to_install

if TYPE_CHECKING:
    from scipy.spatial import KDTree

Floats = NDArray[np.float64]
Rows = NDArray[np.intp]
Line = tuple[tuple[float, float], ...]


def optional(module: str) -> Any:
    """Return a module of the extra `mobility`, imported where it is needed. Raise `BadInput` where it is missing."""
    try:
        return import_module(module)
    except ImportError:
        package = module.partition(".")[0]
        raise BadInput(
            f"DailyMobility needs the package {package}: {to_install('behavior-harness[mobility]')}"
        ) from None


class Points:
    """Points by row, which is their place in the array `xy` (n, 2)."""

    def __init__(self, xy: Floats) -> None:
        self._xy = xy

    @cached_property
    def _tree(self) -> KDTree:
        from scipy.spatial import KDTree  # a fifth of a second, which commands without a city need not pay

        return KDTree(self._xy)

    @cached_property
    def _shapes(self) -> Any:
        shapely = optional("shapely")
        return shapely.STRtree(shapely.points(self._xy))

    def in_square(self, x: float, y: float, radius: float) -> Rows:
        """Return rows of the points with |dx| <= radius and |dy| <= radius, in the order of upstream's `STRtree.query`.

        An agent that takes the first five sees the five that it sees there.
        """
        rows: Rows = self._shapes.query(optional("shapely").Point(x, y).buffer(radius))
        return rows

    def nearest(self, x: float, y: float, count: int) -> Rows:
        """Return rows of the `count` points nearest to (x, y), nearest first; of equally near ones the lower row first.

        Squares are compared, which unlike roots are the same number on every machine.
        """
        count = min(count, len(self._xy))
        if count < 1:
            return np.empty(0, np.intp)
        reach = np.max(self._tree.query((x, y), k=count)[0])
        rows = np.sort(np.array(self._tree.query_ball_point((x, y), reach * (1 + 1e-9)), np.intp))
        away = self._xy[rows] - (x, y)
        return rows[np.argsort((away * away).sum(axis=1), kind="stable")][:count]


class Lines(Mapping[int, Line]):
    """Lines by id, as tuples of corners. One array of corners takes a tenth of the memory of tuples.

    `corners` is the number of corners of each line, `xy` (sum of corners, 2) lists them one after another.
    """

    def __init__(self, ids: Sequence[int], corners: Sequence[int] | Rows, xy: Floats) -> None:
        self._rows = {line: row for row, line in enumerate(ids)}
        self._ends = np.concatenate(([0], np.cumsum(corners, dtype=np.intp)))
        self._xy = xy

    @classmethod
    def of(cls, lines: Mapping[int, Line]) -> Lines:
        if isinstance(lines, cls):
            return lines
        corners = [corner for line in lines.values() for corner in line]
        return cls(list(lines), [len(line) for line in lines.values()], np.array(corners, np.float64).reshape(-1, 2))

    def __getitem__(self, line: int) -> Line:
        row = self._rows[line]
        return tuple((x, y) for x, y in self._xy[self._ends[row] : self._ends[row + 1]].tolist())

    def __iter__(self) -> Iterator[int]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)

    def centroids(self) -> list[list[float]]:
        """Return those of polygons with these outlines as shapely's `Polygon.centroid`, with which upstream measures.

        The centroid of a single corner is the corner.
        """
        corners = np.diff(self._ends)
        centroids = self._xy[self._ends[:-1]]
        polygons = np.flatnonzero(corners > 1)
        if polygons.size:
            shapely = optional("shapely")
            rows = np.repeat(np.arange(polygons.size), corners[polygons])
            rings = shapely.linearrings(self._xy[np.repeat(corners > 1, corners)], indices=rows)
            centroids[polygons] = shapely.get_coordinates(shapely.centroid(shapely.polygons(rings)))
        found: list[list[float]] = centroids.tolist()
        return found

    @cached_property
    def _tree(self) -> tuple[list[int], Any]:
        """Ids of the lines that have a length, and a tree of their shapes in the same order."""
        shapely = optional("shapely")
        corners = np.diff(self._ends)
        usable = corners >= 2
        shapes = shapely.linestrings(
            self._xy[np.repeat(usable, corners)], indices=np.repeat(np.arange(usable.sum()), corners[usable])
        )
        return [line for line, use in zip(self._rows, usable, strict=True) if use], shapely.STRtree(shapes)

    def nearest(self, x: float, y: float) -> tuple[int, float] | None:
        """Return the id of the line nearest to (x, y), the lowest of equally near ones, and how far along it that is.

        None where there is no line that distances can be measured to.
        """
        ids, tree = self._tree
        if not ids:
            return None
        shapely = optional("shapely")
        point = shapely.points(x, y)
        rows = tree.query_nearest(point).tolist()
        if not rows:  # of lengths that no number can hold the square of
            return None
        row = min(rows, key=ids.__getitem__)
        return ids[row], float(shapely.line_locate_point(tree.geometries[row], point))
