"""`synth`: schema-true synthetic tasks of any size, for StreamProfileBench in constant memory."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable
from pathlib import Path

from harness import benchmarks, config
from harness.benchmarks.dailymobility import synth as mobility
from harness.benchmarks.streamprofile.platforms import PLATFORMS
from harness.benchmarks.streamprofile.synth import generate
from harness.commands import options
from harness.errors import BadInput
from harness.store.atomic import replacing
from harness.ui.console import console

MEAN_STEPS = 6.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("benchmark", nargs="?", default=config.BENCHMARK, help=f"default: {config.BENCHMARK}")
    parser.add_argument("--out", type=options.folder, required=True, metavar="DIR", help="folder to write into")
    parser.add_argument("--users", type=options.positive_int, required=True, metavar="N", help="users of each platform")
    parser.add_argument("--seed", type=options.signed_int, default=0, metavar="S")
    parser.add_argument("--platform", action="append", choices=PLATFORMS, help="may be repeated (default: all five)")
    parser.add_argument(
        "--steps", type=options.positive_float, metavar="MEAN", help="mean steps of a user (default: 6)"
    )


def execute(args: argparse.Namespace) -> int:
    benchmark = benchmarks.module(args.benchmark)
    if benchmark is benchmarks.module("dailymobility"):
        return _mobility(args, args.out / benchmark.FOLDER)
    paths = {platform: args.out / f"{platform}_inference_tasks.jsonl" for platform in args.platform or PLATFORMS}
    _free(paths.values())
    screen = console()
    _make(args.out)
    for platform, path in paths.items():
        with replacing(path) as file:
            file.writelines(generate(platform, args.users, args.seed, args.steps or MEAN_STEPS))
        screen.print(f"{path}: {args.users} synthetic users", soft_wrap=True)
    return 0


def _mobility(args: argparse.Namespace, folder: Path) -> int:
    """A small city, its residents and their ground truth, in the folder where the harness looks for them."""
    for option in ("platform", "steps"):
        if getattr(args, option) is not None:
            raise BadInput(f"--{option} is an option of StreamProfileBench, and this is DailyMobility")
    made = {folder / name: content for name, content in mobility.files(args.users, args.seed).items()}
    _free(made)
    for path, content in made.items():
        _make(path.parent)
        with replacing(path) as file:
            file.write(content)
    console().print(f"{folder}: a synthetic city with {args.users} residents", soft_wrap=True)
    return 0


def _free(paths: Iterable[Path]) -> None:
    """Refuses to take the place of tasks that are there, which may be real ones."""
    for path in paths:
        if os.path.lexists(path):
            raise BadInput(f"{path} is there already: name a folder without tasks with --out, or move it away")


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(f"cannot make {folder}: {error.strerror}") from None
