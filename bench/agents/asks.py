"""An agent that asks the model once a step and does as it did before, whatever the answer."""

from agentsociety_benchmark.benchmarks import DailyMobilityAgent


class Asks(DailyMobilityAgent):
    async def forward(self):
        day, clock = self.environment.get_datetime(format_time=True)
        await self.llm.atext_request(
            [{"role": "user", "content": f"现在是第 {day} 天 {clock}，你打算做什么？"}]
        )
        home = await self.status.get("home")
        await self.go_to_aoi(home["aoi_position"]["aoi_id"])
        await self.log_intention("home activity")
