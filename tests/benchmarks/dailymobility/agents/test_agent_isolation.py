"""What an agent does to itself stays with its resident, and an API failure never becomes an agent's
fallback."""

from __future__ import annotations

import asyncio
import gc
import io
import logging
import random
import re
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Coroutine
from itertools import product
from textwrap import dedent, indent
from typing import Any

import anyio
import pytest
import uvloop

from harness.benchmarks.agents.resident import Row
from harness.benchmarks.agents.runner import Runner
from harness.benchmarks.agents.session import Session, play
from harness.errors import AgentFailed, EndpointStopped, GaveUp, MachineError, Rejected
from harness.model import Completion, Request
from tests.support import first_quick
from tests.support.agent_town import played, resident, runner, saying, silence, written

Run = Callable[[Coroutine[Any, Any, Any]], Any]
LOOPS = pytest.mark.parametrize(
    "run", first_quick([uvloop.run, asyncio.run]), ids=["uvloop", "asyncio"]
)
LIMIT = 0.03
"""Seconds that an agent may hold up these tests."""

AWAY = {
    "sleeps": "time.sleep(30)",
    "works": "while True: pass",
    "swallows": "while True:\n    try:\n        time.sleep(30)\n    except:\n        pass",
    "swallows twice": (
        """
        while True:
            try:
                while True:
                    try: time.sleep(30)
                    except BaseException as error: text = str(error)
            except: continue
    """
    ),
    "tidies up": "try:\n    while True: pass\nfinally:\n    time.sleep(30)",
    "in a task": (
        "async def busy():\n    while True: pass\nawait asyncio.gather(busy(), asyncio.sleep(30))"
    ),
}


PLAN = """
class Plan(dict):
    def __bool__(self): raise KeyboardInterrupt
await self.status.update('current_plan', Plan())
"""


def forward(body: str, head: str = "") -> str:
    """A class body whose forward has these lines."""
    return f"{head}async def forward(self):\n{indent(dedent(body).strip(chr(10)), '    ')}"


def dedented(text: str) -> list[str]:
    return dedent(text).strip("\n").splitlines()


async def all_of(running: Runner, numbers: range, ask: Any = silence) -> list[Any]:
    plays = (play(running, resident(number), ask) for number in numbers)
    return await asyncio.gather(*plays, return_exceptions=True)


def test_an_exception_fails_its_resident_only():
    """It is reported by file, step and line; everybody else plays on."""
    ends = asyncio.run(all_of(runner("fails_at_40.py"), range(10)))
    assert [number for number, end in enumerate(ends) if isinstance(end, AgentFailed)] == [7]
    assert (ends[7].kind, ends[7].detail) == (
        "agent_error",
        "fails_at_40.py, step 40, line 10: ValueError: 没有计划",
    )
    assert all(len(end) == 100 for number, end in enumerate(ends) if number != 7)


@pytest.mark.parametrize(
    ("body", "expected_text"),
    [
        (forward("sys.exit('喂')"), "step 1, line 6: SystemExit: 喂"),
        (forward("raise KeyboardInterrupt"), "step 1, line 6: KeyboardInterrupt"),
        (forward("raise asyncio.CancelledError"), "step 1, line 6: CancelledError"),
        (
            forward("asyncio.current_task().cancel()\nawait asyncio.sleep(9)"),
            "step 1, line 7: CancelledError",
        ),
        (
            forward("async def leave():\n    sys.exit(3)\nawait asyncio.gather(leave())"),
            "line 7: SystemExit: 3",
        ),
        ("def forward(self): return 3", "step 1: TypeError: "),
        ("def __init__(self, **all):\n    raise ValueError('x')", "init, line 6: ValueError: x"),
        (
            "async def init(self):\n    return 1 / 0",
            "init, line 6: ZeroDivisionError: division by zero",
        ),
        (forward("raise GeneratorExit"), "step 1, line 6: GeneratorExit"),
        (forward("class Own(BaseException): pass\nraise Own('喂')"), "step 1, line 7: Own: 喂"),
        (
            forward("raise BaseExceptionGroup('g', [SystemExit()])"),
            "line 6: BaseExceptionGroup: g (1 sub-exception)",
        ),
        (
            forward("if self.environment.get_tick() > 89000: raise GeneratorExit"),
            "step 100, line 6: GeneratorExit",
        ),
        (forward(PLAN), "step 1, line 7: KeyboardInterrupt"),
        (
            forward("await self.go_to_aoi(None)"),
            "line 6: TypeError: expected the id of an AOI, got None",
        ),
        (
            forward("await self.go_to_aoi((1, 2, 3))"),
            "line 6: ValueError: expected an AOI or a pair of AOI and mode",
        ),
    ],
)
def test_whatever_an_agent_raises_is_its_resident_s(tmp_path, body, expected_text):
    """What would end the event loop or look like a cancelled run among it."""
    with pytest.raises(AgentFailed) as failed:
        played(runner(written(tmp_path, body)))
    assert failed.value.kind == "agent_error" and expected_text in failed.value.detail


