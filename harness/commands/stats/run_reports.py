"""Reports as the tables of `stats` read them (docs/design.md, sections 5, 8 and 9)."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import filterfalse
from pathlib import Path
from typing import TypeVar

import msgspec
import orjson

from harness import defaults
from harness.benchmark import metrics_of
from harness.benchmarks import registry
from harness.errors import BadInput
from harness.model import JSON
from harness.printable import short_hash
from harness.reporting.report_files import NOT_A_REPORT, loaded
from harness.scoring.reports import Count, Number, Repeats, Report
from harness.store.manifest import whole_of

KNOWN_PROMPTS = ("own", "authors")
"""Any other prompt is named after a file of the user's."""
DEFAULTS: JSON = {
    "temperature": defaults.TEMPERATURE,
    "top_p": None,
    "seed": None,
    "max_tokens": None,
    "structured": "json_object",
}
"""Parameters of requests that no table mentions."""
MAX_SETTING_CHARACTERS = 60


class RunSettings(msgspec.Struct, frozen=True):
    """What tables need of `run` in a report. All of it is unknown for results of the authors'
    runner."""

    ratio: Number = 1.0
    limit: Count | None = None
    part: str | None = None
    users_in_tasks: Count | None = None
    tasks_sha256: str | None = None
    files: dict[str, str] = {}
    created: str | None = None
    harness: str | None = None
    temperature: int | Number | None = None
    top_p: int | Number | None = None
    seed: int | Number | None = None
    max_tokens: int | Number | None = None
    structured: str | None = None
    extra_body: JSON | None = None


@dataclass(frozen=True, slots=True)
class RunReport:
    """The report of one run, by the name of its folder, on one subset."""

    run: str
    report: Report
    run_settings: RunSettings

    @property
    def key(self) -> tuple[str, str]:
        """Return run and subset."""
        return self.run, self.subset

    @property
    def subset(self) -> str:
        return self.report.subset

    @property
    def scored(self) -> int:
        """Return the number of scored users."""
        return self.report.coverage.scored_users

    @property
    def expected(self) -> int:
        """Return the number of users that the run is to score."""
        return self.report.coverage.expected_users

    @property
    def users_in_tasks(self) -> int:
        """Return the number of users in the tasks file."""
        users = self.run_settings.users_in_tasks
        if users is None:  # a run of the authors' program
            return self.expected

        return users

    @property
    def complete(self) -> bool:
        """Return whether all users of the tasks file are scored."""
        return not self.report.is_partial

    @property
    def repeats(self) -> Repeats | None:
        return self.report.repeats or None

    @property
    def is_incomplete(self) -> bool:
        """Return whether a user that the run selected, or a repeat of one, is not scored."""
        repeats = self.repeats
        is_short = repeats is not None and repeats.scored < repeats.expected
        return is_short or self.scored < self.expected

    @property
    def covered(self) -> str:
        """Return how many users of the tasks file are scored, and with repeats how many of their
        plays."""
        users = f"{self.scored} of {self.users_in_tasks}"
        if not self.repeats:
            return users

        return f"{users} ({self.repeats.scored} of {self.repeats.expected} repeats)"

    @property
    def invalid(self) -> int:
        return sum(self.report.diagnostics.invalid.values())

    @property
    def answers(self) -> int:
        return self.report.diagnostics.valid_answers + self.invalid

    @property
    def file_hashes(self) -> tuple[str, ...]:
        """Return the SHA-256 of the prompt's or agent's files, in the order of their names."""
        files = self.run_settings.files
        return tuple(map(files.__getitem__, sorted(files)))

    @property
    def comparison_key(self) -> tuple[str, ...] | None:
        """Return what runs have in common that are ranked against each other; None where nobody
        knows the prompt."""
        report = self.report
        if not self.file_hashes and report.prompt not in KNOWN_PROMPTS:
            return None

        tasks = self.run_settings.tasks_sha256 or ""

        # Another judge gives other scores, so its model counts as the prompt does.
        return report.prompt, report.prompt_version, tasks, *self.file_hashes, *self.roles

    @property
    def roles(self) -> list[str]:
        """Return each role with its model, as text."""
        return list(map(" ".join, self.role_models.items()))

    @property
    def role_models(self) -> dict[str, str]:
        """Return the model of each role, such as a judge."""
        return {role: asked["model"] for role, asked in self.report.run.get("roles", {}).items()}

    @property
    def prompt(self) -> str:
        """Return the prompt's name; a user's own with the beginning of its SHA-256, since two files
        may have one."""
        name = text = self.report.prompt
        if self.file_hashes and name not in KNOWN_PROMPTS:
            text += f" ({'+'.join(map(short_hash, self.file_hashes))})"
        if not name.startswith("agent "):
            text += " prompt"

        return ", ".join([text, *self.roles])

    @property
    def settings(self) -> tuple[str, ...]:
        """Return what is not the default: settings of the benchmark, and parameters of requests."""
        run = self.report.run
        texts = []
        for name, default in self.report.defaults.items():
            value = run.get(name, default)
            if value == default:
                continue

            texts.append(f"no {name}" if value is False else f"{name} {_shortened(str(value))}")

        # Only the harness's own runs have `created`; those of another program never name a
        # temperature.
        if self.run_settings.created and self.run_settings.temperature is None:
            texts.append("temperature by request")

        for name, default in DEFAULTS.items():
            value = getattr(self.run_settings, name)
            if value not in (None, default):
                text = f"{value:g}" if isinstance(value, float) else _shortened(str(value))
                texts.append(f"{name} {text}")

        if self.run_settings.extra_body:
            body = orjson.dumps(self.run_settings.extra_body).decode()
            texts.append(f"extra_body {_shortened(body)}")

        return tuple(texts)

    @property
    def about(self) -> str:
        """Return what a reader must know before comparing: the model, the prompt, and what is not
        usual."""
        run = self.run_settings
        texts = [self.report.model, self.prompt, *self.settings]
        if self.report.share != 1.0:
            is_share = run.limit is None
            texts.append(f"share {self.report.share:g}" if is_share else f"limit {run.limit}")

        if run.part:
            texts.append(f"part {run.part}")
        if self.repeats:
            texts.append(f"{self.repeats.repeats} repeats")
        if self.report.is_synthetic:
            texts.append("synthetic tasks")

        return ", ".join(texts)

    def following(self, name: str) -> float | None:
        """Return the share of the answers that a metric is over, None if it is unknown.

        Metrics of a benchmark that ships are those of today, as far as the report has them.
        """
        report = self.report
        if name not in report.units:
            return None

        metric = report.units[name]
        # Reports of earlier versions do not say which answers a metric leaves out.
        if registry.is_shipped(report.benchmark):
            metric = metrics_of(registry.find(report.benchmark)).get(name, metric)

        return report.diagnostics.following(metric)


