"""Signals to runs with many finished users: what job schedulers give is seconds, so nothing is
scored at the end."""

from __future__ import annotations

import os
import signal
import threading
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import orjson
import pytest

import harness
from harness.benchmarks import registry
from harness.cli import main
from harness.engine import playing
from harness.engine.files import index_file, stamp
from harness.engine.finish import ReportScores
from harness.engine.running_scores import RunningScores
from harness.errors import MachineError, RunStopped
from harness.model import JSON, Record
from harness.scoring.scorer import Scorer
from harness.store import log
from harness.store.files import RunFiles
from harness.store.lock import held
from harness.store.manifest import load
from harness.store.run import RunStore
from harness.store.tasks import TaskIndex
from tests.support import SHIPPED, first_quick
from tests.support.scripted import baseline, serving

USERS, LEFT = 1_200, 40
WEIBO = registry.find("streamprofile").subsets["weibo"]


def multiply(results: Path, tasks: Path, left: int) -> None:
    """Give every user but the last ones the record of a user who has one; their own would take a
    run."""
    files, benchmark = RunFiles(results / "run", "weibo"), registry.find("streamprofile")()
    with (
        closing(index_file(benchmark, "weibo", tasks / WEIBO, results)) as index,
        closing(RunStore(files, time.time, stamp())) as store,
    ):
        store.open_logs(index)
        data = next(store.records()).data
        for position in (~store.done).nonzero()[0][:-left]:
            key = orjson.loads(index.read(int(position)))["user_id"]
            store.save_record({**data, "user_id": key}, index, int(position))


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    """Tasks, and results with a run of nearly all of them."""
    tasks, results = tmp_path / "tasks", tmp_path / "results"
    assert not main(
        ["synth", "--out", str(tasks), "--users", str(USERS), "--platform", "weibo", "--steps", "2"]
    )
    played = [
        "run",
        "--model",
        "baseline/recency",
        "--platform",
        "weibo",
        "--name",
        "run",
        "--no-html",
    ]
    where = ["--tasks-dir", str(tasks), "--results-dir", str(results)]
    assert not main([*played, *where, "--limit", "3"])
    manifest = load(RunFiles(results / "run", "weibo").manifest)
    assert manifest
    manifest.selection = {"ratio": 1.0, "sample_seed": manifest.selection["sample_seed"]}  # type: ignore[typeddict-item]
    manifest.state, manifest.results_sha256 = "stopped", None
    manifest.save(RunFiles(results / "run", "weibo").manifest)
    multiply(results, tasks, LEFT)
    return tasks, results


