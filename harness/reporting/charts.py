"""Where the shapes of charts and sketches are; `charts.html.j2` draws them as SVG, which needs no
script."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

from harness.document import CHANCE, Chart, Series, Sketch

WIDTH, HEIGHT, ROW = 420, 210, 18
"""Units of a picture, which is as wide as its place; of a row of intervals."""
LEFT, RIGHT, TOP, BOTTOM = 48, 10, 8, 36
NAMES = 150
"""Room for the names of rows."""
MAX_POINTS = 400
"""Most points of a line, and most rows."""
Range = tuple[float, float]


class Axis(NamedTuple):
    """Values from `low` to `high`, drawn from `start` to `end`."""

    low: float
    high: float
    start: float
    end: float

    def at(self, value: float) -> float:
        share = (value - self.low) / ((self.high - self.low) or 1.0)
        return round(self.start + share * (self.end - self.start), 1)

    def ticks(self) -> list[float]:
        """Return about five round numbers; of hours of a day every third."""
        if (self.low, self.high) == (0, 24):
            return [float(hour) for hour in range(0, 25, 3)]
        if not self.high > self.low:
            return [self.low]
        rough = (self.high - self.low) / 5
        power = 10.0 ** math.floor(math.log10(rough))
        step = next(power * digit for digit in (1, 2, 2.5, 5, 10) if power * digit >= rough)
        first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        return [round(step * number, 12) for number in range(first, last + 1)]


class Plan(NamedTuple):
    """What is drawn: lines and bands as points, bars as (series, left, top, width, height), dots as
    (series, x, y)."""

    x: Axis
    y: Axis
    height: float = HEIGHT
    bands: Sequence[tuple[int, str]] = ()
    lines: Sequence[tuple[int, str]] = ()
    bars: Sequence[tuple[int, float, float, float, float]] = ()
    dots: Sequence[tuple[int, float, float]] = ()


def plan(block: Chart | Sketch) -> Plan | None:
    """Return what is drawn of a picture, None for nothing."""
    if isinstance(block, Sketch):
        return _sketch(block)
    if block.kind == "intervals":
        return _intervals(block)
    xs = [x for x in block.x if not isinstance(x, str)]
    known = [end for series in block.series for end in ends(series)]
    if len(xs) < len(block.x) or not xs or not known:
        return None
    return {"curve": _curve, "histogram": _histogram, "ribbon": _ribbon}[block.kind](
        block, xs, known
    )


def _axes(across: Range, up: Range) -> tuple[Axis, Axis]:
    return Axis(*across, LEFT, WIDTH - RIGHT), Axis(*up, HEIGHT - BOTTOM, TOP)


def _curve(chart: Chart, xs: Sequence[float], known: Sequence[float]) -> Plan:
    is_share = chart.percent and min(known) >= 0 and max(known) <= 1
    x, y = _axes((min(xs), max(xs)), (0.0, 1.0) if is_share else around(known))
    bands, lines = list[tuple[int, str]](), list[tuple[int, str]]()
    for number, series in enumerate(chart.series):
        if series.low and series.high:
            for run in _known_runs(zip(xs, series.low, series.high, strict=True)):
                lower = [(x.at(place), y.at(low)) for place, low, _ in run]
                upper = [(x.at(place), y.at(high)) for place, _, high in reversed(run)]
                bands.append((number, _points([*lower, *upper])))
        for run in _known_runs(zip(xs, series.values, strict=True)):
            points = [(x.at(place), y.at(value)) for place, value in run]
            lines.append((number, _points([points[0], *points])))  # a single one is a dot then
    return Plan(x, y, bands=bands, lines=lines)


def _known_runs(rows: Iterable[tuple[float | None, ...]]) -> Iterator[Sequence[tuple[float, ...]]]:
    """Yield rows without None that follow one another: a line ends where nothing is known."""
    rows = list(rows)
    step = math.ceil(len(rows) / MAX_POINTS)
    for is_known, run in groupby(rows, key=lambda row: None not in row):
        if is_known:
            whole = list(run)
            yield [*whole[:-1:step], whole[-1]]  # type: ignore[list-item]  # none is None


def _histogram(chart: Chart, edges: Sequence[float], known: Sequence[float]) -> Plan | None:
    if max(known) <= 0:
        return None
    x, y = _axes((edges[0], edges[-1]), (0.0, max(known)))
    bars = []
    for number, series in enumerate(chart.series):
        for left, right, value in zip(edges, edges[1:], series.values, strict=False):
            width = (x.at(right) - x.at(left)) / len(chart.series)
            if value:
                top = y.at(value)
                bars.append(
                    (number, x.at(left) + number * width, top, max(0.5, width - 0.5), y.at(0) - top)
                )
    return Plan(x, y, bars=bars)


def _ribbon(chart: Chart, xs: Sequence[float], known: Sequence[float]) -> Plan:
    """Stack shares; what stays the same over several columns is one bar."""
    edges = [*xs, xs[-1] + (xs[1] - xs[0] if len(xs) > 1 else 1.0)]
    x, y = _axes((edges[0], edges[-1]), (0.0, 1.0))
    bars, tops = [], [0.0] * len(xs)
    for number, series in enumerate(chart.series):
        bottoms = tops
        tops = [below + (value or 0.0) for below, value in zip(bottoms, series.values, strict=True)]
        stacks = list(zip(bottoms, tops, strict=True))
        for (below, top), run in groupby(range(len(xs)), key=stacks.__getitem__):
            if top > below:
                [first, *_, last] = [*run] * 2
                start, height = x.at(edges[first]), y.at(below) - y.at(top)
                bars.append((number, start, y.at(top), x.at(edges[last + 1]) - start, height))
    return Plan(x, y, bars=bars)


def is_tick(series: Series) -> bool:
    return series.name == CHANCE and not series.low


def _intervals(chart: Chart) -> Plan | None:
    scale = 100.0 if chart.percent else 1.0
    known = [scale * end for series in chart.series for end in ends(series)]
    if not known:
        return None
    if chart.reference is not None:
        known.append(scale * chart.reference)
    lines = sum(not is_tick(series) for series in chart.series)
    height = TOP + BOTTOM + ROW * max(1, lines) * min(len(chart.x), MAX_POINTS)
    return Plan(
        Axis(*around(known), NAMES, WIDTH - RIGHT), Axis(0, 1, height - BOTTOM, TOP), height
    )


def _sketch(sketch: Sketch) -> Plan | None:
    """Return places, and paths over them, alike in both directions."""
    spots = [spot for spots in (*sketch.places.values(), *sketch.paths) for spot in spots]
    if not spots:
        return None
    (west, east), (south, north) = (
        (min(places), max(places)) for places in zip(*spots, strict=True)
    )
    height = HEIGHT * 1.4
    room = max(500.0, east - west, (north - south) * (WIDTH - 40) / (height - 60))
    x = Axis(0.0, room, 20, WIDTH - 20)
    dots, paths = list[tuple[int, float, float]](), list[tuple[int, str]]()
    for path in sketch.paths:
        points = [(x.at(place[0] - west), x.at(north - place[1])) for place in path[:MAX_POINTS]]
        paths.append((0, _points(points)))
    for number, places in enumerate(sketch.places.values()):
        dots += [
            (number, x.at(place[0] - west), x.at(north - place[1])) for place in places[:MAX_POINTS]
        ]
    return Plan(x, x, height, lines=paths, dots=dots)


def ends(series: Series) -> list[float]:
    return [end for end in (*series.values, *series.low, *series.high) if end is not None]


def around(values: Sequence[float]) -> Range:
    """Return bounds with some room around values; from 0 where that is near."""
    low, high = min(values), max(values)
    room = 0.05 * (high - low) or abs(high) * 0.1 or 1.0
    return 0.0 if 0 <= low <= 0.4 * high else low - room, high + room


def number(value: float) -> str:
    if abs(value) >= 10_000:
        return f"{value / 1000:g}k"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _points(spots: Iterable[tuple[float, float]]) -> str:
    return " ".join(f"{x:g},{y:g}" for x, y in spots)
