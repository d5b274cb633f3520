"""The harness's side of one resident's agent: it runs the agent a slice at a time, and sends its
requests.

- The agent's code runs in slices (watchdog.py) alone: `Driven` sends into its coroutines, and tasks
  that the agent starts are driven in the same way.
- The harness's code runs outside of them. The agent hands a request over, and a task of the harness
  sends it once the slice has ended, so that no alarm can strike while a reply is being saved.

The first failure ends the resident, wherever it comes from: the agent is not run any further. So an
API failure cannot become the silent fallback of an agent that catches everything, nor can a missing
interface.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from sys import _getframe
from typing import Any, NoReturn, TypeVar

from anyio import CancelScope

from harness.benchmarks.agents.classes import Agent, AgentToolbox
from harness.benchmarks.agents.environment import Environment
from harness.benchmarks.agents.errors import (
    LONGEST,
    NO_TEXT,
    described,
    one_line,
)
from harness.benchmarks.agents.llm import LLM, NoReply
from harness.benchmarks.agents.memory import Memory, embedded, first_status
from harness.benchmarks.agents.resident import Resident, Row
from harness.benchmarks.agents.runner import Runner
from harness.benchmarks.agents.simulator import Route, Walker
from harness.benchmarks.agents.watchdog import Cut, Dice, Place
from harness.errors import AgentFailed
from harness.model import Ask, Completion, Request

BEFORE_PLANS = "Planning"
"""Upstream's intention of a resident without a plan."""
MAX_ENDS = 100
"""Attempts to end a coroutine that waits for something new after each."""

Step = Callable[[Any], Any]
Result = TypeVar("Result")


async def play(runner: Runner, resident: Resident, ask: Ask, repeat: int = 1) -> list[Row]:
    """Return a row for each step of a resident; each repeat has its own random numbers.

    Raise `AgentFailed` where the agent fails (`agent_error`, `agent_api`, `agent_blocked`,
    `agent_stalled`, `unknown_place`, or the reason for no reply: `content_filter`,
    `context_length`, `length`, `only_thinking`, `refusal`, `empty`), and errors of `ask` as they
    are.
    """
    with runner.playing_one():
        return await Session(runner, resident, ask, repeat).play()


