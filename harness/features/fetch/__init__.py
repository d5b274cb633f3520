"""Download the tasks files of a benchmark (`fetch`, `run --fetch`), and note in each run where they are from."""

from __future__ import annotations

import argparse

from harness.benchmark import Benchmark
from harness.config import options
from harness.feature import Command, Feature


def _options(command: str, parser: argparse.ArgumentParser) -> None:
    if command == "run":
        options.add(parser, "--fetch", "first download tasks that are missing, as `fetch` does", action="store_true")


def _how_to_get(cls: type[Benchmark]) -> str:
    named = cls.origin.spec if cls.origin else cls.name
    return f"`harness fetch {named}` downloads them (data set {cls.data_set} of the Hugging Face Hub)"


FEATURE = Feature(
    "fetch",
    commands={"fetch": Command("harness.features.fetch.command", "download a benchmark's tasks")},
    options=_options,
    is_on=lambda args: True,  # each run records where its tasks are from
    extension="harness.features.fetch.data_set:DataSet",
    how_to_get=lambda cls: _how_to_get(cls) if cls.data_set else "",
)
