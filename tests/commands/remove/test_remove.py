"""Runs that are set aside."""

from __future__ import annotations

import time
from contextlib import closing
from pathlib import Path

import orjson
import pytest

from harness.cli import main
from harness.store.files import RunFiles
from harness.store.run import RunStore
from tests.commands.test_commands import run, write_tasks


@pytest.fixture
def tasks(tmp_path: Path) -> Path:
    """A folder with twelve users of weibo."""
    write_tasks(tmp_path / "tasks", 12)
    return tmp_path / "tasks"


def test_removed_run_is_nowhere_listed_and_nothing_of_it_is_lost(tasks, tmp_path, capsys):
    """Every file keeps its bytes under another name in its folder; a run of the same name begins
    from nothing."""
    out = tmp_path / "out"
    where = ["--results-dir", str(out)]
    assert run(tasks, out) == 0 and run(tasks, out, "--name", "other") == 0
    kept = {"lock", "txt"}  # of the prompt, which a run of another platform may have too
    before = {
        path.name: path.read_bytes()
        for path in (out / "recency").iterdir()
        if path.suffix[1:] not in kept
    }
    assert main(["remove", "recency", *where]) == 0
    after = {
        path.name.partition(".before-")[0]: path.read_bytes()
        for path in (out / "recency").glob("*.before-*")
    }
    assert before.items() <= after.items()
    capsys.readouterr()
    assert main(["status", "--json", *where]) == 0
    assert [row["name"] for row in orjson.loads(capsys.readouterr().out)] == ["other"]
    for name in ("recency", "nobody", "../out/other"):
        try:
            assert main(["remove", name, *where]) == 2
        except SystemExit as left:
            assert left.code == 2
    assert main(["remove", "other", "--platform", "zhihu", *where]) == 2
    assert run(tasks, out, "--temperature", "0.5") == 0


def test_run_with_a_subset_in_use_is_not_removed_in_part(tasks, tmp_path):
    """A process that plays one platform keeps all of them where they are."""
    out = tmp_path / "out"
    write_tasks(tasks, 3, "zhihu")
    assert run(tasks, out) == 0 and run(tasks, out, "--platform", "zhihu") == 0
    before = {path.name for path in (out / "recency").iterdir()}
    with closing(RunStore(RunFiles(out / "recency", "zhihu"), time.time, "now")):
        assert main(["remove", "recency", "--results-dir", str(out)]) == 4
    assert {path.name for path in (out / "recency").iterdir()} == before
