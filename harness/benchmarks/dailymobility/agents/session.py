"""The harness's side of one resident's agent: it runs the agent a slice at a time, and hands its requests on.

Of whose code runs where:

- The agent's code runs in slices (slices.py) alone: `Driven` sends into its coroutines, and tasks that the agent
  starts are driven in the same way.
- The harness's code runs outside of them. A request is handed over by the agent and asked by a task of the harness
  once the slice has ended, so that no alarm can strike while a reply is being saved.

The first failure ends the resident, whoever it is that raises it: the agent is not sent into again. So an API failure
cannot become the silent fallback of an agent that catches everything, nor can an interface that is not here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from sys import _getframe
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from anyio import CancelScope

from harness.benchmarks.dailymobility.agents.classes import Agent, AgentToolbox
from harness.benchmarks.dailymobility.agents.environment import Environment
from harness.benchmarks.dailymobility.agents.errors import LONGEST, UNTOLD, described, one_line
from harness.benchmarks.dailymobility.agents.llm import LLM, NoReply
from harness.benchmarks.dailymobility.agents.memory import Memory, first_status
from harness.benchmarks.dailymobility.agents.route import Journey
from harness.benchmarks.dailymobility.agents.watchdog import Cut, Dice, Folder, Place
from harness.benchmarks.dailymobility.day import ROW_SECONDS, ROWS, Resident, Row
from harness.benchmarks.dailymobility.simulator import Mode, Walker
from harness.errors import AgentFailed
from harness.model import Ask, Completion, Request

if TYPE_CHECKING:
    from harness.benchmarks.dailymobility.agents.runner import Stage

BEFORE_PLANS = "Planning"
"""What upstream writes as the intention of a resident that has none."""

Step = Callable[[Any], Any]
Told = TypeVar("Told")


class Host:
    """One resident's day. See backstage.py for what of it the agent's objects use."""

    def __init__(self, stage: Stage, resident: Resident, ask: Ask) -> None:
        self.number = resident.number
        self.json_object = stage.json_object
        self.walker = Walker(stage.city, resident.home)
        self.failure: Exception | None = None
        self.stopped = False
        self._stage = stage
        self._resident = resident
        self._ask = ask
        self._journey = Journey(self.walker)
        self._dice = Dice(stage.seed, resident.key)
        self._folder = Folder()
        self._when = "init"
        self._status: dict[Any, Any] = {}
        self._rows: list[Row] = []
        self._sent: list[tuple[Request, asyncio.Future[Completion]]] = []
        self._tasks: set[asyncio.Task[Any]] = set()
        self._slices = self._asking = 0

    async def play(self) -> list[Row]:
        """The rows of the day. Raises the first failure, as it was raised or as `AgentFailed`."""
        life = self._start(self._live())
        try:
            await self._ended_or_stalled(life)
        finally:
            self.stop()
            with CancelScope(shield=True):
                if left := [task for task in self._tasks if not task.done()]:
                    await asyncio.wait(left)
        if self.failure is not None:
            raise self.failure
        if len(self._rows) != ROWS:
            raise self._failed("agent_error", None, f"the day ended with {len(self._rows)} of its {ROWS} steps")
        return self._rows

    async def _ended_or_stalled(self, life: asyncio.Task[None]) -> None:
        """Returns once the day is over, or fails who has not run for long while no request is under way."""
        slices = -1
        while not (await asyncio.wait([life], timeout=self._stage.stall))[0]:
            if self._slices == slices and not self._asking:
                waits = f"waits for {self._stage.stall:g} s for something that does not come"
                return self.fail(self._failed("agent_stalled", None, waits))
            slices = self._slices

    async def _live(self) -> None:
        try:
            agent = await self._driven(self._made())
            await self._driven(_called(agent, "init"))
            self._journey.advance(1)  # upstream's first step is at second 1
            for step in range(1, ROWS + 1):
                self._when = f"step {step}"
                await self._step(agent)
                await asyncio.sleep(0)
        except BaseException as error:  # an agent may raise anything, and no other day than a whole one is scored
            self._raised(error)

    async def _step(self, agent: Agent) -> None:
        aoi = self.walker.aoi
        self._rows.append(Row(aoi, await self._driven(self._acted(agent))))
        self._journey.advance(ROW_SECONDS)

    async def _acted(self, agent: Agent) -> str | None:
        """What it intends once it has acted. To read that from what it keeps may run code of its own."""
        await _called(agent, "run")
        return intended(self._status.get("current_plan"))

    async def _made(self) -> Agent:
        cls, stage = self._stage.agent.cls, self._stage
        self._status = first_status(self._resident, cls.StatusAttributes)
        memory = Memory(self, self._status)
        toolbox = AgentToolbox(self, LLM(self), Environment(self, stage.map, stage.city))
        name = f"{cls.__name__}_{self.number}"
        return cls(id=self.number, name=name, toolbox=toolbox, memory=memory, agent_params=None, blocks=None)

    # How it ends.

    def fail(self, error: Exception) -> None:
        """The first failure is the one that counts; what comes after the end is no failure."""
        if not self.stopped:
            self.failure = error
            self.stop()

    def stop(self) -> None:
        """From now on the agent is not sent into."""
        self.stopped = True
        self._sent.clear()
        here = asyncio.current_task()
        for task in self._tasks:
            if task is not here:
                task.cancel()

    def _raised(self, error: BaseException) -> None:
        """Fails by what the agent raised, unless it has ended: what comes after that is the harness's doing."""
        if self.stopped:
            return
        kind = error.kind if issubclass(type(error), NoReply) else "agent_error"  # type: ignore[attr-defined]
        place = self._asked(self._stage.place_of_error, error, None)
        self.fail(self._failed(kind, place, self._asked(described, error, UNTOLD)))

    def _asked(self, about: Callable[[BaseException], Told], error: BaseException, otherwise: Told) -> Told:
        """Something about an error, in a slice: its class may be the agent's, and so what is run."""
        try:
            return self._run(about, error, self._dice)  # type: ignore[no-any-return]
        except BaseException:
            return otherwise

    def _failed(self, kind: str, place: Place | None, what: str) -> AgentFailed:
        return AgentFailed(kind, one_line(f"{self._at(place)}: {what}", 2 * LONGEST))

    def _at(self, place: Place | None) -> str:
        """`agent.py, step 40, line 17`."""
        if place is None:
            return f"{self._stage.agent.name}, {self._when}"
        return f"{place[0]}, {self._when}, line {place[1]}"

    # What the agent's objects use.

    @property
    def tick(self) -> int:
        return self._journey.tick

    def refuse(self, kind: str, what: str) -> NoReturn:
        self.fail(self._failed(kind, self._stage.place_of(_getframe(1)), what))
        raise self._stage.guard.cut()

    def warn_once(self, what: str) -> None:
        self._stage.warn_once(what)

    def send(self, request: Request) -> asyncio.Future[Completion]:
        if self.stopped:
            raise self._stage.guard.cut()
        reply: asyncio.Future[Completion] = asyncio.get_running_loop().create_future()
        self._sent.append((request, reply))
        return reply

    def travel(self, plan: list[tuple[int, Mode, float]]) -> None:
        self._journey.replace(plan)

    # Slices, and what happens between them.

    def slice(self, step: Step, argument: Any, dice: Dice) -> Any:
        """One slice of the agent. What would end the event loop or comes of the alarm ends the task instead."""
        if self._stage.guard.inside:  # a task that starts eagerly, within the slice that makes it
            with self._throwing(dice):
                return step(argument)
        try:
            return self._run(step, argument, dice)
        except Cut:
            raise asyncio.CancelledError from None
        except (SystemExit, KeyboardInterrupt) as error:
            self._raised(error)
            raise asyncio.CancelledError from None

    def _run(self, step: Step, argument: Any, dice: Dice) -> Any:
        stage = self._stage
        loop = asyncio.get_running_loop()
        factory = loop.get_task_factory()
        stage.playing = self
        loop.set_task_factory(self._task)
        earlier, self._dice = self._dice, dice
        dice.swap()
        try:
            return stage.guard.run(step, argument)
        finally:
            dice.swap()
            self._dice = earlier
            loop.set_task_factory(factory)
            stage.playing = None
            self._after_slice()

    @contextmanager
    def _throwing(self, dice: Dice) -> Iterator[None]:
        earlier, self._dice = self._dice, dice
        dice.swap()
        try:
            yield
        finally:
            dice.swap()
            self._dice = earlier

    def end(self, coroutine: Coroutine[Any, Any, Any], dice: Dice) -> None:
        self._stage.guard.end(lambda step, argument: self.slice(step, argument, dice), coroutine)

    def _after_slice(self) -> None:
        stage, guard = self._stage, self._stage.guard
        self._slices += 1
        if self._folder.put_back():
            stage.warn_once("changed the working directory, which was put back: the whole process has one")
        if guard.broken:
            what = f"still running after {stage.limit:g} s without waiting"
            self.fail(self._failed("agent_blocked", guard.place, what))
        elif guard.seconds > stage.notice:
            whose = f"{self._at(guard.place)}, resident {self._resident.key}"
            stage.warn_once(f"held up everybody for {guard.seconds:.2f} s ({whose})", key=f"held up at {guard.place}")
        for request, reply in self._sent:
            self._start(self._answer(request, reply))
        self._sent.clear()

    async def _answer(self, request: Request, reply: asyncio.Future[Completion]) -> None:
        self._asking += 1
        try:
            completion = await self._ask(request)
        except asyncio.CancelledError:
            reply.cancel()  # nobody else would ever wake who waits for it
            raise
        except Exception as error:
            self.fail(error)
            return
        finally:
            self._asking -= 1
        if reply.cancelled():
            self.warn_once("gave up waiting for a reply: such a day depends on how fast the endpoint is")
        elif not reply.done():
            reply.set_result(completion)

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """A task of the harness."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _driven(self, coroutine: Coroutine[Any, Any, Any]) -> Driven:
        """What the harness has the agent do."""
        return Driven(self, coroutine, self._dice)

    def _task(self, loop: asyncio.AbstractEventLoop, coroutine: Any, **how: Any) -> asyncio.Task[Any]:
        """A task that the agent starts."""
        if self.stopped:
            raise self._stage.guard.cut()
        if not asyncio.iscoroutine(coroutine):
            raise TypeError(f"a coroutine was expected, got {coroutine!r}")
        driven = Driven(self, coroutine, self._dice.part())
        task: asyncio.Task[Any] = asyncio.Task(driven, loop=loop, **how)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        """Looks at the exception, so that asyncio does not print what an agent did not care to look at."""
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()


class Driven(Coroutine[Any, Any, Any]):
    """A coroutine of an agent as the harness runs it. It ends with `CancelledError` once the resident has ended.

    Each task draws from dice of its own: which of several at once runs first depends on whose reply is there first.
    """

    def __init__(self, host: Host, coroutine: Coroutine[Any, Any, Any], dice: Dice) -> None:
        self._host = host
        self._coroutine = coroutine
        self._dice = dice

    def __await__(self) -> Driven:
        return self

    def __iter__(self) -> Driven:
        return self

    def __next__(self) -> Any:
        return self.send(None)

    def send(self, value: Any) -> Any:
        return self._step(self._coroutine.send, value)

    def throw(self, error: Any, *rest: Any) -> Any:
        return self._step(self._coroutine.throw, error)

    def close(self) -> None:
        self._host.end(self._coroutine, self._dice)

    def _step(self, step: Step, argument: Any) -> Any:
        if not self._host.stopped:
            try:
                waits_for = self._host.slice(step, argument, self._dice)
            except StopIteration:
                if not self._host.stopped:
                    raise
            else:
                if not self._host.stopped:
                    return waits_for
        self.close()
        raise asyncio.CancelledError


async def _called(agent: Agent, method: str) -> Any:
    """The call itself belongs to the slice, since a method that is no `async def` runs as it is called."""
    return await getattr(agent, method)()


def intended(plan: Any) -> str | None:
    """The intention of a `current_plan`, read as upstream's writer of results reads it.

    Raises whatever comes of a plan that has another shape.
    """
    if not plan:
        return BEFORE_PLANS
    intention = plan.get("steps", [])[plan.get("index", 0)].get("intention", BEFORE_PLANS)
    if intention is None:
        return None
    if not isinstance(intention, str):
        raise TypeError(f"expected text as an intention, got {intention!r}")
    return str.__str__(intention)
