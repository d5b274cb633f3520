"""The options that several commands share, and the types of their values."""

from __future__ import annotations

import argparse
import math
import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

from harness import defaults
from harness.benchmark import Benchmark
from harness.benchmarks import registry
from harness.config.fields import header as checked_header
from harness.config.user_files import user_folder
from harness.defaults import AUTO, BITS_64, CONCURRENCY_MOST, REPEATS_MOST, RETRIES_MOST, SECONDS_MOST, STREAMS
from harness.errors import BadInput, in_brief
from harness.model import JSON
from harness.store.outputs import Outputs

NAME_BYTES = 200
"""Longest name of a run: file systems allow 255, and backups append to names."""

RESERVED = frozenset({defaults.INDEX_FOLDER, defaults.EXCEL_FOLDER, defaults.ALL_RUNS_PAGE})

SEED_MOST = 2**32 - 1
T = TypeVar("T")


def add(parser: argparse._ActionsContainer, spec: str, words: str | None = None, **details: Any) -> None:
    """Add an option to a parser or a group; `spec` is its flags and the name of its value, such as `--limit N`."""
    flags = [word for word in spec.split() if word.startswith("-")]
    if value := spec.split()[len(flags) :]:
        details["metavar"] = value[0]
    parser.add_argument(*flags, help=words, **details)


def add_folders(parser: argparse.ArgumentParser) -> None:
    add(parser, "--tasks-dir DIR", "default: tasks", type=folder, default=defaults.TASKS_FOLDER)
    add(parser, "--results-dir DIR", "default: results", type=folder, default=defaults.RESULTS_FOLDER)


def add_earlier(parser: argparse.ArgumentParser) -> None:
    """Add the folders of runs that exist, and what their code needs."""
    words = "where the runs' tasks are now (default: where they were)"
    add(parser, "--tasks-dir DIR", words, type=folder)
    add(parser, "--results-dir DIR", "default: results", type=folder, default=defaults.RESULTS_FOLDER)
    words = "run the code of benchmarks, prompts and agents in folders of runs not made by you on this machine"
    add(parser, "--trust", words, action="store_true")
    words = "your own file of the runs' benchmark, used instead of the copy in their folder (or package.module:Name)"
    add(parser, "--benchmark FILE.py", words, type=filled)


def add_runs(
    parser: argparse.ArgumentParser, words: str, kind: Callable[[str], str] | None = None, metavar: str = "RUN"
) -> None:
    """Add the names of runs, each by position or with `--name`; both are in `args.runs`."""
    details: dict[str, Any] = {"type": kind or folder_name, "action": "extend", "default": [], "metavar": metavar}
    parser.add_argument("runs", nargs="*", help=words, **details)
    parser.add_argument("--name", nargs=1, dest="runs", help=f"the same as {metavar}; may be repeated", **details)


def runs(args: argparse.Namespace) -> list[str]:
    """Return the named runs. Raise `BadInput` if there are none."""
    if not args.runs:
        raise BadInput("name a run: `harness status` lists them")
    return list(args.runs)


def add_which(parser: argparse.ArgumentParser) -> None:
    """Add the options that select runs; without them, all."""
    add_runs(parser, "names of runs, their folders under the results (default: all)")
    add(parser, "--model", "the run of this model", type=filled)
    add_platform(parser, "one subset; may be repeated")


def add_platform(parser: argparse.ArgumentParser, words: str) -> None:
    add(parser, "--subset --platform NAME", words, type=filled, action="append", dest="platform")


def subsets(cls: type[Benchmark], platforms: Sequence[str] | None) -> list[str]:
    """Return the named subsets, in any letter case, in the benchmark's order; all if none is named."""
    wanted = {name.lower() for name in platforms or cls.subsets}
    if unknown := wanted - cls.subsets.keys():
        known = ", ".join(cls.subsets)
        raise BadInput(f"{cls.name} has no subset {', '.join(sorted(unknown))}: known are {known}")
    return [name for name in cls.subsets if name in wanted]


