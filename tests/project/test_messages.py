"""Messages: what they advise can be done where the harness is installed."""

from __future__ import annotations

import ast
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

from harness.commands.parser import COMMANDS, built, parser
from harness.errors import to_install
from tests.support import ROOT

IN_REPORTS = "harness/benchmarks/streamprofile/summary.py"
"""Its reports have the same bytes as those of earlier versions."""


ELSEWHERE = ("docs/", "pip install")


def texts(path: Path) -> Iterator[str]:
    """Yield the strings of a module that are no docstrings, where it has one of `ELSEWHERE`."""
    source = path.read_text(encoding="utf-8")
    if not any(words in source for words in ELSEWHERE):
        return
    tree = ast.parse(source)
    bare = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in bare:
            yield node.value


def test_no_message_names_a_page_that_a_wheel_lacks_or_another_environments_pip():
    """Pages are in the checkout alone; `pip install` alone may reach another Python than the one
    that runs."""
    found = {
        (str(path.relative_to(ROOT)), text)
        for path in (ROOT / "harness").rglob("*.py")
        for text in texts(path)
        if any(words in text for words in ELSEWHERE)
    }
    allowed = {IN_REPORTS, "harness/errors.py", "harness/cli.py"}
    assert {name for name, _ in found} <= allowed
    assert not [
        name
        for name in COMMANDS
        if "docs/" in parser(built(name, ()), ["--help-all"]).format_help()
    ]


def test_command_that_installs_an_extra_is_for_the_python_that_runs():
    words = shlex.split(to_install("behavior-harness[export]"))
    assert words == [sys.executable, "-m", "pip", "install", "behavior-harness[export]"]
