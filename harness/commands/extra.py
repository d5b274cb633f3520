"""Commands that only one benchmark has: its module has the options and returns what is shown.

`harness.benchmarks.registry.COMMANDS` names the modules. A module has `Options`, a frozen dataclass (`harness.option`),
and `execute(options)`, which returns the data that `--json` prints, and blocks for people. Sentences under `warnings`
in the data are printed with the blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, ClassVar

from rich import table

from harness.config import options
from harness.model import Block, Paragraph, Table, Verbatim
from harness.ui.console import console
from harness.ui.streams import show_json


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
        _show(blocks, data.get("warnings", ()))
    return 0


def _show(blocks: Sequence[Block], warnings: Sequence[str]) -> None:
    screen = console()
    for block in blocks:
        match block:
            case Table():
                for part in ("", _table(block), ""):
                    screen.print(part)
            case Verbatim(text):
                screen.print(text, soft_wrap=True)
            case Paragraph(text):
                screen.print(text)
            case _:
                raise TypeError(f"a command shows tables, paragraphs and verbatim text, got {type(block).__name__}")
    for warning in warnings:
        screen.print(f"warning: {warning}", style="yellow")


def _table(of: Table) -> table.Table:
    shown = table.Table(box=None, pad_edge=False)
    for name in of.columns:
        shown.add_column(name, justify="right" if name else "left")
    for row in of.rows:
        shown.add_row(*row)
    return shown
