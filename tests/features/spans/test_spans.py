"""`--otel`: which spans there are, what they hold and what they never hold, and what becomes of them."""

from __future__ import annotations

import ast
import logging
import socket
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from harness.cli import main
from harness.config.address import Found
from harness.config.plan import Plan
from harness.config.providers import Provider
from harness.endpoint.address import Address
from harness.engine import lane
from harness.engine.extension import Extension
from harness.engine.lane import Play, Send
from harness.engine.run import Run as SubsetRun
from harness.errors import BadInput, EndpointStopped, Rejected, TransportFault
from harness.features.spans import tracing
from harness.features.spans.tracing import Tracer
from tests.support import ROOT
from tests.support.chain_runs import USERS, Run
from tests.support.chains import Endpoint
from tests.support.plugins import Commands
from tests.support.scripted import PromptHandler, baseline, listening, serving

FOUND = Found((Address("http://user:password@there:8000/v1?token=secret", key="sk-secret"),), None)
RUN = {"harness.run": "画像", "harness.subset": "weibo", "harness.benchmark": "chains"}
FEW = {"甲": 2, "乙": 1}


class Spans(Extension):
    """The spans of a run, once they have ended."""

    def __init__(self, found: Found | None = FOUND) -> None:
        self._found = found
        self._memory = InMemorySpanExporter()
        provider = TracerProvider(shutdown_on_exit=False)
        provider.add_span_processor(SimpleSpanProcessor(self._memory))
        self._tracer = Tracer(provider.get_tracer("test"))

    def playing(self, plan: Plan, runs: Sequence[SubsetRun], play: Play) -> Play:
        return self._tracer.player("画像", self._found, runs, play)

    def sending(self, send: Send) -> Send:
        return self._tracer.sender(send)

    async def play(self, run: Run, endpoint: Endpoint, **more: Any) -> Any:
        ending = await run.play(endpoint, extensions=[self], **more)
        self._tracer.close()
        return ending

    @property
    def all(self) -> Sequence[ReadableSpan]:
        return self._memory.get_finished_spans()

    def of(self, kind: str) -> list[ReadableSpan]:
        """Return those whose name begins with this word."""
        return [span for span in self.all if span.name.split()[0] == kind]


@pytest.fixture
def spans() -> Spans:
    return Spans()


def failing(*faults: Exception) -> Endpoint:
    """An endpoint that answers the first requests of a user so, and then as ever."""

    async def script(user: str, before: int) -> None:
        if before < len(faults):
            raise faults[before]

    return Endpoint(script)


def values(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


# Which spans there are


@pytest.mark.anyio
async def test_every_request_is_a_span_below_its_user_and_every_user_is_linked_to_its_run(
    tmp_path: Path, spans: Spans
) -> None:
    """As many as the endpoint has counted, user by user; a user is a trace of its own."""
    endpoint = Endpoint()
    await spans.play(Run(tmp_path), endpoint)
    [run], users, requests = spans.of("run"), spans.of("user"), spans.of("chat")
    assert len(spans.all) == 1 + len(users) + len(requests)
    key_of = {user.context.span_id: values(user)["harness.user"] for user in users}
    assert Counter(key_of.values()) == Counter(list(USERS))
    assert Counter(key_of[span.parent.span_id] for span in requests if span.parent) == USERS == Counter(endpoint.sent)
    assert [span.parent for span in (run, *users)] == [None] * (1 + len(users))
    assert len({span.context.trace_id for span in (run, *users)}) == 1 + len(users)
    assert [[link.context for link in user.links] for user in users] == [[run.context]] * len(users)
    assert {span.kind for span in requests} == {SpanKind.CLIENT}


@pytest.mark.anyio
async def test_span_of_a_request_follows_the_conventions_and_holds_nothing_else(tmp_path: Path, spans: Spans) -> None:
    """Names and values of one, by the conventions' text; the times of the whole request enclose the last try."""
    run = Run(tmp_path, {"甲": 1})
    run.manifest.identity["model"] = "Qwen/Qwen3-8B"
    run.manifest.identity["sampling"] = {
        "temperature": 0.5,
        "seed": 7,
        "max_tokens": 64,
        "extra_body": {"top_p": 0.9, "private": 1},
    }
    await spans.play(run, Endpoint())
    [span] = spans.of("chat")
    found = values(span)
    assert span.name == "chat Qwen/Qwen3-8B"
    assert found.pop("harness.reply_seconds") >= 0
    assert found == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "openai",
        "gen_ai.request.model": "Qwen/Qwen3-8B",
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.top_p": 0.9,
        "gen_ai.request.seed": 7,
        "gen_ai.request.max_tokens": 64,
        "gen_ai.response.model": "served",
        "gen_ai.response.finish_reasons": ("stop",),
        "gen_ai.usage.input_tokens": 3,
        "gen_ai.usage.output_tokens": 2,
        "server.address": "here",  # of the reply
        "server.port": 80,
        "harness.tries": 1,
    }
    assert span.status.status_code == StatusCode.UNSET and not span.events


