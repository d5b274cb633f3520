"""The embedded endpoint over HTTP: OpenAI-compatible, quiet, and cheap.

The reply to a body is the same bytes each time, and a stream has the content of the whole reply.
Token counts are an approximation: half the number of characters, rounded down. Memory: a 16-byte
digest and a count for each distinct body that was accepted; all else is counts of a fixed number.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from hmac import compare_digest
from statistics import NormalDist
from typing import Any

import orjson
from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.typedefs import Handler

from harness.benchmarks import registry
from harness.client.baselines import completion_tokens, tokens
from harness.errors import BadInput
from harness.model import Baseline
from tests.support.endpoint_double import calls, faults, imitate, stream, wire
from tests.support.endpoint_double.batches import Batches
from tests.support.endpoint_double.faults import Choice, FaultPlan, HttpReply

BODY_LIMIT = 64 * 1024 * 1024
"""Bytes of a request's body."""
PATHS = (
    "POST /v1/chat/completions, /v1/files, /v1/batches, GET /v1/models, /v1/models/MODEL, /health"
    " or /stats"
)
MODELS: Mapping[str, Baseline] = registry.baselines()
"""The functions that answer, by model."""
BAD_KEY = HttpReply(
    401, faults.error_body("this is not the key", "invalid_request_error", "invalid_api_key")
)
OVER_LIMIT = "max-concurrency"
"""Counted like a fault: requests refused because too many were in flight."""

_CLOSING = 0.02  # seconds for replies in flight when the endpoint closes
_NORMAL = NormalDist()


@dataclass(frozen=True, slots=True)
class Options:
    """`latency` is the mean in seconds of a lognormal distribution, `jitter` the sigma of its
    logarithm (0: fixed).

    Beyond `max_concurrency` requests in flight, each is refused at once with 429. `imitate` names a
    provider, and then any model is answered. With a `key`, requests without it are refused with
    401. `baselines` are served in addition to `MODELS`, by model; a request on which one of them
    fails is refused with 400. `strict`: what OpenAI would refuse is refused, unless another
    provider is imitated. A batch takes `batch_seconds`. Replies have the members of one of
    `answerers`, by turns of requests. Raise `BadInput`.
    """

    latency: float = 0.0
    jitter: float = 0.0
    faults: FaultPlan | None = None
    max_concurrency: int | None = None
    seed: int = 0
    imitate: str | None = None
    key: str | None = field(default=None, repr=False)
    baselines: Mapping[str, Baseline] = field(default_factory=dict)
    strict: bool = True
    batch_seconds: float = 0.0
    answerers: Sequence[Mapping[str, Any]] = ()

    def __post_init__(self) -> None:
        if not (math.isfinite(self.latency) and self.latency >= 0):
            raise BadInput(f"latency {self.latency}: expected seconds, 0 or more")
        if not (math.isfinite(self.jitter) and self.jitter >= 0):
            raise BadInput(
                f"jitter {self.jitter}: expected the sigma of a lognormal distribution, 0 or more"
            )
        if self.max_concurrency is not None and self.max_concurrency < 1:
            raise BadInput(
                f"max concurrency {self.max_concurrency}: expected a whole number from 1"
            )
        if self.key is not None and not (
            self.key.isascii() and self.key.isprintable() and self.key.strip()
        ):
            raise BadInput("the key: expected printable ASCII characters")
        imitation = imitate.load(self.imitate) if self.imitate is not None else None
        if self.faults:
            plan = self.faults.against(self.imitate, tuple(imitation.errors) if imitation else ())
            object.__setattr__(self, "faults", plan)


@dataclass(frozen=True, slots=True)
class Embedded:
    """An endpoint that listens; `url` is the base URL for clients."""

    url: str
    runner: web.AppRunner

    async def close(self) -> None:
        """Stop listening and drop the requests in flight."""
        for site in tuple(self.runner.sites):
            await site.stop()
        for _ in range(3):  # until the server knows of a connection that the loop is just accepting
            await asyncio.sleep(0)
        await self.runner.cleanup()


