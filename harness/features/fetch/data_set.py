"""Take part in runs: get what is missing, and record the data set of the tasks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from harness.benchmark import Benchmark
from harness.config.plan import Plan
from harness.engine.extension import Extension
from harness.features.fetch.command import fetch
from harness.features.fetch.fetched import load
from harness.store.manifest import Manifest
from harness.ui.console import console


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
