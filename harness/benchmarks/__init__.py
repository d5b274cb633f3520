"""The benchmarks that ship, by name. A new one is a folder here and a line in `SHIPPED`."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from harness.errors import BadInput

SHIPPED = {
    "streamprofile": "harness.benchmarks.streamprofile.benchmark",
    "dailymobility": "harness.benchmarks.dailymobility.benchmark",
}


def names() -> tuple[str, ...]:
    return tuple(SHIPPED)


def module(name: str) -> Any:
    """The module of a benchmark, by its name in any case.

    It offers `SUBSETS`; `add_arguments(parser)`; `files_needed(subset)`, names below the tasks folder, the tasks file
    first; `settings(args, folder)` of a command and `settings_again(identity, source, folder)` of an earlier run,
    `folder` being the tasks folder; and `configure(settings)`, which makes the benchmark. Where the settings hold
    `play: False`, it only measures saved answers, and no code that a user named is run.
    """
    path = SHIPPED.get(name.lower())
    if path is None:
        raise BadInput(f"unknown benchmark {name!r}: this harness has {', '.join(SHIPPED)}")
    return import_module(path)
