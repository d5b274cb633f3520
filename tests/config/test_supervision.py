"""The parent of a process that others may end."""

from __future__ import annotations

import subprocess
import sys

import pytest

from harness.commands.parser import parsed
from harness.config import supervision

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="nothing is supervised elsewhere")


def test_a_driver_of_ray_is_supervised_and_one_process_is_not() -> None:
    """Ray ends the process itself once the raylet of its machine is gone."""
    for words, by_ray in ((["run", "--demo"], False), (["run", "--demo", "--engine", "ray"], True)):
        found = parsed(words)
        assert (supervision.threat(found.words, found.args) is not None) is by_ray
    found = parsed(["resume", "--engine", "ray"])
    assert supervision.threat(found.words, found.args)


@pytest.mark.slow
def test_process_that_is_ended_from_inside_is_one_sentence_and_exit_code_4() -> None:
    """Whatever exit code its end came with."""
    code = (
        "import os, sys; from harness.config.supervision import Threat, supervised; "
        "ended = supervised(Threat('used Ray', 'Ray has ended it')); os._exit(1) if ended is None else sys.exit(ended)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 4
    assert done.stderr.startswith("harness: ") and done.stderr.count("\n") == 1
