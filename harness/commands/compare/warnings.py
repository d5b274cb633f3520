"""What to know about two runs before their figures: users, answers, and differences other than the
model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import chain

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


def coverage(subsets: Sequence[Subset], sides: tuple[Side, Side], figures: Figures) -> JSON:
    """Return who has which users of a subset, and the figures on those that only one has."""
    a, b = sides
    both = common(a, b)
    only_a, only_b = (
        [user for user in side.tasks if user not in other.tasks] for side, other in ((a, b), (b, a))
    )
    covered = [
        _covered(*of) | {"answers_on_common": _answers(of[1], both)}
        for of in zip(subsets, sides, strict=True)
    ]
    return {
        "subset": a.subset,
        **dict(zip("ab", covered, strict=True)),
        "common": len(both),
        "other_tasks": sum(1 for user, task in a.tasks.items() if b.tasks.get(user, task) != task),
        "on_common": [_on(side, both, figures) for side in sides],
        "only_a": {"users": len(only_a), "figures": _on(a, only_a, figures)},
        "only_b": {"users": len(only_b), "figures": _on(b, only_b, figures)},
    }


def _covered(subset: Subset, side: Side) -> JSON:
    """Return of how many users a run has scores. Numbers that only a manifest has are None without
    one."""
    scored, saved = len(side.tasks), subset.saved
    covered: JSON = dict.fromkeys(
        ("scored", "expected", "failed", "state", "ratio", "users_in_tasks")
    )
    covered |= {"scored": scored, "unsound": side.unsound}
    if saved:
        return covered | {
            "expected": max(saved.expected_users, scored),
            "failed": saved.manifest.counts.get("failed", 0),
            "state": saved.manifest.state,
            "ratio": saved.share,
            "users_in_tasks": saved.manifest.tasks["users"],
        }
    if (theirs := imported_of(subset.files)) and (report := theirs.report):
        covered |= {
            "expected": report.coverage.expected_users,
            "failed": report.coverage.failed_users,
        }
    return covered


def _answers(side: Side, users: Sequence[str]) -> dict[str, int]:
    """Return the number of answers of these users by outcome."""
    counts: Counter[str] = Counter()
    for outcomes, times in Counter(side.outcomes[place] for place in side.places(users)).items():
        counts.update({outcome: times * number for outcome, number in outcomes})
    return dict(sorted(counts.items()))


def _on(side: Side, users: Sequence[str], figures: Figures) -> JSON:
    rows = side.contributions[side.places(users)]
    values, _ = Pair(rows, rows).figures(figures.values)
    return dict(zip(figures.names, map(number, values.tolist()), strict=True))


def warnings(
    subsets: Sequence[tuple[Subset, Subset]], names: JSON, covered: Sequence[JSON]
) -> list[str]:
    """Return the remarks of reports (synthetic tasks), what differs other than the model, results
    of unknown origin, and the answers that count as empty, of two runs: each once, with its subsets
    unless it is about all."""
    about: dict[str, list[str]] = {}
    for both in subsets:
        for words in (*_remarks(*both), *_unlike(*both)):
            about.setdefault(words, []).append(both[0].name)
    sentences = [
        words if len(of) == len(subsets) else f"{', '.join(of)}: {words}"
        for words, of in about.items()
    ]
    return [*sentences, *_invalid(names, covered)]


def _remarks(a: Subset, b: Subset) -> Iterator[str]:
    """Yield the remarks of the reports of both runs, each once."""
    notes = [report.notes if report else (NO_REPORT,) for report in (a.report, b.report)]
    for words in dict.fromkeys(chain(*notes)):
        runs = [of.run for of, remarks in zip((a, b), notes, strict=True) if words in remarks]
        yield f"{'Both runs' if len(runs) > 1 else runs[0]}: {words}"


def _invalid(names: JSON, covered: Sequence[JSON]) -> Iterator[str]:
    """Yield the invalid answers of both sides on each subset, of the users that are compared."""
    for of in covered:
        counts = {side: of[side]["answers_on_common"] for side in "ab"}
        if any(count.keys() - {VALID} for count in counts.values()):
            by_run = []
            for side, count in counts.items():
                answers, wrong = (
                    sum(count.values()),
                    {kind: count[kind] for kind in count if kind != VALID},
                )
                by_run.append(
                    f"of {names[side]}"
                    f" {sentence_on_invalid(wrong, answers) or f'none of {answers}'}"
                )
            yield (
                f"{of['subset']}, invalid answers of users that both have, scored as empty:"
                f" {'; '.join(by_run)}."
            )


def _unlike(a: Subset, b: Subset) -> Iterator[str]:
    for of in (a, b):
        if of.manifest is None:
            yield (
                f"{of.run} has no manifest: its prompt, sampling and tasks are unknown and may"
                " differ."
            )
    if a.manifest is None or b.manifest is None:
        return
    for name, (before, after) in differences(a.manifest.identity, b.manifest.identity).items():
        if name != "model":
            yield (
                f"{NOT_ALIKE}{name} is {value_text(before)} in {a.run}, {value_text(after)} in"
                f" {b.run}."
            )
    for name in ("parser_version", "harness", "primary"):
        before, after = (of.manifest.provenance.get(name) for of in (a, b) if of.manifest)
        if before != after:
            yield f"{NOT_ALIKE}{name} was {before} for {a.run}, {after} for {b.run}."
    if max(before := a.manifest.repeats, after := b.manifest.repeats) > 1:
        yield (
            f"Each user counts with the mean over its repeats: {before} in {a.run}, {after} in"
            f" {b.run}."
        )
    if a.manifest.tasks["sha256"] != b.manifest.tasks["sha256"]:
        yield (
            f"{a.run} and {b.run} had different tasks files: only users whose tasks are the same"
            " are compared."
        )
