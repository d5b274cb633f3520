"""Inputs that the fuzzer found something with (`python -m bench.fuzz`), each read again by its
target."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import ROOT

FOUND = sorted((Path(__file__).parent / "found").iterdir())
READ = """
import resource, sys
from importlib import import_module
from pathlib import Path
resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
target = import_module(f"bench.fuzz.{sys.argv[1]}")
try:
    target.run(Path(sys.argv[2]).read_bytes())
except target.EXPECTED as error:
    print(error)
"""


@pytest.mark.parametrize("path", FOUND, ids=lambda path: path.name)
def test_what_the_fuzzer_found_is_read_or_refused(path, tmp_path):
    """In a process of its own, whose temporary folder and memory are bounded: some of these asked
    for all of it."""
    root = str(ROOT)
    command = [sys.executable, "-c", READ, path.name.partition("-")[0], str(path)]
    done = subprocess.run(
        command,
        env={"TMPDIR": str(tmp_path), "PYTHONPATH": root},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
