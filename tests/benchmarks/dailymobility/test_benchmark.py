"""DailyMobility as a benchmark: an agent's replies and rows become a day, and a saved day is
measured again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import orjson
import pytest

from harness.benchmark import ASKING, Asking, Task, remark
from harness.benchmarks import settings, tasks
from harness.benchmarks.dailymobility import synth
from harness.benchmarks.dailymobility.benchmark import DailyMobility
from harness.benchmarks.dailymobility.day import SLOTS, Day
from harness.engine.play import Played, play, recorded, rescored
from harness.errors import BadInput
from harness.model import JSON, Completion, Request, Where

ASKS = """
    async def forward(self):
        said = await self.llm.atext_request([{"role": "user", "content": str(self.environment.get_tick())}])
        await self.log_intention(said)
"""
CATCHES = """
    async def forward(self):
        try:
            said = await self.llm.atext_request([{"role": "user", "content": str(self.environment.get_tick())}])
        except ValueError:
            said = "whatever"
        await self.log_intention(said)
"""
COMMUTES = """
    async def forward(self):
        _, seconds = self.environment.get_datetime()
        place = await self.status.get("work" if 32400 <= seconds < 64800 else "home")
        await self.go_to_aoi(place["aoi_position"]["aoi_id"])
        await self.log_intention("work")
"""
HEAD = (
    "from agentsociety_benchmark.benchmarks import DailyMobilityAgent\n\n\nclass"
    " Own(DailyMobilityAgent):"
)


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tasks folder with three residents."""
    folder = tmp_path_factory.mktemp("data")
    (folder / "dailymobility" / "groundtruth").mkdir(parents=True)
    for name, content in synth.files(3, 1).items():
        (folder / "dailymobility" / name).write_bytes(content)
    return folder


@pytest.fixture
def made(data: Path, tmp_path: Path) -> Callable[..., DailyMobility]:
    """The benchmark with an agent of these lines, or in plan mode, as a command would make it."""

    def make(body: str | None = None, asking: Asking = ASKING) -> DailyMobility:
        agent = tmp_path / "own.py"
        agent.write_text(HEAD + (body or COMMUTES), encoding="utf-8")
        given = {} if body is None else {"agent": agent}
        return DailyMobility(
            settings.given(DailyMobility.Settings, given), asking=asking, folder=data
        )

    return make


def resident(benchmark: DailyMobility, data: Path) -> Task:
    entry = orjson.dumps(orjson.loads((data / "dailymobility/profiles.json").read_bytes())[0])
    task = tasks.parse(benchmark, entry, Where("profiles.json", 1), "beijing")
    assert tasks.outline(benchmark, entry, Where("profiles.json", 1), "beijing") == (
        task.key,
        task.steps,
    )
    return task


def lived(
    benchmark: DailyMobility, data: Path, reply: Callable[[int], Completion]
) -> tuple[Day, list[Request]]:
    played, asked = played_by(benchmark, data, reply)
    return played.answer, asked


def played_by(
    benchmark: DailyMobility, data: Path, reply: Callable[[int], Completion]
) -> tuple[Played, list[Request]]:
    """The play of the first resident, and what was asked; `reply` is given the number of the
    request."""
    asked: list[Request] = []

    async def ask(request: Request) -> Completion:
        asked.append(request)
        return reply(len(asked))

    return asyncio.run(play(benchmark, resident(benchmark, data), ask)), asked


def measured(benchmark: DailyMobility, data: Path, played: Played) -> JSON:
    """The record of the first resident, as it is read from its file."""
    saved: JSON = orjson.loads(orjson.dumps(recorded(benchmark, resident(benchmark, data), played)))
    return saved


def test_places_are_those_of_every_other_row(made, data):
    """Slot n is row 2n, as it starts: at 9:00 still at home, at 9:30 at work or on the way, at
    18:30 not there."""
    benchmark = made(COMMUTES)
    day, _ = lived(benchmark, data, lambda number: Completion(""))
    who = resident(benchmark, data).given
    assert len(day.places) == SLOTS
    assert day.places[:19] == (who.home,) * 19
    assert set(day.places[20:36]) == {who.work} and day.places[36] == who.work
    assert day.places[39:] == (who.home,) * 9
    assert day.visited == (who.home, who.work) and day.intentions == (4,) * SLOTS


