"""`run`: the main job."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import get_args

import orjson

from harness import defaults
from harness.benchmark import Benchmark, files_needed
from harness.benchmarks import registry, settings
from harness.chat import Asking, Structured
from harness.commands import reeval
from harness.commands.launch import launch
from harness.config import config_file, models, options, providers
from harness.config.models import Model
from harness.config.plan import Plan, Terms, Way
from harness.config.providers import Book, QueuedModel
from harness.defaults import PARSE_RETRIES
from harness.engine.extension import Extension
from harness.errors import BadInput
from harness.feature import extensions, how_to_get, reported, takeovers
from harness.model import JSON
from harness.store.manifest import Selection, load
from harness.store.run import RunFiles
from harness.ui.console import console
from harness.ui.streams import tell

EXAMPLES = (
    "harness run --demo",
    "harness run --model deepseek:deepseek-chat --limit 20 --concurrency auto",
    "harness run --model Qwen3-8B --api-url http://127.0.0.1:8000/v1 --repeats 5 --temperature 0.7",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = partial(options.add, parser)
    options.add_benchmark(parser)
    words = "the model's name at the endpoint, or a baseline, which needs none; may be repeated. Baselines: "
    words += ", ".join(registry.baselines())
    add("--model [PROVIDER:]MODEL", words, type=options.filled, action="append", default=[])
    add("--config FILE", "YAML file with a list `llm`: address, key, model, concurrency", type=Path)
    add("--queue NAME", "the models of this queue in the providers file", type=options.filled)
    options.add_platform(parser, "one subset; may be repeated (default: all)")
    add("--name", "name of the run (default: the last part of the model's name)", type=options.folder_name)
    add(
        "--demo",
        "use the synthetic tasks that ship, and a baseline where no model is named",
        action="store_true",
    )
    fewer = parser.add_mutually_exclusive_group()
    options.add(fewer, "--ratio R", "share of the users to play", type=options.share, default=1.0)
    words = "number of users to play, the first in the order that the seed draws; may be raised later"
    options.add(fewer, "--limit N", words, type=options.positive_int)
    words = "times to play each user, independently; may be raised later (default: 1)"
    add("--repeats N", words, type=options.repeats, default=1)
    words = (
        "the metric that `compare` is to be about; it is kept with the run and cannot be changed later (default: the "
    )
    words += "headline metrics)"
    add("--primary METRIC", words, type=options.filled)
    options.add_sample_seed(parser, "seed of that order, and of the schedule")
    add("--restart", "move an earlier run of this name to a backup and start over", action="store_true")
    add("--reeval", "score the saved answers again instead, as `reeval` does", action="store_true")
    options.add_folders(parser)
    options.add_session(parser)
    add = partial(options.add, parser.add_argument_group("requests (part of the run's identity)"))
    add("--temperature T", f"default: {defaults.TEMPERATURE:g}, or what an --agent asks for", type=options.not_negative)
    add("--top-p P", type=options.share)
    add("--seed N", "the endpoint's sampling seed", type=options.signed_int)
    add("--max-tokens N", "not sent unless given", type=options.positive_int)
    add("--extra-body JSON", "additional members for every request", type=_json_object, default={})
    words = "response_format of requests; json_schema demands the benchmark's schema, auto uses as "
    words += "much of it as the endpoint accepts"
    choices = get_args(Structured)
    add("--structured", words, choices=choices, default=choices[0])
    words = f"times to repeat a request after an unusable reply (default: {PARSE_RETRIES})"
    add("--parse-retries N", words, type=options.retries, default=PARSE_RETRIES)


def add_flags(parser: argparse.ArgumentParser, words: Sequence[str]) -> None:
    """Add the settings of the benchmark that the words name: no other benchmark has a part in this command line."""
    named = options.benchmark_named(parser, words)
    cls = registry.find(named)
    try:
        settings.add_flags(parser, cls.Settings, f"settings of {cls.name} (part of the run's identity)")
    except settings.BadSettings as error:
        raise BadInput(f"{cls.name}: {error}") from None
    parser.set_defaults(benchmark_class=cls, settings_of=named)


def execute(args: argparse.Namespace) -> int:
    switched_on = extensions(args)
    others: list[Callable[[argparse.Namespace], int]] = [*([_reeval] if args.reeval else ()), *takeovers("run", args)]
    if len(others) > 1:
        raise BadInput("--reeval and such options each do something else instead of playing: give one of them")
    if not args.reeval:
        args.model = _models(args)
    if others:
        return others[0](args)
    chosen, screen = plans(args, switched_on), console(no_color=args.no_color)
    return launch(chosen, screen, switched_on, reported=partial(reported, args), observe=args.progress)


def _reeval(args: argparse.Namespace) -> int:
    tasks = args.tasks_dir
    if args.demo or tasks == defaults.TASKS_FOLDER:
        tasks = defaults.SAMPLE_FOLDER if args.demo else None
    named = None if registry.is_shipped(args.benchmark) else args.benchmark  # None: runs of any
    book = providers.read(args.providers, os.environ)
    chosen: list[str | None] = [models.named(entry, args, book)[1] for entry in models.entries(args, book, args.model)]
    given = {
        **vars(args),
        "tasks_dir": tasks,
        "runs": [args.name] if args.name else [],
        "benchmark": named,
        "reparse": False,
        "new_prices": False,
        "trust": False,
    }
    return max([reeval.execute(argparse.Namespace(**{**given, "model": model})) for model in chosen or [None]])


def plans(args: argparse.Namespace, switched_on: Sequence[Extension], *, sends: bool = True) -> list[Plan]:
    """Return the plans. Raise `BadInput` with everything that is missing: endpoints first, then tasks.

    Keys are checked only for plans that are to be sent.
    """
    cls = args.benchmark_class
    if args.benchmark != args.settings_of:
        raise BadInput(f"name the benchmark before its settings: run {args.benchmark} ...")
    given = _config(args)
    book = providers.read(args.providers, os.environ)
    entries = _entries(args, given, book)
    subsets = options.subsets(cls, args.platform)
    missing: list[str] = []
    made = [models.resolve(entry, given, book, args, missing) for entry in entries]
    folder = defaults.SAMPLE_FOLDER if args.demo else args.tasks_dir
    if not missing and _absent(cls, subsets, folder):
        for extension in switched_on:
            extension.missing(cls, subsets, folder)
    if absent := _absent(cls, subsets, folder):
        ours = not (args.demo or _absent(cls, subsets, defaults.SAMPLE_FOLDER))
        demo = ", or use synthetic ones with --demo" if ours else ""
        remedy = "this benchmark has none that ship: name a folder with --tasks-dir" if args.demo else how_to_get(cls)
        missing.append(f"no tasks: missing {', '.join(absent)}; {remedy}{demo}")
    if missing:
        raise BadInput(*dict.fromkeys(missing))
    if sends:
        models.check_keys(args, [model for model in made if model])
    tasks = {subset: cls.task_files.file_in(folder, cls.subsets[subset]) for subset in subsets}
    asking = Asking(args.structured, args.parse_retries)
    return [
        # a benchmark each, so that warnings stay separate
        _plan(model, cls(settings.given(cls.Settings, args), asking=asking, folder=folder), tasks, args, switched_on)
        for model in filter(None, made)
    ]


def _entries(args: argparse.Namespace, given: config_file.Config | None, book: Book) -> list[QueuedModel]:
    named = [given.model] if given and not args.model and args.queue is None else args.model
    return models.entries(args, book, named)


def names(args: argparse.Namespace) -> set[str]:
    """Return the names of the runs that a command which has been executed was for."""
    book = providers.read(args.providers, os.environ)
    entries = _entries(args, config_file.read(args.config) if args.config else None, book)
    chosen = [(args.name or entry.name, models.named(entry, args, book)[1]) for entry in entries]
    switched_on, selection = extensions(args), _selection(args)
    return {_chosen(options.run_name(name, model), selection, switched_on)[0] for name, model in chosen}


def _absent(cls: type[Benchmark], subsets: Sequence[str], folder: Path) -> list[str]:
    """Return the files that these subsets need and that do not exist."""
    names = dict.fromkeys(name for subset in subsets for name in files_needed(cls, subset))
    return [str(path) for path in (cls.task_files.file_in(folder, name) for name in names) if not path.exists()]


def _plan(
    model: Model,
    benchmark: Benchmark,
    tasks: Mapping[str, Path],
    args: argparse.Namespace,
    switched_on: Sequence[Extension],
) -> Plan:
    name, selection = _chosen(model.name, _selection(args), switched_on)
    learned = _learned(args.results_dir / name, tuple(tasks))
    sampling, set_by_user = model.sampling, model.sampling.temperature is not None
    if args.repeats > 1 and "seed" in sampling.extra_body:
        raise BadInput(f"{model.name}: its extra body sets the seed of every repeat: use --seed instead")
    if benchmark.asking.wants_schema and "response_format" in sampling.extra_body:
        raise BadInput(f"{model.name}: its extra body sets the response_format that --structured is to set")
    if args.primary not in (None, *(known := [metric.name for metric in benchmark.metrics])):
        raise BadInput(f"--primary {args.primary}: {benchmark.name} has the metrics {', '.join(known)}")
    tuning = options.tuning(args, learned | model.pace)
    return Plan(
        name=name,
        benchmark=benchmark,
        sampling=sampling if set_by_user else replace(sampling, temperature=benchmark.configuration.temperature),
        tasks=tasks,
        results=args.results_dir,
        way=Way(
            model.found,
            model.price,
            providers_file=str(args.providers.resolve()) if args.providers else None,
            headers=tuple(name for name, _ in args.extra_header),
            address_from="--api-url" if args.api_url else None,
            ca_file=args.ca_file,
        ),
        tuning=tuning,
        selection=selection,
        terms=Terms(
            frozenset(args.allow),
            args.restart,
            primary=args.primary,
            allow_invalid=args.allow_invalid,
            queued=model.queued,
        ),
    )


def _chosen(name: str, selection: Selection, switched_on: Sequence[Extension]) -> tuple[str, Selection]:
    """Return the name of a run's folder, and which users it takes."""
    for extension in switched_on:
        name, selection = extension.choosing(name, selection)
    return name, selection


