"""Extensions: each can be deleted, none is known outside its folder, and a package can add one."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import orjson
import pytest

from harness.option import options_of
from harness.options.extension import SHIPPED, extensions
from tests.support import ALL_EXAMPLES, ROOT
from tests.support.without import LEFT_OUT

HARNESS = ROOT / "harness"
EXTENSIONS = HARNESS / "extensions"
RUN = ("run", "--demo", "--platform", "weibo", "--limit", "3")
QUIETLY = ("-q", "-p", "no:cacheprovider", "-p", "tests.support.without")

PACKAGE = """
import json
from pathlib import Path
from dataclasses import dataclass
from harness.engine.hooks import Hooks
from harness.option import option
from harness.options.extension import Extension

@dataclass(frozen=True)
class Counts:
    counts: str | None = option(None, "count requests and events", unit="FILE")

class Counting(Hooks):
    def __init__(self, path):
        self._path, self._counts = Path(path), {"requests": 0, "events": 0}

    def wrap_send(self, send):
        async def counted(user, asked, warn):
            self._counts["requests"] += 1
            return await send(user, asked, warn)
        return counted

    def on_event(self, event):
        self._counts["events"] += 1
        self._path.write_text(json.dumps(self._counts))

class CountExtension(Extension[Counts]):
    name, options, commands = "counts", Counts, frozenset({"run"})

    def hooks(self, options, command):
        return Counting(options.counts)

