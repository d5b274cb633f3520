"""An agent for asbench and this harness that plans its day in one request, which
`baseline/commuter` can answer, too.

To try agent mode without a model:

    make run BENCHMARK=dailymobility MODEL=baseline/commuter NAME=try ARGS="--demo --agent
    examples/commuting_agent.py"
"""

import json
from math import hypot

from agentsociety.cityagent.blocks.utils import clean_json_response
from agentsociety_benchmark.benchmarks import DailyMobilityAgent

QUESTION = """你住在北京。家：AOI {home}，坐标 (0, 0) 米。
工作地：AOI {work}，坐标 ({x:.0f}, {y:.0f}) 米，距家 {away:.0f} 米。

### 吃饭（eating out）
{places}

请安排你今天 00:00 到 24:00 的活动，只回答 JSON：
{{"segments": [{{"start": "00:00", "end": "07:30", "intention": "sleep", "place": "home"}}]}}
intention 取 {intentions} 之一；place 取 home、work 或 AOI 编号。"""


class CommutingAgent(DailyMobilityAgent):
    async def init(self):
        await super().init()
        self.segments = []

    async def forward(self):
        if not self.segments:
            self.segments = await self.plan()
        _, time = self.environment.get_datetime(format_time=True)
        now = next(each for each in self.segments if each["start"] <= time[:5] < each["end"])
        place = self.places.get(now["place"], now["place"])
        await self.go_to_aoi(place)
        await self.log_intention(now["intention"])

    async def plan(self):
        self.places = {
            name: (await self.status.get(name))["aoi_position"]["aoi_id"]
            for name in ("home", "work")
        }
        home, work = (self.middle(self.places[name]) for name in ("home", "work"))
        near = self.environment.get_around_poi(work, 2000, "restaurant")[:8]
        lines = [
            f"- AOI {poi['aoi_id']} {poi['name']}，距工作地 {self.away(poi['aoi_id'], work):.0f} 米"
            for poi in near
        ]
        question = QUESTION.format(
            **self.places,
            x=work[0] - home[0],
            y=work[1] - home[1],
            away=hypot(work[0] - home[0], work[1] - home[1]),
            places="\n".join(lines),
            intentions="、".join(self.intention_list),
        )
        reply = await self.llm.atext_request(
            [{"role": "user", "content": question}], response_format={"type": "json_object"}
        )
        return json.loads(clean_json_response(reply))["segments"]

    def middle(self, aoi):
        at = self.environment.map.get_aoi(aoi)["shapely_xy"].centroid
        return at.x, at.y

    def away(self, aoi, other):
        x, y = self.middle(aoi)
        return hypot(x - other[0], y - other[1])
