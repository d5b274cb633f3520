"""The options that several commands have, those of `run` and `resume`, and what follows from
them."""

from __future__ import annotations

import operator
import os
import re
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal

import orjson

from harness import defaults
from harness.benchmark import Benchmark
from harness.benchmarks import registry
from harness.chat import Structured
from harness.cost import Price, price_in
from harness.defaults import (
    AUTO,
    CONCURRENCY_MOST,
    PARSE_RETRIES,
    REPEATS_MOST,
    RETRIES_MOST,
    SECONDS_MOST,
)
from harness.errors import BadInput, in_brief, which_is_known
from harness.model import JSON, Snapshots
from harness.option import (
    ANY_TEXT,
    NOT_NEGATIVE,
    POSITIVE,
    RUNS,
    command_options,
    folder,
    number,
    option,
    whole,
)
from harness.options.fields import CONCURRENCY, POSITIVE_INT, SECONDS, SHARE, can_name_folder
from harness.options.fields import header as checked_header
from harness.store.manifest import PART

NAME_BYTES = 200
"""Longest name of a run: file systems allow 255, and backups append to names."""

# Names that the results folder uses itself.
RESERVED = frozenset({defaults.INDEX_FOLDER, defaults.EXCEL_FOLDER, defaults.ALL_RUNS_PAGE})

SEED_MOST = 2**32 - 1
REQUESTS = whole(1, CONCURRENCY_MOST)
RETRIES = whole(0, RETRIES_MOST)
WAIT = number(lambda value: 0 <= value <= SECONDS_MOST, "seconds from 0 to a year")


def folder_name(text: str) -> str:
    """Parse a run's name."""
    return run_name(text, "")


def subset_name(text: str) -> str:
    """Parse the name of a subset, in any letter case; no comma can be in it."""
    if "," in text:
        raise ValueError(
            f"expected one subset, got {in_brief(text)}: give the option once for each"
        )
    return text.lower()


def header(text: str) -> tuple[str, str]:
    """Parse a header in HTTP's form."""
    name, colon, value = map(str.strip, text.partition(":"))
    if not colon:  # the text may be the value alone, so it is not shown
        raise ValueError("expected NAME:VALUE")
    return checked_header(name, value)


def part_of_users(text: str) -> str:
    """Parse which part of how many, such as 2/4."""
    if not re.match(PART, text) or operator.gt(*map(int, text.split("/"))):
        raise ValueError(f"expected a part of so many, such as 2/4, got {in_brief(text)}")
    return text


def ca_file(text: str) -> str:
    """Return the absolute path of a file."""
    # The printed `resume` has it, and may be typed in another folder.
    path = Path(text).absolute()
    if not path.is_file():
        raise ValueError(f"no such file: {in_brief(text)}")
    return str(path)


def concurrency(text: str) -> int | str:
    """Parse a number of requests, or `auto`."""
    # Twenty digits decide: `int` refuses thousands of them with a message of its own.
    value = int(text[:20]) if text.isdecimal() else text
    if CONCURRENCY[0](value):
        return value
    raise ValueError(f"expected {CONCURRENCY[1]}, got {in_brief(text)}")


def json_object(text: str) -> JSON:
    try:
        value = orjson.loads(text)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise ValueError(f"expected a JSON object, got {text!r}")
    return value


# What several commands have


