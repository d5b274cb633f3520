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
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import cycle, islice, pairwise, product
from operator import itemgetter
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
FIRST_AOI = 500_000_000
FIRST_POI = 700_000_000

BLOCKS = 3
BLOCK = 4000.0
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
    half_width: float
    half_height: float


def map_bytes(seed: int) -> bytes:
    """Return a serialized map: 50 AOIs (5 of them points), 200 POIs, 48 roads with 96 lanes, 16
    junctions with 208.

    Raise `BadInput` where the extra `mobility` is not installed.
    """
    city = _streets()
    rng = Random(f"{seed}/city")
    grounds = _grounds(rng)
    names = _names(rng)
    _add_grounds(city, grounds, names, rng)
    _add_points(city, names, rng)
    # Without this protobuf does not promise the same bytes for the same map.
    data: bytes = city.SerializeToString(deterministic=True)
    return data


def _streets() -> Any:
    """Return the sample's map with header, roads, lanes and junctions, and nothing in its
    blocks."""
    streets = map_format().Map.FromString(SAMPLE_MAP.read_bytes())
    # The streets are kept, with everything that refers to areas taken out.
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
            if column == row == BLOCKS // 2:
                use = CITY["downtown"][number]
            else:
                use = pick(rng, CITY["grounds"][number])

            right += _offset(rng, 0.011)
            up += _offset(rng, 0.011)
            x, y = _within(column, row, right, up)
            half_width = round(150 + 300 * rng.random(), 2)
            half_height = round(150 + 300 * rng.random(), 2)
            grounds.append(_Ground(use, x, y, half_width, half_height))

    return grounds


def _within(column: int, row: int, right: float, up: float) -> XY:
    """Return the point at these shares of a block's sides."""
    return round(_street(column) + right * BLOCK, 2), round(_street(row) + up * BLOCK, 2)


def _add_grounds(city: Map, grounds: Sequence[_Ground], names: Iterator[str], rng: Random) -> None:
    """Add the AOIs that have an outline, with their POIs."""
    shops = [number for number, ground in enumerate(grounds) if ground.use in ("B1", "B2")]
    # Shops and offices get the extra ones in turn.
    extra = Counter(islice(cycle(shops), EXTRA))
    for number, ground in enumerate(grounds):
        name = next(names)
        use = USES[ground.use]
        aoi = _add_aoi(city, name + use["end"], ground, _outline(ground, rng))
        for category, end in _kinds(use["pois"], POIS + extra[number], rng):
            x = ground.x + ground.half_width * _offset(rng, 0.6)
            y = ground.y + ground.half_height * _offset(rng, 0.6)
            _add_poi(city, aoi, name + end, category, x, y)


def _kinds(choices: Sequence[Sequence[str]], count: int, rng: Random) -> list[Sequence[str]]:
    """Return the first two choices, then others, none a second time before all are there."""
    kinds = list(choices[:2])
    unused = list(choices[2:])
    while len(kinds) < count:
        kinds.append(unused.pop(int(rng.random() * len(unused))))
        unused = unused or list(choices[2:])
    return kinds


def _add_points(city: Map, names: Iterator[str], rng: Random) -> None:
    """Add the AOIs that are points, each with one POI: in the blocks at the city's corners and in
    the middle one."""
    for number, (category, end, use) in enumerate(CITY["points"]):
        x, y = _within(*divmod(2 * number, BLOCKS), 0.5, 0.12 + 0.02 * rng.random())
        name = next(names) + end
        aoi = _add_aoi(city, name, _Ground(use, x, y, 0.0, 0.0), [(x, y)])
        _add_poi(city, aoi, name, category, x, y)


def _outline(ground: _Ground, rng: Random) -> list[XY]:
    """Return corners counter-clockwise and not closed, as in published maps."""
    outline: list[XY] = []
    for right, up in ((1, -1), (1, 1), (-1, 1), (-1, -1)):
        x = ground.x + right * ground.half_width
        y = ground.y + up * ground.half_height
        cut = (0.2 + 0.3 * rng.random()) * min(ground.half_width, ground.half_height)
        corners = [(x - right * cut, y), (x, y - up * cut)]
        # Corners go round counter-clockwise, so every second one is cut the other way round.
        if right == up:
            corners.reverse()

        if rng.random() < 0.5:
            corners = [(x, y)]

        outline += corners

    return [(round(x, 2), round(y, 2)) for x, y in outline]


