"""`check-benchmark`: check that a benchmark keeps its contract; the checks are in `checking`."""

from __future__ import annotations

import tempfile
import warnings
from collections import defaultdict
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import orjson

from harness.benchmark import Benchmark, files_needed, model_baselines
from harness.benchmarks import registry
from harness.benchmarks.files import DOCUMENT_MOST, input_file
from harness.benchmarks.tasks import how_to_get
from harness.commands.check import checking
from harness.commands.check.checking import CheckResult, Model, Subject
from harness.engine.files import index_file
from harness.errors import BadInput
from harness.option import option
from harness.options import options
from harness.ui.console import PLAIN, console

CHECKED_USERS = 20
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
        # The checks report a coroutine that was never awaited.
        warnings.filterwarnings("ignore", "coroutine .* was never awaited", RuntimeWarning)
        return _checked(args)


def _checked(args: Options) -> int:
    cls = registry.find(args.benchmark)
    folder = args.tasks_dir
    replies = _replies(args.replies) if args.replies else []
    models = models_of(cls, replies)
    missing = {subset: _missing_file(cls, subset, folder) for subset in cls.subsets}
    if all(missing.values()):
        first = next(iter(missing.values()))
        raise BadInput(
            f"no tasks: missing {first}; {how_to_get(cls)}, or name their folder with --tasks-dir"
        )
    say = partial(console().print, **PLAIN)
    code = 0
    seen = dict[str, str]()
    notes = defaultdict[str, list[str]](list)
    for subset, path in missing.items():
        label = f"{cls.name}, {subset}"
        if path:
            say(f"{label}: {path} does not exist: {how_to_get(cls)}")
            code = 1
            continue
        subject = subject_of(cls, subset, folder, models)
        for result in checking.results(subject, seen):
            say(f"{label}: {result.check}: {_verdict(result)}")
            if result.wrong and not result.waived:
                code = 1
        note = checking.without_valid_answer(subject)
        if note:
            notes[note].append(subset)
    for note, subsets in notes.items():
        say(f"{cls.name}, {', '.join(subsets)}: note: {note}")
    return code


def _missing_file(cls: type[Benchmark], subset: str, folder: Path) -> Path | None:
    """Return the first file that a subset needs and that does not exist, None if all do."""
    for name in files_needed(cls, subset):
        path = cls.task_files.file_in(folder, name)
        if not path.exists():
            return path
    return None


def _verdict(result: CheckResult) -> str:
    if not result.waived:
        return result.wrong or "OK"
    if not result.wrong:
        return f"OK (the waiver is not needed: {result.waived})"
    return f"waived ({result.waived}): {result.wrong}"


def _replies(path: Path) -> list[str]:
    """Return the reply of each line: the text of a JSON string, and any other JSON as it is
    written."""
    replies = list[str]()
    for number, line in enumerate(input_file(path, "the replies ", DOCUMENT_MOST).splitlines(), 1):
        if not line.strip():
            continue
        try:
            reply = orjson.loads(line)
        except ValueError as error:
            raise BadInput(
                f"{path}, line {number}: expected a reply in JSON, or any other reply as a JSON"
                f" string ({error})"
            ) from None
        replies.append(reply if isinstance(reply, str) else line.decode())
    if not replies:
        raise BadInput(f"{path}: expected one reply or more, each in a line")
    return replies


def models_of(cls: type[Benchmark], replies: list[str]) -> dict[str, Model]:
    """Return the models: the benchmark's baselines (all baselines for a shipped one), replies,
    garbage."""
    models: dict[str, Model] = {"garbage": checking.garbage}
    baselines = model_baselines(cls)
    if registry.is_shipped(cls.name):
        baselines |= registry.baselines()
    for name, answer in baselines.items():
        models[name] = checking.baseline_model(answer)
    if replies:
        models["replies"] = checking.replies_model(replies)
    return models


def subject_of(
    cls: type[Benchmark], subset: str, folder: Path, models: dict[str, Model]
) -> Subject:
    """Return a subset with its first users. Raise `BadInput` for unusable tasks."""
    benchmark = cls(folder=folder)
    path = cls.task_files.file_in(folder, cls.subsets[subset])
    with (
        # In a folder of its own: a check leaves no index in the user's results.
        tempfile.TemporaryDirectory() as cache,
        closing(index_file(benchmark, subset, path, Path(cache))) as index,
    ):
        lines = [index.read(position) for position in range(min(CHECKED_USERS, len(index)))]
    return Subject(benchmark, subset, path.name, lines, models)
