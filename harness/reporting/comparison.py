"""The result of `compare` as blocks and as sheets. Made of its JSON alone.

Of each pair of runs the verdicts come first, with a chart and what a reader must not miss. The rest is folded: who has
which users, what differs other than the model, all figures, and how they are computed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby

from msgspec import convert

from harness.benchmark import VALID, Metric
from harness.benchmarks.rendering import ends
from harness.document import Block, Chart, Heading, Paragraph, Series, Table
from harness.model import JSON
from harness.reply_facts import ReplyFacts
from harness.reporting.report import APPROXIMATE, level
from harness.reporting.verdicts import reservations, verdict
from harness.scoring.differences import ALL, Difference
from harness.scoring.intervals import FEWEST_AT_ALL
from harness.ui.words import plural

USERS_SHOWN = 10
"""Users that differ most, in text and on pages."""
NO_REPORT = "no report, so whether the tasks are synthetic is unknown."
NOT_ALIKE = "Not alike: "


def summary(data: JSON, more: str = "") -> Iterator[Block]:
    """Yield what is shown first; `more` is where to find the rest."""
    costs = [f"{run['name']} {run['cost']}" for run in data["runs"] if "cost" in run]
    closing = [f"Cost: {', '.join(costs)}."] if costs else []
    closing += [more] if more else []
    for number, pair in enumerate(data["pairs"], 1):
        if len(data["pairs"]) > 1:
            yield Heading(f"{pair['a']} and {pair['b']}")
        units = units_of(pair)
        primary = [of for of in figures_of(pair) if not of.exploratory]
        yield from (Paragraph(verdict(of, units[of.metric], pair["a"], pair["b"])) for of in primary)
        if not primary:
            yield from map(Paragraph, [*pair["verdicts"], *pair["left_out"]])
        yield from forest(pair, primary, units)
        remarks = "; ".join(_remarks(pair, primary))
        notes = closing if number == len(data["pairs"]) else []
        yield Paragraph(" ".join([f"{remarks}.", *notes]))


def blocks(data: JSON) -> Iterator[Block]:
    """Yield everything, one pair of runs after the other."""
    yield from summary(data)
    yield Heading("Runs compared", folded=True)
    runs = [(run["name"], run["benchmark"], run["model"] or "not known", run["subsets"]) for run in data["runs"]]
    yield Table(("run", "benchmark", "model", "subsets"), tuple(runs))
    for run in data["runs"]:
        for words in convert(run.get("replies", {}), ReplyFacts).sentences():
            yield Paragraph(f"{run['name']}: {words}.")
    for pair in data["pairs"]:
        units, figures = units_of(pair), figures_of(pair)
        yield Heading(f"{pair['a']} (A) and {pair['b']} (B): users", folded=True)
        yield _coverage(pair)
        yield from map(Paragraph, [*pair["warnings"], *coverage_notes(pair)])
        yield from map(Paragraph, [words for of in figures for words in reservations(of, units[of.metric], pair)])
        yield from _charts(pair, figures, units)
        for subset, of_subset in groupby(sorted(figures, key=lambda of: of.subset != ALL), key=lambda of: of.subset):
            yield from _figures(subset, [*of_subset], units)
        yield from _users(pair, units)
    yield Heading("How this is computed", folded=True)
    yield from map(Paragraph, method(data))


def units_of(pair: JSON) -> dict[str, Metric]:
    return {name: Metric(name, **declared) for name, declared in pair["metric_units"].items()}


def figures_of(pair: JSON) -> list[Difference]:
    return convert(pair["figures"], list[Difference])


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


# What a reader must know


def _remarks(pair: JSON, primary: Sequence[Difference]) -> Iterator[str]:
    """Yield what a reader of the verdicts must not miss, in a few words each."""
    yield "n: users that both have"
    for side, other in ("ab", "ba"):
        if alone := sum(of[f"only_{side}"]["users"] for of in pair["coverage"]):
            yield f"{plural(alone, 'user')} of {pair[side]} not in {pair[other]}"
    if changed := [of.compared for of in primary if of.missing_users not in (None, "cannot_change")]:
        yield f"missing users could change {' and '.join(changed)}"
    wrong = {side: _invalid(pair, side) for side in "ab"}
    if any(wrong.values()):
        yield f"invalid answers: {', '.join(f'{pair[side]} {100 * share:.1f} %' for side, share in wrong.items())}"
    words = [words.rpartition(NOT_ALIKE)[2] for words in pair["warnings"] if NOT_ALIKE in words]
    if names := dict.fromkeys(word.split()[0] for word in words):
        yield f"not alike: {', '.join(names)}"
    if any("synthetic" in words and NO_REPORT not in words for words in pair["warnings"]):
        yield "synthetic tasks"


def _invalid(pair: JSON, side: str) -> float:
    """Return the share of invalid answers of the users that both have."""
    counts = [of[side]["answers_on_common"] for of in pair["coverage"]]
    total = sum(number for count in counts for number in count.values())
    return 1 - sum(count.get(VALID, 0) for count in counts) / total if total else 0.0


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
        for side, other in ("ab", "ba"):
            if alone := of[f"only_{side}"]["users"]:
                users, means = plural(alone, "user"), _means_alone(pair, of, side)
                yield f"{of['subset']}: {users} of {pair[side]} not in {pair[other]}, so in no figure{means}."


def _means_alone(pair: JSON, of: JSON, side: str) -> str:
    """Return how the figures of users of one run alone differ from those of the others."""
    units = units_of(pair)
    means = [
        f"{name} {_with_unit(units[name], of[f'only_{side}']['figures'][name])} against {_with_unit(units[name], both)}"
        for name, both in of["on_common"]["ab".index(side)].items()
        if name in pair["main"] and both is not None
    ]
    return f"; {pair[side]} has on them, against on those of both: {', '.join(means)}" if means else ""


def _with_unit(metric: Metric, value: float | None) -> str:
    return metric.text(value) if value is None else f"{metric.text(value)} {metric.shown_unit}"


# Tables


def _coverage(pair: JSON) -> Table:
    def scored(has: JSON) -> str:
        return str(has["scored"]) if has["expected"] is None else f"{has['scored']} of {has['expected']}"

    rows = [
        (of["subset"], scored(of["a"]), scored(of["b"]), *map(str, (of["common"], *_alone(of), of["other_tasks"])))
        for of in pair["coverage"]
    ]
    return Table(("subset", "A scored", "B scored", "both", "only A", "only B", "other task"), tuple(rows))


def _alone(of: JSON) -> tuple[int, int]:
    return of["only_a"]["users"], of["only_b"]["users"]


def _figures(subset: str, figures: Sequence[Difference], units: Mapping[str, Metric]) -> Iterator[Block]:
    where = f"All subsets ({figures[0].subsets})" if subset == ALL else subset
    users = plural(max(of.users for of in figures), "user")
    yield Heading(f"{where}: A minus B on {users}", folded=True)
    unit = " (%)" if all(metric.unit is None for metric in units.values()) else ""
    for is_exploratory, heads in (
        (False, ("primary", "95 % simultaneous", "p (adjusted)")),
        (True, ("exploratory", "95 % interval", "p (not corrected)")),
    ):
        rows = [of for of in figures if of.exploratory is is_exploratory]
        if rows:
            chance = ["chance"] * any(of.chance is not None for of in rows if not is_exploratory)
            columns = (heads[0], f"A{unit}", f"B{unit}", *chance, "A - B", *heads[1:])
            yield Table(columns, tuple(_figure_row(of, units[of.metric], bool(chance), not unit) for of in rows))
    agreement = tuple((of.compared, str(of.users), *_shares(of)) for of in figures)
    yield Table(("metric", "users", "A better", "equal", "B better"), agreement)
    if given := [of for of in figures if of.given]:
        yield Paragraph(
            "Some answers break the rules of the task. These metrics are compared by others, which such answers cannot "
            "win."
        )
        rows_given = tuple(
            (of.metric, of.compared, *map(units[of.metric].text, (of.given or {}).values())) for of in given
        )
        yield Table(("metric", "compared by", "A as given", "B as given"), rows_given)


def _shares(of: Difference) -> Iterator[str]:
    counts = of.a_better, of.equal, of.b_better
    return (f"{100 * number / of.users:.0f} %" if of.users else "n/a" for number in counts)


def _figure_row(of: Difference, metric: Metric, chance: bool, named: bool) -> tuple[str, ...]:
    """Return a row, with the metric's unit after its name if it is `named`, since not all have the same."""
    p = of.p if of.exploratory else of.p_adjusted
    span = "n/a" if of.difference is None else "too few"
    if bounds := interval_of(of):
        span = "~" * of.approximate + " to ".join(metric.text(bound, signed=True) for bound in bounds)
    return (
        f"{of.compared}, {metric.shown_unit}" if named else of.compared,
        metric.text(of.a),
        metric.text(of.b),
        *(["" if of.chance is None else level(metric, of.chance, of.chance_error)] if chance else []),
        metric.text(of.difference, signed=True),
        span,
        "n/a" if p is None else f"{p:.4f}",
    )


