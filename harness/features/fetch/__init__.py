"""Download the tasks files of a benchmark (`fetch`, `run --fetch`), and note in each run where they are from."""

from __future__ import annotations

from dataclasses import dataclass

from harness.benchmark import Benchmark
from harness.feature import Command, Feature
from harness.option import option


@dataclass(frozen=True)
class Fetch:
    """Whether missing tasks are downloaded."""

    fetch: bool = option(False, "first download tasks that are missing, as `fetch` does")


def _how_to_get(cls: type[Benchmark]) -> str:
    named = cls.origin.spec if cls.origin else cls.name
    return f"`harness fetch {named}` downloads them (data set {cls.task_files.data_set} of the Hugging Face Hub)"


FEATURE = Feature(
    "fetch",
    commands={"fetch": Command("harness.features.fetch.command", "download a benchmark's tasks")},
    options={Fetch: ("run",)},
    is_on=lambda args: True,  # each run records where its tasks are from
    extension="harness.features.fetch.data_set:DataSet",
    how_to_get=lambda cls: _how_to_get(cls) if cls.task_files.data_set else "",
)
