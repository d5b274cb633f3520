"""The embedded endpoint over HTTP: OpenAI-compatible, quiet, and cheap, since it may share the client's event loop.

The reply to a body is the same bytes each time. Token counts are an approximation: half the number of characters,
rounded down. Memory: a 16-byte digest and a count for each distinct body, nothing else that grows.
Source: docs/design.md, section 7.
"""

from __future__ import annotations

import asyncio
import errno
import math
import socket
import struct
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b
from statistics import NormalDist
from typing import Any, NoReturn

import orjson
from aiohttp import web

from harness.errors import BadInput, MachineError
from harness.serve import baselines, faults, residents
from harness.serve.faults import Choice, FaultPlan, HttpReply

BODY_LIMIT = 64 * 1024 * 1024
"""Bytes of a request's body."""

MODELS = dict.fromkeys(baselines.BASELINES, baselines.answer) | dict.fromkeys(residents.RESIDENTS, residents.answer)
"""The functions that answer, by model."""

OVER_LIMIT = "max-concurrency"
"""Counted beside the drawn faults: requests refused because too many were in flight."""

_CLOSING = 0.02  # seconds for replies in flight when the endpoint closes; nobody waits for them
_NORMAL = NormalDist()


@dataclass(frozen=True, slots=True)
class Options:
    """`latency` is the mean in seconds of a lognormal distribution, `jitter` the sigma of its logarithm (0: fixed).

    Beyond `max_concurrency` requests in flight, each is refused at once with 429. Raises `BadInput`.
    """

    latency: float = 0.0
    jitter: float = 0.0
    faults: FaultPlan | None = None
    max_concurrency: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.latency) and self.latency >= 0):
            raise BadInput(f"latency {self.latency}: expected seconds, 0 or more")
        if not (math.isfinite(self.jitter) and self.jitter >= 0):
            raise BadInput(f"jitter {self.jitter}: expected the sigma of a lognormal distribution, 0 or more")
        if self.max_concurrency is not None and self.max_concurrency < 1:
            raise BadInput(f"max concurrency {self.max_concurrency}: expected a whole number from 1")


@dataclass(frozen=True, slots=True)
class Embedded:
    """An endpoint that listens; `url` is the base URL that clients are given."""

    url: str
    runner: web.AppRunner

    async def close(self) -> None:
        """Stops listening and drops what is in flight."""
        await self.runner.cleanup()


async def start(options: Options, host: str = "127.0.0.1", port: int = 0) -> Embedded:
    """Listens in the running event loop; port 0 takes a free one. Raises `MachineError` where that cannot be had."""
    runner = web.AppRunner(make_app(options), access_log=None, handler_cancellation=True, shutdown_timeout=_CLOSING)
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port, backlog=4096).start()
    except OSError as error:
        await runner.cleanup()
        why = "another program has it" if error.errno == errno.EADDRINUSE else error.strerror or str(error)
        raise MachineError(f"cannot listen on {host} port {port}: {why}") from None
    bound = runner.addresses[0][1]
    return Embedded(f"http://{f'[{host}]' if ':' in host else host}:{bound}/v1", runner)


def make_app(options: Options, clock: Callable[[], float] = time.time) -> web.Application:
    """The application; `clock` tells the wall time that dates in replies go by."""
    endpoint = _Endpoint(options, clock)
    app = web.Application(client_max_size=BODY_LIMIT)
    app.router.add_post("/v1/chat/completions", endpoint.chat)
    app.router.add_get("/v1/models", endpoint.models)
    app.router.add_get("/stats", endpoint.stats)
    return app


def delay(options: Options, body: bytes, attempt: int) -> float:
    """Seconds that the n-th try of a body (or its digest) takes."""
    if not (options.latency and options.jitter):
        return options.latency
    normal = _NORMAL.inv_cdf(faults.uniform(options.seed, "latency", body, attempt))
    return options.latency * math.exp(options.jitter * normal - options.jitter**2 / 2)


