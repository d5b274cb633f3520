"""A rule-based resident that uses everything that an agent file may use, and insists on the shape of it."""

import random

import numpy as np
from agentsociety.agent import AgentParams, AgentToolbox, Block, CitizenAgentBase, MemoryAttribute
from agentsociety.cityagent.blocks.utils import clean_json_response
from agentsociety.environment import Environment
from agentsociety.environment.utils.const import POI_CATG_DICT
from agentsociety.logger import get_logger
from agentsociety.memory import Memory
from agentsociety_benchmark.benchmarks import DailyMobilityAgent
from pycityproto.city.person.v2.motion_pb2 import Status
from pycityproto.city.trip.v2.trip_pb2 import TripMode


class Params(AgentParams):
    patience: int = 3


class Errands(Block):
    name = "errands"

    async def forward(self, agent_context):
        return self.environment.get_around_poi(agent_context, 700, ["supermarket", "restaurant"])


class Thorough(DailyMobilityAgent):
    ParamsType = Params
    StatusAttributes = [  # noqa: RUF012
        *DailyMobilityAgent.StatusAttributes,
        MemoryAttribute(name="mood", type=str, default_or_value="calm", description="心情"),
    ]

    def __init__(self, id, name, toolbox: AgentToolbox, memory: Memory, agent_params=None, blocks=None):
        super().__init__(id=id, name=name, toolbox=toolbox, memory=memory, agent_params=agent_params, blocks=blocks)
        self.errands = Errands(toolbox, memory)
        self.started = self.ended = self.walks = 0

    async def init(self):
        await super().init()
        assert isinstance(self, CitizenAgentBase) and isinstance(self.environment, Environment)
        assert await self.status.get("id") == self.id
        self.home = (await self.status.get("home"))["aoi_position"]["aoi_id"]
        self.work = (await self.memory.status.get("work"))["aoi_position"]["aoi_id"]
        assert self.name == f"Thorough_{self.id}" and self.params.patience == 3
        assert await self.status.get("mood") == "calm" and await self.status.get("occupation") == "教师"
        assert await self.status.get("nothing", "else") == "else"
        try:
            await self.status.get("nothing")
        except KeyError:
            pass
        else:
            raise AssertionError("an unknown key without default")

    async def before_forward(self):
        await super().before_forward()
        self.started += 1

    async def after_forward(self):
        await super().after_forward()
        self.ended += 1
        assert self.started == self.ended

    async def forward(self):
        status = await self.status.get("status")
        position = await self.status.get("position")
        x, y = position["xy_position"]["x"], position["xy_position"]["y"]
        assert set(position["xy_position"]) == {"x", "y", "z"}
        if status in self.movement_status:
            assert status in (Status.STATUS_WALKING, Status.STATUS_DRIVING)
            assert set(position["lane_position"]) == {"lane_id", "s"}
            return
        here = position["aoi_position"]["aoi_id"]
        day, seconds = self.environment.get_datetime()
        assert self.environment.get_tick() == day * 86400 + seconds
        assert self.environment.get_datetime(format_time=True)[1][:2] == f"{seconds // 3600:02d}"
        await self.remember(here)
        await self.look(here, x, y)
        await self.move(seconds // 3600, x, y)

    async def remember(self, here):
        await self.status.update("visited", {here})
        await self.status.update("visited", {self.home}, mode="merge")
        visited = await self.status.get("visited")
        visited.add("a copy")
        assert "a copy" not in await self.status.get("visited")
        number = await self.stream.add(topic="mobility", description=f"在 {here} 停留")
        assert await self.memory.stream.search(f"{here}", topic="mobility") == "Nothing"
        assert await self.memory.stream.search_today() == "Nothing"
        assert (await self.memory.stream.get_all())[-1]["id"] == number

    async def look(self, here, x, y):
        map = self.environment.map
        aois, pois = map.get_all_aois(), map.get_all_pois()
        assert isinstance(aois, list) and isinstance(pois, list)
        assert [aoi["id"] for aoi in aois] == self.environment.get_aoi_ids()
        assert map.get_aoi(here)["id"] == here and map.aois[here]["poi_ids"] == map.get_aoi(here)["poi_ids"]
        assert map.get_poi(pois[0]["id"]) == pois[0] and map.pois[pois[0]["id"]]["aoi_id"] in map.aois
        assert {"name", "category", "position"} <= set(pois[0])
        assert aois[0].get("center") is None and aois[0]["positions"][0].keys() == {"x", "y"}
        assert map.query_aois((x, y), 10)[0][1] == 0
        assert map.query_pois(center=(x, y), radius=3000, limit=2)[0][1] <= 3000 * 2**0.5
        assert self.environment.get_poi_cate() == POI_CATG_DICT
        assert all(
            poi["category"].split("|")[-1] in ("supermarket", *POI_CATG_DICT["restaurant"])
            for poi in await self.errands.forward((x, y))
        )

    async def move(self, hour, x, y):
        if hour < 7 or hour >= 22:
            await self.go_to_aoi(self.home)
            await self.log_intention("sleep")
        elif hour < 12 or 13 <= hour < 18:
            await self.go_to_aoi((self.work, TripMode.TRIP_MODE_DRIVE_ONLY))
            await self.log_intention("work")
        elif hour == 12:
            food = self.environment.get_around_poi(center=(x, y), radius=2000, poi_type="restaurant")
            await self.environment.set_aoi_schedules(self.id, [(random.choice(food)["aoi_id"], None), self.work])
            await self.log_intention(clean_json_response("```json\neating out```"))
        else:
            self.walks += 1
            there = int(np.random.choice(self.environment.get_aoi_ids()))
            await self.go_to_aoi((there, TripMode.TRIP_MODE_WALK_ONLY))
            await self.log_intention(random.choice(self.intention_list))
            self.logger.info("%s walks", self.name)
            get_logger().info("%s", self.llm)
