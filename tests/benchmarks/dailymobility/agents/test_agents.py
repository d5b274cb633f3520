"""A resident's day with an agent file: what its agent sees, and what the rows say of it."""

from __future__ import annotations

import asyncio
import json
import random
from dataclasses import replace
from textwrap import dedent, indent

import numpy as np
import pytest
import shapely

from harness.benchmarks.agents.resident import Row
from harness.benchmarks.agents.runner import Runner, World
from harness.benchmarks.agents.session import play
from harness.client.request_body import Sampling
from harness.errors import AgentFailed
from harness.model import Ask, Completion, Message, Request
from tests.support import DATA, first_quick
from tests.support.agent_town import (
    AOI,
    HOME,
    POI,
    WORK,
    city,
    played,
    resident,
    runner,
    saying,
    silence,
    world,
    written,
)

STAY = "async def forward(self): pass"


def failure(running: Runner, ask: object = silence) -> AgentFailed:
    with pytest.raises(AgentFailed) as failed:
        played(running, ask)  # type: ignore[arg-type]
    return failed.value


def test_the_shape_that_asbench_hands_out_plays_a_day():
    """A hundred rows, from home on, with the intentions that it logs."""
    rows = played(runner("random_walk.py"))
    assert len(rows) == 100 and rows[0].aoi == HOME
    assert {row.intention for row in rows} <= {
        "sleep",
        "home activity",
        "other",
        "work",
        "shopping",
        "eating out",
    }
    assert len({row.aoi for row in rows}) > 5


def test_every_member_is_there_in_its_shape():
    """The agent insists on each by itself; here only that its day is the one that it means."""
    rows = played(runner("every_member.py"))
    assert (
        rows[0] == Row(HOME, "sleep")
        and rows[40] == Row(WORK, "work")
        and rows[99] == Row(HOME, "sleep")
    )
    assert {row.intention for row in rows[48:52]} == {"eating out"}


def test_one_request_a_step_makes_the_day():
    """What it asks carries its dialog and the wish for JSON; what it receives is where it goes."""
    asked: list[Request] = []

    async def ask(request: Request) -> Completion:
        asked.append(request)
        step = len(asked)
        return Completion(
            f'```json\n{{"aoi": {WORK if 30 <= step < 70 else HOME}, "intention": "work"}}\n```'
        )

    rows = played(runner("asks_each_step.py"), ask)
    assert len(asked) == 100 and all(request.json_object for request in asked)
    assert asked[1].messages[0] == Message("system", "你是一位北京居民。")
    assert asked[1].messages[1].content.startswith(f"第0天 00:15:01，家 {HOME}，公司 {WORK}")
    assert rows[0] == Row(HOME, "work") and rows[40] == Row(WORK, "work") and rows[99].aoi == HOME


def test_a_row_has_the_place_at_its_start_and_the_intention_of_its_step(tmp_path):
    """On foot 1.3 times the diagonal of 3,535.5 m takes 3,430 s: the resident is on the way as
    three steps start."""
    file = written(
        tmp_path,
        f"""
        async def forward(self):
            if self.environment.get_tick() == 901:
                await self.go_to_aoi(({AOI + 35}, 1))
                await self.log_intention("other")
            self.seen = [*getattr(self, "seen", []), await self.status.get("status")]
            if len(self.seen) == 6:
                assert self.seen == [1, 1, 3, 3, 3, 1], self.seen
        """,
    )
    rows = played(runner(file))
    assert [row.aoi for row in rows[:7]] == [HOME, HOME, None, None, None, AOI + 35, AOI + 35]
    assert [row.intention for row in rows[:3]] == ["Planning", "other", "other"]


@pytest.mark.parametrize(
    ("said", "row"),
    [
        ("None", None),
        ("'Sleep '", "Sleep "),
        ("Kind.SLEEP", "sleep"),
        ("''", ""),
        ("['x'][0]", "x"),
    ],
)
def test_intentions_are_kept_as_they_are_said(tmp_path, said, row):
    """They are compared with the benchmark's words later."""
    top = "import enum\nclass Kind(str, enum.Enum):\n    SLEEP = 'sleep'\n"
    body = f"async def forward(self):\n    await self.log_intention({said})"
    assert {each.intention for each in played(runner(written(tmp_path, body, top=top)))} == {row}


