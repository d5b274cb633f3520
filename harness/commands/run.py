"""`run`: the main job."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import orjson

from harness import benchmarks, config
from harness.commands import address, asbench, options, plan, reeval
from harness.commands.launch import launch
from harness.endpoint.address import check
from harness.endpoint.wire import Sampling
from harness.errors import BadInput
from harness.model import JSON, Message, Request
from harness.serve.app import MODELS
from harness.store.manifest import load
from harness.store.run import RunFiles
from harness.ui.console import console
from harness.ui.streams import tell


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("benchmark", nargs="?", default=config.BENCHMARK, help=f"default: {config.BENCHMARK}")
    parser.add_argument(
        "--model",
        type=options.filled,
        help=f"as the endpoint names it, or one that the harness serves itself: {', '.join(MODELS)}",
    )
    parser.add_argument(
        "--config", type=Path, metavar="FILE", help="asbench's YAML file: address, key, model, concurrency, time-out"
    )
    options.add_platform(parser, "one subset; may be repeated (default: all)")
    parser.add_argument(
        "--name", type=options.folder_name, help="name of the run (default: the last part of the model's name)"
    )
    parser.add_argument("--demo", action="store_true", help="take the synthetic tasks that ship with the harness")
    parser.add_argument("--ratio", type=options.share, default=1.0, metavar="R", help="share of the users to take")
    options.add_sample_seed(parser, "seed of that share and of the order of users")
    parser.add_argument("--restart", action="store_true", help="move an earlier run of this name aside and begin anew")
    parser.add_argument(
        "--allow", action="append", default=[], metavar="FIELD", help="accept that this field of an earlier run differs"
    )
    parser.add_argument("--reeval", action="store_true", help="score the saved answers again instead, as `reeval` does")
    options.add_folders(parser)
    options.add_key(parser)
    _add_sampling(parser)
    options.add_tuning(parser)
    parser.add_argument("--prompt", type=Path, metavar="FILE", help="a prompt template of your own")
    for name in benchmarks.names():
        benchmarks.module(name).add_arguments(parser)


def _add_sampling(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("requests (part of what the run is)")
    group.add_argument(
        "--temperature", type=options.not_negative, default=config.TEMPERATURE, metavar="T", help="default: 0"
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
        help="times that an unusable reply is asked for again (default: 2)",
    )


def execute(args: argparse.Namespace) -> int:
    if args.reeval:
        args.reparse = False
        if args.demo or args.tasks_dir == config.TASKS_FOLDER:
            args.tasks_dir = config.SAMPLE_FOLDER if args.demo else None
        return reeval.execute(args)
    screen = console()
    made = _plan(args)
    if made.found is None:
        screen.print(f"{args.model}: served by the harness itself on loopback; no key, no network", soft_wrap=True)
    elif made.found.key_from is None:
        screen.print(f"no key is known for {made.endpoint}: requests go without one", soft_wrap=True)
    return launch(made, screen)


def _plan(args: argparse.Namespace) -> plan.Plan:
    """Everything that is missing is said at once: endpoint first, then tasks."""
    module = benchmarks.module(args.benchmark)
    _refuse_foreign(args)
    given = _config(args)
    subsets = _subsets(args.platform, module.SUBSETS)
    baseline = args.model.startswith(config.BASELINE_PREFIX) and not (args.api_url or given)
    found = None if baseline else (_found(given) if given else address.find(args, os.environ))
    missing = [] if baseline or found else [address.MISSING]
    folder = config.SAMPLE_FOLDER if args.demo else args.tasks_dir
    needed = {subset: [folder / name for name in module.files_needed(subset)] for subset in subsets}
    absent = [path for paths in needed.values() for path in paths if not path.exists()]
    if absent:
        missing.append(
            f"no tasks: missing {', '.join(map(str, absent))}; put them there, or take synthetic ones with --demo"
        )
    if missing:
        raise BadInput("\n".join(missing))
    if found:
        check(found.address)
    name = options.run_name(args.name, args.model)
    sampling = Sampling(args.model, args.temperature, args.top_p, args.seed, args.max_tokens, args.extra_body)
    _check_encodable(sampling)
    return plan.Plan(
        name=name,
        benchmark=module.configure(module.settings(args, folder)),
        sampling=sampling,
        tasks={subset: paths[0] for subset, paths in needed.items()},
        results=args.results_dir,
        found=found,
        tuning=options.tuning(args, _learned(args.results_dir / name, subsets) | (given.tuning if given else {})),
        ratio=args.ratio,
        sample_seed=args.sample_seed,
        allowed=frozenset(args.allow),
        restart=args.restart,
    )


def _config(args: argparse.Namespace) -> asbench.Config | None:
    """What `--config` says; it also names the model where the command does not."""
    if args.config is None:
        if args.model is None:
            raise BadInput(
                "which model? name it with --model, as the endpoint does (baseline/recency needs no endpoint)"
            )
        return None
    if args.api_url or args.api_key or args.api_key_file:
        raise BadInput("--config names an endpoint with its key: give no other address or key beside it")
    given = asbench.read(args.config)
    if given.others:
        tell(f"{given.path}: only the first of its {given.others + 1} endpoints is used")
    args.model = args.model or given.model
    return given


def _found(given: asbench.Config) -> address.Found:
    return address.Found(given.address(address.insecure(os.environ)), given.key_from)


def _refuse_foreign(args: argparse.Namespace) -> None:
    """An option of another benchmark would have no effect."""
    for other in benchmarks.names():
        if other != args.benchmark.lower():
            parser = argparse.ArgumentParser(add_help=False)
            benchmarks.module(other).add_arguments(parser)
            for name, default in vars(parser.parse_args([])).items():
                if getattr(args, name) != default:
                    raise BadInput(f"--{name.replace('_', '-')} is an option of {other}, and this is {args.benchmark}")


def _learned(folder: Path, subsets: tuple[str, ...]) -> JSON:
    """The limit that an earlier process of this run had found out; other tuning is this command's own."""
    manifests = [load(RunFiles(folder, subset).manifest) for subset in subsets]
    found = [made.tuning["learned_limit"] for made in manifests if made and "learned_limit" in made.tuning]
    return {"learned_limit": max(found)} if found else {}


def _subsets(named: list[str] | None, known: tuple[str, ...]) -> tuple[str, ...]:
    """The subsets named, in any case and in the benchmark's order; all where none is."""
    wanted = {name.lower() for name in named or known}
    if unknown := wanted - set(known):
        raise BadInput(f"unknown platform {', '.join(sorted(unknown))}: known are {', '.join(known)}")
    return tuple(name for name in known if name in wanted)


def _check_encodable(sampling: Sampling) -> None:
    """Refuses values that no JSON body can carry before anything else is done."""
    try:
        sampling.encode(Request((Message("user", ""),)))
    except TypeError as error:
        raise BadInput(f"a request with these parameters cannot be written as JSON: {error}") from None


def _json_object(text: str) -> JSON:
    try:
        value = orjson.loads(text)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f"expected a JSON object, got {text!r}")
    return value