def add_benchmark(parser: argparse.ArgumentParser) -> None:
    words = f"one that ships or is installed, FILE.py or package.module:Name (default: {defaults.BENCHMARK})"
    name, default = "BENCHMARK", defaults.BENCHMARK
    parser.add_argument("benchmark", nargs="?", type=filled, default=default, metavar=name, help=words)


def benchmark_named(parser: argparse.ArgumentParser, words: Sequence[str]) -> str:
    """Return the benchmark among a command's words, before its own flags are defined."""
    return next(_positions(parser, words), defaults.BENCHMARK)


def _positions(parser: argparse.ArgumentParser, words: Sequence[str]) -> Iterator[str]:
    """Yield the words that are neither options nor their values. An undefined option may take the next word, unless
    that is a benchmark."""
    known, left = parser._option_string_actions, deque(words)
    while left:
        option, _, value = left.popleft().partition("=")
        if not option.startswith("-"):
            yield option
            continue
        action = known.get(option)
        takes_one = action.nargs != 0 if action else not (left and registry.is_name(left[0]))
        if takes_one and not value and left and not left[0].startswith("-"):
            left.popleft()


def destinations(parser: argparse.ArgumentParser, words: Sequence[str]) -> set[str]:
    """Return the destinations that a command's words set, by options or by position."""
    by_option = (parser._option_string_actions.get(word.partition("=")[0]) for word in words)
    by_position = parser._get_positional_actions() if any(_positions(parser, words)) else []
    return {action.dest for action in (*by_option, *by_position) if action}


def source(args: argparse.Namespace, dest: str) -> str:
    """Return where an option's value comes from, for messages: the settings file with the key, or the flag."""
    return str(args.places.get(dest) or f"--{dest.replace('_', '-')}")


def add_sample_seed(parser: argparse.ArgumentParser, words: str) -> None:
    add(parser, "--sample-seed N", words, type=whole(0, SEED_MOST), default=defaults.SAMPLE_SEED)


def add_force(parser: argparse.ArgumentParser) -> None:
    add(parser, "--force", "replace files of the outputs' names that the harness did not write", action="store_true")


def outputs(args: argparse.Namespace) -> Outputs:
    """Return what the outputs of a command may replace."""
    folder = user_folder(os.environ, "XDG_STATE_HOME", ".local/state")
    return Outputs(args.force, folder / "outputs" if folder else None)


def add_json(parser: argparse.ArgumentParser) -> None:
    add(parser, "--json", "print JSON instead of a table", action="store_true")


def add_session(parser: argparse.ArgumentParser) -> None:
    """Add the options of commands that play: endpoint, tuning, display."""
    _add_endpoint(
        parser.add_argument_group("endpoint (else LLM_API_BASE and LLM_API_KEY, or OPENAI_BASE_URL and OPENAI_API_KEY)")
    )
    _add_tuning(parser.add_argument_group("tuning (free to change on resume)"))
    parser.set_defaults(progress=None)  # of the Python interface, instead of the display
    add(parser, "--no-color", "print without colours (like NO_COLOR in the environment)", action="store_true")
    words = "go on even if almost none of the first answers can be used"
    add(parser, "--allow-invalid", words, action="store_true")
    words = "accept that this field of an earlier run differs; may be repeated"
    add(parser, "--allow FIELD", words, action="append", default=[])


def _add_endpoint(group: argparse._ArgumentGroup) -> None:
    words = "address of the endpoint, including its /v1; may be repeated, for several servers of the same model"
    add(group, "--api-url --api_url --base-url URL", words, type=filled, action="append")
    add(group, "--api-key --api_key KEY", "visible in the process list: better use a file or a variable")
    add(group, "--api-key-file FILE", "a file that holds the key", type=Path)
    add(group, "--provider NAME", "a provider in the providers file", type=filled)
    words = "your own providers file (default: providers.toml here, or in ~/.config/behavior-harness)"
    add(group, "--providers FILE", words, type=Path)
    words = "additional header for every request; may be repeated"
    add(group, "--extra-header NAME:VALUE", words, type=header, action="append", default=[])
    add(group, "--ca-file FILE", "certificates to trust in addition to the system's", type=ca_file)


