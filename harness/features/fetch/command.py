"""`fetch`: download a benchmark's tasks from the data set that it declares."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import ClassVar

from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn

from harness.benchmark import Benchmark
from harness.benchmarks import registry
from harness.config import options
from harness.errors import BadInput, to_install
from harness.option import option
from harness.ui.console import SharedConsole, console


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Options(options.TasksFolder, options.OneBenchmark):
    examples: ClassVar[Sequence[str]] = (
        "harness fetch",
        "harness fetch --revision main --tasks-dir /data/tasks",
    )
    platform: Sequence[str] | None = options.platform_option("one subset; may be repeated (default: all)")
    revision: str | None = option(
        None,
        "branch, tag or commit (default: the commit that the tasks folder has files of, or else main)",
        unit="REV",
    )


def execute(args: Options) -> int:
    cls = registry.find(args.benchmark)
    fetch(cls, options.subsets(cls, args.platform), args.tasks_dir, console(), args.revision)
    return 0


def fetch(
    cls: type[Benchmark], subsets: Sequence[str], folder: Path, screen: SharedConsole, revision: str | None = None
) -> None:
    """Download what is missing of these subsets. Raise `BadInput` for a benchmark that declares no data set."""
    if not cls.task_files.data_set:
        raise BadInput(f"{cls.name} declares no data set: put its files into {folder}")
    try:  # here, since the extra `data` may be missing
        from huggingface_hub import constants

        from harness.features.fetch import download as job
        from harness.features.fetch.hub import Hub
    except ModuleNotFoundError as error:
        raise BadInput(f"fetch needs the package {error.name}: {to_install('behavior-harness[data]')}") from None
    say = partial(screen.print, soft_wrap=True)
    hub = Hub(os.environ.get("HF_ENDPOINT") or constants.ENDPOINT, time.sleep, say=say)
    job.fetch(cls, subsets, folder, hub, revision, job.Display(say, partial(_progress, screen)))


@contextmanager
def _progress(screen: SharedConsole, size: int) -> Iterator[Callable[[int], None]]:
    """Show how far the download of so many bytes is, on a terminal."""
    columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=screen, transient=True, disable=not (size and screen.is_terminal)) as shown:
        task = shown.add_task("", total=size)
        yield partial(shown.advance, task)
