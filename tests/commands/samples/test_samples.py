"""Shares of tasks files, and synthetic tasks."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from harness.cli import main
from tests.commands.test_commands import write_tasks


@pytest.fixture
def tasks(tmp_path: Path) -> Path:
    """A folder with twelve users of weibo."""
    write_tasks(tmp_path / "tasks", 12)
    return tmp_path / "tasks"


def test_sample_is_nested_and_named_after_its_share(tasks, tmp_path):
    """20 % of the users, in the file's order, all of them among the 50 %."""
    where = ["--tasks-dir", str(tasks), "--results-dir", str(tmp_path / "out")]
    for ratio in ("0.2", "0.5"):
        assert main(["sample", "--ratio", ratio, *where]) == 0
    whole = (tasks / "weibo_inference_tasks.jsonl").read_bytes().splitlines()
    few, half = (
        (tasks / f"weibo_inference_tasks_sub{n}.jsonl").read_bytes().splitlines() for n in (20, 50)
    )
    assert (len(few), len(half)) == (2, 6)
    assert set(few) < set(half) < set(whole)
    assert [line for line in whole if line in half] == half


def test_synth_into_a_folder_that_cannot_be_made_is_no_mistake_of_the_command(
    tmp_path, monkeypatch
):
    """As for every other command: a code of the machine."""

    def refuse(*args: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(os, "mkdir", refuse)
    assert (
        main(["synth", "--users", "1", "--platform", "zhihu", "--out", str(tmp_path / "tasks")])
        == 4
    )
