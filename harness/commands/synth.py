"""`synth`: write synthetic tasks of any size, of a benchmark that can make them."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from harness.benchmark import Benchmark, files_needed
from harness.benchmarks import registry
from harness.benchmarks.user_code import guarded
from harness.errors import BadInput, BenchmarkError, in_brief
from harness.option import POSITIVE, command_options, folder, option
from harness.options import fields, options
from harness.store.atomic import make_folder, replacing
from harness.ui.console import console

KEYWORDS_OF_OPTIONS = {"platform": "subsets", "steps": "mean_steps"}
"""Option -> the keyword of `synthesise` that takes it, where a benchmark's has it."""


@command_options
class Options(options.OneBenchmark):
    out: Path = option(help_text="folder to write into", unit="DIR", read=folder)
    users: int = option(help_text="users per subset", check=fields.POSITIVE_INT, per_command=True)
    seed: int = option(0, unit="S")
    platform: Sequence[str] | None = options.platform_option(
        "one subset; may be repeated (default: all)"
    )
    steps: float | None = option(None, "mean number of steps per user", unit="MEAN", check=POSITIVE)


def execute(args: Options) -> int:
    cls = registry.find(args.benchmark)
    chosen = options.subsets(cls, args.platform)
    for subset in chosen:
        # Before the work; a benchmark may make more files than a run needs, so those are checked
        # after it.
        for name in files_needed(cls, subset):
            _check_free(cls.task_files.file_in(args.out, name))
    make_folder(args.out)
    files = _synthesised(cls, args, chosen)
    for name in files:
        _check_free(args.out / name)
    for name, lines in files.items():
        path = args.out / name
        make_folder(path.parent)
        with replacing(path, shared=True) as file:
            file.writelines(_pieces(cls, name, lines))
    for subset in chosen:
        path = cls.task_files.file_in(args.out, cls.subsets[subset])
        if not path.is_file():
            raise _wrong(cls, f"{cls.subsets[subset]} was not made")
        console().print(f"{path}: {args.users} synthetic {cls.about.user}s", soft_wrap=True)
    return 0


def _synthesised(
    cls: type[Benchmark], args: Options, subsets: list[str]
) -> dict[str, Iterable[bytes]]:
    """Return the content of each file, by path below the folder; nothing if the benchmark wrote its
    files itself."""
    make: Callable[..., Mapping[str, Iterable[bytes]] | None]
    # An instance would load data in `prepare`, which may not exist before the tasks do.
    make = cls.synthesise if inspect.ismethod(cls.synthesise) else cls().synthesise
    parameters = inspect.signature(make).parameters
    values = {"subsets": subsets if args.platform else None, "mean_steps": args.steps}
    arguments = dict[str, object]()
    for flag, keyword in KEYWORDS_OF_OPTIONS.items():
        value = values[keyword]
        if value is None:
            continue
        if keyword not in parameters:
            raise BadInput(f"--{flag} is no option of {cls.name}")
        arguments[keyword] = value
    with guarded(cls, "synthesise"):
        files = dict(make(args.out, args.users, args.seed, **arguments) or {})
    for name in files:
        is_below = type(name) is str and name and not Path(name).is_absolute()
        if not is_below or ".." in Path(name).parts:
            raise _wrong(cls, f"expected a path below the tasks folder, got {in_brief(name)}")
    return files


def _wrong(cls: type[Benchmark], problem: str) -> BenchmarkError:
    return BenchmarkError(f"benchmark {cls.name}, synthesise: {problem}")


def _pieces(cls: type[Benchmark], name: str, lines: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the pieces of a file, which may be generated as they are written."""
    # A generator runs the author's code here, long after `synthesise` has returned.
    with guarded(cls, f"synthesise: {name}"):
        for piece in lines:
            if not isinstance(piece, bytes):
                raise _wrong(cls, f"{name}: expected bytes, got {in_brief(piece)}")
            yield piece


def _check_free(path: Path) -> None:
    """Raise `BadInput` for a file that exists: real tasks must not be overwritten."""
    if os.path.lexists(path):
        raise BadInput(
            f"{path} already exists: give a folder without tasks with --out, or move it away"
        )
