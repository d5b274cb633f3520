"""`--otel`: spans of runs, users and requests, by OpenTelemetry's conventions for generative AI.

A user is a trace, with a link to the span of its run: a run has more requests than one trace can hold, and a sampler
chooses users. Spans are made where requests are settled, so other processes that play need nothing of this.

Spans hold no prompt, no reply, and no words of the endpoint, which may quote either.
"""

from __future__ import annotations

import functools
import logging
import os
import time
from asyncio import CancelledError
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Thread
from typing import Any
from urllib.parse import urlsplit

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Link, Span, SpanKind, StatusCode, set_span_in_context
from opentelemetry.trace import Tracer as OtelTracer

from harness import __version__
from harness.config.address import Found
from harness.endpoint.caller import ABANDONED, Notice, Warn
from harness.engine.lane import Play, Send, User
from harness.engine.play import Ended
from harness.engine.replay import Asked
from harness.engine.run import Run
from harness.errors import BadInput, GaveUp, HarnessError, TransportFault
from harness.model import Reply

SERVICE = "behavior-harness"
FLUSH_SECONDS = 5.0
"""The longest that the end of a command waits for the last spans to be delivered."""
API, EMBEDDED = "openai", "harness"
"""`gen_ai.provider.name` of an endpoint without a named provider, which is the one of its API; and of baselines."""
PORTS = {"http": 80, "https": 443}
LOST = (
    "OpenTelemetry: spans may be missing: the collector does not answer, refuses them or is too slow, or a variable "
    "OTEL_* is wrong; the run is not affected"
)

Attributes = Mapping[str, Any]


@contextmanager
def tracing(warn: Callable[[str], None], flush: float = FLUSH_SECONDS) -> Iterator[Tracer]:
    """Yield a tracer whose spans are sent by OTLP over HTTP, as the OTEL_* variables say, until `flush` seconds after
    the end.

    Call `warn` at the first trouble with the collector, from any thread. Raise `BadInput` for variables that cannot be
    used.
    """
    _check(os.environ)
    silence = _Silence(warn)
    try:
        provider = TracerProvider(resource=_resource(), shutdown_on_exit=False)
        provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    except (ValueError, OSError) as error:
        silence.end()
        raise BadInput(f"--otel: the variables OTEL_* cannot be used: {error}") from None
    tracer = Tracer(provider.get_tracer(SERVICE, __version__))
    try:
        yield tracer
    finally:
        tracer.close()
        last = Thread(target=_end, args=(provider, silence), daemon=True)
        last.start()
        last.join(flush)
        if last.is_alive():
            silence.warn()


def _end(provider: TracerProvider, silence: _Silence) -> None:
    try:
        provider.shutdown()
    finally:
        silence.end()


def _check(environ: Mapping[str, str]) -> None:
    """Raise `BadInput` for variables that ask for another exporter than the one that there is."""
    of_traces, of_all = "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"
    protocol = of_traces if environ.get(of_traces) else of_all
    for name, only in (("OTEL_TRACES_EXPORTER", "otlp"), (protocol, "http/protobuf")):
        if environ.get(name, only) not in (only, ""):
            raise BadInput(f"--otel: {name} is {environ[name]}: only {only} is supported")


def _resource() -> Resource:
    """Return what all spans are from; OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES go first."""
    found = Resource.create({SERVICE_VERSION: __version__})
    if str(found.attributes[SERVICE_NAME]).startswith("unknown_service"):
        return found.merge(Resource({SERVICE_NAME: SERVICE}))
    return found


class _Silence(logging.Handler):
    """Replaces OpenTelemetry's log, which would write over the display, by one warning.

    Several may be open at once, one of each command of this process: the log is as it was when the last one ends.
    """

    def __init__(self, warn: Callable[[str], None]) -> None:
        super().__init__(logging.WARNING)
        self._warn = warn
        self._warned = False
        self._log = logging.getLogger("opentelemetry")
        first = next(self._open(), None)
        self._propagates: bool = first._propagates if first else self._log.propagate
        self._log.propagate = False
        self._log.addHandler(self)

    def _open(self) -> Iterator[_Silence]:
        return (handler for handler in self._log.handlers if isinstance(handler, _Silence))

    def emit(self, record: logging.LogRecord) -> None:
        self.warn()

    def warn(self) -> None:
        if not self._warned:
            self._warned = True
            self._warn(LOST)

    def end(self) -> None:
        self._log.removeHandler(self)
        if not any(self._open()):
            self._log.propagate = self._propagates


class Tracer:
    """Makes the spans of runs; `close` ends them."""

    def __init__(self, tracer: OtelTracer) -> None:
        self._tracer = tracer
        self._runs: dict[Run, _RunTrace] = {}
        self._users: dict[User, _UserTrace] = {}

    def player(self, name: str, found: Found | None, runs: Sequence[Run], play: Play) -> Play:
        """Return a player of a plan's users that makes their spans; the spans of its runs begin, or go on after an
        estimate. `name` is the plan's, `found` its endpoint, None for baselines."""
        for run in runs:
            if run not in self._runs:
                self._runs[run] = self._run(name, found, run)

        async def traced(user: User) -> Ended:
            return await self._runs[user.run].play(user, play, self._users)

        return traced

    def sender(self, send: Send) -> Send:
        """Return what sends requests, and makes their spans."""

        async def traced(user: User, asked: Asked, warn: Warn) -> Reply:
            return await self._users[user].send(send, user, asked, warn)

        return traced

    def _run(self, name: str, found: Found | None, run: Run) -> _RunTrace:
        benchmark, model = run.benchmark.name, run.sampling.model
        shared = {"harness.run": name, "harness.subset": run.subset, "harness.benchmark": benchmark}
        attributes = shared | {"gen_ai.request.model": model}
        span = self._tracer.start_span(f"run {benchmark}", Context(), attributes=attributes)
        return _RunTrace(self._tracer, run, span, f"user {benchmark}", shared, _endpoint(found))

    def close(self) -> None:
        for run in self._runs.values():
            run.end()


