"""The embedded endpoint in a thread of its own, for tests that call a command and look at the
server afterwards."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any
from urllib.request import ProxyHandler, build_opener

import aiohttp
import orjson

from tests.support.endpoint_double.app import start


class Served:
    """An endpoint at `url`, to its /v1."""

    def __init__(self, url: str) -> None:
        self.url = url

    def stats(self) -> dict[str, Any]:
        opener = build_opener(ProxyHandler({}))
        with opener.open(self.url.removesuffix("/v1") + "/stats") as reply:
            found: dict[str, Any] = orjson.loads(reply.read())
        return found


@contextmanager
def served(options: Any, port: int = 0) -> Iterator[Served]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        endpoint = asyncio.run_coroutine_threadsafe(start(options, port=port), loop).result(30)
        try:
            yield Served(endpoint.url)
        finally:
            asyncio.run_coroutine_threadsafe(endpoint.close(), loop).result(30)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(30)
        loop.close()


@asynccontextmanager
async def session_with(options: Any) -> AsyncIterator[tuple[Any, aiohttp.ClientSession]]:
    """The embedded endpoint in this loop, and a session to talk to it."""
    endpoint = await start(options)
    try:
        async with aiohttp.ClientSession() as session:
            yield endpoint, session
    finally:
        await endpoint.close()
