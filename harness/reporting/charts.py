"""Charts and sketches as SVG, drawn on the server: they need no script. Colours are classes of the style sheet."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence

from markupsafe import Markup, escape

from harness.document import Chart, Series, Sketch

WIDTH, HEIGHT, ROW = 420, 210, 17
"""Units of a picture, which is as wide as its place; of a row of intervals."""
LEFT, RIGHT, TOP, BOTTOM = 48, 10, 8, 36
NAMES = 150
"""Room for the names of rows."""
COLOURS = 8
POINTS = 400
"""Most points of a line, and most rows."""
Place = Callable[[float], float]


def drawn(block: Chart | Sketch) -> Markup:
    """Return a picture, with a legend if it has several series; empty if there is nothing to draw."""
    if isinstance(block, Sketch):
        inside, names = list(_sketch(block)), list(block.places)
        height = HEIGHT * 1.4
    else:
        draw = {"curve": _curve, "intervals": _intervals, "histogram": _histogram, "ribbon": _ribbon}[block.kind]
        inside, names = list(draw(block)), [one.name for one in block.series]
        rows = min(len(block.x), POINTS) * max(1, len(block.series))
        height = TOP + BOTTOM + ROW * rows if block.kind == "intervals" else HEIGHT
    if not inside:
        return Markup("")
    label = escape(block.title)
    svg = Markup('<svg class="plot" viewBox="0 0 {} {:g}" role="img" aria-label="{}">{}</svg>').format(
        WIDTH, height, label, Markup("").join(inside)
    )
    return svg + _legend(names) if len(names) > 1 else svg


def _legend(names: Sequence[str]) -> Markup:
    item = Markup('<li><span class="swatch s{}"></span>{}</li>')
    return Markup('<ul class="legend">{}</ul>').format(
        Markup("").join(item.format(place % COLOURS, name) for place, name in enumerate(names))
    )


def _curve(chart: Chart) -> Iterator[Markup]:
    xs = [float(x) for x in chart.x if isinstance(x, int | float)]
    known = [value for one in chart.series for value in (*one.values, *one.low, *one.high) if value is not None]
    if len(xs) != len(chart.x) or not xs or not known:
        return
    low, high = (0.0, 1.0) if chart.percent and min(known) >= 0 and max(known) <= 1 else _spread(known)
    across, up = _axis(min(xs), max(xs), LEFT, WIDTH - RIGHT), _axis(low, high, HEIGHT - BOTTOM, TOP)
    yield from _vertical(chart, low, high, up)
    yield from _horizontal(_ticks(min(xs), max(xs)), across, HEIGHT - BOTTOM, chart.x_label)
    every = max(1, math.ceil(len(xs) / POINTS))
    for place, one in enumerate(chart.series):
        if one.low and one.high:
            yield _band(place, xs[::every], one.low[::every], one.high[::every], across, up)
        yield from _line(place, xs[::every], one.values[::every], across, up)


def _line(
    place: int, xs: Sequence[float], values: Sequence[float | None], across: Place, up: Place
) -> Iterator[Markup]:
    """Yield the pieces of a line, which has a gap where there is no value; a single point as a dot."""
    piece: list[tuple[float, float]] = []
    for x, value in (*zip(xs, values, strict=True), (0.0, None)):
        if value is not None:
            piece.append((across(x), up(value)))
            continue
        if len(piece) == 1:
            yield _dot(place, *piece[0], 2)
        elif piece:
            yield Markup('<polyline class="line s{}" points="{}"/>').format(place % COLOURS, _points(piece))
        piece = []


def _band(
    place: int,
    xs: Sequence[float],
    low: Sequence[float | None],
    high: Sequence[float | None],
    across: Place,
    up: Place,
) -> Markup:
    both = [(x, a, b) for x, a, b in zip(xs, low, high, strict=True) if a is not None and b is not None]
    points = [(across(x), up(a)) for x, a, _ in both] + [(across(x), up(b)) for x, _, b in reversed(both)]
    return Markup('<polygon class="band s{}" points="{}"/>').format(place % COLOURS, _points(points))


def _intervals(chart: Chart) -> Iterator[Markup]:
    rows = [str(x) for x in chart.x[:POINTS]]
    ends = [end for one in chart.series for end in (*one.values, *one.low, *one.high) if end is not None]
    if not rows or not ends:
        return
    scale = 100.0 if chart.percent else 1.0
    low, high = _spread([scale * end for end in ends], zero=min(ends) < 0 < max(ends))
    across, bottom = _axis(low, high, NAMES, WIDTH - RIGHT), TOP + ROW * len(rows) * len(chart.series)
    yield from _horizontal(_ticks(low, high), across, bottom, chart.x_label if chart.x_label else chart.y_label)
    if low < 0 < high:
        yield _path(across(0), TOP, across(0), bottom, "zero")
    for row, name in enumerate(rows):
        middle = TOP + ROW * len(chart.series) * (row + 0.5)
        yield _text(NAMES - 6, middle + 4, name if len(name) <= 24 else name[:23] + "…", "end")
        for place, one in enumerate(chart.series):
            yield from _interval(one, place, row, scale, across, TOP + ROW * (row * len(chart.series) + place + 0.5))


def _interval(one: Series, place: int, row: int, scale: float, across: Place, height: float) -> Iterator[Markup]:
    low, high = (ends[row] if ends else None for ends in (one.low, one.high))
    if low is not None and high is not None:
        yield _path(across(scale * low), height, across(scale * high), height, f"line s{place % COLOURS}")
    if (value := one.values[row]) is not None:
        yield _dot(place, across(scale * value), height, 3.5)


def _histogram(chart: Chart) -> Iterator[Markup]:
    edges = [float(x) for x in chart.x if isinstance(x, int | float)]
    most = max((value for one in chart.series for value in one.values if value is not None), default=0)
    if len(edges) != len(chart.x) or len(edges) < 2 or most <= 0:
        return
    across, up = _axis(edges[0], edges[-1], LEFT, WIDTH - RIGHT), _axis(0, most, HEIGHT - BOTTOM, TOP)
    yield from _vertical(chart, 0, most, up)
    yield from _horizontal(_ticks(edges[0], edges[-1]), across, HEIGHT - BOTTOM, chart.x_label)
    for place, one in enumerate(chart.series):
        for left, right, value in zip(edges, edges[1:], one.values, strict=False):
            if value:
                width = max(0.5, across(right) - across(left) - 1)
                yield _rectangle(across(left) + 0.5, up(value), width, up(0) - up(value), place)


def _ribbon(chart: Chart) -> Iterator[Markup]:
    """Shares over x, stacked; without numbers on x each column is as wide as any other."""
    columns = min(len(chart.x), POINTS)
    if not columns:
        return
    up = _axis(0, 1, HEIGHT - BOTTOM, TOP)
    wide = (WIDTH - LEFT - RIGHT) / columns
    yield from _vertical(chart, 0, 1, up)
    yield _text(WIDTH - RIGHT, HEIGHT - BOTTOM + 30, chart.x_label, "end")
    for number in range(0, columns, max(1, columns // 6)):
        yield _text(LEFT + wide * number, HEIGHT - BOTTOM + 15, _number(chart.x[number]), "start")
    below = [0.0] * columns
    for place, one in enumerate(chart.series):
        for number, value in enumerate(one.values[:columns]):
            if value:
                top = below[number] + value
                yield _rectangle(LEFT + wide * number, up(top), wide, up(below[number]) - up(top), place)
                below[number] = top


def _sketch(sketch: Sketch) -> Iterator[Markup]:
    """Places, and paths over them, at one scale in both directions."""
    every = [place for places in sketch.places.values() for place in places]
    if not every:
        return
    (west, east), (south, north) = ((min(of), max(of)) for of in zip(*every, strict=True))
    scale = min((WIDTH - 40) / max(1.0, east - west), (HEIGHT * 1.4 - 40) / max(1.0, north - south))

    def at(place: tuple[float, float]) -> tuple[float, float]:
        return 20 + (place[0] - west) * scale, 20 + (north - place[1]) * scale

    for path in sketch.paths:
        yield Markup('<polyline class="line way" points="{}"/>').format(_points(map(at, path[:POINTS])))
    for number, places in enumerate(sketch.places.values()):
        yield from (_dot(number, *at(place), 4) for place in places[:POINTS])


def _vertical(chart: Chart, low: float, high: float, up: Place) -> Iterator[Markup]:
    share = chart.percent and chart.kind != "histogram"
    for tick in _ticks(low, high):
        yield _path(LEFT, up(tick), WIDTH - RIGHT, up(tick), "grid")
        yield _text(LEFT - 5, up(tick) + 4, f"{100 * tick:g} %" if share else _number(tick), "end")
    yield _text(2, HEIGHT - 4, chart.y_label, "start")


def _horizontal(ticks: Iterable[float], across: Place, bottom: float, label: str) -> Iterator[Markup]:
    for tick in ticks:
        yield _path(across(tick), TOP, across(tick), bottom, "grid")
        yield _text(across(tick), bottom + 14, _number(tick), "middle")
    yield _text(WIDTH - RIGHT, bottom + 30, label, "end")


def _axis(low: float, high: float, start: float, end: float) -> Place:
    span = (high - low) or 1.0
    return lambda value: start + (value - low) / span * (end - start)


def _spread(values: Sequence[float], zero: bool = False) -> tuple[float, float]:
    """Return bounds with some room around values; from 0 where that is near."""
    low, high = min(values), max(values)
    room = 0.05 * (high - low) or abs(high) * 0.1 or 1.0
    return (0.0 if 0 <= low <= 0.4 * high and not zero else low - room), high + room


def _ticks(low: float, high: float) -> list[float]:
    """Return about five round numbers within bounds."""
    if not high > low:
        return [low]
    rough = (high - low) / 5
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * digit for digit in (1, 2, 2.5, 5, 10) if power * digit >= rough)
    first = math.ceil(low / step - 1e-9)
    return [round(step * number, 12) for number in range(first, math.floor(high / step + 1e-9) + 1)]


def _number(value: float | int | str) -> str:
    if isinstance(value, str):
        return value
    return f"{value / 1000:g}k" if abs(value) >= 10_000 else f"{value:.4g}"


def _path(x: float, y: float, to_x: float, to_y: float, kind: str) -> Markup:
    return Markup('<path class="{}" d="M{:.1f} {:.1f}L{:.1f} {:.1f}"/>').format(kind, x, y, to_x, to_y)


def _points(places: Iterable[tuple[float, float]]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in places)


def _dot(place: int, x: float, y: float, radius: float) -> Markup:
    dot = Markup('<circle class="dot s{}" cx="{:.1f}" cy="{:.1f}" r="{:g}"/>')
    return dot.format(place % COLOURS, x, y, radius)


def _text(x: float, y: float, words: str, anchor: str) -> Markup:
    return Markup('<text x="{:.1f}" y="{:.1f}" text-anchor="{}">{}</text>').format(x, y, anchor, words)


def _rectangle(x: float, y: float, width: float, height: float, place: int) -> Markup:
    shape = Markup('<rect class="bar s{}" x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}"/>')
    return shape.format(place % COLOURS, x, y, width, height)
