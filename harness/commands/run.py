"""`run`: the main job."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import orjson

from harness import defaults
from harness.benchmark import Benchmark
from harness.benchmarks import registry, settings
from harness.chat import Asking
from harness.commands import reeval
from harness.config import config_file, models, options, providers
from harness.config.models import Model
from harness.config.plan import Plan
from harness.defaults import PARSE_RETRIES
from harness.engine.session import launch
from harness.errors import BadInput
from harness.model import JSON
from harness.serve.app import MODELS
from harness.store.manifest import load
from harness.store.run import RunFiles
from harness.ui.console import console
from harness.ui.streams import tell


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.add_benchmark(parser)
    parser.add_argument(
        "--model",
        type=options.filled,
        action="append",
        default=[],
        metavar="[PROVIDER:]MODEL",
        help="may be repeated, for several models in one schedule: "
        f"as the endpoint names it, or one that the harness serves itself: {', '.join(MODELS)}",
    )
    parser.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help="YAML file with a list `llm`: address, key, model, pace",
    )
    parser.add_argument(
        "--queue", type=options.filled, metavar="NAME", help="the models of this queue of the providers file"
    )
    options.add_platform(parser, "one subset; may be repeated (default: all)")
    parser.add_argument(
        "--name", type=options.folder_name, help="name of the run (default: the last part of the model's name)"
    )
    parser.add_argument("--demo", action="store_true", help="use the synthetic tasks that ship with the harness")
    parser.add_argument("--ratio", type=options.share, default=1.0, metavar="R", help="share of the users to play")
    options.add_sample_seed(parser, "seed of that share and of the order of users")
    parser.add_argument(
        "--restart", action="store_true", help="move an earlier run of this name to a backup and start over"
    )
    parser.add_argument(
        "--allow", action="append", default=[], metavar="FIELD", help="accept that this field of an earlier run differs"
    )
    parser.add_argument("--reeval", action="store_true", help="score the saved answers again instead, as `reeval` does")
    options.add_folders(parser)
    options.add_key(parser)
    _add_sampling(parser)
    options.add_tuning(parser)
    options.add_page(parser)
    options.add_no_color(parser)


def add_flags(parser: argparse.ArgumentParser, words: Sequence[str]) -> None:
    """Add the settings of the benchmark that the words name: no other benchmark has a part in this command line."""
    named = options.benchmark_named(parser, words)
    cls = registry.find(named)
    try:
        settings.add_flags(parser, cls.Settings, f"settings of {cls.name} (part of the run's identity)")
    except settings.BadSettings as error:
        raise BadInput(f"{cls.name}: {error}") from None
    parser.set_defaults(benchmark_class=cls, settings_of=named)


def _add_sampling(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("requests (part of the run's identity)")
    group.add_argument(
        "--temperature", type=options.not_negative, metavar="T", help=f"default: {defaults.TEMPERATURE:g}"
    )
    group.add_argument("--top-p", type=options.share, metavar="P")
    group.add_argument("--seed", type=options.signed_int, metavar="N", help="the endpoint's sampling seed")
    group.add_argument("--max-tokens", type=options.positive_int, metavar="N", help="not sent unless given")
    group.add_argument(
        "--extra-body", type=_json_object, default={}, metavar="JSON", help="more members for every request"
    )
    group.add_argument(
        "--structured", choices=("json_object", "none"), default="json_object", help="response_format of requests"
    )
    group.add_argument(
        "--parse-retries",
        type=options.retries,
        metavar="N",
        help="times to repeat a request after an unusable reply (default: 2)",
    )


def execute(args: argparse.Namespace) -> int:
    if args.reeval:
        return _reeval(args)
    return launch(_plans(args), console(no_color=args.no_color), html=args.html)


def _reeval(args: argparse.Namespace) -> int:
    args.reparse = args.trust = False
    if registry.is_shipped(args.benchmark):
        args.benchmark = None  # runs of any
    if args.demo or args.tasks_dir == defaults.TASKS_FOLDER:
        args.tasks_dir = defaults.SAMPLE_FOLDER if args.demo else None
    book = providers.read(args.providers, os.environ)
    named: list[str | None] = [models.named(entry, args, book)[1] for entry in models.entries(args, book)]
    return max([reeval.execute(argparse.Namespace(**{**vars(args), "model": model})) for model in named or [None]])


def _plans(args: argparse.Namespace) -> list[Plan]:
    """Return the plans. Raise `BadInput` with everything that is missing: endpoints first, then tasks."""
    cls = args.benchmark_class
    if args.benchmark != args.settings_of:
        raise BadInput(f"name the benchmark before its settings: run {args.benchmark} ...")
    given = _config(args)
    book = providers.read(args.providers, os.environ)
    entries = models.entries(args, book)
    subsets = _subsets(args.platform, tuple(cls.subsets))
    missing: list[str] = []
    made = [models.resolve(entry, given, book, args, missing) for entry in entries]
    folder = defaults.SAMPLE_FOLDER if args.demo else args.tasks_dir
    needed = {subset: [folder / name for name in cls.files_needed(subset)] for subset in subsets}
    absent = [path for paths in needed.values() for path in paths if not path.exists()]
    if absent:
        missing.append(
            f"no tasks: missing {', '.join(map(str, absent))}; put them there, or use synthetic ones with --demo"
        )
    if missing:
        raise BadInput(*dict.fromkeys(missing))
    models.check_keys(args, [model for model in made if model])
    tasks = {subset: paths[0] for subset, paths in needed.items()}
    return [
        _plan(model, _benchmark(cls, args, folder), tasks, args)  # one each, so that warnings stay separate
        for model in filter(None, made)
    ]


def _plan(model: Model, benchmark: Benchmark, tasks: Mapping[str, Path], args: argparse.Namespace) -> Plan:
    learned = _learned(args.results_dir / model.name, tuple(tasks))
    return Plan(
        name=model.name,
        benchmark=benchmark,
        sampling=model.sampling,
        tasks=tasks,
        results=args.results_dir,
        found=model.found,
        tuning=options.tuning(args, learned | model.pace),
        ratio=args.ratio,
        sample_seed=args.sample_seed,
        allowed=frozenset(args.allow),
        restart=args.restart,
        providers_file=str(args.providers.resolve()) if args.providers else None,
        headers=tuple(name for name, _ in args.extra_header),
        address_from="--api-url" if args.api_url else None,
        ca_file=args.ca_file,
    )


def _config(args: argparse.Namespace) -> config_file.Config | None:
    """Return what `--config` contains; it also names the model if the command does not."""
    if args.config is None:
        if not args.model and args.queue is None:
            floor = next(iter(args.benchmark_class.baselines), None if args.benchmark_class.origin else "recency")
            hint = f" ({defaults.BASELINE_PREFIX}{floor} needs no endpoint)" if floor else ""
            raise BadInput(f"which model? name it with --model, as the endpoint does{hint}")
        return None
    if args.api_url or args.api_key or args.api_key_file or args.provider:
        raise BadInput("--config names an endpoint with its key: do not give another address, provider or key")
    given = config_file.read(args.config)
    if given.others:
        tell(f"{given.path}: only the first of its {given.others + 1} endpoints is used")
    if not args.model and args.queue is None:
        args.model = [given.model]
    return given


def _benchmark(cls: type[Benchmark], args: argparse.Namespace, folder: Path) -> Benchmark:
    retries = PARSE_RETRIES if args.parse_retries is None else args.parse_retries
    asking = Asking(args.structured == "json_object", retries)
    return cls(settings.given(cls.Settings, args), asking=asking, folder=folder)


def _learned(folder: Path, subsets: tuple[str, ...]) -> JSON:
    """Return the limit that an earlier process of this run learned; other tuning is this command's own."""
    manifests = [load(RunFiles(folder, subset).manifest) for subset in subsets]
    found = [made.tuning["learned_limit"] for made in manifests if made and "learned_limit" in made.tuning]
    return {"learned_limit": max(found)} if found else {}


def _subsets(named: list[str] | None, known: tuple[str, ...]) -> tuple[str, ...]:
    """Return the named subsets, in any letter case, in the benchmark's order; all if none is named."""
    wanted = {name.lower() for name in named or known}
    if unknown := wanted - set(known):
        raise BadInput(f"unknown platform {', '.join(sorted(unknown))}: known are {', '.join(known)}")
    return tuple(name for name in known if name in wanted)


def _json_object(text: str) -> JSON:
    try:
        value = orjson.loads(text)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f"expected a JSON object, got {text!r}")
    return value
