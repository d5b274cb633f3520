"""The classes that agent files derive from and hand around. Names as in `agentsociety` 1.5.7 and `asbench` 0.1.4."""

from __future__ import annotations

import inspect
import logging
import random
from abc import ABC, abstractmethod
from collections.abc import Callable
from copy import deepcopy
from enum import Enum
from typing import Any, TypeVar

from harness.benchmarks.dailymobility.agents.environment import Environment
from harness.benchmarks.dailymobility.agents.interface import Backstage, Bounded, names
from harness.benchmarks.dailymobility.agents.llm import LLM
from harness.benchmarks.dailymobility.agents.memory import Memory
from harness.benchmarks.dailymobility.day import INTENTIONS
from harness.benchmarks.dailymobility.simulator import SPEEDS

SLEEP, DRIVING, WALKING = 1, 2, 3
"""Of the numbers that `Status` has, those that occur here. Whoever is in an AOI has the first, as upstream."""

LOGGER = "harness.agent"
Self = TypeVar("Self", bound="Fields")
Function = TypeVar("Function", bound=Callable[..., Any])


def get_logger() -> logging.Logger:
    """The logger of all agents. It keeps what it is told to itself, until somebody adds a handler."""
    logger = logging.getLogger(LOGGER)
    if not logger.handlers:
        logger.addHandler(logging.NullHandler())
        logger.propagate = False
        logger.setLevel(logging.INFO)
    return logger


class Fields:
    """Values by the names that a class annotates, with its defaults. Values are not checked, unknown names ignored."""

    def __init__(self, **values: Any) -> None:
        for of in reversed(type(self).__mro__):
            for name in inspect.get_annotations(of):
                if name in values:
                    setattr(self, name, values[name])
                elif hasattr(type(self), name):
                    setattr(self, name, _default(getattr(type(self), name)))
                else:
                    raise TypeError(f"{type(self).__name__}: {name} is missing")

    @classmethod
    def model_validate(cls: type[Self], values: dict[str, Any]) -> Self:
        return cls(**values)

    def model_dump(self) -> dict[str, Any]:
        return dict(vars(self))


def _default(value: Any) -> Any:
    """A copy of a default, be it pydantic's `Field(...)`."""
    made = getattr(value, "get_default", None)
    return deepcopy(value) if made is None else made(call_default_factory=True)


class MemoryAttribute(Fields):
    name: str
    type: Any
    default_or_value: Any
    description: str
    whether_embedding: bool = False
    embedding_template: str | None = None


class AgentParams(Fields): ...


class AgentContext(Fields): ...


class BlockContext(Fields): ...


class BlockOutput(Fields): ...


class BlockParams(Fields):
    block_memory: dict[str, Any] | None = None


class AgentType(Enum):
    Unspecified = "Unspecified"
    Citizen = "Citizen"
    Institution = "Institution"
    Supervisor = "Supervisor"
    Individual = "Individual"


class AgentToolbox(Bounded):
    """What an agent is given: the model, the environment, and behind them the harness."""

    LACKS = names("messager embedding database_writer custom_tools add_tool add_custom_tool get_tool list_tools")

    def __init__(self, backstage: Backstage, llm: LLM, environment: Environment) -> None:
        self._backstage = backstage
        self.llm = llm
        self.environment = environment


class Tooled(Bounded):
    """Something with a toolbox and a memory."""

    _toolbox: AgentToolbox
    _memory: Memory

    @property
    def toolbox(self) -> AgentToolbox:
        return self._toolbox

    @property
    def llm(self) -> LLM:
        return self._toolbox.llm

    @property
    def environment(self) -> Environment:
        return self._toolbox.environment

    @property
    def memory(self) -> Memory:
        return self._memory


class Block(Tooled):
    """A part of an agent's behaviour, which the agent makes and calls."""

    LACKS = names("block_memory context get_functions")
    ParamsType: type[BlockParams] = BlockParams
    Context: type[BlockContext] = BlockContext
    OutputType: Any = None
    NeedAgent = False
    name = ""
    description = ""
    actions: dict[str, str] = {}  # noqa: RUF012  (upstream's, for subclasses to replace)
    agent: Any = None

    def __init__(self, toolbox: AgentToolbox, agent_memory: Memory, block_params: Any = None) -> None:
        self._backstage = toolbox._backstage
        self._toolbox = toolbox
        self._memory = agent_memory
        self.params = self.ParamsType() if block_params is None else block_params

    @property
    def agent_memory(self) -> Memory:
        return self._memory

    def set_agent(self, agent: Any) -> None:
        self.agent = agent

    async def before_forward(self) -> None: ...

    async def after_forward(self) -> None: ...

    async def forward(self, agent_context: Any) -> Any:
        """A file's own blocks have it; to call that of the base is the agent's error, as it is upstream."""
        raise NotImplementedError


