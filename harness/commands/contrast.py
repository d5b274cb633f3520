"""Two runs beside each other on the users that both have: every number of `compare`, as JSON (docs/statistics.md)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from harness.commands.sides import Side, Subset, covered
from harness.model import JSON
from harness.scoring.bootstrap import Array
from harness.scoring.paired import (
    Figures,
    Mask,
    Pair,
    Swapped,
    alike,
    effects,
    holm,
    interval,
    p_value,
    resampled,
    standard_error,
    swapped,
    users_needed,
)
from harness.store.manifest import differences, shown

SEED = 20_250
ALL = "all"
"""In place of a platform: the mean of the platforms' figures."""
MOST = 5
"""Users shown that differ most, of each platform."""
FOR_EACH_TEST = 40
"""Permutations, so that Holm's correction of the smallest p-value of a family is at most 0.025."""
SIGNIFICANT = 0.05


@dataclass(frozen=True, slots=True, eq=False)
class Stratum:
    """Both runs on one subset; rows of `pair`, `parts` (NaN where undefined) and `same` are those of `users`."""

    subset: str
    users: tuple[str, ...]
    pair: Pair
    parts: Array
    same: Mask

    @classmethod
    def of(cls, a: Side, b: Side, figures: Figures) -> Stratum:
        users = tuple(user for user, task in a.tasks.items() if b.tasks.get(user) == task)
        pair = Pair(_rows(a, users), _rows(b, users))
        return cls(a.of.name, users, pair, effects(pair, figures.values), alike(pair, figures.uses))


def _rows(side: Side, users: Sequence[str]) -> Array:
    place = {user: row for row, user in enumerate(side.tasks)}
    return side.contributions[np.array([place[user] for user in users], dtype=np.intp)]


# What is to be known before any figure


def coverage(a: Side, b: Side, figures: Figures) -> JSON:
    """Who has which users of a subset, and what the figures are on those that one has alone."""
    common = [user for user, task in a.tasks.items() if b.tasks.get(user) == task]
    return {
        "platform": a.of.name,
        "a": covered(a),
        "b": covered(b),
        "common": len(common),
        "other_tasks": sum(1 for user, task in a.tasks.items() if b.tasks.get(user, task) != task),
        "on_common": [_on(side, common, figures) for side in (a, b)],
        "only_a": _alone(a, b, figures),
        "only_b": _alone(b, a, figures),
    }


def _alone(side: Side, other: Side, figures: Figures) -> JSON:
    users = [user for user in side.tasks if user not in other.tasks]
    return {"users": len(users), "figures": _on(side, users, figures)}


def _on(side: Side, users: Sequence[str], figures: Figures) -> JSON:
    rows = _rows(side, users)
    found, _ = Pair(rows, rows).figures(figures.values)
    return {name: _number(value) for name, value in zip(figures.names, found.tolist(), strict=True)}


def warnings(a: Sequence[Subset], b: Sequence[Subset]) -> list[str]:
    """What else differs than the model, by platform where these are not alike; whose results nobody knows."""
    told = [(of.name, words) for of, other in zip(a, b, strict=True) for words in _unlike(of, other)]
    found = []
    for words, platforms in groupby(sorted(told, key=lambda pair: pair[1]), key=lambda pair: pair[1]):
        names = [name for name, _ in platforms]
        found.append(words if len(names) == len(a) else f"{', '.join(names)}: {words}")
    return found


def _unlike(a: Subset, b: Subset) -> Iterator[str]:
    for of in (a, b):
        if of.manifest is None:
            yield f"Of {of.run} no manifest tells what was run: prompt, sampling and tasks may be others."
    if a.manifest is None or b.manifest is None:
        return
    for name, (before, after) in differences(a.manifest.identity, b.manifest.identity).items():
        if name != "model":
            yield f"Not alike: {name} is {shown(before)} in {a.run}, {shown(after)} in {b.run}."
    for name in ("parser_version", "harness"):
        before, after = (of.manifest.provenance.get(name) for of in (a, b) if of.manifest)
        if before != after:
            yield f"Not alike: {name} was {before} for {a.run}, {after} for {b.run}."
    if a.manifest.tasks["sha256"] != b.manifest.tasks["sha256"]:
        yield f"{a.run} and {b.run} had different tasks files: only users whose tasks are the same are compared."


# The figures


@dataclass(frozen=True, slots=True, eq=False)
class _Draws:
    """Differences by stratum: of resamples (strata x R x M), and under swaps."""

    strata: Sequence[Stratum]
    resampled: NDArray[np.float64]
    swapped: Swapped
    values: tuple[Array, Array]


def compared(strata: Sequence[Stratum], figures: Figures, resamples: int, permutations: int) -> list[JSON]:
    """An entry for each platform and figure, and for all platforms where there are several; p-values uncorrected."""
    pairs = [stratum.pair for stratum in strata]
    rng = np.random.default_rng(SEED)
    boot = np.stack([resampled(pair, figures.values, rng, resamples) for pair in pairs])
    swaps = swapped(pairs, figures.values, np.random.default_rng(SEED), permutations)
    each = [pair.figures(figures.values) for pair in pairs]
    a, b = (np.stack([side[which] for side in each]) for which in (0, 1))
    draws = _Draws(strata, boot, swaps, (a, b))
    groups = {stratum.subset: [place] for place, stratum in enumerate(strata)}
    groups |= {ALL: list(range(len(strata)))} if len(strata) > 1 else {}
    return [
        _entry(draws, name, column, platform, places, name in figures.lower)
        for platform, places in groups.items()
        for column, name in enumerate(figures.names)
    ]


