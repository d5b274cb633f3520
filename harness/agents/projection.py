"""Longitude and latitude of points of a map: the inverse of the transverse Mercator projection.

Krüger's series to the fourth order in the third flattening, on WGS 84: within a millimetre of PROJ at 500 km from the
origin. Source: C. F. F. Karney, "Transverse Mercator with an accuracy of a few nanometers", J. Geodesy 85 (2011).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from harness.agents.spatial import Floats

FLATTENING = 1 / 298.257223563
N = FLATTENING / (2 - FLATTENING)
RADIUS = 6378137.0 / (1 + N) * (1 + N**2 / 4 + N**4 / 64)
"""Metres: that of a circle as long as a meridian."""
ECCENTRICITY = math.sqrt(FLATTENING * (2 - FLATTENING))

Series = tuple[float, float, float, float]
TO_GRID: Series = (
    N / 2 - 2 / 3 * N**2 + 5 / 16 * N**3 + 41 / 180 * N**4,
    13 / 48 * N**2 - 3 / 5 * N**3 + 557 / 1440 * N**4,
    61 / 240 * N**3 - 103 / 140 * N**4,
    49561 / 161280 * N**4,
)
TO_SPHERE: Series = (
    N / 2 - 2 / 3 * N**2 + 37 / 96 * N**3 - 1 / 360 * N**4,
    N**2 / 48 + N**3 / 15 - 437 / 1440 * N**4,
    17 / 480 * N**3 - 37 / 840 * N**4,
    4397 / 161280 * N**4,
)
TO_GEODETIC: Series = (
    2 * N - 2 / 3 * N**2 - 2 * N**3 + 116 / 45 * N**4,
    7 / 3 * N**2 - 8 / 5 * N**3 - 227 / 45 * N**4,
    56 / 15 * N**3 - 136 / 35 * N**4,
    4279 / 630 * N**4,
)


def lnglat(projection: str, xy: Floats) -> Floats:
    """Return degrees of longitude and latitude for points (n, 2) in metres.

    `projection` is a PROJ string with `+proj=tmerc` or `+proj=utm`; raise `ValueError` for any other.
    """
    given = dict(word.removeprefix("+").partition("=")[::2] for word in projection.split())
    if given.get("proj") == "utm":
        south = 1e7 if "south" in given else 0.0
        given = {"lon_0": str(6 * float(given["zone"]) - 183), "k": "0.9996", "x_0": "500000", "y_0": str(south)}
    elif given.get("proj") != "tmerc":
        raise ValueError(f"expected a transverse Mercator projection (+proj=tmerc, +proj=utm), got {projection!r}")
    scale = RADIUS * float(given.get("k", given.get("k_0", 1)))
    x, y = (xy - (float(given.get("x_0", 0)), float(given.get("y_0", 0)))).T / scale
    grid = y + 1j * x + _meridian(math.radians(float(given.get("lat_0", 0))))
    sphere = grid - _sum(TO_SPHERE, grid)
    conformal = np.arcsin(np.sin(sphere.real) / np.cosh(sphere.imag))
    latitude = conformal + _sum(TO_GEODETIC, conformal)
    longitude = np.arctan2(np.sinh(sphere.imag), np.cos(sphere.real))
    return np.column_stack((float(given.get("lon_0", 0)) + np.degrees(longitude), np.degrees(latitude)))


def _meridian(latitude: float) -> float:
    """Return the distance of a latitude from the equator along the meridian; latitude and result in radians."""
    sine = math.sin(latitude)
    conformal = math.atan(math.sinh(math.atanh(sine) - ECCENTRICITY * math.atanh(ECCENTRICITY * sine)))
    return float(conformal + _sum(TO_GRID, conformal))


def _sum(series: Series, angle: Any) -> Any:
    """Return the sum of the series' sines of 2, 4, 6 and 8 times an angle, which may be complex."""
    return sum(factor * np.sin(2 * k * angle) for k, factor in enumerate(series, 1))
