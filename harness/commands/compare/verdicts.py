"""What the primary figures of two runs come to, in a word for programs and a sentence for readers (docs/statistics.md,
Verdict)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal

from harness.benchmark import Metric
from harness.model import JSON
from harness.scoring.compared import Figures
from harness.ui.words import plural

SIGNIFICANT = 0.05

Outcome = Literal["a_better", "b_better", "differs", "no_difference", "same", "too_few", "undefined"]
Change = Literal["could_reverse", "could_undo", "cannot_change", "unknown"]
"""What missing users could make of a difference: one of the other sign, one that their worst values leave unproven,
neither, or nobody knows since the metric has no bounds."""


def verdicts(entries: Sequence[JSON], names: Mapping[str, str], figures: Figures) -> list[str]:
    """Return a sentence for each main figure, over all subsets of the pair, and put `outcome` and
    `missing_users` into their entries. `names` are those of `a` and `b`."""
    if not entries:
        return ["Nothing to compare."]
    last = entries[-1]["subset"]
    chosen = {entry["metric"]: entry for entry in entries if entry["subset"] == last}
    found = list[str]()
    for name in reversed(figures.main):
        entry = chosen[name]
        metric = replace(figures.metrics[name], name=entry["compared"])
        entry |= {"outcome": outcome(entry, figures.metrics[name]), "missing_users": _change(entry)}
        found.append(_sentence(entry, metric, names) + _missing(entry, metric, names) + _caution(entry))
    return found


def outcome(of: JSON, metric: Metric) -> Outcome:
    """Return what the test of a figure comes to, from its entry in the JSON of `compare`.

    The adjusted p-value of the paired permutation test decides, whatever the interval is. With `n` users that differ it
    is at least 2^(1-n), and for a family of tests that are not correlated as many times that.
    """
    if of["difference"] is None:
        return "undefined"
    if of["equal"] == of["users"] and of["users"] > 1:
        return "same"
    if of["p_adjusted"] < SIGNIFICANT:
        if metric.unranked:
            return "differs"
        return "a_better" if (of["difference"] > 0) != of["lower_is_better"] else "b_better"
    if of["family"] * 2.0 ** (1 - differing(of)) >= SIGNIFICANT:
        return "too_few"
    return "no_difference"


def differing(of: JSON) -> int:
    """Return how many users differ in a figure."""
    return int(of["a_better"] + of["b_better"])


def _change(of: JSON) -> Change | None:
    """Return what missing users could change; None if there are none, or nothing is shown that could change."""
    if of["missing"] is None or of["difference"] is None:
        return None
    sign = 1 if of["difference"] > 0 else -1
    place = 0 if sign > 0 else 1
    bounds = of["missing"]["bounds"]
    if bounds is None or bounds[place] is None:
        return "unknown"
    if sign * bounds[place] <= 0:
        return "could_reverse"
    end = of["missing"]["bounds_ci95"][place]
    return "could_undo" if end is None or sign * end <= 0 else "cannot_change"


def _sentence(of: JSON, metric: Metric, names: Mapping[str, str]) -> str:
    a, b, over = names["a"], names["b"], f"on {plural(of['users'], 'user')} that both have"
    match of["outcome"]:
        case "undefined":
            return f"{metric.name} is not defined for any user that both have."
        case "same":
            return f"{a} and {b} are the same in {metric.name}, {over}: every user's value is equal."
        case "too_few":
            few = ", ".join(f"{subset} {untied}" for subset, untied in of["few_untied"].items())
            where = f" ({few})" if few and of["subsets"] > 1 else ""
            why = (
                f"{plural(differing(of), 'user')} that differ{where} are too few for an adjusted p below {SIGNIFICANT}"
            )
            return f"Nothing can be concluded about {metric.name}, {over}: {why}."
        case "no_difference":
            return _not_shown(of, metric, f"{a} and {b}", over)
        case "a_better" | "differs":
            return _shown(of, metric, a, b)
        case _:
            return _shown(of, metric, b, a)


def _shown(of: JSON, metric: Metric, first: str, second: str) -> str:
    """Return which run is better; only on the users that both have if missing users could change it."""
    sign = 1 if of["outcome"] == "differs" or of["difference"] > 0 else -1
    by = f"{metric.text(sign * of['difference'], signed=of['outcome'] == 'differs')} {metric.difference_unit}"
    says = f"{first} is better than {second} in {metric.name} by {by}"
    if of["outcome"] == "differs":
        says = f"{first} minus {second} is {by} in {metric.name}, of which neither more nor less is better"
    words = f"{says} ({_evidence(of, metric, sign)})"
    users = plural(of["users"], "user")
    if of["missing_users"] in (None, "cannot_change"):
        return f"{words}, on {users} that both have."
    return f"On the {users} that both have, {words}."


def _not_shown(of: JSON, metric: Metric, both: str, over: str) -> str:
    """Return that no difference is shown, and how large a one could hide."""
    unit, span = metric.difference_unit, of["ci95_simultaneous"]
    hidden = "" if span is None else f" One of up to {metric.text(max(map(abs, span)))} {unit} could hide."
    difference = f"{metric.text(of['difference'], signed=True)} {unit}"
    evidence = _evidence(of, metric, 1, signed=True)
    return f"No difference shown between {both} in {metric.name}: {difference} ({evidence}), {over}.{hidden}"


def _evidence(of: JSON, metric: Metric, sign: int, *, signed: bool = False) -> str:
    """Return the interval, where there is one, and the p-values; and that the test decides where the two disagree."""
    alone = f"p = {_p(of['p'])} alone, " if of["p"] < SIGNIFICANT <= of["p_adjusted"] else ""
    p = f"{alone}adjusted p = {_p(of['p_adjusted'])}"
    if (span := of["ci95_simultaneous"]) is None:
        return f"{p}, without an interval"
    low, high = sorted(sign * end for end in span)
    mark = "~" if of["approximate"] else ""
    ends = " to ".join(metric.text(end, signed=signed or low < 0) for end in (low, high))
    agree = (low * high > 0) == (of["p_adjusted"] < SIGNIFICANT)
    return f"95 % simultaneous {mark}{ends}; {p}{'' if agree else ', which decides'}"


def _missing(of: JSON, metric: Metric, names: Mapping[str, str]) -> str:
    """Return sentences on what users that only one run has could change."""
    if of["missing_users"] is None or of["outcome"] in ("undefined", "too_few"):
        return ""
    missing, unit = of["missing"], metric.difference_unit
    who = " and ".join(f"{plural(missing[side], 'user')} missing from {names[side]}" for side in "ab" if missing[side])
    if of["missing_users"] == "unknown":
        why = "is not a mean over users" if missing["bounds"] is None else "has no bound"
        return f" What the {who} could change is not known: {metric.name} {why}."
    shown = of["outcome"] in ("a_better", "b_better", "differs")
    could = {"could_reverse": "could reverse it", "could_undo": "could undo it", "cannot_change": "cannot reverse it"}
    verb = could[of["missing_users"]] if shown else "leave it open"
    low, high = ("no limit" if end is None else f"{metric.text(end, signed=True)} {unit}" for end in missing["bounds"])
    span = f"with them {names['a']} minus {names['b']} is {low} to {high}."
    return f" The {who} {verb}: {span}{_failed(of, metric, names)}"


def _failed(of: JSON, metric: Metric, names: Mapping[str, str]) -> str:
    failed = of["missing"]["failed"]
    if failed is None or failed["difference"] is None:
        return ""
    who = " and ".join(f"{failed[side]} of {names[side]}" for side in "ab" if failed[side])
    span = "" if failed["ci95"] is None else f" (95 % {metric.span(failed['ci95'], signed=True)})"
    difference = f"{metric.text(failed['difference'], signed=True)} {metric.difference_unit}"
    return f" With failed users ({who}) at the worst value the difference is {difference}{span}."


def _caution(of: JSON) -> str:
    """Return which subsets it does not cover, and a warning about an interval of few users that differ."""
    if of["difference"] is None:
        return ""
    caution = f" Not about {', '.join(of['undefined_on'])}, where it is not defined." if of["undefined_on"] else ""
    if of["few_untied"] and of["ci95"] is not None:
        few = ", ".join(f"{untied} on {subset}" for subset, untied in of["few_untied"].items())
        caution += f" The interval rests on few users that differ: {few}."
    return caution


def _p(p: float | None) -> str:
    return "n/a" if p is None else f"{p:.4f}" if p < 0.1 else f"{p:.2f}"
