"""Options that several commands share, and their meaning."""

from __future__ import annotations

import argparse
import math
import os
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from harness import defaults
from harness.benchmarks import registry
from harness.config import fields
from harness.defaults import AUTO, BITS_64, CONCURRENCY_MOST, RETRIES_MOST, SECONDS_MOST, STREAMS
from harness.errors import BadInput, shown
from harness.model import JSON

NAME_BYTES = 200
"""Longest name of a run: file systems allow 255, and backups append to names."""

RESERVED = frozenset({defaults.INDEX_FOLDER, defaults.EXCEL_FOLDER, defaults.ALL_RUNS_PAGE})

SEED_MOST = 2**32 - 1


def add_folders(parser: argparse.ArgumentParser, *, of_earlier_runs: bool = False) -> None:
    """Add the folders of tasks and results; with `of_earlier_runs` the tasks' default is where they were."""
    default = None if of_earlier_runs else defaults.TASKS_FOLDER
    words = "where the runs' tasks are now (default: where they were)" if of_earlier_runs else "default: tasks"
    parser.add_argument("--tasks-dir", type=folder, default=default, metavar="DIR", help=words)
    parser.add_argument(
        "--results-dir", type=folder, default=defaults.RESULTS_FOLDER, metavar="DIR", help="default: results"
    )


def add_which(parser: argparse.ArgumentParser) -> None:
    """Add the options that select runs; without them, all."""
    parser.add_argument("--name", type=folder_name, help="name of the run (its folder under the results)")
    parser.add_argument("--model", type=filled, help="the run of this model")
    add_platform(parser, "one subset; may be repeated")


def add_platform(parser: argparse.ArgumentParser, words: str) -> None:
    parser.add_argument("--platform", "--subset", type=filled, action="append", metavar="P", help=words)


def add_benchmark(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "benchmark",
        nargs="?",
        type=filled,
        default=defaults.BENCHMARK,
        metavar="BENCHMARK",
        help=f"one that ships, FILE.py or package.module:Name (default: {defaults.BENCHMARK})",
    )


def benchmark_named(parser: argparse.ArgumentParser, words: Sequence[str]) -> str:
    """Return the benchmark among a command's words, before its own flags are defined: the first word that is neither an
    option nor its value. An undefined option may take the next word, unless that is a benchmark."""
    known, left = parser._option_string_actions, deque(words)
    while left:
        option, _, value = left.popleft().partition("=")
        if not option.startswith("-"):
            return option
        action = known.get(option)
        takes_one = action.nargs != 0 if action else not (left and registry.is_shipped(left[0]))
        if takes_one and not value and left and not left[0].startswith("-"):
            left.popleft()
    return defaults.BENCHMARK


def add_sample_seed(parser: argparse.ArgumentParser, words: str) -> None:
    kind = whole(0, SEED_MOST)
    parser.add_argument("--sample-seed", type=kind, default=defaults.SAMPLE_SEED, metavar="N", help=words)


def add_page(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--no-html", dest="html", action="store_false", help="make no page (`report` makes it at any time)"
    )


