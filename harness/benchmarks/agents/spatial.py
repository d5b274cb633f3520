"""Points and lines in the plane, found by where they are. Units are metres. Source: docs/design.md,
section 9.

Indexes are made at first use: scoring needs none of them. Longitude and latitude are the inverse of
the transverse Mercator projection by Krüger's series to the fourth order in the third flattening,
on WGS 84: within a millimetre of PROJ at 500 km from the origin. Source: C. F. F. Karney,
"Transverse Mercator with an accuracy of a few nanometers", J. Geodesy 85 (2011).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import compress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.errors import BadInput, to_install

Floats = NDArray[np.float64]
Rows = NDArray[np.intp]
Line = tuple[tuple[float, float], ...]


def geometry() -> Any:
    """Return shapely, of the extra `mobility`, imported where it is needed. Raise `BadInput` where
    it is missing."""
    try:
        import shapely
    except ImportError:
        raise _missing("shapely") from None
    return shapely


def map_format() -> Any:
    """Return the module of the map's protocol buffers, of the same extra. Raise `BadInput` where it
    is missing."""
    try:
        from pycityproto.city.map.v2 import map_pb2
    except ImportError:
        raise _missing("pycityproto") from None
    return map_pb2


def _missing(package: str) -> BadInput:
    return BadInput(
        f"DailyMobility needs the package {package}: {to_install('behavior-harness[mobility]')}"
    )


class Points:
    """Points by row, which is their place in the array `xy` (n, 2)."""

    def __init__(self, xy: Floats) -> None:
        self._xy = xy

    @cached_property
    def _shapes(self) -> Any:
        shapely = geometry()
        return shapely.STRtree(shapely.points(self._xy))

    def in_square(self, x: float, y: float, radius: float) -> Rows:
        """Return rows of the points with |dx| <= radius and |dy| <= radius, in the order of
        upstream's `STRtree.query`.

        An agent that takes the first five sees the five that it sees there.
        """
        rows: Rows = self._shapes.query(geometry().Point(x, y).buffer(radius))
        return rows

    def nearest(self, x: float, y: float, count: int) -> Rows:
        """Return rows of the `count` points nearest to (x, y), nearest first; of equally near ones
        the lower row first.

        Squares are compared, which unlike roots are the same number on every machine.
        """
        away = self._xy - (x, y)
        rows: Rows = np.argsort((away * away).sum(axis=1), kind="stable")[:count]
        return rows


class Lines(Mapping[int, Line]):
    """Lines by id, as tuples of corners. One array of corners takes a tenth of the memory of
    tuples.

    `corners` is the number of corners of each line, `xy` (sum of corners, 2) lists them one after
    another.
    """

    def __init__(self, ids: Sequence[int], corners: Sequence[int] | Rows, xy: Floats) -> None:
        self._rows = {line: row for row, line in enumerate(ids)}
        self._ends = np.concatenate(([0], np.cumsum(corners, dtype=np.intp)))
        self._xy = xy

    def __getitem__(self, line: int) -> Line:
        row = self._rows[line]
        return tuple((x, y) for x, y in self._xy[self._ends[row] : self._ends[row + 1]].tolist())

    def __iter__(self) -> Iterator[int]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)

    def centroids(self) -> list[list[float]]:
        """Return those of polygons with these outlines as shapely's `Polygon.centroid`, with which
        upstream measures.

        The centroid of a single corner is the corner.
        """
        corners = np.diff(self._ends)
        centroids = self._xy[self._ends[:-1]]
        polygons = np.flatnonzero(corners > 1)
        if polygons.size:
            shapely = geometry()
            rows = np.repeat(np.arange(polygons.size), corners[polygons])
            rings = shapely.linearrings(self._xy[np.repeat(corners > 1, corners)], indices=rows)
            centroids[polygons] = shapely.get_coordinates(shapely.centroid(shapely.polygons(rings)))

        pairs: list[list[float]] = centroids.tolist()
        return pairs

    @cached_property
    def _tree(self) -> tuple[list[int], Any]:
        """Return ids of the lines that have a length, and a tree of their shapes in the same
        order."""
        shapely = geometry()
        corners = np.diff(self._ends)
        has_length = corners >= 2
        shapes = shapely.linestrings(
            self._xy[np.repeat(has_length, corners)],
            indices=np.repeat(np.arange(has_length.sum()), corners[has_length]),
        )
        return [*compress(self._rows, has_length)], shapely.STRtree(shapes)

    def nearest(self, x: float, y: float) -> tuple[int, float] | None:
        """Return the id of the line nearest to (x, y), the lowest of equally near ones, and how far
        along it that is.

        None where there is no line that distances can be measured to.
        """
        ids, tree = self._tree
        if not ids:
            return None

        shapely = geometry()
        point = shapely.points(x, y)
        rows = tree.query_nearest(point).tolist()
        # No row is nearest where squares of lengths are too large for a number.
        if not rows:
            return None

        row = min(rows, key=ids.__getitem__)
        return ids[row], float(shapely.line_locate_point(tree.geometries[row], point))


RADIUS = 6367449.145823415
"""Metres: that of a circle as long as a meridian of WGS 84."""
ECCENTRICITY = 0.08181919084262149

Series = tuple[float, float, float, float]
# Karney's alpha and beta, and the series from the conformal latitude, each to the fourth order in
# the third flattening of WGS 84, n = f / (2 - f) with f = 1 / 298.257223563.
TO_GRID: Series = (
    0.0008377318206303529,
    7.608527714248998e-07,
    1.1976380015605232e-09,
    2.4433761945220637e-12,
)
TO_SPHERE: Series = (
    0.0008377321640600574,
    5.905869567933988e-08,
    1.6734888803548483e-10,
    2.1677377630220365e-13,
)
TO_GEODETIC: Series = (
    0.003356551469125213,
    6.5718730839601334e-06,
    1.7646564004758498e-08,
    5.4004820816935436e-11,
)


def lnglat(projection: str, xy: Floats) -> Floats:
    """Return degrees of longitude and latitude for points (n, 2) in metres.

    `projection` is a PROJ string with `+proj=tmerc` or `+proj=utm`; raise `ValueError` for any
    other.
    """
    parameters = dict(word.removeprefix("+").partition("=")[::2] for word in projection.split())
    if parameters.get("proj") == "utm":
        false_northing = "0"
        if "south" in parameters:
            false_northing = "10000000"

        parameters = {
            "lon_0": str(6 * float(parameters["zone"]) - 183),
            "k": "0.9996",
            "x_0": "500000",
            "y_0": false_northing,
        }
    elif parameters.get("proj") != "tmerc":
        raise ValueError(
            "expected a transverse Mercator projection (+proj=tmerc, +proj=utm), got"
            f" {projection!r}"
        )

    scale = RADIUS * float(parameters.get("k", parameters.get("k_0", 1)))
    origin = (float(parameters.get("x_0", 0)), float(parameters.get("y_0", 0)))
    x, y = (xy - origin).T / scale
    grid = y + 1j * x + _meridian(math.radians(float(parameters.get("lat_0", 0))))
    sphere = grid - _sum(TO_SPHERE, grid)
    conformal = np.arcsin(np.sin(sphere.real) / np.cosh(sphere.imag))
    latitude = conformal + _sum(TO_GEODETIC, conformal)
    longitude = np.arctan2(np.sinh(sphere.imag), np.cos(sphere.real))
    degrees_east = float(parameters.get("lon_0", 0)) + np.degrees(longitude)
    return np.column_stack((degrees_east, np.degrees(latitude)))


def _meridian(latitude: float) -> float:
    """Return the distance of a latitude from the equator along the meridian; latitude and result in
    radians."""
    sine = math.sin(latitude)
    isometric = math.atanh(sine) - ECCENTRICITY * math.atanh(ECCENTRICITY * sine)
    conformal = math.atan(math.sinh(isometric))
    return float(conformal + _sum(TO_GRID, conformal))


def _sum(series: Series, angle: float | NDArray[Any]) -> Any:
    """Return the sum of the series' sines of 2, 4, 6 and 8 times an angle, which may be complex."""
    return sum(factor * np.sin(2 * k * angle) for k, factor in enumerate(series, 1))
