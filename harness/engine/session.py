"""The asynchronous part of a command: clients, limits and engine, for as long as users are played."""

from __future__ import annotations

import functools
import gc
import operator
import resource
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec

import anyio
import anyio.to_thread
from rich.console import Console

from harness import defaults
from harness.benchmark import Benchmark
from harness.config.plan import Plan
from harness.endpoint.address import Address
from harness.endpoint.caller import Caller, Limits
from harness.endpoint.client import Client
from harness.endpoint.control import AdaptiveControl, Control, FixedControl
from harness.endpoint.limiter import Limiter, Slots
from harness.endpoint.quirks import Adapted
from harness.endpoint.rates import Rates
from harness.endpoint.replicas import Replicas
from harness.endpoint.transport import Transport
from harness.engine.job import Job
from harness.engine.lane import Lane
from harness.engine.local import SIGNALS, LocalEngine
from harness.errors import HarnessError, MachineError
from harness.model import JSON, Snapshots
from harness.serve.app import Options, start
from harness.ui.progress import display


@dataclass(frozen=True, slots=True)
class Work:
    """A plan's jobs with remaining users. `known` are the quirks of its endpoint that were learned before.

    `learned` is called with each new quirk and the endpoint's message that revealed it; `finish` at the end, in its own
    thread, if the plan ends while others still run.
    """

    plan: Plan
    jobs: list[Job]
    known: frozenset[str]
    learned: Callable[[str, str], None]
    finish: Callable[[Played], None]


@dataclass(frozen=True, slots=True)
class Played:
    """How a plan ended: why it stopped early, its schedule, and the concurrency limit that it learned, if any."""

    ending: HarnessError | None = None
    schedule: JSON | None = None
    learned_limit: int | None = None


def play(works: Sequence[Work], console: Console) -> list[Played]:
    """Play all at once, with one limit for each account; return a `Played` for each."""
    _admit_sockets(*_sockets([work.plan for work in works]))
    uvloop = find_spec("uvloop") is not None  # where it cannot be installed, asyncio's own loop serves
    handlers = {number: signal.getsignal(number) for number in SIGNALS}
    gc.freeze()
    try:
        with display(console) as observe:
            return anyio.run(_session, works, observe, backend_options={"use_uvloop": uvloop})
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)  # the event loop leaves the system's own behind
        gc.unfreeze()


@contextmanager
def few_collections() -> Iterator[None]:
    """Collect garbage less often; the objects of a run have hardly any cycles."""
    before = gc.get_threshold()
    gc.set_threshold(*defaults.GC_THRESHOLD)
    try:
        yield
    finally:
        gc.set_threshold(*before)


def _sockets(plans: Sequence[Plan]) -> tuple[int, int]:
    """Return the connections that all accounts may open, and the largest concurrency of one account."""
    groups = _groups(plans)
    most = [_tuning(group).most for group in groups]
    servers = [len({host for plan in group for host in plan.hosts}) for group in groups]
    return sum(map(operator.mul, most, servers)), max(most)


