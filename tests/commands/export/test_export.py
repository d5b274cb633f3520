"""`export`: rows and logs of saved runs have the numbers of their records, replies and reports."""

from __future__ import annotations

import asyncio
import csv
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import orjson
import pytest

from harness import interface
from harness.cli import main
from harness.commands.export import formats
from harness.interface import load_run
from harness.store import log
from tests.support import ROOT, SHIPPED
from tests.support.scripted import baseline, completion, serving

STARS = ROOT / "examples" / "star_rating" / "star_rating.py"
INSPECT = ROOT / ".bench" / "inspect" / "bin" / "python"
COST = ("requests", "prompt_tokens", "completion_tokens")
Streams = pytest.CaptureFixture[str]


def run(results: Path, *words: str) -> None:
    assert main(["run", *words, "--no-html", "--results-dir", str(results)]) == 0


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of both benchmarks and of a plug-in. The model `m` plays two repeats; in the first,
    whose requests have no seed, its first reply to a step is no JSON."""
    folder = tmp_path_factory.mktemp("made")
    seen = set[str]()

    def stuttering(body: dict[str, Any]) -> tuple[int, bytes]:
        asked = body["messages"][-1]["content"]
        if "seed" in body or any(asked.startswith(one) for one in seen):
            return baseline(body)
        seen.add(asked)
        reply = orjson.loads(completion("再想想。"))
        reply["choices"][0]["message"]["reasoning_content"] = "嗯"
        return 200, orjson.dumps(reply)

    with serving(stuttering) as server:
        words = (*SHIPPED, "--platform", "weibo", "--limit", "4", "--repeats", "2")
        run(folder, "--model", "m", *words, "--api-url", server.url)
    run(
        folder,
        "dailymobility",
        "--model",
        "baseline/commuter",
        "--name",
        "commuter",
        *SHIPPED,
        "--limit",
        "2",
    )
    run(
        folder,
        str(STARS),
        "--model",
        "baseline/four-stars",
        "--name",
        "four-stars",
        "--tasks-dir",
        str(STARS.parent),
    )
    return folder


@pytest.fixture
def results(finished: Path, tmp_path: Path) -> Path:
    """A copy, to spoil."""
    return Path(shutil.copytree(finished, tmp_path / "results"))


def export(results: Path, *words: str, code: int = 0) -> None:
    assert main(["export", *words, "--results-dir", str(results)]) == code


def rows(results: Path, out: Path, *words: str) -> list[dict[str, Any]]:
    """Return what is exported as JSON lines."""
    export(results, *words, "--out", str(out))
    return [orjson.loads(line) for line in out.read_bytes().splitlines()]


def total(found: list[dict[str, Any]], name: str) -> Any:
    return sum(row[name] for row in found)


@pytest.mark.parametrize("name", ["m", "commuter", "four-stars"])
@pytest.mark.parametrize("kind", ["steps", "users", "responses"])
def test_loaded_run_has_the_exported_rows(name, kind, finished, tmp_path):
    """From Python they have the same columns and values, where a loop runs as well."""
    made = load_run(finished / name)

    async def cell() -> list[dict[str, Any]]:
        return list(getattr(made, kind)())

    found = list(getattr(made, kind)())
    assert found == asyncio.run(cell())
    export(finished, name, "--rows", kind, "--out", str(tmp_path / "exported.jsonl"))
    formats.write(tmp_path / "read.jsonl", "jsonl", found)
    assert (tmp_path / "read.jsonl").read_bytes() == (tmp_path / "exported.jsonl").read_bytes()


@pytest.mark.parametrize("name", ["m", "commuter", "four-stars"])
@pytest.mark.parametrize("kind", ["steps", "users"])
def test_tokens_and_seconds_of_rows_add_up_to_those_of_the_run(name, kind, finished, tmp_path):
    """Whether a reply is a step, a whole day, or one of two for a user."""
    made = load_run(finished / name)
    found = rows(finished, tmp_path / "x.jsonl", name, "--rows", kind)
    assert {name: total(found, name) for name in COST} == {
        name: made.report.usage[name] for name in COST
    }
    assert total(found, "seconds") == pytest.approx(
        sum(reply["seconds"] for reply in made.responses()), abs=1e-9
    )
    assert {(row["run"], row["model"]) for row in found} == {
        (name, made.manifest.identity["model"])
    }


def test_step_that_was_asked_twice_has_both_replies(finished, tmp_path):
    """In the first repeat the first reply to every step is no JSON."""
    found = rows(finished, tmp_path / "x.jsonl", "m")
    assert {row["requests"] for row in found if row["repeat"] == 1} == {2}
    assert {row["requests"] for row in found if row["repeat"] == 2} == {1}
    assert {row["outcome"] for row in found} == {"valid"}


@pytest.mark.parametrize(
    ("name", "metric"), [("m", "Recall"), ("m", "F1^NS"), ("four-stars", "MAE")]
)
def test_mean_over_users_is_the_figure_of_the_report(name, metric, finished, tmp_path):
    """A user's values are those that the report is made of; with repeats each is a row."""
    [made] = [load_run(folder) for folder in finished.iterdir() if folder.name == name]
    found = [row[metric] for row in rows(finished, tmp_path / "x.jsonl", name, "--rows", "users")]
    assert sum(found) / len(found) == pytest.approx(made.report.metrics[metric].value)


