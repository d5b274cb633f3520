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
from harness.options.plan import Plan, Terms, Way
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
    hooks, screen = hooks_of(args), console(no_color=args.no_color)
    return launch(plans(args), screen, hooks, reported=partial(write_new_page, args), caller=args)


def plans(args: RunOptions, *, sends: bool = True) -> list[Plan]:
    """Return the plans of completed options. Raise `BadInput` with everything that is missing:
    endpoints first, then tasks.

    Keys are checked only for plans that are to be sent.
    """
    cls = args.found()
    book = providers.read(args.providers, os.environ)
    entries = models.entries(args, book, args.model)
    subsets = options.subsets(cls, args.platform)
    missing: list[str] = []
    made = [models.resolve(entry, book, args, missing) for entry in entries]
    folder = defaults.SAMPLE_FOLDER if args.demo else args.tasks_dir
    if args.fetch and not missing and _absent(cls, subsets, folder):
        fetch(cls, subsets, folder)
    if absent := _absent(cls, subsets, folder):
        ours = not (args.demo or _absent(cls, subsets, defaults.SAMPLE_FOLDER))
        demo = ", or use synthetic ones with --demo" if ours else ""
        remedy = (
            "this benchmark has none that ship: name a folder with --tasks-dir"
            if args.demo
            else how_to_get(cls)
        )
        missing.append(f"no tasks: missing {', '.join(absent)}; {remedy}{demo}")
    if missing:
        raise BadInput(*dict.fromkeys(missing))
    if sends:
        models.check_keys(args, [model for model in made if model])
    tasks = {subset: cls.task_files.file_in(folder, cls.subsets[subset]) for subset in subsets}
    return [_with_roles(model, cls, folder, tasks, args, book) for model in filter(None, made)]


def names(args: RunOptions) -> set[str]:
    """Return the names of the runs that a command which has been executed was for."""
    args, book = completed(args), providers.read(args.providers, os.environ)
    entries = models.entries(args, book, args.model)
    return {
        _folder_name(args, args.name or models.folder_of(entry, args, book)) for entry in entries
    }


def _absent(cls: type[Benchmark], subsets: Sequence[str], folder: Path) -> list[str]:
    """Return the files that these subsets need and that do not exist."""
    names = dict.fromkeys(name for subset in subsets for name in files_needed(cls, subset))
    return [
        str(path)
        for path in (cls.task_files.file_in(folder, name) for name in names)
        if not path.exists()
    ]


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
    chosen = roles.role_models(cls, args.roles, model.roles)
    asking = Asking(args.structured, args.parse_retries, frozenset(one.role for one in chosen))
    of_benchmark = settings.given(cls.Settings, args.of_benchmark or {})
    plan = _plan(model, cls(of_benchmark, asking=asking, folder=folder), tasks, args)
    return roles.with_roles(plan, args, book, chosen)


def _plan(model: Model, benchmark: Benchmark, tasks: Mapping[str, Path], args: RunOptions) -> Plan:
    name = _folder_name(args, model.name)
    selection = _selection(args, args.results_dir / name)
    if not args.restart:
        _check_folder(args.results_dir / name, tasks, selection)
    learned = _learned(args.results_dir / name, tuple(tasks))
    sampling, set_by_user = model.sampling, model.sampling.temperature is not None
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
        sampling=(
            sampling
            if set_by_user
            else replace(sampling, temperature=benchmark.configuration.temperature)
        ),
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
            pages=args.html,
            queued=model.queued,
        ),
    )


def _folder_name(args: RunOptions, name: str) -> str:
    """Return the name of a run's folder, which says what part of the users it has."""
    return (
        options.new_run_name(f"{name}.part{args.part.replace('/', 'of')}", name)
        if args.part
        else name
    )


