"""What to know about two runs before their figures: users, answers, and differences other than the model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, groupby

from harness.analysis.imported import imported_of
from harness.benchmark import VALID
from harness.commands.compare.figures import number
from harness.commands.compare.paired import Pair
from harness.commands.compare.sides import Side, Subset, common
from harness.model import JSON
from harness.reporting.report import sentence_on_invalid
from harness.scoring.compared import Figures
from harness.store.manifest import differences, value_text

NO_REPORT = "no report, so whether the tasks are synthetic is unknown."


def coverage(a: Side, b: Side, figures: Figures) -> JSON:
    """Return who has which users of a subset, and the figures on those that only one has."""
    both = common(a, b)
    only_a, only_b = ([user for user in one.tasks if user not in other.tasks] for one, other in ((a, b), (b, a)))
    return {
        "subset": a.of.name,
        "a": _covered(a, both),
        "b": _covered(b, both),
        "common": len(both),
        "other_tasks": sum(1 for user, task in a.tasks.items() if b.tasks.get(user, task) != task),
        "on_common": [_on(side, both, figures) for side in (a, b)],
        "only_a": {"users": len(only_a), "figures": _on(a, only_a, figures)},
        "only_b": {"users": len(only_b), "figures": _on(b, only_b, figures)},
    }


def _covered(side: Side, both: Sequence[str]) -> JSON:
    """Return of how many users a run has scores, and how those of both were answered. Numbers that only a manifest has
    are None without one."""
    saved, scored = side.of.saved, len(side.tasks)
    found: JSON = {
        "scored": scored,
        **dict.fromkeys(("expected", "failed", "state", "ratio", "users_in_tasks")),
        "unsound": side.unsound,
        "answers_on_common": _answers(side, both),
    }
    if saved is None:
        theirs = imported_of(side.of.files)
        if theirs is None or (report := theirs.report) is None:
            return found
        return found | {"expected": report.coverage.expected_users, "failed": report.coverage.failed_users}
    return found | {
        "expected": max(saved.expected_users, scored),
        "failed": saved.manifest.counts.get("failed", 0),
        "state": saved.manifest.state,
        "ratio": saved.share,
        "users_in_tasks": saved.manifest.tasks["users"],
    }


def _answers(side: Side, users: Sequence[str]) -> dict[str, int]:
    """Return the number of answers of these users by outcome."""
    counts: Counter[str] = Counter()
    for outcomes, times in Counter(side.outcomes[place] for place in side.places(users)).items():
        counts.update({outcome: times * number for outcome, number in outcomes})
    return dict(sorted(counts.items()))


def _on(side: Side, users: Sequence[str], figures: Figures) -> JSON:
    rows = side.contributions[side.places(users)]
    found, _ = Pair(rows, rows).figures(figures.values)
    return {name: number(value) for name, value in zip(figures.names, found.tolist(), strict=True)}


def warnings(both: Sequence[tuple[Side, Side]]) -> list[str]:
    """Return the remarks of reports (synthetic tasks), what differs other than the model, results of unknown origin,
    and the answers that count as empty, of two runs on each subset."""
    subsets = [(a.of, b.of) for a, b in both]
    differing = [(a.name, words) for a, b in subsets for words in _unlike(a, b)]
    return [*_remarks(subsets), *_by_subset(differing, len(subsets)), *_invalid(both)]


def _by_subset(sentences: Iterable[tuple[str, str]], subsets: int) -> Iterator[str]:
    """Yield sentences, each once, with its subsets unless it is about all."""
    for words, alike in groupby(sorted(sentences, key=lambda pair: pair[1]), key=lambda pair: pair[1]):
        names = [name for name, _ in alike]
        yield words if len(names) == subsets else f"{', '.join(names)}: {words}"


def _remarks(subsets: Sequence[tuple[Subset, Subset]]) -> Iterator[str]:
    """Yield the remarks of the reports of both runs, then those of one."""
    remarks: dict[str, dict[str, list[str]]] = {}
    for of in chain(*subsets):
        for words in report.notes if (report := of.report) else [NO_REPORT]:
            remarks.setdefault(words, {}).setdefault(of.run, []).append(of.name)
    for words, runs in remarks.items():
        if len(runs) == 2 and len(set(map(tuple, runs.values()))) == 1:
            runs = {"Both runs": next(iter(runs.values()))}
        for run, names in runs.items():
            yield from _by_subset([(name, f"{run}: {words}") for name in names], len(subsets))


def _invalid(both: Sequence[tuple[Side, Side]]) -> Iterator[str]:
    """Yield the invalid answers of both sides on each subset, of the users that are compared."""
    for sides in both:
        users = common(*sides)
        counts = [_answers(side, users) for side in sides]
        if any(count.keys() - {VALID} for count in counts):
            wrong = [{kind: times for kind, times in count.items() if kind != VALID} for count in counts]
            answers = [sum(count.values()) for count in counts]
            by_run = [
                f"of {side.of.run} {sentence_on_invalid(kinds, number) or f'none of {number}'}"
                for side, kinds, number in zip(sides, wrong, answers, strict=True)
            ]
            yield f"{sides[0].of.name}, invalid answers of users that both have, scored as empty: {'; '.join(by_run)}."


def _unlike(a: Subset, b: Subset) -> Iterator[str]:
    for of in (a, b):
        if of.manifest is None:
            yield f"{of.run} has no manifest: its prompt, sampling and tasks are unknown and may differ."
    if a.manifest is None or b.manifest is None:
        return
    for name, (before, after) in differences(a.manifest.identity, b.manifest.identity).items():
        if name != "model":
            yield f"Not alike: {name} is {value_text(before)} in {a.run}, {value_text(after)} in {b.run}."
    for name in ("parser_version", "harness", "primary"):
        before, after = (of.manifest.provenance.get(name) for of in (a, b) if of.manifest)
        if before != after:
            yield f"Not alike: {name} was {before} for {a.run}, {after} for {b.run}."
    if max(before := a.manifest.repeats, after := b.manifest.repeats) > 1:
        yield f"Each user counts with the mean over its repeats: {before} in {a.run}, {after} in {b.run}."
    if a.manifest.tasks["sha256"] != b.manifest.tasks["sha256"]:
        yield f"{a.run} and {b.run} had different tasks files: only users whose tasks are the same are compared."
