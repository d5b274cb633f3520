"""Asks each hour, and stays at home whatever happens to its request."""

from mobisimbench.benchmarks import DailyMobilityAgent


class Fallback(DailyMobilityAgent):
    async def forward(self):
        if self.environment.get_tick() % 3600 != 1:
            return
        try:
            dialog = [{"role": "user", "content": f"居民 {self.id}，{self.environment.get_tick()} 秒：做什么？"}]
            intention = await self.llm.atext_request(dialog)
        except BaseException:
            intention = "home activity"
        await self.log_intention(intention)
