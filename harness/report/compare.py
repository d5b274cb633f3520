"""What `compare` found, as blocks for terminal and page and as sheets. Made of its JSON alone.

What must be known first comes first: how many users each has, what else differs than the model, whose users are
missing or alone; then figures.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from harness.benchmark import Metric
from harness.model import JSON, Block, Chart, Heading, Paragraph, Series, Table
from harness.report.xlsx import WHOLE, Cell, Sheet

P_FORMAT = "0.0000"
MOST = 10
"""Users shown in text that differ most."""
ALL = "all"


def blocks(data: JSON) -> Iterator[Block]:
    """Everything, a pair of runs after the other."""
    yield Heading("Runs compared")
    yield Table(
        ("run", "benchmark", "model", "platforms"),
        tuple((run["name"], run["benchmark"], run["model"] or "not known", run["platforms"]) for run in data["runs"]),
    )
    for pair in data["pairs"]:
        yield from _pair(pair)
    yield Heading("How this is computed")
    yield from map(Paragraph, method(data))


def method(data: JSON) -> Iterator[str]:
    """What the columns mean, and how sure they are."""
    yield (
        "Differences are A minus B in the unit of each metric, of shares in percentage points (times 100), on users "
        "that both have, the task of each being the same in both. Failed users are in no figure; invalid answers count "
        "as in the reports. Over all platforms (all): the mean of the platforms' figures, each weighing the same."
    )
    yield (
        f"Intervals: 95 %, bootstrap of whole users, both sides together, {data['resamples']} resamples, on each "
        f"platform by itself. p (Holm): both sides of users swapped at random, {data['permutations']} times (all "
        "ways where there are fewer), corrected over metrics and pairs of runs, for single platforms over these too. "
        f"Seed {data['seed']}. Chance covered is that of which users there are, not that of a model that answers "
        "otherwise when asked again."
    )
    yield (
        "A better, equal, B better: on how many users; of a divergence, whose days speak for which side. Users for 1 "
        "point: how many it takes to see a difference of 1 percentage point (for another unit, of a hundredth of its "
        "range) at 5 % with a power of 80 %. Formulas and sources: docs/statistics.md."
    )


def _pair(pair: JSON) -> Iterator[Block]:
    yield Heading(f"{pair['a']} (A) and {pair['b']} (B)")
    yield _coverage(pair)
    yield from map(Paragraph, pair["warnings"])
    yield from map(Paragraph, coverage_notes(pair))
    yield Heading(f"{pair['a']} and {pair['b']}, in words")
    yield from map(Paragraph, pair["verdicts"])
    yield from _charts(pair)
    platforms = dict.fromkeys(entry["platform"] for entry in pair["figures"])
    for platform in sorted(platforms, key=lambda name: name != ALL):
        yield from _figures(pair, platform)
    yield from _users(pair)


def _coverage(pair: JSON) -> Table:
    return Table(
        ("platform", "A scored", "B scored", "both", "only A", "only B", "other task"),
        tuple(
            (
                of["platform"],
                _scored(of["a"]),
                _scored(of["b"]),
                str(of["common"]),
                str(of["only_a"]["users"]),
                str(of["only_b"]["users"]),
                str(of["other_tasks"]),
            )
            for of in pair["coverage"]
        ),
    )


def _scored(of: JSON) -> str:
    return str(of["scored"]) if of["expected"] is None else f"{of['scored']} of {of['expected']}"


def coverage_notes(pair: JSON) -> Iterator[str]:
    """Yield what the numbers of users mean for the comparison."""
    yield from pair["left_out"]
    for side in ("a", "b"):
        yield from _share_of(pair[side], [(of["platform"], of[side]) for of in pair["coverage"]])
    for of in pair["coverage"]:
        for side in ("a", "b"):
            yield from _missing(of["platform"], pair[side], of[side])
        if of["other_tasks"]:
            yield (
                f"{of['platform']}: the tasks of {_users_of(of['other_tasks'])} are not the same in both runs, so "
                "these are left out."
            )
        for side, other in (("a", "b"), ("b", "a")):
            yield from _alone(pair, of, side, other)


def _share_of(name: str, platforms: Sequence[tuple[str, JSON]]) -> Iterator[str]:
    """Yield a note on a run of only a share of the users."""
    parts = [
        f"{platform} {has['expected']} of {_users_of(has['users_in_tasks'])} (share {has['ratio']:g})"
        for platform, has in platforms
        if has["ratio"] not in (None, 1)
    ]
    if parts:
        yield f"{name} was run on a share of its tasks: {', '.join(parts)}."


def _missing(platform: str, name: str, has: JSON) -> Iterator[str]:
    if has["expected"] is not None and has["scored"] < has["expected"]:
        failed = f", {has['failed']} of them failed" if has["failed"] else ""
        missing = _users_of(has["expected"] - has["scored"])
        yield f"{platform}: {name} is INCOMPLETE, without {missing}{failed}."
    if has["unsound"]:
        lines = "1 line" if has["unsound"] == 1 else f"{has['unsound']} lines"
        yield f"{platform}: of {name}'s results {lines} left out for not being sound (`verify` tells more)."


def _alone(pair: JSON, of: JSON, side: str, other: str) -> Iterator[str]:
    """Yield a note on users of one run alone, and how their figures differ."""
    alone = of[f"only_{side}"]
    if not alone["users"]:
        return
    units = _units(pair)
    means = [
        f"{metric} {_of(units[metric], alone['figures'][metric])} against {_of(units[metric], on_common)}"
        for metric, on_common in of["on_common"][0 if side == "a" else 1].items()
        if metric in pair["main"] and on_common is not None
    ]
    figures = f"; {pair[side]} has on them, against on those of both: {', '.join(means)}" if means else ""
    yield (
        f"{of['platform']}: {_users_of(alone['users'])} of {pair[side]} not in {pair[other]}, so in no figure "
        f"below{figures}."
    )


def _users_of(number: int) -> str:
    return "1 user" if number == 1 else f"{number} users"


def _figures(pair: JSON, platform: str) -> Iterator[Block]:
    entries = [entry for entry in pair["figures"] if entry["platform"] == platform]
    users = max(entry["users"] for entry in entries)
    where = f"All platforms ({entries[0]['platforms']})" if platform == ALL else platform
    yield Heading(f"{where}: A minus B on {_users_of(users)}")
    units = _units(pair)
    shown = "" if any(metric.unit for metric in units.values()) else " (%)"
    yield Table(
        ("metric", f"A{shown}", f"B{shown}", "A - B", "95 % interval", "p (Holm)"),
        tuple(_figure_row(entry, units[entry["metric"]], named=not shown) for entry in entries),
    )
    yield Table(
        ("metric", "users", "A better", "equal", "B better", "users for 1 point"),
        tuple(
            (
                entry["metric"],
                str(entry["users"]),
                *(_share(entry[name], entry["users"]) for name in ("a_better", "equal", "b_better")),
                "n/a" if entry["users_needed"] is None else str(entry["users_needed"]),
            )
            for entry in entries
        ),
    )


def _figure_row(entry: JSON, metric: Metric, *, named: bool) -> tuple[str, ...]:
    """`named` puts the metric's unit after its name, since not all have the same."""
    return (
        f"{metric.name}, {metric.shown_unit}" if named else metric.name,
        metric.text(entry["a"]),
        metric.text(entry["b"]),
        metric.text(entry["difference"], signed=True),
        _span(metric, entry["ci95"]),
        _p(entry["p_holm"]),
    )


