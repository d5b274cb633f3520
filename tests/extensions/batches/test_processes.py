"""Processes that go by batches, over the embedded endpoint's Batch API: killed, interrupted, and
with its faults."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from itertools import count
from pathlib import Path
from typing import Any

import orjson
import pytest

from bench.processes import HARNESS, synthesise
from harness.cli import main
from harness.store.manifest import load
from harness.store.run import runs
from harness.store.submissions import submissions
from tests.extensions.batches.dying import DIES_AFTER
from tests.support import ROOT
from tests.support.embedded import Served, served
from tests.support.endpoint_double.app import Options
from tests.support.endpoint_double.faults import FaultPlan
from tests.support.scripted import PromptHandler, listening

pytestmark = pytest.mark.slow

KEY = "sk-Zq0123456789abcdefWXYZ"

STREAMS = ("--model", "baseline/recency", "--platform", "weibo")
DAYS = ("dailymobility", "--model", "baseline/commuter")


def command(url: str, tasks: Path, results: Path, *words: str) -> list[str]:
    options = (
        "--api-url",
        url,
        "--tasks-dir",
        str(tasks),
        "--results-dir",
        str(results),
        "--name",
        "run",
        "--no-html",
    )
    return ["run", *words, *options]


def of_harness(*words: str, dies_after: int | None = None) -> int:
    """The exit code of a process."""
    program = (
        HARNESS if dies_after is None else (sys.executable, "-m", "tests.extensions.batches.dying")
    )
    environment = {**os.environ, **({} if dies_after is None else {DIES_AFTER: str(dies_after)})}
    quiet = subprocess.DEVNULL
    return subprocess.run(
        [*program, *words], cwd=ROOT, env=environment, stdout=quiet, check=False
    ).returncode


def results_of(folder: Path) -> dict[str, bytes]:
    return {
        path.name: path.read_bytes()
        for path in sorted((folder / "run").glob("inference_results_*.jsonl"))
    }


def online(tasks: Path, results: Path, words: tuple[str, ...]) -> dict[str, bytes]:
    with served(Options()) as endpoint:
        assert of_harness(*command(endpoint.url, tasks, results, *words)) == 0
    return results_of(results)


def tasks_of(folder: Path, words: tuple[str, ...]) -> Path:
    if words is DAYS:
        synthesise(folder, "dailymobility", "--users", "2")
    else:
        synthesise(
            folder, "--users", "2", "--steps", "1.5", "--seed", "4", "--platform", "weibo"
        )  # 2 and 1 steps
    return folder


def check(endpoint: Served, results: Path) -> dict[str, Any]:
    """No request was answered twice, no input file was submitted twice, and the journals name every
    batch."""
    seen = endpoint.stats()
    assert seen["completed"] == seen["distinct_bodies"]
    assert seen["batches"] == seen["batch_inputs"]
    named = {
        one.batch for files in runs(results) for one in submissions(files.batches) if one.batch
    }
    assert len(named) == seen["batches"]
    return seen


@pytest.mark.parametrize(
    ("words", "step"), [(STREAMS, 3), (DAYS, 4)], ids=["streamprofile", "dailymobility"]
)
def test_run_killed_after_an_operation_ends_as_online_and_submits_nothing_twice(
    tmp_path, words, step
):
    """SIGKILL after each third or fourth operation of the protocol, then `resume`. What a death does
    at each of them is tested in one process (test_waves.py)."""
    tasks = tasks_of(tmp_path / "tasks", words)
    expected = online(tasks, tmp_path / "online", words)
    for nth in count(1, step):
        results = tmp_path / "batches"
        with served(Options()) as endpoint:
            code = of_harness(
                *command(endpoint.url, tasks, results, *words, "--batch"), dies_after=nth
            )
            assert code in (0, -signal.SIGKILL)
            if code != 0:
                assert main(["resume", "--results-dir", str(results)]) == 0
            assert results_of(results) == expected
            check(endpoint, results)
        if code == 0:
            break
        shutil.rmtree(results)
    assert nth > 10


@pytest.mark.parametrize("words", [STREAMS, DAYS], ids=["streamprofile", "dailymobility"])
def test_failed_lines_and_an_expired_batch_change_no_result(tmp_path, words):
    """A tenth of the lines fails, and the first batch expires half done: the same bytes as
    online."""
    tasks = tmp_path / "tasks"
    synthesise(
        tasks,
        *(
            ("dailymobility", "--users", "40")
            if words is DAYS
            else ("--users", "40", "--steps", "3")
        ),
    )
    expected = online(tasks, tmp_path / "online", words)
    plans = (FaultPlan(0.2, ("500", "batch-expired"), seed) for seed in count())
    faults = next(plan for plan in plans if plan.draw_step("batch", 1))
    with served(Options(faults=faults)) as endpoint:
        assert (
            of_harness(*command(endpoint.url, tasks, tmp_path / "batches", *words, "--batch")) == 0
        )
        assert results_of(tmp_path / "batches") == expected
        seen = check(endpoint, tmp_path / "batches")
    assert seen["faults"]["batch-expired"] and seen["faults"]["500"]


def test_signal_leaves_the_batches_at_the_provider_and_resume_picks_them_up(tmp_path):
    """Nothing is cancelled, nothing is submitted again."""
    tasks, results = tasks_of(tmp_path / "tasks", DAYS), tmp_path / "results"
    expected = online(tasks, tmp_path / "online", DAYS)
    with served(Options(batch_seconds=10.0)) as endpoint:
        assert "1 batch" in interrupted(endpoint, tasks, results)
        status = subprocess.run(
            [*HARNESS, "status", "--json", "--results-dir", str(results)],
            capture_output=True,
            check=True,
        )
        [row] = orjson.loads(status.stdout)
        assert (row["waves"]["number"], row["waves"]["batches"], row["waves"]["requests"]) == (
            1,
            1,
            2,
        )
        assert (
            of_harness(*command(endpoint.url, tasks, results, *DAYS)) == 2
        )  # without batches it would pay twice
        assert of_harness("resume", "--results-dir", str(results)) == 0
        assert check(endpoint, results)["batches"] == 1
    assert results_of(results) == expected


def interrupted(endpoint: Served, tasks: Path, results: Path) -> str:
    """What a run says that is interrupted once its batch is at the provider."""
    words = command(endpoint.url, tasks, results, *DAYS, "--batch")
    with subprocess.Popen([*HARNESS, *words], stdout=subprocess.PIPE, text=True) as process:
        while not endpoint.stats()["batches"]:
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        shown, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    return shown


def test_batches_at_the_provider_can_be_given_up(tmp_path):
    """The run goes on without them, and ends in the same bytes."""
    tasks, results = tasks_of(tmp_path / "tasks", DAYS), tmp_path / "results"
    expected = online(tasks, tmp_path / "online", DAYS)
    with served(Options(batch_seconds=60.0)) as endpoint:
        interrupted(endpoint, tasks, results)
        assert (
            of_harness("resume", "--results-dir", str(results), "--no-batch", "--allow", "batches")
            == 0
        )
    assert results_of(results) == expected


class WithoutBatches(PromptHandler):
    """An endpoint that has no path for files."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.send_response(404)
        self.send_header("Content-Length", "0")
        self.end_headers()