class Session:
    """One resident's days. See interface.py for the part that the agent's objects use."""

    def __init__(self, runner: Runner, resident: Resident, ask: Ask, repeat: int) -> None:
        self.number = resident.number
        self.route = Route(Walker(runner.world.city, resident.home))
        self.warn_once = runner.warn_once
        self.failure: Exception | None = None
        self.stopped = False
        self._runner = runner
        self._resident = resident
        self._ask = ask
        self._dice = Dice(runner.seed, resident.key)
        # Without the repeat in its seed, the first one draws as in a run without repeats.
        if repeat > 1:
            self._dice = Dice(runner.seed, resident.key, f"repeat {repeat}")

        self._when = "init"
        self._status: dict[Any, Any] = {}
        self._rows: list[Row] = []
        self._sent: list[tuple[Request, asyncio.Future[Completion]]] = []
        self._tasks: set[asyncio.Task[Any]] = set()
        self._slices = 0
        self._asking = 0

    async def play(self) -> list[Row]:
        """Return the rows of the days. Raise the first failure, as it was raised or as
        `AgentFailed`."""
        life = self._start(self._live())
        slices = -1
        stall = self._runner.limits.stall
        try:
            while not (await asyncio.wait([life], timeout=stall))[0]:
                # Neither a slice nor a request since the last look: nothing can wake the agent.
                if self._slices == slices and not self._asking:
                    self._fail(
                        "agent_stalled",
                        None,
                        f"waits for {stall:g} s for something that does not come",
                    )
                    break

                slices = self._slices
        finally:
            self.stop()
            with CancelScope(shield=True):
                unfinished = [task for task in self._tasks if not task.done()]
                if unfinished:
                    # Tasks of the agent may still run their `finally`.
                    await asyncio.wait(unfinished)

        steps = self._runner.world.steps
        if self.failure is None and len(self._rows) != steps:
            self.failure = self._failed(
                "agent_error",
                None,
                f"the day ended with {len(self._rows)} of its {steps} steps",
            )

        if self.failure is not None:
            raise self.failure

        return self._rows

    async def _live(self) -> None:
        try:
            agent = await Driven(self, self._initialised(), self._dice)
            self.route.advance(1)  # upstream's first step is at second 1
            for step in range(1, self._runner.world.steps + 1):
                self._when = f"step {step}"
                aoi = self.route.walker.aoi
                self._rows.append(Row(aoi, await Driven(self, self._act(agent), self._dice)))
                self.route.advance(self._runner.world.seconds)
                # Residents without requests must let others play.
                await asyncio.sleep(0)
        # An agent may raise anything, and only a complete day is scored.
        except BaseException as error:
            self._raised(error)

    async def _initialised(self) -> Agent:
        cls, runner = self._runner.agent.cls, self._runner
        self._status = first_status(self._resident, cls.StatusAttributes)
        memory = Memory(
            self,
            self._status,
            embedded(cls.StatusAttributes),
            runner.finds_memories,
        )
        toolbox = AgentToolbox(
            self,
            LLM(self),
            Environment(self, runner.map, runner.world.city, runner.world.days),
        )
        name = f"{cls.__name__}_{self.number}"
        agent = cls(
            id=self.number,
            name=name,
            toolbox=toolbox,
            memory=memory,
            agent_params=None,
            blocks=None,
        )
        await agent.init()
        return agent

    async def _act(self, agent: Agent) -> str | None:
        """Return the intention after a step. Reading it from the agent's memory may run code of its
        own."""
        await agent.run()
        return _intention(self._status.get("current_plan"))

    # How it ends.

    def _fail(self, kind: str, place: Place | None, what: str) -> None:
        self._end_by(self._failed(kind, place, what))

    def _end_by(self, error: Exception) -> None:
        """End by the first failure; what comes after the end is no failure."""
        if not self.stopped:
            self.failure = error
            self.stop()

    def stop(self) -> None:
        """From now on run nothing of the agent."""
        self.stopped = True
        self._sent.clear()
        here = asyncio.current_task()
        for task in self._tasks:
            if task is not here:
                task.cancel()

    def _raised(self, error: BaseException) -> None:
        """Fail by an error of the agent, unless the resident has ended: later ones are the
        harness's doing."""
        if self.stopped:
            return
        kind = "agent_error"
        if issubclass(type(error), NoReply):
            kind = error.kind  # type: ignore[attr-defined]
        place = self._ask_about(self._runner.agent.place_of_error, error, None)
        self._fail(kind, place, self._ask_about(described, error, NO_TEXT))

    def _ask_about(
        self,
        what: Callable[[BaseException], Result],
        error: BaseException,
        otherwise: Result,
    ) -> Result:
        """Return something about an error. This runs in a slice: the error's class may be the
        agent's."""
        try:
            return self._run(what, error, self._dice)  # type: ignore[no-any-return]
        except BaseException:
            return otherwise

    def _failed(self, kind: str, place: Place | None, what: str) -> AgentFailed:
        return AgentFailed(kind, one_line(f"{self._at(place)}: {what}", 2 * LONGEST))

    def _at(self, place: Place | None) -> str:
        """Return `agent.py, step 40, line 17`."""
        if place is None:
            return f"{self._runner.agent.name}, {self._when}"
        return f"{place[0]}, {self._when}, line {place[1]}"

    # What the agent's objects use.

    def refuse(self, kind: str, what: str) -> NoReturn:
        self._fail(kind, self._runner.agent.place_of(_getframe(1)), what)
        raise self._runner.guard.cut()

    def send(self, request: Request) -> asyncio.Future[Completion]:
        if self.stopped:
            raise self._runner.guard.cut()
        reply: asyncio.Future[Completion] = asyncio.get_running_loop().create_future()
        self._sent.append((request, reply))
        return reply

    # Slices, and the work between them.

    def slice(self, step: Step, argument: object, dice: Dice) -> Any:
        """Run one slice of the agent. The alarm, and what would end the event loop, end the task
        instead."""
        # A task that starts eagerly runs within the slice that makes it.
        if self._runner.guard.inside:
            return self._draw(step, argument, dice)

        try:
            return self._run(step, argument, dice)
        except Cut:
            raise asyncio.CancelledError from None
        except (SystemExit, KeyboardInterrupt) as error:
            self._raised(error)
            raise asyncio.CancelledError from None

    def _run(self, step: Step, argument: object, dice: Dice) -> Any:
        runner, loop = self._runner, asyncio.get_running_loop()
        factory = loop.get_task_factory()
        # The map is shared, and refuses for whoever's slice runs.
        runner.playing = self
        # Tasks that the agent starts must run in slices, too.
        loop.set_task_factory(self._task)
        try:
            with runner.agent.written.in_place():
                return self._draw(partial(runner.guard.run, step), argument, dice)
        finally:
            loop.set_task_factory(factory)
            runner.playing = None
            self._after_slice()

    def _draw(self, step: Step, argument: object, dice: Dice) -> Any:
        """Run a step whose draws are those of `dice`, as are those of the tasks that it starts."""
        previous = self._dice
        self._dice = dice
        try:
            with dice.drawn():
                return step(argument)
        finally:
            self._dice = previous

    def end(self, coroutine: Coroutine[Any, Any, Any], dice: Dice) -> None:
        """End a coroutine that waits."""
        for _ in range(MAX_ENDS):
            try:
                self.slice(coroutine.throw, self._runner.guard.cut, dice)
            except BaseException:
                return

    def _after_slice(self) -> None:
        runner = self._runner
        guard = runner.guard
        self._slices += 1
        runner.log_written(f"{self._at(None)}, resident {self._resident.key}")
        if guard.broken:
            what = f"still running after {runner.limits.limit:g} s without waiting"
            self._fail("agent_blocked", guard.place, what)
        elif guard.seconds > runner.limits.notice:
            where = f"{self._at(guard.place)}, resident {self._resident.key}"
            runner.warn_once(
                f"held up everybody for {guard.seconds:.2f} s ({where})",
                key=f"held up at {guard.place}",
            )

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
            self._end_by(error)
            return
        finally:
            self._asking -= 1

        if reply.cancelled():
            self.warn_once(
                "gave up waiting for a reply: such a day depends on how fast the endpoint is"
            )
        elif not reply.done():
            reply.set_result(completion)

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Start a task of the harness."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _task(
        self, loop: asyncio.AbstractEventLoop, coroutine: object, **how: Any
    ) -> asyncio.Task[Any]:
        """Make a task that the agent starts."""
        if self.stopped:
            raise self._runner.guard.cut()

        if not asyncio.iscoroutine(coroutine):
            raise TypeError(f"a coroutine was expected, got {coroutine!r}")

        task: asyncio.Task[Any] = asyncio.Task(
            Driven(self, coroutine, self._dice.part()), loop=loop, **how
        )
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        """Look at the exception, so that asyncio does not print one that the agent ignored."""
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()


