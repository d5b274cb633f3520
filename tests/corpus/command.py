"""The real command in this process, and a look at what it leaves behind."""

from __future__ import annotations

import faulthandler
from pathlib import Path

import pytest

from harness.cli import main
from tests.corpus import Case, tasks

BAD_INPUT = 2
HANG = 120.0
"""Seconds after which a command counts as one that waits for ever."""
MODEL = ("--model", "baseline/recency")
TASKS = Path("tasks/weibo_inference_tasks.jsonl")
RUN = ("run", *MODEL, "--platform", "weibo")


class Commands:
    """Calls the command and looks at what it leaves: `said` is what the last call wrote to both
    streams."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self._folder = folder
        self._capsys = capsys
        self.said = ""

    def __call__(self, *words: object) -> int:
        faulthandler.dump_traceback_later(HANG, exit=True, file=2)
        code = main([str(word) for word in words])
        told = self._capsys.readouterr()
        self.said = told.out + told.err
        assert "Traceback" not in self.said
        assert code != 70, self.said
        return code

    def refuses(self, case: Case, *words: object) -> None:
        """The command ends with exit 2 and a short complaint that has the case's words; no file is
        made or changed."""
        before = tree(self._folder)
        assert self(*words) == BAD_INPUT, f"{case.name}: {self.said}"
        for word in case.words:
            assert word in self.said, f"{case.name}: {word!r} is not in {self.said!r}"
        assert len(self.said) < 1500, case.name
        assert tree(self._folder) == before, case.name


def tree(folder: Path) -> dict[str, bytes | None]:
    """Every file below a folder with its content, but for the cache of indexes."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in sorted(folder.rglob("*"))
        if ".index" not in path.parts and path != folder / "results"
    }


def put(path: Path | str, content: bytes) -> Path:
    """A file in place of whatever stood there."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def works_afterwards(command: Commands) -> None:
    """The same command on good tasks runs to its end."""
    put(TASKS, tasks.GOOD)
    assert command(*RUN) == 0, command.said
    assert command("verify") == 0, command.said
