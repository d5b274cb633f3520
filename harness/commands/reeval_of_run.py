"""Score the saved answers of the runs that a `run` is for again, without any request."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from harness import defaults
from harness.benchmarks import registry
from harness.commands import reeval as command
from harness.commands.parser import shape
from harness.model import JSON
from harness.options import models, providers
from harness.options.options import RunOptions


def execute(args: RunOptions) -> int:
    tasks: Path | None = args.tasks_dir
    if args.demo or tasks == defaults.TASKS_FOLDER:
        tasks = defaults.SAMPLE_FOLDER if args.demo else None
    book = providers.read(args.providers, os.environ)
    chosen: list[str | None] = [models.named(entry, args, book)[1] for entry in models.entries(args, book, args.model)]
    given: JSON = {
        **vars(args),
        "tasks_dir": tasks,
        "runs": [args.name] if args.name else [],
        "benchmark": None if registry.is_shipped(args.benchmark) else args.benchmark,  # None: runs of any
    }
    cls: Any = shape("reeval")
    known = {name: value for name, value in given.items() if name in cls.__dataclass_fields__}
    return max([command.execute(cls(**{**known, "model": model})) for model in chosen or [None]])
