"""Charts and sketches as SVG: they need no script. Colours are classes of the style sheet."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby

from markupsafe import Markup
from rich.cells import chop_cells

from harness.document import CHANCE, Chart, Series, Sketch
from harness.printable import on_one_line

WIDTH, HEIGHT, ROW = 420, 210, 18
"""Units of a picture, which is as wide as its place; of a row of intervals."""
LEFT, RIGHT, TOP, BOTTOM = 48, 10, 8, 36
NAMES = 150
"""Room for the names of rows."""
NAME_CELLS = 24
COLOURS = 8
POINTS = 400
"""Most points of a line, and most rows."""
Place = Callable[[float], float]
Range = tuple[float, float]
Shapes = Iterator[Markup]
NOTHING = Markup('<p class="note">There is nothing to draw.</p>')


def drawn(block: Chart | Sketch) -> Markup:
    """Return a picture, with a legend if it has several series."""
    if isinstance(block, Sketch):
        names = list(block.places)
        height, shapes = HEIGHT * 1.4, _sketch(block)
    else:
        names = [series.name for series in block.series]
        height, shapes = _drawing(block)
    content = Markup("").join(shapes)
    if not content:
        return NOTHING
    svg = Markup('<svg class="plot" viewBox="0 0 {} {:g}" role="img" aria-label="{}">{}</svg>')
    picture = svg.format(WIDTH, height, on_one_line(block.title), content)
    return picture + _legend(names) if len(names) > 1 else picture


def _legend(names: Sequence[str]) -> Markup:
    item = Markup('<li><span class="swatch s{}"></span>{}</li>')
    items = (item.format(number % COLOURS, on_one_line(name)) for number, name in enumerate(names))
    return Markup('<ul class="legend">{}</ul>').format(Markup("").join(items))


def _drawing(chart: Chart) -> tuple[float, Shapes]:
    """Return the height and the shapes of a chart."""
    if chart.kind == "intervals":
        lines = min(len(chart.x), POINTS) * max(1, len(_measured(chart)))
        return TOP + BOTTOM + ROW * lines, _intervals(chart)
    xs = [x for x in chart.x if not isinstance(x, str)]
    if len(xs) < len(chart.x) or not xs:
        return HEIGHT, iter(())
    draw = {"curve": _curve, "histogram": _histogram, "ribbon": _ribbon}[chart.kind]
    return HEIGHT, draw(chart, xs)


# Lines, bars and shares over numbers


def _curve(chart: Chart, xs: Sequence[float]) -> Shapes:
    known = [end for series in chart.series for end in _ends(series)]
    if not known:
        return
    is_share = chart.percent and min(known) >= 0 and max(known) <= 1
    place_x, place_y = _places((min(xs), max(xs)), (0.0, 1.0) if is_share else _around(known))
    yield from _grid(chart, (min(xs), max(xs)), (0.0, 1.0) if is_share else _around(known))
    step = math.ceil(len(xs) / POINTS)
    for number, series in enumerate(chart.series):
        colour = number % COLOURS
        low, high = series.low or (None,) * len(xs), series.high or (None,) * len(xs)
        for run in _known_runs(zip(xs, low, high, strict=True), step):
            lower = [(place_x(x), place_y(bottom)) for x, bottom, _ in run]
            upper = [(place_x(x), place_y(top)) for x, _, top in reversed(run)]
            band = Markup('<polygon class="band s{}" points="{}"/>')
            yield band.format(colour, _points([*lower, *upper]))
        for run in _known_runs(zip(xs, series.values, strict=True), step):
            points = [(place_x(x), place_y(value)) for x, value in run]
            if len(points) == 1:
                yield _dot(colour, *points[0], 2)
            else:
                line = Markup('<polyline class="line s{}" points="{}"/>')
                yield line.format(colour, _points(points))


def _known_runs(rows: Iterable[tuple[float | None, ...]], step: int) -> Iterator[Sequence[tuple[float, ...]]]:
    """Yield rows without None that follow one another: a line ends where nothing is known."""
    for is_known, run in groupby(rows, key=lambda row: None not in row):
        if is_known:
            whole = list(run)
            yield [*whole[:-1:step], whole[-1]]  # type: ignore[list-item]  # none is None


def _histogram(chart: Chart, edges: Sequence[float]) -> Shapes:
    most = max((value for series in chart.series for value in series.values if value), default=0)
    if len(edges) < 2 or most <= 0:
        return
    across, up = (edges[0], edges[-1]), (0.0, float(most))
    place_x, place_y = _places(across, up)
    yield from _grid(chart, across, up)
    for number, series in enumerate(chart.series):
        for left, right, value in zip(edges, edges[1:], series.values, strict=False):
            width = (place_x(right) - place_x(left)) / len(chart.series)
            start = place_x(left) + number * width
            if value:
                yield _bar(number, start + 0.25, width - 0.5, place_y(value), place_y(0))


def _ribbon(chart: Chart, xs: Sequence[float]) -> Shapes:
    """Stack shares; what stays the same over several columns is one bar."""
    step = xs[1] - xs[0] if len(xs) > 1 else 1.0
    edges = [*xs, xs[-1] + step]
    place_x, place_y = _places((edges[0], edges[-1]), (0.0, 1.0))
    yield from _grid(chart, (edges[0], edges[-1]), (0.0, 1.0))
    tops = [0.0] * len(xs)
    for number, series in enumerate(chart.series):
        bottoms = tops
        tops = [below + (value or 0.0) for below, value in zip(bottoms, series.values, strict=True)]
        for (below, top), run in groupby(range(len(xs)), key=lambda at: (bottoms[at], tops[at])):
            columns = list(run)
            start, end = place_x(edges[columns[0]]), place_x(edges[columns[-1] + 1])
            if top > below:
                yield _bar(number, start, end - start, place_y(top), place_y(below))


def _places(across: Range, up: Range) -> tuple[Place, Place]:
    return _axis(across, LEFT, WIDTH - RIGHT), _axis(up, HEIGHT - BOTTOM, TOP)


def _grid(chart: Chart, across: Range, up: Range) -> Shapes:
    place_x, place_y = _places(across, up)
    is_share = chart.percent and chart.kind != "histogram"
    for tick in _ticks(up) if chart.y_label else ():
        yield _path(LEFT, place_y(tick), WIDTH - RIGHT, place_y(tick), "grid")
        text = f"{100 * tick:g} %" if is_share else _number(tick)
        yield _text(LEFT - 5, place_y(tick) + 4, text, "end")
    yield _text(2, HEIGHT - 4, chart.y_label, "start")
    ticks: Sequence[float] = _ticks(across)
    if chart.x_label == "hour":
        ticks = [hour for hour in range(0, 25, 3) if across[0] <= hour <= across[1]]
    yield from _below(ticks, place_x, HEIGHT - BOTTOM, chart.x_label)


def _below(ticks: Iterable[float], place: Place, bottom: float, label: str) -> Shapes:
    for tick in ticks:
        yield _path(place(tick), TOP, place(tick), bottom, "grid")
        yield _text(place(tick), bottom + 14, _number(tick), "middle")
    yield _text(WIDTH - RIGHT, bottom + 30, label, "end")


# Intervals


def _measured(chart: Chart) -> list[tuple[int, Series]]:
    """Return the series that have lines of their own, with their numbers."""
    numbered = enumerate(chart.series)
    return [(number, series) for number, series in numbered if not _is_chance(series)]


def _is_chance(series: Series) -> bool:
    return series.name == CHANCE and not series.low


def _intervals(chart: Chart) -> Shapes:
    scale = 100.0 if chart.percent else 1.0
    names, measured = [str(x) for x in chart.x[:POINTS]], _measured(chart)
    ends = [scale * end for series in chart.series for end in _ends(series)]
    if not names or not ends:
        return
    reference = 0.0 if chart.reference is None else scale * chart.reference
    low, high = _around(ends if chart.reference is None else [*ends, reference])
    place, height = _axis((low, high), NAMES, WIDTH - RIGHT), ROW * max(1, len(measured))
    bottom = TOP + height * len(names)
    yield from _below(_ticks((low, high)), place, bottom, chart.x_label or chart.y_label)
    if low < reference < high:
        yield _path(place(reference), TOP, place(reference), bottom, "reference")
    for row, name in enumerate(names):
        top = TOP + height * row
        [shown, *more] = chop_cells(name, NAME_CELLS) or [""]
        yield _text(NAMES - 6, top + height / 2 + 4, f"{shown}…" if more else shown, "end")
        for number, series in enumerate(chart.series):
            value = series.values[row]
            if value is not None and _is_chance(series):
                x = place(scale * value)
                yield _path(x, top + 2, x, top + height - 2, f"tick s{number % COLOURS}")
        for line, (number, series) in enumerate(measured):
            yield from _interval(series, number, row, scale, place, top + ROW * (line + 0.5))


def _interval(series: Series, number: int, row: int, scale: float, place: Place, y: float) -> Shapes:
    """Yield a bar with a dot. A value without an interval is hollow, and says so."""
    colour = number % COLOURS
    low, high = (bounds[row] if bounds else None for bounds in (series.low, series.high))
    is_bounded = low is not None and high is not None
    if low is not None and high is not None:
        yield _path(place(scale * low), y, place(scale * high), y, f"span s{colour}")
    if (value := series.values[row]) is None:
        return
    x = place(scale * value)
    yield _dot(colour, x, y, 4, "dot" if is_bounded else "hollow")
    if not is_bounded and x > WIDTH * 0.75:
        yield _text(x - 8, y + 4, "no interval", "end")
    elif not is_bounded:
        yield _text(x + 8, y + 4, "no interval", "start")


# Places


def _sketch(sketch: Sketch) -> Shapes:
    """Yield places, paths over them and a scale, alike in both directions."""
    spots = [spot for spots in (*sketch.places.values(), *sketch.paths) for spot in spots]
    if not spots:
        return
    (west, east), (south, north) = ((min(ends), max(ends)) for ends in zip(*spots, strict=True))
    room = WIDTH - 40, HEIGHT * 1.4 - 60
    scale = min(room[0] / max(500.0, east - west), room[1] / max(500.0, north - south))

    def place(spot: tuple[float, float]) -> tuple[float, float]:
        return 20 + (spot[0] - west) * scale, 20 + (north - spot[1]) * scale

    for path in sketch.paths:
        line = Markup('<polyline class="line way" points="{}"/>')
        yield line.format(_points(map(place, path[:POINTS])))
    for number, places in enumerate(sketch.places.values()):
        radius = 4 + 0.7 * (len(sketch.places) - number)  # rings, where several kinds are at one place
        yield from (_dot(number % COLOURS, *place(spot), radius) for spot in places[:POINTS])
    metres, bottom = _ticks((0.0, room[0] / scale / 2))[-1], HEIGHT * 1.4 - 8
    yield _path(20, bottom, 20 + metres * scale, bottom, "reference")
    yield _text(26 + metres * scale, bottom + 4, f"{metres / 1000:g} km", "start")


# Numbers and shapes


def _ends(series: Series) -> list[float]:
    return [end for end in (*series.values, *series.low, *series.high) if end is not None]


def _axis(bounds: Range, start: float, end: float) -> Place:
    low, high = bounds
    return lambda value: start + (value - low) / ((high - low) or 1.0) * (end - start)


def _around(values: Sequence[float]) -> Range:
    """Return bounds with some room around values; from 0 where that is near."""
    low, high = min(values), max(values)
    room = 0.05 * (high - low) or abs(high) * 0.1 or 1.0
    return 0.0 if 0 <= low <= 0.4 * high else low - room, high + room


def _ticks(bounds: Range) -> list[float]:
    """Return about five round numbers within bounds."""
    low, high = bounds
    if not high > low:
        return [low]
    rough = (high - low) / 5
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * digit for digit in (1, 2, 2.5, 5, 10) if power * digit >= rough)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(step * number, 12) for number in range(first, last + 1)]


def _number(value: float) -> str:
    if abs(value) >= 10_000:
        return f"{value / 1000:g}k"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _path(x: float, y: float, to_x: float, to_y: float, kind: str) -> Markup:
    path = Markup('<path class="{}" d="M{:.1f} {:.1f}L{:.1f} {:.1f}"/>')
    return path.format(kind, x, y, to_x, to_y)


def _points(spots: Iterable[tuple[float, float]]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in spots)


def _dot(colour: int, x: float, y: float, radius: float, kind: str = "dot") -> Markup:
    dot = Markup('<circle class="{} s{}" cx="{:.1f}" cy="{:.1f}" r="{:g}"/>')
    return dot.format(kind, colour, x, y, radius)


def _text(x: float, y: float, text: str, anchor: str) -> Markup:
    element = Markup('<text x="{:.1f}" y="{:.1f}" text-anchor="{}">{}</text>')
    return element.format(x, y, anchor, on_one_line(text))


def _bar(number: int, x: float, width: float, top: float, bottom: float) -> Markup:
    shape = Markup('<rect class="bar s{}" x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}"/>')
    return shape.format(number % COLOURS, x, top, max(0.5, width), bottom - top)
