"""An entry of DailyMobility's profiles: what is let in can be prompted, recorded, measured and
scored."""

from __future__ import annotations

import json
from dataclasses import replace

import orjson

from harness.benchmark import Configuration, Task
from harness.benchmarks.agents.city import read_city
from harness.benchmarks.agents.resident import Resident
from harness.benchmarks.dailymobility import plan, synth
from harness.benchmarks.dailymobility.benchmark import DailyMobility, task_of
from harness.benchmarks.dailymobility.day import Day
from harness.benchmarks.tasks import parse
from harness.chat import Chat
from harness.client.request_body import Sampling
from harness.errors import BadInput
from harness.model import JSON, Completion, Request, Where

EXPECTED = (BadInput,)
FILES = synth.files(3, 1)
SEEDS = [
    json.dumps(one, ensure_ascii=False).encode() for one in orjson.loads(FILES["profiles.json"])
]
CITY = read_city(FILES["beijing.pb"], "map")
SAMPLING = Sampling("m")
REPLY = Completion(
    '{"segments": [{"start": "00:00", "end": "24:00", "intention": "sleep", "place": "home"}]}'
)


class Residents(DailyMobility):
    """Parses entries without the files of a tasks folder."""

    def prepare(self) -> Configuration:
        self.city = CITY
        return Configuration("own", None, {}, {})

    def parse(self, line: JSON, subset: str) -> Task:
        return task_of(line, self.city, steps=1)


BENCHMARK = Residents()
MODE = plan.PlanMode(plan.prompt_of(), CITY, BENCHMARK.asking)


def run(data: bytes) -> None:
    made = parse(BENCHMARK, data, Where("profiles.json", 1), "beijing")
    resident: Resident = made.given
    assert resident.key == made.key
    chat = _chat()
    day = _played(resident, chat)
    assert day.outcome == "valid"
    orjson.dumps({"user_id": resident.number, "usage": chat.usage.data})


def _chat() -> Chat:
    async def ask(request: Request) -> Completion:
        SAMPLING.encode(request)
        return REPLY

    return Chat(ask, replace(BENCHMARK.asking, parse_retries=0), BENCHMARK.about.language)


def _played(resident: Resident, chat: Chat) -> Day:
    try:
        MODE.play(resident, chat).send(None)
    except StopIteration as done:
        found: Day = done.value
        return found
    raise AssertionError("a play that is answered at once has nothing to wait for")
