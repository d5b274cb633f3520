"""Runs of agents happen under one hash seed: the process starts itself again with it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping

import pytest

from harness.benchmarks import hash_seed
from harness.cli import main
from harness.commands.parser import parsed

DRAWS = """
from agentsociety_benchmark.benchmarks import DailyMobilityAgent


class Draws(DailyMobilityAgent):
    async def forward(self):
        await self.log_intention(next(iter(set(self.intention_list))))
        print(*set(self.intention_list))
"""


def replacements(
    line: str, environment: Mapping[str, str], monkeypatch: pytest.MonkeyPatch
) -> list[dict[str, str]]:
    """Return the environments of the processes in place of this one, of which the last one goes
    on."""
    calls: list[dict[str, str]] = []

    def execve(path: str, words: list[str], into: dict[str, str]) -> None:
        assert words == [sys.executable, *sys.orig_argv[1:]]
        calls.append(into)

    monkeypatch.setattr(os, "execve", execve)
    found = parsed(line.split())
    hash_seed.fix(found.interface.command, found.args, environment)
    if calls:
        hash_seed.fix(found.interface.command, found.args, calls[0])
    return calls


@pytest.mark.parametrize(
    ("line", "environment", "replaced"),
    [
        ("run dailymobility --model m --agent a.py", {}, True),
        ("run dailymobility --model m --agent=a.py", {"PYTHONHASHSEED": "random"}, True),
        ("resume", {}, True),
        ("resume played", {}, True),
        ("resume other", {}, False),
        ("reeval --reparse", {}, True),
        ("reeval", {}, False),
        ("verify played", {}, True),
        ("verify other", {}, False),
        ("export played", {}, False),
        ("report played", {}, False),
        ("status", {}, False),
        ("run dailymobility --model m --agent a.py", {"PYTHONHASHSEED": "7"}, False),
        ("run dailymobility --model a", {}, False),
    ],
)
def test_process_is_replaced_once_and_only_where_it_plays_an_agent_file(
    line,
    environment,
    replaced,
    tmp_path,
    monkeypatch,
):
    """With the same words, and an environment in which it goes on."""
    monkeypatch.chdir(tmp_path)
    for name, file in (("played", "agent_a.py"), ("other", "run_weibo.json")):
        (tmp_path / "results" / name).mkdir(parents=True)
        (tmp_path / "results" / name / file).touch()
    calls = replacements(line, environment, monkeypatch)
    assert [hash_seed.fixed(into) for into in calls] == (["0"] if replaced else [])


@pytest.mark.usefixtures("as_a_program")
def test_agent_of_the_settings_file_is_one_too(tmp_path, monkeypatch):
    """The command line alone does not name it; the same process started again reads the same
    file."""
    file = tmp_path / "own.toml"
    file.write_text('[run.dailymobility]\nagent = "agent.py"\n', encoding="utf-8")
    calls: list[str] = []

    def replaced(path: str, words: list[str], environment: dict[str, str]) -> None:
        calls.append(environment[hash_seed.VARIABLE])
        raise SystemExit(0)

    monkeypatch.setattr(os, "execve", replaced)
    monkeypatch.delenv(hash_seed.VARIABLE, raising=False)
    monkeypatch.setattr(
        sys, "argv", ["harness", "run", "dailymobility", "--model", "m", f"--settings={file}"]
    )
    assert main() == 0 and calls == ["0"]


@pytest.mark.slow
def test_an_agent_that_draws_from_a_set_has_the_same_bytes_each_time(tmp_path):
    """In processes whose hash seeds would differ; the manifest has the seed."""
    agent, found = tmp_path / "draws.py", []
    agent.write_text(DRAWS, encoding="utf-8")
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONHASHSEED"}
    for name in ("a", "b", "c"):
        words = (
            f"run dailymobility --demo --ratio 0.05 --model baseline/commuter --name {name} --agent"
            f" {agent} --no-html"
        )
        command = [
            sys.executable,
            "-m",
            "harness",
            *words.split(),
            "--results-dir",
            str(tmp_path / "out"),
        ]
        subprocess.run(command, env=environment, check=True, capture_output=True)
        folder = tmp_path / "out" / name
        found.append((folder / "inference_results_beijing.jsonl").read_bytes())
        assert (
            json.loads((folder / "run_beijing.json").read_bytes())["provenance"]["hash_seed"] == "0"
        )
    assert found[0] == found[1] == found[2]