@pytest.mark.parametrize(
    "plan",
    [
        "{'steps': []}",
        "{'index': 2, 'steps': [{'intention': 'work'}]}",
        "'work'",
        "{'steps': [{'intention': 5}]}",
    ],
)
def test_a_plan_that_nobody_can_read_fails_its_resident(tmp_path, plan):
    """Upstream's writer of results would end the whole simulation."""
    body = f"async def forward(self):\n    await self.memory.status.update('current_plan', {plan})"
    failed = failure(runner(written(tmp_path, body)))
    assert failed.kind == "agent_error" and failed.detail.startswith("agent.py, step 1: ")


def test_the_clock_starts_a_second_after_midnight_and_ends_on_the_next_day(tmp_path):
    """Steps are at 1, 901, ...; before the first the clock stands at 0."""
    file = written(
        tmp_path,
        """
        async def init(self):
            await super().init()
            assert self.environment.get_datetime() == (0, 0)

        async def forward(self):
            await self.log_intention("{} {}".format(*self.environment.get_datetime(True, "%H.%M.%S")))
        """,
    )
    said = [row.intention for row in played(runner(file))]
    assert (said[0], said[1], said[95], said[96]) == (
        "0 00.00.01",
        "0 00.15.01",
        "0 23.45.01",
        "1 00.00.01",
    )


def test_hooks_run_around_each_step(tmp_path):
    """In upstream's order; the agent's own idea of a whole step counts where it has one."""
    file = written(
        tmp_path,
        """
        async def before_forward(self):
            await super().before_forward()
            self.order = ["before"]
        async def forward(self):
            self.order.append("forward")
        async def after_forward(self):
            self.order.append("after")
            await self.log_intention(" ".join(self.order))
        """,
    )
    assert {row.intention for row in played(runner(file))} == {"before forward after"}


def test_status_knows_where_one_is_from_the_first_step_on(tmp_path):
    """As upstream: nothing of the simulator's is there while the agent is made."""
    file = written(
        tmp_path,
        """
        async def init(self):
            for key in ("status", "position", "id"):
                try:
                    await self.status.get(key)
                    raise AssertionError(key)
                except KeyError:
                    pass
            await super().init()
            assert await self.status.get("id") == self.id
            assert (await self.status.get("age"), await self.status.get("skill")) == (35, "unknown")

        async def forward(self):
            at = await self.status.get("position")
            self.first = getattr(self, "first", at)
            assert self.first == {"xy_position": {"x": 0, "y": 0, "z": 0}, "aoi_position": {"aoi_id": 500000000}}
        """,
    )
    assert len(played(runner(file))) == 100


def test_memory_merges_and_replaces(tmp_path):
    """By the kind of what is there; an unknown mode is an error."""
    file = written(
        tmp_path,
        """
        async def init(self):
            await super().init()
            get, update = self.status.get, self.status.update
            for first, more, merged in (([1], [2], [1, 2]), ({"a": 1}, {"b": 2}, {"a": 1, "b": 2}), (1, 2, 2)):
                await update("x", first)
                await update("x", more, mode="merge")
                assert await get("x") == merged
                await update("x", first)
                assert await get("x") == first
            try:
                await update("x", 1, mode="other")
            except ValueError:
                assert await self.status.export(["x", "none"]) == {"x": 1}
                return
            raise AssertionError
        """,
    )
    played(runner(file))