@pytest.mark.anyio
async def test_spans_of_runs_and_users_say_which_they_are(tmp_path: Path, spans: Spans) -> None:
    await spans.play(Run(tmp_path, FEW), Endpoint())
    [run], users = spans.of("run"), spans.of("user")
    assert values(run) == RUN | {"gen_ai.request.model": "m", "harness.users_played": 2, "harness.users_failed": 0}
    expected = [RUN | {"harness.user": key, "harness.repeat": 1, "harness.saved_replies": 0} for key in FEW]
    assert sorted(map(values, users), key=str) == sorted(expected, key=str)
    assert run.start_time is not None and run.end_time == max(user.end_time or 0 for user in users)


@pytest.mark.parametrize(
    ("found", "provider", "server"),
    [
        (None, "harness", None),
        (FOUND, "openai", "there"),
        (Found(FOUND.addresses * 2, None), "openai", None),
        (Found(FOUND.addresses, None, Provider("deepseek", ())), "deepseek", "there"),
    ],
)
@pytest.mark.anyio
async def test_provider_is_the_named_one_and_the_address_that_of_the_only_replica(
    found: Found | None, provider: str, server: str | None, tmp_path: Path
) -> None:
    """An endpoint that nobody has named has OpenAI's API; a request without a reply has no replica's address."""
    spans = Spans(found)
    await spans.play(Run(tmp_path, {"甲": 1}), failing(Rejected("http_400", "no")))
    [span] = spans.of("chat")
    assert (values(span)["gen_ai.provider.name"], values(span).get("server.address")) == (provider, server)


@pytest.mark.anyio
async def test_saved_replies_have_no_span(tmp_path: Path, spans: Spans) -> None:
    """A resumed run has spans of its new requests only, and says how many replies were saved."""
    first = failing()

    async def script(user: str, before: int) -> None:
        if before == 1:
            raise EndpointStopped("gone")

    first.script = script
    await Run(tmp_path, {"甲": 3}).play(first)
    second = Endpoint()
    await spans.play(Run(tmp_path, {"甲": 3}), second)
    assert len(spans.of("chat")) == len(second.sent) == 2
    [user] = spans.of("user")
    assert values(user)["harness.saved_replies"] == 1


# Failures


@pytest.mark.anyio
async def test_failed_tries_are_events_of_a_request_that_succeeds(tmp_path: Path, spans: Spans) -> None:
    """With kind, number and status; the span itself has no error."""
    faults = TransportFault("http_503", "words"), TransportFault("timeout", "words")
    run = Run(tmp_path, {"甲": 1})
    await spans.play(run, failing(*faults))
    assert dict(run.snapshots[-1].faults) == {"http_503": 1, "timeout": 1}
    [span] = spans.of("chat")
    assert [(event.name, dict(event.attributes or {})) for event in span.events] == [
        ("failed_try", {"harness.try": 1, "error.type": "http_503", "http.response.status_code": 503}),
        ("failed_try", {"harness.try": 2, "error.type": "timeout"}),
    ]
    assert values(span)["harness.tries"] == 3 and "error.type" not in values(span)
    assert span.status.status_code == StatusCode.UNSET


