"""`sample`: write a nested share of tasks files."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from harness.benchmarks import registry
from harness.benchmarks.tasks import how_to_get
from harness.engine.files import index_file
from harness.errors import BadInput
from harness.option import command_options, option
from harness.options import fields, options
from harness.reporting.outputs import check_free
from harness.store import atomic
from harness.ui.console import console


@command_options
class Options(options.Forced, options.ResultsFolder, options.TasksFolder, options.OneBenchmark):
    ratio: float = option(help_text="share of the users, such as 0.2", unit="R", check=fields.SHARE)
    sample_seed: int = options.sample_seed_option(
        "for one seed, larger shares contain smaller ones"
    )
    platform: Sequence[str] | None = options.platform_option(
        "one subset; may be repeated (default: all that have tasks)"
    )


def execute(args: Options) -> int:
    cls = registry.find(args.benchmark)
    subsets = options.subsets(cls, args.platform)
    paths = dict[str, Path]()
    targets = dict[str, Path]()
    missing = list[str]()
    for subset in subsets:
        path = cls.task_files.file_in(args.tasks_dir, cls.subsets[subset])
        if not path.exists():
            missing.append(str(path))
            continue
        paths[subset] = path
        stem = Path(path.name.removesuffix(".gz")).stem
        targets[subset] = path.with_name(f"{stem}_sub{round(100 * args.ratio)}.jsonl")
    # Without --subset those that have tasks are enough; one that is named must have them.
    if not paths or (args.platform and missing):
        raise BadInput(
            f"no tasks to sample: missing {', '.join(missing)}; {how_to_get(cls)}, or see"
            " --tasks-dir"
        )
    check_free(*targets.values(), force=args.force)
    benchmark = cls(folder=args.tasks_dir)
    for subset, path in paths.items():
        if ".json" in path.suffixes:
            raise BadInput(
                f"{path} is a JSON array, and a share is written line by line: use `run --ratio`"
            )
        target = targets[subset]
        with (
            closing(index_file(benchmark, subset, path, args.results_dir)) as index,
            atomic.replacing(target, shared=True) as file,
        ):
            users = len(index)
            positions = index.select(args.ratio, args.sample_seed).nonzero()[0]
            for position in positions:
                file.write(index.read(int(position)) + b"\n")
        console().print(f"{target}: {len(positions)} of {users} users", soft_wrap=True)
    return 0
