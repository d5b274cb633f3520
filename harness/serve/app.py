"""The embedded endpoint over HTTP: OpenAI-compatible, quiet, and cheap, since it may share the client's event loop.

The reply to a body is the same bytes each time, whole or as a stream, and both say the same. Token counts are an
approximation: half the number of characters, rounded down. Memory: a 16-byte digest and a count for each distinct body
that was taken, nothing else that grows; refused, foreign and malformed requests leave counts only.
Source: docs/design.md, section 7.
"""

from __future__ import annotations

import asyncio
import errno
import math
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from hmac import compare_digest
from statistics import NormalDist
from typing import Any, NoReturn

import orjson
from aiohttp import web

from harness.benchmarks import registry
from harness.errors import BadInput, MachineError
from harness.model import Baseline
from harness.serve import faults, imitate, shapes, stream, wire
from harness.serve.faults import Choice, FaultPlan, HttpReply
from harness.serve.imitate import Imitation
from harness.serve.stream import Manner

BODY_LIMIT = 64 * 1024 * 1024
"""Bytes of a request's body."""

MODELS: Mapping[str, Baseline] = registry.baselines()
"""The functions that answer, by model."""

BAD_KEY = HttpReply(401, faults.error_body("this is not the key", "invalid_request_error", "invalid_api_key"))
OVER_LIMIT = "max-concurrency"
"""Counted beside the drawn faults: requests refused because too many were in flight."""

_CLOSING = 0.02  # seconds for replies in flight when the endpoint closes; nobody waits for them
_NORMAL = NormalDist()
_MANNER = Manner()