def test_the_stream_finds_what_shares_words(tmp_path):
    """Most shared words first, written down latest first; thoughts stand with what they are
    about."""
    file = written(
        tmp_path,
        """
        async def forward(self):
            if self.environment.get_tick() != 901:
                return await self.stream.add("mobility", "在家吃早饭") and None
            second = await self.stream.add("mobility", "去公司上班")
            await self.stream.add_cognition_to_memory([second], "今天很忙")
            line = "- [mobility]: 去公司上班 [day: 0, time: 00:15:01, location: 500000000]"
            line += "\\n  Related cognition: 今天很忙"
            assert await self.stream.search("公司") == line == await self.stream.get_by_ids([second])
            assert await self.stream.search("公司", topic="other") == "Nothing"
            assert await self.stream.search("早饭", time_range=(0, 10)) != "Nothing"
            assert await self.stream.search("早饭", day_range=(1, 2)) == "Nothing"
            assert len((await self.stream.search_today()).splitlines()) == 4
            assert [each["topic"] for each in await self.stream.get_all()] == ["mobility", "mobility", "cognition"]
        """,
    )
    played(runner(file, finds_memories=True))


def test_searches_of_the_stream_find_nothing_as_upstream(tmp_path):
    """Upstream asks for a mark that it does not write; what is found by number is there."""
    file = written(
        tmp_path,
        """
        async def forward(self):
            number = await self.stream.add("mobility", "去公司上班")
            assert "公司" in await self.stream.get_by_ids([number])
            assert await self.stream.search("公司") == "Nothing" == await self.stream.search_today()
        """,
    )
    played(runner(file))


def test_events_of_one_step_stay_in_their_order(tmp_path):
    """The latest step comes first."""
    file = written(
        tmp_path,
        """
        async def forward(self):
            for number in range(2):
                await self.stream.add("mobility", f"event {number}")
            ids = [each["id"] for each in await self.stream.get_all()][-4:]
            lines = (await self.stream.get_by_ids(ids)).splitlines()
            assert [line.split("event ")[1][0] for line in lines] == ["0", "1"] * (len(ids) // 2)
            assert len(ids) == 2 or lines[0].split("[day: ")[1] > lines[2].split("[day: ")[1]
        """,
    )
    played(runner(file))


def test_a_search_of_the_status_looks_at_what_upstream_embeds(tmp_path):
    """A citizen's own fields, and those that the class marks, each in its own words."""
    top = "from agentsociety.agent import MemoryAttribute as Attribute\n"
    file = written(
        tmp_path,
        """
        StatusAttributes = [
            *DailyMobilityAgent.StatusAttributes,
            Attribute(name="mood", type=str, default_or_value="calm", description="", whether_embedding=True),
            Attribute(name="car", type=str, default_or_value="red", description="", whether_embedding=True,
                      embedding_template="drives a {} car"),
        ]
        async def forward(self):
            assert await self.status.search("occupation") == "- My occupation is 教师 "
            assert await self.status.search("mood", filter={"key": "mood"}) == "- My mood is calm "
            assert await self.status.search("drives") == "- drives a red car "
            await self.status.update("mood", "odd")
            assert await self.status.search("odd") == "- My mood is odd "
            assert await self.status.search("position home current_plan social_network") == "Nothing"
            await self.status.update("mood", "calm")
        """,
        top=top,
    )
    played(runner(file))


def test_places_are_found_in_squares(tmp_path):
    """Half the side is the radius; kinds stand for their words, and the last level of a category
    counts."""
    top = "from shapely.geometry import Point\n"
    file = written(
        tmp_path,
        f"""
        async def init(self):
            await super().init()
            env = self.environment
            ids = lambda places: sorted(place["id"] - {POI} for place in places)
            assert ids(env.get_around_poi((500, 500), 500, "restaurant")) == [0, 6, 12]
            assert ids(env.get_around_poi(center=Point(500, 500), radius=499, poi_type=["park", "supermarket"])) == [7]
            assert env.get_around_poi((500, 500), 500, "amenity") == []
            found = env.map.query_pois((0, 0), 600, "shop", limit=1)
            assert ids(place for place, away in found) == [1] and found[0][1] == 500
            assert len(env.map.query_pois((0, 0), None, "shop")) == 36
            assert ids(env.map.query_pois((0, 0), 500, return_distance=False)) == [0, 1, 6, 7]
            aois = env.map.query_aois((0, 0), 450)
            assert [(aoi["id"] - {AOI}, round(away)) for aoi, away in aois] == [(0, 0), (1, 450), (6, 450), (7, 636)]
            assert env.map.query_aois((0, 0), 450, ["A"]) == []
            assert env.map.get_aoi({AOI})["shapely_xy"].area == 10000 == env.map.aois[{AOI}]["area"]
        """,
        top=top,
    )
    played(runner(file))


