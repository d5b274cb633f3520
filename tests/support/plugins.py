"""What tests of benchmarks in files of their own share: commands in this process, and what they
print."""

from __future__ import annotations

from pathlib import Path
from textwrap import indent
from typing import Any

import orjson
import pytest

from harness.cli import main
from tests.support import DATA, ROOT

STARS = ROOT / "examples" / "star_rating" / "star_rating.py"
FLOOR = "baseline/four-stars"

VISITS = DATA / "visits" / "visits.py"
KM = {"park": 1.0, "pool": 2.5, "shop": 0.5, "zoo": 9.0}


def named(*words: object) -> list[str]:
    """A command, of which a run without a name has that of its model alone."""
    plain = [str(word) for word in words]
    if plain[0] != "run" or plain.count("--model") != 1 or "--name" in plain or "--reeval" in plain:
        return plain
    model = plain[plain.index("--model") + 1]
    return [*plain, "--name", model.rpartition("/")[2]]


class Commands:
    """Commands on one results folder; `out` and `err` are what the last one printed."""

    def __init__(self, results: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.results = results
        self.out = self.err = ""
        self._capsys = capsys

    def __call__(self, *words: object, code: int = 0) -> str:
        """Run a command, expect this exit code, return what it printed."""
        found = main([*named(*words), "--results-dir", str(self.results)])
        self.out, self.err = self._capsys.readouterr()
        assert found == code, self.out + self.err
        assert "defect of the harness" not in self.err
        return self.out

    def refused(self, *words: object, code: int = 2) -> str:
        """The one sentence that a command is refused with."""
        self(*words, code=code)
        assert self.err.startswith("harness: ") and self.err.count("\n") == 1, self.err
        return self.err

    def json(self, *words: object) -> Any:
        return orjson.loads(self(*words))

    def report(self, run: str, subset: str) -> Any:
        return orjson.loads((self.results / run / f"eval_report_{subset}.json").read_bytes())

    def text(self, run: str, name: str) -> str:
        return (self.results / run / name).read_text(encoding="utf-8")


def foreign(folder: Path) -> None:
    """Make the runs of a folder somebody else's: nobody here has run them."""
    for path in folder.glob("run_*.json"):
        data = orjson.loads(path.read_bytes())
        data["provenance"]["source"] = "/elsewhere/prompt.txt"
        path.write_bytes(orjson.dumps(data))


def write_visits(root: Path) -> Path:
    """North: 12 visitors, every fourth of whom goes nowhere; south: 6, of whom all do."""
    folder = root / "tasks" / "visits"
    folder.mkdir(parents=True)
    (folder / "distances.json").write_bytes(orjson.dumps(KM))
    names = list(KM)

    def line(number: int, visits: list[str]) -> bytes:
        return orjson.dumps(
            {"id": number, "history": names[:2], "places": names[number % 2 :], "visits": visits}
        )

    north = [
        line(number, [] if number % 4 == 0 else names[1 : 1 + number % 4]) for number in range(12)
    ]
    (folder / "north.jsonl").write_bytes(b"\n".join(north) + b"\n")
    (folder / "south.jsonl").write_bytes(
        b"\n".join(line(number, []) for number in range(6)) + b"\n"
    )
    return folder.parent


def changed(file: Path, before: str, after: str) -> None:
    text = file.read_text()
    assert before in text
    file.write_text(text.replace(before, after))


def made_of(member: str, kind: str, arguments: str) -> str:
    """Return the source of a member of a benchmark: an object of a class of the harness with these
    arguments."""
    return f"    {member} = __import__('harness').{kind}({arguments})\n"


def having(member: str, kind: str, body: str) -> str:
    """Return the source of a member of a benchmark: an object whose class extends `kind` by a
    body."""
    own = indent(body, " " * 8)
    return (
        f"    class Own{kind}(__import__('harness').{kind}):\n{own}\n\n    {member} ="
        f" Own{kind}()\n\n"
    )