def test_endpoint_without_batches_stops_its_own_run_and_no_other(tmp_path):
    """Exit code 3 after one sentence, and no run is kept; the other run is complete, and no file
    has the key."""
    tasks, results = tasks_of(tmp_path / "tasks", DAYS), tmp_path / "results"
    with served(Options(key=KEY, imitate="openai")) as endpoint, listening(WithoutBatches) as port:
        addresses = {"has": endpoint.url, "lacks": f"http://127.0.0.1:{port}/v1"}
        one = '[providers.{}]\nbase_url = "{}"\nkey_env = "KEY"\n'
        providers = "".join(one.format(*each) for each in addresses.items())
        (tmp_path / "providers.toml").write_text(providers, encoding="utf-8")
        models = (
            "--model",
            "has:m",
            "--model",
            "lacks:n",
            "--providers",
            str(tmp_path / "providers.toml"),
        )
        words = (
            "dailymobility",
            *models,
            "--batch",
            "--tasks-dir",
            str(tasks),
            "--results-dir",
            str(results),
        )
        done = subprocess.run(
            [*HARNESS, "run", *words, "--no-html"],
            env={**os.environ, "KEY": KEY},
            capture_output=True,
            check=False,
        )
    assert done.returncode == 3
    states = {files.folder.name: load(files.manifest) for files in runs(results)}
    assert {name: made.state for name, made in states.items() if made} == {
        "dailymobility-m": "complete"
    }
    assert not (
        results / "dailymobility-n"
    ).exists()  # nothing was received, and nothing may be billed
    written = [path.read_bytes() for path in results.rglob("*") if path.is_file()]
    assert not any(KEY.encode() in content for content in [*written, done.stdout, done.stderr])