def _admit_sockets(connections: int, most: int) -> None:
    """Raise this process's limit of open files to what the connections need. Raise `MachineError` if it is too low.

    `most` is the largest concurrency of an account.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = connections + defaults.OTHER_FILES
    if soft != resource.RLIM_INFINITY and soft < needed:
        if hard != resource.RLIM_INFINITY and hard < needed:
            share = (hard - defaults.OTHER_FILES) * most // connections
            fewer = f"take --concurrency {share} (for auto: --auto-ceiling)" if share > 0 else "no --concurrency fits"
            raise MachineError(
                f"{connections} requests at once need {needed} open files, and this machine allows {hard} a process: "
                f"{fewer}{', or' if share > 0 else ':'} raise the hard limit (`ulimit -n {needed}` in a new shell, or "
                "as an administrator)"
            )
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


async def _session(works: Sequence[Work], observe: Callable[[Snapshots], None]) -> list[Played]:
    """Open endpoints, clients and the engine, for as long as the runs last."""
    async with AsyncExitStack() as held:
        embedded = await _embedded([work.plan for work in works], held)
        accounts = _accounts([work.plan for work in works])
        lanes = [await _lane(work, embedded, accounts[place], held) for place, work in enumerate(works)]
        finishes = {lane: work.finish for lane, work in zip(lanes, works, strict=True)}

        def played(lane: Lane) -> Played:
            return Played(lane.ending, engine.schedule(lane), _learned_limit(lane))

        async def ended(lane: Lane) -> None:
            await lane.guarded(partial(anyio.to_thread.run_sync, finishes[lane], played(lane)))

        engine = LocalEngine(lanes, seed=works[0].plan.sample_seed, clock=time.monotonic, observe=observe, ended=ended)
        await engine.run()
        return [played(lane) for lane in lanes]


_Endpoints = dict[type[Benchmark], tuple[Address, ...]]


async def _embedded(plans: Sequence[Plan], held: AsyncExitStack) -> _Endpoints:
    """Start the endpoints for baselines, for as long as the session: one per benchmark, with its own baselines too."""
    found: _Endpoints = {}
    for cls in dict.fromkeys(type(plan.benchmark) for plan in plans if plan.found is None):
        own = {f"{defaults.BASELINE_PREFIX}{name}": answer for name, answer in cls.baselines.items()}
        endpoint = await start(Options(baselines=own))
        held.push_async_callback(endpoint.close)
        found[cls] = (Address(endpoint.url, called=defaults.EMBEDDED),)
    return found


@dataclass(frozen=True, slots=True)
class _Account:
    """One limit and its connections. `tuning` applies to all runs on it; `clients` are the first to each address, whose
    connections later ones share."""

    slots: Slots
    tuning: defaults.Tuning
    clients: dict[Address, Client] = field(default_factory=dict)


def _accounts(plans: Sequence[Plan]) -> Mapping[int, _Account]:
    """Return the account of each plan, by the plan's index."""
    made: dict[int, _Account] = {}
    for group in _groups(plans):
        tuning = _tuning(group)
        account = _Account(Slots(_control(tuning), time.monotonic, _rates(tuning)), tuning)
        made |= {place: account for place, plan in enumerate(plans) if any(plan is one for one in group)}
    return made


def _groups(plans: Sequence[Plan]) -> list[list[Plan]]:
    """Group plans that share a server and its key, directly or indirectly, so that no server gets twice its limit."""
    groups: list[list[Plan]] = []
    for plan in plans:
        sharing = [group for group in groups if any(plan.shares_with(other) for other in group)]
        apart = [group for group in groups if not any(group is one for one in sharing)]
        groups = [*apart, [*(one for group in sharing for one in group), plan]]
    return groups


def _tuning(group: Sequence[Plan]) -> defaults.Tuning:
    """Return the lower limits where plans on one account differ."""
    return functools.reduce(defaults.Tuning.combined, [plan.tuning for plan in group])


async def _lane(work: Work, embedded: _Endpoints, account: _Account, held: AsyncExitStack) -> Lane:
    plan, tuning, limiter = work.plan, work.plan.tuning, Limiter(account.slots)
    lane: Lane

    def learned(name: str, words: str) -> None:
        work.learned(name, words)
        lane.note("learned", f"{name}: {words}")

    async def client(address: Address) -> Client:
        first = account.clients.get(address)
        made = Client(
            address,
            timeout=tuning.timeout,
            stall=tuning.stall,
            connections=account.tuning.most,
            beside=first,
            on_exhausted=limiter.pause,
        )
        await held.enter_async_context(made)
        account.clients.setdefault(address, made)
        return made

    addresses = plan.found.addresses if plan.found else embedded[type(plan.benchmark)]
    clients: list[tuple[str, Transport]] = [(address.shown, await client(address)) for address in addresses]
    sender: Transport = clients[0][1]
    if len(clients) > 1:
        sender = Replicas(clients, time.monotonic, lambda detail: lane.note("replica", detail))
    lane = Lane(
        plan.name,
        work.jobs,
        Caller(
            Adapted(sender, work.known, tuning.stream, learned, plan.sampling.extra_body),
            limiter,
            Limits(tuning.max_retries, tuning.max_outage),
            clock=time.monotonic,
        ),
        seed=plan.sample_seed,
        requested=account.tuning.concurrency,
        power=tuning.durability == "power",
        clock=time.monotonic,
    )
    return lane


def _control(tuning: defaults.Tuning) -> Control:
    if tuning.concurrency is None:
        return AdaptiveControl(tuning.start, tuning.floor, tuning.ceiling)
    return FixedControl(tuning.concurrency)


def _learned_limit(lane: Lane) -> int | None:
    control = lane.caller.limiter.slots.control
    return control.limit if isinstance(control, AdaptiveControl) else None


def _rates(tuning: defaults.Tuning) -> Rates | None:
    return Rates(tuning.rpm, tuning.tpm, time.monotonic()) if tuning.rpm or tuning.tpm else None
