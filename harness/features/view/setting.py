"""`set`: change the limits of a run while it is played."""

from __future__ import annotations

import argparse

from harness.config import options
from harness.errors import BadInput
from harness.features.view import calls
from harness.features.view.watching import add_run, found
from harness.store.files import RunFiles
from harness.ui.streams import show
from harness.ui.words import plural

EXAMPLES = ("harness set deepseek-chat --concurrency 32 --rpm 300",)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_run(parser, "name of the run")
    words = "maximum requests in flight, or `auto`"
    options.add(parser, "--concurrency N", words, type=options.concurrency_value)
    options.add(parser, "--rpm N", "maximum requests per minute", type=options.positive_float)
    options.add(parser, "--tpm N", "maximum tokens per minute, prompts and completions", type=options.positive_float)


def execute(args: argparse.Namespace) -> int:
    limits = {name: str(value) for name in ("concurrency", "rpm", "tpm") if (value := getattr(args, name)) is not None}
    if not limits:
        raise BadInput("name a limit: --concurrency, --rpm or --tpm")
    with calls.connected(one_of(args)) as call:
        answer = call.ask("set", **limits)
    words = ", ".join(f"{name} {value.removesuffix('.0')}" for name, value in limits.items())
    also = [name for name in answer.get("runs", ()) if name != args.run]
    show(f"{args.run}: {words}" + (f"; also for {', '.join(also)}, which shares the account" if also else ""))
    if (parts := answer.get("part", 1)) > 1:
        show(f"this is one of {plural(parts, 'part')}, which has its share of these limits")
    return 0


def one_of(args: argparse.Namespace) -> RunFiles:
    """Return the run that is named, of its subsets one that is being played. Raise `BadInput`."""
    named = found(args)
    there = [files for files in named if calls.socket_of(files).exists()]
    if not named:
        raise BadInput(f"no run {args.run} under {args.results_dir}: `harness status` lists them")
    return (there or named)[0]
