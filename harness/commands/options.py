"""Options that several commands share, and what they mean."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from harness import config
from harness.errors import BadInput


def add_folders(parser: argparse.ArgumentParser, *, of_earlier_runs: bool = False) -> None:
    """An earlier run knows where its tasks were; the option then says where they are now."""
    default = None if of_earlier_runs else config.TASKS_FOLDER
    told = "where the runs' tasks are now (default: where they were)" if of_earlier_runs else "default: tasks"
    parser.add_argument("--tasks-dir", type=Path, default=default, metavar="DIR", help=told)
    parser.add_argument(
        "--results-dir", type=Path, default=config.RESULTS_FOLDER, metavar="DIR", help="default: results"
    )


def add_which(parser: argparse.ArgumentParser) -> None:
    """Which runs a command is about; all where nothing is named."""
    parser.add_argument("--name", help="name of the run (its folder under the results)")
    parser.add_argument("--model", help="the run of this model")
    parser.add_argument("--platform", "--subset", action="append", metavar="P", help="one subset; may be repeated")


def add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")


def add_key(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group(
        "endpoint (else LLM_API_BASE and LLM_API_KEY, or OPENAI_BASE_URL and OPENAI_API_KEY)"
    )
    group.add_argument(
        "--api-url", "--api_url", "--base-url", metavar="URL", help="address of the endpoint, to its /v1"
    )
    group.add_argument(
        "--api-key", "--api_key", metavar="KEY", help="shown in the process list: better a file or a variable"
    )
    group.add_argument("--api-key-file", type=Path, metavar="FILE", help="a file that holds the key")


def add_tuning(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("tuning (free to change on resume)")

    def add(flag: str, kind: Callable[[str], object], metavar: str, told: str) -> None:
        group.add_argument(flag, type=kind, metavar=metavar, help=told)

    concurrency = f"requests in flight at most, or `auto` (default: BENCH_MAX_WORKERS or {config.CONCURRENCY})"
    add("--concurrency", concurrency_value, "N", concurrency)
    add("--auto-start", positive_int, "N", f"what auto begins with (default: what it learned, or {config.AUTO_START})")
    add("--auto-floor", positive_int, "N", f"the least that auto goes down to (default: {config.AUTO_FLOOR})")
    add("--auto-ceiling", positive_int, "N", f"the most that auto goes up to (default: {config.AUTO_CEILING})")
    add("--rpm", positive_float, "N", "requests a minute at most")
    add("--tpm", positive_float, "N", "tokens a minute at most, prompts and completions")
    add("--timeout", positive_float, "S", f"seconds for one whole reply (default: {config.TIMEOUT_SECONDS:g})")
    add("--max-retries", natural, "N", f"other tries of a request after the first (default: {config.MAX_RETRIES})")
    outage = f"seconds without any answer until the run stops (default: {config.MAX_OUTAGE_SECONDS:g})"
    add("--max-outage", positive_float, "S", outage)
    group.add_argument(
        "--durability",
        choices=("process", "power"),
        help="what a saved reply survives: this process (default), or a power loss",
    )


AUTO = "auto"


def tuning(args: argparse.Namespace, learned: int | None = None) -> config.Tuning:
    """The tuning of a command; `learned` is the limit that an earlier process of the run had found."""
    concurrency = args.concurrency or _concurrency_of_environment()
    made = config.Tuning(
        concurrency=None if concurrency == AUTO else concurrency,
        start=args.auto_start or learned or config.AUTO_START,
        floor=args.auto_floor or config.AUTO_FLOOR,
        ceiling=args.auto_ceiling or config.AUTO_CEILING,
        rpm=args.rpm,
        tpm=args.tpm,
        timeout=args.timeout or config.TIMEOUT_SECONDS,
        max_retries=config.MAX_RETRIES if args.max_retries is None else args.max_retries,
        max_outage=args.max_outage or config.MAX_OUTAGE_SECONDS,
        durability=args.durability or config.DURABILITY,
    )
    if made.floor > made.ceiling:
        raise BadInput(f"--auto-floor {made.floor} is above --auto-ceiling {made.ceiling}")
    return made


def _concurrency_of_environment() -> Any:
    value = os.environ.get("BENCH_MAX_WORKERS")
    if not value:
        return config.CONCURRENCY
    try:
        return concurrency_value(value)
    except argparse.ArgumentTypeError as error:
        raise BadInput(f"BENCH_MAX_WORKERS: {error}") from None


def concurrency_value(text: str) -> Any:
    """A whole number from 1, or `auto`."""
    return AUTO if text == AUTO else positive_int(text)


def natural(text: str) -> int:
    return _whole(text, 0)


def positive_int(text: str) -> int:
    return _whole(text, 1)


def _whole(text: str, least: int) -> int:
    try:
        number = int(text)
    except ValueError:
        number = least - 1
    if number < least:
        raise argparse.ArgumentTypeError(f"expected a whole number from {least}, got {text!r}")
    return number


def positive_float(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"expected a number above 0, got {text!r}")
    return number


def share(text: str) -> float:
    number = positive_float(text)
    if number > 1:
        raise argparse.ArgumentTypeError(f"expected a share above 0 and at most 1, got {text!r}")
    return number


def run_name(name: str | None, model: str) -> str:
    """The folder's name: as given, or the last part of the model's name, as the authors' runner has it."""
    chosen = name if name is not None else model.rstrip("/").rsplit("/", 1)[-1]
    if not chosen or chosen.startswith(".") or "/" in chosen or "\\" in chosen or not chosen.isprintable():
        raise BadInput(f"{chosen!r} cannot name a run's folder: give another with --name")
    return chosen
