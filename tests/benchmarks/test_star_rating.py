"""The example that ships (`examples/star_rating`), a benchmark in a file of its own, through every
command."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import orjson
import pytest

from harness.benchmarks import registry
from harness.cli import main
from harness.errors import BenchmarkError
from harness.model import Record, RunFacts
from harness.scoring.compared import Figures
from harness.scoring.reports import Value
from harness.scoring.scorer import Scorer
from tests.support import ROOT
from tests.support.before import sheets
from tests.support.embedded import served
from tests.support.plugins import FLOOR, STARS, Commands, having
from tests.support.scripted import completion, serving

TASKS = STARS.parent
DONE = "yelp: 20 of 20 users, synthetic: MAE 1.200 stars, Exact 15.00%"


@pytest.fixture
def harness(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Commands:
    return Commands(tmp_path / "results", capsys)


@pytest.fixture
def floor(harness: Commands) -> Commands:
    """A results folder with a run of the baseline."""
    run(harness)
    return harness


def run(harness: Commands, *words: object, code: int = 0) -> str:
    named = () if "--name" in words else ("--name", "four-stars")
    return harness("run", STARS, "--model", FLOOR, *named, "--tasks-dir", TASKS, *words, code=code)


def other_run(
    harness: Commands, name: str, stars: int, *, broken: str | None = None, tasks: Path = TASKS
) -> None:
    """A run of a model that always gives these stars, and to one user's item no answer."""

    def reply(body: dict[str, Any]) -> tuple[int, bytes]:
        if broken is not None and broken in body["messages"][-1]["content"]:
            return 200, completion("I had rather not say.")
        return 200, completion(orjson.dumps({"profile": "keen", "stars": stars}).decode())

    with serving(reply) as server:
        words = ("--model", name, "--tasks-dir", tasks, "--api-url", server.url)
        harness("run", STARS, *words, "--no-html")


def edited(folder: Path, members: str) -> Path:
    """The example with more members of its class, at the end of the file."""
    file = folder / "stars.py"
    before, after = STARS.read_text().split("\n\ndef _profile")
    file.write_text(f"{before.rstrip()}\n\n{members}\n\n\ndef _profile{after}", encoding="utf-8")
    return file


def cells_of(book: Path) -> list[Any]:
    return [cell for cells in sheets(book).values() for cell in cells]


def test_a_run_has_its_units_its_copy_of_the_file_and_a_page(floor):
    assert DONE in floor.out
    folder = floor.results / "four-stars"
    assert (folder / "benchmark_star_rating.py").read_bytes() == STARS.read_bytes()
    text = floor.text("four-stars", "eval_report_yelp.txt")
    assert (
        re.search(r"MAE +stars +1\.200 +~\[\d\.\d+, \d\.\d+\] +20", text)
        and "Lower is better: MAE." in text
    )
    data = floor.report("four-stars", "yelp")
    assert data["metrics"]["MAE"]["value"] == 1.2 and data["metric_units"]["MAE"]["unit"] == "stars"
    assert data["metrics"]["Exact"]["value"] == 0.15
    page = floor.text("four-stars", "eval_report_yelp.html")
    assert "1.200 stars" in page and "120.00" not in page


def test_run_again_says_that_it_is_complete_and_a_larger_share_goes_on(harness):
    run(harness, "--ratio", "0.25")
    assert "yelp: 5 of 5 users" in harness.out
    run(harness)
    assert "resuming: 5 of 20 users are done" in harness.out and DONE in harness.out
    run(harness)
    assert "yelp: complete" in harness.out


def test_reeval_and_reparse_change_nothing(floor):
    results = floor.results / "four-stars" / "inference_results_yelp.jsonl"
    before, report = results.read_bytes(), floor.report("four-stars", "yelp")
    for words in (
        ("reeval",),
        ("reeval", "--reparse"),
        ("run", STARS, "--reeval", "--model", FLOOR),
    ):
        floor(*words)
        assert "scored again: 20 of 20 users" in floor.out
        assert results.read_bytes() == before
        assert floor.report("four-stars", "yelp")["metrics"] == report["metrics"]


def test_pages_of_one_run_of_all_its_users_and_of_all_runs(floor):
    floor("report", "--name", "four-stars", "--users", "all")
    assert "1.200 stars" in floor.text("four-stars", "eval_report_yelp.html")
    users = floor.text("four-stars", "users_yelp.html")
    assert (
        all(f"synthetic-{number:02}" in users for number in range(1, 21)) and "MAE, stars" in users
    )
    floor("report")
    page = (floor.results / "index.html").read_text()
    assert "MAE, stars" in page and "1.200" in page and "15.00" in page


