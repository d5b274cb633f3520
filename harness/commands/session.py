"""The asynchronous part of a command: client, limiter and engine, alive for as long as users are played."""

from __future__ import annotations

import gc
import resource
import signal
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from importlib.util import find_spec

import anyio
from rich.console import Console

from harness import config
from harness.commands.plan import Plan
from harness.endpoint.address import Address
from harness.endpoint.caller import Caller, Limits
from harness.endpoint.client import Client
from harness.endpoint.control import AdaptiveControl, Control, FixedControl
from harness.endpoint.limiter import Limiter
from harness.endpoint.rates import Rates
from harness.engine.job import Job
from harness.engine.local import SIGNALS, LocalEngine
from harness.errors import HarnessError, MachineError
from harness.model import JSON, Snapshot
from harness.serve.app import Options, start
from harness.ui.progress import display


@dataclass(frozen=True, slots=True)
class Played:
    """How a session ended: why it stopped early, if so; its schedule; the limit that it had found out, if so."""

    ending: HarnessError | None
    schedule: JSON | None
    learned: int | None


def play(plan: Plan, jobs: list[Job], console: Console) -> Played:
    _admit_sockets(plan.tuning.most)
    uvloop = find_spec("uvloop") is not None  # where it cannot be installed, asyncio's own loop serves
    handlers = {number: signal.getsignal(number) for number in SIGNALS}
    gc.freeze()
    try:
        with display(console) as observe:
            return anyio.run(_session, plan, jobs, observe, backend_options={"use_uvloop": uvloop})
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)  # the event loop leaves the system's own behind
        gc.unfreeze()


@contextmanager
def few_collections() -> Iterator[None]:
    """Garbage is looked for less often; what a run makes and drops has hardly any cycles."""
    before = gc.get_threshold()
    gc.set_threshold(*config.GC_THRESHOLD)
    try:
        yield
    finally:
        gc.set_threshold(*before)


def _admit_sockets(connections: int) -> None:
    """Raises this process's limit of open files to what so many connections take, or says what it allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = connections + config.OTHER_FILES
    if soft != resource.RLIM_INFINITY and soft < needed:
        if hard != resource.RLIM_INFINITY and hard < needed:
            raise MachineError(
                f"{connections} requests at once need {needed} open files, and this machine allows {hard} a process: "
                f"take --concurrency {hard - config.OTHER_FILES} (for auto: --auto-ceiling), or raise it (ulimit -Hn)"
            )
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


async def _session(plan: Plan, jobs: list[Job], observe: Callable[[Snapshot], None]) -> Played:
    """The endpoint, the client and the engine, for as long as the run lasts."""
    tuning = plan.tuning
    async with _address(plan) as address, Client(address, timeout=tuning.timeout, connections=tuning.most) as client:
        control = _control(tuning)
        limiter = Limiter(control, time.monotonic, _rates(tuning))
        client.on_exhausted = limiter.pause
        caller = Caller(client, limiter, Limits(tuning.max_retries, tuning.max_outage), clock=time.monotonic)
        engine = LocalEngine(
            jobs,
            caller,
            seed=plan.sample_seed,
            requested=tuning.concurrency,
            power=tuning.durability == "power",
            clock=time.monotonic,
            observe=observe,
        )
        ending = await engine.run()
        return Played(ending, engine.schedule(), control.limit if tuning.concurrency is None else None)


@asynccontextmanager
async def _address(plan: Plan) -> AsyncIterator[Address]:
    """Where requests go: for baselines, the embedded endpoint, which lives as long as this."""
    if plan.found is not None:
        yield plan.found.address
        return
    embedded = await start(Options())
    try:
        yield Address(embedded.url, called=config.EMBEDDED)
    finally:
        await embedded.close()


def _control(tuning: config.Tuning) -> Control:
    if tuning.concurrency is None:
        return AdaptiveControl(tuning.start, tuning.floor, tuning.ceiling)
    return FixedControl(tuning.concurrency)


def _rates(tuning: config.Tuning) -> Rates | None:
    return Rates(tuning.rpm, tuning.tpm, time.monotonic()) if tuning.rpm or tuning.tpm else None
