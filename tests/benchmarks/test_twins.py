"""The example of people who answer a survey again (`examples/twins`): its figures of sums, and the
data set's published form."""

from __future__ import annotations

import csv
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest

from harness.cli import main
from tests.support import ROOT
from tests.support.hub import HubServer, serving_hub
from tests.support.plugins import Commands
from tests.support.scripted import completion, serving

FOLDER = ROOT / "examples" / "twins"
TWINS = FOLDER / "twins.py"
NAME = "wave_persona_chunk_001"

MATRIX = {"QuestionID": "QID1", "QuestionType": "Matrix", "QuestionText": "Would you support"}
MATRIX |= {"Rows": ["a tax?", "a road?"], "Columns": ["no", "unsure", "yes"]}
CHOICE = {"QuestionID": "QID2", "QuestionType": "MC", "QuestionText": "Buy\nit?"}
CHOICE |= {"Options": ["Yes", "No"], "Settings": {"Selector": "SAVR"}}
UNASKED = [
    {"QuestionID": "QID3", "QuestionType": "DB", "QuestionText": "Instructions"},
    {"QuestionID": "QID4", "QuestionType": "TE", "Answers": {"Text": "12"}},
    {"QuestionID": "QID5", "QuestionType": "Slider", "Answers": {"Values": ["55"]}},
]


