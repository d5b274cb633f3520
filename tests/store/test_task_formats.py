"""Tasks as CSV, Parquet, JSON and JSON lines, plain and compressed: the same users, the same
mistakes."""

from __future__ import annotations

import csv
import gzip
from pathlib import Path
from typing import Any

import orjson
import pytest

from harness.cli import main

BENCHMARK = """
from harness import Benchmark, Metric, Task


class Choice(Benchmark):
    name = "choice"
    subsets = {"all": "people.jsonl"}
    metrics = (Metric("Accuracy"),)
    baselines = {"yes": lambda messages, seed: '{"answer": "yes"}'}

    def parse(self, line, subset):
        if line["wanted"] not in ("yes", "no"):
            raise ValueError("expected yes or no")
        return Task(str(line["user_id"]), given={"name": line["name"]}, truth=line["wanted"])

    async def play(self, given, chat):
        return (await chat.json(f"Does {given['name']} agree?"))["answer"]

    def measure(self, task, answer):
        return {"Accuracy": float(answer == task.truth)}
"""
PEOPLE = [
    {"user_id": "007", "name": "王小明, \n的儿子", "wanted": "yes"},
    {"user_id": "b", "name": '"quoted"', "wanted": "no"},
    {"user_id": "c", "name": "", "wanted": "yes"},
]


def write(path: Path, people: list[dict[str, Any]]) -> None:
    """Write people in the format that the endings of a path name."""
    is_compressed = path.suffix == ".gz"
    plain = path.with_suffix("") if is_compressed else path
    if plain.suffix == ".csv":
        with plain.open("w", encoding="utf-8-sig", newline="") as file:
            writer = csv.DictWriter(file, list(people[0]))
            writer.writeheader()
            writer.writerows(people)
    elif plain.suffix == ".parquet":
        arrow = pytest.importorskip("pyarrow")
        parquet = pytest.importorskip("pyarrow.parquet")
        parquet.write_table(arrow.Table.from_pylist(people), plain)
    elif plain.suffix == ".json":
        plain.write_bytes(orjson.dumps(people))
    else:
        plain.write_bytes(b"".join(orjson.dumps(person) + b"\n" for person in people))
    if is_compressed:
        path.write_bytes(gzip.compress(plain.read_bytes()))
        plain.unlink()


def play(root: Path) -> int:
    words = [
        "run",
        str(root / "choice.py"),
        "--model",
        "baseline/yes",
        "--name",
        "run",
        "--no-html",
    ]
    return main(
        [*words, "--tasks-dir", str(root / "tasks"), "--results-dir", str(root / "results")]
    )


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "choice.py").write_text(BENCHMARK)
    (tmp_path / "tasks").mkdir()
    return tmp_path


@pytest.mark.parametrize("compressed", ["", ".gz"])
@pytest.mark.parametrize("ending", [".jsonl", ".json", ".csv", ".parquet"])
def test_tasks_are_the_same_in_every_format(ending, compressed, root):
    """`parse` gets a dictionary for each row; names, line ends and leading zeros are as in the
    file."""
    write(root / f"tasks/people{ending}{compressed}", PEOPLE)
    assert play(root) == 0
    results = (root / "results/run/inference_results_all.jsonl").read_bytes().splitlines()
    assert [orjson.loads(line)["user_id"] for line in results] == ["007", "b", "c"]
    requests = (root / "results/run/responses_all.jsonl").read_text(encoding="utf-8")
    assert requests.count("\n") == len(PEOPLE)
    report = orjson.loads((root / "results/run/eval_report_all.json").read_bytes())
    assert report["metrics"]["Accuracy"]["value"] == pytest.approx(2 / 3)


def test_mistake_in_a_csv_file_has_the_line_of_the_file(root, capsys):
    """A record over several lines does not shift the numbers of those after it."""
    people = [*PEOPLE, {"user_id": "d", "name": "x", "wanted": "maybe"}]
    write(root / "tasks/people.csv", people)
    lines = (root / "tasks/people.csv").read_text(encoding="utf-8").splitlines()
    number = 1 + next(place for place, line in enumerate(lines) if "maybe" in line)
    assert play(root) == 2
    assert f"people.csv, line {number}: field wanted: expected yes or no" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("people.csv", b"user_id,name,wanted\na,b\n", "line 2: expected 3 fields"),
        ("people.csv.gz", b"no gzip", "cannot read"),
        ("people.jsonl.gz", gzip.compress(b'{"user_id": "a"}' * 999)[:40], "cannot read"),
        ("people.csv", "user_id,name,wanted\n王,b,yes\n".encode("gb18030"), "cannot read"),
    ],
    ids=["a field too few", "no gzip", "cut off", "not UTF-8"],
)
def test_damaged_file_is_one_sentence(name, content, said, root, capsys):
    """It names the file, and nothing is left of what was read so far."""
    (root / "tasks" / name).write_bytes(content)
    assert play(root) == 2
    error = capsys.readouterr().err
    assert name in error and said in error and error.count("\n") == 1
    assert not list((root / "results").glob(".index/*.jsonl"))


@pytest.mark.parametrize("name", ["people.jsonl.gz", "people.csv"])
def test_share_of_tasks_is_written_as_lines_that_a_run_reads(name, root, capsys):
    """Whatever format they had; and `check-benchmark` reads what `run` reads."""
    write(root / "tasks" / name, PEOPLE)
    where = ["--tasks-dir", str(root / "tasks"), "--results-dir", str(root / "results")]
    assert main(["sample", str(root / "choice.py"), "--ratio", "0.67", *where]) == 0
    lines = (root / "tasks/people_sub67.jsonl").read_bytes().splitlines()
    assert len(lines) == 2 and all(
        orjson.loads(line)["user_id"] in ("007", "b", "c") for line in lines
    )
    main(["check-benchmark", str(root / "choice.py"), "--tasks-dir", str(root / "tasks")])
    assert "choice, all: tasks: OK" in capsys.readouterr().out


def test_changed_file_is_read_again(root):
    """A converted file is of the content that the original has now."""
    write(root / "tasks/people.csv", PEOPLE[:2])
    assert play(root) == 0
    write(root / "tasks/people.csv", PEOPLE)
    assert play(root) == 0
    assert len((root / "results/run/inference_results_all.jsonl").read_bytes().splitlines()) == len(
        PEOPLE
    )
