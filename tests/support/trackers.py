"""Libraries of trackers that keep what they get in memory: the names that the harness uses of
`wandb` and `mlflow`."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any


@dataclass
class Kept:
    """An entry: `history` has each value that a figure was given, `files` the content by name."""

    config: dict[str, Any] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)
    history: dict[str, list[Any]] = field(default_factory=dict)
    files: dict[str, bytes] = field(default_factory=dict)
    times: int = 0

    @property
    def figures(self) -> dict[str, Any]:
        """Return the last values; one that is undefined has none."""
        last = {name: values[-1] for name, values in self.history.items()}
        return {
            name: value
            for name, value in last.items()
            if value is not None and not math.isnan(value)
        }

    def add(self, figures: Mapping[str, Any]) -> None:
        for name, value in figures.items():
            self.history.setdefault(name, []).append(value)

    def begin(self) -> Kept:
        self.times += 1
        return self


class Library:
    """`entries` by the id that the harness gives them; an `error` that is set is raised."""

    __version__ = "1"

    def __init__(self) -> None:
        self.entries: dict[str, Kept] = {}
        self.error: BaseException | None = None

    def _fail(self) -> None:
        if self.error:
            raise self.error


class Wandb(Library):
    """An online W&B: ids are its own; figures are those of the summary, and facts are in the
    configuration."""

    def __init__(self) -> None:
        super().__init__()
        self.upload_error: Exception | None = None
        self.ended: list[int] = []

    def _uploaded(self) -> None:
        if self.upload_error:
            raise self.upload_error

    def Settings(self, **settings: Any) -> dict[str, Any]:
        return settings

    def setup(self, settings: dict[str, Any]) -> None:
        assert settings == {"silent": True, "disable_git": True, "sagemaker_disable": True}

    def Artifact(self, name: str, type: str, description: str) -> SimpleNamespace:
        files: dict[str, bytes] = {}
        return SimpleNamespace(
            files=files, add_file=lambda path, name: files.update({name: Path(path).read_bytes()})
        )

    def init(
        self, *, id: str, resume: str, settings: dict[str, Any], **labels: str
    ) -> SimpleNamespace:
        self._fail()
        assert resume == "allow" and settings["x_disable_meta"] and settings["console"] == "off"
        kept = self.entries.setdefault(id, Kept()).begin()
        kept.config |= labels

        def log_artifact(artifact: SimpleNamespace) -> SimpleNamespace:
            kept.files |= artifact.files
            return SimpleNamespace(wait=self._uploaded)

        return SimpleNamespace(
            config=SimpleNamespace(
                update=lambda values, allow_val_change: kept.config.update(values)
            ),
            summary=SimpleNamespace(update=kept.add),
            log_artifact=log_artifact,
            offline=False,
            finish=lambda exit_code=0: self.ended.append(exit_code),
            url=f"https://tracker.example/{id}",
        )


class Mlflow(Library):
    """An MLflow whose parameters, as the real one's, cannot change, and whose entries are found by
    a tag."""

    def __init__(self) -> None:
        super().__init__()
        self.printed_to: list[Any] = []
        self.error_of_tags: Exception | None = None

    def is_tracking_uri_set(self) -> bool:
        return True

    def search_runs(
        self, filter_string: str, output_format: str, max_results: int
    ) -> list[SimpleNamespace]:
        self._fail()
        wanted = filter_string.partition(" = ")[2].strip("'")
        found = [kept for kept in self.entries.values() if kept.facts.get("harness.run") == wanted]
        return [
            SimpleNamespace(
                info=SimpleNamespace(run_id=wanted), data=SimpleNamespace(metrics=one.figures)
            )
            for one in found
        ]

    @contextmanager
    def start_run(
        self,
        nested: bool,
        run_id: str = "",
        run_name: str = "",
        tags: Mapping[str, str] | None = None,
    ) -> Iterator[SimpleNamespace]:
        tagged = (tags or {}).get("harness.run", f"untagged {len(self.entries)}")
        self._open = self.entries.setdefault(run_id or tagged, Kept(facts=dict(tags or {})))
        self._open.begin()
        self.printed_to.append(sys.stdout)
        yield SimpleNamespace(info=SimpleNamespace(experiment_id="0", run_id=run_id))
        if os.environ.get("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT") != "true":
            print("View run at: https://me:p@ss:word@tracker.example/api")

    def set_tags(self, tags: Mapping[str, Any]) -> None:
        if self.error_of_tags:
            raise self.error_of_tags
        self._open.facts |= tags

    def log_params(self, params: Mapping[str, Any]) -> None:
        assert all(self._open.config.get(name, value) == value for name, value in params.items())
        self._open.config |= params

    def log_metrics(self, metrics: Mapping[str, float]) -> None:
        self._open.add(metrics)

    def log_artifact(self, path: str) -> None:
        self._open.files[Path(path).name] = Path(path).read_bytes()