class Driven(Coroutine[Any, Any, Any]):
    """A coroutine of an agent as the harness runs it. It ends with `CancelledError` once the
    resident has ended.

    Each task draws from dice of its own: which of several at once runs first depends on whose reply
    is there first.
    """

    def __init__(self, session: Session, coroutine: Coroutine[Any, Any, Any], dice: Dice) -> None:
        self._session = session
        self._coroutine = coroutine
        self._dice = dice

    def __await__(self) -> Driven:
        return self

    __iter__ = __await__

    def __next__(self) -> Any:
        return self.send(None)

    def send(self, value: object) -> Any:
        return self._step(self._coroutine.send, value)

    def throw(self, error: object, *ignored: object) -> Any:
        return self._step(self._coroutine.throw, error)

    def close(self) -> None:
        self._session.end(self._coroutine, self._dice)

    def _step(self, step: Step, argument: object) -> Any:
        if not self._session.stopped:
            try:
                waits_for = self._session.slice(step, argument, self._dice)
            except StopIteration:
                if not self._session.stopped:
                    raise
            else:
                if not self._session.stopped:
                    return waits_for

        self.close()
        raise asyncio.CancelledError


def _intention(plan: Any) -> str | None:
    """Read the intention of a plan as upstream's writer of results does. Raise for a plan of
    another shape."""
    if not plan:
        return BEFORE_PLANS

    # `get` and the index run the agent's code where a plan is an object of its file.
    intention = plan.get("steps", [])[plan.get("index", 0)].get("intention", BEFORE_PLANS)
    if intention is None:
        return None

    if not isinstance(intention, str):
        raise TypeError(f"expected text as an intention, got {intention!r}")

    # As plain text: methods of a subclass would later run outside of slices.
    return str.__str__(intention)
