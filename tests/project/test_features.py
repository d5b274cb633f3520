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
from types import MappingProxyType, SimpleNamespace

import orjson
import pytest

from harness import feature as loader
from harness.commands.parser import CORE, shape
from harness.feature import SHIPPED, Feature, features
from harness.option import options_of
from tests.support import ALL_EXAMPLES, ROOT
from tests.support.without import LEFT_OUT

HARNESS = ROOT / "harness"
FEATURES = ROOT / "harness" / "features"
RUN = ("run", "--demo", "--platform", "weibo", "--limit", "3")
TOGETHER = {
    "leaderboard": ("pages",),
    "pages": ("leaderboard",),
    "settings": ("pages",),
    "config": ("settings", "pages"),
    "python": ("rescoring",),
    **dict.fromkeys(("exports", "plays", "prices"), ("python", "rescoring")),
}
"""Features whose tests are also about what others make of their results: the page over all runs, ranks, values of an
option in a file, what Python gets."""
ABOUT_FEATURES = {
    "tests/benchmarks/dailymobility/test_score_mobility.py",  # a command of one benchmark
    "tests/benchmarks/test_own_statistics.py",  # tables and comparisons of a benchmark's own figures
    "tests/commands/test_changed_lines.py",  # every command on lines that another program changed
    "tests/commands/test_resumed_endpoint.py",  # a run's endpoint file and endpoint options of features
    "tests/safety/test_foreign_manifests.py",  # every command on a manifest, those of features among them
}
"""Files of tests of the core that are about features alone. Without features, each other file tests something."""
QUIETLY = ("-q", "-p", "no:cacheprovider", "-p", "tests.support.without")

PACKAGE = """
import json
from pathlib import Path
from dataclasses import dataclass
from harness.config.options import Options
from harness.engine.extension import Extension
from harness.feature import Command, Feature
from harness.option import option

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

@dataclass(frozen=True)
class Counts:
    counts: str | None = option(None, "count requests and snapshots", unit="FILE")

def execute(options):
    print("counted")
    return 0

FEATURE = Feature(
    "counts", commands={"count": Command("counting", "count nothing")}, options={Counts: ["run"]},
    extension="counting:Counting",
)
"""


STAND_IN = """
from dataclasses import dataclass
from harness.feature import Feature
from harness.option import option

@dataclass(frozen=True)
class NoPages:
    html: bool = option(True, "write no page")

FEATURE = Feature("no-pages", options={NoPages: ("run", "resume", "reeval", "merge")})
"""
"""Takes the option with which tests of other things save the time of pages, where nothing makes pages."""


def install(folder: Path, name: str, source: str) -> None:
    """Put a package of one module, with a feature, into a folder of the import path."""
    (folder / f"{name}.py").write_text(source, encoding="utf-8")
    about = folder / f"{name}-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(f"[harness.features]\n{name} = {name}:FEATURE\n")


def flags_of(one: Feature) -> set[str]:
    """Return the flags that a feature adds to commands of others."""
    return {flag for cls in one.options for option in options_of(cls) for flag in option.flags}


def own_flags(one: Feature) -> set[str]:
    """Return those that no command of the core has."""
    core = [option for name in CORE for option in options_of(shape(name).__bases__[-1])]
    return flags_of(one) - {flag for option in core for flag in option.flags}


