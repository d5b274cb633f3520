"""Folders of the StreamProfileBench authors' runner: every command names what they are, and loses
nothing of them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson
import pytest

from harness.engine.finish import ReportScores
from harness.store.files import RunFiles
from tests.reporting.test_text import by_stats
from tests.support import ROOT
from tests.support.plugins import Commands

SAMPLE = ROOT / "harness" / "sample" / "weibo_inference_tasks.jsonl"
NAME, USERS = "Qwen3-8B", 4
FILES = RunFiles(Path(NAME), "weibo")
THEIRS = "\n==================================================\nOverall Macro Average (M̄)\n"
API, NO_JSON = (
    "Error: Error code: 429 - Rate limit reached",
    "Error: Expecting value: line 1 column 1 (char 0)",
)
NOT_SCORED = f"harness reeval --name {NAME}"


@pytest.fixture
def harness(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Commands:
    return Commands(tmp_path / "results", capsys)


@pytest.fixture
def tasks(tmp_path: Path) -> Path:
    folder = tmp_path / "tasks"
    folder.mkdir()
    (folder / SAMPLE.name).write_bytes(
        b"".join(SAMPLE.read_bytes().splitlines(keepends=True)[:USERS])
    )
    return folder


def write(harness: Commands, tasks: Path, reasons: Mapping[int, str]) -> Path:
    """What their runner leaves: users in the order in which they ended, and a text report.

    Everybody is answered with the truth, except that the first step of some users ends with an
    error.
    """
    folder = harness.results / NAME
    folder.mkdir(parents=True, exist_ok=True)
    lines = []
    for number, line in enumerate((tasks / SAMPLE.name).read_bytes().splitlines()):
        user = orjson.loads(line)
        steps: list[dict[str, Any]] = []
        for step in user["prediction_tasks"]:
            truth = step["ground_truth"]["new_tags"] + step["ground_truth"]["keep_tags"]
            steps.append(
                {
                    "step_id": step["step_id"],
                    "prediction": truth,
                    "ground_truth": truth,
                    "metrics": {"Recall": 1.0, "Recall_Novelty": float("nan")} if truth else None,
                    "reasoning": "因为",
                    "persona_summary": "画像",
                }
            )
        if number in reasons:
            steps[0] |= {"prediction": [], "reasoning": reasons[number], "persona_summary": ""}
        saved = {name: user[name] for name in ("user_id", "platform", "username")}
        lines.append(json.dumps({**saved, "steps": steps}, ensure_ascii=False))
    (folder / FILES.results.name).write_text("\n".join(reversed(lines)) + "\n")
    (folder / FILES.report("txt").name).write_text(THEIRS)
    return folder


def test_a_folder_that_is_not_scored_yet_is_sent_to_reeval(harness, tasks):
    """By every command that reads runs, in one sentence each; nothing in it changes."""
    folder = write(harness, tasks, {})
    before = {path: path.read_bytes() for path in folder.iterdir()}
    (row,) = harness.json("status", "--json")
    assert (row["name"], row["done"], row["users"]) == (NAME, USERS, None) and "reeval" in row[
        "state"
    ]
    assert "reeval" in harness("status")
    assert NOT_SCORED in harness.refused("stats")
    assert NOT_SCORED in harness.refused("report")
    assert NOT_SCORED in harness.refused("report", "--name", NAME)
    assert NOT_SCORED in harness.refused("resume", "--name", NAME)
    assert NOT_SCORED in harness("verify", code=1)
    harness(
        "run",
        "--model",
        "baseline/recency",
        "--platform",
        "weibo",
        "--tasks-dir",
        tasks,
        "--no-html",
    )
    assert "reeval" in harness.refused("compare", "recency", NAME, "--tasks-dir", tasks)
    assert NOT_SCORED in harness("stats")
    assert {path: path.read_bytes() for path in folder.iterdir()} == before


def test_a_folder_goes_through_every_command_and_back(harness, tasks):
    """All users answered: complete, with the figures that their own script then reads; their report
    is kept."""
    folder = write(harness, tasks, {1: NO_JSON})
    where = "--tasks-dir", tasks
    harness("reeval", *where)
    report = harness.report(NAME, "weibo")
    assert report["coverage"] == {
        "expected_users": 4,
        "scored_users": 4,
        "failed_users": 0,
        "complete": True,
    }
    assert report["diagnostics"]["invalid"] == {"authors_no_json": 1}
    (kept,) = folder.glob(f"{FILES.report('txt').name}.before-*")
    assert kept.read_text() == THEIRS
    found = by_stats(harness.text(NAME, FILES.report("txt").name))
    assert found["Recall"] == f"{100 * report['metrics']['Recall']['value']:.2f}"
    assert found["F1^NS"] == f"{100 * report['secondary']['F1^NS (release code)']['value']:.2f}"
    harness("reeval", *where)
    assert list(folder.glob(f"{FILES.report('txt').name}.before-*")) == [kept], (
        "ours can be made again"
    )
    ours = folder / FILES.report("txt").name
    title, blank, body = ours.read_text().partition("\n\n")
    ours.write_text(f"{title}{blank}An earlier version had another order.\n\n{body}")
    harness("reeval", *where)
    assert list(folder.glob(f"{ours.name}.before-*")) == [kept], (
        "one of an earlier version is ours, too"
    )

    (row,) = harness.json("status", "--json")
    assert (row["state"], row["users"], row["done"], row["failed"]) == ("scored", 4, 4, 0)
    assert harness.json("stats", "--json")["Recall"][NAME]["weibo"]["complete"]
    (proof,) = harness.json("verify", "--json")
    assert (proof["records"], proof["findings"]) == (4, []) and any(
        "reeval" in note for note in proof["notes"]
    )
    harness("report", "--name", NAME, *where)
    harness("report")
    assert NAME in harness.text(".", "index.html")
    harness("run", "--model", "baseline/recency", "--platform", "weibo", "--no-html", *where)
    (pair,) = harness.json("compare", "recency", NAME, "--json", *where)["pairs"]
    assert pair["coverage"][0]["b"]["expected"] == pair["coverage"][0]["common"] == 4


def test_a_failure_of_their_endpoint_is_never_scored(harness, tasks):
    """Figures are given without these users and with them; nothing calls them complete, or sound
    lines damaged."""
    write(harness, tasks, {0: API, 1: NO_JSON, 2: API})
    where = "--tasks-dir", tasks
    harness("reeval", *where, code=1)
    report, text = harness.report(NAME, "weibo"), harness.text(NAME, FILES.report("txt").name)
    assert report["coverage"] == {
        "expected_users": 4,
        "scored_users": 2,
        "failed_users": 2,
        "complete": False,
    }
    assert report["diagnostics"]["invalid"] == {"authors_no_json": 1}
    assert "Coverage: complete" not in text and "INCOMPLETE: 2 of 4" in text
    assert "few steps" not in text, "their runner has another order"
    whole = report["details"]["with_failures"]
    assert (
        whole["Recall"]["users"] == 4
        and whole["Recall"]["value"] < report["metrics"]["Recall"]["value"]
    )
    assert f"{100 * whole['Recall']['value']:.2f}" in str(report["sections"])
    assert by_stats(text).keys() & {"Recall", "F1^NS", "Recall(INCOMPLETE)"} == {
        "Recall(INCOMPLETE)"
    }

    (row,) = harness.json("status", "--json")
    assert (row["users"], row["done"], row["failed"]) == (4, 2, 2)
    assert not harness.json("stats", "--json")["Recall"][NAME]["weibo"]["complete"]
    assert harness.json("verify", "--json")[0]["findings"] == []
    page = harness.text(NAME, FILES.report("html").name)
    assert "INCOMPLETE" in page and "There are none" not in page
    harness("run", "--model", "baseline/recency", "--platform", "weibo", "--no-html", *where)
    (pair,) = harness.json("compare", "recency", NAME, "--json", *where)["pairs"]
    side = pair["coverage"][0]["b"]
    assert (side["expected"], side["failed"], side["scored"], side["unsound"]) == (4, 2, 2, 0)


def test_answers_that_changed_since_they_were_scored_are_found(harness, tasks):
    """A line that another program wrote or damaged, or a report of other results."""
    folder = write(harness, tasks, {})
    harness("reeval", "--tasks-dir", tasks)
    path = folder / FILES.results.name
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:2], lines[2].replace(b"1.0", b"0.5", 1), lines[0]]))
    findings = harness("verify", code=1)
    assert "line 3" in findings and "line 4" in findings and "reeval" in findings
    write(harness, tasks, {})  # their runner again
    assert "reeval" in harness.json("status", "--json")[0]["state"]
    assert NOT_SCORED in harness.refused("stats"), "whose report is of the answers of before"


@pytest.mark.parametrize("mode", ["wb", "ab"])
def test_a_report_of_results_that_were_written_again_is_in_no_table(mode, harness, tasks):
    """Replaced or appended to by their runner: every table names `reeval`, which brings the row
    back."""
    folder, where = write(harness, tasks, {}), ("--tasks-dir", tasks)
    path = folder / FILES.results.name
    theirs = path.read_bytes()
    harness("reeval", *where, "--no-html")
    harness("run", "--model", "baseline/recency", "--platform", "weibo", "--no-html", *where)
    assert set(harness.json("stats", "--json")["Recall"]) == {NAME, "recency"}
    with path.open(mode) as file:
        file.write(theirs)
    assert set(harness.json("stats", "--json")["Recall"]) == {"recency"}
    assert NOT_SCORED in harness.err
    assert "reeval" in harness.json("status", "--json", "--name", NAME)[0]["state"]
    harness("report")
    assert f"{NAME}/" not in harness.text(".", "index.html")
    harness("report", "--name", NAME, code=2)
    assert NOT_SCORED in harness.err
    path.write_bytes(theirs)
    harness("reeval", "--name", NAME, *where, "--no-html")
    assert set(harness.json("stats", "--json")["Recall"]) == {NAME, "recency"}


def test_every_user_of_theirs_is_scored_once(harness, tasks, monkeypatch):
    """Figures with failures are the sum of two disjoint groups of users."""
    scored: list[str] = []
    monkeypatch.setattr(ReportScores, "add", lambda scores, record: scored.append(record.key))
    write(harness, tasks, {0: API})
    harness("reeval", "--tasks-dir", tasks, "--no-html", code=1)
    assert len(scored) == len(set(scored)) == USERS
