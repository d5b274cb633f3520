"""The result of `compare`, as blocks for terminal and page and as sheets. Made of its JSON alone.

Verdicts come first; then, of each pair of runs, what a reader must know: how many users each has, what differs other
than the model, which users are missing or in one run alone; then figures.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from msgspec import convert

from harness.benchmark import Metric
from harness.benchmarks.rendering import ends
from harness.commands.compare.figures import ALL
from harness.document import Block, Cell, Chart, Heading, Paragraph, Series, Table
from harness.model import JSON
from harness.reply_facts import ReplyFacts
from harness.reporting.report import APPROXIMATE, level
from harness.scoring.intervals import FEWEST_AT_ALL
from harness.ui.words import plural

P_DIGITS = 4
MOST = 10
"""Users shown in text that differ most."""
AS_GIVEN = (
    "Some answers break the rules of the task. These metrics are compared by others, which such answers cannot win."
)
KINDS = {
    False: (("primary", "95 % simultaneous", "p (adjusted)"), ("ci95_simultaneous", "p_adjusted")),
    True: (("exploratory", "95 % interval", "p (not corrected)"), ("ci95", "p")),
}
"""Of primary and exploratory figures: kind, interval and p-value in the heads of tables; the last two in the JSON."""
AGREEMENT = ("users", "A better", "equal", "B better")


def blocks(data: JSON) -> Iterator[Block]:
    """Yield everything, one pair of runs after the other."""
    yield Heading("Verdicts")
    yield from (Paragraph(words) for pair in data["pairs"] for words in pair["verdicts"])
    runs = [(run["name"], run["benchmark"], run["model"] or "not known", run["subsets"]) for run in data["runs"]]
    yield Heading("Runs compared")
    yield Table(("run", "benchmark", "model", "subsets"), tuple(runs))
    for run in data["runs"]:
        for words in convert(run.get("replies", {}), ReplyFacts).sentences():
            yield Paragraph(f"{run['name']}: {words}.")
    for pair in data["pairs"]:
        yield Heading(f"{pair['a']} (A) and {pair['b']} (B)")
        yield _coverage(pair)
        yield from map(Paragraph, pair["warnings"])
        yield from map(Paragraph, coverage_notes(pair))
        yield from _charts(pair)
        subsets = dict.fromkeys(entry["subset"] for entry in pair["figures"])
        for subset in sorted(subsets, key=lambda name: name != ALL):
            yield from _figures(pair, subset)
        yield from _users(pair)
    yield Heading("How this is computed")
    yield from map(Paragraph, method(data))


def method(data: JSON) -> Iterator[str]:
    """Yield what the columns mean, and how sure they are."""
    yield (
        "Differences are A minus B in the unit of each metric, of shares in percentage points (times 100), on users "
        "that both have with the same task. Failed users are in no figure; invalid answers count as in the reports. "
        "Over all subsets (all): the mean of the subsets' figures, each with the same weight."
    )
    yield (
        "Intervals: 95 %, Student's t of users' parts in the difference, with the skewness taken out. "
        f"{APPROXIMATE} Too few: fewer than {FEWEST_AT_ALL} users, or all have the same difference. p: both sides "
        f"of users swapped at random, {data['resamples']} times (in all ways if these are fewer), seed {data['seed']}. "
        "The primary figures of all pairs of runs are one family of tests: p (adjusted) and the simultaneous "
        "intervals, which the verdicts have too, hold for all of them. The adjusted p decides a verdict, also where "
        "the interval says otherwise. "
        "Everything else is exploratory: its p is not corrected, and shows nothing by itself. All this covers the "
        "choice of users and of their answers, not what all answers of a run have in common."
    )
    yield (
        "A better, equal, B better: how many users; of a divergence, of users whose days count for that side. "
        "Formulas and sources: page Statistics of the documentation."
    )


def _coverage(pair: JSON) -> Table:
    def scored(of: JSON) -> str:
        return str(of["scored"]) if of["expected"] is None else f"{of['scored']} of {of['expected']}"

    rows = [
        (of["subset"], scored(of["a"]), scored(of["b"]), *map(str, _shared(of)), str(of["other_tasks"]))
        for of in pair["coverage"]
    ]
    return Table(("subset", "A scored", "B scored", "both", "only A", "only B", "other task"), tuple(rows))


def _shared(of: JSON) -> tuple[int, int, int]:
    """Return how many users both runs have, only A, only B."""
    return of["common"], of["only_a"]["users"], of["only_b"]["users"]


def coverage_notes(pair: JSON) -> Iterator[str]:
    """Yield what the numbers of users mean for the comparison."""
    yield from pair["left_out"]
    for side in "ab":
        shares = [
            f"{of['subset']} {has['expected']} of {plural(has['users_in_tasks'], 'user')} (share {has['ratio']:g})"
            for of in pair["coverage"]
            if (has := of[side])["ratio"] not in (None, 1)
        ]
        if shares:
            yield f"{pair[side]} was run on a share of its tasks: {', '.join(shares)}."
    for of in pair["coverage"]:
        for side in "ab":
            name, has = pair[side], of[side]
            if has["expected"] is not None and has["scored"] < has["expected"]:
                failed = f", {has['failed']} of them failed" if has["failed"] else ""
                missing = plural(has["expected"] - has["scored"], "user")
                yield f"{of['subset']}: {name} is INCOMPLETE, without {missing}{failed}."
            if has["unsound"]:
                lines = plural(has["unsound"], "line")
                yield f"{of['subset']}: {lines} of {name}'s results left out as not sound (`verify` lists them)."
        if of["other_tasks"]:
            users = plural(of["other_tasks"], "user")
            yield f"{of['subset']}: the tasks of {users} are not the same in both runs, so these are left out."
        yield from _alone(pair, of, "a", "b")
        yield from _alone(pair, of, "b", "a")


def _alone(pair: JSON, of: JSON, side: str, other: str) -> Iterator[str]:
    """Yield a note on users of one run alone, and how their figures differ."""
    alone, units = of[f"only_{side}"], _units(pair)
    if not alone["users"]:
        return
    means = [
        f"{name} {_with_unit(units[name], alone['figures'][name])} against {_with_unit(units[name], on_common)}"
        for name, on_common in of["on_common"]["ab".index(side)].items()
        if name in pair["main"] and on_common is not None
    ]
    figures = f"; {pair[side]} has on them, against on those of both: {', '.join(means)}" if means else ""
    users = plural(alone["users"], "user")
    yield f"{of['subset']}: {users} of {pair[side]} not in {pair[other]}, so in no figure below{figures}."


def _figures(pair: JSON, subset: str) -> Iterator[Block]:
    entries = [entry for entry in pair["figures"] if entry["subset"] == subset]
    where = f"All subsets ({entries[0]['subsets']})" if subset == ALL else subset
    yield Heading(f"{where}: A minus B on {plural(max(entry['users'] for entry in entries), 'user')}")
    units = _units(pair)
    are_shares = all(metric.unit is None for metric in units.values())
    unit = " (%)" if are_shares else ""
    for exploratory, ((kind, *heads), _) in KINDS.items():
        rows = [entry for entry in entries if entry["exploratory"] is exploratory]
        if rows:
            chance = not exploratory and any(of.get("chance") is not None for of in rows)
            yield Table(
                (kind, f"A{unit}", f"B{unit}", *(["chance"] * chance), "A - B", *heads),
                tuple(_figure_row(of, units[of["metric"]], chance, not are_shares) for of in rows),
            )
    yield Table(("metric", *AGREEMENT), tuple(map(_agreement_row, entries)))
    yield from _as_given(entries, units)


def _as_given(entries: Sequence[JSON], units: Mapping[str, Metric]) -> Iterator[Block]:
    """Yield the metrics that others are compared in place of, since an answer breaks the rules of the task."""
    rows = tuple(
        (metric.name, entry["compared"], *(metric.text(of[side]) for side in "ab"))
        for entry in entries
        if (of := entry["given"]) and (metric := units[entry["metric"]])
    )
    if rows:
        yield Paragraph(AS_GIVEN)
        yield Table(("metric", "compared by", "A as given", "B as given"), rows)


def _figure_row(entry: JSON, metric: Metric, chance: bool, named: bool) -> tuple[str, ...]:
    """Return a row, with the metric's unit after its name if it is `named`, since not all have the same."""
    chance_level, (bounds, p) = entry.get("chance"), _of_kind(entry)
    too_few = "n/a" if entry["difference"] is None else "too few"
    mark = "~" * entry["approximate"]
    return (
        f"{entry['compared']}, {metric.shown_unit}" if named else entry["compared"],
        metric.text(entry["a"]),
        metric.text(entry["b"]),
        *(["" if chance_level is None else level(metric, chance_level, entry["chance_error"])] if chance else []),
        metric.text(entry["difference"], signed=True),
        too_few if bounds is None else mark + " to ".join(metric.text(bound, signed=True) for bound in bounds),
        "n/a" if p is None else f"{p:.4f}",
    )


