"""`stop`: end a run that is being played, as Ctrl-C in its terminal does."""

from __future__ import annotations

import argparse

from harness.features.view import calls
from harness.features.view.setting import one_of
from harness.features.view.watching import add_run
from harness.ui.streams import show

EXAMPLES = ("harness stop deepseek-chat",)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_run(parser, "name of the run")


def execute(args: argparse.Namespace) -> int:
    with calls.connected(one_of(args)) as call:
        answer = call.ask("stop")
    show(
        f"{args.run}: stopping; requests in flight have {answer.get('seconds', 0):g} seconds. Go on with "
        f"`harness resume --name {args.run}`"
    )
    return 0
