"""`run`: the main job."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from harness import defaults
from harness.benchmark import Benchmark, files_needed
from harness.benchmarks import settings
from harness.chat import Asking
from harness.commands.launch import launch
from harness.engine.extension import Extension
from harness.errors import BadInput
from harness.feature import extensions, function, how_to_get, reported, takeovers
from harness.model import JSON
from harness.options import models, options, providers
from harness.options.models import Model
from harness.options.options import RunOptions
from harness.options.plan import Plan, Terms, Way
from harness.store.manifest import Selection, load
from harness.store.run import RunFiles
from harness.ui.console import console


def execute(args: RunOptions) -> int:
    switched_on, others = extensions(args), takeovers("run", args)
    if len(others) > 1:
        raise BadInput("two of these options each do something else instead of playing: give one of them")
    for other in others:
        return other(args)
    chosen, screen = plans(args, switched_on), console(no_color=args.no_color)
    return launch(chosen, screen, switched_on, reported=partial(reported, args), caller=args)


def plans(args: RunOptions, switched_on: Sequence[Extension], *, sends: bool = True) -> list[Plan]:
    """Return the plans. Raise `BadInput` with everything that is missing: endpoints first, then tasks.

    Keys are checked only for plans that are to be sent.
    """
    args, cls = _completed(args), args.found()
    book = providers.read(args.providers, os.environ)
    entries = models.entries(args, book, args.model)
    subsets = options.subsets(cls, args.platform)
    missing: list[str] = []
    made = [models.resolve(entry, book, args, missing) for entry in entries]
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
        _plan(
            model,
            cls(settings.given(cls.Settings, args.of_benchmark or {}), asking=asking, folder=folder),
            tasks,
            args,
            switched_on,
        )
        for model in filter(None, made)
    ]


def names(args: RunOptions) -> set[str]:
    """Return the names of the runs that a command which has been executed was for."""
    args, book = _completed(args), providers.read(args.providers, os.environ)
    entries = models.entries(args, book, args.model)
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
    args: RunOptions,
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
        way=Way.of(args, model.found, model.price),
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


def _selection(args: RunOptions) -> Selection:
    chosen: Selection = {"ratio": args.ratio, "sample_seed": args.sample_seed}
    if args.limit is not None:
        chosen["limit"] = args.limit
    if args.repeats > 1:
        chosen["repeats"] = args.repeats
    return chosen


def _completed(args: RunOptions) -> RunOptions:
    """Return options with a feature's endpoint, and a model if no option names any. Raise `BadInput`."""
    of_feature = function("endpoint_of")
    args = replace(args, endpoint=of_feature and of_feature(args))
    return args if args.model or args.queue is not None else replace(args, model=[_model(args)])


def _model(args: RunOptions) -> str:
    """Return the model of an endpoint that a feature names, else the baseline of a demo. Raise `BadInput`."""
    if args.endpoint:
        return args.endpoint.model
    cls = args.found()
    floor = cls.about.floor or next(iter(cls.baselines), None)
    if floor and args.demo and not (args.api_url or args.provider):
        return f"{defaults.BASELINE_PREFIX}{floor}"
    hint = f" ({defaults.BASELINE_PREFIX}{floor} needs no endpoint)" if floor else ""
    raise BadInput(f"which model? name it with --model, as the endpoint does{hint}")


def _learned(folder: Path, subsets: tuple[str, ...]) -> JSON:
    """Return the limit that an earlier process of this run learned; other tuning is this command's own."""
    manifests = [load(RunFiles(folder, subset).manifest) for subset in subsets]
    found = [made.tuning["learned_limit"] for made in manifests if made and "learned_limit" in made.tuning]
    return {"learned_limit": max(found)} if found else {}
