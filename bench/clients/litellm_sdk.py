"""litellm's `acompletion`."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import Iterable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # read at import, which else asks the internet

import litellm
import uvloop

WARM_UP = 20


async def worker(url: str, bodies: Iterator[dict[str, Any]]) -> int:
    sent = 0
    for body in bodies:
        asked = {**body, "model": "openai/" + body["model"]}
        reply = await litellm.acompletion(
            api_base=url, api_key="none", max_retries=0, timeout=600, **asked
        )
        assert reply.choices[0].message.content
        sent += 1
    return sent


async def send_all(url: str, bodies: Iterable[dict[str, Any]], in_flight: int) -> int:
    shared = iter(bodies)
    return sum(await asyncio.gather(*(worker(url, shared) for _ in range(in_flight))))


async def measured(url: str, bodies: list[dict[str, Any]], in_flight: int) -> dict[str, Any]:
    await send_all(url, bodies[:WARM_UP], WARM_UP)
    cpu, wall = time.process_time(), time.perf_counter()
    sent = await send_all(url, bodies, in_flight)
    return {"requests": sent, "cpu": time.process_time() - cpu, "wall": time.perf_counter() - wall}


def main() -> int:
    url, path, in_flight = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    litellm.suppress_debug_info = True
    bodies = [json.loads(line) for line in path.read_bytes().splitlines()]
    print(
        json.dumps({**uvloop.run(measured(url, bodies, in_flight)), "version": version("litellm")})
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
