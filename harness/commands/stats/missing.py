"""Runs and subsets that are in no table of `stats`."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.analysis.imported import Imported, imported
from harness.commands.stats.notes import bounded
from harness.commands.stats.run_reports import RunReport, as_text, grouped
from harness.errors import in_brief
from harness.store.files import RunFiles, runs
from harness.ui.words import plural

UNFINISHED = "resume continues, report --name NAME scores what exists"
Pairs = Sequence[tuple[str, str]]
"""Runs with a subset each."""


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Runs without a row: those in `nobody` have no scored user, `unfinished` ones no report yet;
    `unscored` are results of another program."""

    nobody: Pairs
    unfinished: Pairs
    unscored: Sequence[Imported] = ()

    def current(self, reports: Iterable[RunReport]) -> list[RunReport]:
        """Return reports without those whose results were written again since."""
        outdated = [(as_text(results.name), results.files.subset) for results in self.unscored]
        return [report for report in reports if report.key not in outdated]

    def sentences(self) -> list[str]:
        """Return a line for each kind that occurs, and for each folder of another program's
        results."""
        lines = []
        if self.nobody:
            lines.append(f"Left out: {_runs_text(self.nobody)} (no user is scored).")

        if self.unfinished:
            runs = _runs_text(self.unfinished)
            lines.append(f"Left out: {runs} (unfinished: no report yet; {UNFINISHED}).")

        return lines + self._unscored()

    def _unscored(self) -> list[str]:
        by_name = {results.name: f"{results.label}: {results.remedy}." for results in self.unscored}
        return list(map(as_text, by_name.values()))

    def nothing_else(self, results: Path, names: Sequence[str]) -> str:
        """Return why there is nothing to show of the named runs (of all if none is named)."""
        unfinished = f"{plural(len(self.unfinished), 'unfinished run')}: {UNFINISHED}"
        if self.nobody:
            text = f"no user is scored in {_runs_text(self.nobody)} under {results}"
            return f"{text}, and {unfinished}" if self.unfinished else text

        if self.unscored and not self.unfinished:
            return f"no reports under {results}. {' '.join(self._unscored()[:10])}"

        named = f" of {bounded(map(in_brief, names))}" if names else ""
        text = f"no reports{named} under {results}"

        return f"{text}, but {unfinished}" if self.unfinished else f"{text}: run something first"


def left_out(
    reports: Sequence[RunReport],
    report_paths: Collection[Path],
    results: Path,
    names: Sequence[str] = (),
    subsets: Sequence[str] | None = None,
) -> LeftOut:
    """Return which of the named runs and subsets (of all if none is named) are in no table.

    `report_paths` are the files of all reports, also of those that could not be read.
    """

    def is_selected(files: RunFiles) -> bool:
        has_name = not names or files.folder.name in names
        return has_name and (not subsets or files.subset in subsets)

    # A run may have reports of some subsets, and be unfinished on others.
    nobody = [report.key for report in reports if not report.scored]
    unfinished = []
    for files in runs(results):
        if is_selected(files) and files.report("json") not in report_paths:
            unfinished.append((as_text(files.folder.name), as_text(files.subset)))

    outdated = []
    for other in imported(results):
        if is_selected(other.files) and not other.is_current:
            outdated.append(other)

    return LeftOut(nobody, unfinished, outdated)


def _runs_text(pairs: Iterable[tuple[str, str]]) -> str:
    subsets = grouped(pairs).items()
    return bounded((f"{run} on {', '.join(names)}" for run, names in subsets), "; ")


def unranked(unusable: Mapping[str, str]) -> list[str]:
    """Return which runs have no ranks, once for each reason."""
    runs_by_reason = grouped((reason, run) for run, reason in unusable.items())

    return [
        f"Without ranks and intervals of averages: {bounded(names)} ({reason})."
        for reason, names in runs_by_reason.items()
    ]
