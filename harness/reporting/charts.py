"""Where the shapes of charts and sketches are; `charts.html.j2` draws them as SVG, which needs no
script."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, groupby, pairwise
from operator import add
from typing import NamedTuple

from harness.document import CHANCE, Chart, Series, Sketch

# Sizes are in units of a picture, which is as wide as its place.
WIDTH, HEIGHT = 420, 210
ROW_HEIGHT = 18
"""Of a row of intervals."""
LEFT, RIGHT, TOP, BOTTOM = 48, 10, 8, 36
NAMES_WIDTH = 150
"""Room for the names of rows."""
# A picture is 420 units wide: more points than this look the same and only make a page larger.
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
        span = (self.high - self.low) or 1.0
        share = (value - self.low) / span
        # Nobody sees less than a tenth of a unit, and each digit counts in pages of thousands of
        # points.
        return round(self.start + share * (self.end - self.start), 1)

    def ticks(self) -> list[float]:
        """Return about five round numbers; of hours of a day every third."""
        if (self.low, self.high) == (0, 24):
            return [float(hour) for hour in range(0, 25, 3)]
        if not self.high > self.low:
            return [self.low]

        rough = (self.high - self.low) / 5
        power = 10.0 ** math.floor(math.log10(rough))
        steps = [power * digit for digit in (1, 2, 2.5, 5, 10)]
        step = steps[bisect_left(steps, rough)]
        # An end that is a tick itself but for rounding has one.
        first = math.ceil(self.low / step - 1e-9)
        last = math.floor(self.high / step + 1e-9)

        return [round(step * number, 12) for number in range(first, last + 1)]


class Drawing(NamedTuple):
    """What is drawn: lines and bands as points, bars as (series, left, top, width, height), dots as
    (series, x, y)."""

    x: Axis
    y: Axis
    height: float = HEIGHT
    bands: Sequence[tuple[int, str]] = ()
    lines: Sequence[tuple[int, str]] = ()
    bars: Sequence[tuple[int, float, float, float, float]] = ()
    dots: Sequence[tuple[int, float, float]] = ()


def plan(block: Chart | Sketch) -> Drawing | None:
    """Return what is drawn of a picture, None for nothing."""
    if isinstance(block, Sketch):
        return _sketch(block)
    if block.kind == "intervals":
        return _intervals(block)

    # A stored chart of a plug-in may have names where numbers are due.
    xs = [x for x in block.x if not isinstance(x, str)]
    known = _known_values(block)
    if len(xs) < len(block.x) or not xs or not known:
        return None

    draw = {"curve": _curve, "histogram": _histogram, "ribbon": _ribbon}[block.kind]

    return draw(block, xs, known)


def _axes(across: Range, up: Range) -> tuple[Axis, Axis]:
    return Axis(*across, LEFT, WIDTH - RIGHT), Axis(*up, HEIGHT - BOTTOM, TOP)


def _curve(
    chart: Chart,
    xs: Sequence[float],
    known: Sequence[float],
) -> Drawing:
    # Shares have the same scale on every page, so that pages of two runs can be compared by eye.
    is_share = chart.percent and min(known) >= 0 and max(known) <= 1
    bounds = (0.0, 1.0) if is_share else around(known)
    x, y = _axes((min(xs), max(xs)), bounds)
    bands = []
    lines = []
    for number, series in enumerate(chart.series):
        for places, lows, highs in _known_runs(xs, series.low, series.high):
            # Around the band: along its lower edge, and back along the upper one.
            across = map(x.at, [*places, *reversed(places)])
            up = map(y.at, [*lows, *reversed(highs)])
            bands.append((number, _points(zip(across, up, strict=True))))

        for places, values in _known_runs(xs, series.values):
            # With its first point twice, a line of a single one is drawn as a dot.
            across = map(x.at, [places[0], *places])
            up = map(y.at, [values[0], *values])
            lines.append((number, _points(zip(across, up, strict=True))))

    return Drawing(x, y, bands=bands, lines=lines)


def _known_runs(*columns: Sequence[float | None]) -> Iterator[Sequence[tuple[float, ...]]]:
    """Yield columns again for each run of rows without None: a line ends where nothing is known.

    An empty column makes no run. All rows together become about `MAX_POINTS`; the last of each run
    stays.
    """
    rows = list(zip(*columns, strict=False))
    step = math.ceil(len(rows) / MAX_POINTS)
    for is_known, run in groupby(rows, key=lambda row: None not in row):
        if is_known:
            known_rows = list(run)
            shown = [*known_rows[:-1:step], known_rows[-1]]
            yield list(zip(*shown, strict=True))


def _histogram(
    chart: Chart,
    edges: Sequence[float],
    known: Sequence[float],
) -> Drawing | None:
    if max(known) <= 0:
        return None

    x, y = _axes((edges[0], edges[-1]), (0.0, max(known)))
    bars = []
    for number, series in enumerate(chart.series):
        for (left, right), value in zip(pairwise(edges), series.values, strict=True):
            if not value:
                continue

            # The series share the width of a column; between bars is half a unit of space.
            width = (x.at(right) - x.at(left)) / len(chart.series)
            start = x.at(left) + number * width
            top = y.at(value)
            bars.append((number, start, top, max(0.5, width - 0.5), y.at(0) - top))

    return Drawing(x, y, bars=bars)


def _ribbon(
    chart: Chart,
    xs: Sequence[float],
    known: Sequence[float],
) -> Drawing:
    """Stack shares; what stays the same over several columns is one bar."""
    last_width = xs[1] - xs[0] if len(xs) > 1 else 1.0
    edges = [*xs, xs[-1] + last_width]
    x, y = _axes((edges[0], edges[-1]), (0.0, 1.0))
    bars = []
    tops = [0.0] * len(xs)
    for number, series in enumerate(chart.series):
        bottoms = tops
        values = [value or 0.0 for value in series.values]
        tops = list(map(add, bottoms, values))
        end = 0
        for (bottom, top), run in groupby(zip(bottoms, tops, strict=True)):
            start = end
            end += len(list(run))
            if top > bottom:
                left = x.at(edges[start])
                width = x.at(edges[end]) - left
                height = y.at(bottom) - y.at(top)
                bars.append((number, left, y.at(top), width, height))

    return Drawing(x, y, bars=bars)


def is_tick(series: Series) -> bool:
    return series.name == CHANCE and not series.low


def _intervals(chart: Chart) -> Drawing | None:
    known = _known_values(chart)
    if not known:
        return None
    if chart.reference is not None:
        known.append(chart.reference)

    scale = 100.0 if chart.percent else 1.0
    bounds = around([scale * value for value in known])
    lines = sum(not is_tick(series) for series in chart.series)
    height = TOP + BOTTOM + ROW_HEIGHT * max(1, lines) * min(len(chart.x), MAX_POINTS)
    x = Axis(*bounds, NAMES_WIDTH, WIDTH - RIGHT)
    y = Axis(0, 1, height - BOTTOM, TOP)

    return Drawing(x, y, height)


def _sketch(sketch: Sketch) -> Drawing | None:
    """Return places, and paths over them, alike in both directions: a metre is as long to the east
    as to the north, and at least 500 m are shown."""
    spots = list(chain(*sketch.places.values(), *sketch.paths))
    if not spots:
        return None

    eastings, northings = zip(*spots, strict=True)
    west = min(eastings)
    north = max(northings)
    height = HEIGHT * 1.4
    # How wide the picture is in metres where its height decides.
    from_height = (north - min(northings)) * (WIDTH - 40) / (height - 60)
    room = max(500.0, max(eastings) - west, from_height)
    x = Axis(0.0, room, 20, WIDTH - 20)

    def points(places: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
        shown = places[:MAX_POINTS]
        return [(x.at(easting - west), x.at(north - northing)) for easting, northing in shown]

    lines = [(0, _points(points(path))) for path in sketch.paths]
    dots = []
    for number, places in enumerate(sketch.places.values()):
        dots += [(number, *point) for point in points(places)]

    return Drawing(x, x, height, lines=lines, dots=dots)


def _known_values(chart: Chart) -> list[float]:
    """Return the values of all series, and their bounds, without None."""
    known: list[float] = []
    for series in chart.series:
        ends = (*series.values, *series.low, *series.high)
        known += [end for end in ends if end is not None]

    return known


def around(values: Sequence[float]) -> Range:
    """Return bounds with some room around values; from 0 where that is near."""
    low, high = min(values), max(values)
    room = 0.05 * (high - low) or abs(high) * 0.1 or 1.0
    if 0 <= low <= 0.4 * high:
        return 0.0, high + room

    return low - room, high + room


def number(value: float) -> str:
    if abs(value) >= 10_000:
        return f"{value / 1000:g}k"
    if abs(value) >= 1000:
        return f"{value:,.0f}"

    return f"{value:.4g}"


def _points(spots: Iterable[tuple[float, float]]) -> str:
    return " ".join(f"{x:g},{y:g}" for x, y in spots)
