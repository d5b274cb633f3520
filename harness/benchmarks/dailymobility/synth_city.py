"""A small synthetic city in the published map's format (`city.map.v2.Map`). Source: docs/design.md, section 9.

Nine blocks of 4 km between the streets of a grid; in each some grounds with a use, an outline and points of interest.
All of it is invented: no name, outline or position is taken from a real place. Ids start where published maps have
theirs, and categories are OpenStreetMap's, as maps built with mosstool have them.

Only `Random.random()` is drawn from, and numbers are rounded to centimetres, so that a seed makes the same bytes on
every machine.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import pi, sqrt
from random import Random
from typing import Any, TypeVar

from harness.benchmarks.dailymobility.city import MAP
from harness.benchmarks.dailymobility.spatial import optional

T = TypeVar("T")
XY = tuple[float, float]

PROJECTION = "+proj=tmerc +lat_0=39.9 +lon_0=116.4"
FIRST_ROAD, FIRST_JUNCTION, FIRST_AOI, FIRST_POI = 200_000_000, 300_000_000, 500_000_000, 700_000_000

BLOCKS, BLOCK = 3, 4000.0
EDGE = BLOCKS * BLOCK / 2
"""The city reaches from -EDGE to EDGE both ways."""

POIS, EXTRA = 4, 15
"""Points of interest in each ground, and more of them that shops and offices share."""

JUNCTION = 15.0
"""Metres from the middle of a junction to where its roads begin."""

LANES = (("LANE_TYPE_DRIVING", 2.0, 3.2, 16.67), ("LANE_TYPE_WALKING", 5.0, 2.0, 1.34))
"""Of each road: type, metres right of the street's middle, width, speed limit."""

ANGLES = {(1, 0): 0.0, (0, 1): pi / 2, (-1, 0): pi, (0, -1): -pi / 2}

DOWNTOWN = ("B1", "B2", "B2", "A3", "G1")
GROUNDS: tuple[tuple[str, ...], ...] = (("R2",), ("R2",), ("B1", "B2"), ("A3", "M1", "B2"), ("G1", "R2"))
"""Uses (GB 50137-2011) of the five grounds of a block: downtown, and one of several for each ground elsewhere."""

SPOTS = ((0.25, 0.25), (0.75, 0.75), (0.75, 0.25), (0.25, 0.75), (0.5, 0.5))
LAND_USE = {"R": "RESIDENTIAL", "B": "COMMERCIAL", "A": "PUBLIC", "M": "INDUSTRIAL", "G": "OTHER"}
ENDS = {"R2": "家园", "B1": "商业街", "B2": "大厦", "A3": "学院", "M1": "产业园", "G1": "公园"}

FOUND_IN = {
    "R2": (
        ("building|supermarket", "超市"),
        ("amenity|restaurant", "家常菜馆"),
        ("amenity|pharmacy", "药房"),
        ("leisure|playground", "儿童乐园"),
        ("amenity|kindergarten", "幼儿园"),
        ("amenity|fast_food", "面馆"),
        ("amenity|clinic", "社区诊所"),
        ("leisure|fitness_centre", "健身房"),
    ),
    "B1": (
        ("building|retail", "百货商场"),
        ("amenity|restaurant", "烤鸭店"),
        ("amenity|cinema", "影城"),
        ("amenity|marketplace", "农贸市场"),
        ("amenity|cafe", "咖啡馆"),
        ("retail", "步行街"),
        ("amenity|bar", "酒馆"),
        ("amenity|bank", "银行"),
    ),
    "B2": (
        ("building|office", "写字楼"),
        ("amenity|cafe", "咖啡馆"),
        ("amenity|restaurant", "湘菜馆"),
        ("amenity|bank", "银行"),
        ("leisure|fitness_centre", "健身中心"),
        ("amenity|fast_food", "快餐店"),
        ("amenity|conference_centre", "会议中心"),
        ("amenity|parking", "停车场"),
    ),
    "A3": (
        ("amenity|university", "教学楼"),
        ("amenity|food_court", "食堂"),
        ("amenity|library", "图书馆"),
        ("leisure|sports_centre", "体育馆"),
        ("leisure|pitch", "球场"),
    ),
    "M1": (
        ("building|industrial", "厂房"),
        ("amenity|fast_food", "快餐店"),
        ("building|warehouse", "仓库"),
        ("amenity|charging_station", "充电站"),
        ("amenity|parking", "停车场"),
    ),
    "G1": (
        ("leisure|park", "游园"),
        ("leisure|garden", "花圃"),
        ("leisure|playground", "儿童乐园"),
        ("amenity|cafe", "茶座"),
        ("amenity|toilets", "公共厕所"),
    ),
}
"""Category and the end of a name of what stands in grounds of each use; the first two always do."""