def _units(pair: JSON) -> dict[str, Metric]:
    return {name: Metric.of(name, of) for name, of in pair["metric_units"].items()}


def _of(metric: Metric, value: float | None) -> str:
    """A value with its unit."""
    return metric.text(value) if value is None else f"{metric.text(value)} {metric.shown_unit}"


def _charts(pair: JSON) -> Iterator[Block]:
    platforms = tuple(dict.fromkeys(entry["platform"] for entry in pair["figures"]))
    if not platforms:
        return
    last = [entry for entry in pair["figures"] if entry["platform"] == platforms[-1]]
    title = f"{pair['a']} minus {pair['b']}"
    for unit, units in _by_unit(_units(pair).values()):
        label, shares = f"difference, {unit}", units[0].unit is None
        of_unit = [entry for entry in last if entry["metric"] in {metric.name for metric in units}]
        metrics = tuple(entry["metric"] for entry in of_unit)
        yield Chart("intervals", f"{title}, {platforms[-1]}", metrics, label, "", (_series(title, of_unit),), shares)
        main = [metric.name for metric in units if metric.name in pair["main"]]
        if len(platforms) > 1 and main:
            of = [[entry for entry in pair["figures"] if entry["metric"] == metric] for metric in main]
            series = tuple(_series(entries[0]["metric"], entries) for entries in of)
            yield Chart("intervals", f"{title}, by platform", platforms, label, "", series, shares)


def _by_unit(metrics: Iterable[Metric]) -> list[tuple[str, list[Metric]]]:
    """Group the metrics that a picture can show on one axis."""
    found: dict[str | None, list[Metric]] = {}
    for metric in metrics:
        found.setdefault(metric.unit, []).append(metric)
    return [(of[0].difference_unit, of) for of in found.values()]