def test_responses_are_the_lines_of_their_file(finished, tmp_path):
    found = rows(finished, tmp_path / "x.jsonl", "m", "--rows", "responses")
    lines = [line for _, line in log.objects(finished / "m" / "responses_weibo.jsonl")]
    assert [row["text"] for row in found] == [line["completion"]["text"] for line in lines]
    assert {(row["model"], row["response_model"]) for row in found} == {("m", "scripted")}
    assert {row["reasoning"] for row in found} == {"嗯", None}
    assert [(row["user_id"], row["seconds"]) for row in found] == [
        (line["user_id"], line["seconds"]) for line in lines
    ]


def test_csv_has_the_values_of_the_json_lines(finished, tmp_path):
    """Every number to its last digit, runs of several benchmarks in one table, Chinese as it is."""
    lines = rows(finished, tmp_path / "x.jsonl")
    export(finished, "--out", str(tmp_path / "x.csv"))
    with (tmp_path / "x.csv").open(encoding="utf-8", newline="") as file:
        table = list(csv.DictReader(file))
    assert [list(row) for row in table] == [list(row) for row in lines]
    text = [
        {name: "" if value is None else str(value) for name, value in row.items()} for row in lines
    ]
    assert table == text and {row["run"] for row in table} == {"m", "commuter", "four-stars"}


def test_without_tasks_rows_lack_what_their_replies_took(results, tmp_path, capsys):
    """Scores need the records alone; one sentence names the option that gives the rest."""
    nowhere = ("--tasks-dir", str(tmp_path / "nowhere"))
    found = rows(results, tmp_path / "x.jsonl", "m", *nowhere)
    assert {row["seconds"] for row in found} == {None} == {row["requests"] for row in found}
    assert all(row["Recall"] is not None for row in found)
    assert "--tasks-dir" in capsys.readouterr().err
    export(results, "m", "--format", "inspect", *nowhere, code=2)


def test_user_whose_replies_are_damaged_keeps_the_scores(results, tmp_path, capsys):
    """The seconds of that user alone are missing, and a line counts such users."""
    path = results / "m" / "responses_weibo.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    spoilt = orjson.loads(lines[0])
    path.write_bytes(b"".join([lines[0].replace(b'"stop"', b'"halt"'), *lines[1:]]))
    found = rows(results, tmp_path / "x.jsonl", "m", "--rows", "users")
    [without] = [row for row in found if row["seconds"] is None]
    assert (without["user_id"], without["repeat"]) == (spoilt["user_id"], spoilt.get("repeat", 1))
    assert without["Recall"] is not None is not without["prompt_tokens"]
    assert "1 user" in capsys.readouterr().err