ON_POINTS = (
    ("amenity|bus_station", "公交站", "S4"),
    ("amenity|post_office", "邮局", "A1"),
    ("amenity|townhall", "办事大厅", "A1"),
    ("amenity|marketplace", "菜市场", "B1"),
    ("amenity|hospital", "医院", "A5"),
)
"""What is an AOI of its own without an outline."""

NAME_HEADS, NAME_TAILS = "望春和安明远景丰兰溪", "宁棠舟屿禾澜桐序"


@dataclass(slots=True)
class _Road:
    """One direction of a street: `lanes` in the order of `LANES`."""

    id: int
    origin: tuple[int, int]
    way: tuple[int, int]
    lanes: list[Any]

    @property
    def target(self) -> tuple[int, int]:
        return self.origin[0] + self.way[0], self.origin[1] + self.way[1]


def map_bytes(seed: int) -> bytes:
    """A serialized map: 50 AOIs (5 of them points), 200 POIs, 48 roads with 96 lanes, 16 junctions with 208.

    Raises `BadInput` where the extra `mobility` is not installed.
    """
    made = optional(MAP).Map()
    _header(made.header)
    roads = _roads(made)
    _junctions(made, roads)
    _grounds(made, Random(f"{seed}/city"))
    data: bytes = made.SerializeToString(deterministic=True)
    return data


def _header(header: Any) -> None:
    header.name, header.date, header.projection = "synthetic", "2026-01-01", PROJECTION
    header.north = header.east = EDGE
    header.south = header.west = -EDGE


def _roads(made: Any) -> list[_Road]:
    """Every street between two neighbouring corners of the grid, both ways."""
    corners = range(BLOCKS + 1)
    roads: list[_Road] = []
    for origin in [(i, j) for i in corners for j in corners]:
        for way in ANGLES:
            road = _Road(FIRST_ROAD + len(roads), origin, way, [])
            if not {*road.target} <= {*corners}:
                continue
            road.lanes = [_road_lane(made, road, *kind) for kind in LANES]
            made.roads.add(id=road.id, name=f"合成路{len(roads) + 1}号", lane_ids=[lane.id for lane in road.lanes])
            roads.append(road)
    return roads


def _road_lane(made: Any, road: _Road, kind: str, right: float, width: float, speed: float) -> Any:
    (x, y), (dx, dy) = (_street(at) for at in road.origin), road.way
    line = [(x + dx * far + dy * right, y + dy * far - dx * right) for far in (JUNCTION, BLOCK - JUNCTION)]
    return _lane(made, road.id, kind, "LANE_TURN_STRAIGHT", width, speed, line)


def _street(number: int) -> float:
    return number * BLOCK - EDGE


def _lane(made: Any, parent: int, kind: str, turn: str, width: float, speed: float, line: Sequence[XY]) -> Any:
    lane = made.lanes.add(id=len(made.lanes), type=kind, turn=turn, max_speed=speed, width=width, parent_id=parent)
    (x1, y1), (x2, y2) = line
    lane.length = round(sqrt((x2 - x1) ** 2 + (y2 - y1) ** 2), 2)
    for x, y in line:
        lane.center_line.nodes.add(x=x, y=y)
    return lane


def _junctions(made: Any, roads: Sequence[_Road]) -> None:
    for number, at in enumerate([(i, j) for i in range(BLOCKS + 1) for j in range(BLOCKS + 1)]):
        junction = made.junctions.add(id=FIRST_JUNCTION + number)
        for before in [road for road in roads if road.target == at]:
            for after in [road for road in roads if road.origin == at]:
                if after.target != before.origin:
                    _movement(made, junction, before, after)


