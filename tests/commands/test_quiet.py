"""`--quiet` and `--json`: what is printed of a run by those that want little, and by programs."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import orjson

from harness import load_run, run
from harness.cli import main
from tests.support.commands import execute
from tests.support.scripted import UNTIL_STOPPED, baseline, busy, serving

DEMO = ("run", "--demo", "--subset", "weibo", "--limit", "3")


def test_quiet_run_prints_one_line(tmp_path, capsys):
    """Neither progress nor notices nor pages; the settings file can say so, too."""
    execute(tmp_path, *DEMO, "--quiet")
    printed = capsys.readouterr()
    assert printed.out.count("\n") == 1 and "3 of 3 users" in printed.out
    assert printed.err == ""


def test_quiet_run_of_two_models_prints_a_line_for_each(tmp_path, capsys):
    """Each line begins with the run's name."""
    models = ("--model", "baseline/recency", "--model", "baseline/random")
    execute(tmp_path, *DEMO, *models, "--quiet")
    lines = capsys.readouterr().out.splitlines()
    assert sorted(line.partition(",")[0] for line in lines) == ["demo-random", "demo-recency"]


def test_figures_of_several_runs_are_printed_once(tmp_path, capsys):
    """In the table at the end, also of runs that were complete before."""
    models = ("--model", "baseline/recency", "--model", "baseline/random")
    where = ("--no-html", "--results-dir", str(tmp_path))
    for _ in range(2):
        assert main([*DEMO, *models, *where]) == 0
        printed = capsys.readouterr().out
        head, *rows = printed[printed.index("run  ") :].splitlines()
        assert head.split()[-4:] == ["Recall,", "%", "F1^NS,", "%"]
        assert [row.split()[0] for row in rows[:2]] == ["demo-recency", "demo-random"]
        assert all(row.split()[1:4] == ["weibo", "complete", "3/3"] for row in rows[:2])
        reports = [line for line in printed.splitlines() if "report: " in line]
        assert len(reports) == 2 and not any("%" in line for line in reports)


def test_each_line_of_a_log_has_the_whole_name_of_its_run(tmp_path, capsys):
    """Logs are searched by name; there is no terminal whose width would break it."""
    name = "a-model-with-a-long-name-of-its-own-70b-instruct"
    models = ("--model", f"vendor/{name}", "--model", "m", "--subset", "zhihu", "--no-html")
    with serving(baseline) as server:
        words = (*DEMO, *models, "--api-url", server.url, "--results-dir", str(tmp_path))
        assert main(words) == 0
    lines = capsys.readouterr().out.splitlines()
    for subset in ("weibo", "zhihu"):
        [row] = [line for line in lines if line.split()[:2] == [f"demo-{name}", subset]]
        assert row.split()[2:4] == ["complete", "3/3"]


def test_quiet_run_that_stops_says_why_and_how_to_go_on(tmp_path, capsys):
    """Errors are printed whatever is asked for."""
    replies = iter(range(2))

    def two_replies(body: dict[str, object]) -> tuple[int, bytes]:
        return baseline(body) if next(replies, None) is not None else busy(body)

    with serving(two_replies) as server:
        words = ("--model", "m", "--api-url", server.url, "--concurrency", "1", *UNTIL_STOPPED)
        assert main([*DEMO, *words, "--quiet", "--results-dir", str(tmp_path)]) != 0
    printed = capsys.readouterr().out
    assert "stopped: " in printed and "resume with: " in printed


def test_json_of_a_run_is_all_that_is_printed(tmp_path, capsys):
    """State, users and figures of each run, also of one that was complete before."""
    for _ in range(2):
        execute(tmp_path, *DEMO, "--json")
        [made] = orjson.loads(capsys.readouterr().out)
        assert (made["name"], made["subset"], made["state"]) == (
            "demo-recency",
            "weibo",
            "complete",
        )
        assert (made["users"], made["done"], made["failed"]) == (3, 3, 0)
        report = orjson.loads(Path(made["report"]).read_bytes())
        assert made["metrics"]["Recall"] == report["metrics"]["Recall"]


def test_json_and_python_have_the_figures_that_rank(tmp_path, capsys):
    """By the names that `stats --json` has: answers against the rules win only those as given."""

    def too_many(body: dict[str, object]) -> tuple[int, bytes]:
        status, reply = baseline(body)
        data = orjson.loads(reply)
        answered = orjson.loads(data["choices"][0]["message"]["content"])
        asked = str(body["messages"]).partition("候选标签")[2].partition("[")[2].partition("]")[0]
        answered["predicted_tags"] = [tag.strip(" \"'\\n") for tag in asked.split(",")]
        data["choices"][0]["message"]["content"] = orjson.dumps(answered).decode()
        return status, orjson.dumps(data)

    where = ("--results-dir", str(tmp_path))
    with serving(too_many) as server:
        assert main([*DEMO, "--model", "m", "--api-url", server.url, "--json", *where]) == 0
    [made] = orjson.loads(capsys.readouterr().out)
    assert main(["stats", "--json", "--metric", "Recall", *where]) == 0
    row = orjson.loads(capsys.readouterr().out)["Recall"]["demo-m"]["weibo"]
    assert row["ranked_by"] == "Recall (cut)" and row["ranked_value"] < row["value"]
    metrics = load_run(tmp_path / "demo-m").report.metrics
    for name, value in (("Recall", row["value"]), ("Recall (cut)", row["ranked_value"])):
        assert made["metrics"][name]["value"] == metrics[name].value == value
    assert list(made["metrics"]).index("Recall (cut)") == list(metrics).index("Recall") + 1


def test_progress_in_python_replaces_all_that_is_printed(tmp_path, capsys):
    """A caller that shows snapshots itself gets nothing else."""
    seen = []
    run(
        model="baseline/recency",
        demo=True,
        subset="weibo",
        limit=3,
        results_dir=tmp_path,
        progress=seen.append,
    )
    assert seen and capsys.readouterr() == ("", "")


def test_busy_event_loop_is_said_once_whichever_run_noticed(tmp_path, capsys, monkeypatch):
    """One that ended early may have had too little work to notice."""
    noticed = iter([None, "the event loop was busy", "the event loop was busy"])
    usage = SimpleNamespace(bottleneck=lambda _took: next(noticed))
    monkeypatch.setattr("harness.commands.launch.usage", usage)
    names = ("recency", "random", "frequency")
    models = [word for name in names for word in ("--model", f"baseline/{name}")]
    execute(tmp_path, *DEMO, *models, "--no-html")
    assert capsys.readouterr().out.count("the event loop was busy") == 1
