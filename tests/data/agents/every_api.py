"""A resident whose prompts hold what each part of upstream's interface returns, in the order of its return."""

import json

from agentsociety.agent import AgentContext, AgentParams, Block, BlockContext, BlockParams, DotDict, FormatPrompt
from agentsociety.agent.context import context_to_dot_dict
from agentsociety.agent.prompt import FormatPrompt as SamePrompt
from agentsociety.message import Message, MessageKind
from agentsociety_benchmark.benchmarks import DailyMobilityAgent


class Params(AgentParams):
    radius: int = 5000


class Context(AgentContext):
    mood: str = "calm"
    plan: dict = {"next": "nowhere"}  # noqa: RUF012


class ErrandParams(BlockParams):
    most: int = 5


class ErrandContext(BlockContext):
    done: int = 0


class Errands(Block):
    ParamsType = ErrandParams
    Context = ErrandContext
    name = "errands"

    async def forward(self, agent_context):
        self.context.done += 1
        shops = self.environment.get_around_poi(agent_context, 5000, ["supermarket", "restaurant"])
        return [shop["name"] for shop in shops[: self.most]]


class EveryApi(DailyMobilityAgent):
    ParamsType = Params
    Context = Context

    async def init(self):
        await super().init()
        assert SamePrompt is FormatPrompt and self.default_params().radius == self.params.radius
        assert context_to_dot_dict(self.default_context()) == self.context and isinstance(self.context, DotDict)
        self.errands = Errands(self.toolbox, self.memory)
        assert Errands.default_params().most == 5 and Errands.default_context().done == 0
        self.steps = 0
        self.seen = []

    async def forward(self):
        self.steps += 1
        if (await self.status.get("status")) in self.movement_status or self.steps % 24:
            return
        position = await self.status.get("position")
        here = position["aoi_position"]["aoi_id"]
        centre = position["xy_position"]["x"], position["xy_position"]["y"]
        reply = await self.ask(self.places(centre, here), position)
        await self.remember(reply)
        await self.shapes(reply)
        await self.go_to_aoi(int(reply.split(",")[0]))
        await self.log_intention(reply.split(", ")[1])

    def places(self, centre, here):
        map, around = self.environment.map, self.environment.get_around_poi
        area, poi = map.get_aoi(here), map.query_pois(centre, 3000, limit=1)[0][0]
        return {
            "near": [each["name"] for each in around(centre, 1000, ["restaurant", "shopping", "park"])[:5]],
            "far": [each["name"] for each in around(centre, self.params.radius, "restaurant")[:5]],
            "unsorted": [each["id"] for each in map.query_pois(centre, 2500, return_distance=False)],
            "shops": [each["id"] for each in map.query_pois(centre, 9000, "shop", 4, return_distance=False)],
            "sorted": [[each["id"], round(away, 3)] for each, away in map.query_pois(centre, 4000, limit=5)],
            "areas": [[each["id"], round(away, 3)] for each, away in map.query_aois(centre, 3000, limit=5)],
            "fields": [list(area), list(poi)],
            "area": {name: value for name, value in area.items() if not name.startswith("shapely")},
            "poi": {name: value for name, value in poi.items() if not name.startswith("shapely")},
        }

    async def ask(self, places, position):
        prompt = FormatPrompt(
            "I am {name}, ${profile.age} years old, ${status.occupation}, ${context.mood}, ${context.missing}. "
            "Home: ${status.home['aoi_position']['aoi_id']}. {places}",
            format_prompt="AOI_ID, intention?",
            system_prompt="You live in Beijing.",
            memory=self.memory,
        )
        self.context.mood = f"{self.context.mood}, then {self.steps}"
        motion = [
            [key, await self.status.get(key)] for key in ("v", "direction", "activity", "l", "a", "num_passengers")
        ]
        told = {"motion": motion, "position": position, **places, "shops first": await self.errands.forward((0, 0))}
        await prompt.format(context=self.context, name=type(self).__name__, places=json.dumps(told, ensure_ascii=False))
        dialog = [*prompt.to_dialog(), {"role": "assistant", "content": "Well.", "name": "me"}]
        dialog.append({"role": "user", "name": f"resident_{self.id}", "content": str(prompt.variables)})
        return await self.llm.atext_request(dialog, temperature=0.5, max_tokens=100)

    async def remember(self, reply):
        self.seen += [await self.stream.add("mobility", f"{reply} {number}") for number in range(3)]
        await self.stream.add_cognition_to_memory(self.seen[-2:], f"thought of {reply}")
        found = {
            "by id": await self.stream.get_by_ids(self.seen[-4:]),
            "search": await self.stream.search(reply, topic="mobility"),
            "today": await self.stream.search_today(),
            "status": await self.status.search("occupation", filter={"key": "occupation"}),
            "unembedded": await self.status.search("current_plan", filter={"key": "current_plan"}),
            "all": (await self.stream.get_all())[-2:],
            "kinds": [MessageKind.AGENT_CHAT.value, Message(day=0, t=1, kind="user-chat", payload={"a": 1}).payload],
        }
        parts = [{"type": "text", "text": text} for text in found["by id"].splitlines()]
        parts.append({"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}})
        await self.llm.atext_request([{"role": "user", "content": parts}])
        await self.llm.atext_request([{"role": "user", "content": json.dumps(found, ensure_ascii=False)}])

    async def shapes(self, reply):
        silence = await self.llm.atext_request([{"role": "user", "content": f"Say nothing. {reply}"}])
        said = {"role": "user", "content": f"You said {silence!r} for {reply}"}
        await self.llm.atext_request([said], response_format={"type": "json_object"}, top_p=0.9)