def test_code_of_a_foreign_folder_needs_trust(results, tmp_path, monkeypatch):
    """The rows of a plug-in are made by its code."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "another"))
    export(results, "four-stars", code=2)
    assert not list((results / "four-stars").glob("export_*"))
    export(results, "four-stars", "--trust")
    assert (results / "four-stars" / "export_steps_yelp.csv").is_file()


# Inspect


def log_of(path: Path) -> tuple[dict[str, Any], dict[str, Any], list[dict[str, Any]]]:
    with zipfile.ZipFile(path) as archive:
        data = {name: orjson.loads(archive.read(name)) for name in archive.namelist()}
    samples = {name: sample for name, sample in data.items() if name.startswith("samples/")}
    return data["header.json"], samples, data["summaries.json"]


def test_log_has_a_sample_for_each_repeat_with_its_conversation(finished, tmp_path):
    """Every request and reply in order, with the scores of user and step; figures are the
    report's."""
    export(finished, "m", "--out", str(tmp_path / "x.eval"))
    header, samples, summaries = log_of(tmp_path / "x.eval")
    report = load_run(finished / "m").report
    assert len(samples) == len(summaries) == 8 and header["status"] == "success"
    found = {
        score["name"]: score["metrics"]["value"]["value"] for score in header["results"]["scores"]
    }
    assert found == {name: of.value for name, of in report.values.items() if of.value is not None}
    tokens = header["stats"]["model_usage"]["m"]
    assert (tokens["input_tokens"], tokens["output_tokens"]) == tuple(
        report.usage[name] for name in COST[1:]
    )
    for name, sample in samples.items():
        assert name == f"samples/{sample['id']}_epoch_{sample['epoch']}.json"
        roles = [message["role"] for message in sample["messages"] if message["role"] != "system"]
        assert roles == ["user", "assistant"] * (len(roles) // 2)
        about = [message.get("metadata", {}) for message in sample["messages"]]
        ends = [own["Recall"] for own in about if "Recall" in own]
        assert ends == [step["Recall"] for step in sample["metadata"]["steps"]]


@pytest.mark.slow
@pytest.mark.skipif(not INSPECT.exists(), reason="no inspect_ai: make .bench/inspect/made")
@pytest.mark.parametrize("name", ["m", "commuter", "four-stars"])
def test_reader_of_inspect_finds_the_numbers(name, finished, tmp_path):
    """inspect_ai validates the whole log, and reads figures, tokens and samples as they are in the
    run."""
    path = tmp_path / "x.eval"
    export(finished, name, "--out", str(path))
    script = (
        "import sys, json; from inspect_ai.log import read_eval_log, read_eval_log_sample_summaries"
        " as summaries\nlog = read_eval_log(sys.argv[1])\nfigures = {one.name:"
        " one.metrics['value'].value for one in log.results.scores}\nusage ="
        " [list(one.model_usage.values())[0] for one in log.samples]\ntokens ="
        " [sum(one.input_tokens for one in usage), sum(one.output_tokens for one in usage)]\ntexts"
        " = [message.text for one in log.samples for message in one.messages if message.role =="
        " 'assistant']\nsteps = [step for one in log.samples for step in"
        " one.metadata['steps']]\nknown = len(summaries(sys.argv[1])) == len(log.samples) =="
        " log.results.completed_samples\nprint(json.dumps([log.status, known, figures, tokens,"
        " sorted(texts), steps]))\n"
    )
    done = subprocess.run(
        [INSPECT, "-c", script, path], capture_output=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr.decode()
    status, known, figures, tokens, texts, steps = orjson.loads(done.stdout)
    [made] = [load_run(folder) for folder in finished.iterdir() if folder.name == name]
    assert (status, known) == ("success", True)
    assert figures == {
        name: of.value for name, of in made.report.values.items() if of.value is not None
    }
    assert tokens == [made.report.usage[name] for name in COST[1:]]
    assert texts == sorted(reply["text"] for reply in made.responses())
    assert scores(steps) == scores(made.steps())


def scores(steps: Iterable[dict[str, Any]]) -> list[bytes]:
    """Return rows without what their replies took, in an order of their own."""
    left_out = {"run", "model", "subset", "repeat", "seconds", *COST}
    plain = (
        {name: value for name, value in step.items() if name not in left_out} for step in steps
    )
    return sorted(orjson.dumps(step, option=orjson.OPT_SORT_KEYS) for step in plain)


# Other libraries


@pytest.mark.slow
@pytest.mark.parametrize("library", ["pandas", "polars"])
@pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet"])
@pytest.mark.parametrize("name", ["m", "commuter", "four-stars"])
def test_frames_have_the_numbers_of_the_rows(name, library, ending, finished, tmp_path):
    """Every column that has numbers is a column of numbers, with the very same ones."""
    frames, _ = pytest.importorskip(library), pytest.importorskip("pyarrow")
    lines = rows(finished, tmp_path / "rows.jsonl", name)
    path = tmp_path / f"x.{ending}"
    export(finished, name, "--out", str(path))
    if library == "polars":
        read = {
            "csv": frames.read_csv,
            "jsonl": frames.read_ndjson,
            "parquet": frames.read_parquet,
        }[ending]
        found = read(path).to_dicts()
    else:
        more = {"lines": True, "precise_float": True} if ending == "jsonl" else {}
        read = {"csv": frames.read_csv, "jsonl": frames.read_json, "parquet": frames.read_parquet}[
            ending
        ]
        table = read(path, **more)
        found = table.astype(object).where(table.notna(), None).to_dict("records")
    assert len(found) == len(lines)
    assert [list(row) for row in found] == [list(row) for row in lines]
    for row, line in zip(found, lines, strict=True):
        assert {k: v for k, v in row.items() if v is not None} == {
            k: v for k, v in line.items() if v is not None
        }


@pytest.mark.slow
@pytest.mark.parametrize("library", ["pandas", "polars"])
@pytest.mark.parametrize("kind", ["steps", "users", "responses"])
def test_frame_has_the_rows(kind, library, finished, monkeypatch):
    """Of either library, whichever is installed; a column may begin with missing values."""
    pytest.importorskip(library)
    monkeypatch.setattr(interface, "find_spec", lambda name: name == library)
    made = load_run(finished / "m")
    table = made.frame(kind)
    assert type(table).__module__.partition(".")[0] == library
    assert table["seconds"].to_list() == [row["seconds"] for row in getattr(made, kind)()]


@pytest.mark.slow
def test_excel_sheets_are_read_as_numbers(finished, tmp_path):
    """No note is among the rows of a sheet, so that its columns keep their type."""
    frames, _ = pytest.importorskip("pandas"), pytest.importorskip("openpyxl")
    assert main(["stats", "--excel", "--results-dir", str(finished), "--out", str(tmp_path)]) == 0
    table = frames.read_excel(tmp_path / "Recall.xlsx")
    report = load_run(finished / "m").report
    assert table["run"].tolist() == ["m", "chance"] and table["weibo"].dtype.kind == "f"
    assert table["weibo"][0] == pytest.approx(
        100 * (report.metrics["Recall"].value or 0), abs=0.005
    )
    assert {"note", "sheets"} == {*frames.read_excel(tmp_path / "Recall.xlsx", sheet_name="notes")}


# Formats


def written(path: Path, *rows: dict[str, Any]) -> list[Any]:
    assert formats.write(path, path.suffix[1:], rows) == len(rows)
    return [orjson.loads(line) for line in path.read_bytes().splitlines()]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([1, 2.5], [1.0, 2.5]),
        ([True, None], [True, None]),
        ([1, "甲"], ["1", "甲"]),
        ([True, 1], ["true", "1"]),
        ([[1, "二"], None], ['[1,"二"]', None]),
        ([2**63, 1], [float(2**63), 1.0]),
        ([None, None], [None, None]),
        ([float("nan"), 1.5], [None, 1.5]),
    ],
)
def test_column_has_one_type(values, expected, tmp_path):
    """Whole numbers become fractions among fractions, and text among text."""
    found = [row["x"] for row in written(tmp_path / "x.jsonl", *({"x": value} for value in values))]
    assert found == expected and [type(one) for one in found] == [type(one) for one in expected]


