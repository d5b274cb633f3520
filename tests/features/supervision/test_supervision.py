"""The parent of a process that others may end."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from harness.features.supervision.supervision import agents

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="nothing is supervised elsewhere")


@pytest.mark.slow
def test_process_that_is_ended_from_inside_is_one_sentence_and_exit_code_4() -> None:
    """Whatever exit code its end came with."""
    code = (
        "import os, sys; from harness.features.supervision.supervision import Threat, supervised; "
        "ended = supervised(Threat('a process', 'a library')); os._exit(1) if ended is None else sys.exit(ended)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 4
    assert done.stderr.startswith("harness: ") and done.stderr.count("\n") == 1


def test_command_that_may_play_an_agent_file_is_supervised(tmp_path: Path) -> None:
    """One that is named, or one in the folder of a run; others run in the user's own process."""
    folder = SimpleNamespace(results_dir=tmp_path, name=None)
    assert agents(["run", "dailymobility", "--agent", "x/mine.py"], folder) == "mine.py"
    assert agents(["resume"], folder) == agents(["status"], folder) == ""
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "agent_mine.py").touch()
    assert agents(["resume"], folder) == "mine.py" and agents(["status"], folder) == ""
