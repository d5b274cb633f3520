"""Commands that only one benchmark has: its module has the options and returns what is shown.

`harness.benchmarks.registry.COMMANDS` names the modules. A module has `Options`, a frozen dataclass
(`harness.option`), and `execute(options)`, which returns the data that `--json` prints, and blocks
for people. Sentences under `warnings` in the data are printed with the blocks.
"""

from __future__ import annotations

from harness.benchmarks import registry
from harness.option import command_options
from harness.options import options
from harness.reporting.text import rendered
from harness.ui.console import console
from harness.ui.streams import show, show_json


@command_options
class Options(options.AsJson):
    """`extension_options` has the benchmark's own options, by the name of the command."""


def execute(args: Options) -> int:
    [(name, benchmark_options)] = args.extension_options.items()
    data, blocks = registry.command_module(name).execute(benchmark_options)
    if args.json:
        show_json(data)
    else:
        screen = console()
        show(rendered(blocks, screen.width))
        for warning in data.get("warnings", ()):
            screen.print(f"warning: {warning}", style="yellow")
    return 0
