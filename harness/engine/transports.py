"""What sends a plan's requests: connections, replicas and the endpoint's quirks, made of plain data.

In one process the engine sends itself; otherwise each process that plays does, and has all of this of its own.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass

from harness import defaults
from harness.benchmark import Benchmark
from harness.client.address import Address
from harness.client.baselines import Baselines
from harness.client.http import Client
from harness.client.quirks import Adapted
from harness.client.replicas import Replicas
from harness.client.transport import Transport


@dataclass(frozen=True, slots=True)
class Route:
    """Where a plan's requests go; no `addresses` for baselines, which answer in this process. Times in seconds.

    Plans of one `account` share the connections to an address, `connections` of them at most. `known` are quirks
    learned before, `given` the members of a body that the user set, and `needs_schema` as for `Adapted`.
    """

    addresses: tuple[Address, ...]
    account: int
    connections: int
    timeout: float
    stall: float
    stream: str
    known: frozenset[str]
    given: frozenset[str]
    needs_schema: bool = False


@dataclass(frozen=True, slots=True)
class Listener:
    """What is called when a quirk is learned, when a replica is set aside or is back, when a quota is used up."""

    learned: Callable[[str, str], None]
    replica: Callable[[str], None]
    exhausted: Callable[[float], None]


Clients = dict[tuple[int, Address], Client]
"""The first client of each account to an address, whose connections later ones share."""


async def open_transport(
    route: Route, cls: type[Benchmark], clients: Clients, listener: Listener, held: AsyncExitStack
) -> tuple[Adapted, Callable[[str], str]]:
    """Return the transport of a route, open as long as `held`, and what names the address of a user's request.

    Without an address, the baselines of a benchmark answer.
    """
    opened: list[tuple[str, Transport]] = []
    if not route.addresses:
        opened.append((defaults.EMBEDDED, Baselines(cls)))
    for address in route.addresses:
        client = Client(
            address,
            timeout=route.timeout,
            stall=route.stall,
            connections=route.connections,
            shares_with=clients.get((route.account, address)),
            on_exhausted=listener.exhausted,
        )
        await held.enter_async_context(client)
        clients.setdefault((route.account, address), client)
        opened.append((address.shown, client))
    several = None
    if len(opened) > 1:
        several = Replicas(opened, time.monotonic, listener.replica)
    transport = Adapted(
        several or opened[0][1], route.known, route.stream, listener.learned, route.given, route.needs_schema
    )
    return transport, several.where if several else lambda user: opened[0][0]