def _of_kind(entry: JSON) -> tuple[Sequence[float] | None, float | None]:
    """Return the interval and the p-value that hold for a figure: primary ones for all of them at once."""
    _, (interval, p) = KINDS[entry["exploratory"]]
    return entry[interval], entry[p]


def _agreement_row(entry: JSON) -> tuple[str, ...]:
    users = entry["users"]
    shares = (f"{100 * entry[name] / users:.0f} %" if users else "n/a" for name in ("a_better", "equal", "b_better"))
    return entry["compared"], str(users), *shares


def _units(pair: JSON) -> dict[str, Metric]:
    return {name: Metric(name, **of) for name, of in pair["metric_units"].items()}


def _with_unit(metric: Metric, value: float | None) -> str:
    return metric.text(value) if value is None else f"{metric.text(value)} {metric.shown_unit}"


def _charts(pair: JSON) -> Iterator[Block]:
    """Yield, for each unit, a chart of all its metrics, and one of the main ones by subset."""
    subsets = tuple(dict.fromkeys(entry["subset"] for entry in pair["figures"]))
    if not subsets:
        return
    title = f"{pair['a']} minus {pair['b']}"
    units: dict[str | None, list[Metric]] = {}
    for metric in _units(pair).values():
        units.setdefault(metric.unit, []).append(metric)
    for unit, metrics in units.items():
        label, names = f"difference, {metrics[0].difference_unit}", {metric.name for metric in metrics}
        of = [entry for entry in pair["figures"] if entry["metric"] in names]
        last = [entry for entry in of if entry["subset"] == subsets[-1]]
        rows = tuple(entry["compared"] for entry in last)
        yield Chart("intervals", f"{title}, {subsets[-1]}", rows, label, "", (_series(title, last),), unit is None)
        main = [metric.name for metric in metrics if metric.name in pair["main"]]
        if len(subsets) > 1 and main:
            series = tuple(_series(name, [entry for entry in of if entry["metric"] == name]) for name in main)
            yield Chart("intervals", f"{title}, by subset", subsets, label, "", series, unit is None)


