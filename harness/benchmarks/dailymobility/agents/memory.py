"""What an agent remembers: its status by key, and a stream of what happened.

Methods and parameters are those of `agentsociety` 1.5.7. Where upstream searches by embedding, here whoever shares
most words with the query is found first: no model, no download, and the same on every machine.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from copy import deepcopy
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

from harness.benchmarks.dailymobility.agents.interface import Backstage, Bounded, names
from harness.benchmarks.dailymobility.day import Resident

MOST_REMEMBERED = 1000
NOTHING = "Nothing"
"""What a search says that finds nothing."""

UNKNOWN = (
    "name gender education skill occupation family_consumption consumption personality residence city race religion"
    " marriage_status"
)
"""Keys that upstream gives every citizen, with the value `unknown` where the profile has none."""

OTHERS = {
    "age": 20,
    "income": 5000,
    "currency": 30000,
    "background_story": "No background story",
    "social_network": [],
}

Found = TypeVar("Found")
_WORD = re.compile(r"[\u3400-\u9fff]|\w+")
"""A Chinese character is a word: there are no spaces to go by."""


class KVMemory(Bounded):
    """Values by key. What is read is a copy; what is written is kept as it is."""

    LACKS = names("initialize_embeddings should_embed")

    def __init__(self, backstage: Backstage, data: dict[Any, Any]) -> None:
        self._backstage = backstage
        self._data = data

    async def get(self, key: Any, default_value: Any = None) -> Any:
        """Raises `KeyError` for an unknown key without default; None is no default, as upstream has it."""
        if key in self._data:
            return deepcopy(self._data[key])
        if default_value is None:
            raise KeyError(f"no attribute {key!r} in the memory")
        return default_value

    async def update(self, key: Any, value: Any, mode: str = "replace") -> None:
        """`merge` adds to a set, dict, list or deque, and replaces anything else. A new key is written in any mode."""
        held = self._data.get(key)
        if key not in self._data or mode == "replace":
            self._data[key] = value
        elif mode != "merge":
            raise ValueError(f"unknown mode of update: {mode!r}")
        elif isinstance(held, set | dict):
            held.update(value)
        elif isinstance(held, list | deque):
            held.extend(value)
        else:
            self._data[key] = value

    async def search(self, query: str, top_k: int = 3, filter: Mapping[str, Any] | None = None) -> str:
        """A line for each of the `top_k` values that share most words with the query. `filter` may name a `key`."""
        wanted = (filter or {}).get("key")
        lines = [f"- My {key} is {value}" for key, value in self._data.items() if wanted in (None, key)]
        return "\n".join(nearest(query, lines, str)[:top_k]) or NOTHING

    async def export(self, keys: Iterable[Any]) -> dict[Any, Any]:
        """Copies of those of the keys that are known."""
        return {key: deepcopy(self._data[key]) for key in keys if key in self._data}


@dataclass(slots=True)
class Event:
    """Something that happened: on which day, at which second of it, in which AOI or on which lane."""

    id: int
    cognition_id: int | None
    topic: str
    location: int
    description: str
    day: int
    t: int

    def line(self, thought: str) -> str:
        time = f"{self.t // 3600:02d}:{self.t // 60 % 60:02d}:{self.t % 60:02d}"
        related = f"\n  Related cognition: {thought}" if thought else ""
        return (
            f"- [{self.topic}]: {self.description} [day: {self.day}, time: {time}, location: {self.location}]{related}"
        )


class StreamMemory(Bounded):
    """The last thousand events, oldest first."""

    LACKS = names("format_memory get_related_cognition")

    def __init__(self, backstage: Backstage, status: KVMemory) -> None:
        self._backstage = backstage
        self._status = status
        self._events: deque[Event] = deque(maxlen=MOST_REMEMBERED)
        self._next = 0

    async def add(self, topic: str, description: str) -> int:
        """The number of the new event. It happens now, at the position that the status has."""
        position = await self._status.get("position")
        at = position.get("aoi_position") or position.get("lane_position")
        day, t = divmod(self._backstage.tick, 86400)
        number = self._next
        self._next += 1
        location = at.get("aoi_id", at.get("lane_id"))
        self._events.append(Event(number, None, topic, location, description, day, t))
        return number

    async def search(
        self,
        query: str,
        topic: str | None = None,
        top_k: int = 3,
        day_range: tuple[int, int] | None = None,
        time_range: tuple[int, int] | None = None,
    ) -> str:
        """A line for each of the `top_k` events that share most words with the query, the latest first.

        Both ends of a range belong to it. An empty query finds the latest events.
        """
        events = [
            event
            for event in reversed(self._events)
            if (not topic or event.topic == topic)
            and (not day_range or day_range[0] <= event.day <= day_range[1])
            and (not time_range or time_range[0] <= event.t <= time_range[1])
        ]
        found = nearest(query, events, lambda event: event.description) if query.strip() else events
        return self._lines(found[:top_k]) or NOTHING

    async def search_today(self, query: str = "", topic: str | None = None, top_k: int = 100) -> str:
        today = self._backstage.tick // 86400
        return await self.search(query, topic, top_k, (today, today))

    async def get_by_ids(self, memory_ids: Iterable[int]) -> str:
        wanted = set(memory_ids)
        return self._lines([event for event in self._events if event.id in wanted])

    async def add_cognition_to_memory(self, memory_ids: Iterable[int], cognition: str) -> None:
        """A thought about events, an event in itself."""
        wanted = set(memory_ids)
        of = [event for event in self._events if event.id in wanted]
        number = await self.add("cognition", cognition)
        for event in of:
            event.cognition_id = number

    async def get_all(self) -> list[dict[str, Any]]:
        return [asdict(event) for event in self._events]

    def _lines(self, events: list[Event]) -> str:
        thoughts = {event.id: event.description for event in self._events if event.topic == "cognition"}
        latest_first = sorted(events, key=lambda event: event.id, reverse=True)
        return "\n".join(
            event.line("" if event.cognition_id is None else thoughts.get(event.cognition_id, ""))
            for event in latest_first
        )


class Memory(Bounded):
    LACKS = names("initialize_embeddings")

    def __init__(self, backstage: Backstage, data: dict[Any, Any]) -> None:
        self._backstage = backstage
        self.status = KVMemory(backstage, data)
        self.stream = StreamMemory(backstage, self.status)


def first_status(resident: Resident, attributes: Iterable[Any]) -> dict[Any, Any]:
    """What a citizen's status holds at first; `attributes` are the agent class's own, with defaults.

    As upstream, a field of the profile that is neither a citizen's nor declared by the class is left out, `id` is
    there once the agent's `init` has run, and what the simulator says from the first step on.
    """
    known = {
        **dict.fromkeys(UNKNOWN.split(), "unknown"),
        **deepcopy(OTHERS),
        **{each.name: deepcopy(each.default_or_value) for each in attributes},
    }
    return {
        **known,
        **{key: deepcopy(value) for key, value in resident.profile.items() if key in known and key != "id"},
        "home": {"aoi_position": {"aoi_id": resident.home}},
        "work": {"aoi_position": {"aoi_id": resident.work}},
    }


def nearest(query: str, items: Iterable[Found], text: Callable[[Found], str]) -> list[Found]:
    """Items that share a word with the query, those that share most first, and of equals the earlier one."""
    wanted = set(_WORD.findall(query.lower()))
    shared = [(len(wanted.intersection(_WORD.findall(text(item).lower()))), item) for item in items]
    return [item for count, item in sorted(shared, key=lambda each: -each[0]) if count]
