"""Commands that only one benchmark has: its module has the options and returns what is shown.

`harness.benchmarks.registry.COMMANDS` names the modules. A module has `Options`, a frozen dataclass (`harness.option`),
and `execute(options)`, which returns the data that `--json` prints, and blocks for people. Sentences under `warnings`
in the data are printed with the blocks.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import Any, ClassVar

from harness.config import options
from harness.report.text import rendered
from harness.ui.console import console
from harness.ui.streams import show, show_json


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Extra(options.AsJson):
    module: ClassVar[str]


def options_of(module: str) -> type[Extra]:
    """Return the class of options of a benchmark's command."""
    return type("Options", (Extra, import_module(module).Options), {"module": module})


def execute(args: Extra) -> int:
    found: Any = import_module(args.module)
    data, blocks = found.execute(args)
    if args.json:
        show_json(data)
    else:
        screen = console()
        show(rendered(blocks, screen.width))
        for warning in data.get("warnings", ()):
            screen.print(f"warning: {warning}", style="yellow")
    return 0
