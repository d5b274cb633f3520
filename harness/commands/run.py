"""`run`: the main job."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from harness import defaults
from harness.benchmark import Benchmark, files_needed
from harness.benchmarks import registry, settings
from harness.benchmarks.tasks import how_to_get
from harness.chat import Asking
from harness.commands import reeval
from harness.commands.fetch.command import fetch
from harness.commands.launch import launch
from harness.commands.report import write_new_page
from harness.errors import BadInput, which_is_known
from harness.model import JSON
from harness.options import endpoint_file, models, options, providers, roles
from harness.options.extension import hooks_of
from harness.options.models import Model
from harness.options.options import RunOptions
from harness.options.plan import EndpointChoice, Plan, RunPolicy
from harness.options.providers import Book
from harness.store.manifest import Selection, load, manifests, share
from harness.store.run import RunFiles
from harness.ui.console import console

Options = RunOptions


def execute(args: RunOptions) -> int:
    if args.reeval:
        return _score_again(args)
    args = completed(args)
    if args.dry_run:
        from harness.commands.dry_run import preview

        return preview.execute(args)
    hooks = hooks_of(args)
    screen = console(no_color=args.no_color)
    return launch(plans(args), screen, hooks, reported=partial(write_new_page, args), caller=args)


def plans(args: RunOptions, *, sends: bool = True) -> list[Plan]:
    """Return the plans of completed options. Raise `BadInput` with everything that is missing:
    endpoints first, then tasks.

    Keys are checked only for plans that are to be sent.
    """
    cls = args.benchmark_class
    book = providers.read(args.providers, os.environ)
    entries = models.entries(args, book, args.model)
    subsets = options.subsets(cls, args.platform)
    missing: list[str] = []
    resolved = [models.resolve(entry, book, args, missing) for entry in entries]
    folder = defaults.SAMPLE_FOLDER if args.demo else args.tasks_dir
    # Nothing is downloaded for a command that will be refused.
    if args.fetch and not missing and _absent(cls, subsets, folder):
        fetch(cls, subsets, folder)
    absent = _absent(cls, subsets, folder)
    if absent:
        missing.append(f"no tasks: missing {', '.join(absent)}; {_remedy(cls, subsets, args)}")
    if missing:  # all at once: addresses and keys, then tasks
        raise BadInput(*dict.fromkeys(missing))
    usable_models = [model for model in resolved if model]
    if sends:
        models.check_keys(args, usable_models)
    tasks = {subset: cls.task_files.file_in(folder, cls.subsets[subset]) for subset in subsets}
    return [_with_roles(model, cls, folder, tasks, args, book) for model in usable_models]


def _remedy(cls: type[Benchmark], subsets: Sequence[str], args: RunOptions) -> str:
    """Return how to get tasks that are missing."""
    if args.demo:
        return "this benchmark has none that ship: name a folder with --tasks-dir"
    if _absent(cls, subsets, defaults.SAMPLE_FOLDER):
        return how_to_get(cls)
    return f"{how_to_get(cls)}, or use synthetic ones with --demo"


def names(args: RunOptions) -> set[str]:
    """Return the names of the runs that a command which has been executed was for."""
    args = completed(args)
    book = providers.read(args.providers, os.environ)
    run_names = set[str]()
    for entry in models.entries(args, book, args.model):
        run_names.add(_folder_name(args, args.name or models.folder_of(entry, args, book)))
    return run_names


def _absent(cls: type[Benchmark], subsets: Sequence[str], folder: Path) -> list[str]:
    """Return the files that these subsets need and that do not exist."""
    absent = dict[str, None]()  # several subsets may need one file
    for subset in subsets:
        for name in files_needed(cls, subset):
            path = cls.task_files.file_in(folder, name)
            if not path.exists():
                absent[str(path)] = None
    return list(absent)


def _with_roles(
    model: Model,
    cls: type[Benchmark],
    folder: Path,
    tasks: Mapping[str, Path],
    args: RunOptions,
    book: Book,
) -> Plan:
    """Return the plan of a model, with a benchmark of its own, so that warnings stay separate, and
    with the models of the benchmark's roles."""
    models_of_roles = roles.role_models(cls, args.roles, model.roles)
    asking = Asking(
        args.structured,
        args.parse_retries,
        frozenset(role_model.role for role_model in models_of_roles),
    )
    benchmark_settings = settings.given(cls.Settings, args.benchmark_settings)
    plan = _plan(model, cls(benchmark_settings, asking=asking, folder=folder), tasks, args)
    return roles.with_roles(plan, args, book, models_of_roles)


def _plan(model: Model, benchmark: Benchmark, tasks: Mapping[str, Path], args: RunOptions) -> Plan:
    name = _folder_name(args, model.name)
    selection = _selection(args, args.results_dir / name)
    if not args.restart:
        _check_folder(args.results_dir / name, tasks, selection)
    learned = _learned(args.results_dir / name, tuple(tasks))
    sampling = model.sampling
    if sampling.temperature is None:
        sampling = replace(sampling, temperature=benchmark.configuration.temperature)
    # A seed in the body would be the same for all repeats; that of --seed differs from one to the
    # next.
    if args.repeats > 1 and "seed" in sampling.extra_body:
        raise BadInput(
            f"{model.name}: its extra body sets the seed of every repeat: use --seed instead"
        )
    if benchmark.asking.wants_schema and "response_format" in sampling.extra_body:
        raise BadInput(
            f"{model.name}: its extra body sets the response_format that --structured is to set"
        )
    metrics = [metric.name for metric in benchmark.metrics]
    if args.primary is not None and args.primary not in metrics:
        known = which_is_known(args.primary, metrics)
        raise BadInput(f"--primary: {benchmark.name} has no metric {args.primary}{known}")
    tuning = options.tuning(args, learned | model.pace)
    return Plan(
        name=name,
        benchmark=benchmark,
        sampling=sampling,
        tasks=tasks,
        results=args.results_dir,
        endpoint_choice=EndpointChoice.of(args, model.resolved, model.price),
        tuning=tuning,
        selection=selection,
        terms=RunPolicy(
            frozenset(args.allow),
            args.restart,
            primary=args.primary,
            allow_invalid=args.allow_invalid,
            pages=args.html,
            queued=model.queued,
        ),
    )