def _selection(args: argparse.Namespace) -> Selection:
    chosen: Selection = {"ratio": args.ratio, "sample_seed": args.sample_seed}
    if args.limit is not None:
        chosen["limit"] = args.limit
    if args.repeats > 1:
        chosen["repeats"] = args.repeats
    return chosen


def _models(args: argparse.Namespace) -> list[str]:
    """Return the models that are named; where nothing names one, the baseline of a demo. Raise `BadInput`."""
    named: list[str] = args.model
    if named or args.queue is not None or args.config is not None:
        return named
    cls = args.benchmark_class
    floor = cls.floor or next(iter(cls.baselines), None)
    if floor and args.demo and not (args.api_url or args.provider):
        return [f"{defaults.BASELINE_PREFIX}{floor}"]
    hint = f" ({defaults.BASELINE_PREFIX}{floor} needs no endpoint)" if floor else ""
    raise BadInput(f"which model? name it with --model, as the endpoint does{hint}")


def _config(args: argparse.Namespace) -> config_file.Config | None:
    """Return what `--config` contains."""
    if args.config is None:
        return None
    if args.api_url or args.api_key or args.api_key_file or args.provider:
        raise BadInput("--config names an endpoint with its key: do not give another address, provider or key")
    given = config_file.read(args.config)
    if given.others:
        tell(f"{given.path}: only the first of its {given.others + 1} endpoints is used")
    return given


def _learned(folder: Path, subsets: tuple[str, ...]) -> JSON:
    """Return the limit that an earlier process of this run learned; other tuning is this command's own."""
    manifests = [load(RunFiles(folder, subset).manifest) for subset in subsets]
    found = [made.tuning["learned_limit"] for made in manifests if made and "learned_limit" in made.tuning]
    return {"learned_limit": max(found)} if found else {}


def _json_object(text: str) -> JSON:
    try:
        value = orjson.loads(text)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f"expected a JSON object, got {text!r}")
    return value
