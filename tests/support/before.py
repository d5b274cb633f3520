"""Whole runs of both benchmarks over the sample tasks, and what the commands make of them, as
contents of files.

`tests/data/before` holds these contents, and its README says of which version.
`tests/project/test_unchanged.py` makes them again and compares. Replace them only where a change of
numbers is intended:

    .venv/bin/python -m tests.support.before
"""

from __future__ import annotations

import gzip
import io
import os
import re
import shutil
import tempfile
import zipfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any
from unittest.mock import patch
from xml.etree import ElementTree

import orjson

from harness.cli import main
from tests.support import DATA, ROOT
from tests.support.scripted import answer, serving

KEPT = DATA / "before"
SAMPLE = ROOT / "harness" / "sample"
AGENT = DATA / "mobility_agents" / "rule_based.py"
LARGE = 20_000
"""Bytes from which a file is kept compressed."""

RESAMPLES = "1000"
WIDTH = "200"
"""Columns of the terminal."""

JSON = dict[str, Any]


@dataclass(frozen=True)
class Run:
    """A run by its name, the words of its command, and, where the built-in endpoint does not answer
    it, its script."""

    name: str
    words: tuple[str, ...]
    script: Callable[[JSON], tuple[int, bytes]] | None = None


# A scripted model: a baseline whose replies are spoilt by a hash of the prompt: one prompt, one
# reply.

ENDS = ('"选择的依据"}', "一天来写。")
"""How the prompts of the two benchmarks end; what follows is the note with which a request is
repeated."""
REFUSED = (
    ("半颗白桦ovo", "第 3 步"),
    ("晒太阳的银杏",),
    ("家：AOI 500000000，", "工作地：AOI 500000043，"),
)
"""What the prompts hold that the endpoint refuses: two users of weibo, one of them in the middle,
and a resident."""


def _reply(text: str | None, reason: str = "stop", usage: bool = True) -> tuple[int, bytes]:
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": text},
        "finish_reason": reason,
    }
    tokens = {"prompt_tokens": 100, "completion_tokens": 10} if usage else None
    return 200, orjson.dumps({"model": "scripted", "choices": [choice], "usage": tokens})


def _refused(message: str) -> tuple[int, bytes]:
    return 400, orjson.dumps({"error": {"message": message, "code": "odd"}})


def _other_tags(text: str) -> str:
    """The reply with more tags than were asked for, one of them in no pool."""
    reply = orjson.loads(text)
    if "predicted_tags" in reply:
        reply["predicted_tags"] = ["不在候选之中", *reply["predicted_tags"], "又一个"]
    return orjson.dumps(reply).decode()