def _movement(made: Any, junction: Any, before: _Road, after: _Road) -> None:
    """The lanes that lead from one road into another, one for cars and one for walkers."""
    turn = _turn(before.way, after.way)
    for (kind, _, width, speed), start, end in zip(LANES, before.lanes, after.lanes, strict=True):
        first, last = start.center_line.nodes[-1], end.center_line.nodes[0]
        lane = _lane(made, junction.id, kind, turn, width, speed, [(first.x, first.y), (last.x, last.y)])
        junction.lane_ids.append(lane.id)
        lane.predecessors.add(id=start.id, type="LANE_CONNECTION_TYPE_TAIL")
        lane.successors.add(id=end.id, type="LANE_CONNECTION_TYPE_HEAD")
        start.successors.add(id=lane.id, type="LANE_CONNECTION_TYPE_HEAD")
        end.predecessors.add(id=lane.id, type="LANE_CONNECTION_TYPE_TAIL")
    group = junction.driving_lane_groups.add(in_road_id=before.id, out_road_id=after.id, turn=turn)
    group.in_angle, group.out_angle = ANGLES[before.way], ANGLES[after.way]
    group.lane_ids.append(junction.lane_ids[-2])


def _turn(before: tuple[int, int], after: tuple[int, int]) -> str:
    side = before[0] * after[1] - before[1] * after[0]
    return {0: "LANE_TURN_STRAIGHT", 1: "LANE_TURN_LEFT", -1: "LANE_TURN_RIGHT"}[side]


@dataclass(slots=True)
class _Ground:
    """A rectangle with some corners cut off: its middle, and how far it reaches from there."""

    use: str
    x: float
    y: float
    wide: float
    high: float


