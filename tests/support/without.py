"""A plugin of pytest for a checkout from which extensions were deleted: leave out the tests that
are about them.

`HARNESS_WITHOUT` has their packages and flags, separated by spaces. A test is about an extension if
its code, the code of a fixture, function or class of the tests that it names, or one of its
parameters has one of these words.
"""

from __future__ import annotations

import ast
import inspect
import json
import os
import re
import sys
from collections import Counter
from functools import cache
from types import FunctionType
from typing import Any

import pytest

WORDS = os.environ.get("HARNESS_WITHOUT", "").split()
LEFT_OUT = "left_out.json"
"""In the checkout: of each file of tests, how many were left out, and of how many."""


ABOUT = (
    re.compile(rf"""["'`/ =\[](?:{"|".join(map(re.escape, WORDS))})(?![\w-])""") if WORDS else None
)


@pytest.hookimpl(trylast=True)  # of what is deselected nothing has to be read
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if ABOUT is None:
        return
    left_out = [item for item in items if is_about(item)]
    files = [
        Counter(str(item.path.relative_to(config.rootpath)) for item in some)
        for some in (left_out, items)
    ]
    counts = {file: (files[0][file], number) for file, number in files[1].items()}
    (config.rootpath / LEFT_OUT).write_text(json.dumps(counts))
    config.hook.pytest_deselected(items=left_out)
    chosen = {*items}.difference(left_out)
    items[:] = [item for item in items if item in chosen]


def is_about(item: Any) -> bool:
    """Return whether a test is about an extension that is not there."""
    assert ABOUT
    names = {item.function.__name__, *item.fixturenames}
    given = repr([*item.callspec.params.values()]) if hasattr(item, "callspec") else ""
    return bool(ABOUT.search(given)) or any(_names_one(item.module, name) for name in names)


@cache
def _names_one(module: Any, name: str, depth: int = 0) -> bool:
    """Return whether the code of a function or class, or of what it names of the tests, has one of
    the words."""
    found = getattr(module, name, None)
    found = inspect.unwrap(getattr(found, "_fixture_function", found)) if callable(found) else found
    if not isinstance(found, FunctionType | type) or not found.__module__.startswith("tests."):
        return False
    module = sys.modules[found.__module__]
    assert ABOUT
    if ABOUT.search(_source(found)):
        return True
    functions = (
        [found]
        if isinstance(found, FunctionType)
        else filter(inspect.isfunction, vars(found).values())
    )
    named = (
        {name for function in functions for name in function.__code__.co_names}
        if depth < 3
        else set()
    )
    return any(_names_one(module, other, depth + 1) for other in named)


def _source(found: FunctionType | type) -> str:
    """Return the code of a function or class of a module; `inspect` would tokenize each."""
    lines, places = _definitions(sys.modules[found.__module__])
    start, end = places.get(found.__qualname__.replace(".<locals>", ""), (0, 0))
    return "".join(lines[start:end]) if end else inspect.getsource(found)


@cache
def _definitions(module: Any) -> tuple[list[str], dict[str, tuple[int, int]]]:
    """Return the lines of a module, and where its functions and classes are in them. Parameters in
    a decorator are each a test's own."""
    text, places = inspect.getsource(module), dict[str, tuple[int, int]]()

    def walk(node: ast.AST, prefix: str) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                name = f"{prefix}{child.name}"
                places[name] = child.lineno - 1, child.end_lineno or child.lineno
                walk(child, f"{name}.")
            else:
                walk(child, prefix)

    walk(ast.parse(text), "")
    return text.splitlines(keepends=True), places
