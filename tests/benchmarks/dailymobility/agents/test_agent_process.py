"""An agent's code that ends the process that all residents share."""

from __future__ import annotations

import os
import subprocess

import orjson
import pytest

from bench.processes import HARNESS, synthesise
from harness.errors import BadInput
from tests.support.agent_town import load_agent, written

ENDS = """
import os
from agentsociety_benchmark.benchmarks import DailyMobilityAgent

class Ends(DailyMobilityAgent):
    async def forward(self):
        await self.llm.atext_request([{"role": "user", "content": f"{self.id}, {self.environment.get_tick()}"}])
        if self.id == 2 and "ENDS" in os.environ:
            os._exit(7)
"""


@pytest.mark.slow
def test_run_that_its_agent_has_ended_is_resumed(tmp_path):
    """`os._exit` ends the run with its exit code; what was saved is not asked again, and `resume`
    completes it."""
    synthesise(tmp_path / "tasks", "dailymobility", "--users", "3")
    (tmp_path / "ends.py").write_text(ENDS)
    where = ("--tasks-dir", "tasks", "--results-dir", "results", "--no-html")
    run = [
        *HARNESS,
        "run",
        "dailymobility",
        "--model",
        "baseline/commuter",
        "--name",
        "ended",
        "--agent",
        "ends.py",
    ]
    folder = tmp_path / "results" / "ended"
    responses = folder / "responses_beijing.jsonl"
    ended = subprocess.run(
        [*run, *where], cwd=tmp_path, env=os.environ | {"ENDS": "yes"}, capture_output=True
    )
    saved = responses.read_bytes()
    assert (ended.returncode, saved.count(b"\n") > 0) == (7, True)
    resumed = subprocess.run([*HARNESS, "resume", *where], cwd=tmp_path, capture_output=True)
    assert resumed.returncode == 0, resumed.stderr
    assert responses.read_bytes().startswith(saved)
    asked = [orjson.loads(line) for line in responses.read_bytes().splitlines()]
    assert len({(one["user_id"], one["request"], one["nth"]) for one in asked}) == len(asked)
    assert orjson.loads((folder / "eval_report_beijing.json").read_bytes())["coverage"]["complete"]


@pytest.mark.parametrize("deed", ["raise SystemExit(3)", "import sys; sys.exit('x')"])
def test_agent_file_that_exits_as_it_loads_is_bad_input(tmp_path, deed):
    """By file and line, as any error in loading."""
    with pytest.raises(BadInput, match=r"agent\.py, line \d+: "):
        load_agent(written(tmp_path, "async def forward(self): pass", top=deed))
