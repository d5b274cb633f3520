"""`set`: change the limits of a run while it is played."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import ClassVar, Literal

from harness.commands.watch import OnePlaying, found
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
    given = args.typed & {
        "concurrency",
        "rpm",
        "tpm",
    }  # what a settings file has is for runs that begin
    limits = {name: str(getattr(args, name)) for name in sorted(given)}
    if not limits:
        raise BadInput("name a limit: --concurrency, --rpm or --tpm")
    with calls.connected(one_of(args)) as call:
        answer = call.ask("set", **limits)
    words = ", ".join(f"{name} {value.removesuffix('.0')}" for name, value in limits.items())
    also = [name for name in answer.get("runs", ()) if name != args.run]
    show(
        f"{args.run}: {words}"
        + (f"; also for {', '.join(also)}, at the same account" if also else "")
    )
    if (parts := answer.get("part", 1)) > 1:
        show(f"this is one of {plural(parts, 'part')}, which has its share of these limits")
    return 0


def one_of(args: OnePlaying) -> RunFiles:
    """Return the run that is named, of its subsets one that is being played. Raise `BadInput`."""
    named = found(args)
    there = [files for files in named if calls.socket_of(files).exists()]
    if not named:
        raise BadInput(f"no run {args.run} under {args.results_dir}: `harness status` lists them")
    return (there or named)[0]