class _Endpoint:
    def __init__(self, options: Options, clock: Callable[[], float]) -> None:
        self._options = options
        self._clock = clock
        self._tries: Counter[bytes] = Counter()
        self._faults: Counter[str] = Counter()
        self._requests = self._completed = self._in_flight = self._most_in_flight = 0

    async def models(self, request: web.Request) -> web.Response:
        data = [{"id": name, "object": "model", "created": 0, "owned_by": "harness"} for name in MODELS]
        return _json(orjson.dumps({"object": "list", "data": data}))

    async def stats(self, request: web.Request) -> web.Response:
        """`requests` counts all, refused and malformed ones too; `completed` those whose completion was sent."""
        counts = {
            "requests": self._requests,
            "distinct_bodies": len(self._tries),
            "most_in_flight": self._most_in_flight,
            "completed": self._completed,
            "faults": self._faults,
        }
        return _json(orjson.dumps(counts))

    async def chat(self, request: web.Request) -> web.StreamResponse:
        self._requests += 1
        body = await request.read()
        call = _parse(body)
        if self._in_flight == self._options.max_concurrency:
            # not a try of this body: what is drawn for it must not depend on who else was served
            self._faults[OVER_LIMIT] += 1
            return _respond(faults.too_many(str(faults.RETRY_AFTER)))
        self._in_flight += 1
        self._most_in_flight = max(self._most_in_flight, self._in_flight)
        try:
            return await self._serve(request, call, blake2b(body, digest_size=16).digest())
        finally:
            self._in_flight -= 1

    async def _serve(self, request: web.Request, call: dict[str, Any], digest: bytes) -> web.StreamResponse:
        self._tries[digest] += 1
        attempt = self._tries[digest]
        plan = self._options.faults
        fault = plan.draw(digest, attempt) if plan else None
        seconds = delay(self._options, digest, attempt)
        if seconds:
            await asyncio.sleep(seconds)
        if fault:
            self._faults[fault] += 1
        if fault == faults.STALL:
            await asyncio.Event().wait()  # cancelled when the client goes away or the endpoint closes
        if fault == faults.RESET:
            return _reset(request, web.Response())
        text = MODELS[call["model"]](call["model"], call["messages"], self._options.seed)
        choice = faults.spoil(fault, text) if fault in faults.CONTENT else Choice(text)
        whole = _completion(call, choice, digest)
        if fault == faults.RESET_BODY:
            return await _reset_within(request, whole)
        if fault in faults.TRANSPORT:
            return _respond(faults.replace(fault, whole, self._clock()))
        self._completed += 1
        return _json(whole)


def _parse(body: bytes) -> dict[str, Any]:
    """A chat request that can be answered; else raises the HTTP error that says why not."""
    try:
        call = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        _malformed(f"the body is not JSON: {error}")
    if type(call) is not dict:
        _malformed("the body must be a JSON object")
    messages = call.get("messages")
    if type(messages) is not list or not messages:
        _malformed("messages: expected a list of at least one message")
    for number, message in enumerate(messages):
        if type(message) is not dict or type(message.get("role")) is not str or type(message.get("content")) is not str:
            _malformed(f"messages[{number}]: expected an object with role and content as strings")
    if call.get("stream"):
        _malformed("stream: this endpoint sends whole replies only")
    if call.get("model") not in tuple(MODELS):  # which anything can be compared with
        message = f"the model {call.get('model')!r} does not exist; there are {', '.join(MODELS)}"
        text = faults.error_body(message, "invalid_request_error", "model_not_found").decode()
        raise web.HTTPNotFound(text=text, content_type="application/json")
    return call


def _malformed(message: str) -> NoReturn:
    text = faults.error_body(message, "invalid_request_error", "invalid_request").decode()
    raise web.HTTPBadRequest(text=text, content_type="application/json")


def _completion(call: dict[str, Any], choice: Choice, digest: bytes) -> bytes:
    prompt_tokens = sum([len(message["content"]) for message in call["messages"]]) // 2
    completion_tokens = len(choice.content or choice.refusal or "") // 2
    message = {"role": "assistant", "content": choice.content, "refusal": choice.refusal}
    reply = {
        "id": f"chatcmpl-{digest.hex()}",
        "object": "chat.completion",
        "created": 0,
        "model": call["model"],
        "choices": [{"index": 0, "message": message, "finish_reason": choice.finish_reason}],
        "usage": {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": completion_tokens,
            "total_tokens": prompt_tokens + completion_tokens,
        },
    }
    return orjson.dumps(reply)


def _json(body: bytes) -> web.Response:
    return web.Response(body=body, headers={"Content-Type": "application/json"})


def _respond(reply: HttpReply) -> web.Response:
    headers = {"Content-Type": reply.content_type}
    if reply.retry_after is not None:
        headers["Retry-After"] = reply.retry_after
    return web.Response(status=reply.status, body=reply.body, headers=headers)


async def _reset_within(request: web.Request, whole: bytes) -> web.StreamResponse:
    """Headers that promise all of the reply, half of it, then a reset."""
    headers = {"Content-Type": "application/json", "Content-Length": str(len(whole))}
    response = web.StreamResponse(headers=headers)
    await response.prepare(request)
    await response.write(whole[: len(whole) // 2])
    return _reset(request, response)


def _reset(request: web.Request, response: web.StreamResponse) -> web.StreamResponse:
    """Ends the connection with RST. `close` and not `abort`: what is written already shall arrive."""
    transport = request.transport
    if transport is not None:
        connection = transport.get_extra_info("socket")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        transport.close()
    return response
