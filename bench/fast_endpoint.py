"""An endpoint that is never the bottleneck: a bare asyncio.Protocol that answers every chat call
with one reply.

    python -m bench.fast_endpoint --latency 0.2 --jitter 0.5 --slots 30 --fault-rate 0.3

It prints its address on the first line. `GET /stats` tells what it has seen, `POST /slots N`
changes its capacity. Not a server for anything but measurements: it reads just enough HTTP for
clients that send a Content-Length.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import random
import sys
from dataclasses import dataclass, field
from typing import cast

import orjson
import uvloop

TEXT = orjson.dumps(
    {
        "persona_summary": (
            "该用户长期关注音乐与影视，近期对国产动画与户外徒步的兴趣上升，对热点话题的参与减少。"
            * 4
        ),
        "predicted_tags": ["国产动画", "音乐节", "徒步"],
        "reasoning": "依据最近几批动态中反复出现的主题，并结合画像里持续的兴趣作出判断。",
    }
).decode()
"""A reply of about 0.9 KB, as a model's usually is."""

COMPLETION = orjson.dumps(
    {
        "id": "chatcmpl-0",
        "object": "chat.completion",
        "created": 0,
        "model": "fast",
        "choices": [
            {"index": 0, "message": {"role": "assistant", "content": TEXT}, "finish_reason": "stop"}
        ],
        "usage": {"prompt_tokens": 1800, "completion_tokens": 250, "total_tokens": 2050},
    }
)
BUSY = b'{"error":{"message":"too many requests","type":"rate_limit","code":"429"}}'
BROKEN = b'{"error":{"message":"injected","type":"server_error","code":"500"}}'


def _reply(status: str, body: bytes) -> bytes:
    head = (
        f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length:"
        f" {len(body)}\r\n\r\n"
    )
    return head.encode() + body


OK, TOO_MANY, ERROR = (
    _reply("200 OK", COMPLETION),
    _reply("429 Too Many", BUSY),
    _reply("500 Error", BROKEN),
)


@dataclass(slots=True)
class Behaviour:
    """`latency` is a mean in seconds, lognormal with sigma `jitter`; beyond `slots` requests at
    once it says 429."""

    latency: float
    jitter: float
    slots: int | None
    fault_rate: float
    rng: random.Random
    in_flight: int = 0
    counts: dict[str, int] = field(
        default_factory=lambda: {
            "requests": 0,
            "completed": 0,
            "rejected": 0,
            "faults": 0,
            "most_in_flight": 0,
        }
    )

    def delay(self) -> float:
        if not self.latency:
            return 0.0
        return math.exp(self.rng.gauss(math.log(self.latency) - self.jitter**2 / 2, self.jitter))


class Endpoint(asyncio.Protocol):
    def __init__(self, behaviour: Behaviour) -> None:
        self._behaviour = behaviour
        self._buffer = bytearray()
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(
            asyncio.Transport, transport
        )  # uvloop's own does not inherit from it

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while (end := self._buffer.find(b"\r\n\r\n")) >= 0:
            head = bytes(self._buffer[:end])
            size = _content_length(head)
            if len(self._buffer) < end + 4 + size:
                return
            body = bytes(self._buffer[end + 4 : end + 4 + size])
            del self._buffer[: end + 4 + size]
            self._request(head, body)

    def _request(self, head: bytes, body: bytes) -> None:
        b = self._behaviour
        if head.startswith(b"GET /stats"):
            self._write(_reply("200 OK", orjson.dumps(b.counts | {"in_flight": b.in_flight})))
        elif head.startswith(b"POST /slots"):
            b.slots = int(body)
            self._write(_reply("200 OK", b"{}"))
        else:
            self._chat()

    def _chat(self) -> None:
        b = self._behaviour
        b.counts["requests"] += 1
        if b.slots is not None and b.in_flight >= b.slots:
            b.counts["rejected"] += 1
            self._write(TOO_MANY)
        elif b.fault_rate and b.rng.random() < b.fault_rate:
            b.counts["faults"] += 1
            self._write(ERROR)
        else:
            b.in_flight += 1
            b.counts["most_in_flight"] = max(b.counts["most_in_flight"], b.in_flight)
            if delay := b.delay():
                asyncio.get_running_loop().call_later(delay, self._answer)
            else:
                self._answer()

    def _answer(self) -> None:
        self._behaviour.in_flight -= 1
        self._behaviour.counts["completed"] += 1
        self._write(OK)

    def _write(self, reply: bytes) -> None:
        if self._transport is not None:
            self._transport.write(reply)


def _content_length(head: bytes) -> int:
    low = head.lower()
    at = low.find(b"content-length:")
    return int(low[at + 15 :].split(b"\r\n", 1)[0]) if at >= 0 else 0


async def serve(behaviour: Behaviour) -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Endpoint(behaviour), "127.0.0.1", 0, backlog=8192)
    port = server.sockets[0].getsockname()[1]
    print(f"listening on http://127.0.0.1:{port}/v1", flush=True)
    async with server:
        await server.serve_forever()


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--latency", type=float, default=0.0)
    parser.add_argument("--jitter", type=float, default=0.5)
    parser.add_argument("--slots", type=int)
    parser.add_argument("--fault-rate", type=float, default=0.0)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    behaviour = Behaviour(
        args.latency, args.jitter, args.slots, args.fault_rate, random.Random(args.seed)
    )
    try:
        uvloop.run(serve(behaviour))
    except KeyboardInterrupt:
        return 0
    return 0


if __name__ == "__main__":
    sys.exit(main())