@pytest.mark.parametrize(
    ("fault", "kind", "status"),
    [
        (TransportFault("http_503", "words"), "http_503", 503),
        (TransportFault("connection", "words"), "connection", None),
        (Rejected("http_400", "words"), "http_400", 400),
    ],
)
@pytest.mark.anyio
async def test_request_that_fails_has_its_last_kind_as_error_type(
    fault: Exception, kind: str, status: int | None, tmp_path: Path, spans: Spans
) -> None:
    """Its user has the kind of its failure in the file; neither has the words of the error."""

    async def one_fails(user: str, before: int) -> None:
        if user == "用户2":
            raise fault

    async def until_another_passed(seconds: float) -> None:
        before = endpoint.answered.total()
        while endpoint.answered.total() == before:
            await anyio.lowlevel.checkpoint()

    run, endpoint = Run(tmp_path), Endpoint(one_fails)
    assert await spans.play(run, endpoint, sleep=until_another_passed) is None
    request, user = (span for span in spans.all if "error.type" in values(span))
    assert (values(request)["error.type"], values(request).get("http.response.status_code")) == (kind, status)
    assert [(values(user)["harness.user"], values(user)["error.type"])] == [found[:2] for found in run.failures]
    for span in (request, user):
        assert (span.status.status_code, span.status.description) == (StatusCode.ERROR, None)
    assert values(spans.of("run")[0])["harness.users_failed"] == 1


