"""`stop`: end a run that is being played, as Ctrl-C in its terminal does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from harness.commands.set import named_run
from harness.commands.watch import OnePlaying
from harness.engine import control_calls as calls
from harness.option import command_options
from harness.options import options
from harness.ui.streams import show


@command_options
class Options(OnePlaying):
    examples: ClassVar[Sequence[str]] = ("harness stop deepseek-chat",)
    run: str = options.run_option()


def execute(args: Options) -> int:
    with calls.connected(named_run(args)) as call:
        answer = call.ask("stop")
    show(
        f"{args.run}: stopping; requests in flight have {answer.get('seconds', 0):g} seconds. Go on"
        f" with `harness resume --name {args.run}`"
    )
    return 0
