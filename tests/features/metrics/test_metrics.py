"""`--metrics-port`: what Prometheus reads, by its own parser, and where it can read it."""

from __future__ import annotations

import socket
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import anyio
import anyio.to_thread
import pytest
from prometheus_client.parser import text_string_to_metric_families

from harness.cli import main
from harness.errors import MachineError
from harness.features.metrics import prometheus as metrics
from harness.model import Money, Snapshots
from tests.support import free_port, malformed
from tests.support.scripted import baseline, serving
from tests.ui.test_display import FULL, SCORED, SUBSET, snapshot

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def samples(text: str) -> Samples:
    """Value by name and labels, without the run's."""
    return {
        (sample.name, frozenset(sample.labels.items() - {("run", "千问"), ("model", "Qwen/Qwen3-8B")})): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def labels(**words: str) -> frozenset[tuple[str, str]]:
    return frozenset(words.items())


@pytest.fixture
def port() -> int:
    return free_port()


def test_every_value_of_a_snapshot_is_read_back() -> None:
    """Counts, gauges, a value a subset, a kind, a metric, a quantile, a currency; what is not known is left out."""
    state = snapshot(SCORED, SUBSET, **(FULL | {"cost": (Money(Decimal("1.25"), "USD"),), "eta": None}))
    found = samples(metrics.text((state,)))
    assert found["harness_users_done", labels(subset="weibo")] == 600
    assert found["harness_users_done", labels(subset="xiaohongshu")] == 1100
    assert found["harness_score", labels(subset="weibo", metric="F1^NS")] == 0.2
    assert found["harness_requests_total", labels()] == 9000
    assert found["harness_tokens_total", labels(kind="prompt")] == 12_345_678
    assert found["harness_failed_tries_total", labels(kind="http_429")] == 9
    assert found["harness_requests_in_flight", labels()] == 57
    assert found["harness_reply_seconds", labels(quantile="0.95")] == 12.3
    assert found["harness_cost", labels(currency="USD")] == 1.25
    assert not any(name == "harness_remaining_seconds" for name, _ in found)


def test_runs_are_told_apart_whatever_their_names_hold() -> None:
    """Quotes, backslashes and line ends are escaped; a family is announced once for all runs."""
    names = ['a"b\\', "line\nend", "画像"]
    families = [*text_string_to_metric_families(metrics.text(tuple(snapshot(name=name) for name in names)))]
    users = next(family for family in families if family.name == "harness_users")
    assert [sample.labels["run"] for sample in users.samples] == names
    assert len({family.name for family in families}) == len(families) == len(metrics.FAMILIES)


def test_names_and_kinds_follow_the_conventions() -> None:
    """Counters, and they alone, end in `_total`; each family has a help text and a name of its own."""
    for family in metrics.FAMILIES:
        assert family.name.endswith("_total") == (family.kind == metrics.COUNTER)
        assert family.words.endswith(".") and family.name.isidentifier()
    assert metrics.text(()).count("# TYPE ") == len(metrics.FAMILIES)


def test_run_serves_its_metrics_while_it_runs(port: int, tmp_path: Path) -> None:
    """On loopback, in the declared format, until the run ends; no other path exists."""
    pages: list[tuple[str, str]] = []
    codes: list[int] = []

    def scraped(body: dict[str, Any]) -> tuple[int, bytes]:
        with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as page:
            pages.append((page.headers["Content-Type"], page.read().decode()))
        with pytest.raises(HTTPError) as refused:
            urlopen(f"http://127.0.0.1:{port}/", timeout=30)
        codes.append(refused.value.code)
        refused.value.close()
        return baseline(body)

    with serving(scraped) as server:
        words = f"run --model 模型 --demo --limit 1 --platform weibo --no-html --api-url {server.url}".split()
        assert main([*words, "--results-dir", str(tmp_path), "--metrics-port", str(port)]) == 0
    assert {kind for kind, _ in pages} == {metrics.CONTENT_TYPE} and set(codes) == {404}
    for _, page in pages:
        assert {family.name for family in text_string_to_metric_families(page)} >= {"harness_users", "harness_score"}
    with pytest.raises(OSError):
        urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30)


@pytest.mark.anyio
async def test_last_snapshots_are_served_and_handed_on(port: int) -> None:
    """Each reading has those of its moment; whoever observes the run gets all of them."""

    def users_done() -> list[float]:
        with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as page:
            return [value for (name, _), value in samples(page.read().decode()).items() if name.endswith("users_done")]

    seen: list[Snapshots] = []
    async with metrics.served(port, seen.append) as observe:
        assert await anyio.to_thread.run_sync(users_done) == []
        for subset, done in ((SCORED, 600), (SUBSET, 1100)):
            observe((snapshot(subset),))
            assert await anyio.to_thread.run_sync(users_done) == [done]
    assert [one.subsets for (one,) in seen] == [(SCORED,), (SUBSET,)]


@pytest.mark.anyio
async def test_malformed_requests_print_nothing_into_the_display(
    port: int, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing is logged either, and the metrics are served as before."""
    async with metrics.served(port, lambda snapshots: None):
        await anyio.to_thread.run_sync(malformed.send_all, port)
        request = b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
        assert (await anyio.to_thread.run_sync(malformed.send, port, request)).startswith(b"HTTP/1.1 200")
    assert capfd.readouterr() == ("", "")
    assert caplog.records == []


@pytest.mark.anyio
async def test_port_that_another_program_has_is_one_sentence(port: int) -> None:
    with socket.socket() as taken:
        taken.bind((metrics.HOST, port))
        taken.listen()
        with pytest.raises(MachineError, match=str(port)):
            async with metrics.served(port, lambda snapshots: None):
                pass
