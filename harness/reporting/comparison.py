"""The result of `compare` as blocks and as sheets. Made of its JSON alone.

Of each pair of runs the verdicts come first, with a chart and what a reader must not miss. The rest
is folded: who has which users, what differs other than the model, all figures, and how they are
computed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from msgspec import convert, structs

from harness.benchmark import VALID, Metric
from harness.benchmarks.rendering import ends
from harness.document import Block, Cell, Chart, Heading, Paragraph, Series, Table
from harness.model import JSON
from harness.reply_facts import ReplyFacts
from harness.reporting.report import APPROXIMATE, level, with_unit
from harness.reporting.verdicts import reservations, verdict
from harness.scoring.differences import ALL, Difference
from harness.scoring.intervals import FEWEST_AT_ALL
from harness.ui.words import plural

NO_REPORT = "no report, so whether the tasks are synthetic is unknown."
NOT_ALIKE = "Not alike: "
AGREEMENT = ("users", "A better", "equal", "B better")


def summary(data: JSON, more: str = "") -> Iterator[Block]:
    """Yield what is shown first; `more` is where to find the rest."""
    costs = [f"{run['name']} {run['cost']}" for run in data["runs"] if "cost" in run]
    closing = [f"Cost: {', '.join(costs)}."] if costs else []
    closing += [more] if more else []
    for number, pair in enumerate(data["pairs"], 1):
        if len(data["pairs"]) > 1:
            yield Heading(f"{pair['a']} and {pair['b']}")
        units = _units(pair)
        primary = [figure for figure in _figures_of(pair) if not figure.exploratory]
        first, second, shown = pair["a"], pair["b"], primary
        if _is_behind(primary):
            first, second, shown = second, first, [_swapped(figure) for figure in primary]
        yield from (
            Paragraph(verdict(figure, units[figure.metric], first, second)) for figure in shown
        )
        if not primary:
            yield from map(Paragraph, pair["verdicts"])
        yield from _forest(
            first, second, [figure for figure in shown if figure.outcome != "same"], units
        )
        remarks = "; ".join(_remarks(pair, primary))
        notes = closing if number == len(data["pairs"]) else []
        yield Paragraph(" ".join([f"{remarks}.", *notes]))


def blocks(data: JSON) -> Iterator[Block]:
    """Yield everything, one pair of runs after the other."""
    yield from summary(data)
    yield Heading("Runs compared", folded=True)
    runs = [
        (run["name"], run["benchmark"], run["model"] or "not known", run["subsets"])
        for run in data["runs"]
    ]
    yield Table(("run", "benchmark", "model", "subsets"), tuple(runs))
    for run in data["runs"]:
        for words in convert(run.get("replies", {}), ReplyFacts).sentences():
            yield Paragraph(f"{run['name']}: {words}.")
    for pair in data["pairs"]:
        units, figures = _units(pair), _figures_of(pair)
        yield Heading(f"{pair['a']} (A) and {pair['b']} (B): users", folded=True)
        yield _coverage(pair)
        yield from map(Paragraph, [*pair["warnings"], *_coverage_notes(pair)])
        primary = [figure for figure in figures if not figure.exploratory]
        yield from map(
            Paragraph,
            [
                words
                for figure in primary
                for words in reservations(figure, units[figure.metric], pair)
            ],
        )
        for subset in sorted(
            dict.fromkeys(figure.subset for figure in figures), key=lambda name: name != ALL
        ):
            yield from _figures(
                pair, subset, [figure for figure in figures if figure.subset == subset], units
            )
        if pair["most_different"]:
            yield Heading(f"Users that differ most in {pair['main'][-1]}", folded=True)
            yield _most_different(pair)
    yield Heading("How this is computed", folded=True)
    yield from map(Paragraph, _method(data))


def non_inferiority(pair: JSON, gate: JSON) -> str:
    """Return in a sentence whether A is not worse than B by more than a margin."""
    metric = _units(pair)[gate["metric"]]
    [figure] = [
        each for each in _figures_of(pair) if each.metric == gate["metric"] and not each.exploratory
    ]
    claim = {
        "not_worse": f"{pair['a']} is not worse than {pair['b']}",
        "worse": f"{pair['a']} is worse than {pair['b']}",
        "unknown": f"These users cannot say whether {pair['a']} is worse than {pair['b']}",
    }[gate["answer"]]
    bounds = "no interval holds"
    if gate["bounds"]:
        low, high = (metric.text(end, signed=True) for end in gate["bounds"])
        bounds = f"one-sided 95 % bounds {'~' * figure.approximate}{low} and {high}"
        if figure.approximate:
            bounds += ", of which none is shown to hold with so few users"
    margin = f"{metric.text(gate['margin'])} {metric.difference_unit}"
    difference = metric.text(figure.difference, signed=True)
    return (
        f"{claim} in {figure.compared} by more than {margin}: {difference} ({bounds}), n"
        f" {figure.users}."
    )


def _units(pair: JSON) -> dict[str, Metric]:
    return {name: Metric(name, **declared) for name, declared in pair["metric_units"].items()}


def _figures_of(pair: JSON) -> list[Difference]:
    return convert(pair["figures"], list[Difference])


def _method(data: JSON) -> Iterator[str]:
    """Yield what the columns mean, and how sure they are."""
    yield (
        "Differences are A minus B in the unit of each metric, of shares in percentage points"
        " (times 100), on users that both have with the same task. Failed users are in no figure;"
        " invalid answers count as in the reports. Over all subsets (all): the mean of the subsets'"
        " figures, each with the same weight."
    )
    yield (
        "Intervals: 95 %, Student's t of users' parts in the difference, with the skewness taken"
        f" out. {APPROXIMATE} Too few: fewer than {FEWEST_AT_ALL} users, or all have the same"
        f" difference. p: both sides of users swapped at random, {data['resamples']} times (in all"
        f" ways if these are fewer), seed {data['seed']}. The primary figures of all pairs of runs"
        " are one family of tests: p (adjusted) and the simultaneous intervals, which the verdicts"
        " have too, hold for all of them. The adjusted p decides a verdict, also where the"
        " interval says otherwise. Everything else is exploratory: its p is not corrected, and"
        " shows nothing by itself. All this covers the choice of users and of their answers, not"
        " what all answers of a run have in common."
    )
    yield (
        "A better, equal, B better: how many users; of a divergence, of users whose days count for"
        " that side. As given: where answers break the rules of the task, a metric is compared by"
        " another, which such answers cannot win. Formulas and sources: page Statistics of the"
        " documentation."
    )


# What a reader must know


def _remarks(pair: JSON, primary: Sequence[Difference]) -> Iterator[str]:
    """Yield what a reader of the verdicts must not miss, in a few words each."""
    yield "n: users that both have, p: adjusted"
    for side, other in ("ab", "ba"):
        if any(_is_partial(row[side]) for row in pair["coverage"]):
            yield f"{pair[side]} is INCOMPLETE"
        if shares := {row[side]["ratio"] for row in pair["coverage"]} - {None, 1}:
            listed = ", ".join(f"{share:g}" for share in sorted(shares))
            yield f"{pair[side]} was run on a share of its tasks ({listed})"
        if alone := sum(row[f"only_{side}"]["users"] for row in pair["coverage"]):
            yield f"{plural(alone, 'user')} of {pair[side]} not in {pair[other]}"
    yield from (words.rstrip(".") for words in pair["left_out"])
    if changed := [
        figure.compared for figure in primary if figure.missing_users not in (None, "cannot_change")
    ]:
        yield f"missing users could change {' and '.join(changed)}"
    wrong = {side: _invalid(pair, side) for side in "ab"}
    if any(wrong.values()):
        yield (
            "invalid answers:"
            f" {', '.join(f'{pair[side]} {100 * share:.1f} %' for side, share in wrong.items())}"
        )
    words = [words.rpartition(NOT_ALIKE)[2] for words in pair["warnings"] if NOT_ALIKE in words]
    if names := dict.fromkeys(word.split()[0] for word in words):
        yield f"not alike: {', '.join(names)}"
    if any("synthetic" in words and NO_REPORT not in words for words in pair["warnings"]):
        yield "synthetic tasks"


def _invalid(pair: JSON, side: str) -> float:
    """Return the share of invalid answers of the users that both have."""
    counts = [row[side]["answers_on_common"] for row in pair["coverage"]]
    total = sum(number for count in counts for number in count.values())
    return 1 - sum(count.get(VALID, 0) for count in counts) / total if total else 0.0


def _is_partial(covered: JSON) -> bool:
    return covered["expected"] is not None and covered["scored"] < covered["expected"]


def _coverage_notes(pair: JSON) -> Iterator[str]:
    """Yield what the numbers of users mean for the comparison."""
    yield from pair["left_out"]
    units = _units(pair)
    for row in pair["coverage"]:
        for side, other, place in (("a", "b", 0), ("b", "a", 1)):
            if unsound := row[side]["unsound"]:
                lines = plural(unsound, "line")
                yield (
                    f"{row['subset']}: {lines} of {pair[side]}'s results left out as not sound"
                    " (`verify` lists them)."
                )
            if alone := row[f"only_{side}"]["users"]:
                means = [
                    f"{name} {with_unit(units[name], row[f'only_{side}']['figures'][name])} against"
                    f" {with_unit(units[name], row['on_common'][place][name])}"
                    for name in pair["main"]
                ]
                yield (
                    f"{row['subset']}: {plural(alone, 'user')} of {pair[side]} not in"
                    f" {pair[other]}, so in no figure. Their figures, against those of the users of"
                    f" both: {', '.join(means)}."
                )


# Tables


def _coverage(pair: JSON) -> Table:
    """Return how many users each run has on each subset; an asterisk marks a run that has not
    scored all of its own."""
    counted = ("scored", "expected", "failed", "users_in_tasks")
    rows = []
    for row in pair["coverage"]:
        cells = []
        for side in "ab":
            is_partial = _is_partial(row[side])
            cells += [
                _number(row[side][name], partial=is_partial and name == "scored")
                for name in counted
            ]
        counts = row["common"], row["other_tasks"], row["only_a"]["users"], row["only_b"]["users"]
        rows.append((row["subset"], *cells, *map(_number, counts)))
    sides = [f"{side} {name.replace('_', ' ')}" for side in "AB" for name in counted]
    return Table(("subset", *sides, "both", "other task", "only A", "only B"), tuple(rows))


def _figures(
    pair: JSON, subset: str, figures: Sequence[Difference], units: Mapping[str, Metric]
) -> Iterator[Block]:
    where = f"All subsets ({figures[0].subsets})" if subset == ALL else subset
    users = plural(max(figure.users for figure in figures), "user")
    yield Heading(f"{where}: A minus B on {users}", folded=True)
    yield from _forest(pair["a"], pair["b"], figures, units)
    unit = " (%)" if all(metric.unit is None for metric in units.values()) else ""
    for is_exploratory, heads in (
        (False, ("primary", "95 % simultaneous", "p (adjusted)")),
        (True, ("exploratory", "95 % interval", "p (not corrected)")),
    ):
        rows = [figure for figure in figures if figure.exploratory is is_exploratory]
        if rows:
            chance = ["chance"] * any(
                figure.chance is not None for figure in rows if not is_exploratory
            )
            columns = (heads[0], f"A{unit}", f"B{unit}", *chance, "A - B", *heads[1:], *AGREEMENT)
            yield Table(
                columns,
                tuple(
                    _figure_row(figure, units[figure.metric], bool(chance), not unit)
                    for figure in rows
                ),
            )


def _figure_row(
    figure: Difference, metric: Metric, chance: bool, named: bool
) -> tuple[str | Cell, ...]:
    """Return a row, with the metric's unit after its name if it is `named`, since not all have the
    same."""
    p = figure.p if figure.exploratory else figure.p_adjusted
    span = "n/a" if figure.difference is None else "too few"
    if bounds := _interval(figure):
        span = "~" * figure.approximate + " to ".join(
            metric.text(bound, signed=True) for bound in bounds
        )
    given = [f"as given {metric.text(value)}" for value in (figure.given or {}).values()] or [
        "",
        "",
    ]
    counts = figure.a_better, figure.equal, figure.b_better
    return (
        f"{figure.compared}, {metric.shown_unit}" if named else figure.compared,
        *(
            Cell(metric.text(value), note=note)
            for value, note in zip((figure.a, figure.b), given, strict=True)
        ),
        *(
            ["" if figure.chance is None else level(metric, figure.chance, figure.chance_error)]
            if chance
            else []
        ),
        metric.text(figure.difference, signed=True),
        span,
        "n/a" if p is None else f"{p:.4f}",
        str(figure.users),
        *(f"{100 * number / figure.users:.0f} %" if figure.users else "n/a" for number in counts),
    )


def _interval(figure: Difference) -> tuple[float, float] | None:
    """Return the interval that holds for a figure: a primary one's for all of them at once."""
    return figure.ci95 if figure.exploratory else figure.ci95_simultaneous