def _add_tuning(group: argparse._ArgumentGroup) -> None:
    """Add an option for each field of `Tuning`, under the field's name."""
    words = f"maximum requests in flight, or `auto` (default: BENCH_MAX_WORKERS or {defaults.CONCURRENCY})"
    add(group, "--concurrency N", words, type=concurrency_value)
    words = f"where auto starts (default: what it learned, or {defaults.AUTO_START})"
    add(group, "--auto-start N", words, dest="start", type=requests)
    add(group, "--auto-floor N", f"lower limit of auto (default: {defaults.AUTO_FLOOR})", dest="floor", type=requests)
    words = f"upper limit of auto (default: {defaults.AUTO_CEILING})"
    add(group, "--auto-ceiling N", words, dest="ceiling", type=requests)
    add(group, "--rpm N", "maximum requests per minute", type=positive_float)
    add(group, "--tpm N", "maximum tokens per minute, prompts and completions", type=positive_float)
    add(group, "--timeout S", f"seconds for one complete reply (default: {defaults.TIMEOUT_SECONDS:g})", type=seconds)
    words = f"seconds between two pieces of a streamed reply (default: {defaults.STALL_SECONDS:g})"
    add(group, "--stall-timeout S", words, dest="stall", type=seconds)
    add(
        group,
        "--stream",
        "whether replies are streamed (default: auto, only if an endpoint requires it)",
        choices=STREAMS,
    )
    words = f"retries of a request after the first try (default: {defaults.MAX_RETRIES})"
    add(group, "--max-retries N", words, type=retries)
    words = f"seconds without any answer until the run stops (default: {defaults.MAX_OUTAGE_SECONDS:g})"
    add(group, "--max-outage S", words, type=seconds)
    words = "seconds to wait for the first answer of an endpoint that is still loading (default: 0)"
    add(group, "--wait S", words, type=seconds_or_none)
    words = "what a saved reply survives: this process (default), or a power loss"
    add(group, "--durability", words, choices=("process", "power"))


def tuning(args: argparse.Namespace, earlier: JSON) -> defaults.Tuning:
    """Return the tuning of a command: from its options, else from an earlier process of the run, else defaults."""
    earlier = {**earlier, "start": earlier.get("learned_limit") or earlier.get("start")}
    made: JSON = {}
    for field in fields(defaults.Tuning):
        values = getattr(args, field.name), earlier.get(field.name), field.default
        made[field.name] = next((value for value in values if value is not None), None)
    if args.concurrency is None and "concurrency" in earlier:
        made["concurrency"] = earlier["concurrency"]  # None, too: `auto`
    else:
        chosen = args.concurrency or _concurrency_of_environment()
        made["concurrency"] = None if chosen == AUTO else chosen
    if made["floor"] > made["ceiling"]:
        floor, ceiling = source(args, "floor"), source(args, "ceiling")
        raise BadInput(f"{floor}: {made['floor']} is above the upper limit {made['ceiling']} ({ceiling})")
    return defaults.Tuning(**made)


def _concurrency_of_environment() -> Any:
    value = os.environ.get("BENCH_MAX_WORKERS")
    try:
        return concurrency_value(value) if value else defaults.CONCURRENCY
    except argparse.ArgumentTypeError as error:
        raise BadInput(f"BENCH_MAX_WORKERS: {error}") from None


def concurrency_value(text: str) -> Any:
    """Parse a number of requests, or `auto`."""
    try:
        return AUTO if text == AUTO else requests(text)
    except argparse.ArgumentTypeError as error:
        raise argparse.ArgumentTypeError(f"{error} (or {AUTO})") from None


