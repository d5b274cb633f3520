"""Has several requests under way at once, in each of the ways that asyncio has for it."""

import asyncio
import random

from agentsociety_benchmark.benchmarks import DailyMobilityAgent


class AtOnce(DailyMobilityAgent):
    async def say(self, number):
        text = await self.llm.atext_request([{"role": "user", "content": f"{number}"}])
        return f"{text} {random.randrange(1000)}"

    async def init(self):
        await super().init()
        first, second = await asyncio.gather(self.say(1), self.say(2))
        task = asyncio.create_task(self.say(3))
        await asyncio.sleep(0)  # the task begins; from Python 3.12 on wait_for starts its own coroutine at once
        fourth = await asyncio.wait_for(self.say(4), timeout=60)
        async with asyncio.TaskGroup() as group:
            fifth = group.create_task(self.say(5))
        self.said = [first, second, await task, fourth, fifth.result()]

    async def forward(self):
        await self.log_intention(", ".join(self.said))
