"""`sample`: write a nested share of tasks files."""

from __future__ import annotations

import argparse

from harness.benchmarks import registry
from harness.config import options
from harness.engine.files import index_file
from harness.errors import BadInput
from harness.feature import how_to_get
from harness.ui.console import console


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.add_benchmark(parser)
    options.add(parser, "--ratio R", "share of the users, such as 0.2", type=options.share, required=True)
    options.add_sample_seed(parser, "for one seed, larger shares contain smaller ones")
    options.add_platform(parser, "one subset; may be repeated (default: all that have tasks)")
    options.add_force(parser)
    options.add_folders(parser)


def execute(args: argparse.Namespace) -> int:
    screen, outputs = console(), options.outputs(args)
    cls = registry.find(args.benchmark)
    subsets, find = options.subsets(cls, args.platform), cls.task_files.file_in
    files = {name: find(args.tasks_dir, cls.subsets[name]) for name in subsets}
    there = {name: path for name, path in files.items() if path.exists()}
    if not there or (args.platform and len(there) < len(files)):
        absent = ", ".join(str(path) for path in files.values() if not path.exists())
        raise BadInput(f"no tasks to sample: missing {absent}; {how_to_get(cls)}, or see --tasks-dir")
    ending = f"_sub{round(100 * args.ratio)}"
    made = {name: path.with_name(f"{path.stem}{ending}{path.suffix}") for name, path in there.items()}
    outputs.check(*made.values())
    benchmark = cls(folder=args.tasks_dir)
    for subset, path in there.items():
        if path.suffix == ".json":
            raise BadInput(f"{path} is a JSON array, and a share is written line by line: use `run --ratio`")
        index = index_file(benchmark, subset, path, args.results_dir)
        chosen = index.select(args.ratio, args.sample_seed).nonzero()[0]
        with outputs.opened(made[subset]) as file:
            for position in chosen:
                file.write(index.read(int(position)) + b"\n")
        screen.print(f"{made[subset]}: {len(chosen)} of {len(index)} users", soft_wrap=True)
        index.close()
    return 0