def _add_aoi(city: Map, name: str, ground: _Ground, outline: Sequence[XY]) -> Aoi:
    """Add an AOI and where one leaves it for the nearest driving and walking lane. A single corner
    has no area."""
    use = ground.use
    aoi = city.aois.add(
        id=FIRST_AOI + len(city.aois),
        name=name,
        type="AOI_TYPE_OTHER",
        urban_land_use=use,
    )
    aoi.land_use = map_format().LandUseType.Value(CITY["land_use"][use[0]])
    for x, y in outline:
        aoi.positions.add(x=x, y=y)

    if len(outline) > 1:
        aoi.area = round(_area(outline), 2)

    # A road has its driving lane first, then its walking lane.
    _add_gate(city, aoi, ground, 0, aoi.driving_positions, aoi.driving_gates)
    _add_gate(city, aoi, ground, 1, aoi.walking_positions, aoi.walking_gates)

    return aoi


def _add_gate(city: Map, aoi: Aoi, ground: _Ground, kind: int, positions: Any, gates: Any) -> None:
    """Add where one leaves an AOI for the nearest lane of a kind: the position on the lane, and the
    gate."""
    points = [_nearest_point(city.lanes[road.lane_ids[kind]], ground) for road in city.roads]
    _, metres, x, y, lane = min(points, key=itemgetter(0))
    positions.add(lane_id=lane.id, s=round(metres, 2))
    # The gate is where the outline is nearest to that point.
    x = _clamp(x, ground.x - ground.half_width, ground.x + ground.half_width)
    y = _clamp(y, ground.y - ground.half_height, ground.y + ground.half_height)
    gates.add(x=round(x, 2), y=round(y, 2))
    lane.aoi_ids.append(aoi.id)


def _area(outline: Sequence[XY]) -> float:
    """Return the area of a polygon with counter-clockwise corners (shoelace formula)."""
    doubled = 0.0
    for (x1, y1), (x2, y2) in pairwise([*outline, outline[0]]):
        doubled += x1 * y2 - x2 * y1
    return doubled / 2


def _nearest_point(lane: Lane, ground: _Ground) -> tuple[float, float, float, float, Lane]:
    """Return the point of a straight lane nearest to a ground's middle: squared distance, metres
    along the lane, x, y, lane."""
    start, end = lane.center_line.nodes
    right = (end.x - start.x) / lane.length
    up = (end.y - start.y) / lane.length
    metres = (ground.x - start.x) * right + (ground.y - start.y) * up
    metres = _clamp(metres, 0.0, lane.length)
    x = start.x + right * metres
    y = start.y + up * metres
    return (x - ground.x) ** 2 + (y - ground.y) ** 2, metres, x, y, lane


def _add_poi(city: Map, aoi: Aoi, name: str, category: str, x: float, y: float) -> None:
    poi = city.pois.add(
        id=FIRST_POI + len(city.pois),
        name=name,
        category=category,
        aoi_id=aoi.id,
    )
    poi.position.x = round(x, 2)
    poi.position.y = round(y, 2)
    aoi.poi_ids.append(poi.id)


def _clamp(value: float, lowest: float, highest: float) -> float:
    return min(max(value, lowest), highest)


def _names(rng: Random) -> Iterator[str]:
    """Yield heads of names in a seeded order, each once."""
    unused = [*map("".join, product(CITY["name_heads"], CITY["name_tails"]))]
    while unused:
        yield unused.pop(int(rng.random() * len(unused)))


def pick(rng: Random, choices: Sequence[T]) -> T:
    return choices[int(rng.random() * len(choices))]


def _offset(rng: Random, reach: float) -> float:
    """Draw a number between -reach and reach."""
    return (2 * rng.random() - 1) * reach
