"""The floor: an aiohttp session on uvloop that sends bodies as bytes, reads each reply whole and
parses it."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import orjson
import uvloop


async def worker(session: aiohttp.ClientSession, url: str, bodies: Iterator[bytes]) -> int:
    sent = 0
    for body in bodies:
        async with session.post(url, data=body) as response:
            reply = orjson.loads(await response.read())
        assert reply["choices"][0]["message"]["content"]
        sent += 1
    return sent


async def send_all(url: str, bodies: list[bytes], in_flight: int) -> int:
    connector = aiohttp.TCPConnector(limit=in_flight)
    headers = {"Content-Type": "application/json", "Authorization": "Bearer none"}
    timeout = aiohttp.ClientTimeout(total=600)
    async with aiohttp.ClientSession(
        connector=connector, headers=headers, timeout=timeout
    ) as session:
        shared = iter(bodies)
        return sum(await asyncio.gather(*(worker(session, url, shared) for _ in range(in_flight))))


def main() -> int:
    url, path, in_flight = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    bodies = path.read_bytes().splitlines()
    cpu, wall = time.process_time(), time.perf_counter()
    sent = uvloop.run(send_all(url + "/chat/completions", bodies, in_flight))
    print(
        json.dumps(
            {"requests": sent, "cpu": time.process_time() - cpu, "wall": time.perf_counter() - wall}
        )
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