class Agent(Tooled, ABC):
    LACKS = names(
        "dispatcher context get_functions gather_query gather_results messager database_writer reset"
        " react_to_intervention send_message_to_agent register_gather_query get_gather_results register_aoi_message"
        " cancel_aoi_message do_survey do_interview do_chat save_agent_thought get_aoi_info get_nowtime"
    )
    ParamsType: type[AgentParams] = AgentParams
    Context: type[AgentContext] = AgentContext
    BlockOutputType: Any = BlockOutput
    StatusAttributes: list[MemoryAttribute] = []  # noqa: RUF012  (upstream's, for subclasses to replace)
    description = ""

    def __init__(
        self,
        id: int,
        name: str,
        toolbox: AgentToolbox,
        memory: Memory,
        agent_params: Any = None,
        blocks: list[Block] | None = None,
    ) -> None:
        self._backstage = toolbox._backstage
        self._id = id
        self._name = self.name = name
        self._toolbox = toolbox
        self._memory = memory
        self.params = self.ParamsType() if agent_params is None else agent_params
        self.blocks = blocks or []
        self.logger = get_logger()

    @property
    def id(self) -> int:
        return self._id

    @property
    def status(self) -> Any:
        return self.memory.status

    @property
    def stream(self) -> Any:
        return self.memory.stream

    async def init(self) -> None:
        await self.memory.status.update("id", self._id)

    @abstractmethod
    async def forward(self) -> Any: ...

    async def before_forward(self) -> None: ...

    async def after_forward(self) -> None: ...

    async def before_blocks(self) -> None:
        for block in self.blocks:
            await block.before_forward()

    async def after_blocks(self) -> None:
        for block in self.blocks:
            await block.after_forward()

    async def status_summary(self) -> None:
        await self.memory.status.update("status_summary", "Nothing")

    async def close(self) -> None: ...

    async def run(self) -> None:
        """One step."""
        await self.before_forward()
        await self.before_blocks()
        await self.forward()
        await self.after_blocks()
        await self.after_forward()
        await self.status_summary()


class CitizenAgentBase(Agent):
    async def before_forward(self) -> None:
        await super().before_forward()
        await self.update_motion()

    async def update_motion(self) -> None:
        """Writes down where the simulator has this resident. An agent that never calls this does not know."""
        walker, status = self._backstage.walker, self.memory.status
        mode = walker.mode
        moving = {"driving": DRIVING, "walking": WALKING}
        await status.update("id", self._id)
        await status.update("status", SLEEP if mode is None else moving[mode])
        await status.update("position", walker.position)
        await status.update("v", 0.0 if mode is None else SPEEDS[mode])
        await status.update("direction", 0.0)
        await status.update("activity", "")
        await status.update("l", 0.0)


class DailyMobilityAgent(CitizenAgentBase):
    """A resident of the benchmark. Without a `forward` of its own it goes somewhere at random at each step."""

    StatusAttributes = [  # noqa: RUF012
        MemoryAttribute(
            name="current_plan", type=dict, default_or_value={}, description="what the resident means to do"
        )
    ]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.movement_status = [WALKING, DRIVING]
        self.intention_list = list(INTENTIONS.values())

    async def go_to_aoi(self, aoi_id: Any) -> None:
        """An AOI, or what else `Environment.set_aoi_schedules` takes as one."""
        await self.environment.set_aoi_schedules(self.id, target_positions=aoi_id)

    async def log_intention(self, intention: str) -> None:
        plan = {"target": intention, "index": 0, "steps": [{"intention": intention}]}
        await self.memory.status.update("current_plan", plan)

    async def forward(self) -> Any:
        await self.go_to_aoi(random.choice(self.environment.get_aoi_ids()))
        await self.log_intention(random.choice(self.intention_list))


def register_get(description: str) -> Callable[[Function], Function]:
    """Upstream announces the method to a model by it; nothing here does."""
    return lambda method: method


def param_docs(**descriptions: str) -> Callable[[Function], Function]:
    return lambda function: function