def _grounds(made: Any, rng: Random) -> None:
    """AOIs with their POIs, then the AOIs that are points."""
    names = _names(rng)
    lanes = [[made.lanes[road.lane_ids[kind]] for road in made.roads] for kind in range(len(LANES))]
    grounds = _plan(rng)
    shops = [row for row, ground in enumerate(grounds) if ground.use in ("B1", "B2")]
    extra = [shops[number % len(shops)] for number in range(EXTRA)]
    for row, ground in enumerate(grounds):
        name = next(names)
        aoi = _aoi(made, name + ENDS[ground.use], ground.use, _outline(ground, rng))
        for category, end in _kinds(ground.use, POIS + extra.count(row), rng):
            x, y = ground.x + ground.wide * _around(rng, 0.6), ground.y + ground.high * _around(rng, 0.6)
            _poi(made, aoi, name + end, category, x, y)
        _connect(aoi, ground, lanes)
    for number, (category, end, use) in enumerate(ON_POINTS):
        block = 2 * number  # the four blocks at the city's corners, and the middle one
        spot = _Ground(use, *_middle(block // BLOCKS, block % BLOCKS, 0.5, 0.12 + 0.02 * rng.random()), 0.0, 0.0)
        name = next(names) + end
        aoi = _aoi(made, name, use, [(spot.x, spot.y)])
        _poi(made, aoi, name, category, spot.x, spot.y)
        _connect(aoi, spot, lanes)


def _kinds(use: str, count: int, rng: Random) -> list[tuple[str, str]]:
    """The two that grounds of this use always have, then others, none again before all were there."""
    kinds, others = list(FOUND_IN[use][:2]), list(FOUND_IN[use][2:])
    while len(kinds) < count:
        kinds.append(others.pop(int(rng.random() * len(others))))
        others = others or list(FOUND_IN[use][2:])
    return kinds


def _plan(rng: Random) -> list[_Ground]:
    grounds = []
    for column, row in [(i, j) for i in range(BLOCKS) for j in range(BLOCKS)]:
        downtown = (column, row) == (BLOCKS // 2, BLOCKS // 2)
        for number, (right, up) in enumerate(SPOTS):
            use = DOWNTOWN[number] if downtown else _pick(rng, GROUNDS[number])
            x, y = _middle(column, row, right + _around(rng, 0.011), up + _around(rng, 0.011))
            grounds.append(_Ground(use, x, y, round(150 + 300 * rng.random(), 2), round(150 + 300 * rng.random(), 2)))
    return grounds


def _middle(column: int, row: int, right: float, up: float) -> XY:
    return round(_street(column) + right * BLOCK, 2), round(_street(row) + up * BLOCK, 2)


def _outline(ground: _Ground, rng: Random) -> list[XY]:
    """Counter-clockwise and not closed, as published maps have it."""
    outline: list[XY] = []
    for right, up in ((1, -1), (1, 1), (-1, 1), (-1, -1)):
        corner = (ground.x + right * ground.wide, ground.y + up * ground.high)
        cut = (0.2 + 0.3 * rng.random()) * min(ground.wide, ground.high)
        ends = [(corner[0] - right * cut, corner[1]), (corner[0], corner[1] - up * cut)]
        outline += [corner] if rng.random() < 0.5 else ends if right != up else ends[::-1]
    return [(round(x, 2), round(y, 2)) for x, y in outline]


def _aoi(made: Any, name: str, use: str, outline: Sequence[XY]) -> Any:
    """An outline of one position is a point, which has no area."""
    aoi = made.aois.add(id=FIRST_AOI + len(made.aois), name=name, type="AOI_TYPE_OTHER", urban_land_use=use)
    aoi.land_use = optional(MAP).LandUseType.Value(f"LAND_USE_TYPE_{LAND_USE.get(use[0], 'TRANSPORTATION')}")
    for x, y in outline:
        aoi.positions.add(x=x, y=y)
    if len(outline) > 1:
        following = [*outline[1:], outline[0]]
        aoi.area = round(sum(x1 * y2 - x2 * y1 for (x1, y1), (x2, y2) in zip(outline, following, strict=True)) / 2, 2)
    return aoi


def _poi(made: Any, aoi: Any, name: str, category: str, x: float, y: float) -> None:
    poi = made.pois.add(id=FIRST_POI + len(made.pois), name=name, category=category, aoi_id=aoi.id)
    poi.position.x, poi.position.y = round(x, 2), round(y, 2)
    aoi.poi_ids.append(poi.id)


def _connect(aoi: Any, ground: _Ground, lanes: Sequence[Sequence[Any]]) -> None:
    """The nearest driving and walking lane, and where one leaves the AOI towards each."""
    sides = ((aoi.driving_positions, aoi.driving_gates), (aoi.walking_positions, aoi.walking_gates))
    for (positions, gates), kind in zip(sides, lanes, strict=True):
        lane, (x, y), along = min(
            ((lane, *_foot(lane, ground.x, ground.y)) for lane in kind),
            key=lambda found: (found[1][0] - ground.x) ** 2 + (found[1][1] - ground.y) ** 2,
        )
        positions.add(lane_id=lane.id, s=round(along, 2))
        gates.add(
            x=round(_clamp(x, ground.x - ground.wide, ground.x + ground.wide), 2),
            y=round(_clamp(y, ground.y - ground.high, ground.y + ground.high), 2),
        )
        lane.aoi_ids.append(aoi.id)


def _foot(lane: Any, x: float, y: float) -> tuple[XY, float]:
    """The point of a road's straight lane nearest to (x, y), and how far along it that is."""
    start, end = lane.center_line.nodes
    right, up = (end.x - start.x) / lane.length, (end.y - start.y) / lane.length
    along = _clamp((x - start.x) * right + (y - start.y) * up, 0.0, lane.length)
    return (start.x + right * along, start.y + up * along), along


def _clamp(value: float, lowest: float, highest: float) -> float:
    return min(max(value, lowest), highest)


def _names(rng: Random) -> Iterator[str]:
    """Heads of names in a seeded order, each once."""
    left = [head + tail for head in NAME_HEADS for tail in NAME_TAILS]
    while left:
        yield left.pop(int(rng.random() * len(left)))


def _pick(rng: Random, choices: Sequence[T]) -> T:
    return choices[int(rng.random() * len(choices))]


def _around(rng: Random, reach: float) -> float:
    """Between -reach and reach."""
    return (2 * rng.random() - 1) * reach
