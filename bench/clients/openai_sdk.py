"""The openai SDK's async client, with its own transport or (a fourth argument `aiohttp`) the aiohttp one."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import openai
import uvloop


def client(url: str, in_flight: int, transport: str) -> openai.AsyncOpenAI:
    options: dict[str, Any] = {"api_key": "none", "base_url": url, "max_retries": 0, "timeout": 600}
    if transport == "aiohttp":
        limits = httpx2.Limits(max_connections=in_flight)
        options["http_client"] = openai.DefaultAioHttpClient(limits=limits)
    return openai.AsyncOpenAI(**options)


async def worker(api: openai.AsyncOpenAI, bodies: Iterator[dict[str, Any]]) -> int:
    sent = 0
    for body in bodies:
        reply = await api.chat.completions.create(**body)
        assert reply.choices[0].message.content
        sent += 1
    return sent


async def send_all(url: str, bodies: list[dict[str, Any]], in_flight: int, transport: str) -> int:
    async with client(url, in_flight, transport) as api:
        shared = iter(bodies)
        return sum(await asyncio.gather(*(worker(api, shared) for _ in range(in_flight))))


def main() -> int:
    url, path, in_flight = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    transport = sys.argv[4] if len(sys.argv) > 4 else "httpx"
    bodies = [json.loads(line) for line in path.read_bytes().splitlines()]
    cpu, wall = time.process_time(), time.perf_counter()
    sent = uvloop.run(send_all(url, bodies, in_flight, transport))
    print(json.dumps({"requests": sent, "cpu": time.process_time() - cpu, "wall": time.perf_counter() - wall}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