def test_tables_rank_the_lowest_error_first_and_know_each_unit(floor):
    other_run(floor, "three", 3)
    markdown = floor("stats", "--format", "markdown")
    assert "**MAE, stars (lower is better)**" in markdown and "**Exact, %**" in markdown
    best = min(
        ("four-stars", "three"),
        key=lambda name: floor.report(name, "yelp")["metrics"]["MAE"]["value"],
    )
    value = floor.report(best, "yelp")["metrics"]["MAE"]["value"]
    assert f"| {best} | **{value:.3f}** |" in markdown
    assert "MAE, stars (lower is better)" in floor("stats", "--excel")
    latex = floor("stats", "--format", "latex", "--metric", "mae")
    assert (
        rf"\textbf{{{value:.3f}}}" in latex
        and r"\%" not in latex.partition(r"\begin{table}")[2].partition(r"\par")[0]
    )
    csv = floor("stats", "--format", "csv")
    assert re.search(r"stars,MAE,four-stars,yelp,1.200,stars,[0-9.]+,[0-9.]+,20,20,20,0,yes", csv)
    assert re.search(r"stars,Exact,four-stars,yelp,15.00,%,[0-9.]+,[0-9.]+,", csv)
    data = floor.json("stats", "--json")
    assert data["MAE"][best]["yelp"]["place"] == "best" and data["units"] == {"MAE": "stars"}
    cells = cells_of(floor.results / "metric_excels" / "MAE.xlsx")
    assert 1.2 in cells and 120 not in cells


def test_two_benchmarks_with_a_metric_of_one_name_are_told_apart(floor, tmp_path):
    other = tmp_path / "other.py"
    other.write_text(
        STARS.read_text().replace('name = "stars"', 'name = "scores"').replace('"Exact"', '"Right"')
    )
    floor("run", other, "--model", FLOOR, "--name", "b", "--tasks-dir", TASKS)
    data = floor.json("stats", "--json", "--metric", "MAE")
    told = orjson.dumps(data).decode()
    assert '"four-stars"' in told and '"b"' in told
    shown = floor("stats", "--excel", "--metric", "MAE")
    assert (
        "MAE (scores), stars (lower is better)" in shown
        and "MAE (stars), stars (lower is better)" in shown
    )
    names = sorted(path.name for path in (floor.results / "metric_excels").glob("*MAE*.xlsx"))
    assert len(names) == 2
    assert "they cannot be compared" in floor.refused("compare", "four-stars", "b")


def test_compare_says_who_is_better_by_how_many_stars(floor, tmp_path):
    tasks = tmp_path / "tasks" / "yelp_star_tasks.jsonl"  # of twice the users: 20 are too few
    tasks.parent.mkdir()
    lines = (TASKS / tasks.name).read_text()
    tasks.write_text(lines + lines.replace("synthetic-", "other-"))
    for name, stars in (("one", 1), ("four", 4)):
        other_run(floor, name, stars, tasks=tasks.parent)
    text = " ".join(floor("compare", "one", "four").split())
    assert "four is better than one in MAE by " in text and " stars (95 % " in text
    data = floor.json("compare", "one", "four", "--json")
    assert data["pairs"][0]["benchmark"] == "stars"
    floor("compare", "one", "four", "--out", tmp_path / "c.xlsx", "--html", tmp_path / "c.html")
    assert cells_of(tmp_path / "c.xlsx") and "stars" in (tmp_path / "c.html").read_text()


def test_verify_plays_every_user_again_and_finds_what_was_changed(floor):
    assert "20 of 20 users, complete: sound" in floor("verify")
    assert "note" not in floor.out
    assert "sound lines" in floor("verify", "--without-tasks")
    path = floor.results / "four-stars" / "responses_yelp.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[1:]))
    floor("verify", code=1)
    assert "was made of a missing response" in floor.out


def test_status_sample_and_synth(floor, tmp_path):
    assert floor.json("status", "--json")[0]["state"] == "complete"
    (tmp_path / "yelp_star_tasks.jsonl").write_bytes((TASKS / "yelp_star_tasks.jsonl").read_bytes())
    floor("sample", STARS, "--ratio", "0.2", "--tasks-dir", tmp_path)
    assert len((tmp_path / "yelp_star_tasks_sub20.jsonl").read_bytes().splitlines()) == 4


def test_synth_is_refused_in_one_sentence(harness, tmp_path, capsys):
    assert main(["synth", str(STARS), "--out", str(tmp_path / "new"), "--users", "3"]) == 2
    assert (
        capsys.readouterr().err
        == "harness: stars makes no synthetic tasks: its class has no `synthesise`\n"
    )