def add_no_color(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--no-color", action="store_true", help="show no colours (as NO_COLOR in the environment does)")


def add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")


def add_key(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group(
        "endpoint (else LLM_API_BASE and LLM_API_KEY, or OPENAI_BASE_URL and OPENAI_API_KEY)"
    )
    group.add_argument(
        "--api-url",
        "--api_url",
        "--base-url",
        type=filled,
        action="append",
        metavar="URL",
        help="address of the endpoint, to its /v1; may be repeated, for several servers of the same model",
    )
    group.add_argument(
        "--api-key", "--api_key", metavar="KEY", help="shown in the process list: better a file or a variable"
    )
    group.add_argument("--api-key-file", type=Path, metavar="FILE", help="a file that holds the key")
    group.add_argument("--provider", type=filled, metavar="NAME", help="one of the providers file (docs/providers.md)")
    group.add_argument(
        "--providers",
        type=Path,
        metavar="FILE",
        help="your own providers file (default: providers.toml here, or in ~/.config/behavior-harness)",
    )
    group.add_argument(
        "--extra-header",
        type=header,
        action="append",
        default=[],
        metavar="NAME:VALUE",
        help="one more header for every request; may be repeated",
    )
    group.add_argument(
        "--ca-file", type=ca_file, metavar="FILE", help="certificates to trust in addition to the system's"
    )


def add_trust(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--trust",
        action="store_true",
        help="run the code of benchmarks, prompts and agents in folders of runs not made by you on this machine",
    )
    parser.add_argument(
        "--benchmark",
        type=filled,
        metavar="FILE.py",
        help="the benchmark of the run as you have it, in place of the copy in its folder (or package.module:Name)",
    )


def add_tuning(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("tuning (free to change on resume)")

    def add(flag: str, kind: Callable[[str], object], metavar: str, words: str) -> None:
        group.add_argument(flag, type=kind, metavar=metavar, help=words)

    concurrency = f"most requests in flight, or `auto` (default: BENCH_MAX_WORKERS or {defaults.CONCURRENCY})"
    add("--concurrency", concurrency_value, "N", concurrency)
    add("--auto-start", requests, "N", f"where auto starts (default: what it learned, or {defaults.AUTO_START})")
    add("--auto-floor", requests, "N", f"lower limit of auto (default: {defaults.AUTO_FLOOR})")
    add("--auto-ceiling", requests, "N", f"upper limit of auto (default: {defaults.AUTO_CEILING})")
    add("--rpm", positive_float, "N", "most requests per minute")
    add("--tpm", positive_float, "N", "most tokens per minute, prompts and completions")
    add("--timeout", seconds, "S", f"seconds for one whole reply (default: {defaults.TIMEOUT_SECONDS:g})")
    stall = f"seconds between two pieces of a streamed reply (default: {defaults.STALL_SECONDS:g})"
    add("--stall-timeout", seconds, "S", stall)
    group.add_argument(
        "--stream",
        choices=STREAMS,
        help="whether replies are streamed (default: auto, only if an endpoint requires it)",
    )
    add("--max-retries", retries, "N", f"retries of a request after the first try (default: {defaults.MAX_RETRIES})")
    outage = f"seconds without any answer until the run stops (default: {defaults.MAX_OUTAGE_SECONDS:g})"
    add("--max-outage", seconds, "S", outage)
    group.add_argument(
        "--durability",
        choices=("process", "power"),
        help="what a saved reply survives: this process (default), or a power loss",
    )


PLAIN = ("rpm", "tpm", "timeout", "stream", "max_retries", "max_outage", "durability")
"""Parts of the tuning that are used as given."""


def tuning(args: argparse.Namespace, earlier: JSON | None = None) -> defaults.Tuning:
    """Return the tuning of a command: from its options, else from an earlier process of the run, else defaults."""
    had = earlier or {}
    default = defaults.Tuning()

    def value(name: str) -> Any:
        given = getattr(args, name)
        return given if given is not None else had.get(name, getattr(default, name))

    made = defaults.Tuning(
        stall=args.stall_timeout or had.get("stall") or default.stall,
        concurrency=_concurrency(args, had),
        start=args.auto_start or had.get("learned_limit") or had.get("start") or default.start,
        floor=args.auto_floor or had.get("floor") or default.floor,
        ceiling=args.auto_ceiling or had.get("ceiling") or default.ceiling,
        **{name: value(name) for name in PLAIN},
    )
    if made.floor > made.ceiling:
        raise BadInput(f"--auto-floor {made.floor} is above --auto-ceiling {made.ceiling}")
    return made


def _concurrency(args: argparse.Namespace, had: JSON) -> int | None:
    if args.concurrency is None and "concurrency" in had:
        kept: int | None = had["concurrency"]
        return kept
    asked = args.concurrency or _concurrency_of_environment()
    return None if asked == AUTO else int(asked)


def _concurrency_of_environment() -> Any:
    value = os.environ.get("BENCH_MAX_WORKERS")
    if not value:
        return defaults.CONCURRENCY
    try:
        return concurrency_value(value)
    except argparse.ArgumentTypeError as error:
        raise BadInput(f"BENCH_MAX_WORKERS: {error}") from None


def concurrency_value(text: str) -> Any:
    """A number of requests, or `auto`."""
    try:
        return AUTO if text == AUTO else requests(text)
    except argparse.ArgumentTypeError as error:
        raise argparse.ArgumentTypeError(f"{error} (or {AUTO})") from None


def whole(least: int, most: int) -> Callable[[str], int]:
    """The type of options that take a whole number within bounds, both included."""

    def parse(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            number = least - 1
        if not least <= number <= most:
            raise argparse.ArgumentTypeError(f"expected a whole number from {least} to {most}, got {shown(text)}")
        return number

    return parse


requests = whole(1, CONCURRENCY_MOST)
retries = whole(0, RETRIES_MOST)
positive_int = whole(1, BITS_64 - 1)
signed_int = whole(-BITS_64, BITS_64 - 1)


def finite(text: str) -> float:
    """A number, NaN where the text is none or one without end."""
    try:
        number = float(text)
    except ValueError:
        return math.nan
    return number if math.isfinite(number) else math.nan


def positive_float(text: str) -> float:
    number = finite(text)
    if not number > 0:
        raise argparse.ArgumentTypeError(f"expected a number above 0, got {shown(text)}")
    return number


def not_negative(text: str) -> float:
    number = finite(text)
    if not number >= 0:
        raise argparse.ArgumentTypeError(f"expected a number from 0, got {shown(text)}")
    return number


def seconds(text: str) -> float:
    number = finite(text)
    if not 0 < number <= SECONDS_MOST:
        raise argparse.ArgumentTypeError(f"expected seconds above 0 and at most a year, got {shown(text)}")
    return number


def share(text: str) -> float:
    number = finite(text)
    if not 0 < number <= 1:
        raise argparse.ArgumentTypeError(f"expected a number above 0 and at most 1, got {shown(text)}")
    return number


def filled(text: str) -> str:
    """Refuse an empty word, which would otherwise count as missing and so select everything."""
    if not text.strip():
        raise argparse.ArgumentTypeError("expected a name, got nothing (a variable that is not set?)")
    return text


def folder(text: str) -> Path:
    """Parse a folder that exists or can be created."""
    if not text:
        raise argparse.ArgumentTypeError("expected a folder, got nothing (a variable that is not set?)")
    try:
        os.stat(os.path.join(text, "."))
    except FileNotFoundError:
        pass
    except OSError as error:
        raise argparse.ArgumentTypeError(f"cannot use {shown(text)}: {error.strerror}") from None
    return Path(text)


def file_of(*endings: str) -> Callable[[str], Path]:
    """Return the type of a file to write, with the endings that its name may have: none of a record, a task or a log,
    so that a typing error overwrites only what can be made again."""

    def path(text: str) -> Path:
        made = Path(filled(text))
        if made.suffix.lower() not in endings or "\0" in text:
            raise argparse.ArgumentTypeError(f"expected the name of an {' or '.join(endings)} file, got {shown(text)}")
        return made

    return path


def folder_name(text: str) -> str:
    """Parse a run's name."""
    filled(text)
    try:
        return run_name(text, "")
    except BadInput as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def header(text: str) -> tuple[str, str]:
    """Parse a header in HTTP's form."""
    name, colon, value = (part.strip() for part in text.partition(":"))
    if not colon:  # the text may be the value alone, so it is not shown
        raise argparse.ArgumentTypeError("expected NAME:VALUE")
    try:
        return fields.header(name, value)
    except BadInput as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def ca_file(text: str) -> str:
    """Return the absolute path of a file."""
    path = Path(filled(text)).absolute()
    if not path.is_file():
        raise argparse.ArgumentTypeError(f"no such file: {shown(text)}")
    return str(path)


def run_name(name: str | None, model: str) -> str:
    """Return the folder's name: as given, or the last part of the model's name, like the authors' runner."""
    chosen = name if name is not None else model.rstrip("/").rsplit("/", 1)[-1]
    if not chosen.strip() or chosen.startswith(".") or "/" in chosen or "\\" in chosen or not chosen.isprintable():
        raise BadInput(f"{shown(chosen)} cannot name a run's folder: give another with --name")
    if len(chosen.encode()) > NAME_BYTES:
        raise BadInput(f"{shown(chosen)} is too long for a run's name, {NAME_BYTES} bytes at most: name it with --name")
    return chosen


def new_run_name(name: str | None, model: str) -> str:
    """Return the name of a run that may start now. Raise `BadInput` for one that the results folder uses itself.

    Letter case and trailing dots or blanks are ignored, as some file systems do.
    """
    chosen = run_name(name, model)
    plain = chosen.casefold().rstrip(". ")
    if plain in RESERVED or defaults.OWN_ENDINGS.search(plain):
        raise BadInput(
            f"{shown(chosen)} is a name that the results folder uses itself: give the run another, with --name or in "
            "its queue"
        )
    return chosen
