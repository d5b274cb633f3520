"""Ranks and intervals of averages, in `stats` and on the page over all runs."""

from __future__ import annotations

import csv
import io
import shutil
from contextlib import redirect_stdout
from pathlib import Path
from statistics import fmean

import numpy as np
import orjson
import pytest

from harness.benchmarks.streamprofile.benchmark import StreamProfile
from harness.benchmarks.streamprofile.synth import generate
from harness.cli import main
from harness.commands.stats.standings import AVERAGE
from harness.model import JSON
from harness.scoring.intervals import interval, moments
from harness.store.log import decode_line
from tests.commands.stats.test_stats import Page
from tests.support.commands import execute

pytestmark = pytest.mark.slow

PLATFORMS = tuple(StreamProfile.subsets)
USERS = 48
PROMPT = "[user]\nPosts: ${posts}\nPool: ${pool}\nName ${asked} of them.\n"
RUNS = {
    "recency": ("baseline/recency", ()),
    "random": ("baseline/random", ()),
    "cooler": ("baseline/random", ("--temperature", "0.5")),
    "asked": ("baseline/random", ("--prompt", "asked.txt")),
}
"""`random` and `cooler` answer the same; `asked` has another prompt."""
Told = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def board(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A results folder with these runs on all platforms. Nobody changes it."""
    root = tmp_path_factory.mktemp("board")
    (root / "tasks").mkdir()
    for platform, file in StreamProfile.subsets.items():
        (root / "tasks" / file).write_bytes(b"".join(generate(platform, USERS, 5, 2.0)))
    (root / "asked.txt").write_text(PROMPT)
    for name, (model, words) in RUNS.items():
        where = [
            "--tasks-dir",
            str(root / "tasks"),
            "--results-dir",
            str(root / "results"),
            "--name",
            name,
            "--no-html",
        ]
        named = [str(root / word) if word.endswith(".txt") else word for word in words]
        assert main(["run", "--model", model, "--name", name, *named, *where]) == 0
    return root / "results"


@pytest.fixture(scope="module")
def figures(board: Path) -> JSON:
    """What `stats --json` prints of it."""
    with redirect_stdout(io.StringIO()) as printed:
        execute(board, "stats", "--json")
    found: JSON = orjson.loads(printed.getvalue())
    return found


@pytest.fixture
def own(board: Path, tmp_path: Path) -> Path:
    """A copy of the results to spoil."""
    return Path(shutil.copytree(board, tmp_path / "results"))


def shown(results: Path, capsys: Told, *words: str) -> str:
    capsys.readouterr()
    execute(results, "stats", *words)
    return capsys.readouterr().out


def as_json(results: Path, capsys: Told, *words: str) -> JSON:
    found: JSON = orjson.loads(shown(results, capsys, "--json", *words))
    return found


def values(results: Path, run: str, platform: str, metric: str = "Recall") -> list[float]:
    """Each user's mean over the steps in the records of a run."""
    lines = (results / run / f"inference_results_{platform}.jsonl").read_bytes().splitlines()
    of = ([step["metrics"][metric] for step in decode_line(line)["steps"]] for line in lines)
    return [
        fmean(defined) for each in of if (defined := [value for value in each if value is not None])
    ]


def test_ranks_are_places_and_say_what_is_separable_from_the_best(figures):
    """Recency is better than random in Recall; two runs that answer alike share a place; another
    prompt has none."""
    recall = figures["Recall"]
    for column in (AVERAGE, "weibo"):
        assert [recall[run][column]["rank"] for run in RUNS] == [1, 2, 2, None]
        assert [recall[run][column]["separable"] for run in RUNS] == [False, True, True, None]


def test_what_is_separable_from_the_best_is_what_compare_shows_to_be_worse(board, capsys):
    """Of two runs both have one test of Recall alone: with the metric as the only primary one, the
    same verdict."""
    figure = as_json(board, capsys, "recency", "cooler", "--metric", "F1^NS")["F1^NS"]
    for subset in PLATFORMS:
        best, other = sorted(figure, key=lambda run: figure[run][subset]["rank"])
        capsys.readouterr()
        execute(board, "compare", best, other, "--platform", subset, "--json")
        entries = orjson.loads(capsys.readouterr().out)["pairs"][0]["figures"]
        p = next(entry["p"] for entry in entries if entry["metric"] == "F1^NS")
        assert figure[other][subset]["separable"] == (p < 0.05)


def test_average_has_the_interval_of_platforms_that_weigh_the_same(board, figures):
    """That of the users' own values, which the records have; also in an average that no run is
    ranked by."""
    for metric in ("Recall", "Error_Peer"):
        of = [values(board, "random", platform, metric) for platform in PLATFORMS]
        average = figures[metric]["random"][AVERAGE]
        assert average["value"] == pytest.approx(fmean(map(fmean, of)))
        assert average["ci95"] == pytest.approx(
            interval(fmean(map(fmean, of)), [moments(np.array(each)) for each in of])
        )


@pytest.mark.slow
def test_every_form_shows_ranks(board, capsys, tmp_path):
    """Text, Markdown, LaTeX and CSV as Excel."""
    text = shown(board, capsys, "--excel", "--out", str(tmp_path))
    assert "rank" in text
    assert "| 2 |" in shown(board, capsys, "--format", "markdown")
    assert "& 2 \\\\" in shown(board, capsys, "--format", "latex", "--intervals")
    lines = csv.DictReader(
        io.StringIO(shown(board, capsys, "--format", "csv", "--metric", "Recall"))
    )
    assert {(line["rank"], line["separable"]) for line in lines if line["run"] == "random"} == {
        ("2", "yes")
    }
    page = Page((tmp_path / "Recall.xlsx").read_bytes())
    assert page.row(1)[-2] == "rank"
    assert {page.row(number)[0]: page.row(number)[7] for number in range(2, 6)}["cooler"] == "2"


def test_runs_of_one_platform_are_ranked_there(own, capsys):
    """Where no run has an average, the column of ranks is that of the only platform."""
    for path in own.glob("*/eval_report_*.json"):
        if path.stem != "eval_report_weibo":
            path.unlink()
    head, _, *lines = shown(own, capsys, "--metric", "Recall").splitlines()[1:7]
    assert head.split() == ["run", "weibo", "rank"]
    assert {line.split()[0]: line.split()[-1] for line in lines}["recency"] == "1"


@pytest.mark.parametrize("spoiled", ["records", "report"])
def test_run_without_the_records_of_its_report_keeps_its_figures_and_has_no_rank(
    spoiled, own, capsys
):
    """The others are ranked without it; one sentence names it once."""
    for platform in PLATFORMS:
        path = own / "cooler" / f"inference_results_{platform}.jsonl"
        path.unlink() if spoiled == "records" else path.write_bytes(
            path.read_bytes().splitlines(True)[0]
        )
    recall = as_json(own, capsys)["Recall"]
    assert (
        recall["cooler"][AVERAGE]["rank"] is None
        and recall["cooler"][AVERAGE]["ranked_value"] is not None
    )
    assert recall["cooler"][AVERAGE]["ci95"] is None
    assert recall["recency"][AVERAGE]["rank"] == 1 and recall["random"][AVERAGE]["rank"] == 2
    assert shown(own, capsys).count("Without ranks and intervals of averages: cooler (") == 1


def test_runs_of_the_same_subsets_have_ranks_in_their_mean(own, capsys):
    """Where no run has all subsets: among those that have exactly the same, in every form."""
    for run, kept in (("recency", 2), ("random", 2), ("cooler", 3), ("asked", 2)):
        for platform in PLATFORMS[kept:]:
            for path in (own / run).glob(f"*_{platform}.*"):
                path.unlink()
    found = as_json(own, capsys)
    ranks = found["ranks"]["Recall"]
    means = {
        run: fmean(found["Recall"][run][name]["value"] for name in PLATFORMS[:2]) for run in ranks
    }
    assert {run: of["rank"] for run, of in ranks.items()} == {"recency": 1, "random": 2}
    assert all(of["subsets"] == list(PLATFORMS[:2]) for of in ranks.values())
    assert all(found["Recall"][run][AVERAGE] is None for run in ranks)
    assert {run: of["value"] for run, of in ranks.items()} == pytest.approx(means, abs=0.05)
    said = shown(own, capsys, "--metric", "Recall")
    lines = {line.split()[0]: line.split() for line in said.splitlines() if line.strip()}
    assert [lines[run][-1] for run in ("run", "recency", "random")] == ["rank", "1", "2"]
    assert len(lines["cooler"]) == 4 and f"recency on {', '.join(PLATFORMS[:2])}" in said


def test_ranks_of_whole_runs_need_no_further_word(figures):
    assert "ranks" not in figures
