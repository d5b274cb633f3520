"""Connections that serve one request after another.

A server may close an idle connection at any moment, and the next request may be on its way just then. Neither endpoint
nor request is at fault, so that is no failed try, and the request may be sent once more, over a new connection. And a
connection that sends something unrequested, as after two replies to one request, must not serve the next request,
or its user would get the answer of another.
"""

from __future__ import annotations

import asyncio
from typing import Any, Literal
from weakref import WeakKeyDictionary, WeakSet

import aiohttp

Stage = Literal["connecting", "renewing", "new", "used"]
"""The state of a task's connection: waits for any, waits for a new one; has a new one, has one that served before."""


class Reusing(aiohttp.TCPConnector):
    """A pool that drops a connection with unrequested bytes. `stages` are those of tasks that have requested one.

    A client that sets "renewing" gets a new connection next, whichever are idle. Bytes that come unrequested only after
    the next request has been sent cannot be distinguished from its reply.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._known: WeakSet[Any] = WeakSet()
        self.stages: WeakKeyDictionary[Any, Stage] = WeakKeyDictionary()

    async def _get(self, *args: Any) -> Any:
        """Return an idle connection or None, for `connect`."""
        return None if self.stages[asyncio.current_task()] == "renewing" else await super()._get(*args)

    async def connect(self, *args: Any, **options: Any) -> Any:
        """As aiohttp's, which checks only whether a connection is still open."""
        task = asyncio.current_task()
        if self.stages.get(task) != "renewing":
            self.stages[task] = "connecting"
        while True:
            connection = await super().connect(*args, **options)
            protocol = connection.protocol
            assert protocol is not None
            if protocol not in self._known:
                self._known.add(protocol)
                self.stages[task] = "new"
                return connection
            if not protocol.should_close:
                self.stages[task] = "used"
                return connection
            connection.close()


def hung_up(error: Exception) -> bool:
    """Return whether the server closed the connection without a byte, as one does that finds it idle.

    If that came to light before the request was written, aiohttp names the write as the failure.
    """
    if isinstance(error, aiohttp.ServerDisconnectedError):
        return type(error.message) is str  # else it is the half of a head that came
    return isinstance(error.__cause__, aiohttp.ClientConnectionResetError)
