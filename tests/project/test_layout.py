"""Who may import whom (docs/design.md, section 10), read from the sources; and what starting up
imports."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import ROOT

PACKAGE = ROOT / "harness"

WORDS = {
    "model",
    "document",
    "errors",
    "printable",
    "scrubber",
    "defaults",
    "option",
    "cost",
    "reply_facts",
}
LEAVES = {
    f"benchmarks.{name}"
    for name in (
        "files",
        "records",
        "usage",
        "parsing",
        "settings",
        "template",
        "user_code",
        "hash_seed",
    )
}
PROTOCOL = {"benchmark", "chat"}
CORE = WORDS | LEAVES | PROTOCOL | {"scoring", "benchmarks"}
ROOMS = CORE | {"store", "client", "ui", "reporting", "options"}
MAY_IMPORT = {
    "document": set(),
    "errors": set(),
    "model": {"document", "errors"},
    "printable": set(),
    "scrubber": set(),
    "defaults": {"model", "errors"},
    "option": {"errors", "defaults"},
    "cost": {"model"},
    "reply_facts": {"model"},
    "benchmarks.files": {"errors"},
    "benchmarks.hash_seed": set(),
    "benchmarks.parsing": WORDS,
    "benchmarks.template": WORDS | {"benchmarks.files"},
    "benchmarks.user_code": WORDS,
    "benchmarks.records": WORDS | {"benchmarks.user_code"},
    "benchmarks.usage": WORDS | {"benchmarks.records", "benchmarks.user_code"},
    "benchmarks.settings": WORDS | {"benchmarks.files", "benchmarks.user_code"},
    "chat": WORDS | {"benchmarks.records", "benchmarks.parsing", "benchmarks.user_code"},
    "benchmark": (
        WORDS | {"benchmarks.files", "benchmarks.settings", "benchmarks.user_code", "chat"}
    ),
    "scoring": WORDS | LEAVES | PROTOCOL,
    "benchmarks": WORDS | LEAVES | PROTOCOL | {"scoring"},
    "graders": WORDS | LEAVES | PROTOCOL,
    "store": CORE,
    "client": CORE,
    "ui": WORDS | {"store"},
    "reporting": CORE | {"store", "ui"},
    "options": CORE | {"store", "client", "ui"},
    "engine": ROOMS,
    "analysis": ROOMS | {"engine"},
    "extensions": ROOMS | {"engine", "analysis"},
    "commands": ROOMS | {"engine", "analysis"},
    "interface": ROOMS | {"engine", "analysis", "commands"},
    "cli": ROOMS | {"engine", "analysis", "commands"},
    "__main__": {"cli"},
}
"""Parts of the package, and what each may import besides itself; the package's own `__init__`
stands open to all.

A module with a dot is a part of its own: the rest of its folder imports it, never the other way
round. The protocol of benchmarks is made of some of these.
"""


def part_of(module: str) -> str:
    """The part that a module below the package is in, by its dotted name."""
    first, _, rest = module.partition(".")
    leaf = f"{first}.{rest.partition('.')[0]}"
    return leaf if leaf in MAY_IMPORT else first


def is_for_types(node: ast.AST) -> bool:
    """Whether a statement is `if TYPE_CHECKING`: what it imports is never executed."""
    return (
        isinstance(node, ast.If)
        and isinstance(node.test, ast.Name)
        and node.test.id == "TYPE_CHECKING"
    )


def statements(node: ast.AST) -> Iterator[ast.AST]:
    """Yield a module's statements, however deep; expressions, which hold none, are most of a
    tree."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.expr) and not is_for_types(child):
            yield child
            yield from statements(child)


