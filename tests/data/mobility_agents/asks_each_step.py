"""At each step asks the model for the resident's day as it sees it now, and does what that says of this half hour."""

import json

from agentsociety.cityagent.blocks.utils import clean_json_response
from agentsociety_benchmark.benchmarks import DailyMobilityAgent

PROMPT = """我是 {number} 号居民，{age} 岁，职业：{occupation}。现在是第 {day} 天 {time}。
家：AOI {home}，坐标 {home_at} 米
工作地：AOI {work}，坐标 {work_at} 米，距家 {apart} 米
请以 JSON 写出我今天的安排。"""


class AskingAgent(DailyMobilityAgent):
    async def forward(self):
        day, time = self.environment.get_datetime(format_time=True)
        answer = await self.llm.atext_request(
            [{"role": "user", "content": await self.prompt(day, time)}], response_format={"type": "json_object"}
        )
        now = self.now(json.loads(clean_json_response(answer))["segments"], time[:5])
        await self.log_intention(now["intention"])
        await self.go_to_aoi(now["place"])

    async def prompt(self, day, time):
        home = (await self.status.get("home"))["aoi_position"]["aoi_id"]
        work = (await self.status.get("work"))["aoi_position"]["aoi_id"]
        (home_x, home_y), (work_x, work_y) = self.centre(home), self.centre(work)
        return PROMPT.format(
            number=self.id,
            age=await self.status.get("age"),
            occupation=await self.status.get("occupation"),
            day=day,
            time=time,
            home=home,
            home_at=f"({home_x}, {home_y})",
            work=work,
            work_at=f"({work_x}, {work_y})",
            apart=round(((home_x - work_x) ** 2 + (home_y - work_y) ** 2) ** 0.5),
        )

    def centre(self, aoi):
        centroid = self.environment.map.get_aoi(aoi)["shapely_xy"].centroid
        return round(centroid.x), round(centroid.y)

    def now(self, segments, time):
        return next(each for each in segments if each["start"] <= time < each["end"])
