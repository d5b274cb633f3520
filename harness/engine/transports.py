"""What sends a plan's requests: connections, replicas and the endpoint's quirks."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from functools import partial

from harness import defaults
from harness.client.address import Address
from harness.client.baselines import Baselines
from harness.client.http import Client
from harness.client.quirks import Adapted
from harness.client.replicas import Replicas
from harness.client.transport import Transport
from harness.engine.progress import EndpointFindings
from harness.options.plan import Plan

Clients = dict[tuple[int, Address], Client]
"""The first client of each account to an address, whose connections later ones share."""


async def open_transport(
    plan: Plan,
    account: int,
    clients: Clients,
    findings: EndpointFindings,
    on_exhausted: Callable[[float], None],
    held: AsyncExitStack,
    role: str = "",
) -> tuple[Adapted, Callable[[str], str]]:
    """Return the transport of a plan, open as long as `held`, and what names the address of a
    user's request.

    `role` is whose plan it is, empty for the model under test. Plans of one `account` share the
    connections to an address. `on_exhausted` is called when a
    quota is used up. Without an address, the baselines of the benchmark answer.
    """
    tuning = plan.tuning
    opened: list[tuple[str, Transport]] = []
    if plan.resolved is None:
        opened.append((defaults.EMBEDDED, Baselines(type(plan.benchmark))))
    for address in plan.resolved.addresses if plan.resolved else ():
        client = Client(
            address,
            timeout=tuning.timeout,
            stall=tuning.stall,
            connections=defaults.CONCURRENCY_MOST,  # the slots bound them, and may become more
            shares_with=clients.get((account, address)),
            on_exhausted=on_exhausted,
        )
        await held.enter_async_context(client)
        clients.setdefault((account, address), client)
        opened.append((address.shown, client))
    replicas = None
    if len(opened) > 1:
        replicas = Replicas(opened, time.monotonic, partial(findings.note, "replica"))
    transport = Adapted(
        replicas or opened[0][1],
        frozenset(name for run in findings.runs for name in run.quirks(role)),
        tuning.stream,
        partial(findings.learned, role=role),
        frozenset(plan.sampling.extra_body),
        plan.benchmark.asking.needs_schema,
    )
    return transport, replicas.where if replicas else lambda user: opened[0][0]