SYNTHESISE = "    @classmethod\n    def synthesise(cls, folder, users, seed):\n        "


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("return {'a.jsonl': ['text']}", "expected bytes, got 'text'"),
        ("return {'a.jsonl': (b'%d' % (1 // left) for left in (1, 0))}", "ZeroDivisionError"),
        ("return {'a.jsonl': 3}", "TypeError"),
    ],
)
def test_synthetic_tasks_that_fail_while_they_are_written_leave_no_file(
    harness, tmp_path, capsys, body, words
):
    file = edited(tmp_path, f"{SYNTHESISE}{body}")
    assert main(["synth", str(file), "--out", str(tmp_path / "new"), "--users", "3"]) == 2
    found = capsys.readouterr().err
    assert (
        found.startswith("harness: benchmark stars, synthesise: a.jsonl: ")
        and found.count("\n") == 1
    )
    assert words in found and list((tmp_path / "new").iterdir()) == []


@pytest.mark.parametrize(
    ("made", "words"),
    [
        ("{'../a.jsonl': [b'x']}", "expected a path below the tasks folder, got '../a.jsonl'"),
        ("{3: [b'x']}", "expected a path below the tasks folder, got 3"),
        ("{'a.jsonl': [b'x']}", "yelp_star_tasks.jsonl was not made"),
    ],
)
def test_synthetic_tasks_are_written_below_the_folder_and_nowhere_else(
    harness, tmp_path, capsys, made, words
):
    file = edited(tmp_path, f"{SYNTHESISE}return {made}")
    assert main(["synth", str(file), "--out", str(tmp_path / "new"), "--users", "3"]) == 2
    found = capsys.readouterr().err
    assert found.startswith("harness: benchmark stars, synthesise: ") and found.count("\n") == 1
    assert words in found and not (tmp_path / "a.jsonl").exists()


def test_a_headline_of_secondary_metrics_leaves_the_first_two_to_compare(tmp_path):
    """Secondary metrics are not compared, and a comparison without a primary figure has no
    verdict."""
    values = "def values(self, records):\n    return [[1.0, 1.0, 1.0] for _ in records]"
    scoring = having(
        "scoring", "Means", f'secondary = (Metric("Extra"),)\nheadline = ("Extra",)\n\n{values}'
    )
    file = edited(tmp_path, scoring)
    assert Figures(registry.find(str(file))()).main == ("MAE", "Exact")


def test_outcomes_that_fail_in_a_comparison_are_the_benchmarks_error(tmp_path):
    file = edited(
        tmp_path,
        having("records", "Records", "def outcomes(self, record):\n    assert False, 'none'"),
    )
    figures = Figures(registry.find(str(file))())
    with pytest.raises(
        BenchmarkError, match=r"benchmark stars, outcomes: AssertionError: none \(stars.py, line"
    ):
        figures.outcomes([Record("a", {"user_id": "a", "outcome": "valid"})])


STATISTICS = """def statistics(self, records):
    return [[record["metrics"]["hits"], 0, 0, 0, record["metrics"]["MAE"], 1] for record in records]

def figures(self, totals):
    return (totals[:, [4, 0]].T / totals[:, 5]).T

def sections(self, scored):
    return [] if scored.totals[5] >= 0 else None
"""
OWN_FIGURES = f"""    def measure(self, task, answer):
        hit = answer is not None and answer["stars"] == task.truth
        return {{"hits": int(hit), "seen": "yes", "MAE": 1, "Exact": "unknown"}}

{having("scoring", "Scoring", STATISTICS)}"""


def test_values_that_are_no_metrics_are_shown_as_they_are(harness, tmp_path):
    """Own statistics may be made of any values, on pages too."""
    harness(
        "run",
        edited(tmp_path, OWN_FIGURES),
        "--model",
        FLOOR,
        "--name",
        "four-stars",
        "--tasks-dir",
        TASKS,
    )
    assert not harness.err
    assert "hits 0 · seen yes · MAE 1.000 stars · Exact unknown." in harness.text(
        "four-stars", "eval_report_yelp.html"
    )
    file = edited(tmp_path, OWN_FIGURES.replace('["metrics"]["hits"]', '["metrics"][0]'))
    changed = file.read_text().replace(
        '{"hits": int(hit), "seen": "yes", "MAE": 1, "Exact": "unknown"}', "[int(hit), 1]"
    )
    file.write_text(changed.replace('["metrics"]["MAE"]', '["metrics"][1]'))
    harness("run", file, "--model", FLOOR, "--name", "b", "--tasks-dir", TASKS)
    assert not harness.err and "[0,1]." in harness.text("b", "eval_report_yelp.html")


