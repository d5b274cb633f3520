"""Where nothing was received, and nothing sent that may be billed, a command leaves nothing
behind."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from harness.benchmarks.streamprofile.synth import generate
from harness.cli import main
from harness.client import caller, health
from tests.support.scripted import UNTIL_STOPPED, Script, baseline, busy, serving

Told = pytest.CaptureFixture[str]
RUN = ["run", "--model", "m", "--no-html"]


@pytest.fixture(autouse=True)
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("tasks").mkdir()
    for subset in ("weibo", "zhihu"):
        Path(f"tasks/{subset}_inference_tasks.jsonl").write_bytes(
            b"".join(generate(subset, 3, 5, 2.0))
        )


def answering(status: int, body: bytes = b"{}") -> Script:
    return lambda request: (status, body)


def files(folder: str) -> set[str]:
    return {path.name for path in Path(folder).iterdir()} if Path(folder).exists() else set()


REASONS = {
    "wrong key": answering(401),
    "no access": answering(403),
    "empty account": answering(402, b'{"error": {"message": "Insufficient Balance"}}'),
    "no such path": answering(404),
    "another page": answering(200, b"<html>"),
    "redirected": answering(307),
    "refused request": answering(422, b'{"error": {"message": "no such parameter"}}'),
}


@pytest.mark.parametrize("reason", REASONS)
def test_run_that_received_nothing_leaves_nothing(reason, capsys):
    """Neither a folder nor a command to resume it; `resume` finds none, and the corrected command
    runs."""
    with serving(REASONS[reason]) as server:
        words = [*RUN, "--subset", "weibo", "--api-url", server.url]
        assert main(words) == 3
        said = capsys.readouterr().out
        assert "nothing was received, so no run is kept" in said and "resume with" not in said
        assert not Path("results/m").exists()
        assert main(["resume"]) == 2
        server.script = baseline
        assert main(words) == 0


def test_address_where_nobody_listens_leaves_nothing(monkeypatch, capsys):
    monkeypatch.setattr(health, "PATIENCE_WITH_AN_ADDRESS", 0.0)
    assert main([*RUN, "--subset", "weibo", "--api-url", "http://127.0.0.1:9/v1"]) == 3
    assert "resume with" not in capsys.readouterr().out
    assert not Path("results/m").exists()


def test_signal_before_the_first_request_leaves_nothing(monkeypatch, capsys):
    """While the address is awaited: it could not be billed."""

    def interrupted(*_: Any) -> float:
        os.kill(os.getpid(), signal.SIGTERM)
        return 0.0

    monkeypatch.setattr(caller, "pause_before", interrupted)
    assert (
        main([*RUN, "--subset", "weibo", "--api-url", "http://127.0.0.1:9/v1", "--wait", "60"])
        == 143
    )
    assert "interrupted; nothing was received" in capsys.readouterr().out
    assert not Path("results/m").exists()


def test_run_that_may_have_been_billed_is_kept(capsys):
    """A server that was busy may have worked on it; its command to go on works."""
    with serving(busy) as server:
        assert main([*RUN, "--subset", "weibo", "--api-url", server.url, *UNTIL_STOPPED]) == 3
        assert "resume with" in capsys.readouterr().out
        server.script = answering(401)
        assert main(["resume"]) == 3  # of an earlier command's run nothing goes
        server.script = baseline
        assert main(["resume"]) == 0


def test_folder_with_anything_else_stays(capsys):
    """What an earlier command made of another subset, and the user's own notes."""
    with serving(baseline) as server:
        where = ["--api-url", server.url]
        assert main([*RUN, "--subset", "weibo", *where]) == 0
        Path("results/m/notes.txt").write_text("mine", encoding="utf-8")
        before = files("results/m")
        server.script = answering(401)
        assert main([*RUN, "--subset", "zhihu", *where]) == 3
        assert files("results/m") - before <= {"run_zhihu.lock"} and before <= files("results/m")
        assert "resume with" not in capsys.readouterr().out
        server.script = baseline
        assert main(["verify"]) == 0


def test_subset_without_a_reply_stays_beside_one_with_replies():
    """They are one run, and `resume` goes on with both."""
    count = [0]

    def soon_denied(body: dict[str, Any]) -> tuple[int, bytes]:
        count[0] += 1
        return baseline(body) if count[0] <= 2 else (401, b"{}")

    with serving(soon_denied) as server:
        words = [
            *RUN,
            "--subset",
            "weibo",
            "--subset",
            "zhihu",
            "--api-url",
            server.url,
            "--concurrency",
            "1",
        ]
        assert main([*words, "--max-retries", "0"]) == 3
        assert {"run_weibo.json", "run_zhihu.json"} <= files("results/m")
        server.script = baseline
        assert main(["resume"]) == 0


def test_queue_keeps_the_runs_that_received_something(capsys):
    """And prints the command for these alone."""

    def known(body: dict[str, Any]) -> tuple[int, bytes]:
        if body["model"] == "b":
            return 404, b'{"error": {"code": "model_not_found", "message": "no b"}}'
        return busy(body)

    with serving(known) as server:
        words = [
            "run",
            "--model",
            "a",
            "--model",
            "b",
            "--subset",
            "weibo",
            "--api-url",
            server.url,
            *UNTIL_STOPPED,
        ]
        assert main(words) == 3
    (line,) = [
        line for line in capsys.readouterr().out.splitlines() if line.startswith("resume with")
    ]
    assert "--name a" in line and "--name b" not in line
    assert Path("results/a").exists() and not Path("results/b").exists()


def test_restart_that_received_nothing_leaves_the_run_before_it_aside():
    """What was set aside is not this command's."""
    with serving(baseline) as server:
        words = [*RUN, "--subset", "weibo", "--api-url", server.url]
        assert main(words) == 0
        saved = Path("results/m/inference_results_weibo.jsonl").read_bytes()
        server.script = answering(401)
        assert main([*words, "--restart"]) == 3
    kept = [
        path
        for path in Path("results").rglob("inference_results_weibo.jsonl*")
        if path.read_bytes() == saved
    ]
    assert kept
    assert not Path("results/m/run_weibo.json").exists()