def _series(name: str, entries: Sequence[JSON]) -> Series:
    spans = [entry["ci95"] or (None, None) for entry in entries]
    return Series(
        name,
        tuple(entry["difference"] for entry in entries),
        tuple(low for low, _ in spans),
        tuple(high for _, high in spans),
    )


def _users(pair: JSON) -> Iterator[Block]:
    if not pair["most_different"]:
        return
    metric = _units(pair)[pair["main"][-1]]
    unit = "" if metric.unit is None else f", {metric.unit}"
    yield Heading(f"Users that differ most in {metric.name}")
    yield Table(
        ("user", "platform", f"A - B{unit}"),
        tuple(
            (one["user_id"], one["platform"], metric.text(one["difference"], signed=True))
            for one in pair["most_different"][:MOST]
        ),
    )


def _span(metric: Metric, bounds: Sequence[float] | None) -> str:
    return "n/a" if bounds is None else " to ".join(metric.text(bound, signed=True) for bound in bounds)


def _p(p: float | None) -> str:
    return "n/a" if p is None else f"{p:.4f}"


def _share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.0f} %" if whole else "n/a"


# Sheets


def sheets(data: JSON) -> list[Sheet]:
    """Verdicts, figures, coverage and users, all pairs in each."""
    return [_verdict_sheet(data), _figure_sheet(data), _coverage_sheet(data), _user_sheet(data)]


def _verdict_sheet(data: JSON) -> Sheet:
    rows = [
        (pair["a"], pair["b"], kind, words)
        for pair in data["pairs"]
        for kind, sentences in (
            ("warning", pair["warnings"]),
            ("coverage", coverage_notes(pair)),
            ("verdict", pair["verdicts"]),
        )
        for words in sentences
    ]
    return Sheet("Verdicts", ("A", "B", "", "in words"), rows, tuple(method(data)))


def _figure_sheet(data: JSON) -> Sheet:
    units = [metric.unit for pair in data["pairs"] for metric in _units(pair).values()]
    shown = " (%)" if set(units) == {None} else ""
    columns = ("A", "B", "platform", "metric", f"A{shown}", f"B{shown}", "A - B", "from", "to", "p", "p (Holm)")
    counts = ("users", "A better", "equal", "B better", "users for 1 point", "unit")
    rows = [
        (pair["a"], pair["b"], *_figure_cells(of, _units(pair)[of["metric"]]))
        for pair in data["pairs"]
        for of in pair["figures"]
    ]
    return Sheet("Figures", (*columns, *counts), rows, ("Differences of shares in points; from, to: 95 % interval.",))


def _figure_cells(of: JSON, metric: Metric) -> Iterator[Cell | str | None]:
    yield of["platform"]
    yield metric.name
    for value in (of["a"], of["b"], of["difference"], *(of["ci95"] or (None, None))):
        yield _metric_cell(metric, value)
    for name in ("p", "p_holm"):
        yield _cell(of[name], P_FORMAT)
    for name in ("users", "a_better", "equal", "b_better", "users_needed"):
        yield _cell(of[name], WHOLE)
    yield metric.shown_unit


def _coverage_sheet(data: JSON) -> Sheet:
    numbers = ("scored", "expected", "failed", "users_in_tasks")
    titles = [name.replace("_", " ") for name in numbers]
    columns = ("A", "B", "platform", *(f"{side} {title}" for side in "AB" for title in titles))
    rows = [
        (
            pair["a"],
            pair["b"],
            of["platform"],
            *(_cell(of[side][name], WHOLE) for side in "ab" for name in numbers),
            *(_cell(of[name], WHOLE) for name in ("common", "other_tasks")),
            *(_cell(of[f"only_{side}"]["users"], WHOLE) for side in "ab"),
        )
        for pair in data["pairs"]
        for of in pair["coverage"]
    ]
    return Sheet("Coverage", (*columns, "both", "other task", "only A", "only B"), rows)


def _user_sheet(data: JSON) -> Sheet:
    rows = [
        (pair["a"], pair["b"], one["platform"], one["user_id"], metric.name, _metric_cell(metric, one["difference"]))
        for pair in data["pairs"]
        for metric in [_units(pair)[pair["main"][-1]]]
        for one in pair["most_different"]
    ]
    return Sheet("Users", ("A", "B", "platform", "user", "metric", "A - B"), rows)


def _metric_cell(metric: Metric, value: float | None) -> Cell | None:
    return _cell(None if value is None else metric.scale * value, f"0.{'0' * metric.decimals}")


def _cell(value: float | None, number: str) -> Cell | None:
    return None if value is None else Cell(value, number=number)
