"""The benchmarks that ship as examples: each one is short, needs nothing but the public names, and
keeps its contract on the tasks that ship with it."""

from __future__ import annotations

import ast
import sys

import pytest

from harness.cli import main
from tests.support import ROOT

LONGEST = {"star_rating": 60, "twins": 149, "hurricane": 149}
"""Lines of each example's file: a reader gets through it at one sitting."""
LIBRARIES = {"harness", "numpy"}
AGENTS = "harness.benchmarks."
"""What a benchmark whose residents are agents needs in addition."""


@pytest.mark.parametrize("name", LONGEST)
def test_example_is_short_and_imports_only_public_names(name):
    source = (ROOT / "examples" / name / f"{name}.py").read_text(encoding="utf-8")
    assert len(source.splitlines()) <= LONGEST[name]
    for node in ast.walk(ast.parse(source)):
        modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        modules += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        for module in modules:
            is_public = module in LIBRARIES or module.split(".")[0] in sys.stdlib_module_names
            assert is_public or (name == "hurricane" and module.startswith(AGENTS))


@pytest.mark.parametrize("name", LONGEST)
def test_example_keeps_its_contract_on_the_tasks_that_ship(name):
    """`check-benchmark` finds nothing, with the example's own baselines as models."""
    folder = ROOT / "examples" / name
    words = ["check-benchmark", str(folder / f"{name}.py"), "--tasks-dir", str(folder)]
    assert main(words) == 0