def read(path: Path) -> RunReport:
    """Return the report in a file `<run>/eval_report_<subset>.json`. Raise `BadInput` for any other
    file."""
    return checked(loaded(path), path)


def checked(report: Report, path: Path) -> RunReport:
    """Return a report for tables. Raise `BadInput` if it has no run that can be used."""
    try:
        settings = msgspec.convert(report.run, RunSettings)
    except msgspec.ValidationError:
        raise BadInput(NOT_A_REPORT) from None

    return RunReport(as_text(path.parent.name), report, settings)


def as_text(name: str) -> str:
    """Return a file's name, whose bytes may be no text."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")


def without_merged(reports: Sequence[RunReport]) -> list[RunReport]:
    """Return reports without those of parts of a whole run that is among them: it has their
    users."""
    keys = {report.key for report in reports}

    def is_merged(report: RunReport) -> bool:
        return (whole_of(report.run, report.run_settings.part), report.subset) in keys

    return list(filterfalse(is_merged, reports))


def about_run(reports: Sequence[RunReport]) -> str:
    """Return what a reader must know of a run before comparing, on all of its subsets."""
    return "; ".join(dict.fromkeys(report.about for report in reports))


K = TypeVar("K")
V = TypeVar("V")


def grouped(pairs: Iterable[tuple[K, V]]) -> dict[K, list[V]]:
    """Return the values of each key, keys and values in the order of the pairs."""
    groups: dict[K, list[V]] = {}
    for key, value in pairs:
        groups.setdefault(key, []).append(value)

    return groups


def by_run(reports: Iterable[RunReport]) -> dict[str, list[RunReport]]:
    return grouped((report.run, report) for report in reports)


def _shortened(text: str) -> str:
    """Cut a long text; the beginning of its SHA-256 follows, since two that begin alike must not
    read alike."""
    if len(text) <= MAX_SETTING_CHARACTERS:
        return text

    digest = sha256(text.encode()).hexdigest()
    return f"{text[:MAX_SETTING_CHARACTERS]}… ({short_hash(digest)})"
