"""The parent of a process that others may end."""

from __future__ import annotations

import subprocess
import sys

import pytest

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
