"""Accounts: servers and a key, with one limit for all plans that use them; their connections, and the plans' lanes."""

from __future__ import annotations

import functools
import operator
import resource
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field

from harness import defaults
from harness.benchmark import Benchmark
from harness.config.plan import Plan
from harness.endpoint.address import Address
from harness.endpoint.batches import BatchApi
from harness.endpoint.caller import Caller, Limits
from harness.endpoint.client import Client
from harness.endpoint.control import AdaptiveControl, Control, FixedControl
from harness.endpoint.limiter import Limiter, Slots
from harness.endpoint.quirks import Adapted
from harness.endpoint.rates import Rates
from harness.endpoint.replicas import Replicas
from harness.engine.batches import Batches
from harness.engine.lane import Lane
from harness.engine.progress import Findings
from harness.engine.run import Run
from harness.errors import MachineError


def group(plans: Sequence[Plan]) -> list[list[int]]:
    """Return the places of plans that share a server and its key, directly or indirectly: no server gets twice its
    limit."""
    groups: list[list[int]] = []
    for place, plan in enumerate(plans):
        sharing = [one for one in groups if any(plan.shares_with(plans[other]) for other in one)]
        groups = [*(one for one in groups if one not in sharing), [*(other for one in sharing for other in one), place]]
    return groups


def _tuning(plans: Sequence[Plan]) -> defaults.Tuning:
    """Return the lower limits where plans on one account differ."""
    return functools.reduce(defaults.Tuning.combined, [plan.limits for plan in plans])


def check_sockets(plans: Sequence[Plan]) -> None:
    """Make room for the connections of all accounts. Raise `MachineError` if this machine allows too few."""
    grouped = [[plans[place] for place in places] for places in group(plans)]
    most = [_tuning(one).most for one in grouped]
    servers = [len({host for plan in one for host in plan.hosts}) for one in grouped]
    admit_sockets(sum(map(operator.mul, most, servers)), max(most))


def admit_sockets(connections: int, most: int) -> None:
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


@dataclass(frozen=True, slots=True)
class _Account:
    """One limit and its connections. `tuning` applies to all runs on it; `clients` are the first to each address, whose
    connections later ones share."""

    slots: Slots
    tuning: defaults.Tuning
    clients: dict[Address, Client] = field(default_factory=dict)

    @classmethod
    def of(cls, plans: Sequence[Plan]) -> _Account:
        tuning = _tuning(plans)
        control: Control = (
            AdaptiveControl(tuning.start, tuning.floor, tuning.ceiling)
            if tuning.concurrency is None
            else FixedControl(tuning.concurrency)
        )
        rates = Rates(tuning.rpm, tuning.tpm, time.monotonic()) if tuning.rpm or tuning.tpm else None
        return cls(Slots(control, time.monotonic, rates), tuning)

    async def client(self, address: Address, plan: Plan, limiter: Limiter, held: AsyncExitStack) -> Client:
        made = Client(
            address,
            timeout=plan.tuning.timeout,
            stall=plan.tuning.stall,
            connections=self.tuning.most,
            shares_with=self.clients.get(address),
            on_exhausted=limiter.pause,
        )
        await held.enter_async_context(made)
        self.clients.setdefault(address, made)
        return made


async def open_lanes(plans: Sequence[tuple[Plan, list[Run]]], held: AsyncExitStack) -> list[Lane]:
    """Return a lane for each plan and its unfinished runs; open what they need, for as long as `held` is open."""
    embedded = await _embedded([plan for plan, _ in plans], held)
    accounts: dict[int, _Account] = {}
    for places in group([plan for plan, _ in plans]):
        accounts |= dict.fromkeys(places, _Account.of([plans[place][0] for place in places]))
    return [await _lane(plan, runs, accounts[place], embedded, held) for place, (plan, runs) in enumerate(plans)]


_Endpoints = dict[type[Benchmark], tuple[Address, ...]]


async def _embedded(plans: Sequence[Plan], held: AsyncExitStack) -> _Endpoints:
    """Start the endpoints for baselines: one per benchmark, with its own baselines too."""
    if not (classes := dict.fromkeys(type(plan.benchmark) for plan in plans if plan.found is None)):
        return {}
    from harness.serve.app import Options, start  # a web server takes a while to load, and most runs need none

    found: _Endpoints = {}
    for cls in classes:
        own = {f"{defaults.BASELINE_PREFIX}{name}": answer for name, answer in cls.baselines.items()}
        endpoint = await start(Options(baselines=own, strict=False))
        held.push_async_callback(endpoint.close)
        found[cls] = (Address(endpoint.url, called=defaults.EMBEDDED),)
    return found


async def _lane(plan: Plan, runs: list[Run], account: _Account, embedded: _Endpoints, held: AsyncExitStack) -> Lane:
    tuning, findings = plan.tuning, Findings(runs, time.monotonic)
    limiter = Limiter(_slots_for_all(runs) if tuning.batch else account.slots)
    addresses = plan.found.addresses if plan.found else embedded[type(plan.benchmark)]
    clients = [(address.shown, await account.client(address, plan, limiter, held)) for address in addresses]
    several = Replicas(clients, time.monotonic, findings.replica) if len(clients) > 1 else None
    known = {name for run in runs for name in run.manifest.provenance["quirks"]}
    caller = Caller(
        Adapted(several or clients[0][1], known, tuning.stream, findings.learned, plan.sampling.extra_body),
        limiter,
        Limits(tuning.max_retries, tuning.max_outage, tuning.wait, tuning.hedge),
        clock=time.monotonic,
    )
    batches = None
    if tuning.batch:
        api, given = BatchApi(clients[0][1]), plan.sampling.extra_body
        batches = Batches(api, caller, findings, known=known, given=given, clock=time.monotonic)
    where = several.where if several else lambda user: plan.endpoint
    return Lane(
        plan.name,
        findings,
        caller,
        seed=plan.selection["sample_seed"],
        requested=account.tuning.concurrency,
        power=tuning.durability == "power",
        clock=time.monotonic,
        where=where,
        batches=batches,
    )


def _slots_for_all(runs: Sequence[Run]) -> Slots:
    """Return slots with which all users are in play at once: batches have no limit of requests in flight."""
    return Slots(FixedControl(sum([len(run.remaining) for run in runs])), time.monotonic)