def test_places_come_in_the_order_of_upstream_s_tree(tmp_path):
    """Whoever takes the first five sees the five that it sees there; the tree is shapely's, of all
    POIs of the map."""
    points = [(poi.x, poi.y) for poi in city().pois.values()]
    rows = (
        shapely.STRtree(shapely.points(points))
        .query(shapely.Point(1200, 900).buffer(1100))
        .tolist()
    )
    assert rows != sorted(rows)
    file = written(
        tmp_path,
        f"""
        async def init(self):
            await super().init()
            ids = lambda places: [place["id"] - {POI} for place in places]
            env = self.environment
            assert ids(env.map.query_pois((1200, 900), 1100, return_distance=False)) == {rows}
            assert ids(env.get_around_poi((1200, 900), 1100, ["park", "supermarket", "restaurant"])) == {rows}
        """,
    )
    played(runner(file))


def test_lists_of_places_are_each_call_s_own(tmp_path):
    """Who shuffles one changes nobody else's; a place that is kept in memory does not drag the map
    along."""
    file = written(
        tmp_path,
        """
        async def init(self):
            await super().init()
            map = self.environment.map
            for get in (map.get_all_aois, map.get_all_pois, self.environment.get_aoi_ids):
                get().clear()
                assert len(get()) == 36
            self.environment.get_poi_cate().clear()
            place = self.environment.map.get_all_pois()[3]
            await self.status.update("place", place)
            kept = await self.status.get("place")
            assert kept == place and kept is not place and kept["shapely_xy"].x == 1500
            assert self.environment.get_poi_cate()
        """,
    )
    played(runner(file))


@pytest.mark.parametrize(
    "target",
    [
        f"{AOI + 9}",
        f"({AOI + 9}, None)",
        f"({AOI + 9}, 2)",
        f"({AOI + 9}, {POI + 9})",
        f"[{AOI + 9}]",
        f"{POI + 9}",
        f"np.int64({AOI + 9})",
        f"Id({AOI + 9})",
    ],
)
def test_places_to_go_to_have_many_forms(tmp_path, target):
    """An AOI, a POI, a pair with a mode, a POI or nothing, a list of such; of a mode alone there is
    a warning."""
    body = (
        "async def init(self):\n    await super().init()\n    await"
        f" self.go_to_aoi({target})\n{STAY}"
    )
    warnings: list[str] = []
    rows = played(
        runner(
            written(tmp_path, body, top="import numpy as np\nclass Id(int): pass\n"),
            warnings.append,
        )
    )
    assert len(warnings) == target.endswith(" 2)")
    assert rows[0].aoi == HOME  # an order is taken up two seconds after it was given
    assert rows[1].aoi == AOI + 9 and type(rows[1].aoi) is int


def test_a_list_of_places_is_gone_to_one_after_another(tmp_path):
    """Each when it is due and the one before is reached; a new order drops what is left of it."""
    body = f"""
    async def init(self):
        await super().init()
        places = [{AOI + 1}, ({AOI + 2}, None), {AOI + 3}]
        await self.environment.set_aoi_schedules(self.id, places, departure_times=[0, 0, 4000], modes=[1])
    async def forward(self):
        if self.environment.get_tick() == 901 and self.id == 2:
            await self.go_to_aoi({HOME})
    """
    running = runner(written(tmp_path, body))
    rows = [row.aoi for row in played(running)]
    # 500 m on foot take 485.1 s, then 500 m by car 81.3 s; the third starts at second 4000.
    assert rows[:7] == [HOME, AOI + 2, AOI + 2, AOI + 2, AOI + 2, AOI + 3, AOI + 3]
    assert [row.aoi for row in played(running, number=2)][1:] == [AOI + 2] + [HOME] * 98


