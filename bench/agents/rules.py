"""An agent without any request: what it costs is the simulator's and the surroundings' own."""

from agentsociety_benchmark.benchmarks import DailyMobilityAgent


class Rules(DailyMobilityAgent):
    async def forward(self):
        _, seconds = self.environment.get_datetime()
        hour = seconds / 3600
        if 9 <= hour < 12 or 13 <= hour < 18:
            place, intention = await self.status.get("work"), "work"
        elif 7 <= hour < 23:
            place, intention = await self.status.get("home"), "home activity"
        else:
            place, intention = await self.status.get("home"), "sleep"
        await self.go_to_aoi(place["aoi_position"]["aoi_id"])
        await self.log_intention(intention)
