"""The classes that agent files derive from and hand around. Names as in `agentsociety` 1.5.7 and
`asbench` 0.1.4."""

from __future__ import annotations

import inspect
import logging
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable
from copy import deepcopy
from enum import Enum
from operator import attrgetter
from typing import Any, TypeVar

from harness.benchmarks.agents.environment import Environment
from harness.benchmarks.agents.errors import Written
from harness.benchmarks.agents.interface import UPSTREAM, Harness, PartialInterface
from harness.benchmarks.agents.llm import LLM
from harness.benchmarks.agents.memory import Memory
from harness.benchmarks.agents.prompt import context_to_dot_dict
from harness.benchmarks.agents.simulator import SPEEDS

SLEEP, DRIVING, WALKING = 1, 2, 3
"""The numbers of `Status` that occur here. Whoever is in an AOI has the first, as upstream."""
STATUSES = {"driving": DRIVING, "walking": WALKING}
LOGGER = "harness.agent"
Self = TypeVar("Self", bound="Fields")
Function = TypeVar("Function", bound=Callable[..., Any])


class _Kept(logging.Handler):
    """Writes to standard error while that is an agent's, which is kept for the run's log."""

    def emit(self, record: logging.LogRecord) -> None:
        if isinstance(sys.stderr, Written):
            sys.stderr.keep(self.format(record))


def get_logger() -> logging.Logger:
    """Return the logger of all agents."""
    logger = logging.getLogger(LOGGER)
    if not logger.handlers:
        logger.addHandler(_Kept())
        logger.propagate = False
        logger.setLevel(logging.INFO)
    return logger


class Fields:
    """Values by the names that a class annotates, with its defaults. Values are not checked,
    unknown names ignored."""

    def __init__(self, **values: object) -> None:
        cls = type(self)
        for base in reversed(cls.__mro__):
            for name in inspect.get_annotations(base):
                if name in values:
                    setattr(self, name, values[name])
                elif hasattr(cls, name):
                    setattr(self, name, _default(getattr(cls, name)))
                else:
                    raise TypeError(f"{cls.__name__}: {name} is missing")

    @classmethod
    def model_validate(cls: type[Self], values: dict[str, Any]) -> Self:
        return cls(**values)

    def model_dump(self) -> dict[str, Any]:
        return dict(vars(self))


def _default(value: Any) -> Any:
    # A `Field(...)` of pydantic makes its default.
    get_default = getattr(value, "get_default", None)
    if get_default:
        return get_default(call_default_factory=True)
    return deepcopy(value)


class MemoryAttribute(Fields):
    name: str
    type: Any
    default_or_value: Any
    description: str
    whether_embedding: bool = False
    embedding_template: str | None = None


def _enum(name: str, kind: type | None = None) -> Any:
    return Enum(name, UPSTREAM["enums"][name], type=kind)


MessageKind = _enum("MessageKind", str)
RelationType = _enum("RelationType", str)
AgentType = _enum("AgentType")


class Message(Fields):
    """What upstream's residents send each other; nobody sends one here."""

    from_id: int | None = None
    to_id: int | None = None
    day: int
    t: float
    kind: Any
    payload: dict[str, Any]
    created_at: Any = None
    extra: dict[str, Any] | None = None


class SocialRelation(Fields):
    source_id: int | None = None
    target_id: int
    kind: Any
    strength: float | None = 0.0


class AgentParams(Fields): ...


class AgentContext(Fields): ...


class BlockContext(Fields): ...


class BlockOutput(Fields): ...


class BlockParams(Fields):
    block_memory: dict[str, Any] | None = None


class AgentToolbox(PartialInterface):
    """The model and the environment of an agent, and behind them the harness."""

    def __init__(self, harness: Harness, llm: LLM, environment: Environment) -> None:
        self._harness: Harness = harness
        self.llm = llm
        self.environment = environment


class BlockDispatcher(PartialInterface):
    """What chooses among blocks by a call of a tool, which is not available."""

    def __init__(self, toolbox: AgentToolbox, agent_memory: Memory, *rest: object) -> None:
        self._harness: Harness = toolbox._harness