@pytest.mark.parametrize(
    ("call", "kind", "expected_text"),
    [
        ("self.go_to_aoi(5)", "unknown_place", "the city has no AOI 5"),
        (f"self.go_to_aoi(({AOI + 99}, 2))", "unknown_place", f"the city has no AOI {AOI + 99}"),
        (f"self.go_to_aoi({POI + 99})", "unknown_place", f"the city has no AOI {POI + 99}"),
        (
            "self.environment.set_aoi_schedules(99, 500000001)",
            "agent_api",
            "moving another person (99) is not",
        ),
        (
            "self.environment.sense('weather')",
            "agent_api",
            "Environment.sense is not available here",
        ),
        (
            "self.environment.map.get_projector()",
            "agent_api",
            "MapData.get_projector is not available here",
        ),
        (
            "self.environment.map.get_aoi(500000000)['external']",
            "agent_api",
            "the field external of a",
        ),
        (
            "self.environment.map.get_aoi(500000000).get('shapely_lnglat')",
            "agent_api",
            "shapely_lnglat of a place is not available with this map",
        ),
        ("self.messager", "agent_api", "Own.messager is not available here"),
        (
            "hasattr(self, 'database_writer')",
            "agent_api",
            "Own.database_writer is not available here",
        ),
        ("self.toolbox.embedding", "agent_api", "AgentToolbox.embedding is not available here"),
        (
            "self.llm.atext_request([], tools=[{}])",
            "agent_api",
            "atext_request(tools=...) is not available here",
        ),
    ],
)
@pytest.mark.parametrize("caught", ["Exception", "BaseException"])
def test_what_is_not_here_fails_the_resident_whatever_it_catches(
    tmp_path, call, kind, expected_text, caught
):
    """It would go on in another way than it does upstream, and be scored for it."""
    file = written(
        tmp_path,
        f"""
        async def forward(self):
            while True:
                try:
                    thing = {call}
                    if hasattr(thing, "__await__"):
                        await thing
                    return
                except {caught}:
                    pass
        """,
    )
    failed = failure(runner(file))
    assert (
        failed.kind == kind
        and failed.detail.startswith("agent.py, step 1, line ")
        and expected_text in failed.detail
    )


def test_what_upstream_has_not_either_is_an_attribute_error(tmp_path):
    """Agents look for things with hasattr and getattr, and for their own attributes too."""
    file = written(
        tmp_path,
        """
        async def forward(self):
            assert not hasattr(self, "age") and getattr(self.environment, "get_aoi_xy", 3) == 3
            assert not hasattr(self.environment.map, "roads") and not hasattr(self.memory.status, "__len__")
            self.aoi_mode_cache
        """,
    )
    failed = failure(runner(file))
    assert failed.kind == "agent_error"
    assert (
        failed.detail == "agent.py, step 1, line 8: AttributeError: 'Own' object has no attribute"
        " 'aoi_mode_cache'"
    )


@pytest.mark.parametrize(
    ("completion", "kind"),
    [
        (Completion("", "content_filter"), "content_filter"),
        (Completion("", "context_length"), "context_length"),
        (Completion("", "length"), "length"),
        (Completion("", "stop", reasoning="想"), "empty"),
        (Completion("", "stop", refusal="不"), "refusal"),
    ],
)
def test_a_completion_without_text_is_a_value_error(tmp_path, completion, kind):
    """An agent may go on after it, as upstream; who does not fails under the name of the reason."""

    async def ask(request: Request) -> Completion:
        return completion

    caught = written(
        tmp_path,
        """
        async def forward(self):
            try:
                await self.llm.atext_request([{"role": "user", "content": "?"}])
            except ValueError:
                await self.log_intention("sleep")
        """,
    )
    assert played(runner(caught), ask)[0].intention == "sleep"
    let_be = written(
        tmp_path,
        "async def forward(self):\n    await self.llm.atext_request([{'role': 'a', 'content':"
        " '?'}])",
    )
    assert failure(runner(let_be), ask).kind == kind


@pytest.mark.parametrize("text", ["", " \n"])
def test_an_empty_text_is_a_reply(tmp_path, text):
    """Upstream returns it."""
    body = (
        "async def forward(self):\n    assert await self.llm.atext_request([{'role': 'user',"
        " 'content': '?'}])"
    )
    played(runner(written(tmp_path, f"{body} == {text!r}")), saying(text))


