"""Cards of residents: the day, its places and the replies (docs/design.md, sections 5 and 9).

Places are drawn where the map is available.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby

from harness.benchmark import Task
from harness.benchmarks.dailymobility.city import City
from harness.benchmarks.dailymobility.day import INTENTIONS
from harness.benchmarks.dailymobility.summary import ribbon
from harness.benchmarks.rendering import quotes
from harness.model import JSON, Block, Completion, Heading, Paragraph, Sketch, Table

COLUMNS = ("radius, km", "places", "invalid")
REPLIES_SHOWN = 4
"""Of an agent's; it asks up to a hundred times a day."""


def figures(data: JSON) -> tuple[str, ...]:
    """Return a resident's figures, under `COLUMNS`."""
    return f"{data['gyration_radius_m'] / 1000:.1f}", str(data["daily_location_number"]), data["invalid"] or ""


def together(records: Sequence[JSON], city: City | None) -> Iterator[Block]:
    """Where the residents of the cards are, by what they do there."""
    if city is not None and records:
        yield Heading("Places on the map")
        yield Paragraph(f"The places of the {len(records)} residents that can be picked below, by what they do there.")
        yield Sketch("Places, by what is done there", _places(records, city))


def _places(records: Sequence[JSON], city: City) -> dict[str, tuple[tuple[float, float], ...]]:
    """Return each place once, by intention."""
    found: dict[str, dict[tuple[float, float], None]] = {name: {} for name in INTENTIONS.values()}
    for data in records:
        for number, aoi in zip(data["intentions"], data["places"], strict=True):
            if at := _at(aoi, city):
                found[INTENTIONS[number]][at] = None
    return {name: tuple(places) for name, places in found.items()}


def _at(aoi: int | None, city: City) -> tuple[float, float] | None:
    place = None if aoi is None else city.aois.get(aoi)
    return (round(place.x, 1), round(place.y, 1)) if place else None


def card(data: JSON, task: Task | None, replies: Sequence[Completion], city: City | None) -> Iterator[Block]:
    if data["invalid"]:
        yield Paragraph(f"Invalid day ({data['invalid']}): scored as a day at home with the intention other.")
    taken = [[float(number == one) for number in INTENTIONS] for one in data["intentions"]]
    yield ribbon("The day", "", taken)
    if city is None:
        yield Paragraph("The map was not at hand: no places are drawn.")
    else:
        at = [_at(aoi, city) for aoi in data["places"]]
        path = tuple(place for place, _ in groupby(place for place in at if place))
        yield Sketch("Places, in the order of the day", _places([data], city), (path,))
    yield _plan(data, task)
    spent: Counter[int] = Counter(data["intentions"])
    hours = [f"{name} {spent[number] / 2:g}" for number, name in INTENTIONS.items() if spent[number]]
    yield Paragraph(f"Hours: {' · '.join(hours)}.")
    for name in ("repairs", "warnings"):
        if data[name]:
            yield Paragraph(f"{name.capitalize()}: {', '.join(data[name])}.")
    for order, completion in enumerate(replies[:REPLIES_SHOWN], 1):
        yield from quotes(completion, f"Reply {order} of {len(replies)}")


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