@pytest.mark.parametrize(
    ("completion", "outcome"),
    [
        (Completion("", finish_reason="content_filter"), "content_filter"),
        (Completion("", finish_reason="length"), "length"),
        (Completion("", finish_reason="context_length"), "context_length"),
        (Completion("", reasoning="想"), "empty"),
        (Completion("", refusal="不"), "refusal"),
    ],
)
def test_an_agent_left_without_a_reply_has_an_invalid_day(made, data, completion, outcome):
    """It is the model's doing: a day at home with `other`, under its own kind, and no failure."""
    benchmark = made(ASKS)
    played, asked = played_by(benchmark, data, lambda number: completion)
    day: Day = played.answer
    assert day.outcome == outcome and day.intentions == (3,) * SLOTS and len(day.visited) == 1
    assert (
        len(asked) == played.chat.usage.requests == (1 if completion.finish_reason != "stop" else 3)
    )
    record = measured(benchmark, data, played)
    assert (record["invalid"], record["daily_location_number"], record["gyration_radius_m"]) == (
        outcome,
        1,
        0.0,
    )


@pytest.mark.parametrize("retries", [0, 1])
def test_thoughts_without_a_reply_are_asked_for_again(made, data, retries):
    """As often as --parse-retries says, with the very same request."""
    benchmark = made(ASKS, Asking(parse_retries=retries))
    thought = Completion("", reasoning="想")
    day, asked = lived(
        benchmark, data, lambda number: thought if number == 1 else Completion("sleep")
    )
    assert day.outcome == ("valid" if retries else "empty")
    assert not retries or (asked[0] == asked[1] and len(asked) == 101)


def test_what_an_agent_swallows_is_counted_in_its_record(made, data):
    """A reply that did not come or was cut off, and intentions that are none of the seven."""

    def reply(number: int) -> Completion:
        if number == 1:
            return Completion("", finish_reason="content_filter")
        return Completion("sleep", finish_reason="length" if number <= 4 else "stop")

    day, _ = lived(made(CATCHES), data, reply)
    assert day.outcome == "valid"
    assert day.warnings == ("cut_off: 3", "no_reply: 1", "unknown_intention: 1")


@pytest.mark.parametrize("structured", ["json_object", "none"])
def test_no_json_mode_is_asked_for_where_the_run_has_none(made, data, structured):
    """`--structured none` is for endpoints that refuse it, whatever the agent file says."""
    body = ASKS.replace("get_tick())}]", 'get_tick())}], response_format={"type": "json_object"}')
    benchmark = made(body, Asking(structured))
    _, asked = lived(benchmark, data, lambda number: Completion("sleep"))
    assert {request.json_object for request in asked} == {structured == "json_object"}


def test_an_agent_cannot_be_asked_for_the_schema_of_a_plan(
    made,
):
    """It writes its own requests, so that none of them would have it."""
    with pytest.raises(BadInput):
        made(ASKS, Asking("json_schema"))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"visited_aois": []}, "field visited_aois"),
        ({"visited_aois": [500_000_000, 500_000_000]}, "field visited_aois"),
        ({"visited_aois": [1]}, "the map has no AOI 1"),
        ({"places": [None] * 47}, "field places"),
        ({"places": [1] * 48}, "field places"),
        ({"intentions": [1] * 47}, "field intentions"),
        ({"intentions": [8] * 48}, "field intentions"),
        ({"intentions": [1.0] * 48}, "field intentions"),
        ({"intentions": [True] * 48}, "field intentions"),
    ],
)
def test_a_saved_day_that_makes_no_sense_is_not_measured(made, data, change, said):
    """`reeval` and `verify` name the field."""
    benchmark = made(COMMUTES)
    played, _ = played_by(benchmark, data, lambda number: Completion(""))
    record = measured(benchmark, data, played)
    who = resident(benchmark, data)
    assert orjson.loads(orjson.dumps(rescored(benchmark, who, record))) == record
    with pytest.raises(BadInput, match=said):
        rescored(benchmark, who, record | change)


def test_synthetic_residents_are_said_to_be(made, data):
    """And that movements are simulated, where they are."""
    plan, agent = made(), made(COMMUTES)
    assert "synthetic" in remark(plan, resident(plan, data)) and "simulated" not in remark(
        plan, resident(plan, data)
    )
    assert "straight lines" in remark(agent, resident(agent, data))
