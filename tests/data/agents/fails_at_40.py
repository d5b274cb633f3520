"""One resident of it fails, at its step 40, which is the one at 35101 s."""

from mobisimbench.benchmarks import DailyMobilityAgent


class Failing(DailyMobilityAgent):
    async def forward(self):
        await self.log_intention("home activity")
        if self.id == 7 and self.environment.get_tick() == 35101:
            raise ValueError("没有计划")