def test_a_day_that_is_not_whole_is_none(tmp_path, monkeypatch):
    """However it came about that it ended."""

    async def nothing(session: Session) -> None: ...

    monkeypatch.setattr(Session, "_live", nothing)
    with pytest.raises(AgentFailed) as failed:
        played(runner("random_walk.py"))
    assert failed.value.detail == "random_walk.py, init: the day ended with 0 of its 100 steps"


@pytest.mark.parametrize(
    ("says", "kind", "expected_text"),
    [
        ("raise ValueError", "agent_error", "line 9: an error without a usable text"),
        ("raise SystemExit", "agent_error", "line 9: an error without a usable text"),
        ("return 5", "agent_error", "line 9: an error without a usable text"),
        (
            "while True: pass",
            "agent_blocked",
            f"line 8: still running after {LIMIT} s without waiting",
        ),
        (r"return 'a\nb\x1b\u2028c'", "agent_error", "line 9: E: a b c"),
        (r"return '\ud83d!'", "agent_error", "line 9: E: ?!"),
        ("return '中' * 10**6", "agent_error", f"line 9: E: {'中' * 300}"),
    ],
)
@pytest.mark.parametrize("of", ["Exception", "SystemExit"])
def test_the_text_of_an_error_is_one_line_whatever_it_does(tmp_path, says, kind, expected_text, of):
    """It may be the agent's code that makes it, which may fail in turn; a file of JSON has to hold
    it."""
    body = forward(f"class E({of}):\n    def __str__(self):\n        {says}\nraise E")
    with pytest.raises(AgentFailed) as failed:
        played(runner(written(tmp_path, body), limit=LIMIT))
    assert (failed.value.kind, failed.value.detail) == (kind, f"agent.py, step 1, {expected_text}")
    failed.value.detail.encode()


@LOOPS
@pytest.mark.parametrize("way", AWAY)
def test_an_agent_that_never_waits_is_broken_off(tmp_path, run, way):
    """Whatever it catches; the others play on, and the alarm is as it was."""
    body = forward(
        f"if self.id == 1:\n{chr(10).join('    ' + line for line in dedented(AWAY[way]))}"
    )
    running = runner(written(tmp_path, body), limit=LIMIT)
    handler, trace = signal.getsignal(signal.SIGALRM), sys.gettrace()
    blocked, other = run(all_of(running, range(1, 3)))
    assert (
        isinstance(blocked, AgentFailed) and blocked.kind == "agent_blocked" and len(other) == 100
    )
    assert blocked.detail.startswith("agent.py, step 1, line ")
    assert blocked.detail.endswith(f": still running after {LIMIT} s without waiting")
    assert signal.getsignal(signal.SIGALRM) is handler and signal.getitimer(signal.ITIMER_REAL) == (
        0,
        0,
    )
    assert sys.gettrace() is trace


