"""An agent with work of its own: 2 ms of CPU a step, and a request every tenth step."""

import time

from agentsociety_benchmark.benchmarks import DailyMobilityAgent

OWN_SECONDS = 0.002
STEPS_A_REQUEST = 10


class Busy(DailyMobilityAgent):
    async def forward(self):
        until = time.thread_time() + OWN_SECONDS
        while time.thread_time() < until:
            pass
        day, clock = self.environment.get_datetime(format_time=True)
        self.steps = getattr(self, "steps", 0) + 1
        if self.steps % STEPS_A_REQUEST == 0:
            await self.llm.atext_request(
                [{"role": "user", "content": f"现在是第 {day} 天 {clock}，你打算做什么？"}]
            )
        home = await self.status.get("home")
        await self.go_to_aoi(home["aoi_position"]["aoi_id"])
        await self.log_intention("home activity")