SPOILT: Mapping[int, Callable[[str], tuple[int, bytes]]] = {
    0: lambda text: _reply("抱歉，我无法回答这个问题。"),
    1: lambda text: _reply(""),
    2: lambda text: _reply(text[: len(text) // 2], "length"),
    3: lambda text: _reply("", "content_filter"),
    4: lambda text: _reply(f"好的，结果如下：\n```json\n{text}\n```"),
    5: lambda text: _reply(_other_tags(text)),
    6: lambda text: _reply("[1, 2, 3]"),
    7: lambda text: _reply(text, usage=False),
    8: lambda text: _refused("This model's maximum context length is 4096 tokens"),
    9: lambda text: _reply(text.rstrip("}")),
}
DRAWS = 24
LASTING = 2
"""One spoilt reply in so many is as bad when the request is repeated."""


def spoilt_by(
    answer: Callable[[str, Any, int], str],
    baseline: str,
    refused: Sequence[Sequence[str]] = REFUSED,
) -> Callable[[JSON], tuple[int, bytes]]:
    """A script that answers as a baseline does, but for the prompts whose hash or text says
    otherwise."""

    def script(body: JSON) -> tuple[int, bytes]:
        prompt, repeated = _prompt(body["messages"][-1]["content"])
        if any(all(mark in prompt for mark in marks) for marks in refused):
            return _refused("this one I do not take")
        text = answer(baseline, [{"role": "user", "content": prompt}], 0)
        draw = int.from_bytes(blake2b(prompt.encode(), digest_size=4).digest())
        lasts = draw // DRAWS % LASTING == 0
        spoil = SPOILT.get(draw % DRAWS)
        return spoil(text) if spoil and (lasts or not repeated) else _reply(text)

    return script


def _prompt(content: str) -> tuple[str, bool]:
    """Return a prompt without the note after it, and whether there is one."""
    end = max(content.rfind(mark) + len(mark) for mark in ENDS if mark in content)
    prompt, rest = content[:end], content[end:]
    return prompt, "\n\n" in rest


# The runs

MOBILITY = ("dailymobility", "--model")
RUNS = (
    Run("recency", ("--model", "baseline/recency")),
    Run("random", ("--model", "baseline/random", "--seed", "7")),
    Run(
        "share",
        ("--model", "baseline/recency", "--platform", "weibo", "--ratio", "0.5", "--no-persona"),
    ),
    Run("spoilt", ("--model", "m", "--platform", "weibo"), spoilt_by(answer, "baseline/recency")),
    Run("commuter", (*MOBILITY, "baseline/commuter")),
    Run("random-day", (*MOBILITY, "baseline/random-day")),
    Run(
        "agent",
        (
            *MOBILITY,
            "baseline/commuter",
            "--agent",
            str(AGENT),
            "--temperature",
            "0",
            "--ratio",
            "0.2",
        ),
    ),
    Run("spoilt-day", (*MOBILITY, "m"), spoilt_by(answer, "baseline/commuter")),
)
COMPARED = (
    ("recency", "random"),
    ("recency", "share"),
    ("recency", "random", "spoilt", "--platform", "weibo"),
    ("commuter", "random-day"),
    ("commuter", "agent", "spoilt-day"),
)
STATS: Mapping[str, tuple[str, ...]] = {
    "stats.csv": ("--format", "csv"),
    "stats-published.csv": ("--format", "csv", "--published"),
    "stats-two.csv": (
        "recency",
        "random",
        "--format",
        "csv",
        "--metric",
        "Precision",
        "--metric",
        "Error_Viral",
    ),
    "stats.md": ("--format", "markdown"),
    "stats.tex": ("--format", "latex"),
    "stats.json": ("--json",),
    "stats.txt": (),
}
FILES = ("inference_results_*.jsonl", "eval_report_*.json", "eval_report_*.txt", "generated_*.json")


def made(folder: Path) -> dict[str, bytes]:
    """Everything, by the name of its file: runs, tables and comparisons, made below `folder`."""
    found: dict[str, bytes] = {}
    codes: dict[str, int] = {}
    for run in RUNS:
        codes[f"run {run.name}"] = _run(run, folder)
        found |= run_files(folder / run.name)
    for name, words in STATS.items():
        codes[name], shown = command("stats", *words, "--results-dir", str(folder))
        found[name] = shown.replace(str(folder).encode(), b"")
    excel = folder / "excel"
    codes["stats.xlsx"], _ = command(
        "stats", "--excel", "--out", str(excel), "--results-dir", str(folder)
    )
    found["stats.xlsx.json"] = _dumped(
        {path.stem: sheets(path) for path in sorted(excel.glob("*.xlsx"))}
    )
    for words in COMPARED:
        name = f"compare/{'-'.join(word.strip('-') for word in words)}"
        more = ("--resamples", RESAMPLES, "--tasks-dir", str(SAMPLE), "--results-dir", str(folder))
        _, found[f"{name}.txt"] = command("compare", *words, *more, "--full")
        book = folder / "compared.xlsx"
        codes[name], found[f"{name}.json"] = command(
            "compare", *words, *more, "--json", "--out", str(book), "--force"
        )
        found[f"{name}.xlsx.json"] = _dumped({"compared": sheets(book)})
    for name in ("spoilt", "agent"):
        codes[f"verify {name}"], _ = command("verify", "--name", name, "--results-dir", str(folder))
    found["exit_codes.json"] = _dumped(codes)
    return found


def _run(run: Run, folder: Path) -> int:
    words = (
        "--name",
        run.name,
        "--tasks-dir",
        str(SAMPLE),
        "--results-dir",
        str(folder),
        "--no-html",
    )
    if run.script is None:
        return command("run", *run.words, *words)[0]
    with serving(run.script) as server:
        return command("run", *run.words, *words, "--api-url", server.url)[0]


def command(*words: str) -> tuple[int, bytes]:
    """A command's exit code and what it writes to stdout."""
    out = io.TextIOWrapper(io.BytesIO(), "utf-8", newline="")
    with (
        patch.dict(os.environ, {"COLUMNS": WIDTH}),
        redirect_stdout(out),
        redirect_stderr(io.StringIO()),
    ):
        code = main(list(words))
    out.flush()
    assert isinstance(out.buffer, io.BytesIO)
    return code, out.buffer.getvalue()


def run_files(run: Path) -> dict[str, bytes]:
    paths = [path for pattern in FILES for path in sorted(run.glob(pattern))]
    found = {f"{run.name}/{path.name}": steady(path) for path in paths}
    for path in sorted(run.glob("failures_*.jsonl")):
        if path.stat().st_size:
            found[f"{run.name}/{path.stem}.json"] = _dumped(_failures(path))
    return found


def _failures(path: Path) -> JSON:
    """Failures by user, without their times."""
    lines = [orjson.loads(line) for line in path.read_bytes().splitlines()]
    kept = [
        {key: value for key, value in line.items() if key not in ("time", "crc")} for line in lines
    ]
    return {
        str(line["user_id"]): line for line in sorted(kept, key=lambda line: str(line["user_id"]))
    }


# What differs from run to run

VOLATILE = ("schedule", "harness", "created", "endpoint")
"""Keys of a report whose values are of one run on one machine."""
VOLATILE_TEXT = (
    r"The last session took .*?(?=\n\n|\Z)",
    r"Endpoint:\s+\S+",
    r"Harness\s+\d+\.\d+\S*",
    r"run\s+begun\s+\S+",
    r"http://127\.0\.0\.1:\d+\S*",
    r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\S*",
)
"""The same in the text: a commit that words them otherwise changes these, too."""


def steady(path: Path) -> bytes:
    """A file's content without what differs from run to run."""
    content = path.read_bytes()
    if path.name.startswith("eval_report_") and path.suffix == ".json":
        return _dumped(without_volatile(orjson.loads(content)))
    if path.suffix == ".txt":
        return steady_text(content.decode()).encode()
    if path.suffix == ".jsonl" and not _complete(path):
        return b"".join(sorted(content.splitlines(keepends=True)))  # the order in which users ended
    return content


def _complete(results: Path) -> bool:
    report = results.with_name(
        f"eval_report_{results.stem.removeprefix('inference_results_')}.json"
    )
    return bool(orjson.loads(report.read_bytes())["coverage"]["complete"])


def steady_text(text: str) -> str:
    for pattern in VOLATILE_TEXT:
        text = re.sub(pattern, "-", text, flags=re.DOTALL)
    return text


def without_volatile(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without_volatile(one) for key, one in value.items() if key not in VOLATILE}
    return [without_volatile(one) for one in value] if isinstance(value, list) else value


def sheets(path: Path) -> dict[str, list[Any]]:
    """Cells of each sheet in order: numbers, and texts (ECMA-376, part 1, 18.3)."""
    space = "{http://schemas.openxmlformats.org/spreadsheetml/2006/main}"
    with zipfile.ZipFile(path) as whole:
        book = ElementTree.fromstring(whole.read("xl/workbook.xml"))
        strings = ElementTree.fromstring(whole.read("xl/sharedStrings.xml"))
        texts = ["".join(part.text or "" for part in item.iter(f"{space}t")) for item in strings]
        found: dict[str, list[Any]] = {}
        for number, sheet in enumerate(book.iter(f"{space}sheet"), 1):
            page = ElementTree.fromstring(whole.read(f"xl/worksheets/sheet{number}.xml"))
            cells = [(cell.get("t"), cell.findtext(f"{space}v")) for cell in page.iter(f"{space}c")]
            found[sheet.attrib["name"]] = [
                steady_text(texts[int(value)]) if kind == "s" else float(value)
                for kind, value in cells
                if value is not None
            ]
    return found


def _dumped(value: Any) -> bytes:
    return orjson.dumps(value, option=orjson.OPT_INDENT_2)


# The files that are kept


def kept(folder: Path = KEPT) -> dict[str, bytes]:
    """What `keep` wrote."""
    found = {}
    for path in sorted(folder.rglob("*.*")):
        name = path.relative_to(folder).as_posix()
        if path.suffix == ".gz":
            found[name.removesuffix(".gz")] = gzip.decompress(path.read_bytes())
        elif path.is_file() and path.name != "README.md":
            found[name] = path.read_bytes()
    return found


def keep(contents: Mapping[str, bytes], folder: Path = KEPT) -> None:
    for name, content in contents.items():
        large = len(content) > LARGE
        path = folder / f"{name}{'.gz' if large else ''}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(gzip.compress(content, mtime=0) if large else content)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made_in:
        contents = made(Path(made_in))
    for old in KEPT.glob("*"):
        if old.is_dir():
            shutil.rmtree(old)
        elif old.name != "README.md":
            old.unlink()
    keep(contents)
