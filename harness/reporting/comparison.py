"""The result of `compare` as blocks and as sheets. Made of its JSON alone.

Of each pair of runs the verdicts come first, with a chart and what a reader must not miss. The rest
is folded: who has which users, what differs other than the model, all figures, and how they are
computed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain

from msgspec import convert, structs

from harness.benchmark import VALID, Metric
from harness.benchmarks.rendering import ends
from harness.document import (
    CHANCE,
    Block,
    Cell,
    Chart,
    Heading,
    Paragraph,
    Series,
    Table,
    without_empty_columns,
)
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


def summary(data: JSON, hint: str = "") -> Iterator[Block]:
    """Yield what is shown first; `hint` is where to find the rest."""
    costs = [f"{run['name']} {run['cost']}" for run in data["runs"] if "cost" in run]
    cost = f"Cost: {', '.join(costs)}." if costs else ""
    pairs = data["pairs"]
    for pair in pairs:
        if len(pairs) > 1:
            yield Heading(f"{pair['a']} and {pair['b']}")

        primary = _primary(pair)
        yield from _verdicts(pair, primary)
        sentences = ["; ".join(_remarks(pair, primary)) + "."]
        # Both are about all runs, so they are there once.
        if pair is pairs[-1]:
            sentences += filter(None, (cost, hint))

        yield Paragraph(" ".join(sentences))


def _verdicts(pair: JSON, primary: Sequence[Difference]) -> Iterator[Block]:
    """Yield a sentence for each primary figure, and a picture of those that differ."""
    if not primary:
        yield from map(Paragraph, pair["verdicts"])

    units = _units(pair)
    first, second = pair["a"], pair["b"]
    # People read the better run first.
    if _is_behind(primary):
        first, second = second, first
        primary = list(map(_swapped, primary))

    for figure in primary:
        yield Paragraph(verdict(figure, units[figure.metric], first, second))

    differing = [figure for figure in primary if figure.outcome != "same"]
    yield from _forest(first, second, differing, units)


def blocks(data: JSON) -> Iterator[Block]:
    """Yield everything, one pair of runs after the other."""
    yield from summary(data)
    yield Heading("Runs compared", folded=True)
    yield from _runs(data["runs"])
    for pair in data["pairs"]:
        yield from _pair(pair)

    yield Heading("How this is computed", folded=True)
    yield from map(Paragraph, _method(data))


def _runs(runs: Sequence[JSON]) -> Iterator[Block]:
    rows = []
    for run in runs:
        rows.append((run["name"], run["benchmark"], run["model"] or "not known", run["subsets"]))

    yield Table(("run", "benchmark", "model", "subsets"), tuple(rows))
    for run in runs:
        for sentence in convert(run.get("replies", {}), ReplyFacts).sentences():
            yield Paragraph(f"{run['name']}: {sentence}.")


def _pair(pair: JSON) -> Iterator[Block]:
    """Yield who has which users, all figures, and the users that differ most, of two runs."""
    units = _units(pair)
    yield Heading(f"{pair['a']} (A) and {pair['b']} (B): users", folded=True)
    yield _coverage(pair)
    yield from map(Paragraph, pair["warnings"])
    yield from map(Paragraph, _coverage_notes(pair))
    for figure in _primary(pair):
        yield from map(Paragraph, reservations(figure, units[figure.metric], pair))

    by_subset: dict[str, list[Difference]] = {}
    for figure in _figures_of(pair):
        by_subset.setdefault(figure.subset, []).append(figure)

    # Over all subsets first, since the verdicts are about that.
    for subset in sorted(by_subset, key=lambda name: name != ALL):
        yield from _figures(pair, subset, by_subset[subset], units)

    if pair["most_different"]:
        yield Heading(f"Users that differ most in {pair['main'][-1]}", folded=True)
        yield _most_different(pair)


def non_inferiority(pair: JSON, gate: JSON) -> str:
    """Return in a sentence whether A is not worse than B by more than a margin."""
    metric = _units(pair)[gate["metric"]]
    [figure] = [figure for figure in _primary(pair) if figure.metric == metric.name]
    claim = {
        "not_worse": f"{pair['a']} is not worse than {pair['b']}",
        "worse": f"{pair['a']} is worse than {pair['b']}",
        "unknown": f"These users cannot say whether {pair['a']} is worse than {pair['b']}",
    }[gate["answer"]]
    bounds = "no interval holds"
    if gate["bounds"]:
        ends = " and ".join(metric.text(end, signed=True) for end in gate["bounds"])
        bounds = f"one-sided 95 % bounds {ends}"
        if figure.approximate:
            bounds = f"one-sided 95 % bounds ~{ends}, of which none is shown to hold with so few"
            bounds += " users"

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


def _primary(pair: JSON) -> list[Difference]:
    return [figure for figure in _figures_of(pair) if not figure.exploratory]


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

        shares = {row[side]["ratio"] for row in pair["coverage"]} - {None, 1}
        if shares:
            listed = ", ".join(f"{share:g}" for share in sorted(shares))
            yield f"{pair[side]} was run on a share of its tasks ({listed})"

        only_here = sum(row[f"only_{side}"]["users"] for row in pair["coverage"])
        if only_here:
            yield f"{plural(only_here, 'user')} of {pair[side]} not in {pair[other]}"

    for sentence in pair["left_out"]:
        yield sentence.rstrip(".")

    changed = []
    for figure in primary:
        if figure.missing_users not in (None, "cannot_change"):
            changed.append(figure.compared)

    if changed:
        yield f"missing users could change {' and '.join(changed)}"

    shares_a, shares_b = _invalid(pair, "a"), _invalid(pair, "b")
    if shares_a or shares_b:
        yield (
            f"invalid answers: {pair['a']} {100 * shares_a:.1f} %, {pair['b']}"
            f" {100 * shares_b:.1f} %"
        )

    yield from _differences_of_runs(pair["warnings"])


def _differences_of_runs(warnings: Sequence[str]) -> Iterator[str]:
    """Yield what differs other than the model, and whether tasks are synthetic, in a few words."""
    names: dict[str, None] = {}
    is_synthetic = False
    for warning in warnings:
        is_synthetic |= "synthetic" in warning and NO_REPORT not in warning
        _, marker, difference = warning.rpartition(NOT_ALIKE)
        if marker:
            names[difference.split()[0]] = None

    if names:
        yield f"not alike: {', '.join(names)}"
    if is_synthetic:
        yield "synthetic tasks"


def _invalid(pair: JSON, side: str) -> float:
    """Return the share of invalid answers of the users that both have."""
    total = valid = 0
    for row in pair["coverage"]:
        counts = row[side]["answers_on_common"]
        total += sum(counts.values())
        valid += counts.get(VALID, 0)

    return 1 - valid / total if total else 0.0


def _is_partial(covered: JSON) -> bool:
    return covered["expected"] is not None and covered["scored"] < covered["expected"]


def _coverage_notes(pair: JSON) -> Iterator[str]:
    """Yield what the numbers of users mean for the comparison."""
    yield from pair["left_out"]
    for row in pair["coverage"]:
        for side, other, on_common in zip("ab", "ba", row["on_common"], strict=True):
            if row[side]["unsound"]:
                lines = plural(row[side]["unsound"], "line")
                yield (
                    f"{row['subset']}: {lines} of {pair[side]}'s results left out as not sound"
                    " (`verify` lists them)."
                )

            only_here = row[f"only_{side}"]
            if only_here["users"]:
                users = plural(only_here["users"], "user")
                means = ", ".join(_means(pair, only_here["figures"], on_common))
                yield (
                    f"{row['subset']}: {users} of {pair[side]} not in {pair[other]}, so in no"
                    f" figure. Their figures, against those of the users of both: {means}."
                )


def _means(
    pair: JSON,
    only_here: Mapping[str, float | None],
    on_common: Mapping[str, float | None],
) -> Iterator[str]:
    """Yield each main figure of the users that one run alone has, and of those that both have."""
    units = _units(pair)
    for name in pair["main"]:
        value = with_unit(units[name], only_here[name])
        value_on_common = with_unit(units[name], on_common[name])
        yield f"{name} {value} against {value_on_common}"


# Tables


def _coverage(pair: JSON) -> Table:
    """Return how many users each run has on each subset; an asterisk marks a run that has not
    scored all of its own."""
    rows = []
    for row in pair["coverage"]:
        cells = [row["subset"]]
        for covered in (row["a"], row["b"]):
            cells.append(_number(covered["scored"], partial=_is_partial(covered)))
            cells += map(_number, (covered["expected"], covered["failed"]))
            cells.append(_number(covered["users_in_tasks"]))

        cells += map(_number, (row["common"], row["other_tasks"]))
        cells += map(_number, (row["only_a"]["users"], row["only_b"]["users"]))
        rows.append(tuple(cells))

    columns = (
        "subset",
        *("A scored", "A expected", "A failed", "A users in tasks"),
        *("B scored", "B expected", "B failed", "B users in tasks"),
        *("both", "other task", "only A", "only B"),
    )

    return Table(columns, tuple(rows))


def _figures(
    pair: JSON,
    subset: str,
    figures: Sequence[Difference],
    units: Mapping[str, Metric],
) -> Iterator[Block]:
    where = f"All subsets ({figures[0].subsets})" if subset == ALL else subset
    users = plural(max(figure.users for figure in figures), "user")
    yield Heading(f"{where}: A minus B on {users}", folded=True)
    yield from _forest(pair["a"], pair["b"], figures, units)
    unit = _common_unit(units.values())
    for is_exploratory, kind, interval, p in (
        (False, "primary", "95 % simultaneous", "p (adjusted)"),
        (True, "exploratory", "95 % interval", "p (not corrected)"),
    ):
        rows = []
        for figure in figures:
            if figure.exploratory is is_exploratory:
                rows.append(_figure_row(figure, units[figure.metric], has_unit=not unit))

        if rows:
            columns = (kind, f"A{unit}", f"B{unit}", CHANCE, "A - B", interval, p, *AGREEMENT)
            # Most benchmarks have no chance levels.
            yield without_empty_columns(Table(columns, tuple(rows)))


def _common_unit(metrics: Iterable[Metric]) -> str:
    """Return the unit of all columns of figures; empty where metrics differ in theirs."""
    return " (%)" if all(metric.unit is None for metric in metrics) else ""


def _figure_row(
    figure: Difference,
    metric: Metric,
    *,
    has_unit: bool,
) -> tuple[str | Cell, ...]:
    """Return a row; it `has_unit` after the metric's name where not all metrics have the same."""
    name = figure.compared
    if has_unit:
        name = f"{name}, {metric.shown_unit}"

    notes = [f"as given {metric.text(value)}" for value in (figure.given or {}).values()]
    note_a, note_b = notes or ("", "")
    chance = ""
    p = figure.p
    if not figure.exploratory:
        p = figure.p_adjusted
        if figure.chance is not None:
            chance = level(metric, figure.chance, figure.chance_error)

    shares = ["n/a"] * 3
    if figure.users:
        counts = (figure.a_better, figure.equal, figure.b_better)
        shares = [f"{100 * count / figure.users:.0f} %" for count in counts]

    return (
        name,
        Cell(metric.text(figure.a), note=note_a),
        Cell(metric.text(figure.b), note=note_b),
        chance,
        metric.text(figure.difference, signed=True),
        _interval_text(figure, metric),
        "n/a" if p is None else f"{p:.4f}",
        str(figure.users),
        *shares,
    )


