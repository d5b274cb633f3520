"""Asks the model at each step where to go and what for."""

import json

from agentsociety.cityagent.blocks.utils import clean_json_response
from agentsociety_benchmark.benchmarks import DailyMobilityAgent


class AskingAgent(DailyMobilityAgent):
    async def forward(self):
        day, time = self.environment.get_datetime(format_time=True)
        home = await self.status.get("home")
        work = await self.status.get("work")
        reply = await self.llm.atext_request(
            [
                {"role": "system", "content": "你是一位北京居民。"},
                {
                    "role": "user",
                    "content": f"第{day}天 {time}，家 {home['aoi_position']['aoi_id']}，"
                    f"公司 {work['aoi_position']['aoi_id']}。以 JSON 回答 aoi 和 intention。",
                },
            ],
            response_format={"type": "json_object"},
        )
        answer = json.loads(clean_json_response(reply))
        await self.go_to_aoi(answer["aoi"])
        await self.log_intention(answer["intention"])
