"""The openai SDK's async client, with its own transport or (a fourth argument `aiohttp`) the
aiohttp one."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Iterable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import httpx2
import openai
import uvloop

WARM_UP = 20


def client(url: str, in_flight: int, transport: str) -> openai.AsyncOpenAI:
    """With as many connections as requests at once, which neither transport has by default."""
    limits = httpx2.Limits(max_connections=in_flight, max_keepalive_connections=in_flight)
    made = openai.DefaultAioHttpClient if transport == "aiohttp" else openai.DefaultAsyncHttpxClient
    return openai.AsyncOpenAI(
        api_key="none", base_url=url, max_retries=0, timeout=600, http_client=made(limits=limits)
    )


async def worker(api: openai.AsyncOpenAI, bodies: Iterator[dict[str, Any]]) -> int:
    sent = 0
    for body in bodies:
        reply = await api.chat.completions.create(**body)
        assert reply.choices[0].message.content
        sent += 1
    return sent


async def send_all(
    api: openai.AsyncOpenAI, bodies: Iterable[dict[str, Any]], in_flight: int
) -> int:
    shared = iter(bodies)
    return sum(await asyncio.gather(*(worker(api, shared) for _ in range(in_flight))))


async def measured(
    url: str, bodies: list[dict[str, Any]], in_flight: int, transport: str
) -> dict[str, Any]:
    async with client(url, in_flight, transport) as api:
        await send_all(api, bodies[:WARM_UP], WARM_UP)
        cpu, wall = time.process_time(), time.perf_counter()
        sent = await send_all(api, bodies, in_flight)
        return {
            "requests": sent,
            "cpu": time.process_time() - cpu,
            "wall": time.perf_counter() - wall,
        }


def main() -> int:
    url, path, in_flight = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    transport = sys.argv[4] if len(sys.argv) > 4 else "httpx"
    bodies = [json.loads(line) for line in path.read_bytes().splitlines()]
    found = uvloop.run(measured(url, bodies, in_flight, transport))
    print(json.dumps({**found, "version": version("openai")}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