def _most_different(pair: JSON) -> Table:
    metric = _units(pair)[pair["main"][-1]]
    rows = tuple(
        (
            user["subset"],
            user["user_id"],
            metric.name,
            _value(metric, user["difference"], signed=True),
        )
        for user in pair["most_different"]
    )
    return Table(("subset", "user", "metric", "A - B"), rows)


def _value(metric: Metric, value: float | None, *, signed: bool = False) -> Cell:
    if value is None:
        return Cell("")
    return Cell(metric.text(value, signed=signed), metric.scale * value, metric.decimals)


def _number(value: float | None, digits: int = 0, *, partial: bool = False) -> Cell:
    return Cell("" if value is None else f"{value:.{digits}f}", value, digits, partial=partial)


def _forest(
    a: str, b: str, figures: Sequence[Difference], units: Mapping[str, Metric]
) -> Iterator[Chart]:
    """Yield a chart of differences for each unit that figures have."""
    for unit in dict.fromkeys(units[figure.metric].unit for figure in figures):
        drawn = [figure for figure in figures if units[figure.metric].unit == unit]
        names, label = (
            tuple(figure.compared for figure in drawn),
            units[drawn[0].metric].difference_unit,
        )
        series = Series(
            "difference",
            tuple(figure.difference for figure in drawn),
            *ends([_interval(figure) for figure in drawn]),
        )
        yield Chart(
            "intervals", f"{a} minus {b}", names, label, "", (series,), unit is None, reference=0.0
        )