@dataclass(frozen=True, slots=True)
class Fallback:
    """The address in a settings file (`source`), and a file with its key: for a model whose address
    is named neither by an option, nor by its provider, nor by a variable. `address_from` is how the
    manifest says that it was named."""

    urls: tuple[str, ...]
    key_file: Path | None
    source: str
    address_from: str = ""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The endpoint in a file that `--config` names: its address and key, how the manifest says that
    they were named, its model, and the pace, by the names of `RunTuning`. `source` is the file, for
    messages."""

    url: str
    key: str | None = field(repr=False)
    address_from: str
    model: str
    tuning: JSON
    source: str


@dataclass(frozen=True, slots=True)
class SettingsFileValues:
    """What a file gives a command, by the names of options: values, and their places; and an
    address with its key."""

    values: Mapping[str, Any] = field(default_factory=dict)
    fallback: Fallback | None = None
    places: Mapping[str, Any] = field(default_factory=dict)


@command_options
class Options:
    """What every command is called with. `typed` are the names of the options that the user's own
    words set, `places` says where the settings file has its values, and `fallback` is that file's
    address. `extension_options` are the options of what extends a command, by its name."""

    examples: ClassVar[Sequence[str]] = ()
    typed: frozenset[str] = frozenset()
    places: Mapping[str, object] = field(default_factory=dict)
    fallback: Fallback | None = None
    extension_options: Mapping[str, Any] = field(default_factory=dict)
    settings_file: Path | None = option(
        None,
        "your own settings file (default: harness.toml here, or in ~/.config/behavior-harness)",
        flags="--settings",
        once=True,
    )

    def option(self, name: str, default: object = None) -> Any:
        """Return the value of an option, by the name of its field, of the command or of what
        extends it; without one, the default."""
        for options in (self, *self.extension_options.values()):
            if hasattr(options, name):
                return getattr(options, name)
        return default

    def source(self, name: str) -> str:
        """Return where an option's value comes from, for messages: the settings file with the key,
        or the flag."""
        return str(self.places.get(name) or f"--{name.replace('_', '-')}")

    def name_places(self, error: BadInput) -> None:
        """Add to a refusal where the settings file has the options that it names, which the user
        may not have in mind."""
        message = str(error)
        notes = []
        for place in map(str, self.places.values()):
            key = place.rpartition(".")[2].rpartition(" ")[2]
            if place not in message and _names(message, key):
                notes.append(f"{key} is set in {place}")
        if notes:
            *sentences, last = error.args
            error.args = (*sentences, f"{last} ({'; '.join(notes)})")


def _names(message: str, key: str) -> bool:
    """Return whether a message has the name of an option, as a flag or as a field of an
    identity."""
    spelt = re.escape(key.removeprefix("no-")).replace("\\-", "[-_]")
    return re.search(rf"(?<![\w-])(--)?{spelt}(?![\w-])", message) is not None


@command_options
class TasksFolder(Options):
    """Where tasks are."""

    tasks_dir: Path = option(defaults.TASKS_FOLDER, "default: tasks", unit="DIR", read=folder)


@command_options
class ResultsFolder(Options):
    """Where runs are."""

    results_dir: Path = option(
        defaults.RESULTS_FOLDER, "default: results", unit="DIR", read=folder, everyday=True
    )


@command_options
class Earlier(ResultsFolder):
    """Runs that exist, and what their code needs."""

    tasks_dir: Path | None = option(
        None, "where the runs' tasks are now (default: where they were)", unit="DIR", read=folder
    )
    trust: bool = option(
        False,
        "run code of benchmarks, prompts and agents in folders of runs that you have not run on"
        " this machine before",
        once=True,
    )
    benchmark: str | None = option(
        None,
        "your own file of the runs' benchmark, used instead of the copy in their folder (or"
        " package.module:Name)",
        unit="FILE.py",
    )


@command_options
class Pages(Options):
    """Whether pages of new reports are written."""

    html: bool = option(
        True,
        "write no page, nor does a later `resume` (`report` can make it at any time)",
        everyday=True,
    )


def runs_option(
    help_text: str, *, read: Callable[[str], str] | None = folder_name, unit: str = "RUN"
) -> Any:
    """Return the field of names of runs, each by position or with `--name`."""
    return option(
        (),
        help_text,
        unit=unit,
        flags="--name",
        read=read,
        position=unit,
        per_command=True,
        completes=RUNS,
        everyday=True,
    )


def run_option(default: object = MISSING) -> Any:
    """Return the field of one run's name, by position."""
    return option(
        default, "name of the run", position="RUN", read=folder_name, completes=RUNS, everyday=True
    )


def platform_option(help_text: str) -> Any:
    return option(
        None,
        help_text,
        unit="NAME",
        flags="--subset --platform",
        read=subset_name,
        per_command=True,
        everyday=True,
    )


@command_options
class Which(Options):
    """Which runs; without these options, all."""

    runs: Sequence[str] = runs_option(
        "names of runs, their folders under the results (default: all)"
    )
    model: str | None = option(None, "the run of this model", unit="MODEL", per_command=True)
    platform: Sequence[str] | None = platform_option("one subset; may be repeated")


@command_options
class OneBenchmark(Options):
    """The benchmark that a command is for."""

    benchmark: str = option(
        defaults.BENCHMARK,
        "one that ships or is installed, FILE.py or package.module:Name (default:"
        f" {defaults.BENCHMARK})",
        position="BENCHMARK",
        everyday=True,
    )


@command_options
class Forced(Options):
    """Whether outputs may replace what is at a path that the user names."""

    force: bool = option(False, "replace files that are there already", once=True)


@command_options
class AsJson(Options):
    """Whether output is for programs."""

    json: bool = option(False, "print JSON instead of a table", everyday=True)


def sample_seed_option(help_text: str) -> Any:
    return option(defaults.SAMPLE_SEED, help_text, check=whole(0, SEED_MOST))


