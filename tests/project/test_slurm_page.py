"""The job scripts of docs/slurm.md: bash reads them, and the one with its own server is stopped and
continued."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import orjson
import pytest

from tests.support import ROOT, SHIPPED
from tests.support.processes import wait_for_responses

PAGE = (ROOT / "docs" / "slurm.md").read_text(encoding="utf-8")
SCRIPTS = re.findall(r"^```bash\n(#!/bin/bash\n.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)

VLLM = f"""#!/bin/bash
[ "$1 $2 $3 $5" = "serve Qwen/Qwen3-8B --host --port" ] || exit 2
exec {sys.executable} -m tests.support.endpoint_double --imitate vllm --latency 0.2 --port "$6"
"""
SCONTROL = """#!/bin/bash
echo "$@" >> requeued
"""


@pytest.mark.parametrize("script", SCRIPTS, ids=["one job", "vllm", "parts"])
def test_bash_reads_the_script(script):
    subprocess.run(["bash", "-n"], input=script.encode(), check=True, timeout=10)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a checkout's folder with the script and programs of a cluster."""
    (tmp_path / ".venv").symlink_to(sys.prefix)
    (tmp_path / "vllm.sbatch").write_text(
        next(script for script in SCRIPTS if "vllm serve" in script)
    )
    (tmp_path / "bin").mkdir()
    for name, text in {"vllm": VLLM, "scontrol": SCONTROL}.items():
        program = tmp_path / "bin" / name
        program.write_text(text)
        program.chmod(0o755)
    return tmp_path


def job(folder: Path, number: int) -> subprocess.Popen[bytes]:
    path = f"{folder / 'bin'}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "SLURM_JOB_ID": str(number), "PYTHONPATH": str(ROOT)}
    words = ["--platform", "weibo", *SHIPPED, "--limit", "8", "--concurrency", "2", "--no-html"]
    with (folder / "log").open("ab") as log:
        return subprocess.Popen(
            ["bash", "vllm.sbatch", *words], cwd=folder, env=environment, stdout=log, stderr=log
        )


@pytest.mark.slow
def test_job_that_is_stopped_is_queued_again_and_ends_complete(folder):
    """SIGTERM to the script ends it with 143 after what is in flight; the next job has another port
    and asks nothing twice."""
    responses = folder / "results" / "Qwen3-8B" / "responses_weibo.jsonl"
    first = job(folder, 4001)
    wait_for_responses(responses, 3)
    first.send_signal(signal.SIGTERM)
    assert first.wait(60) == 143
    assert (folder / "requeued").read_text() == "requeue 4001\n"
    before = responses.read_bytes()
    assert job(folder, 4002).wait(120) == 0
    assert responses.read_bytes().startswith(before)
    asked = [orjson.loads(line) for line in responses.read_bytes().splitlines()]
    assert len({(one["user_id"], one["request"], one["nth"]) for one in asked}) == len(asked)
    report = orjson.loads((responses.parent / "eval_report_weibo.json").read_bytes())
    assert report["coverage"]["complete"]
    assert (folder / "requeued").read_text() == "requeue 4001\n"