def test_feature_without_its_need_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor is one that needs that one in turn; each needs features before it."""
    names = [feature.name for feature in features()]
    assert all(needed in names[:place] for place, one in enumerate(features()) for needed in one.needs)
    there = {"first": (), "lacking": ("none",), "in_turn": ("lacking",), "last": ("first",)}
    made = {f"harness.features.{name}": SimpleNamespace(FEATURE=Feature(name, needs)) for name, needs in there.items()}
    monkeypatch.setattr(loader, "SHIPPED", tuple(there))
    monkeypatch.setattr(loader, "find_spec", made.get)
    monkeypatch.setattr(loader, "import_module", made.get)
    assert [one.name for one in loader.features.__wrapped__() if one.name in there] == ["first", "last"]


def called(
    path: Path, *words: str, cwd: Path, env: Mapping[str, str] = MappingProxyType({})
) -> subprocess.CompletedProcess[str]:
    """Run Python with a folder first on its import path."""
    variables = {**os.environ, "PYTHONPATH": str(path), **env}
    variables.pop(ALL_EXAMPLES, None)  # those of every property are drawn elsewhere
    return subprocess.run([sys.executable, "-P", *words], cwd=cwd, env=variables, capture_output=True, text=True)


def test_every_folder_is_in_the_list() -> None:
    assert {path.parent.name for path in FEATURES.glob("*/__init__.py")} == set(SHIPPED)


def test_no_other_code_names_a_feature() -> None:
    """Neither its modules nor its flags."""
    flags = set[str]().union(*map(own_flags, features()))
    assert {"--reuse", "--hedge", "--budget"} <= flags
    for path in (ROOT / "harness").rglob("*.py"):
        source = path.read_text(encoding="utf-8")
        if FEATURES not in path.parents and path.name != "feature.py":
            assert "harness.features" not in source or path == HARNESS / "__init__.py", path  # for type checkers
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


def needing(names: Sequence[str]) -> list[str]:
    """Return features with those that are not there without them."""
    found = list(names)
    found += [one.name for one in features() if one.name not in found and not set(found).isdisjoint(one.needs)]
    return found if len(found) == len(names) else needing(found)


def needed(name: str) -> set[str]:
    """Return a feature with all that it needs."""
    feature = next(one for one in features() if one.name == name)
    return {name}.union(*map(needed, feature.needs))


PARTS = ("harness", "tests", "docs", "bench", "examples", "requirements")


def without(copy: Path, names: Sequence[str], parts: Sequence[str] = PARTS) -> dict[str, str]:
    """Copy the checkout, or parts of it, without these features, those that need them, and their tests; return the
    variables for tests there."""
    names = needing(names)
    copy.mkdir()
    for part in parts:
        shutil.copytree(ROOT / part, copy / part, ignore=shutil.ignore_patterns("site"))  # with what is compiled
    for path in ROOT.iterdir():
        if path.is_file():
            shutil.copy(path, copy)
    words = []
    for name in names:
        feature = next(one for one in features() if one.name == name)
        words += [
            f"harness.features.{name}",
            *feature.commands,
            *sorted(own_flags(feature) - {"--no-html", "--force"}),
        ]
        shutil.rmtree(copy / "harness" / "features" / name)
        shutil.rmtree(copy / "tests" / "features" / name, ignore_errors=True)
    (copy / "tests" / "project" / Path(__file__).name).unlink(missing_ok=True)
    if "pages" in names:
        install(copy, "no_pages", STAND_IN)
    return {"HARNESS_WITHOUT": " ".join(words)}


def works(copy: Path, cwd: Path) -> None:
    """Make the help of every command; run, resume, score again, report and list. In one process."""
    words = [[*RUN], ["resume"], ["report", "--name", "recency"], ["status"]]
    words += [["reeval"]] if (copy / "harness/features/rescoring").exists() else []
    code = "import harness.cli as of; from harness.commands.parser import COMMANDS, built, parser\n"
    code += "from harness.feature import features\n"
    code += "assert all(parser(built(name, ()), whole=True).format_help() for name in COMMANDS)\n"
    code += f"print(of.__file__, [of.main(line) for line in {words}], *[one.name for one in features()])"
    done = called(copy, "-c", code, cwd=cwd)
    assert done.returncode == 0, done.stderr
    where, codes, *left = re.sub(", ", ",", done.stdout.splitlines()[-1]).split()
    assert (where, codes) == (f"{copy}/harness/cli.py", f"[{','.join('0' * len(words))}]")
    kept = [name for name in SHIPPED if (copy / "harness/features" / name).exists()]
    assert [name for name in left if name in SHIPPED] == kept
    assert (cwd / "results/recency/eval_report_weibo.json").exists()


@pytest.mark.parametrize("number", range(3))
def test_harness_works_without_a_feature_drawn_by_the_day(number: int, tmp_path: Path) -> None:
    """Its folder is deleted; the slow tests delete each."""
    copy, name = tmp_path / "copy", SHIPPED[(3 * date.today().toordinal() + number) % len(SHIPPED)]
    without(copy, [name], parts=("harness",))
    works(copy, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", SHIPPED)
def test_harness_works_without_a_feature(name: str, tmp_path: Path) -> None:
    """Its folder is deleted: the harness runs, resumes, scores again and reports. That no test of others needs it is
    tested without any (`test_core_needs_no_feature`) and with one alone (`test_feature_needs_no_other`)."""
    copy = tmp_path / "copy"
    without(copy, [name], parts=("harness",))
    works(copy, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", SHIPPED)
def test_feature_needs_no_other(name: str, tmp_path: Path) -> None:
    """All others are deleted, with their tests: those of this one pass that are about no other (but for `TOGETHER`)."""
    copy = tmp_path / "copy"
    kept = set[str]().union(*map(needed, (name, *TOGETHER.get(name, ()))))
    env = without(copy, [other for other in SHIPPED if other not in kept])
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
    counts = orjson.loads((copy / LEFT_OUT).read_bytes())
    played = sum(
        int(number) for number in re.findall(r"(\d+) (?:passed|skipped|xfailed)", done.stdout.splitlines()[-1])
    )
    assert played == sum(number - left_out for left_out, number in counts.values())
    assert {file for file, (left_out, number) in counts.items() if left_out == number} == ABOUT_FEATURES