@dataclass(slots=True)
class _RunTrace:
    """The span of a run, and the name and attributes of those of its users; `endpoint` has those of all requests.

    `played` and `failed` count its users, and `last` is when the last one ended, in nanoseconds of the epoch.
    """

    tracer: OtelTracer
    run: Run
    span: Span
    name: str
    shared: Attributes
    endpoint: Attributes
    played: int = 0
    failed: int = 0
    last: int = field(default_factory=time.time_ns)

    async def play(self, user: User, play: Play, users: dict[User, _UserTrace]) -> Ended:
        span = self.tracer.start_span(
            self.name, Context(), attributes=self.shared, links=[Link(self.span.get_span_context())]
        )
        users[user] = _UserTrace(self.tracer, set_span_in_context(span, Context()), self._requests(user))
        try:
            ended = await play(user)
            span.set_attribute("harness.saved_replies", ended.replayed)
            self.played += 1
            if ended.error is not None:
                self.failed += 1
                _fail(span, ended.error)
            return ended
        except (HarnessError, CancelledError) as error:
            _fail(span, error)
            raise
        finally:
            del users[user]
            span.set_attributes({"harness.user": user.key, "harness.repeat": user.repeat})
            self.last = time.time_ns()
            span.end(self.last)

    def _requests(self, user: User) -> Attributes:
        sampling = self.run.sampling_at(user.position)
        body: dict[str, Any] = {"temperature": sampling.temperature, "top_p": sampling.top_p, "seed": sampling.seed}
        body |= {name: value for name, value in sampling.extra_body.items() if name in body}
        body |= {"model": sampling.model, "max_tokens": sampling.most_completion}
        return {**self.endpoint, **_known({f"gen_ai.request.{name}": value for name, value in body.items()})}

    def end(self) -> None:
        self.span.set_attributes({"harness.users_played": self.played, "harness.users_failed": self.failed})
        self.span.end(self.last)


@dataclass(frozen=True, slots=True)
class _UserTrace:
    """Makes the spans of a user's requests, as children of the user's, with these attributes."""

    tracer: OtelTracer
    user: Context
    attributes: Attributes

    async def send(self, send: Send, user: User, asked: Asked, warn: Warn) -> Reply:
        """Return the reply to a request, in a span with all its tries."""
        name = f"chat {self.attributes['gen_ai.request.model']}"
        span = self.tracer.start_span(name, self.user, SpanKind.CLIENT, self.attributes)
        if not span.is_recording():
            return await send(user, asked, warn)

        def noted(fault: TransportFault, number: int) -> None:
            if fault is not ABANDONED:
                event = fault.kind if isinstance(fault, Notice) else "failed_try"
                span.add_event(event, {"harness.try": number, **_error(fault)})
            warn(fault, number)

        try:
            reply = await send(user, asked, noted)
            span.set_attributes(_answered(reply))
            return reply
        except GaveUp as error:
            _fail(span, error.__cause__ or error)
            raise
        except (HarnessError, CancelledError) as error:
            _fail(span, error)
            raise
        finally:
            span.end()


def _endpoint(found: Found | None) -> Attributes:
    """Return the attributes of requests that name their endpoint: the address too, unless there are several."""
    provider = EMBEDDED if found is None else found.provider.name if found.provider else API
    named = {"gen_ai.operation.name": "chat", "gen_ai.provider.name": provider}
    return {**named, **(_server(found.shown) if found and len(found.addresses) == 1 else {})}


@functools.lru_cache
def _server(address: str) -> Attributes:
    parts = urlsplit(address)
    return _known({"server.address": parts.hostname, "server.port": parts.port or PORTS.get(parts.scheme)})


def _answered(reply: Reply) -> Attributes:
    completion = reply.completion
    made = {
        "gen_ai.response.model": completion.model,
        "gen_ai.response.finish_reasons": [completion.finish_reason] if completion.finish_reason else None,
        "gen_ai.response.time_to_first_chunk": reply.first_token,
        "gen_ai.usage.input_tokens": completion.prompt_tokens,
        "gen_ai.usage.output_tokens": completion.completion_tokens,
        "gen_ai.usage.cache_read.input_tokens": completion.cached_tokens,
        "gen_ai.usage.reasoning.output_tokens": completion.reasoning_tokens,
        "harness.tries": reply.tries,
        "harness.reply_seconds": reply.seconds,
    }
    return {**_known(made), **_server(reply.endpoint)}


def _fail(span: Span, error: BaseException) -> None:
    """Mark a span as failed, without the words of the error."""
    span.set_attributes(_error(error))
    span.set_status(StatusCode.ERROR)


def _error(error: BaseException) -> Attributes:
    """Return the kind of an error, else the name of its class; and the HTTP status that the kind has."""
    kind: str = getattr(error, "kind", type(error).__name__)
    status = kind.removeprefix("http_")
    return {"error.type": kind, **({"http.response.status_code": int(status)} if status.isdecimal() else {})}


def _known(attributes: Attributes) -> Attributes:
    return {name: value for name, value in attributes.items() if value is not None}
