"""Falls back to staying at home whatever happens to its request."""

from agentsociety.logger import get_logger
from mobisimbench.benchmarks import DailyMobilityAgent


class Fallback(DailyMobilityAgent):
    async def forward(self):
        intention = "home activity"
        for attempt in range(3):
            try:
                intention = await self.llm.atext_request([{"role": "user", "content": "接下来做什么？"}])
                break
            except Exception as error:
                get_logger().warning("attempt %s: %s", attempt, error)
        await self.log_intention(intention)
