"""What the primary figures of two runs come to, in sentences (docs/statistics.md, Verdict)."""

from __future__ import annotations

from collections.abc import Iterator

from harness.benchmark import Metric
from harness.model import JSON
from harness.scoring.differences import SIGNIFICANT, Difference
from harness.ui.words import plural

COULD = {
    "could_reverse": "could reverse it",
    "could_undo": "could undo it",
    "cannot_change": "cannot reverse it",
}


def verdict(
    figure: Difference,
    metric: Metric,
    a: str,
    b: str,
) -> str:
    """Return which run is better, by how much, how sure that is and on how many users, in one line.

    Where missing users could change it, it is only about the users that both have.
    """
    name = figure.compared
    users = plural(figure.users, "user")
    match figure.outcome:
        case "undefined":
            return f"{name} is not defined for any user that both have."
        case "same":
            value = metric.text(figure.a)
            return (
                f"{a} and {b} are the same in {name}: {value} {metric.shown_unit}, equal for each"
                f" of {users}."
            )
        case "too_few":
            return _too_few(figure, metric)
        case "no_difference":
            return (
                f"{a} and {b}: no difference shown in {name},"
                f" {_evidence(figure, metric, signed=True)}."
            )
        case "differs":
            return (
                f"{a} minus {b} is {_evidence(figure, metric, signed=True)} in {name}, where"
                " neither way is better."
            )

    better, worse = a, b
    if figure.outcome == "b_better":
        better, worse = b, a

    sentence = f"{better} is better than {worse} in {name} by {_evidence(figure, metric)}."
    # Only what missing users cannot change is a verdict about all of them.
    if figure.missing_users in (None, "cannot_change"):
        return sentence

    return f"On the {users} that both have, {sentence}"


def _too_few(figure: Difference, metric: Metric) -> str:
    where = ""
    if figure.few_untied and figure.subsets > 1:
        few = ", ".join(f"{subset} {untied}" for subset, untied in figure.few_untied.items())
        where = f" ({few})"

    users = plural(figure.differing, "user")

    return (
        f"Nothing can be concluded about {figure.compared}: {users} that differ{where} are too few"
        f" for an adjusted p below {SIGNIFICANT}, {_values(figure, metric)}, n {figure.users}."
    )


def _evidence(
    figure: Difference,
    metric: Metric,
    *,
    signed: bool = False,
) -> str:
    """Return the difference with its interval, both values, p and the number of users; and that the
    test decides where the interval says otherwise. Without a sign it is that of the better run,
    which comes first."""
    difference = figure.difference or 0.0
    p = figure.p_adjusted or 0.0
    # A sentence that names the better run first has no minus.
    sign = -1 if difference < 0 and not signed else 1
    margin = f"{metric.text(sign * difference, signed=signed)} {metric.difference_unit}"
    bounds = "no interval"
    decides = ""
    if figure.ci95_simultaneous is not None:
        low, high = sorted(sign * end for end in figure.ci95_simultaneous)
        ends = " to ".join(metric.text(end, signed=signed or low < 0) for end in (low, high))
        bounds = f"95 % {'~' * figure.approximate}{ends}"
        # The adjusted p decides a verdict, whatever the interval says.
        excludes_zero = low * high > 0
        if excludes_zero != (p < SIGNIFICANT):
            decides = " (decides)"

    values = _values(figure, metric, swapped=not signed and figure.outcome == "b_better")

    return f"{margin} ({bounds}), {values}, p {p_text(p)}{decides}, n {figure.users}"


def _values(
    figure: Difference,
    metric: Metric,
    *,
    swapped: bool = False,
) -> str:
    values = [metric.text(figure.a), metric.text(figure.b)]
    if swapped:
        values.reverse()

    return f"{' vs '.join(values)} {metric.shown_unit}"


def p_text(p: float | None) -> str:
    if p is None:
        return "n/a"
    if p < 0.001:
        return "< 0.001"
    if p < 0.1:
        return f"{p:.3f}"

    return f"{p:.2f}"


def reservations(
    figure: Difference,
    metric: Metric,
    names: JSON,
) -> list[str]:
    """Return sentences on what missing users could change, on subsets that a verdict does not
    cover, and on an interval of few users that differ. `names` are those of `a` and `b`."""
    if figure.difference is None:
        return []

    sentences: list[str] = []
    if figure.missing and figure.outcome != "too_few":
        sentences += _missing(figure, metric, names, figure.missing)
    if figure.undefined_on:
        sentences.append(f"{figure.compared} is not defined on {', '.join(figure.undefined_on)}.")

    if figure.few_untied and figure.ci95 is not None:
        few = ", ".join(f"{untied} on {subset}" for subset, untied in figure.few_untied.items())
        sentences.append(
            f"The interval of {figure.compared} rests on few users that differ: {few}."
        )

    return sentences


def _missing(
    figure: Difference,
    metric: Metric,
    names: JSON,
    missing: JSON,
) -> Iterator[str]:
    """Yield what the missing users could change, and what those that failed could."""
    by_side = []
    for side in filter(missing.get, "ab"):
        by_side.append(f"{plural(missing[side], 'user')} missing from {names[side]}")

    who = " and ".join(by_side)
    if figure.missing_users == "unknown":
        reason = "is not a mean over users" if missing["bounds"] is None else "has no bound"
        yield f"What the {who} could change is not known: {figure.compared} {reason}."
        return

    is_shown = figure.outcome in ("a_better", "b_better", "differs")
    verb = COULD[str(figure.missing_users)] if is_shown else "leave it open"
    unit = metric.difference_unit
    ends = []
    for end in missing["bounds"]:
        ends.append("no limit" if end is None else f"{metric.text(end, signed=True)} {unit}")

    yield (
        f"{figure.compared}: the {who} {verb}; with them {names['a']} minus {names['b']} is"
        f" {' to '.join(ends)}."
    )
    failed = missing["failed"]
    if failed and failed["difference"] is not None:
        who = " and ".join(f"{failed[side]} of {names[side]}" for side in filter(failed.get, "ab"))
        value = f"{metric.text(failed['difference'], signed=True)} {unit}"
        if failed["ci95"]:
            value += f" (95 % {metric.span(failed['ci95'], signed=True)})"

        yield f"With failed users ({who}) at the worst value the difference is {value}."
