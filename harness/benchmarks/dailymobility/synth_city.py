"""Build a small synthetic city in the published map's format (`city.map.v2.Map`). Source:
docs/design.md, section 9.

Nine blocks of 4 km between the streets of a grid, each with some grounds that have a use, an
outline and points of interest. The streets are the same in every such city: they are those of the
map that ships as a sample. All of it is invented: no name, outline or position is taken from a real
place. Ids start where those of published maps start, and categories are OpenStreetMap's, as in maps
built with mosstool. Words are in synth.toml.

Only `Random.random()` is drawn from, and numbers are rounded to centimetres, so that a seed gives
the same bytes on every machine.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from harness.benchmarks.agents.spatial import map_format
from harness.defaults import SAMPLE_FOLDER

if TYPE_CHECKING:
    from pycityproto.city.map.v2.map_pb2 import Aoi, Lane, Map

T = TypeVar("T")
XY = tuple[float, float]
SYNTH = tomllib.loads(Path(__file__).with_name("synth.toml").read_text(encoding="utf-8"))
CITY = SYNTH["city"]
USES = CITY["uses"]

SAMPLE_MAP = SAMPLE_FOLDER / "dailymobility" / "beijing.pb"
FIRST_AOI, FIRST_POI = 500_000_000, 700_000_000

BLOCKS, BLOCK = 3, 4000.0
EDGE = BLOCKS * BLOCK / 2
"""The city reaches from -EDGE to EDGE in both directions."""

POIS, EXTRA = 4, 15
"""Points of interest in each ground, and how many more shops and offices share."""


class _Ground(NamedTuple):
    """A rectangle with some corners cut off: its middle, and half its width and height, in
    metres."""

    use: str
    x: float
    y: float
    wide: float
    high: float


def map_bytes(seed: int) -> bytes:
    """Return a serialized map: 50 AOIs (5 of them points), 200 POIs, 48 roads with 96 lanes, 16
    junctions with 208.

    Raise `BadInput` where the extra `mobility` is not installed.
    """
    made, rng = _streets(), Random(f"{seed}/city")
    grounds, names = _grounds(rng), _names(rng)
    _add_grounds(made, grounds, names, rng)
    _add_points(made, names, rng)
    data: bytes = made.SerializeToString(deterministic=True)
    return data


def _streets() -> Any:
    """Return the sample's map with header, roads, lanes and junctions, and nothing in its
    blocks."""
    streets = map_format().Map.FromString(SAMPLE_MAP.read_bytes())
    del streets.aois[:], streets.pois[:]
    for lane in streets.lanes:
        del lane.aoi_ids[:]
    return streets


def _street(number: int) -> float:
    return number * BLOCK - EDGE


def _grounds(rng: Random) -> list[_Ground]:
    grounds = []
    for column, row in product(range(BLOCKS), repeat=2):
        for number, (right, up) in enumerate(CITY["spots"]):
            downtown = column == row == BLOCKS // 2
            use = CITY["downtown"][number] if downtown else pick(rng, CITY["grounds"][number])
            x, y = _within(column, row, right + _around(rng, 0.011), up + _around(rng, 0.011))
            grounds.append(
                _Ground(
                    use,
                    x,
                    y,
                    round(150 + 300 * rng.random(), 2),
                    round(150 + 300 * rng.random(), 2),
                )
            )
    return grounds


def _within(column: int, row: int, right: float, up: float) -> XY:
    """Return the point at these shares of a block's sides."""
    return round(_street(column) + right * BLOCK, 2), round(_street(row) + up * BLOCK, 2)


def _add_grounds(made: Map, grounds: Sequence[_Ground], names: Iterator[str], rng: Random) -> None:
    """Add the AOIs that have an outline, with their POIs."""
    shops = [row for row, ground in enumerate(grounds) if ground.use in ("B1", "B2")]
    extra = [shops[number % len(shops)] for number in range(EXTRA)]
    for row, ground in enumerate(grounds):
        name = next(names)
        aoi = _add_aoi(made, name + USES[ground.use]["end"], ground, _outline(ground, rng))
        for category, end in _kinds(USES[ground.use]["pois"], POIS + extra.count(row), rng):
            x, y = (
                ground.x + ground.wide * _around(rng, 0.6),
                ground.y + ground.high * _around(rng, 0.6),
            )
            _add_poi(made, aoi, name + end, category, x, y)


def _kinds(choices: Sequence[Sequence[str]], count: int, rng: Random) -> list[Sequence[str]]:
    """Return the first two choices, then others, none a second time before all are there."""
    kinds, others = list(choices[:2]), list(choices[2:])
    while len(kinds) < count:
        kinds.append(others.pop(int(rng.random() * len(others))))
        others = others or list(choices[2:])
    return kinds


