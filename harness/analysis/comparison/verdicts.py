"""What the figures of two runs come to, in a sentence for each main figure (docs/statistics.md, Verdict)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from harness.benchmark import Metric
from harness.benchmarks.derived import Figures
from harness.model import JSON
from harness.ui.words import plural

SIGNIFICANT = 0.05


def verdicts(entries: Sequence[JSON], names: Mapping[str, str], figures: Figures) -> list[str]:
    """Return a sentence for each main figure, over all platforms of the pair. `names` are those of `a` and `b`."""
    if not entries:
        return ["Nothing to compare."]
    last = entries[-1]["platform"]
    chosen = {entry["metric"]: entry for entry in entries if entry["platform"] == last}
    main = [figures.metrics[name] for name in reversed(figures.main)]
    found = [(entry := chosen[metric.name], replace(metric, name=entry["compared"])) for metric in main]
    return [_verdict(entry, metric, names) + _caution(entry) for entry, metric in found]


def _caution(of: JSON) -> str:
    """Return which platforms it does not cover, and a warning about intervals of few users."""
    if of["difference"] is None:
        return ""
    caution = f" Not about {', '.join(of['undefined_on'])}, where it is not defined." if of["undefined_on"] else ""
    if of["few_users"] and of["ci95"] is not None and of["equal"] < of["users"]:
        few = ", ".join(f"{platform} ({users})" for platform, users in of["few_users"].items())
        caution += f" Too few users on {few} to rely on the interval: it holds less often than 95 %."
    return caution


def _verdict(of: JSON, metric: Metric, names: Mapping[str, str]) -> str:
    a, b, users, unit = names["a"], names["b"], of["users"], metric.difference_unit
    over = f"on {plural(users, 'user')} that both have"
    if of["difference"] is None:
        return f"{metric.name} is not defined for any user that both have."
    if of["ci95"] is None:
        lone = " and ".join(platform for platform, there in of["few_users"].items() if there < 2)
        return f"Nothing can be concluded about {metric.name}, {over}: {lone} has only one."
    low, high = of["ci95"]
    if of["equal"] == users:
        return f"{a} and {b} are the same in {metric.name}, {over}: every user's value is equal."
    difference, p = of["difference"], f"p = {_p(of['p_holm'])} after Holm"
    alone = f"p = {_p(of['p'])} alone, " if of["p"] < SIGNIFICANT <= of["p_holm"] else ""
    if of["p_holm"] < SIGNIFICANT and low * high > 0:
        better, worse = (a, b) if (difference > 0) != metric.lower_is_better else (b, a)
        least, most = sorted((abs(low), abs(high)))
        return (
            f"{better} is better than {worse} in {metric.name} by {metric.text(abs(difference))} {unit} (95 % "
            f"{metric.text(least)} to {metric.text(most)}; {p}), {over}."
        )
    return (
        f"No difference shown between {a} and {b} in {metric.name}: {metric.text(difference, signed=True)} {unit} "
        f"(95 % {metric.text(low, signed=True)} to {metric.text(high, signed=True)}; {alone}{p}), {over}. One of up to "
        f"{metric.text(max(abs(low), abs(high)))} {unit} could hide."
    )


def _p(p: float | None) -> str:
    return "n/a" if p is None else f"{p:.4f}" if p < 0.1 else f"{p:.2f}"
