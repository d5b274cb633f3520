"""Commands that only one benchmark has: its module has the options and returns what is shown.

`harness.benchmarks.registry.COMMANDS` names the modules. A module has `Options`, a frozen dataclass (`harness.option`),
and `execute(options)`, which returns the data that `--json` prints, and blocks for people. Sentences under `warnings`
in the data are printed with the blocks.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from harness.reporting.text import rendered
from harness.ui.console import console
from harness.ui.streams import show, show_json


def execute(args: Any) -> int:
    declares = type(args).__bases__[-1]  # the module's own options, after those that features add
    data, blocks = import_module(declares.__module__).execute(args)
    if args.json:
        show_json(data)
    else:
        screen = console()
        show(rendered(blocks, screen.width))
        for warning in data.get("warnings", ()):
            screen.print(f"warning: {warning}", style="yellow")
    return 0
