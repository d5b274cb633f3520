"""Features: each can be deleted, none is known outside its folder, and a package can add one."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path
from types import MappingProxyType

import orjson
import pytest

from harness.feature import SHIPPED, features
from tests.support import ROOT
from tests.support.without import COUNTS

HARNESS = ROOT / "harness"
FEATURES = ROOT / "harness" / "features"
RUN = ("run", "--demo", "--platform", "weibo", "--limit", "3")
KEPT = ("tests/commands/test_completion.py", "tests/config/test_settings_file.py")
"""Tests that run without one feature: of what looks at all commands and options."""
QUIETLY = ("-q", "-p", "no:cacheprovider", "-p", "tests.support.without")
OWN_FLAG = re.compile(r'\badd\((?:\w+, )?"(--[a-z-]+)')
FLAG = re.compile(r'options\.add\(\w+, "(--[a-z-]+)')

COMMANDS = f"""
from harness.cli import main
for words in {(RUN, ("resume",), ("reeval",), ("report", "--name", "recency"), ("status",))}:
    assert main([*words]) == 0, words
"""

PACKAGE = """
import json
from pathlib import Path
from harness.config import options
from harness.engine.extension import Extension
from harness.feature import Command, Feature

class Counting(Extension):
    def __init__(self, args):
        self._path, self._counts = Path(args.counts), {"requests": 0, "snapshots": 0}

    def sending(self, send):
        async def counted(user, asked, warn):
            self._counts["requests"] += 1
            return await send(user, asked, warn)
        return counted

    def observing(self, observe):
        from contextlib import nullcontext
        def counted(snapshots):
            self._counts["snapshots"] += 1
            self._path.write_text(json.dumps(self._counts))
            observe(snapshots)
        return nullcontext(counted)

def _options(command, parser):
    if command == "run":
        options.add(parser, "--counts FILE", "count requests and snapshots")

def add_arguments(parser):
    pass

def execute(args):
    print("counted")
    return 0

FEATURE = Feature(
    "counts", commands={"count": Command("counting", "count nothing")}, options=_options,
    is_on=lambda args: args.counts is not None, extension="counting:Counting",
)
"""


STAND_IN = """
from harness.config import options
from harness.feature import Feature

def _options(command, parser):
    if command in ("run", "resume", "reeval", "merge"):
        options.add(parser, "--no-html", "write no page", dest="html", action="store_false")

