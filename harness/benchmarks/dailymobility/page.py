"""The page of a report: tiles, pictures and tables from the JSON report alone, and cards of residents from records.

Source: docs/design.md, sections 5 and 9. Places are drawn where the map is at hand.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby

from harness.benchmark import Task
from harness.benchmarks.dailymobility import summary
from harness.benchmarks.dailymobility.city import City
from harness.benchmarks.dailymobility.day import INTENTIONS, SLOTS
from harness.benchmarks.dailymobility.protocols import BINS, LOCATIONS, METRICS, PROPORTIONS, RADIUS
from harness.benchmarks.dailymobility.protocols import HEADLINE as ALIGNED
from harness.benchmarks.dailymobility.scores import FINAL
from harness.benchmarks.rendering import called, quotes, reply_text
from harness.model import (
    JSON,
    Block,
    Card,
    Chart,
    Completion,
    Heading,
    Page,
    Paragraph,
    Quote,
    Series,
    Sketch,
    Table,
    Tile,
)

HOURS = tuple(slot / 2 for slot in range(SLOTS))
SIDES = {"ground_truth": "ground truth", "scored": "scored"}
REPLIES_SHOWN = 4
"""Of an agent's; it asks up to a hundred times a day."""
COARSER = 5
"""Bins of the aligned protocol that a bar of a picture stands for."""


def page(data: JSON) -> Page:
    of = data["coverage"]
    covered = f"{of['scored_users']} of {of['expected_users']} residents are scored, {of['failed_users']} failed"
    missing = "" if of["complete"] else f"INCOMPLETE: {covered}"
    title = f"{called(data)} · DailyMobility ({data['subset']})"
    return Page(title, missing, tuple(_tiles(data)), tuple(_blocks(data)))


def _tiles(data: JSON) -> Iterator[Tile]:
    of, score, ceiling = data["coverage"], data["metrics"]["Score"], data["ceiling"]
    interval = f"95 % interval {summary.span(score['ci95'], summary.percent)}"
    yield Tile(f"final score ({ALIGNED})", summary.points(data["protocols"][ALIGNED][FINAL]), interval)
    for name, found in data["protocols"].items():
        if name != ALIGNED:
            yield Tile(f"final score ({name})", summary.points(found[FINAL]))
    if ceiling:
        interval = f"95 % of the draws in {summary.span(ceiling['range95'], summary.points)}"
        yield Tile("ceiling: resampled ground truth", summary.points(ceiling[FINAL]), interval)
    yield Tile("residents scored", str(of["scored_users"]), f"of {of['expected_users']}")


def _blocks(data: JSON) -> Iterator[Block]:
    yield Paragraph(f"Run {data['name']}, model {data['model']}, subset {data['subset']}.")
    yield from map(Paragraph, data["notes"])
    yield from summary.coverage(data)
    yield Heading("Scores")
    yield summary.protocol_table(data["protocols"])
    yield from map(Paragraph, summary.undefined(data["protocols"]))
    yield from summary.trust(data)
    yield _divergences(data)
    yield from summary.valid_days(data)
    if data["coverage"]["scored_users"]:
        yield Heading("The day, by time")
        yield from _ribbons(data["day"])
        yield _slots(data["per_slot"])
    yield from summary.beside(data["beside_truth"])
    if data["coverage"]["scored_users"]:
        yield from _histograms(data["histograms"])
    yield from summary.checks(data)
    yield Heading("About the protocols")
    yield from map(Paragraph, summary.about_protocols())
    yield from summary.about_run(data)
    yield from summary.usage(data)


def _divergences(data: JSON) -> Chart:
    found = [data["metrics"][f"JSD_{metric}"] for metric in METRICS]
    bounds = [one["ci95"] or (None, None) for one in found]
    series = Series("JSD", tuple(one["value"] for one in found), *map(tuple, zip(*bounds, strict=True)))
    title = "Divergences from the ground truth, with 95 % intervals (0 is best)"
    names = tuple(metric.replace("_", " ") for metric in METRICS)
    return Chart("intervals", title, names, "JSD", "", (series,), percent=False)


def _ribbons(day: JSON) -> Iterator[Chart]:
    for side, name in SIDES.items():
        yield _ribbon(f"What residents do, {name}: share of them with each intention", "% of residents", day[side])


def _ribbon(title: str, label: str, slots: Sequence[Sequence[float]]) -> Chart:
    series = tuple(Series(name, tuple(slot[number - 1] for slot in slots)) for number, name in INTENTIONS.items())
    return Chart("ribbon", title, HOURS, "hour", label, series)


def _slots(per_slot: Sequence[float]) -> Chart:
    title = "Divergence of the intentions at each half hour (0 is best)"
    return Chart("curve", title, HOURS, "hour", "JSD", (Series("JSD", tuple(per_slot)),), percent=False)