class Tooled(PartialInterface):
    """Something with a toolbox, a memory, parameters and a context."""

    _harness: Harness
    _toolbox: AgentToolbox
    _memory: Memory
    ParamsType: type[Fields]
    Context: type[Fields]

    toolbox = property(attrgetter("_toolbox"))
    llm = property(attrgetter("_toolbox.llm"))
    environment = property(attrgetter("_toolbox.environment"))
    memory = property(attrgetter("_memory"))

    @classmethod
    def default_params(cls) -> Any:
        return cls.ParamsType()

    @classmethod
    def default_context(cls) -> Any:
        return cls.Context()


class Block(Tooled):
    """A part of an agent's behaviour, which the agent makes and calls."""

    ParamsType: type[BlockParams] = BlockParams
    Context: type[BlockContext] = BlockContext
    OutputType: Any = None
    NeedAgent = False
    name = ""
    description = ""
    actions: dict[str, str] = {}  # noqa: RUF012  (upstream's, for subclasses to replace)
    agent: Any = None
    agent_memory = property(attrgetter("_memory"))

    def __init__(
        self,
        toolbox: AgentToolbox,
        agent_memory: Memory,
        block_params: Any = None,
    ) -> None:
        self._harness = toolbox._harness
        self._toolbox = toolbox
        self._memory = agent_memory
        self.params = self.default_params() if block_params is None else block_params
        for name, value in self.params.model_dump().items():
            if name != "block_memory":
                setattr(self, name, value)

        self.context = context_to_dot_dict(self.default_context())

    def set_agent(self, agent: Any) -> None:
        self.agent = agent

    async def before_forward(self) -> None: ...

    async def after_forward(self) -> None: ...

    async def forward(self, agent_context: Any) -> Any:
        """Raise `NotImplementedError`: blocks of a file define it. Calling this is the agent's
        error, as upstream."""
        raise NotImplementedError


class Agent(Tooled, ABC):
    ParamsType: type[AgentParams] = AgentParams
    Context: type[AgentContext] = AgentContext
    BlockOutputType: Any = BlockOutput
    StatusAttributes: list[MemoryAttribute] = []  # noqa: RUF012  (upstream's, for subclasses to replace)
    description = ""
    id = property(attrgetter("_id"))
    status = property(attrgetter("memory.status"))
    stream = property(attrgetter("memory.stream"))

    def __init__(
        self,
        id: int,
        name: str,
        toolbox: AgentToolbox,
        memory: Memory,
        agent_params: Any = None,
        blocks: list[Block] | None = None,
    ) -> None:
        self._harness = toolbox._harness
        self._id = id
        self._name = self.name = name
        self._toolbox = toolbox
        self._memory = memory
        self.params = self.default_params() if agent_params is None else agent_params
        self.context = context_to_dot_dict(self.default_context())
        self.blocks = blocks or []
        self.logger = get_logger()

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
        """Run one step."""
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
        """Write the simulator's state of this resident into the status, which is its only source
        for the agent."""
        walker = self._harness.route.walker
        mode = walker.mode
        status = SLEEP
        speed = 0.0
        if mode is not None:
            status = STATUSES[mode]
            speed = SPEEDS[mode]

        motion = {
            "id": self._id,
            "status": status,
            "position": walker.position,
            "v": speed,
            "direction": 0.0,
            "activity": "",
            "l": 0.0,
            "a": 0.0,
            "is_queuing_on_lane": False,
            "queuing_time_on_cur_lane": 0.0,
            "num_passengers": 0,
        }
        for key, value in motion.items():
            await self.memory.status.update(key, value)


class MobilityAgent(CitizenAgentBase):
    """What the residents of asbench's benchmarks of mobility have in common."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.movement_status = [WALKING, DRIVING]

    async def go_to_aoi(self, aoi_id: Any) -> None:
        """Go to an AOI, or to whatever else `Environment.set_aoi_schedules` accepts."""
        await self.environment.set_aoi_schedules(self.id, target_positions=aoi_id)


def register_get(description: str) -> Callable[[Function], Function]:
    """Upstream announces the method to a model by it; here it has no effect."""
    return lambda method: method


def param_docs(**descriptions: str) -> Callable[[Function], Function]:
    return lambda function: function


def clean_json_response(response: str) -> str:
    """Return a reply without the marks of a fenced block."""
    return response.replace("```json", "").replace("```", "").strip()
