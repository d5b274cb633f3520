"""Connections that serve one request after another, and what may become of them in between.

A server may close an idle connection at any moment, and the next request may be on its way just then: nothing is wrong
with endpoint or request, so that is no failed try, and it may go once more, over a new connection. And a connection
that says something unasked, as after two replies to one request, must not give it to the next request, whose user would
get another's answer.
"""

from __future__ import annotations

import asyncio
from typing import Any, Literal
from weakref import WeakKeyDictionary, WeakSet

import aiohttp

Stage = Literal["connecting", "renewing", "new", "used"]
"""Where a task is with its connection: waiting for any, for a new one; has a new one, one that has served before."""


class Reusing(aiohttp.TCPConnector):
    """A pool that leaves a connection which has spoken out of turn, and remembers whose connection has served before.

    What comes unasked only after the next request has been sent cannot be told from its reply.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._known: WeakSet[Any] = WeakSet()
        self._stages: WeakKeyDictionary[asyncio.Task[object], Stage] = WeakKeyDictionary()

    def renew(self, task: asyncio.Task[object]) -> None:
        """The connection that a task gets next is a new one, whatever lies idle."""
        self._stages[task] = "renewing"

    async def _get(self, *asked: Any) -> Any:
        """An idle connection or None, for `connect`."""
        task = asyncio.current_task()
        assert task is not None
        return None if self._stages[task] == "renewing" else await super()._get(*asked)

    async def connect(self, *asked: Any, **more: Any) -> Any:
        """As aiohttp's, which looks only at whether a connection is still open."""
        task = asyncio.current_task()
        assert task is not None
        if self._stages.get(task) != "renewing":
            self._stages[task] = "connecting"
        while True:
            connection = await super().connect(*asked, **more)
            protocol = connection.protocol
            assert protocol is not None
            if protocol not in self._known:
                self._known.add(protocol)
                self._stages[task] = "new"
                return connection
            if not protocol.should_close:
                self._stages[task] = "used"
                return connection
            connection.close()

    def reuses(self, task: asyncio.Task[object]) -> bool:
        """Whether the connection that a task got last had served before."""
        return self._stages.get(task) == "used"

    def waits(self, task: asyncio.Task[object]) -> bool:
        """Whether a task has no connection: it waits for one, or did until it was cancelled."""
        return self._stages.get(task) in ("connecting", "renewing")


def hung_up(error: Exception) -> bool:
    """Whether the server closed the connection without a word, in the orderly way of one that finds it idle.

    Where that came to light before the request was written, aiohttp names the write as what failed.
    """
    if isinstance(error, aiohttp.ServerDisconnectedError):
        return type(error.message) is str  # else it is the half of a head that came
    return isinstance(error.__cause__, aiohttp.ClientConnectionResetError)