# What plays

ENDPOINT = "endpoint (else LLM_API_BASE and LLM_API_KEY, or OPENAI_BASE_URL and OPENAI_API_KEY)"
TUNING = "tuning (free to change on resume)"
REQUEST = "requests (part of the run's identity)"


of_endpoint = partial(option, None, group=ENDPOINT)
of_tuning = partial(option, None, group=TUNING)
of_request = partial(option, group=REQUEST)


@command_options
class PlayOptions(ResultsFolder, Pages):
    """Commands that play: endpoint, tuning, display. Those of `RunTuning` have its names; None is
    what the provider, an earlier process or the default says. `progress` gets snapshots instead of
    the display, and `run_async` awaits the play in a loop that runs already. `endpoint` is that of
    `config`."""

    progress: Callable[[Snapshots], None] | None = None
    run_async: Callable[[Callable[[Any], Coroutine[Any, Any, Any]]], Any] | None = None
    endpoint: Endpoint | None = None
    api_url: Sequence[str] | None = of_endpoint(
        "address of the endpoint, including its /v1; may be repeated, for several servers of the "
        "same model",
        unit="URL",
        flags="--api-url --api_url --base-url",
        everyday=True,
    )
    api_key: str | None = of_endpoint(
        "visible in the process list: better use a file or a variable",
        unit="KEY",
        flags="--api-key --api_key",
        check=ANY_TEXT,
        secret=True,
    )
    api_key_file: Path | None = option(
        None, "a file that holds the key", group=ENDPOINT, per_command=True, everyday=True
    )
    provider: str | None = of_endpoint(
        "a provider in the providers file", unit="NAME", per_command=True, everyday=True
    )
    config: Path | None = option(
        None, "YAML file with a list `llm`: address, key, model, concurrency", group=ENDPOINT
    )
    providers: Path | None = option(
        None,
        "your own providers file (default: providers.toml here, or in ~/.config/behavior-harness)",
        group=ENDPOINT,
    )
    extra_header: Sequence[tuple[str, str]] = option(
        (),
        "additional header for every request; may be repeated",
        unit="NAME:VALUE",
        read=header,
        secret=True,
        group=ENDPOINT,
    )
    ca_file: str | None = of_endpoint(
        "certificates to trust in addition to the system's", unit="FILE", read=ca_file
    )
    price: Price | None = option(
        None,
        "what a million prompt tokens and a million completion tokens cost, in USD or the "
        "CURRENCY named",
        unit="[CURRENCY:]PROMPT/COMPLETION",
        read=price_in,
        group=ENDPOINT,
        per_command=True,
    )
    concurrency: int | Literal["auto"] | None = of_tuning(
        "maximum requests in flight, or `auto` "
        f"(default: BENCH_MAX_WORKERS or {defaults.CONCURRENCY})",
        unit="N",
        read=concurrency,
        check=CONCURRENCY,
        variable="BENCH_MAX_WORKERS",
        everyday=True,
    )
    start: int | None = of_tuning(
        f"where auto starts (default: what it learned, or {defaults.AUTO_START})",
        flags="--auto-start",
        check=REQUESTS,
    )
    floor: int | None = of_tuning(
        f"lower limit of auto (default: {defaults.AUTO_FLOOR})",
        flags="--auto-floor",
        check=REQUESTS,
    )
    ceiling: int | None = of_tuning(
        f"upper limit of auto (default: {defaults.AUTO_CEILING})",
        flags="--auto-ceiling",
        check=REQUESTS,
    )
    rpm: float | None = of_tuning("maximum requests per minute", check=POSITIVE, everyday=True)
    tpm: float | None = of_tuning(
        "maximum tokens per minute, prompts and completions", check=POSITIVE
    )
    timeout: float | None = of_tuning(
        f"seconds for one complete reply (default: {defaults.TIMEOUT_SECONDS:g})",
        unit="S",
        check=SECONDS,
        everyday=True,
    )
    stall: float | None = of_tuning(
        f"seconds between two pieces of a streamed reply (default: {defaults.STALL_SECONDS:g})",
        unit="S",
        flags="--stall-timeout",
        check=SECONDS,
    )
    stream: Literal["auto", "on", "off"] | None = of_tuning(
        "whether replies are streamed (default: auto, only if an endpoint requires it)"
    )
    max_retries: int | None = of_tuning(
        f"retries of a request after the first try (default: {defaults.MAX_RETRIES})", check=RETRIES
    )
    max_outage: float | None = of_tuning(
        "seconds without any answer until the run stops "
        f"(default: {defaults.MAX_OUTAGE_SECONDS:g})",
        unit="S",
        check=SECONDS,
    )
    wait: float | None = of_tuning(
        "seconds to wait for the first answer of an endpoint that is still loading (default: 0)",
        unit="S",
        check=WAIT,
    )
    durability: Literal["process", "power"] | None = of_tuning(
        "what a saved reply survives: this process (default), or a power loss"
    )
    no_color: bool = option(
        False, "print without colours (like NO_COLOR in the environment)", variable="NO_COLOR"
    )
    verbose: bool = option(
        False, "show more of a run in play: waiting, latency, event loop, disk, what is at risk"
    )
    quiet: bool = option(False, "print errors, and one line for each run at its end")
    json: bool = option(False, "print the runs as JSON at the end, and nothing else")
    allow_invalid: bool = option(
        False, "go on even if almost none of the first answers can be used", once=True
    )
    allow: Sequence[str] = option(
        (),
        "accept that this field of an earlier run differs; may be repeated",
        unit="FIELD",
        once=True,
    )