@dataclass(frozen=True, slots=True)
class Options:
    """`latency` is the mean in seconds of a lognormal distribution, `jitter` the sigma of its logarithm (0: fixed).

    Beyond `max_concurrency` requests in flight, each is refused at once with 429. `imitate` names a provider, and then
    any model is answered. With a `key`, requests without it are refused with 401. `baselines` are served besides
    `MODELS`, by model; a request that one of them fails on is refused with 400. Raises `BadInput`.
    """

    latency: float = 0.0
    jitter: float = 0.0
    faults: FaultPlan | None = None
    max_concurrency: int | None = None
    seed: int = 0
    imitate: str | None = None
    key: str | None = field(default=None, repr=False)
    baselines: Mapping[str, Baseline] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not (math.isfinite(self.latency) and self.latency >= 0):
            raise BadInput(f"latency {self.latency}: expected seconds, 0 or more")
        if not (math.isfinite(self.jitter) and self.jitter >= 0):
            raise BadInput(f"jitter {self.jitter}: expected the sigma of a lognormal distribution, 0 or more")
        if self.max_concurrency is not None and self.max_concurrency < 1:
            raise BadInput(f"max concurrency {self.max_concurrency}: expected a whole number from 1")
        if self.key is not None and not (self.key.isascii() and self.key.isprintable() and self.key.strip()):
            raise BadInput("the key: expected printable ASCII characters")
        imitation = shapes.load(self.imitate) if self.imitate is not None else None
        if self.faults:
            plan = self.faults.against(self.imitate, tuple(imitation.errors) if imitation else ())
            object.__setattr__(self, "faults", plan)


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
        self._imitation = shapes.load(options.imitate) if options.imitate is not None else None
        self._bearer = f"Bearer {options.key}".encode() if options.key is not None else None
        self._models = (*MODELS, *options.baselines)
        self._tries: Counter[bytes] = Counter()
        self._faults: Counter[str] = Counter()
        self._requests = self._completed = self._streamed = self._foreign_keys = 0
        self._in_flight = self._most_in_flight = 0

    async def models(self, request: web.Request) -> web.Response:
        if self._bearer is not None and not self._is_ours(request, self._bearer):
            return self._foreign()
        data = [{"id": name, "object": "model", "created": 0, "owned_by": "harness"} for name in self._models]
        return wire.whole(orjson.dumps({"object": "list", "data": data}))

    async def stats(self, request: web.Request) -> web.Response:
        """`requests` counts all that ask for completions, refused and malformed ones too; `completed` those whose
        completion was sent, `streamed` those of them that were streams; `foreign_keys` requests without the key.
        """
        counts = {
            "requests": self._requests,
            "distinct_bodies": len(self._tries),
            "most_in_flight": self._most_in_flight,
            "completed": self._completed,
            "streamed": self._streamed,
            "foreign_keys": self._foreign_keys,
            "faults": self._faults,
        }
        return wire.whole(orjson.dumps(counts))

    async def chat(self, request: web.Request) -> web.StreamResponse:
        self._requests += 1
        body = await request.read()
        if self._bearer is not None and not self._is_ours(request, self._bearer):
            return self._foreign()
        call = _parse(body, self._imitation, self._models)
        refusal = self._imitation.refusal(call) if self._imitation else None
        if refusal:
            return wire.respond(refusal)
        if self._in_flight == self._options.max_concurrency:
            # not a try of this body: what is drawn for it must not depend on who else was served
            self._faults[OVER_LIMIT] += 1
            return wire.respond(faults.too_many(str(faults.RETRY_AFTER)))
        self._in_flight += 1
        self._most_in_flight = max(self._most_in_flight, self._in_flight)
        try:
            return await self._serve(request, call, blake2b(body, digest_size=16).digest())
        except ConnectionResetError:
            return web.Response()  # the client has gone: nobody hears it
        finally:
            self._in_flight -= 1

    async def _serve(self, request: web.Request, call: dict[str, Any], digest: bytes) -> web.StreamResponse:
        self._tries[digest] += 1
        attempt = self._tries[digest]
        plan = self._options.faults
        fault = plan.draw(digest, attempt) if plan else None
        seconds = delay(self._options, digest, attempt)
        if call.get("stream"):
            if fault is None or fault in faults.CONTENT or fault in faults.WITHIN_STREAMS:
                return await self._stream(request, call, digest, fault, seconds)
        elif fault:
            fault = faults.NEAREST.get(fault, fault)
        elif self._imitation and self._imitation.empty_lines:
            response = await wire.after_empty_lines(request, orjson.dumps(self._reply(call, digest, None)), seconds)
            self._completed += 1
            return response
        if seconds:
            await asyncio.sleep(seconds)
        if fault:
            self._faults[fault] += 1
        if fault and fault not in faults.CONTENT:
            return await self._fail(request, call, digest, fault)
        body = orjson.dumps(self._reply(call, digest, fault))
        self._completed += 1
        return wire.whole(body)

    async def _fail(self, request: web.Request, call: dict[str, Any], digest: bytes, fault: str) -> web.StreamResponse:
        """What comes in place of a completion."""
        if fault == faults.STALL:
            await asyncio.Event().wait()  # cancelled when the client goes away or the endpoint closes
        if fault == faults.RESET:
            return wire.reset(request, web.Response())
        if self._imitation and fault in faults.REFUSALS:
            return wire.respond(self._imitation.error(fault, call["model"]))
        body = orjson.dumps(self._reply(call, digest, None))
        if fault == faults.RESET_BODY:
            return await wire.reset_within(request, body)
        return wire.respond(faults.replace(fault, body, self._clock()))

    async def _stream(
        self, request: web.Request, call: dict[str, Any], digest: bytes, fault: str | None, seconds: float
    ) -> web.StreamResponse:
        if fault:
            self._faults[fault] += 1
        manner = self._imitation.manner if self._imitation else _MANNER
        asked = call.get("stream_options")
        include_usage = type(asked) is dict and bool(asked.get("include_usage"))
        events = stream.of(self._reply(call, digest, fault), digest, include_usage, manner)
        response = await wire.in_parts(request, events.comment, events.sent(fault), seconds)
        if fault == faults.STREAM_STALL:
            await asyncio.Event().wait()
        if fault == faults.RESET_BODY:
            return wire.reset(request, response)
        if fault not in faults.WITHIN_STREAMS:
            self._completed += 1
            self._streamed += 1
        return response

    def _reply(self, call: dict[str, Any], digest: bytes, fault: str | None) -> dict[str, Any]:
        """The completion as a whole reply; a request's own seed goes before the endpoint's."""
        asked = call.get("seed")
        seed = asked if type(asked) is int else self._options.seed
        if self._imitation:
            text = imitate.answer(call, seed)
        elif own := self._options.baselines.get(call["model"]):
            text = _answer(own, call, seed)
        else:
            text = MODELS[call["model"]](call["messages"], seed)
        choice = faults.spoil(fault, text) if fault in faults.CONTENT else Choice(text)
        reply = _completion(call, choice, digest)
        return self._imitation.shape(reply, call) if self._imitation else reply

    def _is_ours(self, request: web.Request, bearer: bytes) -> bool:
        given = request.headers.get("Authorization", "")
        return compare_digest(given.encode("utf-8", "surrogateescape"), bearer)

    def _foreign(self) -> web.Response:
        self._foreign_keys += 1
        if self._imitation and "bad_key" in self._imitation.errors:
            return wire.respond(self._imitation.error("bad_key", ""))
        return wire.respond(BAD_KEY)


def _answer(baseline: Baseline, call: dict[str, Any], seed: int) -> str:
    """What a benchmark's own baseline says; its mistake is no fault that another try would mend."""
    try:
        text: object = baseline(call["messages"], seed)
    except Exception as error:  # the author's code, not ours
        _malformed(f"the baseline {call['model']} failed: {type(error).__name__}: {error}")
    if not isinstance(text, str):
        _malformed(f"the baseline {call['model']} returned {type(text).__name__}, expected text")
    return text


def _parse(body: bytes, imitation: Imitation | None, models: Sequence[str]) -> dict[str, Any]:
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
    if imitation:
        if type(call.get("model")) is not str:
            _malformed("model: expected text")
    elif call.get("model") not in models:
        message = f"the model {call.get('model')!r} does not exist; there are {', '.join(models)}"
        text = faults.error_body(message, "invalid_request_error", "model_not_found").decode()
        raise web.HTTPNotFound(text=text, content_type="application/json")
    return call


def _malformed(message: str) -> NoReturn:
    text = faults.error_body(message, "invalid_request_error", "invalid_request").decode()
    raise web.HTTPBadRequest(text=text, content_type="application/json")


def _completion(call: dict[str, Any], choice: Choice, digest: bytes) -> dict[str, Any]:
    prompt_tokens = sum([len(message["content"]) for message in call["messages"]]) // 2
    completion_tokens = len(choice.content or choice.refusal or "") // 2
    message = {"role": "assistant", "content": choice.content, "refusal": choice.refusal}
    return {
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
