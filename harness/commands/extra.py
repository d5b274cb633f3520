"""Commands that only one benchmark has: its module adds the arguments and returns what is shown.

`harness.benchmarks.registry.COMMANDS` names the modules. A module has `add_arguments(parser, folder)`, `folder` being
the type of an argument that names one, and `execute(args)`, which returns the data that `--json` prints, and blocks for
people. Sentences under `warnings` in the data are printed with the blocks.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from rich import table

from harness.benchmarks import registry
from harness.config import options
from harness.model import Block, Paragraph, Table, Verbatim
from harness.ui.console import console
from harness.ui.streams import show_json


class Extra:
    """A command by its name, with the functions that modules of commands have."""

    def __init__(self, name: str) -> None:
        self._module: Any = import_module(registry.COMMANDS[name].module)

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        self._module.add_arguments(parser, options.folder)
        options.add_json(parser)

    def execute(self, args: argparse.Namespace) -> int:
        data, blocks = self._module.execute(args)
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