def test_an_alarm_of_somebody_else_s_is_put_back():
    """Handler and what is left of the time."""
    struck: list[int] = []
    earlier = signal.signal(signal.SIGALRM, lambda number, frame: struck.append(number))
    try:
        signal.setitimer(signal.ITIMER_REAL, 50, 7)
        played(runner("random_walk.py"))
        left, interval = signal.setitimer(signal.ITIMER_REAL, 0)
        assert 40 < left < 50 and interval == 7
        signal.raise_signal(signal.SIGALRM)
        assert struck == [signal.SIGALRM]
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, earlier)


HOLD = forward("if self.environment.get_tick() < 9000:\n    time.sleep(0.004)")


def test_a_slice_that_holds_up_the_loop_is_noticed_with_its_line(tmp_path):
    """One warning for a line, whoever it is that stands there."""
    warnings: list[str] = []
    running = runner(written(tmp_path, HOLD), warnings.append, notice=0.002)
    asyncio.run(all_of(running, range(1, 3)))
    (told,) = [warning for warning in warnings if ", line 7, " in warning]
    assert re.match(r"agent.py: held up everybody for \d", told) and "(agent.py, step " in told


def test_outside_of_the_main_thread_it_is_only_noticed(tmp_path):
    """There are no alarms there."""
    warnings: list[str] = []
    running = runner(written(tmp_path, HOLD), warnings.append, notice=0.001, limit=0.002)
    ends: list[Any] = []
    thread = threading.Thread(target=lambda: ends.extend(asyncio.run(all_of(running, range(1)))))
    thread.start()
    thread.join()
    assert len(ends[0]) == 100 and len(warnings) == 1 and warnings[0].endswith(", resident 0)")


ERRORS = [
    GaveUp("http_503", "no", 9),
    Rejected("http_400", "no"),
    EndpointStopped("no key"),
    MachineError("disk full"),
    RuntimeError("diverged"),
]


def _seldom(caught: str, error: Exception) -> Any:
    """All of them are caught alike: most pairs are for the slow tests."""
    often = caught == "BaseException" or error is ERRORS[0]
    marks = () if often else (pytest.mark.slow,)
    return pytest.param(caught, error, id=f"{caught}-{type(error).__name__}", marks=marks)


@pytest.mark.slow
@LOOPS
@pytest.mark.parametrize(
    ("caught", "error"),
    [_seldom(*pair) for pair in product(["Exception", "BaseException", ""], ERRORS)],
)
def test_a_failing_api_is_no_occasion_for_a_fallback(tmp_path, run, error, caught):
    """The very error reaches who plays, and the agent is not run again, whatever it catches and
    however often."""
    body = f"""
    while True:
        try:
            await self.llm.atext_request([{{"role": "user", "content": "？"}}])
            return
        except {caught}:
            LATER.append(self.id)
    """
    running = runner(written(tmp_path, forward(body), top="LATER = []"))
    asked = 0

    async def ask(request: Request) -> Completion:
        nonlocal asked
        asked += 1
        await asyncio.sleep(0)
        if asked == 3:
            raise error
        return Completion("好")

    with pytest.raises(type(error)) as raised:
        run(play(running, resident(), ask))
    assert raised.value is error and asked == 3
    gc.collect()  # nothing is left that would complain as it is taken away


def test_the_file_that_falls_back_is_not_scored_for_it():
    """As a user writes it, with retries of its own."""
    with pytest.raises(GaveUp):
        played(runner("catches_all.py"), failing_after(5))
    assert played(runner("catches_all.py"), saying("work"))[0].intention == "work"


GOES_ON = {
    "to a line": "await self.log_intention('sleep')",
    "to a loop": "while True: await asyncio.sleep(0)",
    "to another try": "try: await asyncio.sleep(0)\nexcept: pass\nawait asyncio.sleep(0)",
    "to the end": "pass",
}