@pytest.mark.parametrize(
    "first", ["", "        __import__('numpy').stack([[1] for _ in records])\n"]
)
def test_the_figures_of_no_user_are_undefined(tmp_path, first):
    """Whatever the author's own methods would make of nobody."""
    file = edited(tmp_path, OWN_FIGURES.replace("records):\n", f"records):\n    {first}"))
    made = Scorer(registry.find(str(file))(), "yelp")
    nobody = made.score([])
    assert made.running(nobody) == {"MAE": None, "Exact": None}
    report, _ = made.report(nobody, RunFacts("yelp", "m", "m", "own", 20, 20))
    assert report.metrics["MAE"] == Value(None, None, 0) and report.sections == ()


def test_an_error_inside_a_library_names_the_line_of_the_author(harness, tmp_path):
    body = "    def measure(self, task, answer):\n        return __import__('json').loads('{')"
    file = edited(tmp_path, body)
    line = 1 + file.read_text().splitlines().index("        return __import__('json').loads('{')")
    assert f"(stars.py, line {line})" in harness.refused(
        "run", file, "--model", FLOOR, "--name", "four-stars", "--tasks-dir", TASKS
    )


def test_an_invalid_answer_counts_as_the_worst_and_is_asked_for_again_in_english(
    floor,
):
    item = orjson.loads((TASKS / "yelp_star_tasks.jsonl").read_bytes().splitlines()[0])["item"]
    other_run(floor, "shy", 4, broken=f"Next item: {item}")
    data = floor.report("shy", "yelp")
    assert data["diagnostics"]["invalid"]["no_json"] >= 1
    assert data["metrics"]["MAE"]["value"] > 1.2
    bodies = floor.text("shy", "inference_results_yelp.jsonl")
    assert '"outcome":"no_json"' in bodies and '"answer":null' in bodies


def test_an_incomplete_run_says_so_everywhere_with_bounds(harness):
    left = [1, 2]

    def reply(body: dict[str, Any]) -> tuple[int, bytes]:
        if left and left.pop():
            return 400, b'{"error": {"message": "too long", "code": "bad"}}'
        return 200, completion('{"profile": "keen", "stars": 4}')

    with serving(reply) as server:
        words = ("--model", "m", "--tasks-dir", TASKS, "--api-url", server.url)
        harness("run", STARS, *words, code=1)
    data = harness.report("m", "yelp")
    covered = data["coverage"]
    assert not covered["complete"] and covered["failed_users"] == 2 == 20 - covered["scored_users"]
    value, users = data["metrics"]["MAE"]["value"], covered["scored_users"]
    assert data["bounds"]["MAE"] == pytest.approx(
        [value * users / 20, (value * users + 4 * (20 - users)) / 20]
    )
    assert f"INCOMPLETE: {users} of 20 users" in harness.text("m", "eval_report_yelp.txt")
    assert (
        "INCOMPLETE" in harness.text("m", "eval_report_yelp.html") and "(INCOMPLETE)" in harness.out
    )
    assert "INCOMPLETE" in harness("stats") or "*" in harness.out
    harness("report")
    harness("verify")
    harness("reeval", code=1)


@pytest.mark.slow
def test_a_run_that_is_killed_goes_on_to_the_same_bytes(floor):
    from tests.support.endpoint_double.app import Options

    whole = (floor.results / "four-stars" / "inference_results_yelp.jsonl").read_bytes()
    killed = floor.results / "killed"
    with served(Options(latency=0.05, baselines=_own())) as endpoint:
        words = [
            "--model",
            FLOOR,
            "--name",
            "killed",
            "--api-url",
            endpoint.url,
            "--concurrency",
            "2",
            "--no-html",
        ]
        command = [sys.executable, "-m", "harness", "run", str(STARS), *words]
        folders = ["--tasks-dir", str(TASKS), "--results-dir", str(floor.results)]
        process = subprocess.Popen(
            [*command, *folders],
            cwd=ROOT,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=os.environ,
        )
        while process.poll() is None and _lines(killed / "inference_results_yelp.jsonl") < 3:
            pass
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
        assert 3 <= _lines(killed / "inference_results_yelp.jsonl") < 20
        assert "died" in floor("status", "--name", "killed")
        floor("resume", "--name", "killed")
        assert endpoint.stats()["requests"] <= 40 + 2  # those in flight at the kill
    assert (killed / "inference_results_yelp.jsonl").read_bytes() == whole
    floor("verify", "--name", "killed")


def _own() -> dict[str, Any]:
    return {
        f"baseline/{name}": answer for name, answer in registry.find(str(STARS)).baselines.items()
    }


def _lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0