def _add_points(made: Map, names: Iterator[str], rng: Random) -> None:
    """Add the AOIs that are points, each with one POI: in the blocks at the city's corners and in
    the middle one."""
    for number, (category, end, use) in enumerate(CITY["points"]):
        x, y = _within(*divmod(2 * number, BLOCKS), 0.5, 0.12 + 0.02 * rng.random())
        name = next(names) + end
        aoi = _add_aoi(made, name, _Ground(use, x, y, 0.0, 0.0), [(x, y)])
        _add_poi(made, aoi, name, category, x, y)


def _outline(ground: _Ground, rng: Random) -> list[XY]:
    """Return corners counter-clockwise and not closed, as in published maps."""
    outline: list[XY] = []
    for right, up in ((1, -1), (1, 1), (-1, 1), (-1, -1)):
        corner = (ground.x + right * ground.wide, ground.y + up * ground.high)
        cut = (0.2 + 0.3 * rng.random()) * min(ground.wide, ground.high)
        ends = [(corner[0] - right * cut, corner[1]), (corner[0], corner[1] - up * cut)]
        outline += [corner] if rng.random() < 0.5 else ends if right != up else ends[::-1]
    return [(round(x, 2), round(y, 2)) for x, y in outline]


def _add_aoi(made: Map, name: str, ground: _Ground, outline: Sequence[XY]) -> Aoi:
    """Add an AOI and where one leaves it for the nearest driving and walking lane. A single corner
    has no area."""
    use = ground.use
    aoi = made.aois.add(
        id=FIRST_AOI + len(made.aois), name=name, type="AOI_TYPE_OTHER", urban_land_use=use
    )
    aoi.land_use = map_format().LandUseType.Value(CITY["land_use"][use[0]])
    for x, y in outline:
        aoi.positions.add(x=x, y=y)
    if len(outline) > 1:
        following = [*outline[1:], outline[0]]
        aoi.area = round(
            sum(x1 * y2 - x2 * y1 for (x1, y1), (x2, y2) in zip(outline, following, strict=True))
            / 2,
            2,
        )
    sides = ((aoi.driving_positions, aoi.driving_gates), (aoi.walking_positions, aoi.walking_gates))
    for kind, (positions, gates) in enumerate(sides):
        lanes = (made.lanes[road.lane_ids[kind]] for road in made.roads)
        _, along, x, y, nearest = min(
            (_foot(lane, ground.x, ground.y) for lane in lanes), key=lambda foot: foot[0]
        )
        positions.add(lane_id=nearest.id, s=round(along, 2))
        x = _clamp(x, ground.x - ground.wide, ground.x + ground.wide)
        gates.add(
            x=round(x, 2), y=round(_clamp(y, ground.y - ground.high, ground.y + ground.high), 2)
        )
        nearest.aoi_ids.append(aoi.id)
    return aoi


def _foot(lane: Lane, x: float, y: float) -> tuple[float, float, float, float, Lane]:
    """Return the point of a straight lane nearest to (x, y): squared distance, metres along the
    lane, x, y, lane."""
    start, end = lane.center_line.nodes
    right, up = (end.x - start.x) / lane.length, (end.y - start.y) / lane.length
    along = _clamp((x - start.x) * right + (y - start.y) * up, 0.0, lane.length)
    at_x, at_y = start.x + right * along, start.y + up * along
    return (at_x - x) ** 2 + (at_y - y) ** 2, along, at_x, at_y, lane


def _add_poi(made: Map, aoi: Aoi, name: str, category: str, x: float, y: float) -> None:
    poi = made.pois.add(id=FIRST_POI + len(made.pois), name=name, category=category, aoi_id=aoi.id)
    poi.position.x, poi.position.y = round(x, 2), round(y, 2)
    aoi.poi_ids.append(poi.id)


def _clamp(value: float, lowest: float, highest: float) -> float:
    return min(max(value, lowest), highest)


def _names(rng: Random) -> Iterator[str]:
    """Yield heads of names in a seeded order, each once."""
    left = [head + tail for head in CITY["name_heads"] for tail in CITY["name_tails"]]
    while left:
        yield left.pop(int(rng.random() * len(left)))


def pick(rng: Random, choices: Sequence[T]) -> T:
    return choices[int(rng.random() * len(choices))]


def _around(rng: Random, reach: float) -> float:
    """Draw a number between -reach and reach."""
    return (2 * rng.random() - 1) * reach
