"""Processes that are killed or asked to stop, and what is left of them."""

from __future__ import annotations

import shlex
import signal
import subprocess
from pathlib import Path

import orjson
import pytest

from bench.kill_and_resume import campaign
from bench.processes import HARNESS, endpoint, run_command, stats, synthesise
from harness.cli import main
from harness.store.log import valid_lines
from tests.support.processes import wait_for_responses

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tasks")
    synthesise(folder, "--users", "20", "--platform", "weibo")
    return folder


def test_killed_run_ends_byte_identical_and_pays_for_nothing_twice(tmp_path):
    """SIGKILL at random moments: the same results file, and only requests on the wire are asked for
    again.

    Users are played three times each. Campaigns of all other kinds of runs:
    tests/bench/test_campaign.py.
    """
    found = campaign(
        4, 10, 6.0, concurrency=4, seed=3, folder=tmp_path, durability="power", repeats=3
    )
    assert (found.kills, found.identical) == (4, found.runs)
    assert found.extra <= found.allowed


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGUSR1, 143), (signal.SIGHUP, 129)],
)
def test_signal_stops_cleanly_and_resume_goes_on(tasks, tmp_path, number, code):
    """Requests on the wire are answered and saved, the resume command is printed and works, nothing
    is paid twice."""
    results = tmp_path / "results"
    with endpoint("--latency", "0.2") as url:
        options = ("--platform", "weibo", "--concurrency", "4", "--name", "run")
        process = subprocess.Popen(
            run_command(url, tasks, results, *options), stdout=subprocess.PIPE, text=True
        )
        wait_for_responses(results / "run" / "responses_weibo.jsonl", 8)
        process.send_signal(number)
        shown, _ = process.communicate(timeout=30)
        assert process.returncode == code
        (command,) = [line for line in shown.splitlines() if line.startswith("resume with: ")]
        assert orjson.loads((results / "run/run_weibo.json").read_bytes())["state"] == "stopped"
        seen = stats(url)
        assert seen["requests"] == seen["completed"]
        again = [*HARNESS, *shlex.split(command.removeprefix("resume with: "))[1:]]
        subprocess.run(again, check=True, stdout=subprocess.DEVNULL)
        assert stats(url)["requests"] == stats(url)["distinct_bodies"]
    assert main(["verify", "--results-dir", str(results)]) == 0


def test_second_run_on_a_folder_in_use_is_refused(tasks, tmp_path):
    """One writer: the second says who holds the folder, exits with 4, and changes nothing."""
    results = tmp_path / "results"
    with endpoint("--latency", "0.3") as url:
        command = run_command(
            url, tasks, results, "--platform", "weibo", "--concurrency", "2", "--name", "run"
        )
        first = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        try:
            wait_for_responses(results / "run" / "responses_weibo.jsonl", 2)
            second = subprocess.run(command, capture_output=True, text=True, check=False)
            assert second.returncode == 4
            assert f"in use by process {first.pid}" in second.stderr
        finally:
            first.terminate()
            first.wait()


def test_signal_during_resume_ends_all_runs(tasks, tmp_path):
    """Ctrl-C while two unfinished runs go on together stops both, each with what it has."""
    results = tmp_path / "results"
    with endpoint("--latency", "0.3") as url:
        for name in ("a", "b"):
            options = ("--platform", "weibo", "--concurrency", "2", "--name", name)
            with subprocess.Popen(
                run_command(url, tasks, results, *options), stdout=subprocess.DEVNULL
            ) as process:
                wait_for_responses(results / name / "responses_weibo.jsonl", 2)
                process.send_signal(signal.SIGINT)
        more = sum(1 for _ in valid_lines(results / "a/responses_weibo.jsonl")) + 2
        command = [*HARNESS, "resume", "--results-dir", str(results), "--concurrency", "2"]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
            wait_for_responses(results / "a/responses_weibo.jsonl", more)
            process.send_signal(signal.SIGINT)
        assert process.returncode == 130
    manifests = [
        orjson.loads((results / name / "run_weibo.json").read_bytes()) for name in ("a", "b")
    ]
    assert [manifest["state"] for manifest in manifests] == ["stopped", "stopped"]