def interval_of(of: Difference) -> tuple[float, float] | None:
    """Return the interval that holds for a figure: a primary one's for all of them at once."""
    return of.ci95 if of.exploratory else of.ci95_simultaneous


def _users(pair: JSON, units: Mapping[str, Metric]) -> Iterator[Block]:
    if not pair["most_different"]:
        return
    metric = units[pair["main"][-1]]
    yield Heading(f"Users that differ most in {metric.name}", folded=True)
    rows = [
        (user["user_id"], user["subset"], metric.text(user["difference"], signed=True))
        for user in pair["most_different"][:USERS_SHOWN]
    ]
    yield Table(("user", "subset", f"A - B, {metric.difference_unit}"), tuple(rows))


# Charts


def forest(pair: JSON, figures: Sequence[Difference], units: Mapping[str, Metric]) -> Iterator[Chart]:
    """Yield a chart of differences for each unit that figures have."""
    by_unit: dict[str | None, list[Difference]] = {}
    for of in figures:
        by_unit.setdefault(units[of.metric].unit, []).append(of)
    for of_unit in by_unit.values():
        yield _chart(pair, "", units[of_unit[0].metric], {"difference": of_unit}, [of.compared for of in of_unit])


def _chart(
    pair: JSON, about: str, metric: Metric, series: Mapping[str, Sequence[Difference]], names: Sequence[str]
) -> Chart:
    drawn = tuple(
        Series(name, tuple(of.difference for of in figures), *ends([interval_of(of) for of in figures]))
        for name, figures in series.items()
    )
    title, is_share = f"{pair['a']} minus {pair['b']}{about}", metric.unit is None
    return Chart("intervals", title, tuple(names), metric.difference_unit, "", drawn, is_share, reference=0.0)


def _charts(pair: JSON, figures: Sequence[Difference], units: Mapping[str, Metric]) -> Iterator[Block]:
    """Yield, for each unit, a chart of all its metrics, and one of the main ones by subset."""
    subsets = list(dict.fromkeys(of.subset for of in figures))
    if not subsets:
        return
    last = [of for of in figures if of.subset == subsets[-1]]
    yield from forest(pair, last, units)
    main = [units[name] for name in pair["main"]]
    for unit in dict.fromkeys(metric.unit for metric in main if len(subsets) > 1):
        metrics = [metric for metric in main if metric.unit == unit]
        series = {metric.name: [of for of in figures if of.metric == metric.name] for metric in metrics}
        yield _chart(pair, ", by subset", metrics[0], series, subsets)