def parts_imported(source: str, package: str) -> Iterator[tuple[int, str]]:
    """Line and part (`store`, `model`, ...) for each import of the project's own in a module of
    `package`."""
    for node in statements(ast.parse(source)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = (
                package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            )
            module = ".".join([*above, *([node.module] if node.module else [])])
            names = [f"{module}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            first, _, rest = name.partition(".")
            part = part_of(rest)
            if first == "harness" and part and not part.startswith("__"):
                yield node.lineno, part


def breaches(root: Path) -> list[str]:
    """Imports under `root` (a folder named harness) that `MAY_IMPORT` does not allow, as
    `file:line: ...`."""
    found = []
    for file in sorted(root.rglob("*.py")):
        steps = file.relative_to(root).with_suffix("").parts
        part, package = part_of(".".join(steps)), ".".join(["harness", *steps[:-1]])
        if part == "__init__":
            continue
        for line, imported in parts_imported(file.read_text(encoding="utf-8"), package):
            if imported != part and imported not in MAY_IMPORT.get(part, set()):
                found.append(f"{file.relative_to(root)}:{line}: {part} imports {imported}")
    return found


def test_every_part_of_the_package_has_an_import_rule():
    """A new top-level module or folder must be placed in the table above before anything may use
    it."""
    parts = {file.relative_to(PACKAGE).with_suffix("").parts[0] for file in PACKAGE.rglob("*.py")}
    assert parts - {"__init__"} <= set(MAY_IMPORT)
    assert all(
        (PACKAGE / f"{part.replace('.', '/')}.py").is_file() for part in MAY_IMPORT if "." in part
    )


def test_the_allowed_imports_have_no_cycle():
    """Imports go downward only: each part allows only parts named above it in the table."""
    seen: set[str] = set()
    for part, allowed in MAY_IMPORT.items():
        assert allowed <= seen, part
        seen.add(part)


def test_parts_import_only_what_stands_below_them():
    """No module of the package breaks the table."""
    assert breaches(PACKAGE) == []


@pytest.mark.parametrize(
    "statement",
    [
        "from harness.client.http import Client",
        "import harness.client.http as c",
        "from harness import client",
        "from ..client import http",
        "from .. import client",
        "def late():\n    from harness.client import http",
    ],
)
def test_a_forbidden_import_is_found_however_it_is_written(tmp_path, statement):
    """Store and client do not know each other: absolute, relative and late imports are all seen."""
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "log.py").write_text(
        f"from harness.model import JSON\n{statement}\n", encoding="utf-8"
    )
    found = breaches(tmp_path)
    assert len(found) == 1
    assert found[0].startswith("store") and found[0].endswith("store imports client")


def test_a_module_below_the_protocol_imports_nothing_of_its_folder(tmp_path):
    """`benchmarks/settings.py` is below `benchmark.py`, and the rest of `benchmarks` above it."""
    (tmp_path / "benchmarks").mkdir()
    for name in ("settings", "registry"):
        (tmp_path / "benchmarks" / f"{name}.py").write_text(
            "from harness.benchmark import Benchmark\nfrom harness.benchmarks import cards,"
            " files\n",
            encoding="utf-8",
        )
    assert [line.partition(" ")[2] for line in breaches(tmp_path)] == [
        "benchmarks.settings imports benchmark",
        "benchmarks.settings imports benchmarks",
    ]


SLOW = {"harness.cli", "numpy", "scipy", "aiohttp", "aiohttp.web"}


@pytest.mark.parametrize(("arguments", "loaded"), [([], set()), (["run"], {"numpy"})])
def test_command_starts_without_the_slow_libraries_that_it_does_not_need(arguments, loaded):
    """`--help` needs none of them, and a run no scipy and no web server: a start takes a fraction
    of a second."""
    code = f"""
import runpy, sys
sys.argv = ["harness", *{arguments}, "--help"]
try:
    runpy.run_module("harness", run_name="__main__", alter_sys=True)
except SystemExit as exit:
    assert not exit.code, exit.code
print("loaded", *({SLOW} & set(sys.modules)))
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert set(done.stdout.splitlines()[-1].split()) == {"loaded", "harness.cli", *loaded}


def test_nothing_asks_which_methods_a_benchmark_overrides():
    """Flags of its objects say what they are (docs/design.md, section 2)."""
    asks = re.compile(r"\bis (not )?(Benchmark|Scoring|Means|Records|Cards|TaskFiles)\.\w")
    assert [
        file.name for file in PACKAGE.rglob("*.py") if asks.search(file.read_text(encoding="utf-8"))
    ] == []