def whole(least: int, most: int) -> Callable[[str], int]:
    """Return the type of options that take a whole number within bounds, both included."""

    def parse(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            number = least - 1
        if not least <= number <= most:
            raise argparse.ArgumentTypeError(f"expected a whole number from {least} to {most}, got {in_brief(text)}")
        return number

    return parse


def finite(fits: Callable[[float], bool], expected: str) -> Callable[[str], float]:
    """Return the type of options that take a finite number."""

    def parse(text: str) -> float:
        try:
            number = float(text)
        except ValueError:
            number = math.nan
        if not (math.isfinite(number) and fits(number)):
            raise argparse.ArgumentTypeError(f"expected {expected}, got {in_brief(text)}")
        return number

    return parse


requests = whole(1, CONCURRENCY_MOST)
retries = whole(0, RETRIES_MOST)
repeats = whole(1, REPEATS_MOST)
positive_int = whole(1, BITS_64 - 1)
signed_int = whole(-BITS_64, BITS_64 - 1)
positive_float = finite(lambda number: number > 0, "a number above 0")
not_negative = finite(lambda number: number >= 0, "a number from 0")
seconds = finite(lambda number: 0 < number <= SECONDS_MOST, "seconds above 0 and at most a year")
seconds_or_none = finite(lambda number: 0 <= number <= SECONDS_MOST, "seconds from 0 to a year")
power = finite(lambda number: 0.5 <= number < 1, "a number from 0.5 and below 1")
difference = finite(lambda number: number >= 1e-6, "a number from 0.000001")
share = finite(lambda number: 0 < number <= 1, "a number above 0 and at most 1")


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
        raise argparse.ArgumentTypeError(f"cannot use {in_brief(text)}: {error.strerror}") from None
    return Path(text)


def file_of(*endings: str) -> Callable[[str], Path]:
    """Return the type of a file to write, with the endings that its name may have: none of a record, a task or a log,
    so that a typing error overwrites only what can be made again."""

    def path(text: str) -> Path:
        made = Path(filled(text))
        if made.suffix.lower() not in endings or "\0" in text:
            raise argparse.ArgumentTypeError(
                f"expected the name of an {' or '.join(endings)} file, got {in_brief(text)}"
            )
        return made

    return path


def folder_name(text: str) -> str:
    """Parse a run's name."""
    return _accepted(run_name, filled(text), "")


def header(text: str) -> tuple[str, str]:
    """Parse a header in HTTP's form."""
    name, colon, value = (part.strip() for part in text.partition(":"))
    if not colon:  # the text may be the value alone, so it is not shown
        raise argparse.ArgumentTypeError("expected NAME:VALUE")
    return _accepted(checked_header, name, value)


def _accepted(check: Callable[[str, str], T], *words: str) -> T:
    """Return what a check returns, its `BadInput` as an error of the option."""
    try:
        return check(*words)
    except BadInput as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def ca_file(text: str) -> str:
    """Return the absolute path of a file."""
    path = Path(filled(text)).absolute()
    if not path.is_file():
        raise argparse.ArgumentTypeError(f"no such file: {in_brief(text)}")
    return str(path)


def run_name(name: str | None, model: str) -> str:
    """Return the folder's name: as given, or the last part of the model's name, like the authors' runner."""
    chosen = name if name is not None else model.rstrip("/").rsplit("/", 1)[-1]
    if not chosen.strip() or chosen.startswith(".") or "/" in chosen or "\\" in chosen or not chosen.isprintable():
        raise BadInput(f"{in_brief(chosen)} cannot name a run's folder: give another with --name")
    if len(chosen.encode()) > NAME_BYTES:
        raise BadInput(
            f"{in_brief(chosen)} is too long for a run's name, {NAME_BYTES} bytes at most: name it with --name"
        )
    return chosen


def new_run_name(name: str | None, model: str) -> str:
    """Return the name of a run that may start now. Raise `BadInput` for one that the results folder uses itself.

    Letter case and trailing dots or blanks are ignored, as some file systems do.
    """
    chosen = run_name(name, model)
    plain = chosen.casefold().rstrip(". ")
    if plain in RESERVED or defaults.OWN_ENDINGS.search(plain):
        raise BadInput(
            f"{in_brief(chosen)} is a name that the results folder uses itself: give the run another, with --name or "
            "in its queue"
        )
    return chosen