@pytest.mark.parametrize("way", GOES_ON)
def test_an_agent_that_catches_everything_once_is_ended(tmp_path, way):
    """However it goes on after that; the trace function of the process is as it was."""
    asks = "try: await self.llm.atext_request([])\nexcept BaseException as error: text = str(error)"
    running = runner(written(tmp_path, forward(f"{asks}\n{GOES_ON[way]}")))
    earlier = sys.gettrace()
    traced: Any = io.BytesIO().__exit__  # does nothing, in C: in Python it could be struck itself
    try:
        sys.settrace(traced)
        with pytest.raises(GaveUp):
            played(running, failing_after(0))
        assert sys.gettrace() is traced
    finally:
        sys.settrace(earlier)


def failing_after(count: int) -> Any:
    left = iter(range(count))

    async def ask(request: Request) -> Completion:
        if next(left, None) is None:
            raise GaveUp("http_503", "no", 9)
        return Completion("work")

    return ask


@LOOPS
def test_of_requests_at_once_the_failing_one_ends_all(tmp_path, run):
    """The others under way are cancelled, and none is left behind."""
    body = """
    async def one(number):
        try:
            return await self.llm.atext_request([{"role": "user", "content": str(number)}])
        except BaseException:
            return "work"
    await asyncio.gather(*[one(number) for number in range(5)], return_exceptions=True)
    """
    ended: list[str] = []

    async def ask(request: Request) -> Completion:
        try:
            await asyncio.sleep(0)
            if request.messages[0].content == "3":
                raise GaveUp("http_503", "no", 9)
            await asyncio.Event().wait()
        finally:
            ended.append(request.messages[0].content)
        raise AssertionError

    running = runner(written(tmp_path, forward(body)))
    with pytest.raises(GaveUp):
        run(play(running, resident(), ask))
    assert sorted(ended) == ["0", "1", "2", "3", "4"]


@LOOPS
def test_requests_at_once_are_asked_in_order(run):
    """By gather, tasks, wait_for and task groups; what is asked first of the same is the first of
    it saved."""
    asked: list[str] = []

    async def ask(request: Request) -> Completion:
        asked.append(request.messages[0].content)
        await asyncio.sleep(0)
        return Completion(request.messages[0].content)

    rows: list[Row] = run(play(runner("asks_at_once.py"), resident(), ask))
    assert asked == ["1", "2", "3", "4", "5"]
    said = rows[0].intention or ""
    assert [part.split()[0] for part in said.split(", ")] == asked


def test_a_request_that_is_cancelled_leaves_nobody_waiting(tmp_path):
    """By whatever in the harness; the agent would wait for its reply for ever."""
    body = forward("await self.llm.atext_request([{'role': 'user', 'content': '?'}])")

    async def ask(request: Request) -> Completion:
        raise asyncio.CancelledError

    with pytest.raises(AgentFailed, match="step 1, line 6: CancelledError"):
        played(runner(written(tmp_path, body)), ask)


def test_requests_are_asked_outside_of_slices(tmp_path):
    """No alarm is set and no random state is the resident's while the harness asks and saves."""
    body = forward(
        "random.seed(5)\nawait self.llm.atext_request([{'role': 'user', 'content': '?'}])"
    )
    running = runner(written(tmp_path, body), limit=0.01)
    random.seed(1)
    state = random.getstate()

    async def ask(request: Request) -> Completion:
        assert random.getstate() == state and signal.getitimer(signal.ITIMER_REAL)[0] == 0
        assert asyncio.get_running_loop().get_task_factory() is None and not running.guard.inside
        return Completion("好")

    assert len(played(running, ask)) == 100


@LOOPS
@pytest.mark.parametrize("ends", ["Exception", "BaseException"])
def test_a_cancelled_play_is_cancelled(tmp_path, run, ends):
    """Whatever the agent catches: the cancellation passes, and no task is left."""
    body = f"""
    while True:
        try:
            await asyncio.gather(self.llm.atext_request([{{"role": "user", "content": "?"}}]), asyncio.sleep(60))
        except {ends}:
            pass
    """
    running = runner(written(tmp_path, forward(body)))

    async def main() -> None:
        under_way = asyncio.Event()

        async def ask(request: Request) -> Completion:
            under_way.set()
            await asyncio.Event().wait()
            raise AssertionError

        with anyio.move_on_after(60) as scope:
            async with anyio.create_task_group() as group:
                group.start_soon(play, running, resident(), ask)
                await under_way.wait()
                group.cancel_scope.cancel()
        assert not scope.cancelled_caught
        assert asyncio.all_tasks() == {asyncio.current_task()}

    run(main())
    gc.collect()


