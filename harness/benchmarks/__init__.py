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
    `play: False`, it only measures saved answers, and no code that a user named is run. `digests` in them are the
    SHA-256 of the prompt's or agent's files in a run's folder, by name: no other file is run, and none that changed.
    """
    path = SHIPPED.get(name.lower())
    if path is None:
        raise BadInput(f"unknown benchmark {name!r}: this harness has {', '.join(SHIPPED)}")
    return import_module(path)


def page_module(name: str) -> Any:
    """What makes pages of a benchmark's reports.

    It offers `HEADLINE`, names of metrics; `page(data)` of a JSON report; `mark(kind)`, bytes in the line of a record
    with an invalid answer of that kind; and `UserCards(benchmark, run, posts)`, its `Cards`.
    """
    return import_module(f"{module(name).__package__}.page")