async def start(options: Options, host: str = "127.0.0.1", port: int = 0) -> Embedded:
    """Listen in the running event loop; port 0 takes a free one. Raise `OSError` if the port cannot
    be used."""
    endpoint = _Endpoint(options)
    app = web.Application(client_max_size=BODY_LIMIT, middlewares=[_errors_as_json])
    app.router.add_post("/v1/chat/completions", endpoint.chat)
    app.router.add_get("/v1/models", endpoint.guarded(endpoint.models))
    app.router.add_get("/v1/models/{model:.+}", endpoint.guarded(endpoint.model))
    app.router.add_get("/health", endpoint.health)
    app.router.add_get("/stats", endpoint.stats)
    for method, path, handler in endpoint.batches.routes():
        app.router.add_route(method, path, endpoint.guarded(handler))
    app.on_shutdown.append(endpoint.batches.close)
    log = logging.Logger("tests.support.endpoint_double")
    log.addFilter(_is_of_server)
    runner = web.AppRunner(
        app, access_log=None, logger=log, handler_cancellation=True, shutdown_timeout=_CLOSING
    )
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port, backlog=4096).start()
    except OSError:
        await runner.cleanup()
        raise
    bound = runner.addresses[0][1]
    return Embedded(f"http://{f'[{host}]' if ':' in host else host}:{bound}/v1", runner)


def delay(options: Options, body: bytes, attempt: int) -> float:
    """Return the seconds that the n-th try of a body (or its digest) takes."""
    if not (options.latency and options.jitter):
        return options.latency
    normal = _NORMAL.inv_cdf(faults.uniform(options.seed, "latency", body, attempt))
    return options.latency * math.exp(options.jitter * normal - options.jitter**2 / 2)


