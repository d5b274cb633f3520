"""The class that agent files written for asbench's DailyMobility derive from. Names as in `asbench`
0.1.4."""

from __future__ import annotations

import random
from typing import Any

from harness.benchmarks.agents.classes import MemoryAttribute, MobilityAgent
from harness.benchmarks.dailymobility.day import INTENTIONS


class DailyMobilityAgent(MobilityAgent):
    """A resident of the benchmark. Without a `forward` of its own it goes somewhere at random at
    each step."""

    StatusAttributes = [  # noqa: RUF012
        MemoryAttribute(
            name="current_plan",
            type=dict,
            default_or_value={},
            description="what the resident means to do",
        )
    ]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.intention_list = list(INTENTIONS.values())

    async def log_intention(self, intention: str) -> None:
        plan = {
            "target": intention,
            "index": 0,
            "steps": [{"intention": intention}],
        }
        await self.memory.status.update("current_plan", plan)

    async def forward(self) -> Any:
        await self.go_to_aoi(random.choice(self.environment.get_aoi_ids()))
        await self.log_intention(random.choice(self.intention_list))