@LOOPS
def test_the_day_ends_what_the_agent_has_left_running(tmp_path, run, caplog):
    """Tasks that nobody waits for, requests under way; errors that nobody looked at are not
    complained of."""
    body = """
    async def init(self):
        await super().init()
        self.tasks = [asyncio.create_task(each) for each in (self.ask(), self.fail(), self.wait())]
    async def ask(self):
        await self.llm.atext_request([{"role": "user", "content": "?"}])
    async def fail(self):
        raise ValueError
    async def wait(self):
        while True:
            try: await asyncio.sleep(60)
            except BaseException: pass
    async def forward(self): pass
    """

    async def main() -> list[Row]:
        async def ask(request: Request) -> Completion:
            await asyncio.Event().wait()
            raise AssertionError

        rows = await play(runner(written(tmp_path, body)), resident(), ask)
        assert asyncio.all_tasks() == {asyncio.current_task()}
        return rows

    assert len(run(main())) == 100
    gc.collect()
    assert not caplog.records


def test_giving_up_on_a_reply_is_said(tmp_path):
    """Such a day depends on how fast the endpoint is; the reply is waited for and saved all the
    same."""
    body = """
    try:
        await asyncio.wait_for(self.llm.atext_request([{"role": "user", "content": "?"}]), 1e-4)
    except asyncio.TimeoutError:
        await self.log_intention("sleep")
    """
    warnings: list[str] = []
    saved: list[str] = []

    async def ask(request: Request) -> Completion:
        await asyncio.sleep(0.001)
        saved.append("好")
        return Completion("好")

    head = (
        "async def init(self):\n    await super().init()\n    await self.forward()\n    await"
        " asyncio.sleep(0.01)\n"
    )
    once = forward(f"if self.environment.get_tick(): return\n{chr(10).join(dedented(body))}", head)
    rows = played(runner(written(tmp_path, once), warnings.append), ask)
    assert rows[0].intention == "sleep" and saved == ["好"]
    assert warnings == [
        "agent.py: gave up waiting for a reply: such a day depends on how fast the endpoint is"
    ]


def test_residents_take_turns(tmp_path):
    """An agent that never waits for anything lets the others in after each of its steps."""
    running = runner(written(tmp_path, forward("ORDER.append(self.id)"), top="ORDER = []"))
    asyncio.run(all_of(running, range(3)))
    assert sys.modules[running.agent.cls.__module__].ORDER == [0, 1, 2] * 100  # type: ignore[attr-defined]


def test_an_agent_that_waits_for_nothing_is_given_up(tmp_path):
    """Nothing will ever wake it; the others play on."""
    body = forward("if self.id == 1:\n    await asyncio.Event().wait()")
    stalled, other = asyncio.run(all_of(runner(written(tmp_path, body), stall=0.02), range(1, 3)))
    assert (
        isinstance(stalled, AgentFailed) and stalled.kind == "agent_stalled" and len(other) == 100
    )
    assert stalled.detail == "agent.py, step 1: waits for 0.02 s for something that does not come"


def test_a_slow_reply_is_no_stall(tmp_path):
    """However long an endpoint takes, that is not the agent's doing."""

    async def slow(request: Request) -> Completion:
        await asyncio.sleep(0.5)
        return Completion("睡")

    body = (
        "async def init(self):\n    await self.llm.atext_request([{'role': 'user', 'content':"
        " '?'}])"
    )
    rows = played(
        runner(written(tmp_path, body + "\nasync def forward(self): pass"), stall=0.2), slow
    )
    assert len(rows) == 100


