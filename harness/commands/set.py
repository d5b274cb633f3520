"""`set`: change the limits of a run while it is played."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import ClassVar, Literal

from harness.commands.watch import OnePlaying, selected
from harness.engine import control_calls as calls
from harness.errors import BadInput
from harness.option import POSITIVE, command_options, option
from harness.options import options
from harness.options.fields import CONCURRENCY
from harness.store.files import RunFiles
from harness.ui.streams import show
from harness.ui.words import plural

limit = partial(option, None, unit="N", everyday=True)


@command_options
class Options(OnePlaying):
    examples: ClassVar[Sequence[str]] = ("harness set deepseek-chat --concurrency 32 --rpm 300",)
    run: str = options.run_option()
    concurrency: int | Literal["auto"] | None = limit(
        "maximum requests in flight, or `auto`", read=options.concurrency, check=CONCURRENCY
    )
    rpm: float | None = limit("maximum requests per minute", check=POSITIVE)
    tpm: float | None = limit("maximum tokens per minute, prompts and completions", check=POSITIVE)


def execute(args: Options) -> int:
    # What a settings file has is for runs that begin.
    typed = args.typed & {"concurrency", "rpm", "tpm"}
    limits = {name: str(getattr(args, name)) for name in sorted(typed)}
    if not limits:
        raise BadInput("name a limit: --concurrency, --rpm or --tpm")
    with calls.connected(named_run(args)) as call:
        answer = call.ask("set", **limits)
    line = f"{args.run}: "
    line += ", ".join([f"{name} {value.removesuffix('.0')}" for name, value in limits.items()])
    other_runs = [name for name in answer.get("runs", ()) if name != args.run]
    if other_runs:
        line += f"; also for {', '.join(other_runs)}, at the same account"
    show(line)
    number_of_parts = answer.get("part", 1)
    if number_of_parts > 1:
        show(
            f"this is one of {plural(number_of_parts, 'part')}, which has its share of these limits"
        )
    return 0


def named_run(args: OnePlaying) -> RunFiles:
    """Return the run that is named, of its subsets one that is being played. Raise `BadInput`."""
    subsets = selected(args)
    if not subsets:
        raise BadInput(f"no run {args.run} under {args.results_dir}: `harness status` lists them")
    for files in subsets:
        if calls.socket_of(files).exists():
            return files
    # No process has any: connecting to one of them raises the message that says so.
    return subsets[0]