def _histograms(of: JSON) -> Iterator[Chart]:
    """Both sides in the bins of the aligned protocol, some of them put together."""
    width = of["reach_m"] * COARSER / BINS / 1000
    edges = tuple(round(number * width, 6) for number in range(BINS // COARSER + 2))
    title = f"Radius of gyration: the last bar is all beyond {of['reach_m'] / 1000:.1f} km"
    yield _both(title, edges, "km", {side: _coarser(of[side][RADIUS]) for side in SIDES})
    counts = {side: of[side][LOCATIONS] for side in SIDES}
    numbers = tuple(number - 0.5 for number in range(len(counts["scored"]) + 1))
    yield _both("Places in a day: the last bar is all beyond 10", numbers, "places", counts)
    shares = {side: _coarser(of[side][PROPORTIONS]) for side in SIDES}
    tenths = tuple(number * COARSER / BINS for number in range(BINS // COARSER + 1))
    yield _both("Shares of the day that an intention takes, all seven pooled", tenths, "share of the day", shares)


def _coarser(shares: Sequence[float]) -> list[float]:
    return [sum(shares[at : at + COARSER]) for at in range(0, len(shares), COARSER)]


def _both(title: str, edges: tuple[float, ...], label: str, sides: dict[str, list[float]]) -> Chart:
    series = tuple(Series(SIDES[side], tuple(shares)) for side, shares in sides.items())
    return Chart("histogram", title, edges, label, "%", series)


class UserCards:
    """Cards of residents; places are drawn where the map is at hand."""

    columns = ("radius, km", "places", "invalid")
    user = "resident"

    def __init__(self, city: City | None) -> None:
        self._city = city

    def mark(self, kind: str) -> bytes:
        return b'"invalid":"%s"' % kind.encode()

    def card(self, data: JSON, task: Task | None, replies: Sequence[Completion]) -> Card:
        radius = f"{data['gyration_radius_m'] / 1000:.1f}"
        figures = (radius, str(data["daily_location_number"]), data["invalid"] or "")
        return Card(str(data["user_id"]), figures, tuple(self._blocks(data, task, replies)))

    def missing(self, tasks: bool) -> str:
        return "" if self._city else "The map was not at hand: no places are drawn."

    def together(self, records: Sequence[JSON]) -> tuple[Block, ...]:
        """Where the residents of the cards are, by what they do there."""
        if self._city is None or not records:
            return ()
        return (
            Heading("Places on the map"),
            Paragraph(f"The places of the {len(records)} residents that can be picked below, by what they do there."),
            Sketch("Places, by what is done there", self._places(records)),
        )

    def example(self, data: JSON, replies: Sequence[Completion], kind: str) -> str | None:
        return reply_text(replies[-1]) if replies and data["invalid"] == kind else None

    def _places(self, records: Sequence[JSON]) -> dict[str, tuple[tuple[float, float], ...]]:
        """By intention, each place once."""
        found: dict[str, dict[tuple[float, float], None]] = {name: {} for name in INTENTIONS.values()}
        for data in records:
            for number, aoi in zip(data["intentions"], data["places"], strict=True):
                if at := self._at(aoi):
                    found[INTENTIONS[number]][at] = None
        return {name: tuple(places) for name, places in found.items()}

    def _at(self, aoi: int | None) -> tuple[float, float] | None:
        place = self._city.aois.get(aoi) if self._city and aoi is not None else None
        return (round(place.x, 1), round(place.y, 1)) if place else None

    def _blocks(self, data: JSON, task: Task | None, replies: Sequence[Completion]) -> Iterator[Block]:
        if data["invalid"]:
            yield Paragraph(f"Invalid day ({data['invalid']}): scored as a day at home with the intention other.")
        taken = [[float(number == one) for number in INTENTIONS] for one in data["intentions"]]
        yield _ribbon("The day", "", taken)
        if self._city is not None:
            at = [self._at(aoi) for aoi in data["places"]]
            path = tuple(place for place, _ in groupby(place for place in at if place))
            yield Sketch("Places, in the order of the day", self._places([data]), (path,))
        yield _plan(data, task)
        spent: Counter[int] = Counter(data["intentions"])
        hours = [f"{name} {spent[number] / 2:g}" for number, name in INTENTIONS.items() if spent[number]]
        yield Paragraph(f"Hours: {' · '.join(hours)}.")
        for name in ("repairs", "warnings"):
            if data[name]:
                yield Paragraph(f"{name.capitalize()}: {', '.join(data[name])}.")
        yield from _replies(replies)


def _plan(data: JSON, task: Task | None) -> Table:
    """The day as stretches of one intention at one place."""
    rows, slot = [], 0
    for (number, aoi), slots in groupby(zip(data["intentions"], data["places"], strict=True)):
        end = slot + len(list(slots))
        rows.append((f"{_clock(slot)} to {_clock(end)}", INTENTIONS[number], _place(aoi, task)))
        slot = end
    return Table(("time", "intention", "place"), tuple(rows))


def _clock(slot: int) -> str:
    return f"{slot // 2:02}:{slot % 2 * 30:02}"


def _place(aoi: int | None, task: Task | None) -> str:
    if aoi is None:
        return "on the way"
    known = {task.given.home: "home", task.given.work: "work"} if task else {}
    return known.get(aoi, f"AOI {aoi}")


def _replies(replies: Sequence[Completion]) -> Iterator[Quote]:
    for order, completion in enumerate(replies[:REPLIES_SHOWN], 1):
        yield from quotes(completion, f"Reply {order} of {len(replies)}")
