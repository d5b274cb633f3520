"""The shape of the agent that `asbench` hands out to start from: a class of its own name from the citizen's base."""

import random

from agentsociety.agent import CitizenAgentBase, MemoryAttribute
from pycityproto.city.person.v2.motion_pb2 import Status


class DailyMobilityAgent(CitizenAgentBase):
    StatusAttributes = [  # noqa: RUF012
        MemoryAttribute(name="current_plan", type=dict, default_or_value={}, description="what is being done"),
    ]

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.last_departure = -1
        self.movement_status = [Status.STATUS_WALKING, Status.STATUS_DRIVING]
        self.intention_list = ["sleep", "home activity", "other", "work", "shopping", "eating out"]

    async def go_to_aoi(self, aoi_id: int):
        assert self.environment is not None
        await self.environment.set_aoi_schedules(self.id, target_positions=aoi_id)

    async def log_intention(self, intention: str):
        plan = {"target": intention, "index": 0, "steps": [{"intention": intention}]}
        await self.memory.status.update("current_plan", plan)

    async def forward(self):
        if await self.memory.status.get("status") in self.movement_status:
            return
        _, time = self.environment.get_datetime()
        if self.last_departure == -1 or time - self.last_departure > 3600:
            self.last_departure = time
            await self.go_to_aoi(random.choice(self.environment.get_aoi_ids()))
            await self.log_intention(random.choice(self.intention_list))