def test_a_message_keeps_its_name_and_its_parts(tmp_path):
    """The body has the dialog as the agent wrote it; a plain one is sent as ever."""
    parts = [{"type": "text", "text": "在"}, {"type": "image_url", "image_url": {"url": "data:,"}}]
    dialog = [{"role": "user", "content": "?", "name": "me"}, {"role": "user", "content": parts}]
    plain = [{"role": "user", "content": "?"}]
    asked: list[Request] = []

    async def ask(request: Request) -> Completion:
        asked.append(request)
        return Completion("好")

    body = f"""
    async def forward(self):
        await self.llm.atext_request({dialog!r})
        await self.llm.atext_request({plain!r})
    """
    played(runner(written(tmp_path, body)), ask)
    bodies = [json.loads(Sampling("m").encode(request)) for request in asked[:2]]
    assert [body["messages"] for body in bodies] == [dialog, plain]
    assert [message.content for message in asked[0].messages] == ["?", "在"]


def test_an_agent_s_request_is_that_of_upstream_field_by_field(tmp_path):
    """The golden bodies are what the client of `agentsociety` 1.5.7 sends (see its README). A
    member that is null is the same to an endpoint as one that is absent, and `stream` is the
    transport's."""
    lines = (DATA / "agentsociety" / "wire-1.5.7.jsonl").read_text(encoding="utf-8").splitlines()
    golden = [
        {
            name: value
            for name, value in json.loads(line).items()
            if value is not None and name != "stream"
        }
        for line in lines
    ]
    asked: list[Request] = []

    async def ask(request: Request) -> Completion:
        asked.append(request)
        return Completion("ok")

    file = written(
        tmp_path,
        """
        async def init(self):
            await super().init()
            dialog, form = [{"role": "user", "content": "hi"}], {"type": "json_object"}
            await self.llm.atext_request(dialog)
            await self.llm.atext_request(dialog, temperature=0.3, max_tokens=50)
            await self.llm.atext_request(
                dialog, response_format=form, top_p=0.5, frequency_penalty=0.1, presence_penalty=0.2
            )
        """,
    )
    played(runner(file), ask)
    sampling = Sampling("m", temperature=None)
    assert [json.loads(sampling.encode(request)) for request in asked] == golden
    overridden = json.loads(Sampling("m", temperature=0.0, max_tokens=9).encode(asked[1]))
    assert overridden == golden[1] | {"temperature": 0.0, "max_tokens": 9}


@pytest.mark.parametrize("given", ["temperature=float('nan')", "top_p={1}", "max_tokens=object()"])
def test_a_parameter_that_json_cannot_hold_is_the_agent_s_error(tmp_path, given):
    file = written(
        tmp_path,
        f"""
        async def forward(self):
            await self.llm.atext_request([{{"role": "user", "content": "?"}}], {given})
        """,
    )
    assert failure(runner(file)).kind == "agent_error"


def test_times_of_a_request_are_the_run_s_and_said_once(tmp_path):
    """One warning each, whatever number of residents; the format of the reply is followed."""
    asked: list[Request] = []

    async def ask(request: Request) -> Completion:
        asked.append(request)
        return Completion("好")

    file = written(
        tmp_path,
        """
        async def init(self):
            await super().init()
            dialog = [{"role": "user", "content": "？"}]
            await self.llm.atext_request(dialog, {"type": "text"}, 0.3, 100, timeout=30, retries=2)
            await self.llm.atext_request(dialog, response_format={"type": "json_schema"}, temperature=1)
            await self.llm.atext_request(dialog, tools=None)
        """,
    )
    warnings: list[str] = []
    running = runner(file, warnings.append)
    played(running, ask)
    played(running, ask)
    assert [request.json_object for request in asked] == [False, True, False] * 2
    assert asked[1].parameters == {"temperature": 1, "response_format": {"type": "json_schema"}}
    names = ["timeout=...", "retries=..."]
    assert [warning.partition(" is ")[0] for warning in warnings] == [
        f"agent.py: atext_request({n})" for n in names
    ]


