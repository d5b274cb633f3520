"""The wheel by itself: what it holds is enough to run, from any folder."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from shutil import copytree, ignore_patterns
from zipfile import ZipFile

import pytest

ROOT = Path(__file__).parents[2]
STARS = ROOT / "examples" / "star_rating"


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the built wheel's files, and a package with a benchmark of its own."""
    tree, out = tmp_path_factory.mktemp("tree") / "t", tmp_path_factory.mktemp("site")
    left_out = ignore_patterns(
        ".git", ".venv", ".bench", ".real-model", "results", "build", "*.egg-info", "__pycache__"
    )
    copytree(ROOT, tree, ignore=left_out)
    build = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "-q",
        "--no-deps",
        "--no-build-isolation",
        "-w",
        str(tree / "d"),
        ".",
    ]
    subprocess.run(build, cwd=tree, check=True, timeout=300)
    [wheel] = (tree / "d").glob("*.whl")
    ZipFile(wheel).extractall(out)
    (out / "taste_package.py").write_bytes((STARS / "star_rating.py").read_bytes())
    about = out / "taste_package-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: taste-package\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[harness.benchmarks]\ntaste = taste_package:StarRating\n")
    return out


def harness(site: Path, cwd: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a command with the wheel's files, in a folder outside of any checkout."""
    environment = {**os.environ, "PYTHONPATH": str(site), "PYTHONSAFEPATH": "1", "PYTHONHASHSEED": "0"}
    command = [sys.executable, "-m", "harness", *words]
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=300)


@pytest.mark.slow
def test_wheel_runs_both_demos_anywhere(unpacked: Path, tmp_path: Path) -> None:
    """Sample tasks, prompts, providers and pages are package data."""
    for words in (
        ["streamprofile", "--platform", "weibo", "--model", "baseline/recency"],
        ["dailymobility", "--model", "baseline/commuter"],
    ):
        done = harness(unpacked, tmp_path, "run", *words, "--demo")
        assert done.returncode == 0, done.stderr
    assert harness(unpacked, tmp_path, "verify").returncode == 0
    assert list(tmp_path.glob("results/*/eval_report_*.html"))


@pytest.mark.slow
def test_wheel_runs_the_benchmark_of_another_package(unpacked: Path, tmp_path: Path) -> None:
    """Its entry point gives its name."""
    words = ["taste", "--model", "baseline/four-stars", "--tasks-dir", str(STARS)]
    done = harness(unpacked, tmp_path, "run", *words)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_wheel_is_typed_and_licensed(unpacked: Path) -> None:
    """Type checkers of users read its annotations."""
    [about] = unpacked.glob("behavior_harness-*.dist-info")
    assert (unpacked / "harness" / "py.typed").is_file() and (about / "licenses" / "LICENSE").is_file()
    assert (unpacked / "harness" / "sample" / "dailymobility" / "beijing.pb").is_file()