def _folder_name(args: RunOptions, name: str) -> str:
    """Return the name of a run's folder, which says what part of the users it has."""
    if not args.part:
        return name
    return options.new_run_name(f"{name}.part{args.part.replace('/', 'of')}", name)


def _selection(args: RunOptions, folder: Path) -> Selection:
    """Return which users a run takes. Raise `BadInput` for a part that the earlier run of its
    folder cannot be.

    A part of all users has every n-th line of the tasks file, whose others are not validated. Of a
    share or of some users it is every n-th in the order that the seed draws, which only all keys
    decide.
    """
    selection: Selection = {"ratio": args.ratio, "sample_seed": args.sample_seed}
    if args.limit is not None:
        selection["limit"] = args.limit
    if args.repeats > 1:
        selection["repeats"] = args.repeats
    if args.part is None:
        return selection
    selection["part"] = args.part
    takes_all = args.ratio == 1 and args.limit is None
    earlier = {} if args.restart else manifests(folder)
    earlier_selection = next((manifest.selection for manifest in earlier.values()), None)
    is_by_lines = bool(earlier_selection and earlier_selection.get("by"))
    if is_by_lines and not takes_all:
        raise BadInput(
            f"{folder.name} has every n-th line of the tasks file: leave out --ratio and --limit,"
            " or give --restart"
        )
    if takes_all and (is_by_lines or earlier_selection is None):
        selection["by"] = "lines"
    return selection


def _check_folder(folder: Path, tasks: Mapping[str, Path], selection: Selection) -> None:
    """Raise `BadInput` if a folder has a run of more users, or on another kind of tasks."""
    ships = all(defaults.ships(str(path)) for path in tasks.values())
    for manifest in manifests(folder).values():
        if defaults.ships(manifest.tasks["path"]) != ships:
            kinds = "the tasks that ship, and this one is on your tasks"
            if ships:
                kinds = "your tasks, and this one is on those that ship"
            raise BadInput(f"{folder} holds a run on {kinds}: give it another name with --name")
        users = manifest.tasks["users"]
        if share(selection, users) < share(manifest.selection, users):
            raise BadInput(
                f"{folder} holds a run of more users: go on {_share_flag(manifest.selection)}, or"
                " give this one another name with --name"
            )


def _share_flag(selection: Selection) -> str:
    """Return how a command names a share of the users."""
    if "limit" in selection:
        return f"with --limit {selection['limit']}"
    if selection["ratio"] == 1:
        return "with all users (no --limit, no --ratio)"
    return f"with --ratio {selection['ratio']:g}"


def _score_again(args: RunOptions) -> int:
    """Score the saved answers of the runs that a `run` is for again, without any request."""
    if args.part:
        raise BadInput(
            "--part plays users, and --reeval scores saved answers: name the part with --name"
        )
    tasks: Path | None = args.tasks_dir
    if args.demo:
        tasks = defaults.SAMPLE_FOLDER
    # The default is not the user's choice: None is for the tasks where each run had them.
    elif tasks == defaults.TASKS_FOLDER:
        tasks = None
    book = providers.read(args.providers, os.environ)
    model_names = list[str | None]()
    for entry in models.entries(args, book, args.model):
        model_names.append(models.named(entry, args, book)[1])
    chosen = reeval.Options(
        results_dir=args.results_dir,
        tasks_dir=tasks,
        runs=[args.name] if args.name else [],
        platform=args.platform,
        # Runs of benchmarks that ship are opened without a name: None is for any of them.
        benchmark=None if registry.is_shipped(args.benchmark) else args.benchmark,
        providers=args.providers,
        html=args.html,
    )
    return max([reeval.execute(replace(chosen, model=name)) for name in model_names or [None]])


def completed(args: RunOptions) -> RunOptions:
    """Return options with the endpoint of `--config`, and a model if no option names any. Raise
    `BadInput`."""
    args = replace(args, endpoint=endpoint_file.endpoint_of(args))
    if not args.model and args.queue is None:
        args = replace(args, model=[_model(args)])
    return args


def _model(args: RunOptions) -> str:
    """Return the model of the endpoint in `--config`, else the baseline of a demo. Raise
    `BadInput`."""
    if args.endpoint:
        return args.endpoint.model
    cls = args.benchmark_class
    floor = cls.about.floor or next(iter(cls.baselines), None)
    # With an endpoint, a missing --model is a mistake and not the wish for a baseline.
    if floor and args.demo and not (args.api_url or args.provider):
        return f"{defaults.BASELINE_PREFIX}{floor}"
    hint = ""
    if floor:
        hint = f" ({defaults.BASELINE_PREFIX}{floor} needs no endpoint)"
    raise BadInput(f"which model? name it with --model, as the endpoint does{hint}")


def _learned(folder: Path, subsets: tuple[str, ...]) -> JSON:
    """Return the limit that an earlier process of this run learned; other tuning is this command's
    own."""
    tuning: JSON = {}
    for subset in subsets:
        manifest = load(RunFiles(folder, subset).manifest)
        if manifest and "learned_limit" in manifest.tuning:
            limit = manifest.tuning["learned_limit"]
            tuning["learned_limit"] = max(limit, tuning.get("learned_limit", limit))
    return tuning
