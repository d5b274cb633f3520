"""Group commit for `--durability power`: many appended lines, one fsync, in a thread.

With `process` durability an append is enough and `saved` returns at once.
"""

from __future__ import annotations

from collections.abc import Sequence

import anyio
import anyio.to_thread

from harness.store.run import RunStore


class GroupCommit:
    def __init__(self, stores: Sequence[RunStore], power: bool) -> None:
        self.power = power
        self._stores = stores
        self._wanted = anyio.Event()
        self._committed = anyio.Event()

    async def saved(self) -> None:
        """Return once everything appended so far is as durable as the run requires."""
        if self.power:
            committed = self._committed
            self._wanted.set()
            await committed.wait()

    async def flush(self) -> None:
        """Sync what nobody waits for any more, once the run has ended."""
        if self.power:
            await self._sync()

    async def serve(self) -> None:
        """Sync for those that wait, until cancelled. Lines appended during a sync wait for the next
        one."""
        while True:
            await self._wanted.wait()
            self._wanted = anyio.Event()
            # Before the sync: whoever appends from here on waits for the next one.
            waiting = self._committed
            self._committed = anyio.Event()
            await self._sync()
            waiting.set()

    async def _sync(self) -> None:
        for store in self._stores:
            # In a thread: an fsync takes up to seconds, and replies go on arriving.
            await anyio.to_thread.run_sync(store.sync)
