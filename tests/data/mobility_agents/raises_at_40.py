"""Asks the model what to do at each step, and forgets that resident 3 may get no plan at its step 40."""

from agentsociety_benchmark.benchmarks import DailyMobilityAgent


class Forgetful(DailyMobilityAgent):
    async def forward(self):
        step = self.environment.get_tick() // 900 + 1
        question = f"居民 {self.id}，第 {step} 步：做什么？"
        plan = {"intention": await self.llm.atext_request([{"role": "user", "content": question}])}
        if self.id == 3 and step == 40:
            plan = {}
        await self.log_intention(plan["intention"])