@command_options
class RunOptions(PlayOptions, TasksFolder, OneBenchmark):
    """`benchmark_class` is the class that `benchmark` names, of the file as it was when the command
    began; `benchmark_settings` are the values of its settings that the user named, by field."""

    examples: ClassVar[Sequence[str]] = (
        "harness run --demo",
        "harness run --model deepseek:deepseek-chat --limit 20 --concurrency auto",
        (
            "harness run --model Qwen3-8B --api-url http://127.0.0.1:8000/v1 --repeats 5"
            " --temperature 0.7"
        ),
    )
    benchmark_class: type[Benchmark]
    benchmark_settings: Mapping[str, Any]
    model: Sequence[str] = option(
        (),
        "the model's name at the endpoint, or a baseline, which needs none; may be repeated. "
        "Baselines: " + ", ".join(registry.baselines()),
        unit="[PROVIDER:]MODEL",
        read=str.strip,
        per_command=True,
        everyday=True,
    )
    queue: str | None = option(
        None, "the models of this queue in the providers file", unit="NAME", per_command=True
    )
    platform: Sequence[str] | None = platform_option("one subset; may be repeated (default: all)")
    name: str | None = option(
        None,
        "name of the run "
        "(default: the last part of the model's name, after demo and the benchmark)",
        unit="NAME",
        read=folder_name,
        per_command=True,
        everyday=True,
        completes=RUNS,
    )
    demo: bool = option(
        False,
        "use the synthetic tasks that ship, and a baseline where no model is named",
        everyday=True,
    )
    ratio: float = option(1.0, "share of the users to play", unit="R", check=SHARE, rivals="fewer")
    limit: int | None = option(
        None,
        "number of users to play, the first in the order that the seed draws; may be raised later",
        check=POSITIVE_INT,
        rivals="fewer",
        per_command=True,
        everyday=True,
    )
    repeats: int = option(
        1,
        "times to play each user, independently; may be raised later (default: 1)",
        check=whole(1, REPEATS_MOST),
        everyday=True,
    )
    primary: str | None = option(
        None,
        "the metric that `compare` is to be about; it is kept with the run and cannot be changed"
        " later (default: the headline metrics)",
        unit="METRIC",
    )
    sample_seed: int = sample_seed_option("seed of that order, and of the schedule")
    part: str | None = option(
        None,
        "play the I-th of N disjoint parts of the users, in the folder NAME.partIofN; `merge`"
        " combines the parts; limits and rates are those of all parts together",
        unit="I/N",
        read=part_of_users,
        per_command=True,
    )
    fetch: bool = option(False, "first download tasks that are missing, as `fetch` does")
    dry_run: bool = option(
        False,
        "show what would be sent, with some prompts, and send nothing: no key is needed",
        everyday=True,
        rivals="instead",
    )
    reeval: bool = option(
        False, "score the saved answers again instead, as `reeval` does", rivals="instead"
    )
    detach: bool = option(
        False,
        "play in a process of its own, print the run's name and return; `watch` shows it",
        once=True,
    )
    restart: bool = option(
        False,
        "move an earlier run of this name to a backup and start over",
        once=True,
        everyday=True,
    )
    roles: Sequence[str] = option(
        (),
        "the model of a role of the benchmark, such as a judge; may be repeated, and followed by"
        " ,temperature=T ,max_tokens=N ,price=IN/OUT",
        unit="NAME=[PROVIDER:]MODEL",
        flags="--role",
        group=REQUEST,
    )
    temperature: float | None = of_request(
        None,
        f"default: {defaults.TEMPERATURE:g}, or what an --agent asks for",
        unit="T",
        check=NOT_NEGATIVE,
        everyday=True,
    )
    top_p: float | None = of_request(
        None, "share of the most probable tokens to draw from", unit="P", check=SHARE
    )
    seed: int | None = of_request(None, "the endpoint's sampling seed")
    max_tokens: int | None = of_request(
        None, "not sent unless given", check=POSITIVE_INT, everyday=True
    )
    extra_body: Mapping[str, Any] = of_request(
        {}, "additional members for every request", read=json_object
    )
    structured: Structured = option(
        "json_object",
        "response_format of requests; json_schema demands the benchmark's schema, auto uses as much"
        " of it as the endpoint accepts",
        group=REQUEST,
    )
    parse_retries: int = of_request(
        PARSE_RETRIES,
        f"times to repeat a request after an unusable reply (default: {PARSE_RETRIES})",
        check=RETRIES,
    )


