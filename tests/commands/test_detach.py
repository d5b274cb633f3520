"""`run --detach` and `watch`: a run goes on without its terminal, and can be seen from another."""

from __future__ import annotations

from harness.commands import watch
from harness.defaults import SAMPLE_FOLDER
from tests.support.commands import execute
from tests.support.processes import wait_for

RUN = ("run", "--demo", "--subset", "weibo", "--limit", "5", "--no-html", "--detach")


def test_detached_run_goes_on_and_is_complete(tmp_path, capsys):
    """The command prints the run's name and returns; the run's own output is in a file next to its
    folder."""
    execute(tmp_path, *RUN)
    assert "demo-recency: started as process" in capsys.readouterr().out
    report = tmp_path / "demo-recency/eval_report_weibo.json"
    log = tmp_path / "demo-recency.log"
    wait_for(lambda: report.exists() and "5 of 5 users" in log.read_text())


def test_what_is_missing_is_said_before_anything_is_started(tmp_path, capsys):
    """A command that cannot begin ends as it does without the flag."""
    execute(tmp_path, *RUN, "--model", "m", code=2)
    assert "LLM_API_KEY" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_watch_ends_where_no_run_begins(tmp_path, capsys, monkeypatch):
    """It waits for a run that begins, and then says where it has looked."""
    monkeypatch.setattr(watch, "WAIT_SECONDS", 0.0)
    execute(tmp_path, "watch", code=2)
    assert str(tmp_path) in capsys.readouterr().err


def test_run_that_ends_at_once_is_no_success(tmp_path, capsys):
    """A tasks file that cannot be read is found by the run itself: the command says where it
    stands, and has its exit code."""
    (tmp_path / "weibo_inference_tasks.jsonl").write_text("{broken\n")
    words = [
        "run",
        "--subset",
        "weibo",
        "--model",
        "baseline/recency",
        "--tasks-dir",
        str(tmp_path),
    ]
    results = tmp_path / "results"
    execute(results, *words, "--detach", code=2)
    assert "recency: ended at once, with code 2" in capsys.readouterr().out
    assert "line 1" in (results / "recency.log").read_text()


def test_run_that_goes_on_and_ends_at_once_is_no_success(tmp_path, capsys):
    """Its manifest is there already, and shows nothing of the new process."""
    tasks = tmp_path / "weibo_inference_tasks.jsonl"
    tasks.write_bytes((SAMPLE_FOLDER / tasks.name).read_bytes())
    words = ["run", "--subset", "weibo", "--model", "baseline/recency", "--limit", "2", "--no-html"]
    words += ["--tasks-dir", str(tmp_path)]
    results = tmp_path / "results"
    execute(results, *words)
    tasks.write_text("{broken\n")
    capsys.readouterr()
    execute(results, *words, "--detach", code=2)
    assert "recency: ended at once, with code 2" in capsys.readouterr().out