def _interval_text(figure: Difference, metric: Metric) -> str:
    bounds = _interval(figure)
    if bounds:
        ends = " to ".join(metric.text(bound, signed=True) for bound in bounds)
        return "~" * figure.approximate + ends

    return "n/a" if figure.difference is None else "too few"


def _interval(figure: Difference) -> tuple[float, float] | None:
    """Return the interval that holds for a figure: a primary one's for all of them at once."""
    return figure.ci95 if figure.exploratory else figure.ci95_simultaneous


def _most_different(pair: JSON) -> Table:
    metric = _units(pair)[pair["main"][-1]]
    rows = []
    for user in pair["most_different"]:
        difference = _value(metric, user["difference"], signed=True)
        rows.append((user["subset"], user["user_id"], metric.name, difference))

    return Table(("subset", "user", "metric", "A - B"), tuple(rows))


def _value(
    metric: Metric,
    value: float | None,
    *,
    signed: bool = False,
) -> Cell:
    if value is None:
        return Cell("")

    return Cell(metric.text(value, signed=signed), metric.scale * value, metric.decimals)


def _number(
    value: float | None,
    digits: int = 0,
    *,
    partial: bool = False,
) -> Cell:
    return Cell("" if value is None else f"{value:.{digits}f}", value, digits, partial=partial)