@pytest.fixture
def harness(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Commands:
    return Commands(tmp_path / "results", capsys)


def wave(opinions: list[int | None], buys: int | None) -> str:
    """Return a column of a published row: blocks of questions with answers, as JSON."""
    matrix = {**MATRIX, "Answers": {"SelectedByPosition": opinions}}
    choice = {**CHOICE, "Answers": {} if buys is None else {"SelectedByPosition": buys}}
    blocks = [{"BlockName": "One", "Questions": [matrix, *UNASKED]}]
    return orjson.dumps([*blocks, {"BlockName": "Two", "Questions": [choice]}]).decode()


PEOPLE: list[dict[str, Any]] = [
    {"pid": 7, "wave4_Q_wave1_3_A": wave([1, 3], 1), "wave4_Q_wave4_A": wave([1, 2], 1)},
    {"pid": 8, "wave4_Q_wave1_3_A": wave([2, 2], 2), "wave4_Q_wave4_A": wave([3, 2], 1)},
    {"pid": 9, "wave4_Q_wave1_3_A": wave([3, 1], None), "wave4_Q_wave4_A": wave([3, 1], 2)},
]


def write_rows(folder: Path) -> Path:
    """Write the people as JSON lines, in the form of the published rows."""
    folder.mkdir()
    rows = [{**person, "wave1_3_persona_text": f"I am {person['pid']}"} for person in PEOPLE]
    lines = b"".join(orjson.dumps(row) + b"\n" for row in rows)
    (folder / f"{NAME}.jsonl").write_bytes(lines)
    return folder


def played(harness: Commands, tasks: Path, reply: str) -> list[str]:
    """Play a model that gives this reply to all, but none to person 8; return the prompts."""
    prompts = []

    def answer(body: dict[str, Any]) -> tuple[int, bytes]:
        prompt = body["messages"][-1]["content"]
        prompts.append(prompt)
        return 200, completion("I would rather not." if "I am 8" in prompt else reply)

    with serving(answer) as server:
        harness("run", TWINS, "--model", "m", "--tasks-dir", tasks, "--api-url", server.url)
    return prompts


def figures(harness: Commands, run: str = "m") -> dict[str, float]:
    report = harness.report(run, "wave4")
    values = report["metrics"] | report["secondary"]
    return {name: figure["value"] for name, figure in values.items()}


def test_published_rows_are_asked_without_their_answers_and_what_has_no_choices(harness, tmp_path):
    prompts = played(harness, write_rows(tmp_path / "rows"), '{"Q1": 1, "Q2": 3, "Q3": 2}')
    expected = (
        "Q1. Would you support a tax?\n  1 = no\n  2 = unsure\n  3 = yes\n"
        "Q2. Would you support a road?\n  1 = no\n  2 = unsure\n  3 = yes\n"
        "Q3. Buy it?\n  1 = Yes\n  2 = No\n"
    )
    first = next(prompt for prompt in prompts if "I am 7" in prompt)
    assert expected in first and "Instructions" not in first and "Selected" not in first


def test_figures_are_ratios_of_sums_over_questions_with_both_answers(harness, tmp_path):
    """Eight questions have both answers. Person 8 has no usable reply: wrong in each, and not in
    the correlation, which is over the places on a scale of three choices."""
    played(harness, write_rows(tmp_path / "rows"), '{"Q1": 1, "Q2": 3, "Q3": 2}')
    found = figures(harness)
    assert found["Accuracy"] == 1 / 8 and found["Retest"] == 5 / 8
    assert found["Relative"] == 1 / 5
    expected = np.corrcoef([1, 3, 1, 3], [1, 2, 3, 1])[0, 1]
    assert found["Correlation"] == pytest.approx(expected)
    chance = harness.report("m", "wave4")["chance"]
    assert chance["Accuracy"] == pytest.approx((6 / 3 + 2 / 2) / 8)
    assert chance["Relative"] == pytest.approx((6 / 3 + 2 / 2) / 5)


def test_parquet_csv_and_json_rows_have_the_same_figures(harness, tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    text = (FOLDER / f"{NAME}.csv").read_text(encoding="utf-8")
    rows = list(csv.DictReader(StringIO(text)))
    for name in ("parquet", "jsonl"):
        (tmp_path / name).mkdir()
    table = pyarrow.Table.from_pylist([{**row, "pid": int(row["pid"])} for row in rows])
    parquet.write_table(table, tmp_path / "parquet" / f"{NAME}.parquet")
    lines = b"".join(orjson.dumps(row) + b"\n" for row in rows)
    (tmp_path / "jsonl" / f"{NAME}.jsonl").write_bytes(lines)
    found = []
    for folder in (FOLDER, tmp_path / "parquet", tmp_path / "jsonl"):
        words = ("--tasks-dir", folder, "--name", folder.name)
        harness("run", TWINS, "--model", "baseline/frequent", *words)
        found.append(figures(harness, folder.name))
    assert found[0] == found[1] == found[2]


def test_synth_writes_the_tasks_that_ship(harness, tmp_path):
    """A CSV file stands in for the Parquet file that the class names, and is not replaced."""
    words = ["synth", str(TWINS), "--users", "60", "--out", str(tmp_path / "new")]
    assert main(words) == 0
    made = tmp_path / "new" / f"{NAME}.csv"
    assert made.read_bytes() == (FOLDER / f"{NAME}.csv").read_bytes()
    assert main(words) == 2


def test_chance_levels_are_what_drawn_answers_have(harness, tmp_path):
    """Of 600 people; a model that knows the earlier answers is better."""
    assert main(["synth", str(TWINS), "--users", "600", "--out", str(tmp_path / "new")]) == 0
    for baseline in ("drawn", "frequent"):
        words = ("--model", f"baseline/{baseline}", "--tasks-dir", tmp_path / "new")
        harness("run", TWINS, *words, "--name", baseline)
    chance = harness.report("drawn", "wave4")["chance"]
    drawn, frequent = figures(harness, "drawn"), figures(harness, "frequent")
    for name, level in chance.items():
        assert drawn[name] == pytest.approx(level, abs=0.05)
        assert frequent[name] > level + 0.1


def test_fetch_finds_the_published_file(tmp_path, monkeypatch):
    data = (FOLDER / f"{NAME}.csv").read_bytes()
    server = HubServer(repository="LLM-Digital-Twin/Twin-2K-500")
    server.commit({f"wave_split/chunks/{NAME}.parquet": data})
    with serving_hub(server) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        assert main(["fetch", str(TWINS), "--tasks-dir", str(tmp_path)]) == 0
    assert (tmp_path / f"{NAME}.parquet").read_bytes() == data