def test_csv_holds_no_formula_and_no_broken_line(tmp_path):
    """As in the tables of `stats`; negative numbers stay numbers."""
    formats.write(
        tmp_path / "x.csv", "csv", [{"=a": "=1+1", "b": -1.5, "c": "甲\r\n乙", "d": True}]
    )
    assert (tmp_path / "x.csv").read_text() == "'=a,b,c,d\n'=1+1,-1.5,甲\\r\\n乙,true\n"


# Where it is written


@pytest.mark.parametrize(
    "words",
    [
        ("nobody",),
        ("--out", "x.eval", "--format", "csv"),
        ("--format", "inspect", "--rows", "users"),
        ("--out", "x.eval"),
        ("--platform", "zhihu"),
    ],
)
def test_what_cannot_be_meant_is_refused(
    words,
    finished,
    tmp_path,
    monkeypatch,
    capsys,
):
    """With one sentence, and nothing is written."""
    monkeypatch.chdir(tmp_path)
    export(finished, *words, code=2)
    assert len(capsys.readouterr().err.splitlines()) == 1 and not list(tmp_path.iterdir())


def test_json_lines_are_written_over_nothing(finished, results):
    """Records, tasks and replies have that ending, too."""
    path = results / "m" / "inference_results_weibo.jsonl"
    before = path.read_bytes()
    export(results, "--out", str(path), code=2)
    assert path.read_bytes() == before


def test_nothing_is_written_through_a_link(results, tmp_path):
    """A run's folder from somebody else may be one."""
    (results / "m").rename(tmp_path / "outside")
    (results / "m").symlink_to(tmp_path / "outside")
    export(results, "m", code=4)
    assert not list((tmp_path / "outside").glob("export_*"))


def test_parquet_without_its_package_is_one_sentence(finished, tmp_path, monkeypatch, capsys):
    """It says what to install."""
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    export(finished, "--out", str(tmp_path / "x.parquet"), code=2)
    assert f"{sys.executable} -m pip install 'behavior-harness[export]'" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_unfinished_run_is_exported_as_far_as_it_is(results, tmp_path):
    """A run that goes on, or died, has the rows of the users that are done."""
    path = results / "m" / "inference_results_weibo.jsonl"
    path.write_bytes(path.read_bytes().splitlines(keepends=True)[0] + b'{"user_id":"torn')
    [(_, record)] = log.objects(path)
    assert {row["user_id"] for row in rows(results, tmp_path / "x.jsonl", "m")} == {
        record["user_id"]
    }