@pytest.mark.parametrize(
    "message",
    ["{'role': 'user', 'content': 3}", "{'role': 'user', 'content': '\\ud83d'}", "'user'"],
)
def test_a_dialog_that_no_request_can_carry_is_the_agent_s_error(tmp_path, message):
    """It is found where the agent stands, not where the request is encoded."""
    body = f"async def forward(self):\n    await self.llm.atext_request([{message}])"
    assert failure(runner(written(tmp_path, body))).detail.startswith("agent.py, step 1, line 6: ")


def test_a_request_holds_nothing_of_the_agent_s(tmp_path):
    """Text of a class of its own is text to the harness, which encodes it outside of slices."""
    body = (
        "async def forward(self):\n    await self.llm.atext_request([{'role': Text('user'),"
        " 'content': Text('在')}])"
    )
    asked: list[Request] = []

    async def ask(request: Request) -> Completion:
        asked.append(request)
        return Completion("好")

    file = written(tmp_path, body, top="class Text(str):\n    def encode(self): return 5\n")
    played(runner(file), ask)
    (message,) = asked[0].messages
    assert message == Message("user", "在") and {type(message.role), type(message.content)} == {str}


@pytest.mark.parametrize("mode", [4, 6])
def test_other_trip_modes_are_taken_as_driving_and_said(tmp_path, mode):
    """The simulator knows driving and walking."""
    warnings: list[str] = []
    body = f"async def forward(self):\n    await self.go_to_aoi(({AOI + 35}, {mode}))"
    played(runner(written(tmp_path, body), warnings.append))
    assert len(warnings) == 2 and warnings[1].startswith(f"agent.py: trip mode {mode} ")
    assert "upstream takes a POI" in warnings[0]


def test_residents_share_the_module_alone(tmp_path):
    """As upstream, where all run in one process: what a file keeps at its top is everybody's."""
    body = (
        "async def init(self):\n    await super().init()\n    SEEN.append(self.id)\n    self.own ="
        " [self.id]\n"
    )
    running = runner(written(tmp_path, body, top="SEEN = []"))

    async def both() -> None:
        await asyncio.gather(*(play(running, resident(number), silence) for number in (1, 2)))

    asyncio.run(both())
    assert vars(__import__("sys").modules[running.agent.cls.__module__])["SEEN"] == [1, 2]


def test_draws_depend_on_nobody_else():
    """A resident plays the same day alone, among twenty, and whatever the process itself has
    drawn."""
    running = Runner(runner("asks_at_once.py").agent, world(), seed=5)
    alone = {number: played(running, saying("好"), number) for number in (1, 7)}

    async def all_of_them() -> list[list[Row]]:
        random.seed(99)
        return await asyncio.gather(
            *(play(running, resident(number), saying("好")) for number in range(20))
        )

    together = asyncio.run(all_of_them())
    assert together[1] == alone[1] and together[7] == alone[7] and together[1] != together[7]
    assert played(runner("asks_at_once.py", seed=6), saying("好")) != alone[1]


@pytest.mark.parametrize("how", first_quick(["nested", "gather", "groups"]))
def test_draws_of_tasks_at_once_depend_on_no_reply_s_order(tmp_path, how):
    """Each task has draws of its own, by who started it and in which order; tasks of tasks too."""
    ways = {
        "gather": "said = await asyncio.gather(*map(self.say, '012'))",
        "nested": "said = sum(await asyncio.gather(self.both('01'), self.both('23')), [])",
        "groups": (
            """
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self.say(each)) for each in "012"]
            said = [task.result() for task in tasks]
        """
        ),
    }
    head = """
        async def say(self, what):
            drawn = random.random()
            await self.llm.atext_request([{"role": "user", "content": what}])
            return f"{drawn} {random.random()} {np.random.random()}"
        async def both(self, two):
            return await asyncio.gather(*map(self.say, two))
    """
    body = f"{dedent(head)}async def forward(self):\n{indent(dedent(ways[how]).strip(), '    ')}"
    body += "\n    await self.log_intention(' '.join([*said, str(random.random())]))"
    running = runner(written(tmp_path, body, top="import numpy as np\n"))
    forwards, backwards = (played(running, after(waits)) for waits in ((0, 1, 2, 3), (9, 6, 3, 0)))
    assert forwards == backwards
    drawn = [draw for row in forwards for draw in (row.intention or "").split()]
    assert len(set(drawn)) == len(drawn)