class _Endpoint:
    def __init__(self, options: Options) -> None:
        self._options = options
        self._provider = (
            imitate.load(options.imitate) if options.imitate is not None else imitate.PLAIN
        )
        self._openai = options.strict and options.imitate in (None, "openai")
        self._rules = imitate.load("openai") if self._openai else self._provider
        self._bearer = f"Bearer {options.key}".encode() if options.key is not None else None
        self._models = (*MODELS, *options.baselines)
        self._tries: Counter[bytes] = Counter()
        self._faults: Counter[str] = Counter()
        self._in_flight = 0
        self._arrivals = 0.0, 0.0
        names = ("requests", "batched", "most_in_flight", "completed", "streamed", "foreign_keys")
        self._counts = dict.fromkeys(names, 0)
        self.batches = Batches(self._batched, options.batch_seconds, options.faults)

    def guarded(self, handler: Handler) -> Handler:
        """Return a handler that refuses requests without the key."""

        async def handle(request: web.Request) -> web.StreamResponse:
            refusal = self._foreign(request)
            return refusal if refusal is not None else await handler(request)

        return handle

    async def models(self, request: web.Request) -> web.Response:
        data = [_model(name) for name in self._models]
        return wire.respond(HttpReply(200, orjson.dumps({"object": "list", "data": data})))

    async def model(self, request: web.Request) -> web.Response:
        name = request.match_info["model"]
        return wire.respond(
            self._unknown(name, "model") or HttpReply(200, orjson.dumps(_model(name)))
        )

    async def health(self, request: web.Request) -> web.Response:
        return wire.respond(HttpReply(200, b'{"status":"ok"}'))

    async def stats(self, request: web.Request) -> web.Response:
        """Return the counts. `requests` are all for completions, including refused and malformed
        ones, and `batched` are lines of batches; `completed` got their completion, `streamed` got
        it as a stream; `foreign_keys` came without the key. `seconds` are those between the first
        and the last request.
        """
        first, last = self._arrivals
        counts: dict[str, Any] = {
            **self._counts,
            **self.batches.counts,
            "seconds": round(last - first, 3),
        }
        counts |= {
            "distinct_bodies": len(self._tries),
            "faults": self._faults + self.batches.faults,
        }
        return wire.respond(HttpReply(200, orjson.dumps(counts)))

    async def chat(self, request: web.Request) -> web.StreamResponse:
        now = time.monotonic()
        self._arrivals = self._arrivals[0] or now, now
        self._counts["requests"] += 1
        body = await request.read()
        if (refusal := self._foreign(request)) is not None:
            return refusal
        call = calls.read(body, self._openai)
        if refused := self._refused(call):
            return wire.respond(refused)
        if self._in_flight == self._options.max_concurrency:
            # not a try of this body: its faults must not depend on other requests
            self._faults[OVER_LIMIT] += 1
            return wire.respond(faults.TOO_MANY)
        self._in_flight += 1
        self._counts["most_in_flight"] = max(self._counts["most_in_flight"], self._in_flight)
        try:
            return await self._serve(request, call, *self._tried(body))
        except ConnectionResetError:
            return web.Response()  # to a client that has gone
        finally:
            self._in_flight -= 1

    def _refused(self, call: dict[str, Any]) -> HttpReply | None:
        return self._unknown(call["model"]) or self._rules.refusal(call)

    def _tried(self, body: bytes) -> tuple[bytes, str | None]:
        """Count a try of a body; return its digest, and the fault of this try."""
        digest = blake2b(body, digest_size=16).digest()
        self._tries[digest] += 1
        return digest, (
            self._options.faults.draw(digest, self._tries[digest]) if self._options.faults else None
        )

    async def _serve(
        self, request: web.Request, call: dict[str, Any], digest: bytes, fault: str | None
    ) -> web.StreamResponse:
        seconds = delay(self._options, digest, self._tries[digest])
        if call.get("stream"):
            if fault is None or fault in faults.CONTENT or fault in faults.WITHIN_STREAMS:
                return await self._stream(request, call, digest, fault, seconds)
        elif fault:
            fault = faults.NEAREST.get(fault, fault)
        elif self._provider.empty_lines:
            response = await wire.after_empty_lines(
                request, orjson.dumps(self._reply(call, digest, None)), seconds
            )
            self._counts["completed"] += 1
            return response
        if seconds:
            await asyncio.sleep(seconds)
        if fault:
            self._faults[fault] += 1
        if fault and fault not in faults.CONTENT:
            return await self._fail(request, call, digest, fault)
        body = orjson.dumps(self._reply(call, digest, fault))
        self._counts["completed"] += 1
        return wire.respond(HttpReply(200, body))

    def _batched(self, body: bytes) -> HttpReply:
        """Answer a line of a batch: as a request by itself would be, but for faults that only a
        connection has."""
        self._counts["batched"] += 1
        try:
            call = calls.read(body, self._openai)
        except web.HTTPException as error:
            return HttpReply(error.status, (error.text or "").encode())
        if refused := self._refused(call):
            return refused
        digest, fault = self._tried(body)
        if fault:
            self._faults[fault] += 1
        if fault and fault not in faults.CONTENT:
            if refusal := self._provider.errors.get(fault):
                return refusal.reply(call["model"])
            return faults.TOO_MANY if fault.startswith("429") else HttpReply(500, faults.FAILED)
        self._counts["completed"] += 1
        return HttpReply(200, orjson.dumps(self._reply(call, digest, fault)))

    async def _fail(
        self, request: web.Request, call: dict[str, Any], digest: bytes, fault: str
    ) -> web.StreamResponse:
        """Send the reply in place of a completion."""
        if fault == faults.STALL:
            await (
                asyncio.Event().wait()
            )  # cancelled when the client goes away or the endpoint closes
        if fault == faults.RESET:
            return wire.reset(request, web.Response())
        if refusal := self._provider.errors.get(fault):
            return wire.respond(refusal.reply(call["model"]))
        body = orjson.dumps(self._reply(call, digest, None))
        if fault == faults.RESET_BODY:
            return await wire.reset_within(request, body)
        return wire.respond(faults.replace(fault, body, time.time()))

    async def _stream(
        self,
        request: web.Request,
        call: dict[str, Any],
        digest: bytes,
        fault: str | None,
        seconds: float,
    ) -> web.StreamResponse:
        if fault:
            self._faults[fault] += 1
        options = call.get("stream_options")
        include_usage = type(options) is dict and bool(options.get("include_usage"))
        comment, data = stream.encode(
            self._reply(call, digest, fault), digest, include_usage, self._provider, fault
        )
        response = await wire.in_parts(request, comment, data, seconds)
        if fault == faults.STREAM_STALL:
            await asyncio.Event().wait()
        if fault == faults.RESET_BODY:
            return wire.reset(request, response)
        if fault in (faults.STREAM_CUT, faults.TRUNCATED) and request.transport is not None:
            # before the last chunk: a body that ends in due form is whole
            request.transport.close()
        if fault not in faults.WITHIN_STREAMS:
            self._counts["completed"] += 1
            self._counts["streamed"] += 1
        return response

    def _reply(self, call: dict[str, Any], digest: bytes, fault: str | None) -> dict[str, Any]:
        """Return the completion as a whole reply; a request's own seed overrides the endpoint's,
        and each further choice has the next seed.
        """
        seed = call.get("seed")
        if type(seed) is not int:
            seed = self._options.seed
        texts = [self._text(call, seed + number) for number in range(call.get("n") or 1)]
        if not self._provider.ignores_schemas:
            texts = [calls.fitted(text, call) for text in texts]
        choices = [
            faults.spoil(fault, text) if fault in faults.CONTENT else Choice(text) for text in texts
        ]
        thoughts = self._provider.thoughts(call)
        if thoughts and fault == "length":
            choices = [Choice("", "length")] * len(
                choices
            )  # cut off before the end of its thoughts
        most = calls.limit(call)
        room = None if most is None else most - tokens(thoughts)
        reply = _completion(call, [calls.cut(choice, call, room) for choice in choices], digest)
        if answerers := self._options.answerers:
            reply |= answerers[digest[0] % len(answerers)]
        return self._provider.shape(reply, call)

    def _text(self, call: dict[str, Any], seed: int) -> str:
        if self._options.imitate is not None:
            return imitate.answer(call, seed)
        baseline = self._options.baselines.get(call["model"])
        if baseline is None:
            return MODELS[call["model"]](call["messages"], seed)
        try:
            text = baseline(call["messages"], seed)
        except Exception as error:  # the author's code, not ours; another try would not help
            calls.refuse(f"the baseline {call['model']} failed: {type(error).__name__}: {error}")
        if not isinstance(text, str):
            calls.refuse(
                f"the baseline {call['model']} returned {type(text).__name__}, expected text"
            )
        return text

    def _unknown(self, model: str, param: str | None = None) -> HttpReply | None:
        """Return the refusal of a model that does not exist, None for others."""
        if self._options.imitate is not None:
            return self._provider.unknown(model)
        if model in self._models:
            return None
        message = f"the model {model!r} does not exist; there are {', '.join(self._models)}"
        return HttpReply(
            404, faults.error_body(message, "invalid_request_error", "model_not_found", param)
        )

    def _foreign(self, request: web.Request) -> web.Response | None:
        """Return the refusal of a request without the key, None if it has the key or none is
        needed."""
        given = request.headers.get("Authorization", "").encode("utf-8", "surrogateescape")
        if self._bearer is None or compare_digest(given, self._bearer):
            return None
        self._counts["foreign_keys"] += 1
        error = self._provider.errors.get("bad_key")
        return wire.respond(error.reply("") if error else BAD_KEY)