@pytest.fixture
def after(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Send the signal `number`, if one is set, with the first record; count the users scored and
    the lines of results read from then on."""
    counts, score, line_at = (
        {"number": 0, "signalled": 0, "scored": 0, "lines": 0},
        Scorer.score,
        log.line_at,
    )
    save_record = RunStore.save_record

    def scored(self: Scorer, records: list[Record]) -> Any:
        counts["scored"] += len(records) * counts["signalled"]
        return score(self, records)

    def read(*args: Any) -> bytes:
        counts["lines"] += counts["signalled"]
        return line_at(*args)

    def saved(self: RunStore, data: JSON, index: TaskIndex, position: int) -> Record:
        if counts["number"] and not counts["signalled"]:
            counts["signalled"] = 1
            os.kill(os.getpid(), counts["number"])
        return save_record(self, data, index, position)

    monkeypatch.setattr(Scorer, "score", scored)
    monkeypatch.setattr(log, "line_at", read)
    monkeypatch.setattr(RunStore, "save_record", saved)
    return counts


@pytest.mark.parametrize(
    ("number", "code"), first_quick([(signal.SIGTERM, 143), (signal.SIGINT, 130)])
)
def test_signal_leaves_finished_users_as_they_are_and_report_makes_the_report(
    folders,
    after,
    number,
    code,
    capsys,
):
    """No user is scored and no line read after it, however many there are; `report` and `resume` do
    that later."""
    _, results = folders
    files, after["number"] = RunFiles(results / "run", "weibo"), number
    with pytest.raises(RunStopped) as left:
        harness.resume(results_dir=str(results), name="run", concurrency=1)
    assert left.value.exit_code == code
    assert after["signalled"] and after["lines"] == after["scored"] == 0
    manifest = load(files.manifest)
    assert manifest and manifest.state == "stopped" and not held(files.lock, time.time)
    done = manifest.counts["done"]
    assert (
        USERS - LEFT <= done < USERS and manifest.counts["users"] == USERS and manifest.cost is None
    )
    assert not any(path.exists() for path in files.reports)
    said = capsys.readouterr().out
    assert "resume with: " in said and f"{done} of {USERS}" in said
    assert (
        main(["stats", "run", "--results-dir", str(results)]) == 2
    )  # nothing is shown of a run without a report
    assert not main(["report", "--name", "run", "--results-dir", str(results)])
    report = orjson.loads(files.report("json").read_bytes())
    assert report["coverage"] == {
        "expected_users": USERS,
        "scored_users": done,
        "failed_users": 0,
        "complete": False,
    }
    assert "INCOMPLETE" in files.report("txt").read_text() and files.report("html").exists()
    manifest = load(files.manifest)
    assert manifest and manifest.state == "stopped"
    assert not main(["resume", "--name", "run", "--results-dir", str(results)])
    assert orjson.loads(files.report("json").read_bytes())["coverage"]["complete"]


@pytest.mark.slow
@pytest.mark.parametrize("error", [MachineError("2 workers did not start"), KeyboardInterrupt()])
def test_run_that_is_refused_while_workers_start_was_never_begun(
    error,
    tmp_path,
    monkeypatch,
    capsys,
):
    """A new one leaves nothing to resume; one with replies is stopped as before, and its report can
    be made."""
    words = [
        "run",
        *SHIPPED,
        "--model",
        "baseline/recency",
        "--platform",
        "weibo",
        "--limit",
        "3",
        "--no-html",
    ]
    words += ["--name", "run", "--results-dir", str(tmp_path)]
    files = RunFiles(tmp_path / "run", "weibo")

    def refused(*args: object) -> int:
        raise error

    with monkeypatch.context() as patched:
        patched.setattr(playing, "runner_specs", refused)
        assert main(words) == (4 if isinstance(error, MachineError) else 130)
        assert not files.manifest.exists()
    assert not main(words)
    with monkeypatch.context() as patched:
        patched.setattr(playing, "runner_specs", refused)
        assert main([*words[:8], "4", *words[9:]]) == (
            4 if isinstance(error, MachineError) else 130
        )
    capsys.readouterr()
    assert not main(["status", "--json", "--results-dir", str(tmp_path)])
    [row] = orjson.loads(capsys.readouterr().out)
    assert (row["state"], row["done"]) == ("stopped", 3)
    assert not main(["report", "--name", "run", "--results-dir", str(tmp_path)])
    assert not main([*words[:8], "4", *words[9:]])


def test_signal_ends_the_scoring_of_a_model_that_is_done_before_others(tmp_path, monkeypatch):
    """Its records are scored while others are played; the rest of that is left to `resume`, too."""
    tasks, results, answered, ended = (
        tmp_path / "tasks",
        tmp_path / "results",
        threading.Event(),
        threading.Event(),
    )
    assert not main(
        ["synth", "--out", str(tasks), "--users", "6", "--platform", "weibo", "--steps", "2"]
    )
    scored, add, end = list[str](), ReportScores.add, RunningScores.end

    def reply(request: JSON) -> tuple[int, bytes]:
        if request["model"] == "second":
            answered.wait(30)
        return baseline(request)

    def adding(self: ReportScores, record: Record) -> None:
        if not scored:
            os.kill(os.getpid(), signal.SIGTERM)
            assert ended.wait(30)
            answered.set()
        scored.append(record.key)
        add(self, record)

    def ending(self: RunningScores) -> None:
        end(self)
        ended.set()

    words = ["run", "--model", "first", "--model", "second", "--platform", "weibo", "--no-html"]
    with monkeypatch.context() as patched, serving(reply) as server:
        patched.setattr(ReportScores, "add", adding)
        patched.setattr(RunningScores, "end", ending)
        where = ["--api-url", server.url, "--tasks-dir", str(tasks), "--results-dir", str(results)]
        assert main([*words, *where]) == 143
        answered.set()
    assert len(scored) == 1
    manifest = load(RunFiles(results / "first", "weibo").manifest)
    assert manifest and (manifest.state, manifest.counts["done"], manifest.results_sha256) == (
        "stopped",
        6,
        None,
    )
    with serving(baseline) as server:
        again = [
            "resume",
            "--name",
            "first",
            "--results-dir",
            str(results),
            "--api-url",
            server.url,
        ]
        assert not main(again)
    assert not main(["verify", "--name", "first", "--results-dir", str(results)])


@pytest.mark.parametrize("done", [6, 5], ids=["complete", "with a failure"])
def test_second_signal_in_the_last_pass_of_a_model_decides_and_no_record_is_read(
    done, tmp_path, monkeypatch, capsys
):
    """No subset of a model that is done before others gets a report, whichever of them was being
    read; the results stay as they grew, and the command ends as the last signal says."""
    tasks, results, go, heard = (
        tmp_path / "tasks",
        tmp_path / "results",
        threading.Event(),
        threading.Semaphore(0),
    )
    platforms = ("weibo", "zhihu")
    options = [word for platform in platforms for word in ("--platform", platform)]
    assert not main(["synth", "--out", str(tasks), "--users", "6", "--steps", "2", *options])
    failing = [
        orjson.loads((tasks / name).read_bytes().splitlines()[0])["username"]
        for name in map(registry.find("streamprofile").subsets.__getitem__, platforms)
    ]
    read, grown, add, end = list[str](), dict[str, bytes](), ReportScores.add, RunningScores.end

    def reply(request: JSON) -> tuple[int, bytes]:
        if request["model"] == "second":
            go.wait(60)
        elif done < 6 and any(name in request["messages"][-1]["content"] for name in failing):
            return 400, b'{"error": "no"}'
        return baseline(request)

    def adding(self: ReportScores, record: Record) -> None:
        if not read:
            grown.update(
                {name: RunFiles(results / "first", name).results.read_bytes() for name in platforms}
            )
            for number in (signal.SIGINT, signal.SIGTERM):
                os.kill(os.getpid(), number)
                for _ in range(4):  # the runs of both models
                    assert heard.acquire(timeout=60)
            go.set()
        read.append(record.key)
        add(self, record)

    def ending(self: RunningScores) -> None:
        end(self)
        heard.release()

    words = [
        "run",
        "--model",
        "first",
        "--model",
        "second",
        *options,
        "--no-html",
        "--tasks-dir",
        str(tasks),
    ]
    with monkeypatch.context() as patched, serving(reply) as server:
        patched.setattr(ReportScores, "add", adding)
        patched.setattr(RunningScores, "end", ending)
        code = main([*words, "--results-dir", str(results), "--api-url", server.url])
        go.set()
    assert (code, len(read)) == (143, 1)
    assert f"first: interrupted; {2 * (6 - done)} users remaining" in capsys.readouterr().out
    for name in platforms:
        files = RunFiles(results / "first", name)
        manifest = load(files.manifest)
        assert manifest and (manifest.state, manifest.counts["done"], manifest.results_sha256) == (
            "stopped",
            done,
            None,
        )
        assert files.results.read_bytes() == grown[name] and not any(
            path.exists() for path in files.reports
        )


@pytest.mark.parametrize("models", [["first"], ["first", "second"]])
def test_run_whose_users_are_all_done_within_the_grace_period_is_complete(
    models,
    tmp_path,
    monkeypatch,
    capsys,
):
    """Nothing is left to resume of it; a model that has users left is stopped all the same."""
    tasks, results, ended = tmp_path / "tasks", tmp_path / "results", threading.Event()
    synth = ["--users", "3", "--platform", "weibo", "--steps", "1"]
    assert not main(["synth", "--out", str(tasks), *synth])
    all_sent, end = threading.Barrier(3 * len(models)), RunningScores.end

    def reply(request: JSON) -> tuple[int, bytes]:
        if all_sent.wait(30) == 0:
            os.kill(os.getpid(), signal.SIGTERM)
        assert ended.wait(30)
        return baseline(request) if request["model"] == "first" else (503, b"{}")

    def ending(self: RunningScores) -> None:
        end(self)
        ended.set()

    named = [word for model in models for word in ("--model", model)]
    words = ["run", *named, "--platform", "weibo", "--no-html", "--tasks-dir", str(tasks)]
    with serving(reply) as server:
        monkeypatch.setattr(RunningScores, "end", ending)
        code = main([*words, "--results-dir", str(results), "--api-url", server.url])
    assert code == (0 if len(models) == 1 else 143)
    assert "interrupted" not in capsys.readouterr().out.replace("second: interrupted", "")
    manifests = [load(RunFiles(results / model, "weibo").manifest) for model in models]
    states = [manifest and manifest.state for manifest in manifests]
    assert states == ["complete", "stopped"][: len(models)]
    assert RunFiles(results / "first", "weibo").report("json").exists()
