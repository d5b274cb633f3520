"""litellm's `acompletion`."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import litellm
import uvloop


async def worker(url: str, bodies: Iterator[dict[str, Any]]) -> int:
    sent = 0
    for body in bodies:
        asked = {**body, "model": "openai/" + body["model"]}
        reply = await litellm.acompletion(api_base=url, api_key="none", max_retries=0, timeout=600, **asked)
        assert reply.choices[0].message.content
        sent += 1
    return sent


async def send_all(url: str, bodies: list[dict[str, Any]], in_flight: int) -> int:
    shared = iter(bodies)
    return sum(await asyncio.gather(*(worker(url, shared) for _ in range(in_flight))))


def main() -> int:
    url, path, in_flight = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    litellm.suppress_debug_info = True
    bodies = [json.loads(line) for line in path.read_bytes().splitlines()]
    cpu, wall = time.process_time(), time.perf_counter()
    sent = uvloop.run(send_all(url, bodies, in_flight))
    print(json.dumps({"requests": sent, "cpu": time.process_time() - cpu, "wall": time.perf_counter() - wall}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