@command_options
class ResumeOptions(PlayOptions, Earlier, Which):
    """Options of `resume`."""

    examples: ClassVar[Sequence[str]] = (
        "harness resume",
        "harness resume --name deepseek-chat --concurrency 8 --max-outage 3600",
    )


# What follows from them


def named_runs(runs: Sequence[str]) -> list[str]:
    """Return the named runs. Raise `BadInput` if there are none."""
    if not runs:
        raise BadInput("name a run: `harness status` lists them")
    return list(runs)


def subsets(cls: type[Benchmark], platforms: Sequence[str] | None) -> list[str]:
    """Return the named subsets in the benchmark's order; all if none is named."""
    wanted = set(platforms or cls.subsets)
    for name in sorted(wanted - cls.subsets.keys()):
        raise BadInput(f"{cls.name} has no subset {name}{which_is_known(name, cls.subsets)}")
    return [name for name in cls.subsets if name in wanted]


def tuning(options: PlayOptions, earlier: JSON) -> defaults.RunTuning:
    """Return the tuning of a command: from its options, else from an earlier process of the run,
    else defaults."""
    # `auto` goes on from the limit that an earlier process found, and need not look for it from
    # below.
    earlier = {**earlier, "start": earlier.get("learned_limit") or earlier.get("start")}
    values = asdict(defaults.RunTuning())
    for chosen in (earlier, vars(options)):
        values |= {name: chosen[name] for name in values if chosen.get(name) is not None}
    # The variable is a default: the number of an earlier process, or a provider's, goes before it.
    if options.concurrency is None and "concurrency" in earlier:
        values["concurrency"] = earlier["concurrency"]  # None, too: `auto`
    else:
        concurrency_option = options.concurrency or _concurrency_of_environment()
        values["concurrency"] = None if concurrency_option == AUTO else concurrency_option
    # Not checked with each value: one of the two may be a default, or an earlier process's.
    if values["floor"] > values["ceiling"]:
        raise BadInput(
            f"{options.source('floor')}: {values['floor']} is above the upper limit"
            f" {values['ceiling']} ({options.source('ceiling')})"
        )
    return defaults.RunTuning(**values)


def _concurrency_of_environment() -> int | str:
    value = os.environ.get("BENCH_MAX_WORKERS")
    try:
        return concurrency(value) if value else defaults.CONCURRENCY
    except ValueError as error:
        raise BadInput(f"BENCH_MAX_WORKERS: {error}") from None


def run_name(name: str | None, model: str) -> str:
    """Return the folder's name: as given, or the last part of the model's name, like the authors'
    runner."""
    chosen = name if name is not None else model.rstrip("/").rsplit("/", 1)[-1]
    if not can_name_folder(chosen):
        raise BadInput(f"{in_brief(chosen)} cannot name a run's folder: give another with --name")
    # File systems count bytes, of which a Chinese character has three.
    if len(chosen.encode()) > NAME_BYTES:
        raise BadInput(
            f"{in_brief(chosen)} is too long for a run's name, {NAME_BYTES} bytes at most: name it"
            " with --name"
        )
    return chosen


def new_run_name(name: str | None, model: str) -> str:
    """Return the name of a run that may start now. Raise `BadInput` for one that the results folder
    uses itself.

    Letter case and trailing dots or blanks are ignored, as some file systems do.
    """
    chosen = run_name(name, model)
    plain = chosen.casefold().rstrip(". ")
    if plain in RESERVED or defaults.OWN_ENDINGS.search(plain):
        raise BadInput(
            f"{in_brief(chosen)} is a name that the results folder uses itself: give the run"
            " another, with --name or in its queue"
        )
    return chosen
