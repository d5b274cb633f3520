"""Accounts: servers and a key, with one limit for all plans that use them; their connections, and
the plans' runners."""

from __future__ import annotations

import functools
import resource
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from harness import defaults
from harness.client.caller import Caller
from harness.client.control import AdaptiveControl, FixedControl
from harness.client.health import Limits
from harness.client.limiter import Limiter, Slots
from harness.client.rates import Rates
from harness.engine.progress import EndpointFindings
from harness.engine.run import Run
from harness.engine.runner import ModelRunner, RunnerPlan
from harness.engine.transports import Clients, open_transport
from harness.errors import MachineError
from harness.options.plan import Plan


def by_account(plans: Sequence[Plan]) -> list[list[Plan]]:
    """Return the plans in groups that share a server and its key, directly or indirectly: no server
    gets twice its limit."""
    groups: list[list[Plan]] = []
    for plan in plans:
        others: list[list[Plan]] = []
        sharing: list[Plan] = []
        for members in groups:
            # A plan with replicas can join groups that had no server in common before.
            if any(map(plan.shares_with, members)):
                sharing += members
            else:
                others.append(members)
        groups = [*others, [*sharing, plan]]
    return groups


def tuning_of(plans: Sequence[Plan]) -> defaults.RunTuning:
    """Return the lower limits where plans on one account differ."""
    return functools.reduce(defaults.RunTuning.combined, [plan.limits for plan in plans])


def with_roles(plans: Sequence[Plan]) -> list[Plan]:
    """Return the plans, each followed by those of its roles."""
    with_their_roles: list[Plan] = []
    for plan in plans:
        with_their_roles += [plan, *plan.roles.values()]
    return with_their_roles


def sockets(plans: Sequence[Plan]) -> tuple[int, int]:
    """Return the connections of all accounts, and the largest concurrency of one: arguments of
    `admit_sockets`."""
    connections, largest = 0, 0
    for sharing in by_account(with_roles(plans)):
        concurrency = tuning_of(sharing).most
        # each server of an account may get all of its requests
        servers = frozenset().union(*(plan.hosts for plan in sharing))
        # Idle connections of one server do not serve requests to another.
        connections += concurrency * len(servers)
        largest = max(largest, concurrency)
    return connections, largest


def admit_sockets(connections: int, largest: int) -> None:
    """Raise this process's limit of open files to what the connections need. Raise `MachineError`
    if it is too low.

    `largest` is the largest concurrency of an account.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = connections + defaults.OTHER_FILES
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return
    if hard != resource.RLIM_INFINITY and hard < needed:
        share = (hard - defaults.OTHER_FILES) * largest // connections
        fewer = "no --concurrency fits:"
        if share > 0:
            fewer = f"take --concurrency {share} (for auto: --auto-ceiling), or"
        raise MachineError(
            f"{connections} requests at once need {needed} open files, and this machine allows"
            f" {hard} a process: {fewer} raise the hard limit"
            f" (`ulimit -n {needed}` in a new shell, or as an administrator)"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


@dataclass(frozen=True, slots=True)
class _Account:
    """One limit; `tuning` applies to all runs on it."""

    slots: Slots
    tuning: defaults.RunTuning


def control_of(tuning: defaults.RunTuning, start: int) -> AdaptiveControl:
    """Return the control of an account; an automatic one begins at `start`."""
    if tuning.concurrency is None:  # `auto`
        return AdaptiveControl(start, tuning.floor, tuning.ceiling)
    return FixedControl(tuning.concurrency)


def rates_of(tuning: defaults.RunTuning) -> Rates | None:
    return Rates(tuning.rpm, tuning.tpm, time.monotonic()) if tuning.rpm or tuning.tpm else None


@dataclass(frozen=True, slots=True)
class RunnerSpec:
    """What the runner of one plan is made of; `roles` are the accounts of the plans of its
    roles."""

    plan: Plan
    runs: list[Run]
    account: _Account
    roles: Mapping[str, _Account]


OpenRunners = Callable[[Sequence[RunnerSpec], AsyncExitStack], Awaitable[Sequence[ModelRunner]]]
"""Open a runner of each spec, for as long as the stack is open."""


def runner_specs(plans: Sequence[tuple[Plan, list[Run]]]) -> list[RunnerSpec]:
    """Return the specs of the runners of plans and their unfinished runs; plans on one account
    share its limit."""
    accounts: dict[int, _Account] = {}  # by the identity of a plan
    for sharing in by_account(with_roles([plan for plan, _ in plans])):
        tuning = tuning_of(sharing)
        slots = Slots(control_of(tuning, tuning.start), time.monotonic, rates_of(tuning))
        # Plans are not hashable, and two equal ones are still two.
        accounts |= dict.fromkeys(map(id, sharing), _Account(slots, tuning))
    specs = []
    for plan, runs in plans:
        roles = {role: accounts[id(role_plan)] for role, role_plan in plan.roles.items()}
        specs.append(RunnerSpec(plan, runs, accounts[id(plan)], roles))
    return specs


RunnerT = TypeVar("RunnerT", bound=ModelRunner)


async def open_runners(
    cls: type[RunnerT], runner_specs: Sequence[RunnerSpec], held: AsyncExitStack
) -> list[RunnerT]:
    """Return a runner of this class for each spec; open what they need, for as long as `held` is
    open. Raise `MachineError` if there can be too few connections."""
    admit_sockets(*sockets([spec.plan for spec in runner_specs]))
    clients, runners = Clients(), []
    for spec in runner_specs:
        plan = spec.plan
        findings = EndpointFindings(spec.runs, time.monotonic)
        open_caller = partial(_open_caller, clients=clients, findings=findings, held=held)
        caller, where = await open_caller(plan, spec.account)
        roles = {}
        for role, role_plan in plan.roles.items():
            roles[role], _ = await open_caller(role_plan, spec.roles[role], role=role)
        runner_plan = RunnerPlan(
            plan.name,
            plan.selection["sample_seed"],
            spec.account.tuning.concurrency,
            plan.tuning.durability == "power",
            plan.terms.allow_invalid or plan.resolved is None,
        )
        runners.append(cls(runner_plan, findings, caller, where, roles))
    return runners


async def _open_caller(
    plan: Plan,
    account: _Account,
    *,
    clients: Clients,
    findings: EndpointFindings,
    held: AsyncExitStack,
    role: str = "",
) -> tuple[Caller, Callable[[str], str]]:
    """Return the caller of a plan's requests, and what names the address of a user's request."""
    limiter = Limiter(account.slots)
    transport, where = await open_transport(plan, limiter, clients, findings, held, role)
    tuning = plan.tuning
    limits = Limits(tuning.max_retries, tuning.max_outage, tuning.wait)
    probe = plan.sampling.probe()
    return Caller(transport, limiter, limits, probe=probe, clock=time.monotonic), where
