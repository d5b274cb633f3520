"""`export --format every-eval-ever`: figures and users in the schema of that name."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path
from typing import Any

import orjson
import pytest

from harness.cli import main


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A results folder with a run of twenty users of weibo, and one of ten residents."""
    folder = tmp_path_factory.mktemp("results")
    where = ["--demo", "--no-html", "--results-dir", str(folder)]
    assert (
        main(
            [
                "run",
                "--subset",
                "weibo",
                "--limit",
                "20",
                "--name",
                "spb",
                "--temperature",
                "0.5",
                *where,
            ]
        )
        == 0
    )
    assert main(["run", "dailymobility", "--limit", "10", "--name", "dm", *where]) == 0
    return folder


def exported(results: Path, run: str, out: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    words = [
        "export",
        run,
        "--format",
        "every-eval-ever",
        "--out",
        str(out),
        "--results-dir",
        str(results),
    ]
    assert main(words) == 0
    samples = out.with_name(f"{out.stem}_samples.jsonl")
    lines = samples.read_bytes().splitlines() if samples.exists() else []
    return orjson.loads(out.read_bytes()), [orjson.loads(line) for line in lines]


def test_figures_are_those_of_the_report(results, tmp_path):
    """Each metric with its interval, number of users, bounds and chance level."""
    data, _ = exported(results, "spb", tmp_path / "spb.json")
    report = orjson.loads((results / "spb/eval_report_weibo.json").read_bytes())
    assert data["schema_version"] == "0.3.0" and data["model_info"]["id"] == "baseline/recency"
    by_name = {
        result["metric_config"]["metric_name"]: result for result in data["evaluation_results"]
    }
    recall, expected = by_name["Recall"], report["metrics"]["Recall"]
    assert recall["score_details"]["score"] == expected["value"]
    interval = recall["score_details"]["uncertainty"]["confidence_interval"]
    assert [interval["lower"], interval["upper"]] == expected["ci95"]
    assert recall["score_details"]["uncertainty"]["num_samples"] == expected["users"]
    assert (recall["metric_config"]["min_score"], recall["metric_config"]["max_score"]) == (
        0.0,
        1.0,
    )
    assert recall["metric_config"]["lower_is_better"] is False
    assert float(recall["score_details"]["details"]["chance_level"]) == report["chance"]["Recall"]
    assert recall["generation_config"]["generation_args"] == {"temperature": 0.5}


def test_users_have_their_conversation_and_value(results, tmp_path):
    """Each line belongs to one figure, and the file has the checksum that the figures name."""
    data, samples = exported(results, "spb", tmp_path / "spb.json")
    detailed = data["detailed_evaluation_results"]
    written = (tmp_path / "spb_samples.jsonl").read_bytes()
    assert (
        detailed["checksum"] == sha256(written).hexdigest()
        and detailed["total_rows"] == len(samples) > 0
    )
    assert {sample["evaluation_result_id"] for sample in samples} <= {
        result["evaluation_result_id"] for result in data["evaluation_results"]
    }
    for sample in samples:
        roles = [message["role"] for message in sample["messages"]]
        assert roles.count("assistant") == sample["evaluation"]["num_turns"] > 0
        assert [message["turn_idx"] for message in sample["messages"]] == list(range(len(roles)))
        assert sample["token_usage"]["total_tokens"] > 0


def test_users_without_a_value_are_counted(results, tmp_path, capsys):
    """In the file and in a line, so that nobody takes the samples for all users."""
    data, samples = exported(results, "spb", tmp_path / "spb.json")
    missing = 20 - len(samples)
    assert missing > 0
    assert data["source_metadata"]["additional_details"]["users_without_value"] == str(missing)
    said = capsys.readouterr().err
    assert f"{missing} user" in said and "without a value of F1^NS" in said
    data, _ = exported(results, "dm", tmp_path / "dm.json")
    assert "users_without_value" not in data["source_metadata"]["additional_details"]


def test_same_run_gives_the_same_bytes(results, tmp_path):
    """Nothing in the files depends on when they were written."""
    first, second = tmp_path / "a", tmp_path / "b"
    for folder in (first, second):
        folder.mkdir()
        exported(results, "spb", folder / "spb.json")
    for name in ("spb.json", "spb_samples.jsonl"):
        assert (first / name).read_bytes() == (second / name).read_bytes()


def test_benchmark_without_values_of_users_has_figures_alone(results, tmp_path):
    """Divergences are of all residents together."""
    data, samples = exported(results, "dm", tmp_path / "dm.json")
    assert data["evaluation_results"] and not samples and "detailed_evaluation_results" not in data