@pytest.mark.anyio
async def test_requests_of_a_run_that_stops_have_their_spans(
    tmp_path: Path, spans: Spans, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the one that stopped it the class of the error, and of the others that they were cancelled."""
    monkeypatch.setattr(lane, "GRACE_SECONDS", 0.01)

    async def script(user: str, before: int) -> None:
        if user == "乙":
            raise EndpointStopped("words")
        await anyio.sleep_forever()

    await spans.play(Run(tmp_path, FEW), Endpoint(script))
    for kind in ("chat", "user"):
        found = sorted(values(span)["error.type"] for span in spans.of(kind))
        assert found == ["CancelledError", "EndpointStopped"]


@pytest.mark.anyio
async def test_spans_hold_neither_texts_nor_secrets(tmp_path: Path, spans: Spans) -> None:
    """No reply, no words of the endpoint, no key, no credentials of the address."""
    await spans.play(Run(tmp_path, FEW), failing(TransportFault("http_503", "words: 答 sk-secret")))
    written = "".join(span.to_json() for span in spans.all)
    assert "chat m" in written
    for text in ("答", "words", "secret", "password"):
        assert text not in written and text.encode("unicode_escape").decode() not in written


# What becomes of them


class Collector:
    """Takes spans by OTLP over HTTP on loopback; `status` is its answer."""

    def __init__(self, status: int = 200) -> None:
        self.status = status
        self.spans: list[Any] = []
        self.services: set[str] = set()
        self.heads: list[str] = []

    def take(self, body: bytes) -> None:
        for part in ExportTraceServiceRequest.FromString(body).resource_spans:
            named = {pair.key: pair.value.string_value for pair in part.resource.attributes}
            self.services.add(named["service.name"])
            self.spans += [span for scope in part.scope_spans for span in scope.spans]


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    """A collector that the variables name."""
    made = Collector()

    class Handler(PromptHandler):
        def do_POST(self) -> None:
            made.take(self.rfile.read(int(self.headers["Content-Length"])))
            made.heads.append(f"{self.path}\n{self.headers}")
            self.send_response(made.status)
            self.send_header("Content-Length", "0")
            self.end_headers()

    with listening(Handler) as port:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{port}")
        yield made


def words_of(folder: Path, url: str, *more: str) -> list[str]:
    words = f"run --model 模型 --demo --limit 2 --platform weibo --no-html --name r --api-url {url}".split()
    return [*words, "--results-dir", str(folder), *more]


def test_run_sends_its_spans_to_the_collector(
    collector: Collector, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the variables of OpenTelemetry say: all of them, before the command ends."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-team=blue")
    with serving(baseline) as server:
        assert main(words_of(tmp_path, server.url, "--otel")) == 0
    names = Counter(span.name for span in collector.spans)
    assert names == {"run streamprofile": 1, "user streamprofile": 2, "chat 模型": len(server.bodies)}
    assert collector.services == {"behavior-harness"}
    assert all(head.startswith("/v1/traces") and "x-team: blue" in head for head in collector.heads)


def test_run_that_begins_with_an_estimate_has_one_span(collector: Collector, tmp_path: Path) -> None:
    """With the users of the estimate and of the rest."""
    words = ["run", "--model", "baseline/random", "--demo", "--limit", "12", "--platform", "weibo", "--no-html"]
    assert main([*words, "--estimate", "--yes", "--otel", "--results-dir", str(tmp_path)]) == 0
    [run] = [span for span in collector.spans if span.name.startswith("run ")]
    assert {pair.key: pair.value.int_value for pair in run.attributes}["harness.users_played"] == 12


def test_service_has_the_name_that_its_variable_gives(
    collector: Collector, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_SERVICE_NAME", "nightly")
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "always_off")
    with tracing.tracing(pytest.fail) as tracer:
        tracer._tracer.start_span("run").end()
    assert collector.spans == []
    assert tracing._resource().attributes["service.name"] == "nightly"


def results(folder: Path) -> bytes:
    return (folder / "r" / "inference_results_weibo.jsonl").read_bytes()


@pytest.mark.parametrize("alive", [False, True])
def test_collector_that_fails_costs_one_warning_and_nothing_else(
    alive: bool,
    collector: Collector,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """One that is gone, and one that refuses: the same results and exit code, and no line of OpenTelemetry's own."""
    collector.status = 400
    refusing = socket.socket()  # nobody else gets its port meanwhile
    refusing.bind(("127.0.0.1", 0))
    if not alive:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{refusing.getsockname()[1]}")
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "1")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "0.01")
    with refusing, serving(baseline) as server:
        assert main(words_of(tmp_path / "without", server.url)) == 0
        assert main(words_of(tmp_path / "with", server.url, "--otel")) == 0
    printed = "".join(capfd.readouterr())
    assert results(tmp_path / "with") == results(tmp_path / "without")
    assert printed.count("OpenTelemetry") == 1 and "export" not in printed.lower()  # a word of its own log


def join_all_but(threads: Sequence[threading.Thread]) -> None:
    for thread in set(threading.enumerate()).difference(threads):
        thread.join(10)


def test_end_of_a_command_does_not_wait_for_a_collector_without_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """It leaves spans behind that have not been taken when the time is over, with the warning."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "0.1")
    warnings: list[str] = []
    before = threading.enumerate()
    with socket.socket() as silent:  # accepts, and never answers
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{silent.getsockname()[1]}")
        with tracing.tracing(warnings.append, flush=0.01) as tracer:
            tracer._tracer.start_span("run").end()
    assert warnings == [tracing.LOST]
    join_all_but(before)


def test_log_of_opentelemetry_is_one_warning_until_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Others get its lines before and after, also after variables that were refused."""
    warnings: list[str] = []
    log, everybody = logging.getLogger("opentelemetry"), logging.getLogger()
    seen: list[str] = []
    handler = logging.Handler()
    monkeypatch.setattr(handler, "emit", lambda record: seen.append(record.getMessage()))
    monkeypatch.setattr(log, "propagate", True)
    monkeypatch.setattr(everybody, "handlers", [handler])
    with tracing.tracing(warnings.append):
        log.getChild("sdk").warning("within")
        log.getChild("sdk").error("within")
    log.warning("after")
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "1")
    with pytest.raises(BadInput), tracing.tracing(warnings.append):
        pass
    log.warning("refused")
    assert (seen, warnings) == (["after", "refused"], [tracing.LOST])