def _series(name: str, entries: Sequence[JSON]) -> Series:
    differences = tuple(entry["difference"] for entry in entries)
    return Series(name, differences, *ends([_of_kind(entry)[0] for entry in entries]))


def _users(pair: JSON) -> Iterator[Block]:
    if not pair["most_different"]:
        return
    metric = _ranking(pair)
    rows = [
        (one["user_id"], one["subset"], metric.text(one["difference"], signed=True))
        for one in pair["most_different"][:MOST]
    ]
    yield Heading(f"Users that differ most in {metric.name}")
    yield Table(("user", "subset", "A - B" if metric.unit is None else f"A - B, {metric.unit}"), tuple(rows))


def _ranking(pair: JSON) -> Metric:
    return _units(pair)[pair["main"][-1]]


# Sheets


def sheets(data: JSON) -> list[Table]:
    """Return verdicts, figures, coverage and users, all pairs in each."""
    pairs = data["pairs"]

    def words(pair: JSON) -> Iterator[Sequence[str | Cell]]:
        kinds = {"warning": pair["warnings"], "coverage": coverage_notes(pair), "verdict": pair["verdicts"]}
        return ((kind, words) for kind, sentences in kinds.items() for words in sentences)

    def users(pair: JSON) -> Iterator[Sequence[str | Cell]]:
        metric = _ranking(pair)
        for one in pair["most_different"]:
            yield one["subset"], one["user_id"], metric.name, _figure(metric, one["difference"])

    return [
        Table(("A", "B", "", "in words"), _under(pairs, words), "Verdicts", tuple(method(data))),
        _figure_sheet(pairs),
        _coverage_sheet(pairs),
        Table(("A", "B", "subset", "user", "metric", "A - B"), _under(pairs, users), "Users"),
    ]


