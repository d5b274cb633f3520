"""Cards of residents: the day, its places and the replies (docs/design.md, sections 5 and 9).

Places are drawn where the map is available.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from harness.benchmark import Cards, Task
from harness.benchmarks.agents.city import City
from harness.benchmarks.dailymobility.day import INTENTIONS, clock
from harness.benchmarks.dailymobility.summary import ribbon
from harness.benchmarks.rendering import quotes
from harness.document import Block, Heading, Paragraph, Sketch, Table
from harness.model import JSON, Completion

MAX_REPLIES = 4
"""Of an agent's that are shown; it asks up to a hundred times a day."""


@dataclass(frozen=True)
class ResidentCards(Cards):
    """`city` is None where the map is not available."""

    columns = ("radius, km", "places", "invalid")
    city: City | None = None

    def figures(self, record: JSON) -> tuple[str, ...]:
        radius = f"{record['gyration_radius_m'] / 1000:.1f}"
        return (
            radius,
            str(record["daily_location_number"]),
            record["invalid"] or "",
        )

    def together(self, records: Sequence[JSON]) -> Iterator[Block]:
        """Yield where the residents of the cards are, by what they do there."""
        # A page can be made of a run's folder alone, without the map.
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

        numbers = np.array(record["intentions"])
        yield ribbon(
            "The day",
            "",
            (numbers[:, None] == [*INTENTIONS]).astype(float).tolist(),
        )
        if self.city is None:
            yield Paragraph("The map was not at hand: no places are drawn.")
        else:
            points = [_point(aoi, self.city) for aoi in record["places"]]
            # A stay of several half hours is one point of the path.
            path = tuple([point for point, _ in groupby(filter(None, points))])
            yield Sketch(
                "Places, in the order of the day",
                _places([record], self.city),
                (path,),
            )

        yield _plan(record, task)
        slots: Counter[int] = Counter(record["intentions"])
        hours = [f"{INTENTIONS[number]} {slots[number] / 2:g}" for number in sorted(slots)]
        yield Paragraph(f"Hours: {' · '.join(hours)}.")
        for name in ("repairs", "warnings"):
            if record[name]:
                yield Paragraph(f"{name.capitalize()}: {', '.join(record[name])}.")

        for number, completion in enumerate(replies[:MAX_REPLIES], 1):
            yield from quotes(completion, f"Reply {number} of {len(replies)}")


def _places(records: Sequence[JSON], city: City) -> dict[str, tuple[tuple[float, float], ...]]:
    """Return each place once, by intention."""
    points: dict[int, dict[tuple[float, float], None]] = {number: {} for number in INTENTIONS}
    for data in records:
        for number, aoi in zip(data["intentions"], data["places"], strict=True):
            point = _point(aoi, city)
            if point:
                points[number][point] = None

    return {INTENTIONS[number]: tuple(places) for number, places in points.items()}


def _point(aoi: int | None, city: City) -> tuple[float, float] | None:
    if aoi is None or aoi not in city.aois:
        return None
    place = city.aois[aoi]
    return round(place.x, 1), round(place.y, 1)


def _plan(data: JSON, task: Task | None) -> Table:
    """Return the day as stretches of one intention at one place."""
    place_names: dict[int | None, str] = {None: "on the way"}
    if task:
        # Work last: home and work may be the same place.
        place_names |= {task.given.home: "home", task.given.work: "work"}

    rows = []
    start = 0
    for (number, aoi), slots in groupby(zip(data["intentions"], data["places"], strict=True)):
        end = start + len(list(slots))
        place = place_names.get(aoi, f"AOI {aoi}")
        rows.append((f"{clock(start)} to {clock(end)}", INTENTIONS[number], place))
        start = end

    return Table(("time", "intention", "place"), tuple(rows))
