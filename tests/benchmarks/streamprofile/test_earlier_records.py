"""Records from before a metric was measured: everything reads them, and `reeval` adds the
values."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import orjson
import pytest

from harness.benchmark import Benchmark
from harness.benchmarks import registry
from harness.store.log import decode_line, encode_line
from tests.support import DATA
from tests.support.plugins import Commands

NEW = "Error_Random"
MEMBERS = ("metrics", "metrics_at_asked", "ceiling")


def without_new(record: dict[str, Any]) -> dict[str, Any]:
    for step in record["steps"]:
        for member in MEMBERS:
            step.get(member, {}).pop(NEW, None)
    return record


@pytest.fixture
def commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Commands:
    """`now` is a run as it is made today, `earlier` the same without one of its metrics."""
    made = Commands(tmp_path, capsys)
    made(
        "run",
        "--demo",
        "--platform",
        "weibo",
        "--limit",
        "12",
        "--no-html",
        "--model",
        "baseline/recency",
        "--name",
        "now",
    )
    shutil.copytree(tmp_path / "now", tmp_path / "earlier")
    results = tmp_path / "earlier/inference_results_weibo.jsonl"
    records = [without_new(decode_line(line)) for line in results.read_bytes().splitlines()]
    results.write_bytes(b"".join(map(encode_line, records)))
    manifest = tmp_path / "earlier/run_weibo.json"
    data = orjson.loads(manifest.read_bytes())
    manifest.write_bytes(orjson.dumps(data | {"state": "stopped", "results_sha256": None}))
    for path in (tmp_path / "earlier").glob("eval_report*"):
        path.unlink()
    return made


def test_records_without_a_metric_are_reported_without_it(commands):
    """The new metric has no value and no user; all others are as they were, on the page too."""
    commands("report", "--name", "earlier", "--force")
    now, earlier = (commands.report(name, "weibo") for name in ("now", "earlier"))
    assert (
        earlier["metrics"].pop(NEW)["value"] is None
        and now["metrics"].pop(NEW)["value"] is not None
    )
    assert earlier["metrics"] == now["metrics"]


def test_records_without_a_metric_can_be_verified_compared_and_shown(commands):
    """`verify` finds a changed value of such a record, and no missing one."""
    assert commands.json("verify", "--name", "earlier", "--json")[0]["findings"] == []
    pair = commands.json("compare", "now", "earlier", "--json")["pairs"][0]
    differences = {figure["metric"]: figure["difference"] for figure in pair["figures"]}
    assert differences.pop(NEW) is None and set(differences.values()) == {0.0}
    results = commands.results / "earlier/inference_results_weibo.jsonl"
    records = [decode_line(line) for line in results.read_bytes().splitlines()]
    records[0]["steps"][0]["metrics"]["Recall"] = 0.123
    results.write_bytes(b"".join(map(encode_line, records)))
    commands("verify", "--name", "earlier", code=1)
    assert "differ from a re-score" in commands.out


def test_reeval_adds_the_metric_to_earlier_records(commands):
    """Then the results are the bytes of a run that is made today."""
    commands("reeval", "--name", "earlier", "--no-html")
    results = [commands.text(name, "inference_results_weibo.jsonl") for name in ("now", "earlier")]
    assert results[0] == results[1]


def test_complete_records_stay_as_they_are(commands):
    records: list[Any] = [
        orjson.loads(line)
        for line in commands.text("now", "inference_results_weibo.jsonl").splitlines()
    ]
    benchmark: type[Benchmark] = registry.find("streamprofile")
    assert all(benchmark.records.completed(record) is record for record in records)


def without_key(value: Any, key: str) -> Any:
    if isinstance(value, list):
        return [without_key(item, key) for item in value]
    if isinstance(value, dict):
        return {name: without_key(item, key) for name, item in value.items() if name != key}
    return value


def test_report_of_the_first_format_is_read_without_a_metric(tmp_path, capsys):
    """A metric that was added since has no value in it."""
    commands = Commands(tmp_path / "results", capsys)
    shutil.copytree(DATA / "folder-0.1.0/results", commands.results)
    for path in commands.results.glob("*/eval_report_weibo.json"):
        path.write_bytes(orjson.dumps(without_key(orjson.loads(path.read_bytes()), NEW)))
    commands("report")
    figures = commands("stats", "--format", "csv", "--metric", "Recall", "--metric", NEW)
    assert "Recall" in figures and NEW not in figures
