"""The example of three days around a hurricane (`examples/hurricane`): asbench's score, and agent
files written for asbench."""

from __future__ import annotations

import math
from pathlib import Path
from textwrap import dedent
from typing import Any

import orjson
import pytest

from harness.benchmarks import registry
from harness.cli import main
from tests.support import ROOT
from tests.support.plugins import Commands
from tests.support.scripted import completion, serving

FOLDER = ROOT / "examples" / "hurricane"
HURRICANE = FOLDER / "hurricane.py"
TRUTH = "groundtruth/hurricane_groundtruth.json"
STORM = "landfall"
OUT = ["home"] * 8 + ["work"] * 9 + ["home"] * 7
LATE = ["home"] * 10 + ["work"] * 9 + ["home"] * 5


@pytest.fixture
def harness(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Commands:
    return Commands(tmp_path / "results", capsys)


def played(harness: Commands, reply: Any, *words: object) -> list[dict[str, Any]]:
    """Play a model whose text for a prompt `reply` returns; return the bodies of the requests."""
    bodies = []

    def answer(body: dict[str, Any]) -> tuple[int, bytes]:
        bodies.append(body)
        return 200, completion(reply(body["messages"][-1]["content"]))

    with serving(answer) as server:
        about = ("--tasks-dir", FOLDER, "--api-url", server.url, "--name", "run")
        harness("run", HURRICANE, "--model", "m", *about, *words)
    return bodies


def figures(harness: Commands) -> dict[str, float]:
    metrics = harness.report("run", "columbia")["metrics"]
    return {name: figure["value"] for name, figure in metrics.items()}


def records(harness: Commands) -> list[dict[str, Any]]:
    lines = harness.text("run", "inference_results_columbia.jsonl").splitlines()
    return [orjson.loads(line) for line in lines]


def hours(*trips: int) -> list[float]:
    """Return how many of a day's trips set out in each hour."""
    return [float(trips.count(hour)) for hour in range(24)]


def cosine(left: list[float], right: list[float]) -> float:
    product = sum(x * y for x, y in zip(left, right, strict=True))
    return product / math.hypot(*left) / math.hypot(*right)


def test_score_is_that_of_asbench(harness):
    """All go to work on the first day, one in four on the second, all but later on the third:
    changes of -75 and 0 % where -40 and -10 are real."""
    asked: list[str] = []

    def reply(prompt: str) -> str:
        if STORM in prompt:
            asked.append(prompt)
            goes = len(asked) % 4 == 0
            return orjson.dumps({"hours": OUT if goes else ["home"] * 24}).decode()
        day = LATE if "has passed" in prompt else OUT
        return orjson.dumps({"hours": day}).decode()

    played(harness, reply, "--limit", "8")
    real = hours(8, 17)
    similar = (1 + 1 + cosine(real, hours(10, 19))) / 3
    errors = (35 / 40 + 10 / 10) / 2
    found = figures(harness)
    assert found["Distribution"] == pytest.approx(similar)
    assert found["Change"] == pytest.approx(1 - errors)
    assert found["Score"] == pytest.approx(0.6 * (1 - errors) + 0.4 * similar)


def test_no_usable_reply_is_three_days_at_home(harness):
    played(harness, lambda prompt: '{"hours": ["home"]}', "--limit", "2")
    nothing = {"Score": 0, "Change": 0, "Distribution": 0}
    assert figures(harness) == pytest.approx(nothing, abs=1e-6)
    assert {record["outcome"] for record in records(harness)} == {"no_hours"}


def test_trips_are_counted_as_asbench_counts_them():
    """A trip is a place other than the last one of that day, whose hour is that in which the
    resident is first seen on the way."""
    cls = registry.find(str(HURRICANE))
    trips_of = __import__(cls.__module__, fromlist=["trips_of"]).trips_of
    places = [1, 1, None, None, 2, 2, None, 2, 1, *[1] * 39]
    trips, *departures = trips_of(places)
    assert trips == 2 and departures == hours(1, 3)
    assert trips_of([None, 1] + [1] * 46) == [0] * 25


AGENT = """
from {package} import HurricaneMobilityAgent
from pycityproto.city.person.v2.motion_pb2 import Status
from places import place_of

class Own(HurricaneMobilityAgent):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.steps = 0

    async def forward(self):
        self.steps += 1
        assert self.movement_status == [Status.STATUS_WALKING, Status.STATUS_DRIVING]
        day, second = self.environment.get_datetime()
        assert (self.steps - 1) == day * 48 + second // 1800
        if second // 1800 == 16:
            weather = await self.get_current_weather()
            assert weather == self.environment.sense("weather")
            messages = [{{"role": "user", "content": weather}}]
            if await self.llm.atext_request(messages, temperature=0.3) == "go":
                await self.go_to_aoi(await place_of(self, "work"))
        if second // 1800 == 36:
            await self.go_to_aoi(await place_of(self, "home"))
"""
PLACES = """
async def place_of(agent, name):
    return (await agent.status.get(name))["aoi_position"]["aoi_id"]
"""


def write_agent(folder: Path, package: str) -> Path:
    (folder / "places.py").write_text(PLACES)
    file = folder / "own.py"
    file.write_text(dedent(AGENT).format(package=package))
    return file


@pytest.mark.parametrize(
    "package",
    [
        "agentsociety_benchmark.benchmarks",
        "agentsociety_benchmark.benchmarks.HurricaneMobility.template_agent",
        "mobisimbench.benchmarks",
    ],
)
def test_agent_file_for_asbench_lives_three_days(harness, tmp_path, package):
    """48 half hours each, each day with its weather. Requests have the temperature that the agent
    asks for. Nobody goes out in the storm: a change of -100 %."""
    agent = write_agent(tmp_path, package)
    reply = lambda weather: "stay" if STORM in weather else "go"  # noqa: E731
    bodies = played(harness, reply, "--limit", "4", "--agent", agent)
    weathers = [body["messages"][-1]["content"] for body in bodies]
    assert len(weathers) == 12 and len(set(weathers)) == 3
    assert {body["temperature"] for body in bodies} == {0.3}
    for record in records(harness):
        before, during, after = (day[0] for day in record["metrics"]["days"])
        assert before == after and during == 0 and len(record["answer"]) == 144
    assert figures(harness)["Change"] == 0


def test_run_of_an_agent_keeps_all_of_its_files_and_replays_from_them(harness, tmp_path):
    """Where the originals are gone, the saved replies give the same records."""
    agent = write_agent(tmp_path, "agentsociety_benchmark.benchmarks")
    played(harness, lambda weather: "go", "--limit", "2", "--agent", agent)
    before = records(harness)
    for file in (agent, tmp_path / "places.py"):
        file.unlink()
    harness("reeval", "--reparse")
    assert records(harness) == before


def test_file_without_an_agent_is_refused(harness, tmp_path):
    (tmp_path / "none.py").write_text("x = 1\n")
    words = ("--model", "baseline/commuter", "--tasks-dir", FOLDER, "--agent", tmp_path / "none.py")
    expected = "expected one class derived from HurricaneMobilityAgent, got none"
    assert expected in harness.refused("run", HURRICANE, *words)


def test_synth_writes_the_tasks_that_ship(tmp_path):
    assert main(["synth", str(HURRICANE), "--users", "20", "--out", str(tmp_path)]) == 0
    for name in ("profiles.json", "columbia.pb", TRUTH):
        assert (tmp_path / name).read_bytes() == (FOLDER / name).read_bytes()
