"""An entry of DailyMobility's profiles: what `check` lets in can be prompted, recorded, measured and scored."""

from __future__ import annotations

import json
from typing import Any

import orjson

from harness.benchmarks.dailymobility import plan, synth, task
from harness.benchmarks.dailymobility.benchmark import UnplayedMode
from harness.benchmarks.dailymobility.city import read_city
from harness.endpoint.wire import Sampling
from harness.errors import BadInput
from harness.model import Completion, Request, Where

EXPECTED = (BadInput,)
FILES = synth.files(3, 1)
SEEDS = [json.dumps(one, ensure_ascii=False).encode() for one in orjson.loads(FILES["profiles.json"])]
CITY = read_city(FILES["beijing.pb"], "map")
NEARBY = plan.Nearby(CITY)
PROMPT = plan.PlanPrompt(None)
SAMPLING = Sampling("m")
REPLY = Completion('{"segments": [{"start": "00:00", "end": "24:00", "intention": "sleep", "place": "home"}]}')
MODE = UnplayedMode({"prompt": "own", "mode": "plan"})


def run(data: bytes) -> None:
    key = task.check(data, Where("profiles.json", 1), CITY)
    resident = task.load(data)
    assert resident.key == key
    day = _played(resident)
    assert day.outcome == "valid"
    orjson.dumps({"user_id": resident.number, "usage": day.usage.data})


def _played(resident: Any) -> Any:
    async def ask(request: Request) -> Completion:
        SAMPLING.encode(request)
        return REPLY

    try:
        plan.play(resident, NEARBY, ask, PROMPT, json_object=True, parse_retries=0).send(None)
    except StopIteration as done:
        return done.value
    raise AssertionError("a play that is answered at once has nothing to wait for")
