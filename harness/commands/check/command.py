"""`check-benchmark`: check that a benchmark keeps its contract; the checks are in `checking`."""

from __future__ import annotations

import tempfile
import warnings
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import orjson

from harness.benchmark import Benchmark, files_needed
from harness.benchmarks import registry
from harness.benchmarks.files import DOCUMENT_MOST, input_file
from harness.benchmarks.tasks import how_to_get
from harness.commands.check import checking
from harness.commands.check.checking import Model, Result, Subject
from harness.engine.files import index_file
from harness.errors import BadInput
from harness.option import option
from harness.options import options
from harness.ui.console import console

USERS = 20
"""Of each subset; the first ones."""


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Options(options.TasksFolder, options.OneBenchmark):
    replies: Path | None = option(
        None,
        "replies, one per line (JSON, or a JSON string for other text), which each user gets in"
        " turn",
    )


def execute(args: Options) -> int:
    with warnings.catch_warnings():
        warnings.simplefilter("once")  # not again for each user and subset
        warnings.filterwarnings(
            "ignore", "coroutine .* was never awaited", RuntimeWarning
        )  # the checks report it
        return _checked(args)


def _checked(args: Options) -> int:
    cls, folder = registry.find(args.benchmark), args.tasks_dir
    models = models_of(cls, _replies(args.replies) if args.replies else [])
    find = cls.task_files.file_in
    needed = {
        subset: [find(folder, name) for name in files_needed(cls, subset)] for subset in cls.subsets
    }
    absent = {
        subset: next((path for path in paths if not path.exists()), None)
        for subset, paths in needed.items()
    }
    if all(absent.values()):
        first = next(iter(absent.values()))
        raise BadInput(
            f"no tasks: missing {first}; {how_to_get(cls)}, or name their folder with --tasks-dir"
        )
    say, code = partial(console().print, highlight=False, soft_wrap=True, markup=False), 0
    seen, notes = dict[str, str](), dict[str, list[str]]()
    for subset, missing in absent.items():
        label = f"{cls.name}, {subset}"
        if missing:
            say(f"{label}: {missing} does not exist: {how_to_get(cls)}")
            code = 1
            continue
        subject = subject_of(cls, subset, folder, models)
        for one in checking.results(subject, seen):
            say(f"{label}: {one.check}: {_verdict(one)}")
            code = 1 if one.wrong and not one.waived else code
        if unmade := checking.unmade(subject):
            notes.setdefault(unmade, []).append(subset)
    for note, subsets in notes.items():
        say(f"{cls.name}, {', '.join(subsets)}: note: {note}")
    return code


def _verdict(one: Result) -> str:
    if one.waived:
        return (
            f"waived ({one.waived}): {one.wrong}"
            if one.wrong
            else f"OK (the waiver is not needed: {one.waived})"
        )
    return one.wrong or "OK"


def _replies(path: Path) -> list[str]:
    """Return the reply of each line: the text of a JSON string, and any other JSON as it is
    written."""
    found = []
    for number, line in enumerate(input_file(path, "the replies ", DOCUMENT_MOST).splitlines(), 1):
        if line.strip():
            try:
                reply = orjson.loads(line)
            except ValueError as error:
                expected = "expected a reply in JSON, or any other reply as a JSON string"
                raise BadInput(f"{path}, line {number}: {expected} ({error})") from None
            found.append(reply if isinstance(reply, str) else line.decode())
    if not found:
        raise BadInput(f"{path}: expected one reply or more, each in a line")
    return found


def models_of(cls: type[Benchmark], replies: list[str]) -> dict[str, Model]:
    """Return the models: the benchmark's baselines (all baselines for a shipped one), replies,
    garbage."""
    found: dict[str, Model] = {"garbage": checking.garbage}
    found |= {name: checking.of_baseline(answer) for name, answer in cls.baselines.items()}
    if registry.is_shipped(cls.name):
        found |= {
            name: checking.of_baseline(answer) for name, answer in registry.baselines().items()
        }
    return found | ({"replies": checking.of_replies(replies)} if replies else {})


def subject_of(
    cls: type[Benchmark], subset: str, folder: Path, models: dict[str, Model]
) -> Subject:
    """Return a subset with its first users. Raise `BadInput` for unusable tasks."""
    benchmark, path = cls(folder=folder), cls.task_files.file_in(folder, cls.subsets[subset])
    with (
        tempfile.TemporaryDirectory() as cache,
        closing(index_file(benchmark, subset, path, Path(cache))) as index,
    ):
        lines = [index.read(position) for position in range(min(USERS, len(index)))]
    return Subject(benchmark, subset, path.name, lines, models)