FEATURE = Feature("no-pages", options=_options)
"""
"""Takes the option with which tests of other things save the time of pages, where nothing makes pages."""


def install(folder: Path, name: str, source: str) -> None:
    """Put a package of one module, with a feature, into a folder of the import path."""
    (folder / f"{name}.py").write_text(source, encoding="utf-8")
    about = folder / f"{name}-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(f"[harness.features]\n{name} = {name}:FEATURE\n")


def own_flags(source: str) -> set[str]:
    """Return the flags that a feature adds and no command of the core has."""
    core = [
        path.read_text(encoding="utf-8") for room in ("commands", "config") for path in (HARNESS / room).glob("*.py")
    ]
    return {*FLAG.findall(source)} - {flag for text in core for flag in OWN_FLAG.findall(text)}


def called(
    path: Path, *words: str, cwd: Path, env: Mapping[str, str] = MappingProxyType({})
) -> subprocess.CompletedProcess[str]:
    """Run Python with a folder first on its import path."""
    variables = {**os.environ, "PYTHONPATH": str(path), **env}
    return subprocess.run([sys.executable, "-P", *words], cwd=cwd, env=variables, capture_output=True, text=True)


def test_every_folder_is_in_the_list() -> None:
    assert {path.parent.name for path in FEATURES.glob("*/__init__.py")} == set(SHIPPED)


def test_no_other_code_names_a_feature() -> None:
    """Neither its modules nor its flags."""
    flags = set().union(*(own_flags(path.read_text(encoding="utf-8")) for path in FEATURES.glob("*/__init__.py")))
    assert {"--reuse", "--otel", "--metrics-port"} <= flags
    for path in (ROOT / "harness").rglob("*.py"):
        source = path.read_text(encoding="utf-8")
        if FEATURES not in path.parents and path.name != "feature.py":
            assert "harness.features" not in source, path
            assert not [flag for flag in flags if re.search(rf"{flag}\b(?!-)", source)], path


def test_package_adds_a_feature_without_an_edit(tmp_path: Path) -> None:
    """With a command, an option, and a part in each request, by its entry point."""
    install(tmp_path, "counting", PACKAGE)
    done = called(tmp_path, "-m", "harness", "count", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "counted\n")
    done = called(tmp_path, "-m", "harness", *RUN, "--no-html", "--counts", "counts.json", cwd=tmp_path)
    assert done.returncode == 0
    replies = (tmp_path / "results/recency/responses_weibo.jsonl").read_bytes().count(b"\n")
    counts = orjson.loads((tmp_path / "counts.json").read_bytes())
    assert counts["requests"] == replies and counts["snapshots"]


def without(copy: Path, names: Sequence[str]) -> dict[str, str]:
    """Copy the checkout without these features and their tests; return the variables for tests there."""
    copy.mkdir()
    for part in ("harness", "tests", "docs", "bench", "examples", "requirements"):
        shutil.copytree(ROOT / part, copy / part, ignore=shutil.ignore_patterns("site"))  # with what is compiled
    for path in ROOT.iterdir():
        if path.is_file():
            shutil.copy(path, copy)
    words = []
    for name in names:
        feature = next(one for one in features() if one.name == name)
        source = (FEATURES / name / "__init__.py").read_text(encoding="utf-8")
        words += [
            f"harness.features.{name}",
            *feature.commands,
            *sorted({*FLAG.findall(source)} - {"--no-html", "--force"}),
        ]
        shutil.rmtree(copy / "harness" / "features" / name)
        shutil.rmtree(copy / "tests" / "features" / name, ignore_errors=True)
        (copy / "docs" / "features" / f"{name}.md").unlink()
    (copy / "tests" / "project" / Path(__file__).name).unlink()
    if "pages" in names:
        install(copy, "no_pages", STAND_IN)
    return {"HARNESS_WITHOUT": " ".join(words)}


def works(copy: Path, cwd: Path) -> None:
    """Run, resume, score again, report, list."""
    done = called(copy, "-c", COMMANDS, cwd=cwd)
    assert done.returncode == 0, done.stderr
    assert (cwd / "results/recency/eval_report_weibo.json").exists()


@pytest.mark.parametrize("number", range(3))
def test_harness_works_without_a_feature_drawn_by_the_day(number: int, tmp_path: Path) -> None:
    """Its folder is deleted; the slow tests delete each, with more tests of what is left."""
    copy, name = tmp_path / "copy", SHIPPED[(3 * date.today().toordinal() + number) % len(SHIPPED)]
    without(copy, [name])
    works(copy, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", SHIPPED)
def test_harness_works_without_a_feature(name: str, tmp_path: Path) -> None:
    """Its folder and its tests are deleted: the harness runs, resumes, scores again and reports. That no other test
    needs it is tested without any (`test_core_needs_no_feature`), with one alone (`test_feature_needs_no_other`)."""
    copy = tmp_path / "copy"
    env = without(copy, [name])
    where = "import harness.feature as of; print(of.__file__, [one.name for one in of.features()])"
    found = called(copy, "-c", where, cwd=tmp_path).stdout
    assert found.startswith(str(copy)) and repr(name) not in found
    works(copy, tmp_path)
    done = called(copy, "-m", "pytest", *QUIETLY, *KEPT, cwd=copy, env=env)
    assert done.returncode == 0, done.stdout[-2000:]


@pytest.mark.slow
@pytest.mark.parametrize("name", SHIPPED)
def test_feature_needs_no_other(name: str, tmp_path: Path) -> None:
    """All others are deleted, with their tests: those of this one pass that are about no other."""
    copy = tmp_path / "copy"
    env = without(copy, [other for other in SHIPPED if other != name])
    done = called(copy, "-m", "pytest", *QUIETLY, f"tests/features/{name}", cwd=copy, env=env)
    assert done.returncode == 0, done.stdout[-4000:]


@pytest.mark.slow
@pytest.mark.all_tests
def test_core_needs_no_feature(tmp_path: Path) -> None:
    """Without any feature the harness has its own commands only, and all tests pass that are about nothing else."""
    copy = tmp_path / "copy"
    env = without(copy, SHIPPED)
    works(copy, tmp_path)
    done = called(copy, "-m", "pytest", *QUIETLY, "-n", "2", "tests", cwd=copy, env=env)
    assert done.returncode == 0, done.stdout[-4000:]
    left_out, collected = map(int, (copy / COUNTS).read_text().split())
    played = sum(
        int(number) for number in re.findall(r"(\d+) (?:passed|skipped|xfailed)", done.stdout.splitlines()[-1])
    )
    assert played == collected - left_out and left_out < collected / 5
