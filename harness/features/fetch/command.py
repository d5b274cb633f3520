"""`fetch`, `run --fetch`: download a benchmark's tasks from the data set that it declares, and note that in runs."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn

from harness.benchmark import Benchmark
from harness.benchmarks import registry
from harness.config import options
from harness.config.plan import Plan
from harness.engine.extension import Extension
from harness.errors import BadInput, to_install
from harness.features.fetch.fetched import load
from harness.option import option
from harness.store.manifest import Manifest
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


class DataSet(Extension):
    def __init__(self, args: Any) -> None:
        self._fetches: bool = getattr(args, "fetch", False)  # `resume` needs the tasks of before
        self._no_color = args.no_color

    def missing(self, cls: type[Benchmark], subsets: Sequence[str], folder: Path) -> None:
        if self._fetches:
            fetch(cls, subsets, folder, console(no_color=self._no_color))

    def opened(self, plan: Plan, manifest: Manifest, old: Manifest | None) -> None:
        digest = manifest.tasks["sha256"]
        if source := load(plan.benchmark.folder).source(digest):
            manifest.provenance["data_set"] = {"name": source.data_set, "commit": source.commit}
        elif old and old.tasks["sha256"] == digest and (known := old.provenance.get("data_set")):
            manifest.provenance["data_set"] = known


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