def _completion(call: dict[str, Any], choices: Sequence[Choice], digest: bytes) -> dict[str, Any]:
    prompt = sum([len(message["content"]) for message in call["messages"]]) // 2
    texts = [(choice.content or choice.refusal or "", choice.finish_reason) for choice in choices]
    completion = sum([completion_tokens(text, reason) for text, reason in texts])
    listed = [
        {
            "index": index,
            "message": {"role": "assistant", "content": choice.content, "refusal": choice.refusal},
            "logprobs": None,
            "finish_reason": choice.finish_reason,
        }
        for index, choice in enumerate(choices)
    ]
    return {
        "id": f"chatcmpl-{digest.hex()}",
        "object": "chat.completion",
        "created": 0,
        "model": call["model"],
        "choices": listed,
        "usage": {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
        },
    }


def _model(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "harness"}


def _is_of_server(record: logging.LogRecord) -> bool:
    """Return whether a line of aiohttp's log is about a defect here: a malformed request is
    answered, and no traceback helps whoever sent it."""
    error = record.exc_info[1] if record.exc_info else None
    return not isinstance(error, HttpProcessingError | web.RequestPayloadError)


@web.middleware
async def _errors_as_json(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Give the errors of aiohttp (no such path, another method, a body beyond the limit, one that
    cannot be read) OpenAI's body."""
    try:
        return await handler(request)
    except web.RequestPayloadError as error:
        calls.refuse(f"the body cannot be read: {error}")
    except web.HTTPException as error:
        if error.content_type != "application/json":
            expected = f"at most {BODY_LIMIT} bytes" if error.status == 413 else PATHS
            what = (
                "Invalid URL" if error.status == 404 else error.reason
            )  # the words of OpenAI's API
            message = f"{what} ({request.method} {request.path}): expected {expected}"
            code = "method_not_supported" if error.status == 405 else None
            error.text = faults.error_body(message, "invalid_request_error", code).decode()
            error.content_type = "application/json"
        raise