def _forest(
    a: str,
    b: str,
    figures: Sequence[Difference],
    units: Mapping[str, Metric],
) -> Iterator[Chart]:
    """Yield a chart of differences for each unit that figures have."""
    by_unit: dict[str | None, list[Difference]] = {}
    for figure in figures:
        by_unit.setdefault(units[figure.metric].unit, []).append(figure)

    for unit, drawn in by_unit.items():
        low, high = ends(list(map(_interval, drawn)))
        differences = tuple(figure.difference for figure in drawn)
        yield Chart(
            "intervals",
            f"{a} minus {b}",
            x=tuple(figure.compared for figure in drawn),
            x_label=units[drawn[0].metric].difference_unit,
            y_label="",
            series=(Series("difference", differences, low, high),),
            percent=unit is None,
            reference=0.0,
        )


def _is_behind(figures: Sequence[Difference]) -> bool:
    """Return whether run B is better where either is."""
    outcomes = {figure.outcome for figure in figures}
    return "b_better" in outcomes and "a_better" not in outcomes


def _swapped(figure: Difference) -> Difference:
    """Return a figure with the runs in the other order."""
    return structs.replace(
        figure,
        a=figure.b,
        b=figure.a,
        difference=figure.difference and -figure.difference,
        a_better=figure.b_better,
        b_better=figure.a_better,
        outcome="a_better" if figure.outcome == "b_better" else figure.outcome,
        ci95=_negated(figure.ci95),
        ci95_simultaneous=_negated(figure.ci95_simultaneous),
    )


