"""Cards of residents: the day, its places and the replies (docs/design.md, sections 5 and 9).

Places are drawn where the map is available.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from harness.benchmark import Cards, Task
from harness.benchmarks.agents.city import City
from harness.benchmarks.dailymobility.day import INTENTIONS, clock
from harness.benchmarks.dailymobility.summary import ribbon
from harness.benchmarks.rendering import quotes
from harness.document import Block, Heading, Paragraph, Sketch, Table
from harness.model import JSON, Completion

REPLIES_SHOWN = 4
"""Of an agent's; it asks up to a hundred times a day."""


@dataclass(frozen=True)
class ResidentCards(Cards):
    """`city` is None where the map is not available."""

    columns = ("radius, km", "places", "invalid")
    city: City | None = None

    def figures(self, record: JSON) -> tuple[str, ...]:
        radius = f"{record['gyration_radius_m'] / 1000:.1f}"
        return radius, str(record["daily_location_number"]), record["invalid"] or ""

    def together(self, records: Sequence[JSON]) -> Iterator[Block]:
        """Yield where the residents of the cards are, by what they do there."""
        if self.city is not None and records:
            yield Heading("Places on the map")
            yield Paragraph(
                f"The places of the {len(records)} residents that can be picked below, by what they"
                " do there."
            )
            yield Sketch("Places, by what is done there", _places(records, self.city))

    def card(
        self, record: JSON, task: Task | None, replies: Sequence[Completion]
    ) -> Iterator[Block]:
        if record["invalid"]:
            yield Paragraph(
                f"Invalid day ({record['invalid']}): scored as a day at home with the intention"
                " other."
            )
        taken = [[float(number == one) for number in INTENTIONS] for one in record["intentions"]]
        yield ribbon("The day", "", taken)
        if self.city is None:
            yield Paragraph("The map was not at hand: no places are drawn.")
        else:
            at = [_at(aoi, self.city) for aoi in record["places"]]
            path = tuple(place for place, _ in groupby(place for place in at if place))
            yield Sketch("Places, in the order of the day", _places([record], self.city), (path,))
        yield _plan(record, task)
        spent: Counter[int] = Counter(record["intentions"])
        hours = [
            f"{name} {spent[number] / 2:g}" for number, name in INTENTIONS.items() if spent[number]
        ]
        yield Paragraph(f"Hours: {' · '.join(hours)}.")
        for name in ("repairs", "warnings"):
            if record[name]:
                yield Paragraph(f"{name.capitalize()}: {', '.join(record[name])}.")
        for order, completion in enumerate(replies[:REPLIES_SHOWN], 1):
            yield from quotes(completion, f"Reply {order} of {len(replies)}")


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


def _plan(data: JSON, task: Task | None) -> Table:
    """Return the day as stretches of one intention at one place."""
    rows, slot = [], 0
    for (number, aoi), slots in groupby(zip(data["intentions"], data["places"], strict=True)):
        end = slot + len(list(slots))
        rows.append((f"{clock(slot)} to {clock(end)}", INTENTIONS[number], _place(aoi, task)))
        slot = end
    return Table(("time", "intention", "place"), tuple(rows))


def _place(aoi: int | None, task: Task | None) -> str:
    if aoi is None:
        return "on the way"
    known = {task.given.home: "home", task.given.work: "work"} if task else {}
    return known.get(aoi, f"AOI {aoi}")
