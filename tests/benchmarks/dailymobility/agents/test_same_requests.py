"""Agent files send here what they send under asbench, against recordings of its own run on the demo
city."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support import DATA, ROOT
from tests.support.agent_town import FILES
from tests.support.asbench import compared, digests, played

RECORDED = DATA / "agentsociety"
DIGESTS: dict[str, Any] = json.loads((RECORDED / "requests-0.1.4.json").read_bytes())
PUBLIC = ("Daily_Brain", "Daily_Glue", "Dailly_Extra", "readme_example", "readme_llm")
AGENTS = os.environ.get("HARNESS_DM_AGENTS")


def test_an_agent_that_uses_every_api_sends_what_it_sends_there():
    """Request by request, with what each call returned in the prompts; and it lives the same
    days."""
    run = played(FILES / "every_api.py")
    lines = (RECORDED / "every_api-0.1.4.jsonl").read_text(encoding="utf-8").splitlines()
    there = [(line["resident"], line["body"]) for line in map(json.loads, lines)]
    here = [
        (resident, compared(body))
        for resident, bodies in run["requests"].items()
        for body in bodies
    ]
    assert here == there
    assert digests(run) == DIGESTS["every_api"]
    texts = [[json.dumps(body["messages"]) for _, body in bodies] for bodies in (here, there)]
    assert texts[0] == texts[1], "the order of fields is part of a prompt"


def test_asbench_s_template_lives_the_same_days(tmp_path):
    """It asks nothing; where it goes and what it means to do are drawn."""
    file = tmp_path / "agent.py"
    file.write_text(
        "from agentsociety_benchmark.benchmarks import DailyMobilityAgent as B\nclass Own(B):"
        " pass\n"
    )
    assert digests(played(file)) == DIGESTS["template_agent"]


@pytest.mark.skipif(not AGENTS, reason="HARNESS_DM_AGENTS names no folder with the public agents")
@pytest.mark.parametrize("name", PUBLIC)
def test_a_public_agent_sends_what_it_sends_there(name):
    """In a process of its own, where sets of strings have the order that they had there."""
    file = Path(AGENTS or "", f"{name}.py")
    command = [sys.executable, "-m", "tests.support.asbench", str(file)]
    run = subprocess.run(
        command,
        cwd=ROOT,
        env=os.environ | {"PYTHONHASHSEED": "0"},
        stdout=subprocess.PIPE,
        check=True,
        timeout=120,
    )
    assert json.loads(run.stdout) == DIGESTS[name]