def _negated(interval: tuple[float, float] | None) -> tuple[float, float] | None:
    return interval and (-interval[1], -interval[0])


# Sheets


def sheets(data: JSON) -> list[Table]:
    """Return verdicts, figures, coverage and users."""
    metrics = chain.from_iterable(_units(pair).values() for pair in data["pairs"])
    unit = _common_unit(metrics)
    columns = (
        *("subset", "metric", f"A{unit}", f"B{unit}", "A - B", "from", "to"),
        *("from (simultaneous)", "to (simultaneous)", "p (not corrected)", "p (adjusted)"),
        *("users", "A better", "equal", "B better", "unit", "kind", "compared by"),
        *("A as given", "B as given", "approximate"),
    )
    notes = ("Differences of shares in points; from, to: 95 % interval.",)

    return [
        _sheet("Verdicts", data, _sentences, tuple(_method(data))),
        _sheet("Figures", data, lambda pair: Table(columns, tuple(_sheet_rows(pair))), notes),
        _sheet("Coverage", data, _coverage),
        _sheet("Users", data, _most_different),
    ]


def _sheet(
    title: str,
    data: JSON,
    table: Callable[[JSON], Table],
    notes: tuple[str, ...] = (),
) -> Table:
    """Return the tables of all pairs below one another, each row after the names of its runs."""
    columns: tuple[str, ...] = ()
    rows = []
    for pair in data["pairs"]:
        pair_table = table(pair)
        columns = pair_table.columns
        for row in pair_table.rows:
            rows.append((pair["a"], pair["b"], *row))

    return Table(("A", "B", *columns), tuple(rows), title, notes)


def _sentences(pair: JSON) -> Table:
    rows = []
    for kind, sentences in (
        ("warning", pair["warnings"]),
        ("coverage", _coverage_notes(pair)),
        ("verdict", pair["verdicts"]),
    ):
        rows += [(kind, sentence) for sentence in sentences]

    return Table(("", "in words"), tuple(rows))


def _sheet_rows(pair: JSON) -> Iterator[tuple[str | Cell, ...]]:
    units = _units(pair)
    for figure in _figures_of(pair):
        metric = units[figure.metric]
        value = partial(_value, metric)
        given = figure.given or {"a": figure.a, "b": figure.b}
        approximate = "~" if figure.ci95 and figure.approximate else ""
        yield (
            figure.subset,
            metric.name,
            *map(value, (figure.a, figure.b, figure.difference)),
            *map(value, figure.ci95 or (None, None)),
            *map(value, figure.ci95_simultaneous or (None, None)),
            _number(figure.p, 4),
            _number(figure.p_adjusted, 4),
            *map(_number, (figure.users, figure.a_better, figure.equal, figure.b_better)),
            metric.shown_unit,
            "exploratory" if figure.exploratory else "primary",
            figure.compared,
            *map(value, given.values()),
            approximate,
        )