def test_logging_is_as_the_agent_file_sets_it_up(tmp_path, monkeypatch):
    """Level and handlers of the root logger hold in slices, and the process has its own outside of
    them."""
    root = logging.getLogger()
    monkeypatch.setattr(root, "handlers", [])  # as in a process of its own
    top = (
        "import logging\nlogging.basicConfig(level=logging.INFO, format='%(levelname)s of it:"
        " %(message)s')\n"
    )
    body = forward("logging.debug('not this')\nlogging.info(self.environment.get_tick())")
    logged: list[str] = []
    running = runner(written(tmp_path, body, top=top), log=logged.append)
    outside: list[object] = []

    async def both() -> None:
        task = asyncio.ensure_future(play(running, resident(), silence))
        while not task.done():
            outside.append((root.level, root.handlers[:]))
            await asyncio.sleep(0)

    asyncio.run(both())
    assert [line.partition(": ")[2] for line in logged] == [
        f"INFO of it: {1 + 900 * step}" for step in range(100)
    ]
    assert all(seen == (logging.WARNING, []) for seen in outside)


def test_what_a_thread_of_an_agent_prints_is_logged(tmp_path, capsys):
    """Whether a slice runs meanwhile or not; nothing of it is shown."""
    logged: list[str] = []
    body = forward("await asyncio.to_thread(print, 'in a thread')")
    played(runner(written(tmp_path, body), log=logged.append))
    assert len(logged) == 100 and all(line.endswith(": in a thread") for line in logged)
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("filters", ["default", "error", "ignore"])
def test_a_coroutine_that_was_never_awaited_is_told_with_its_line(tmp_path, capsys, filters):
    """Once, whoever forgets it and however often; not on the terminal, and whatever the process
    warns of else."""
    told: list[str] = []
    running = runner(written(tmp_path, forward("self.go_to_aoi(5)")), told.append)
    with warnings.catch_warnings():
        warnings.simplefilter(filters)
        shown, before = warnings.showwarning, warnings.filters[:]
        asyncio.run(all_of(running, range(3)))
        assert warnings.showwarning is shown and warnings.filters == before
    name = "MobilityAgent.go_to_aoi"
    assert told == [
        f"agent.py: RuntimeWarning: coroutine '{name}' was never awaited (agent.py, line 6)"
    ]
    assert capsys.readouterr() == ("", "")


def test_warnings_of_an_agent_s_are_told_and_others_shown(tmp_path):
    """Once for a line; those of the harness and its packages go where they went."""
    body = forward(
        "warnings.warn(f'时间 {self.environment.get_tick()}')\nawait self.llm.atext_request([])"
    )
    told: list[str] = []

    async def ask(request: Request) -> Completion:
        warnings.warn("其它", stacklevel=1)
        return Completion("好")

    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("default")
        played(runner(written(tmp_path, body, top="import warnings"), told.append), ask)
    assert told == ["agent.py: UserWarning: 时间 1 (agent.py, line 6)"]
    assert {str(each.message) for each in shown} == {"其它"}


@pytest.mark.slow
@LOOPS
@pytest.mark.parametrize("ends", ["await self.llm.atext_request([])", "self.messager"])
@pytest.mark.parametrize("catches", ["ValueError", "BaseException"])
def test_nothing_is_warned_of_for_an_agent_that_is_broken_off(
    tmp_path, run, ends, catches, recwarn
):
    """What it had yet to await is no mistake of its."""
    body = f"""
    later = [self.status.get("age"), self.status.get("home")]
    try:
        {ends}
        await asyncio.gather(*later)
    except {catches}:
        del later
    """
    told: list[str] = []

    async def ask(request: Request) -> Completion:
        await asyncio.sleep(0)
        raise GaveUp("http_503", "no", 9)

    failures = run(all_of(runner(written(tmp_path, forward(body)), told.append), range(2), ask))
    assert all(isinstance(failure, GaveUp | AgentFailed) for failure in failures)
    gc.collect()
    assert told == [] and not recwarn.list
