"""The demo city's first residents with an agent file, asked by an endpoint whose replies depend on
the messages alone.

`python -m tests.support.asbench agent.py` prints what the agent sends, in the form of the
recordings of asbench's run (tests/data/agentsociety/README.md).
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import orjson

from harness.benchmarks.agents.city import load_city
from harness.benchmarks.agents.runner import Runner, World
from harness.benchmarks.agents.session import play
from harness.benchmarks.dailymobility.benchmark import task_of
from harness.benchmarks.dailymobility.day import ROW_SECONDS, ROWS
from harness.client.request_body import Sampling
from harness.errors import AgentFailed
from harness.model import Completion, Request
from tests.support import ROOT
from tests.support.agent_town import load_agent

DEMO = ROOT / "harness" / "sample" / "dailymobility"
RESIDENTS = 3

FIRST_AOI, AOIS = 500_000_000, 50
INTENTIONS = (
    "sleep",
    "home activity",
    "other",
    "work",
    "shopping",
    "eating out",
    "leisure and entertainment",
)


def reply(messages: Sequence[Any]) -> str:
    """Return an empty text, a plan, a kind of person, or an AOI and an intention, as the messages
    ask for it."""
    text = json.dumps([[each["role"], each["content"]] for each in messages], ensure_ascii=False)
    draws = sha256(text.encode()).digest()
    if "Say nothing" in text:
        return ""
    if '{"plan"' in text.replace('\\"', '"'):
        hours = sorted({0, *(draw % 24 for draw in draws[:8])})
        steps = [
            {"intention": INTENTIONS[draws[hour] % 7], "start_time": f"{hour:02d}:30"}
            for hour in hours
        ]
        return f"```json\n{json.dumps({'plan': steps})}\n```"
    if "conservative / active" in text:
        return ("active", "rational", "Emotional ")[draws[0] % 3]
    return f"{FIRST_AOI + draws[0] % AOIS}, {INTENTIONS[draws[1] % 7]}"


def played(path: Path, seed: int = 0) -> dict[str, Any]:
    """Return each resident's request bodies in order, and its day: the AOI and the intention of
    each step."""
    city = load_city(DEMO / "beijing.pb")
    runner = Runner(load_agent(path), World(city, ROWS, ROW_SECONDS), seed=seed)
    requests: dict[str, list[Any]] = {}
    days: dict[str, list[Any]] = {}

    async def live() -> None:
        for line in json.loads((DEMO / "profiles.json").read_bytes())[:RESIDENTS]:
            resident = task_of(line, city, 100).given
            asked = requests[resident.key] = []

            async def ask(request: Request, asked: list[Any] = asked) -> Completion:
                asked.append(orjson.loads(Sampling("m", temperature=None).encode(request)))
                return Completion(reply(asked[-1]["messages"]))

            try:
                days[resident.key] = [
                    [row.aoi, row.intention] for row in await play(runner, resident, ask)
                ]
            except AgentFailed as failed:
                days[resident.key] = [failed.kind]

    asyncio.run(live())
    return {"requests": requests, "days": days}


def compared(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return a body without the members that the two clients send in their own ways: nulls,
    `stream`, the model."""
    return {
        name: value
        for name, value in body.items()
        if value is not None and name not in ("model", "stream")
    }


def digests(run: Mapping[str, Any]) -> dict[str, Any]:
    """Return 12 hexadecimal digits of each request, and of each resident's day."""

    def digest(value: Any) -> str:
        return sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:12]

    return {
        resident: {
            "requests": [digest(compared(body)) for body in run["requests"].get(resident, [])],
            "day": digest(day),
        }
        for resident, day in run["days"].items()
    }


if __name__ == "__main__":
    print(json.dumps(digests(played(Path(sys.argv[1])))))