def after(waits: tuple[int, ...]) -> Ask:
    """Answers request n once the loop has gone round `waits[n]` times."""

    async def ask(request: Request) -> Completion:
        for _ in range(waits[int(request.messages[0].content)]):
            await asyncio.sleep(0)
        return Completion("好")

    return ask


def test_the_process_keeps_its_own_random_states(tmp_path):
    """Whatever agents draw and seed."""
    body = """
    async def forward(self):
        random.seed(3), np.random.seed(3)
        await asyncio.sleep(0)
        await self.log_intention(f"{random.random()} {np.random.normal()}")
    """
    file = written(tmp_path, body, top="import numpy as np\n")
    random.seed(1)
    np.random.seed(1)
    before = random.getstate(), np.random.get_state()[1].tolist()
    rows = played(runner(file))
    assert before == (random.getstate(), np.random.get_state()[1].tolist())
    assert {row.intention for row in rows} == {
        f"{random.Random(3).random()} {np.random.RandomState(3).normal()}"
    }


def test_numpy_draws_are_each_resident_s_too(tmp_path):
    """Alone or together, the same; one resident and another, not."""
    body = (
        "async def forward(self):\n    await asyncio.sleep(0)\n    await"
        " self.log_intention(str(np.random.rand()))"
    )
    running = runner(written(tmp_path, body, top="import numpy as np\n"))

    async def both() -> list[list[Row]]:
        return await asyncio.gather(
            *(play(running, resident(number), silence) for number in (1, 2))
        )

    first, second = asyncio.run(both())
    assert first == played(running) and first != second and json.loads(first[0].intention or "") < 1


def test_an_order_on_the_way_turns_the_resident_round(tmp_path):
    """Two seconds after it was given, as every order; who is already on the way need not arrive
    first."""
    body = f"""
    async def forward(self):
        if self.environment.get_tick() == 1:
            await self.environment.set_aoi_schedules(self.id, [{AOI + 5}], departure_times=[0], modes=[1])
        if self.environment.get_tick() == 901:
            await self.go_to_aoi({HOME})
    """
    rows = [row.aoi for row in played(runner(written(tmp_path, body)))]
    assert rows[:4] == [HOME, None, HOME, HOME]


def test_a_field_of_the_profile_that_upstream_leaves_out_is_not_there(tmp_path):
    """A data set may keep there what is to be found out; what a class declares it gets."""
    body = """
    StatusAttributes = [MemoryAttribute(name="hobby", type=str, default_or_value="", description="")]
    async def forward(self):
        assert await self.status.get("hobby") == "下棋"
        try:
            await self.status.get("truth")
        except KeyError:
            return
        raise AssertionError("an agent may not know this")
    """
    running = runner(
        written(tmp_path, body, top="from agentsociety.agent import MemoryAttribute\n")
    )
    one = replace(resident(), profile={**resident().profile, "hobby": "下棋", "truth": [1, 4]})
    assert len(asyncio.run(play(running, one, silence))) == 100


def test_agent_senses_what_its_world_says_of_each_day(tmp_path):
    """By name, and upstream's answer for a name that nothing is said of."""
    file = written(
        tmp_path,
        """
        async def forward(self):
            day, _ = self.environment.get_datetime()
            assert self.environment.sense("weather") == ("fine", "a storm")[day]
            assert self.environment.sense("mood") == "Don't know"
        """,
    )
    days = ({"weather": "fine"}, {"weather": "a storm"})
    living = Runner(runner(file).agent, World(city(), 4, 43_200, days), seed=1)
    assert len(played(living)) == 4


def test_world_that_says_nothing_of_its_days_fails_whoever_senses(tmp_path):
    file = written(tmp_path, "async def forward(self): self.environment.sense('weather')")
    with pytest.raises(AgentFailed, match=r"Environment\.sense is not available here"):
        played(runner(file))
