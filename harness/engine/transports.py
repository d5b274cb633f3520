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
from harness.client.limiter import Limiter, Slots
from harness.client.quirks import Adapted
from harness.client.replicas import Replicas
from harness.client.transport import Transport
from harness.engine.progress import EndpointFindings
from harness.options.plan import Plan

Clients = dict[tuple[Slots, Address], Client]
"""The first client of each account, known by its slots, to an address: later ones share its
connections."""


async def open_transport(
    plan: Plan,
    limiter: Limiter,
    clients: Clients,
    findings: EndpointFindings,
    held: AsyncExitStack,
    role: str = "",
) -> tuple[Adapted, Callable[[str], str]]:
    """Return the transport of a plan, open as long as `held`, and what names the address of a
    user's request.

    `role` is whose plan it is, empty for the model under test. The `limiter` pauses when a quota is
    used up. Without an address, the baselines of the benchmark answer.
    """
    opened: list[tuple[str, Transport]] = []
    if plan.resolved is None:
        opened.append((defaults.EMBEDDED, Baselines(type(plan.benchmark))))
    else:
        for address in plan.resolved.addresses:
            key = limiter.slots, address
            client = Client(
                address,
                timeout=plan.tuning.timeout,
                stall=plan.tuning.stall,
                connections=defaults.CONCURRENCY_MOST,  # the slots bound them, and may become more
                shares_with=clients.get(key),
                on_exhausted=limiter.pause,
            )
            await held.enter_async_context(client)
            clients.setdefault(key, client)
            opened.append((address.shown, client))
    known: set[str] = set()
    for run in findings.runs:
        known.update(run.quirks(role))
    adapted = partial(
        Adapted,
        known=known,
        stream=plan.tuning.stream,
        on_learned=partial(findings.learned, role=role),
        fixed=plan.sampling.extra_body,
        needs_schema=plan.benchmark.asking.needs_schema,
    )
    if len(opened) > 1:
        replicas = Replicas(opened, time.monotonic, partial(findings.note, "replica"))
        return adapted(replicas), replicas.where
    name, transport = opened[0]
    return adapted(transport), lambda user: name