def _is_behind(figures: Sequence[Difference]) -> bool:
    """Return whether run B is better where either is: people read the better run first."""
    outcomes = {figure.outcome for figure in figures}
    return "b_better" in outcomes and "a_better" not in outcomes


def _swapped(figure: Difference) -> Difference:
    """Return a figure with the runs in the other order."""
    bounds = {
        name: interval and (-interval[1], -interval[0])
        for name, interval in (
            ("ci95", figure.ci95),
            ("ci95_simultaneous", figure.ci95_simultaneous),
        )
    }
    return structs.replace(
        figure,
        a=figure.b,
        b=figure.a,
        difference=figure.difference and -figure.difference,
        a_better=figure.b_better,
        b_better=figure.a_better,
        outcome="a_better" if figure.outcome == "b_better" else figure.outcome,
        **bounds,
    )


# Sheets


def sheets(data: JSON) -> list[Table]:
    """Return verdicts, figures, coverage and users."""
    are_shares = all(
        metric.unit is None for pair in data["pairs"] for metric in _units(pair).values()
    )
    unit = " (%)" if are_shares else ""
    columns = (
        *("subset", "metric", f"A{unit}", f"B{unit}", "A - B", "from", "to"),
        *("from (simultaneous)", "to (simultaneous)", "p (not corrected)", "p (adjusted)"),
        *(
            "users",
            "A better",
            "equal",
            "B better",
            "unit",
            "kind",
            "compared by",
            "A as given",
            "B as given",
        ),
        "approximate",
    )
    spans = ("Differences of shares in points; from, to: 95 % interval.",)
    return [
        _sheet(
            "Verdicts",
            data,
            lambda pair: Table(("", "in words"), tuple(_words(pair))),
            tuple(_method(data)),
        ),
        _sheet("Figures", data, lambda pair: Table(columns, tuple(_sheet_rows(pair))), spans),
        _sheet("Coverage", data, _coverage),
        _sheet("Users", data, _most_different),
    ]


