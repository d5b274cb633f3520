"""What to know about two runs before their figures: users, answers, and differences other than the
model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import filterfalse

from harness.analysis.imported import imported_of
from harness.benchmark import VALID
from harness.commands.compare.sides import Subset
from harness.model import JSON
from harness.reporting.comparison import NO_REPORT, NOT_ALIKE
from harness.reporting.report import sentence_on_invalid
from harness.scoring.compared import Figures
from harness.scoring.differences import Side, common, number
from harness.scoring.paired import Pair
from harness.store.manifest import differences, value_text


def coverage(
    subsets: Sequence[Subset],
    sides: tuple[Side, Side],
    figures: Figures,
) -> JSON:
    """Return who has which users of a subset, and the figures on those that only one has."""
    a, b = sides
    shared = common(a, b)

    # Users of both whose tasks are not the same cannot be compared.
    other_tasks = len(a.tasks.keys() & b.tasks.keys()) - len(shared)

    return {
        "subset": a.subset,
        "a": _covered(subsets[0], a, shared),
        "b": _covered(subsets[1], b, shared),
        "common": len(shared),
        "other_tasks": other_tasks,
        "on_common": [_figures(side, shared, figures) for side in sides],
        "only_a": _only(a, b, figures),
        "only_b": _only(b, a, figures),
    }


def _only(
    side: Side,
    other: Side,
    figures: Figures,
) -> JSON:
    users = list(filterfalse(other.tasks.__contains__, side.tasks))
    return {"users": len(users), "figures": _figures(side, users, figures)}


def _covered(
    subset: Subset,
    side: Side,
    shared: Sequence[str],
) -> JSON:
    """Return of how many users a run has scores, and its answers on the users that both have.
    Numbers that only a manifest has are None without one."""
    # All keys are there for each side, so that readers need not look for them.
    saved = subset.saved
    covered: JSON = {
        "scored": len(side.tasks),
        "expected": None,
        "failed": None,
        "state": None,
        "ratio": None,
        "users_in_tasks": None,
        "unsound": side.unsound,
    }
    if saved:
        covered |= {
            "expected": max(saved.expected_users, len(side.tasks)),
            "failed": saved.manifest.counts.get("failed", 0),
            "state": saved.manifest.state,
            "ratio": saved.share,
            "users_in_tasks": saved.manifest.tasks["users"],
        }
    else:
        imported = imported_of(subset.files)
        if imported and imported.report:
            covered["expected"] = imported.report.coverage.expected_users
            covered["failed"] = imported.report.coverage.failed_users

    covered["answers_on_common"] = _answers(side, shared)

    return covered


def _answers(side: Side, users: Sequence[str]) -> dict[str, int]:
    """Return the number of answers of these users by outcome."""
    # A million users have few different outcomes: each is added once, with its users.
    counts = Counter[str]()
    users_by_outcomes = Counter(map(side.outcomes.__getitem__, side.places(users)))
    for outcomes, times in users_by_outcomes.items():
        for outcome, answers in outcomes:
            counts[outcome] += times * answers

    return dict(sorted(counts.items()))


def _figures(
    side: Side,
    users: Sequence[str],
    figures: Figures,
) -> JSON:
    rows = side.contributions[side.places(users)]
    values, _ = Pair(rows, rows).figures(figures.values)
    return dict(zip(figures.names, map(number, values.tolist()), strict=True))


def warnings(
    subsets: Sequence[tuple[Subset, Subset]],
    names: JSON,
    covered: Sequence[JSON],
) -> list[str]:
    """Return the remarks of reports (synthetic tasks), what differs other than the model, results
    of unknown origin, and the answers that count as empty, of two runs: each once, with its subsets
    unless it is about all."""
    subsets_by_remark: dict[str, list[str]] = {}
    for a, b in subsets:
        for remark in (*_remarks(a, b), *_unlike(a, b)):
            subsets_by_remark.setdefault(remark, []).append(a.name)

    sentences = []
    for remark, with_remark in subsets_by_remark.items():
        is_about_all = len(with_remark) == len(subsets)
        sentences.append(remark if is_about_all else f"{', '.join(with_remark)}: {remark}")

    return [*sentences, *_invalid(names, covered)]


def _remarks(a: Subset, b: Subset) -> Iterator[str]:
    """Yield the remarks of the reports of both runs, each once."""
    runs_by_note: dict[str, list[str]] = {}
    for subset in (a, b):
        report = subset.report
        for note in dict.fromkeys(report.notes if report else (NO_REPORT,)):
            runs_by_note.setdefault(note, []).append(subset.run)

    for note, runs in runs_by_note.items():
        yield f"{'Both runs' if len(runs) > 1 else runs[0]}: {note}"


def _invalid(names: JSON, covered: Sequence[JSON]) -> Iterator[str]:
    """Yield the invalid answers of both sides on each subset, of the users that are compared."""
    for on_subset in covered:
        by_run = []
        has_invalid = False
        for side in "ab":
            invalid = dict(on_subset[side]["answers_on_common"])
            answers = sum(invalid.values())
            invalid.pop(VALID, None)
            has_invalid |= bool(invalid)
            sentence = sentence_on_invalid(invalid, answers) or f"none of {answers}"
            by_run.append(f"of {names[side]} {sentence}")

        if has_invalid:
            yield (
                f"{on_subset['subset']}, invalid answers of users that both have, scored as empty:"
                f" {'; '.join(by_run)}."
            )


def _unlike(a: Subset, b: Subset) -> Iterator[str]:
    for subset in (a, b):
        if subset.manifest is None:
            yield (
                f"{subset.run} has no manifest: its prompt, sampling and tasks are unknown and may"
                " differ."
            )

    if a.manifest is None or b.manifest is None:
        return

    # Models differ in most comparisons: that is what they are about.
    for name, (in_a, in_b) in differences(a.manifest.identity, b.manifest.identity).items():
        if name != "model":
            yield (
                f"{NOT_ALIKE}{name} is {value_text(in_a)} in {a.run}, {value_text(in_b)} in"
                f" {b.run}."
            )

    for name in ("parser_version", "harness", "primary"):
        in_a = a.manifest.provenance.get(name)
        in_b = b.manifest.provenance.get(name)
        if in_a != in_b:
            yield f"{NOT_ALIKE}{name} was {in_a} for {a.run}, {in_b} for {b.run}."

    repeats_a, repeats_b = a.manifest.repeats, b.manifest.repeats
    if max(repeats_a, repeats_b) > 1:
        yield (
            f"Each user counts with the mean over its repeats: {repeats_a} in {a.run},"
            f" {repeats_b} in {b.run}."
        )

    if a.manifest.tasks["sha256"] != b.manifest.tasks["sha256"]:
        yield (
            f"{a.run} and {b.run} had different tasks files: only users whose tasks are the same"
            " are compared."
        )
