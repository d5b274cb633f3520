"""`fetch`, `run --fetch`: download a benchmark's tasks from the data set that it declares, and note that in runs."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.benchmark import Benchmark
from harness.benchmarks import registry
from harness.commands.fetch.fetched import load
from harness.engine.extension import Extension
from harness.errors import BadInput, EndpointStopped, HarnessError, MachineError, to_install
from harness.option import option
from harness.options import options
from harness.options.plan import Plan
from harness.store.manifest import Manifest


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Options(options.TasksFolder, options.OneBenchmark):
    examples = ("harness fetch", "harness fetch --revision main --tasks-dir /data/tasks")
    platform: Sequence[str] | None = options.platform_option("one subset; may be repeated (default: all)")
    revision: str | None = option(
        None,
        "branch, tag or commit (default: the commit that the tasks folder has files of, or else main)",
        unit="REV",
    )


def execute(args: Options) -> int:
    cls = registry.find(args.benchmark)
    fetch(cls, options.subsets(cls, args.platform), args.tasks_dir, args.revision)
    return 0


class DataSet(Extension):
    def __init__(self, args: Any) -> None:
        self._fetches = getattr(args, "fetch", False)  # `resume` needs the tasks of before

    def missing(self, cls: type[Benchmark], subsets: Sequence[str], folder: Path) -> None:
        if self._fetches:
            fetch(cls, subsets, folder)

    def opened(self, plan: Plan, manifest: Manifest, old: Manifest | None) -> None:
        digest = manifest.tasks["sha256"]
        if source := load(plan.benchmark.folder).last(digest):
            manifest.provenance["data_set"] = {"name": source.data_set, "commit": source.commit}
        elif old and old.tasks["sha256"] == digest and (known := old.provenance.get("data_set")):
            manifest.provenance["data_set"] = known


def fetch(cls: type[Benchmark], subsets: Sequence[str], folder: Path, revision: str | None = None) -> None:
    """Download what is missing of these subsets. Raise `BadInput` for a benchmark that declares no data set.

    No words of the library are shown: they may have a token, or a password in an address.
    """
    if not cls.task_files.data_set:
        raise BadInput(f"{cls.name} declares no data set: put its files into {folder}")
    os.environ |= {"HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}  # mirrors have neither
    try:
        from harness.commands.fetch import download  # needs the extra `data`

        download.fetch(cls, subsets, folder, revision)
    except HarnessError:
        raise
    except ModuleNotFoundError as error:
        raise BadInput(f"fetch needs the package {error.name}: {to_install('behavior-harness[data]')}") from None
    except Exception as error:  # of the library, and what a server that is no hub makes of it
        if isinstance(error, OSError) and error.errno:
            raise MachineError(f"cannot write the tasks: {error}") from None
        raise EndpointStopped(
            f"{type(error).__name__} {getattr(error, 'response', '')} from the Hugging Face Hub, or the mirror that "
            "HF_ENDPOINT names: check the address, --revision and HF_TOKEN, or try again later"
        ) from None