def _entry(draws: _Draws, name: str, column: int, platform: str, places: Sequence[int], lower: bool) -> JSON:
    a, b = (side[:, column] for side in draws.values)
    there = [place for place in places if not math.isnan(a[place] - b[place])]
    parts = [draws.strata[place].parts[:, column] for place in there]
    same = [draws.strata[place].same[:, column] for place in there]
    users = sum(int((~np.isnan(part)).sum()) for part in parts)
    observed = float(np.mean(a[there] - b[there])) if there else math.nan
    span = interval(draws.resampled[there, :, column].mean(axis=0), observed, users, len(there)) if there else None
    swaps = draws.swapped.differences[there, :, column].mean(axis=0) if there else np.empty(0)
    error = standard_error(parts)
    return {
        "platform": platform,
        "platforms": len(there),
        "metric": name,
        "lower_is_better": lower,
        "users": users,
        "a": _number(np.mean(a[there])) if there else None,
        "b": _number(np.mean(b[there])) if there else None,
        "difference": _number(observed),
        "ci95": list(span) if span else None,
        "p": p_value(swaps, observed, draws.swapped.whole),
        "p_holm": None,
        "standard_error": error,
        "users_needed": users_needed(users, error),
        **_agreement(parts, same, lower),
    }


def _agreement(parts: Sequence[Array], same: Sequence[Mask], lower: bool) -> JSON:
    """On how many users A is better, equal, worse."""
    counts = {"a_better": 0, "equal": 0, "b_better": 0}
    for part, alike_there in zip(parts, same, strict=True):
        equal = alike_there & ~np.isnan(part)
        counts["equal"] += int(equal.sum())
        counts["b_better" if lower else "a_better"] += int((~equal & (part > 0)).sum())
        counts["a_better" if lower else "b_better"] += int((~equal & (part < 0)).sum())
    return counts


def correct(pairs: Sequence[Sequence[JSON]]) -> None:
    """Puts Holm's p-values into the entries of pairs of runs, in two families, each over metrics and pairs.

    One is of what verdicts are about, the other of the single platforms behind it, over these too.
    """
    telling = [entry for entries in pairs for entry in entries if entry["platform"] == entries[-1]["platform"]]
    others = [entry for entries in pairs for entry in entries if entry["platform"] != entries[-1]["platform"]]
    for family in (telling, others):
        for entry, p in zip(family, holm([entry["p"] for entry in family]), strict=True):
            entry["p_holm"] = p


def most_different(strata: Sequence[Stratum], figures: Figures) -> list[JSON]:
    """The users with the largest parts in the difference of the ranking figure, largest first."""
    column = figures.names.index(figures.main[-1])
    found = []
    for stratum in strata:
        part = np.where(stratum.same[:, column], np.nan, stratum.parts[:, column])
        order = np.argsort(-np.abs(part), kind="stable")[:MOST]
        found += [
            {"platform": stratum.subset, "user_id": stratum.users[row], "difference": float(part[row])}
            for row in order.tolist()
            if not math.isnan(part[row])
        ]
    return sorted(found, key=lambda one: -abs(one["difference"]))


def _number(value: float | np.floating) -> float | None:
    return None if math.isnan(value) else float(value)


# Verdicts


def verdicts(entries: Sequence[JSON], names: Mapping[str, str], figures: Figures) -> list[str]:
    """A sentence for each main figure, over all platforms that the pair has. `names` are those of `a` and `b`."""
    if not entries:
        return ["Nothing to compare."]
    last = entries[-1]["platform"]
    chosen = {entry["metric"]: entry for entry in entries if entry["platform"] == last}
    return [_verdict(chosen[metric], names) for metric in reversed(figures.main)]


def _verdict(of: JSON, names: Mapping[str, str]) -> str:
    a, b, metric, users = names["a"], names["b"], of["metric"], of["users"]
    if of["difference"] is None:
        return f"{metric} is not defined for any user that both have."
    if of["ci95"] is None:
        return f"Nothing can be said of {metric}: {_count(users)} that both have."
    over = f"on {_count(users)} that both have"
    low, high = (100 * bound for bound in of["ci95"])
    if of["equal"] == users:
        return f"{a} and {b} are the same in {metric}, {over}: every user's value is equal."
    points, p = 100 * of["difference"], f"p = {p_text(of['p_holm'])} after Holm"
    alone = f"p = {p_text(of['p'])} alone, " if of["p"] < SIGNIFICANT <= of["p_holm"] else ""
    if of["p_holm"] < SIGNIFICANT and low * high > 0:
        ahead = (points > 0) != of["lower_is_better"]
        better, worse = (a, b) if ahead else (b, a)
        span = sorted((abs(low), abs(high)))
        return (
            f"{better} is better than {worse} in {metric} by {abs(points):.2f} points (95 % {span[0]:.2f} to "
            f"{span[1]:.2f}; {p}), {over}."
        )
    return (
        f"No difference shown between {a} and {b} in {metric}: {points:+.2f} points (95 % {low:+.2f} to {high:+.2f}; "
        f"{alone}{p}), {over}. One of up to {max(abs(low), abs(high)):.2f} points could hide."
    )


def _count(users: int) -> str:
    return f"{users} user{'' if users == 1 else 's'}"


def p_text(p: float | None) -> str:
    if p is None:
        return "n/a"
    return f"{p:.4f}" if p < 0.1 else f"{p:.2f}"