def _under(
    pairs: Sequence[JSON], rows: Callable[[JSON], Iterable[Sequence[str | Cell]]]
) -> tuple[tuple[str | Cell, ...], ...]:
    """Return the rows of all pairs, each after the names of its runs."""
    return tuple((pair["a"], pair["b"], *row) for pair in pairs for row in rows(pair))


def _figure_sheet(pairs: Sequence[JSON]) -> Table:
    are_shares = {metric.unit for pair in pairs for metric in _units(pair).values()} == {None}
    unit = " (%)" if are_shares else ""
    spans = ("from", "to", "from (simultaneous)", "to (simultaneous)", "p (not corrected)", "p (adjusted)")
    about = ("unit", "kind", "compared by", "A as given", "B as given", "approximate")
    columns = ("A", "B", "subset", "metric", f"A{unit}", f"B{unit}", "A - B", *spans, *AGREEMENT, *about)
    notes = ("Differences of shares in points; from, to: 95 % interval.",)
    return Table(columns, _under(pairs, _figure_rows), "Figures", notes)


def _figure_rows(pair: JSON) -> Iterator[Sequence[str | Cell]]:
    units = _units(pair)
    for of in pair["figures"]:
        metric = units[of["metric"]]
        spans = (end for name in ("ci95", "ci95_simultaneous") for end in of[name] or (None, None))
        counts = (of[name] for name in ("users", "a_better", "equal", "b_better"))
        yield (
            of["subset"],
            metric.name,
            *(_figure(metric, value) for value in (of["a"], of["b"], of["difference"], *spans)),
            *(_cell(of[name], P_DIGITS) for name in ("p", "p_adjusted")),
            *map(_cell, counts),
            metric.shown_unit,
            "exploratory" if of["exploratory"] else "primary",
            of["compared"] or "",
            *(_figure(metric, (of["given"] or of)[side]) for side in "ab"),
            "~" if of["ci95"] and of["approximate"] else "",
        )


def _coverage_sheet(pairs: Sequence[JSON]) -> Table:
    numbers = ("scored", "expected", "failed", "users_in_tasks")

    def rows(pair: JSON) -> Iterator[Sequence[str | Cell]]:
        for of in pair["coverage"]:
            both, *alone = _shared(of)
            counts = [*(of[side][name] for side in "ab" for name in numbers), both, of["other_tasks"], *alone]
            yield of["subset"], *map(_cell, counts)

    titles = (f"{side} {name.replace('_', ' ')}" for side in "AB" for name in numbers)
    columns = ("A", "B", "subset", *titles, "both", "other task", "only A", "only B")
    return Table(columns, _under(pairs, rows), "Coverage")


def _figure(metric: Metric, value: float | None) -> str | Cell:
    return _cell(None if value is None else metric.scale * value, metric.decimals)


def _cell(value: float | None, digits: int = 0) -> str | Cell:
    return "" if value is None else Cell(str(value), value, digits)