def _sheet(
    title: str, data: JSON, table: Callable[[JSON], Table], notes: tuple[str, ...] = ()
) -> Table:
    """Return the tables of all pairs below one another, each row after the names of its runs."""
    tables = [(pair, table(pair)) for pair in data["pairs"]]
    rows = tuple((pair["a"], pair["b"], *row) for pair, of_pair in tables for row in of_pair.rows)
    return Table(("A", "B", *tables[0][1].columns), rows, title, notes)


def _words(pair: JSON) -> Iterator[tuple[str, str]]:
    kinds = {
        "warning": pair["warnings"],
        "coverage": _coverage_notes(pair),
        "verdict": pair["verdicts"],
    }
    return ((kind, words) for kind, sentences in kinds.items() for words in sentences)


def _sheet_rows(pair: JSON) -> Iterator[tuple[str | Cell, ...]]:
    units = _units(pair)
    for figure in _figures_of(pair):
        metric, given = units[figure.metric], figure.given or {"a": figure.a, "b": figure.b}
        bounds = (*(figure.ci95 or (None, None)), *(figure.ci95_simultaneous or (None, None)))
        yield (
            figure.subset,
            metric.name,
            *(_value(metric, value) for value in (figure.a, figure.b, figure.difference, *bounds)),
            *(_number(p, 4) for p in (figure.p, figure.p_adjusted)),
            *map(_number, (figure.users, figure.a_better, figure.equal, figure.b_better)),
            metric.shown_unit,
            "exploratory" if figure.exploratory else "primary",
            figure.compared,
            *(_value(metric, value) for value in given.values()),
            "~" if figure.ci95 and figure.approximate else "",
        )
