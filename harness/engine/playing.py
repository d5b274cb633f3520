"""Play sessions at once, with one limit for each account."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AbstractContextManager, AsyncExitStack, ExitStack
from functools import partial
from importlib.util import find_spec
from typing import Any

import anyio
import anyio.to_thread

from harness.engine import control_server
from harness.engine.accounts import OpenRunners, RunnerSpec, open_runners, runner_specs
from harness.engine.hooks import Hooks, Observe, Say, extend
from harness.engine.local import LocalEngine, Signalled, Signals
from harness.engine.runner import ModelRunner
from harness.engine.session import PlanSession
from harness.errors import HarnessError
from harness.model import JSON, Snapshots

RunAsync = Callable[[Callable[[Signals], Coroutine[Any, Any, None]]], None]
"""Awaits a play in a loop of another thread."""


def play(
    sessions: Sequence[PlanSession],
    hooks: Sequence[Hooks],
    say: Say,
    display: Callable[[], AbstractContextManager[Observe]],
    finishing: bool = True,
    run_async: RunAsync | None = None,
) -> None:
    """Play all at once, with one limit for each account.

    `display` shows snapshots. If `finishing`, a session that ends before others is finished at
    once. `run_async` awaits the play in a loop that runs already, with the signals of its thread;
    without, it has a loop of its own.
    """
    # What exists now lives until the end: the collector need not look at it in every round.
    gc.freeze()
    try:
        with Signals() as signals, ExitStack() as held, ExitStack() as shown:
            open_plans: OpenRunners = partial(open_runners, ModelRunner)
            for item in hooks:
                open_plans = item.wrap_open_runners(open_plans, held, say)
            observe = shown.enter_context(display())
            specs = runner_specs([(item.plan, item.unfinished) for item in sessions])
            play_async = partial(
                _play, sessions, hooks, specs, open_plans, observe, shown if finishing else None
            )
            if run_async:
                return run_async(play_async)
            signals.listen()
            # Where uvloop cannot be installed, asyncio's own loop serves.
            uvloop = find_spec("uvloop") is not None
            anyio.run(play_async, signals, backend_options={"use_uvloop": uvloop})
    except (HarnessError, KeyboardInterrupt):  # before the first user: later ones end runners
        for session in sessions:
            if session.code is None:
                session.undo()
        raise
    finally:
        gc.unfreeze()


async def _play(
    sessions: Sequence[PlanSession],
    hooks: Sequence[Hooks],
    specs: Sequence[RunnerSpec],
    open_plans: OpenRunners,
    observe: Callable[[Snapshots], None],
    shown: ExitStack | None,
    signals: Signals,
) -> None:
    """Play sessions. If there is a display (`shown`), finish those that end before others."""
    async with AsyncExitStack() as held:
        session_of = dict(zip(await open_plans(specs, held), sessions, strict=True))

        async def ended(runner: ModelRunner, schedule: JSON, signalled: Signalled) -> None:
            session_of[runner].schedule = schedule
            if shown:
                await runner.guarded(
                    # In a thread: a report of many users takes seconds, and other runs go on
                    # meanwhile.
                    partial(anyio.to_thread.run_sync, session_of[runner].finish, signalled)
                )

        for runner, session in session_of.items():
            session.runner = runner
            extend(runner, hooks)
        runners, seed = list(session_of), sessions[0].plan.selection["sample_seed"]
        plans = {runner: session.plan for runner, session in session_of.items()}
        observe = await held.enter_async_context(control_server.serving(plans, observe))
        engine = LocalEngine(
            runners, seed=seed, clock=time.monotonic, observe=observe, ended=ended, signals=signals
        )
        await engine.run()
        for runner, session in session_of.items():
            session.schedule = engine.schedule(runner)
