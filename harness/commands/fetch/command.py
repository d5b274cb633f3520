"""`fetch`, `run --fetch`: download a benchmark's tasks from the data set that it declares."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.benchmark import Benchmark
from harness.benchmarks import registry
from harness.errors import BadInput, EndpointStopped, HarnessError, MachineError, to_install
from harness.option import option
from harness.options import options


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Options(options.TasksFolder, options.OneBenchmark):
    examples = ("harness fetch", "harness fetch --revision main --tasks-dir /data/tasks")
    platform: Sequence[str] | None = options.platform_option(
        "one subset; may be repeated (default: all)"
    )
    revision: str | None = option(
        None,
        "branch, tag or commit (default: the commit that the tasks folder has files of, or else"
        " main)",
        unit="REV",
    )


def execute(args: Options) -> int:
    cls = registry.find(args.benchmark)
    fetch(cls, options.subsets(cls, args.platform), args.tasks_dir, args.revision)
    return 0


def fetch(
    cls: type[Benchmark], subsets: Sequence[str], folder: Path, revision: str | None = None
) -> None:
    """Download what is missing of these subsets. Raise `BadInput` for a benchmark that declares no
    data set.

    No words of the library are shown: they may have a token, or a password in an address.
    """
    if not cls.task_files.data_set:
        raise BadInput(f"{cls.name} declares no data set: put its files into {folder}")
    # Mirrors have neither.
    os.environ |= {"HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}
    try:
        from harness.commands.fetch import download  # needs the extra `data`

        download.fetch(cls, subsets, folder, revision)
    except HarnessError:
        raise
    except ModuleNotFoundError as error:
        raise BadInput(
            f"fetch needs the package {error.name}: {to_install('behavior-harness[data]')}"
        ) from None
    except Exception as error:  # of the library, and what a server that is no hub makes of it
        if isinstance(error, OSError) and error.errno:
            raise MachineError(f"cannot write the tasks: {error}") from None
        raise EndpointStopped(
            f"{type(error).__name__} {getattr(error, 'response', '')} from the Hugging Face Hub, or"
            " the mirror that HF_ENDPOINT names: check the address, --revision and HF_TOKEN, or"
            " try again later"
        ) from None