EXTENSION = CountExtension()
"""


def install(folder: Path, name: str, source: str) -> None:
    """Put a package of one module, with an extension, into a folder of the import path."""
    (folder / f"{name}.py").write_text(source, encoding="utf-8")
    about = folder / f"{name}-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(f"[harness.extensions]\n{name} = {name}:EXTENSION\n")


def flags_of(name: str) -> set[str]:
    """Return the flags that an extension adds to commands."""
    [extension] = [one for one in extensions() if one.name == name]
    return {flag for option in options_of(extension.options) for flag in option.flags}


def called(
    path: Path, *words: str, cwd: Path, env: Mapping[str, str] = MappingProxyType({})
) -> subprocess.CompletedProcess[str]:
    """Run Python with a folder first on its import path."""
    variables = {**os.environ, "PYTHONPATH": str(path), **env}
    variables.pop(ALL_EXAMPLES, None)  # those of every property are drawn elsewhere
    return subprocess.run(
        [sys.executable, "-P", *words], cwd=cwd, env=variables, capture_output=True, text=True
    )


def test_every_folder_is_in_the_list():
    assert {path.parent.name for path in EXTENSIONS.glob("*/__init__.py")} == set(SHIPPED)


def test_no_other_code_imports_an_extension():
    """But the package's own `__init__`, which offers the error of a budget, when it is asked
    for."""
    for path in HARNESS.rglob("*.py"):
        if EXTENSIONS not in path.parents and path != HARNESS / "__init__.py":
            assert not re.search(
                r"(from|import) harness\.extensions", path.read_text(encoding="utf-8")
            ), path
    for name in SHIPPED:
        for path in (EXTENSIONS / name).glob("*.py"):
            others = re.findall(
                r"(?:from|import) harness\.extensions\.(\w+)", path.read_text(encoding="utf-8")
            )
            assert set(others) <= {name}, path


def test_package_adds_an_extension_without_an_edit(tmp_path):
    """With an option, and a part in each request and event, by its entry point."""
    install(tmp_path, "counting", PACKAGE)
    done = called(
        tmp_path, "-m", "harness", *RUN, "--no-html", "--counts", "counts.json", cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    replies = (tmp_path / "results/demo-recency/responses_weibo.jsonl").read_bytes().count(b"\n")
    counts = orjson.loads((tmp_path / "counts.json").read_bytes())
    assert counts["requests"] == replies and counts["events"] >= 3  # opened, scored, ended


CORE = ("commands", "engine", "options", "project")
"""Folders of tests about the code that calls extensions. No other code imports one, as is tested
here, and the commands call that code without extensions, too."""
PARTS = ("harness", "tests", "docs", "bench", "examples", "requirements")


def without(copy: Path, names: Sequence[str], parts: Sequence[str] = PARTS) -> dict[str, str]:
    """Copy the checkout, or parts of it, without these extensions and their tests; return the
    variables for tests there."""
    copy.mkdir()
    for part in parts:
        shutil.copytree(
            ROOT / part, copy / part, ignore=shutil.ignore_patterns("site")
        )  # with what is compiled
    for path in ROOT.iterdir():
        if path.is_file():
            shutil.copy(path, copy)
    words = []
    for name in names:
        words += [f"harness.extensions.{name}", *sorted(flags_of(name))]
        shutil.rmtree(copy / "harness" / "extensions" / name)
        shutil.rmtree(copy / "tests" / "extensions" / name, ignore_errors=True)
    (copy / "tests" / "project" / Path(__file__).name).unlink(missing_ok=True)
    return {"HARNESS_WITHOUT": " ".join(words)}


def works(copy: Path, cwd: Path) -> None:
    """Make the help of every command; run, resume, score again, report and list. In one process."""
    words = [[*RUN], ["resume"], ["report", "--name", "demo-recency"], ["status"], ["reeval"]]
    code = "import harness.cli as of; from harness.commands.parser import built, parser\n"
    code += "from harness.commands.table import COMMANDS\n"
    code += "from harness.options.extension import extensions\n"
    code += (
        "assert all(parser(built(name, ()), ['--help-all']).format_help() for name in COMMANDS)\n"
    )
    code += (
        f"print(of.__file__, [of.main(line) for line in {words}], *[one.name for one in"
        " extensions()])"
    )
    done = called(copy, "-c", code, cwd=cwd)
    assert done.returncode == 0, done.stderr
    where, codes, *left = re.sub(", ", ",", done.stdout.splitlines()[-1]).split()
    assert (where, codes) == (f"{copy}/harness/cli.py", f"[{','.join('0' * len(words))}]")
    kept = [name for name in SHIPPED if (copy / "harness/extensions" / name).exists()]
    assert [name for name in left if name in SHIPPED] == kept
    assert (cwd / "results/demo-recency/eval_report_weibo.json").exists()


@pytest.mark.slow
@pytest.mark.parametrize("name", SHIPPED)
def test_harness_works_without_an_extension(name, tmp_path):
    """Its folder is deleted: the harness runs, resumes, scores again and reports. That no test of
    others needs it is tested without any (`test_core_needs_no_extension`) and with one alone
    (`test_extension_needs_no_other`)."""
    copy = tmp_path / "copy"
    without(copy, [name], parts=("harness",))
    works(copy, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", SHIPPED)
def test_extension_needs_no_other(name, tmp_path):
    """All others are deleted, with their tests: those of this one pass that are about no other.
    What it bills is tested with all of them alone."""
    copy = tmp_path / "copy"
    env = without(copy, [other for other in SHIPPED if other != name])
    words = (*QUIETLY, "--ignore-glob=*/test_bills.py", f"tests/extensions/{name}")
    done = called(copy, "-m", "pytest", *words, cwd=copy, env=env)
    assert done.returncode == 0, done.stdout[-4000:]


@pytest.mark.slow
@pytest.mark.all_tests
def test_core_needs_no_extension(tmp_path):
    """Without any extension all tests of what calls extensions pass that are about nothing else;
    one file of tests is left out whole."""
    copy = tmp_path / "copy"
    env = without(copy, SHIPPED)
    works(copy, tmp_path)
    folders = [f"tests/{folder}" for folder in CORE]
    done = called(copy, "-m", "pytest", *QUIETLY, "-n", "2", *folders, cwd=copy, env=env)
    assert done.returncode == 0, done.stdout[-4000:]
    counts = orjson.loads((copy / LEFT_OUT).read_bytes())
    played = sum(
        int(number)
        for number in re.findall(r"(\d+) (?:passed|skipped|xfailed)", done.stdout.splitlines()[-1])
    )
    assert played == sum(number - left_out for left_out, number in counts.values())
    # Every command, on lines that another program changed: the ledger of a budget is among the
    # files.
    left_out_whole = [file for file, (left_out, number) in counts.items() if left_out == number]
    assert left_out_whole == ["tests/commands/test_changed_lines.py"]