def _selection(args: RunOptions, folder: Path) -> Selection:
    """Return which users a run takes. Raise `BadInput` for a part that the earlier run of its
    folder cannot be.

    A part of all users has every n-th line of the tasks file, whose others are not validated. Of a
    share or of some users it is every n-th in the order that the seed draws, which only all keys
    decide.
    """
    chosen: Selection = {"ratio": args.ratio, "sample_seed": args.sample_seed}
    if args.limit is not None:
        chosen["limit"] = args.limit
    if args.repeats > 1:
        chosen["repeats"] = args.repeats
    if args.part is None:
        return chosen
    chosen["part"] = args.part
    takes_all = args.ratio == 1 and args.limit is None
    earlier = {} if args.restart else manifests(folder)
    before = next((manifest.selection for manifest in earlier.values()), None)
    is_by_lines = bool(before and before.get("by"))
    if is_by_lines and not takes_all:
        raise BadInput(
            f"{folder.name} has every n-th line of the tasks file: leave out --ratio and --limit,"
            " or give --restart"
        )
    if takes_all and (is_by_lines or before is None):
        chosen["by"] = "lines"
    return chosen


def _check_folder(folder: Path, tasks: Mapping[str, Path], selection: Selection) -> None:
    """Raise `BadInput` if a folder has a run of more users, or on another kind of tasks."""
    ships = all(defaults.ships(str(path)) for path in tasks.values())
    for manifest in manifests(folder).values():
        if defaults.ships(manifest.tasks["path"]) != ships:
            kinds = (
                ("your tasks", "those that ship")
                if ships
                else ("the tasks that ship", "your tasks")
            )
            raise BadInput(
                f"{folder} holds a run on {kinds[0]}, and this one is on {kinds[1]}: give it"
                " another name with --name"
            )
        users = manifest.tasks["users"]
        if share(selection, users) < share(manifest.selection, users):
            raise BadInput(
                f"{folder} holds a run of more users: go on {_words_of_share(manifest.selection)},"
                " or give this one another name with --name"
            )


def _words_of_share(selection: Selection) -> str:
    """Return how a command names a share of the users."""
    if "limit" in selection:
        return f"with --limit {selection['limit']}"
    return (
        "with all users (no --limit, no --ratio)"
        if selection["ratio"] == 1
        else f"with --ratio {selection['ratio']:g}"
    )


def _score_again(args: RunOptions) -> int:
    """Score the saved answers of the runs that a `run` is for again, without any request."""
    if args.part:
        raise BadInput(
            "--part plays users, and --reeval scores saved answers: name the part with --name"
        )
    tasks: Path | None = args.tasks_dir
    if args.demo or tasks == defaults.TASKS_FOLDER:
        tasks = defaults.SAMPLE_FOLDER if args.demo else None
    book = providers.read(args.providers, os.environ)
    names: list[str | None] = [
        models.named(entry, args, book)[1] for entry in models.entries(args, book, args.model)
    ]
    codes = [
        reeval.execute(
            reeval.Options(
                results_dir=args.results_dir,
                tasks_dir=tasks,
                runs=[args.name] if args.name else [],
                model=model,
                platform=args.platform,
                benchmark=(
                    None if registry.is_shipped(args.benchmark) else args.benchmark
                ),  # None: runs of any
                providers=args.providers,
                html=args.html,
            )
        )
        for model in names or [None]
    ]
    return max(codes)


def completed(args: RunOptions) -> RunOptions:
    """Return options with the endpoint of `--config`, and a model if no option names any. Raise
    `BadInput`."""
    args = replace(args, endpoint=endpoint_file.endpoint_of(args))
    return args if args.model or args.queue is not None else replace(args, model=[_model(args)])


def _model(args: RunOptions) -> str:
    """Return the model of the endpoint in `--config`, else the baseline of a demo. Raise
    `BadInput`."""
    if args.endpoint:
        return args.endpoint.model
    cls = args.found()
    floor = cls.about.floor or next(iter(cls.baselines), None)
    if floor and args.demo and not (args.api_url or args.provider):
        return f"{defaults.BASELINE_PREFIX}{floor}"
    hint = f" ({defaults.BASELINE_PREFIX}{floor} needs no endpoint)" if floor else ""
    raise BadInput(f"which model? name it with --model, as the endpoint does{hint}")


def _learned(folder: Path, subsets: tuple[str, ...]) -> JSON:
    """Return the limit that an earlier process of this run learned; other tuning is this command's
    own."""
    manifests = [load(RunFiles(folder, subset).manifest) for subset in subsets]
    found = [
        made.tuning["learned_limit"]
        for made in manifests
        if made and "learned_limit" in made.tuning
    ]
    return {"learned_limit": max(found)} if found else {}
