"""Download the tasks files of a benchmark (`fetch`, `run --fetch`), and note in each run where they are from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from harness.benchmark import Benchmark
from harness.feature import Command, Feature
from harness.option import option


@dataclass(frozen=True)
class Fetch:
    """Whether missing tasks are downloaded."""

    fetch: bool = option(False, "first download tasks that are missing, as `fetch` does")


class _Fetch(Feature):
    def is_on(self, args: Any) -> bool:
        return True  # each run records where its tasks are from

    def how_to_get(self, cls: type[Benchmark]) -> str:
        if not cls.task_files.data_set:
            return ""
        return (
            f"`harness fetch {cls.origin.spec if cls.origin else cls.name}` downloads them (data set "
            f"{cls.task_files.data_set} of the Hugging Face Hub)"
        )


FEATURE = _Fetch(
    "fetch",
    commands={"fetch": Command("harness.commands.fetch.command", "download a benchmark's tasks")},
    options={Fetch: ("run",)},
    extension="harness.commands.fetch.command:DataSet",
)
