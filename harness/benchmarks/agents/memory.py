"""An agent's memory: its status by key, and a stream of events.

Methods and parameters are those of `agentsociety` 1.5.7. Where upstream searches by embedding, a
search here orders by the number of words shared with the query: no model, no download, and the same
on every machine.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Mapping
from copy import deepcopy
from dataclasses import asdict, dataclass
from operator import itemgetter
from typing import Any, TypeVar

from harness.benchmarks.agents.interface import UPSTREAM, Harness, PartialInterface
from harness.benchmarks.agents.resident import Resident

MAX_EVENTS = 1000
NOTHING = "Nothing"
"""The result of a search that finds nothing."""

Item = TypeVar("Item")
_WORD = re.compile(r"[\u3400-\u9fff]|\w+")
"""A Chinese character is a word: there are no spaces to go by."""


class KVMemory(PartialInterface):
    """Values by key. Reading returns a copy; writing keeps the value itself."""

    def __init__(
        self,
        harness: Harness,
        data: dict[Any, Any],
        embedded: Mapping[Any, str],
    ) -> None:
        """`embedded` are the keys that a search looks at, each with the template of its
        sentence."""
        self._harness = harness
        self._data = data
        self._embedded = embedded

    async def get(self, key: Hashable, default_value: object = None) -> Any:
        """Raise `KeyError` for an unknown key without default; None is no default, as upstream."""
        if key in self._data:
            # As upstream: changing what was read changes nothing in the memory.
            return deepcopy(self._data[key])
        if default_value is None:
            raise KeyError(f"no attribute {key!r} in the memory")
        return default_value

    async def update(self, key: Hashable, value: Any, mode: str = "replace") -> None:
        """`merge` adds to a set, dict, list or deque, and replaces anything else. A new key is
        written in any mode."""
        current = self._data.get(key)
        if key not in self._data or mode == "replace":
            self._data[key] = value
        elif mode != "merge":
            raise ValueError(f"unknown mode of update: {mode!r}")
        elif isinstance(current, set | dict):
            current.update(value)
        elif isinstance(current, list | deque):
            current.extend(value)
        else:
            self._data[key] = value

    async def search(
        self,
        query: str,
        top_k: int = 3,
        filter: Mapping[str, Any] | None = None,
    ) -> str:
        """Return a line for each of the `top_k` embedded values that share most words with the
        query.

        `filter` may name a `key`. Each line ends in a space, as upstream.
        """
        only_key = (filter or {}).get("key")
        sentences = []
        for key, template in self._embedded.items():
            if key in self._data and only_key in (None, key):
                sentences.append(template.format(self._data[key]))
        lines = [f"- {sentence} " for sentence in nearest(query, sentences, str)[:top_k]]
        return "\n".join(lines) or NOTHING

    async def export(self, keys: Iterable[Any]) -> dict[Any, Any]:
        """Return copies by key, without unknown keys."""
        return {key: deepcopy(self._data[key]) for key in keys if key in self._data}


@dataclass(slots=True)
class Event:
    """Something that happened: on which day, at which second of it, in which AOI or on which
    lane."""

    id: int
    cognition_id: int | None
    topic: str
    location: int
    description: str
    day: int
    t: int


class StreamMemory(PartialInterface):
    """The last thousand events, oldest first.

    Upstream's searches find none of them: they ask for a mark that its `add` does not write.
    `finds` is for what they mean.
    """

    def __init__(self, harness: Harness, status: KVMemory, finds: bool) -> None:
        self._harness: Harness = harness
        self._status = status
        self._finds = finds
        self._events: deque[Event] = deque(maxlen=MAX_EVENTS)
        self._next = 0

    async def add(self, topic: str, description: str) -> int:
        """Add an event that happens now, at the position in the status. Return its number."""
        position = await self._status.get("position")
        place = position.get("aoi_position") or position.get("lane_position")
        day, second = divmod(self._harness.route.tick, 86400)
        event = Event(
            id=self._next,
            cognition_id=None,
            topic=topic,
            location=place.get("aoi_id", place.get("lane_id")),
            description=description,
            day=day,
            t=second,
        )
        self._next += 1
        self._events.append(event)
        return event.id

    async def search(
        self,
        query: str,
        topic: str | None = None,
        top_k: int = 3,
        day_range: tuple[int, int] | None = None,
        time_range: tuple[int, int] | None = None,
    ) -> str:
        """Return `Nothing`, as upstream, unless events are to be found.

        Then it is a line for each of the `top_k` events that share most words with the query, the
        latest first. Both ends of a range belong to it. An empty query finds the latest events.
        """
        # What upstream does is the default: published scores were made with it.
        if not self._finds:
            return NOTHING

        events = [
            event
            for event in reversed(self._events)
            if (not topic or event.topic == topic)
            and (not day_range or day_range[0] <= event.day <= day_range[1])
            and (not time_range or time_range[0] <= event.t <= time_range[1])
        ]
        if query.strip():
            events = nearest(query, events, lambda event: event.description)

        return self._lines(events[:top_k]) or NOTHING

    async def search_today(
        self, query: str = "", topic: str | None = None, top_k: int = 100
    ) -> str:
        today = self._harness.route.tick // 86400
        return await self.search(query, topic, top_k, (today, today))

    async def get_by_ids(self, memory_ids: Iterable[int]) -> str:
        return self._lines(self._by_ids(memory_ids))

    async def add_cognition_to_memory(self, memory_ids: Iterable[int], cognition: str) -> None:
        """Add a thought about events, which is an event itself."""
        # Before the thought itself, which may push the oldest event out.
        events = self._by_ids(memory_ids)
        number = await self.add("cognition", cognition)
        for event in events:
            event.cognition_id = number

    async def get_all(self) -> list[dict[str, Any]]:
        return [asdict(event) for event in self._events]

    def _by_ids(self, memory_ids: Iterable[int]) -> list[Event]:
        ids = set(memory_ids)
        return [event for event in self._events if event.id in ids]

    def _lines(self, events: list[Event]) -> str:
        """Return the events as text, those of the latest step first, and within a step in the order
        given."""
        thoughts: dict[int | None, str] = {
            event.id: event.description for event in self._events if event.topic == "cognition"
        }
        lines = []
        for event in sorted(events, key=lambda event: (event.day, event.t), reverse=True):
            time = f"{event.t // 3600:02d}:{event.t // 60 % 60:02d}:{event.t % 60:02d}"
            when = f"day: {event.day}, time: {time}, location: {event.location}"
            lines.append(f"- [{event.topic}]: {event.description} [{when}]")
            thought = thoughts.get(event.cognition_id)
            if thought:
                lines.append(f"  Related cognition: {thought}")

        return "\n".join(lines)


class Memory(PartialInterface):
    def __init__(
        self,
        harness: Harness,
        data: dict[Any, Any],
        embedded: Mapping[Any, str],
        finds: bool,
    ) -> None:
        self._harness = harness
        self.status = KVMemory(harness, data, embedded)
        self.stream = StreamMemory(harness, self.status, finds)


def first_status(resident: Resident, attributes: Iterable[Any]) -> dict[Any, Any]:
    """Return a citizen's status before its first step; `attributes` are the agent class's own, with
    defaults.

    As upstream, a field of the profile that is neither a citizen's nor declared by the class is
    left out. The agent's `init` adds `id`, and the first step adds what the simulator reports.
    """
    status: dict[Any, Any] = {**UPSTREAM["status"]}
    for attribute in attributes:
        status[attribute.name] = attribute.default_or_value

    for key, value in resident.profile.items():
        if key in status and key != "id":
            status[key] = value

    # One by one: values that share an object get one each.
    status = {key: deepcopy(value) for key, value in status.items()}
    status["home"] = {"aoi_position": {"aoi_id": resident.home}}
    status["work"] = {"aoi_position": {"aoi_id": resident.work}}
    return status


def embedded(attributes: Iterable[Any]) -> dict[Any, str]:
    """Return the keys that a search of the status looks at, each with the template of its
    sentence."""
    declared = {attribute.name: attribute for attribute in attributes}
    templates = {}
    for name in UPSTREAM["status"]:
        if name != "social_network" and name not in declared:
            templates[name] = f"My {name} is {{}}"

    for name, attribute in declared.items():
        if attribute.whether_embedding:
            templates[name] = attribute.embedding_template or f"My {name} is {{}}"

    return templates


def nearest(query: str, items: Iterable[Item], text: Callable[[Item], str]) -> list[Item]:
    """Return items that share a word with the query, those that share most first, and of equals the
    earlier one."""
    query_words = set(_WORD.findall(query.lower()))
    shared = []
    for item in items:
        count = len(query_words.intersection(_WORD.findall(text(item).lower())))
        if count:
            shared.append((count, item))

    shared.sort(key=itemgetter(0), reverse=True)
    return [item for _, item in shared]