def test_log_of_opentelemetry_is_back_after_the_last_of_two_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever begins or ends first; in between nothing of it is shown."""
    log = logging.getLogger("opentelemetry")
    monkeypatch.setattr(log, "propagate", True)
    with ExitStack() as first, ExitStack() as second:
        first.enter_context(tracing.tracing(pytest.fail))
        second.enter_context(tracing.tracing(pytest.fail))
        first.close()
        assert not log.propagate
    assert log.propagate


def test_log_of_opentelemetry_is_back_once_a_late_collector_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command did not wait for it; what is logged until then is not shown."""
    log = logging.getLogger("opentelemetry")
    monkeypatch.setattr(log, "propagate", True)
    go_on, before = threading.Event(), threading.enumerate()
    shut = TracerProvider.shutdown
    monkeypatch.setattr(TracerProvider, "shutdown", lambda self: go_on.wait(60) and shut(self))
    with tracing.tracing(lambda _: None, flush=0.01):
        pass
    assert not log.propagate
    go_on.set()
    join_all_but(before)
    assert log.propagate


# Refused, and off


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"),
        ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "http/json"),
        ("OTEL_TRACES_EXPORTER", "console"),
        ("OTEL_BSP_MAX_QUEUE_SIZE", "1"),  # less than a batch
    ],
)
def test_variables_that_cannot_be_followed_are_refused(
    name: str, value: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before anything is sent or written, in one sentence."""
    monkeypatch.setenv(name, value)
    commands = Commands(tmp_path / "results", capsys)
    assert "OTEL_" in commands.refused("run", "--demo", "--model", "baseline/recency", "--otel")
    assert not (tmp_path / "results").exists()


def test_variables_that_are_read_at_import_are_refused_alike(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT", "-3")
    for module in ("harness.features.spans.tracing", "opentelemetry.sdk.trace"):
        monkeypatch.delitem(sys.modules, module)
    commands = Commands(tmp_path / "results", capsys)
    assert "OTEL_SPAN_" in commands.refused("run", "--demo", "--model", "baseline/recency", "--otel")
    assert not (tmp_path / "results").exists()


def test_protocol_of_traces_counts_before_that_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    tracing._check({"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf"})
    with pytest.raises(BadInput):
        tracing._check({"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": ""})


def test_missing_package_is_named_with_the_command_that_installs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 2."""
    monkeypatch.delitem(sys.modules, "harness.features.spans.tracing")
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    commands = Commands(tmp_path / "results", capsys)
    refused = commands.refused("run", "--demo", "--model", "baseline/recency", "--otel")
    assert "-m pip install 'behavior-harness[otel]'" in refused


def test_one_module_alone_imports_opentelemetry() -> None:
    """And nothing imports it when it is loaded, but for types."""
    sources = {file.name: file.read_text(encoding="utf-8") for file in (ROOT / "harness").rglob("*.py")}
    assert [name for name, source in sources.items() if "opentelemetry" in source] == ["tracing.py"]
    for source in [source for source in sources.values() if tracing.__name__ in source]:
        top = [node for node in ast.parse(source).body if isinstance(node, ast.ImportFrom)]
        assert tracing.__name__ not in {node.module for node in top}


@pytest.mark.slow
def test_run_without_the_option_loads_nothing_of_opentelemetry(tmp_path: Path) -> None:
    """Nor with variables that a cluster sets for everybody."""
    script = "import sys; from harness.cli import main; code = main(sys.argv[1:]); "
    script += "sys.exit(code or any(name.startswith('opentelemetry') for name in sys.modules))"
    words = ["run", "--model", "baseline/recency", "--demo", "--limit", "2", "--platform", "weibo", "--no-html"]
    env = {"PATH": "/usr/bin:/bin", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9", "OTEL_TRACES_EXPORTER": "otlp"}
    command = [sys.executable, "-c", script, *words, "--results-dir", tmp_path]
    done = subprocess.run(command, cwd=ROOT, env=env, timeout=120)
    assert done.returncode == 0
