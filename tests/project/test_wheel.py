"""The wheel by itself: in a clean environment it runs from any folder, with benchmarks of other
packages."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import Distribution, distribution
from pathlib import Path
from shutil import copytree, ignore_patterns

import pytest
from packaging.requirements import Requirement

from tests.support import ROOT

STARS = ROOT / "examples" / "star_rating"
PLUGIN = """
[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"
[project]
name = "taste-package"
version = "1.0"
[project.entry-points."harness.benchmarks"]
taste = "star_rating:StarRating"
[tool.setuptools]
py-modules = ["star_rating"]
"""
NOTEBOOK = """
import asyncio, json, sys
async def kernel():
    names = {}
    for cell in json.load(open(sys.argv[1], encoding="utf-8"))["cells"]:
        if cell["cell_type"] == "code":
            exec("".join(cell["source"]), names)
asyncio.run(kernel())
"""


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return an environment with the built wheel, what it declares to need, and the wheel of a
    benchmark."""
    tree, plugin, clean = (
        tmp_path_factory.mktemp(name) / name for name in ("tree", "plugin", "clean")
    )
    left_out = ignore_patterns(".*", "results", "build", "*.egg-info", "__pycache__")
    copytree(ROOT, tree, ignore=left_out)
    copytree(STARS, plugin)
    (plugin / "pyproject.toml").write_text(PLUGIN)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", clean], check=True, timeout=60)
    pip(clean, "install", "--no-deps", "--no-index", *map(wheel, (tree, plugin)))
    for needed in requirements(Distribution.at(about(clean)), "mobility"):
        for name in {file.parts[0] for file in needed.files or () if file.parts[0] != ".."}:
            installed = site(clean) / name
            if not installed.exists():
                installed.symlink_to(Path(str(needed.locate_file(name))))
    return clean


def pip(environment: Path, *words: str | Path) -> None:
    command = [sys.executable, "-m", "pip", "--python", environment, *words, "-q"]
    subprocess.run(command, check=True, timeout=300)


def wheel(tree: Path) -> Path:
    """Build the wheel of a project with the pinned setuptools."""
    how = ("-q", "--no-deps", "--no-index", "--no-build-isolation")
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", *how, "-w", tree / "d", tree],
        check=True,
        timeout=300,
    )
    [built] = (tree / "d").glob("*.whl")
    return built


def requirements(package: Distribution, extra: str) -> Iterator[Distribution]:
    """Yield the distributions that a package declares to need, and those that they need."""
    left, seen = [(package, extra)], set[str]()
    while left:
        package, extra = left.pop()
        for needed in map(Requirement, package.requires or ()):
            if needed.name not in seen and (
                needed.marker is None or needed.marker.evaluate({"extra": extra})
            ):
                seen.add(needed.name)
                left.append((distribution(needed.name), ""))
                yield left[-1][0]


def site(environment: Path) -> Path:
    [found] = environment.glob("lib/python*/site-packages")
    return found


def about(environment: Path) -> Path:
    [found] = site(environment).glob("behavior_harness-*.dist-info")
    return found


def called(clean: Path, cwd: Path, *words: str | Path) -> str:
    """Run a program of the environment in a folder outside of any checkout; return its output."""
    variables = {"PATH": os.defpath, "HOME": str(cwd), "PYTHONHASHSEED": "0"}
    command = [clean / "bin" / words[0], *words[1:]]
    done = subprocess.run(
        command, cwd=cwd, env=variables, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("script", ["harness", "behavior-harness"])
def test_wheel_runs_both_demos_anywhere(script, clean, tmp_path):
    """Sample tasks, prompts, providers and pages are package data; results go to the working
    directory."""
    for words in (["streamprofile", "--platform", "weibo"], ["dailymobility"]):
        called(clean, tmp_path, script, "run", *words, "--demo")
    called(clean, tmp_path, script, "verify")
    assert {path.parent.name for path in tmp_path.glob("results/*/eval_report_*.html")} == {
        "demo-recency",
        "demo-dailymobility-commuter",
    }


@pytest.mark.slow
def test_wheel_runs_the_benchmark_of_another_package(clean, tmp_path):
    """Its entry point gives its name."""
    words = [
        "taste",
        "--model",
        "baseline/four-stars",
        "--name",
        "four-stars",
        "--tasks-dir",
        STARS,
    ]
    called(clean, tmp_path, "harness", "run", *words)
    assert (tmp_path / "results" / "four-stars" / "eval_report_yelp.txt").is_file()


@pytest.mark.slow
def test_wheel_runs_the_notebook(clean, tmp_path):
    """Every code cell, within a running loop, as a kernel executes them."""
    called(clean, tmp_path, "python", "-c", NOTEBOOK, ROOT / "examples" / "notebook.ipynb")
    assert (tmp_path / "results" / "demo-recency" / "eval_report_weibo.json").is_file()


@pytest.mark.slow
def test_wheel_is_typed_and_licensed(clean):
    """Type checkers of users read its annotations."""
    assert (site(clean) / "harness" / "py.typed").is_file() and (
        about(clean) / "licenses" / "LICENSE"
    ).is_file()
    assert (site(clean) / "harness" / "sample" / "dailymobility" / "beijing.pb").is_file()
