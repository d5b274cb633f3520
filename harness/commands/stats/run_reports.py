"""Reports as the tables of `stats` read them (docs/design.md, sections 5, 8 and 9)."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import msgspec
import orjson
from msgspec import UNSET

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
LONGEST = 60
"""Characters of a setting that are shown."""


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
    def in_tasks(self) -> int:
        """Return the number of users in the tasks file."""
        users = self.run_settings.users_in_tasks
        return self.expected if users is None else users

    @property
    def ratio(self) -> float:
        """Return the share of the users in the tasks file that are to be scored."""
        settings = self.run_settings
        return (
            settings.ratio
            if settings.limit is None
            else min(1.0, settings.limit / max(1, self.in_tasks))
        )

    @property
    def complete(self) -> bool:
        """Return whether all users of the tasks file are scored."""
        return (
            self.report.coverage.complete and self.ratio == 1.0 and self.run_settings.part is None
        )

    @property
    def repeats(self) -> Repeats | None:
        return None if self.report.repeats is UNSET else self.report.repeats

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
        users, repeats = f"{self.scored} of {self.in_tasks}", self.repeats
        return f"{users} ({repeats.scored} of {repeats.expected} repeats)" if repeats else users

    @property
    def invalid(self) -> int:
        return sum(self.report.diagnostics.invalid.values())

    @property
    def answers(self) -> int:
        return self.report.diagnostics.valid_answers + self.invalid

    @property
    def is_synthetic(self) -> bool:
        return any("synthetic" in note for note in self.report.notes)

    @property
    def files(self) -> tuple[str, ...]:
        """Return the SHA-256 of the prompt's or agent's files, in the order of their names."""
        return tuple(digest for _, digest in sorted(self.run_settings.files.items()))

    @property
    def alike(self) -> tuple[str, ...] | None:
        """Return what runs have in common that are ranked against each other; None where nobody
        knows the prompt."""
        report = self.report
        if not self.files and report.prompt not in KNOWN_PROMPTS:
            return None
        return (
            report.prompt,
            report.prompt_version,
            self.run_settings.tasks_sha256 or "",
            *self.files,
        )

    @property
    def prompt(self) -> str:
        """Return the prompt's name; a user's own with the beginning of its SHA-256, since two files
        may have one."""
        name = self.report.prompt
        digest = (
            ""
            if name in KNOWN_PROMPTS or not self.files
            else f" ({'+'.join(map(short_hash, self.files))})"
        )
        return f"{name}{digest}{'' if name.startswith('agent ') else ' prompt'}"

    @property
    def settings(self) -> tuple[str, ...]:
        """Return what is not the default: settings of the benchmark, and parameters of requests."""
        run = self.report.run
        changed = {
            name: run[name]
            for name, usual in self.report.defaults.items()
            if run.get(name, usual) != usual
        }
        texts = [
            f"no {name}" if value is False else f"{name} {_bounded(str(value))}"
            for name, value in changed.items()
        ]
        if self.run_settings.created and self.run_settings.temperature is None:
            texts.append("temperature by request")
        for name, usual in DEFAULTS.items():
            value = getattr(self.run_settings, name)
            if value not in (None, usual):
                texts.append(
                    f"{name} {f'{value:g}' if isinstance(value, float) else _bounded(str(value))}"
                )
        if body := self.run_settings.extra_body:
            texts.append(f"extra_body {_bounded(orjson.dumps(body).decode())}")
        return tuple(texts)

    @property
    def about(self) -> str:
        """Return what a reader must know before comparing: the model, the prompt, and what is not
        usual."""
        limit, part, repeats = self.run_settings.limit, self.run_settings.part, self.repeats
        texts = [self.report.model, self.prompt, *self.settings]
        if self.ratio != 1.0:
            texts.append(f"share {self.ratio:g}" if limit is None else f"limit {limit}")
        texts += [f"part {part}"] if part else []
        texts += [f"{repeats.repeats} repeats"] if repeats else []
        texts += ["synthetic tasks"] if self.is_synthetic else []
        return ", ".join(texts)

    def following(self, name: str) -> float | None:
        """Return the share of the answers that a metric is over, None if it is unknown.

        Metrics of a benchmark that ships are those of today, as far as the report has them.
        """
        report = self.report
        shipped = (
            metrics_of(registry.find(report.benchmark))
            if registry.is_shipped(report.benchmark)
            else {}
        )
        if name not in report.units:
            return None
        return report.diagnostics.following(shipped.get(name) or report.units[name])


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
    there = {(report.run, report.subset) for report in reports}
    return [
        report
        for report in reports
        if (whole_of(report.run, report.run_settings.part), report.subset) not in there
    ]


def about_run(reports: Sequence[RunReport]) -> str:
    """Return what a reader must know of a run before comparing, on all of its subsets."""
    return "; ".join(dict.fromkeys(report.about for report in reports))


def _bounded(text: str) -> str:
    """Cut a long text; the beginning of its SHA-256 follows, since two that begin alike must not
    read alike."""
    return (
        text
        if len(text) <= LONGEST
        else f"{text[:LONGEST]}… ({short_hash(sha256(text.encode()).hexdigest())})"
    )
