"""Sleeps, works and goes out by the clock and by chance; no model is asked."""

import random

from agentsociety_benchmark.benchmarks import DailyMobilityAgent


class ByTheClock(DailyMobilityAgent):
    async def forward(self):
        _, seconds = self.environment.get_datetime()
        hour = seconds / 3600
        home = (await self.status.get("home"))["aoi_position"]["aoi_id"]
        work = (await self.status.get("work"))["aoi_position"]["aoi_id"]
        if hour < 7 or hour >= 23:
            await self.settle(home, "sleep")
        elif 9 <= hour < 18:
            await self.settle(work, "work")
        elif hour >= 19 and random.random() < 0.1:
            await self.settle(random.choice(self.environment.get_aoi_ids()), "leisure and entertainment")
        elif hour < 19:
            await self.settle(home, "home activity")

    async def settle(self, aoi, intention):
        await self.go_to_aoi(aoi)
        await self.log_intention(intention)
