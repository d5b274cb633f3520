"""A report for people: in one line, as blocks for text and pages, and as a page.

What is looked at first comes first: headline figures, coverage, cost, who answered. The rest is
below folded headings. All of it is made of the report alone, so that it can be made again without
the benchmark's code.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import orjson
from msgspec import UNSET, structs

from harness.benchmark import ROUNDING, Benchmark, Metric, metrics_of
from harness.benchmarks import registry, usage
from harness.benchmarks.rendering import called, intervals, numbers, spanned
from harness.cost import each, money_text
from harness.document import (
    CHANCE,
    Block,
    Chart,
    Heading,
    Page,
    Paragraph,
    Quote,
    Series,
    Table,
    Tile,
    Verbatim,
    without_empty_columns,
)
from harness.model import RUN_FACTS
from harness.printable import short_hash
from harness.scoring.intervals import FEWEST, FEWEST_AT_ALL, FEWEST_UNTIED
from harness.scoring.reports import Component, Diagnostics, Figure, Report, Value

APPROXIMATE = (
    f"~: not shown to hold, only the order of magnitude: fewer than {FEWEST} users, fewer than"
    f" {FEWEST_UNTIED} whose value is not the most common one, or a few outliers that decide."
)


# One line


def covered(report: Report) -> str:
    """Return `38 of 40 users (INCOMPLETE), synthetic`, and with repeats how many plays of these
    users are scored."""
    users = _scored_users(report)
    if not report.coverage.complete:
        users += " (INCOMPLETE)"

    return ", ".join([users, *_marks(report)])


def _marks(report: Report) -> Iterator[str]:
    """Yield what must be known of all figures of a report, whoever is scored."""
    if report.is_limited:
        yield _limits(report)
    if report.is_synthetic:
        yield "synthetic"


def _scored_users(report: Report) -> str:
    coverage, repeats = report.coverage, report.repeats
    users = f"{coverage.scored_users} of {coverage.expected_users} {report.user}s"
    if repeats is UNSET:
        return users

    return f"{users}, {repeats.scored} of {repeats.expected} repeats"


def headline(report: Report) -> str:
    """Return the main figures on one line, how many answers are invalid, and what they cost."""
    figures = []
    for figure in report.figures:
        notes = "; ".join(notes_on(figure))
        value = f"{figure.name} {with_unit(figure.metric, figure.shown.value)}"
        figures.append(f"{value} ({notes})" if notes else value)

    texts = [", ".join(figures), _invalid(report), breaking(report.diagnostics)]
    if report.cost and report.cost.money:
        texts.append(f"cost {money_text([report.cost.money])}")

    return "; ".join(filter(None, texts))


def in_brief(report: Report) -> dict[str, str]:
    """Return the main figures without notes, by the head of their column in a table of runs."""
    cells = {}
    for figure in report.figures:
        ranked_by = figure.name.removeprefix(figure.metric.name).strip()
        value = figure.metric.text(figure.shown.value)
        head = f"{figure.metric.name}, {figure.metric.shown_unit}"
        cells[head] = f"{value} {ranked_by}" if ranked_by else value

    return cells


def notes_on(figure: Figure) -> Iterator[str]:
    """Yield what a reader of a figure must know: the published one where it is another, the chance
    level, the bias."""
    metric = figure.metric
    published = figure.published.value
    if metric.text(published) != metric.text(figure.shown.value):
        yield f"as given {with_unit(metric, published)}"
    if figure.chance is not None:
        yield f"chance {with_unit(metric, figure.chance, figure.chance_error)}"
    if figure.bias is not None:
        yield f"bias {metric.text(figure.bias, signed=True)} {metric.difference_unit}"


def running(benchmark: Benchmark, figures: Mapping[str, float | None]) -> str:
    """Return running figures on one line."""
    units = metrics_of(benchmark)
    return ", ".join(f"{name} {with_unit(units[name], value)}" for name, value in figures.items())


def with_unit(
    metric: Metric,
    value: float | None,
    error: float | None = None,
) -> str:
    """Return a value with its unit, and its standard error before that, if there is one."""
    if value is None:
        return metric.text(value)

    space = "" if metric.unit is None else " "
    return f"{level(metric, value, error)}{space}{metric.shown_unit}"


def level(
    metric: Metric,
    value: float,
    error: float | None,
) -> str:
    """Return a chance level as text, with the standard error of one that is drawn."""
    if error:
        return f"{metric.text(value)} ± {metric.text(error)}"

    return metric.text(value)


def breaking(diagnostics: Diagnostics) -> str:
    """Return `990 of 990 answers break the rules of the task (more_tags 990)`; empty if none
    does."""
    rules = "the rules of the task"
    return _counted(diagnostics.breaches or {}, diagnostics.answers, "breaks", "break", rules)


def sentence_on_invalid(invalid: Mapping[str, int], answers: int) -> str:
    """Return `12 of 100 answers are invalid (no_day 10, refusal 2)`, the most frequent kind first;
    empty if none is."""
    return _counted(invalid, answers, "is", "are", "invalid")


def _invalid(report: Report) -> str:
    return sentence_on_invalid(report.diagnostics.invalid, report.diagnostics.answers)


def _counted(
    counts: Mapping[str, int],
    answers: int,
    singular: str,
    plural: str,
    what: str,
) -> str:
    total = sum(counts.values())
    if not total:
        return ""

    ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    kinds = ", ".join(f"{kind} {count}" for kind, count in ranked)
    verb = singular if total == 1 else plural

    return f"{total} of {answers} answers {verb} {what} ({kinds})"


# Pages


def page(report: Report, *, posts: bool = False) -> Page:
    """Return the page of a report, with users' own texts if `posts` are shown."""
    warning = ""
    if not report.coverage.complete:
        failed = report.coverage.failed_users
        warning = f"INCOMPLETE: {_scored_users(report)} are scored, {failed} failed"

    return Page(
        f"{called(report)} · {report.heading} ({report.subset})",
        warning,
        tuple(_tiles(report)),
        tuple(blocks(report, posts=posts)),
    )


def _tiles(report: Report) -> Iterator[Tile]:
    for figure in report.figures:
        metric = figure.metric
        value = figure.shown
        text = metric.text(value.value)
        if value.value is not None:
            text += f" {metric.shown_unit}"

        notes = list(notes_on(figure))
        if value.ci95:
            notes.insert(0, f"95 % interval {spanned(metric, value)}")

        yield Tile(figure.name, text, "; ".join(notes))

    coverage = report.coverage
    user = report.user
    marks = "; ".join([f"of {coverage.expected_users}", *_marks(report)])
    yield Tile(f"{user}s scored", str(coverage.scored_users), marks)
    if report.cost and report.cost.money:
        per_user = money_text(each([report.cost.money], coverage.scored_users))
        yield Tile("cost", money_text([report.cost.money]), per_user and f"{per_user} a {user}")


# Blocks


def blocks(report: Report, *, posts: bool = False) -> Iterator[Block]:
    """Yield the report for people, in order, with users' own texts if `posts` are shown."""
    yield Heading(f"{report.heading} ({report.subset}): {report.model}")
    yield Paragraph(f"Model {report.model}, run {report.name}, subset {report.subset}.")
    yield from map(Paragraph, report.notes)
    if report.coverage.complete:
        yield from _headline(report)
        yield from _coverage(report)
    else:  # this must be read before any number
        yield from _coverage(report)
        yield from _headline(report)

    yield from _all_metrics(report)
    if report.distribution:
        yield Heading("Distribution", folded=True)
        for name, counts in report.distribution.items():
            yield _histogram(report.units[name], counts, report.user)

    yield from _repeats(report)
    yield from _diagnostics(report)
    yield from _intervals(report)
    yield from _about_run(report)
    yield from _usage(report)
    sections = list(shown_blocks(report.sections, posts=posts))
    if sections and not isinstance(sections[0], Heading):
        yield Heading(f"More on {report.heading}", folded=True)

    for block in sections:
        if isinstance(block, Heading):
            block = structs.replace(block, folded=True)

        yield block


def text_blocks(report: Report) -> Iterator[Block]:
    """Yield the report as a text file has it: what is looked at first, the metrics, what they are
    of, and what the benchmark says first. The rest is in the JSON report and on the page."""
    for block in blocks(report):
        # What pages fold is not looked at first.
        if isinstance(block, Heading) and block.folded:
            break

        yield block

    values = shown(report)
    for name in values.keys() - report.ranked_metrics:
        del values[name]

    yield Heading("The metrics")
    yield _table(report, values)
    yield from _lower_is_better(report, report.metrics)
    yield from _repeats(report)
    yield from _diagnostics(report)
    yield from _intervals(report)
    yield from _about_run(report)
    yield from _usage(report)
    yield from _first_and_verbatim(shown_blocks(report.sections, posts=False))


def _first_and_verbatim(sections: Iterable[Block]) -> Iterator[Block]:
    """Yield the first section of a benchmark, and the texts that other programs read, below their
    headings."""
    heading: Block | None = None
    for number, block in enumerate(sections):
        if isinstance(block, Heading) and number:
            heading = block
        elif heading is None:
            yield block
        elif isinstance(block, Verbatim):
            yield heading
            yield block


def shown_blocks(blocks: Iterable[Block], *, posts: bool) -> Iterator[Block]:
    """Yield blocks, without users' own texts unless `posts` are shown."""
    for block in blocks:
        is_private = isinstance(block, Quote) and block.private
        if posts or not is_private:
            yield block


def _headline(report: Report) -> Iterator[Block]:
    """Yield the headline figures as a picture for each unit, and as a table."""
    values = {figure.metric.name: figure.shown for figure in report.figures}
    yield Heading("Headline figures")
    yield from _pictures(report, report.name, values)
    yield _table(report, values)
    if any(value.approximate for value in values.values()):
        yield Paragraph("~: only the order of magnitude of an interval (see Intervals).")

    if any(figure.name != figure.metric.name for figure in report.figures):
        yield Paragraph(
            "Some answers break the rules of the task: figures that such answers cannot win rank"
            " the run. Those of the answers as given are next to them."
        )

    if report.chance:
        yield Paragraph(
            "Chance: what random answers to the same tasks have on average, with the standard error"
            " (±) where it is drawn; no request was sent for it. A figure near it shows no skill."
        )


def _coverage(report: Report) -> Iterator[Block]:
    """Yield who is scored, what failed and is invalid, what it cost, and who answered."""
    user = report.user
    users = _scored_users(report)
    limits = _limits(report)
    title = "Coverage: complete"
    drawn = ""
    if limits:
        run = report.run
        title += f" (of {limits})"
        drawn = (
            f" This is {limits} of the {run['users_in_tasks']} {user}s in the tasks file, drawn"
            f" with seed {run['sample_seed']}."
        )

    if report.coverage.complete:
        yield Heading(title)
        yield Paragraph(f"{users} are scored.{drawn}")
    else:
        order = ""
        if report.run:
            order = f", and {user}s with few steps are scored before those with many"

        yield Heading(f"INCOMPLETE: {users}")
        yield Paragraph(
            f"{users} are scored; {_missing(report)}.{drawn} Every figure is over the scored"
            f" {user}s only{order}."
        )
        yield from _bounds(report)

    invalid = _invalid(report)
    if invalid:
        yield Paragraph(f"{invalid}. {report.invalid_as}.")

    broken_rules = breaking(report.diagnostics)
    if broken_rules:
        yield Paragraph(f"{broken_rules}.")

    if report.cost:
        *_, cost = usage.billed(report.cost, report.coverage.scored_users, user)
        yield Paragraph(cost)

    if report.replies:
        for sentence in report.replies.sentences():
            yield Paragraph(f"{sentence[0].upper()}{sentence[1:]}.")


def _limits(report: Report) -> str:
    """Return what part of the users in the tasks file was selected; empty for all of them."""
    limit, part = report.run.get("limit"), report.run.get("part")
    limits = [f"part {part}"] if part else []
    if report.share != 1.0:
        limits.append(f"a share of {report.share:g}" if limit is None else f"a limit of {limit}")

    return " of ".join(limits)


def _missing(report: Report) -> str:
    coverage, repeats = report.coverage, report.repeats
    if repeats is UNSET:
        missing = coverage.expected_users - coverage.scored_users
        return f"{missing} are missing, of whom {coverage.failed_users} failed and are not scored"

    missing = repeats.expected - repeats.scored
    failed = f"{report.user}s with failed ones, which are not scored: {coverage.failed_users}"

    return f"repeats missing: {missing}; {failed}"


def _bounds(report: Report) -> Iterator[Block]:
    """Yield what the missing users could still make of each mean, where the metrics have bounds."""
    if report.bounds is None:
        yield Paragraph(
            "These figures are no means, so no lowest or highest value can be given for the"
            f" missing {report.user}s: the figures change once they are scored."
        )
        return

    yield Paragraph(
        "Lowest and highest: the mean if all who are missing had the lowest value (of a share 0) or"
        " the highest (100 %)."
    )
    rows = []
    for name, ends in report.bounds.items():
        metric = report.units[name]
        values = (report.metrics[name].value, *ends)
        rows.append((name, metric.shown_unit, *map(metric.text, values)))

    yield Table(("metric", "unit", "mean", "lowest", "highest"), tuple(rows))


def _all_metrics(report: Report) -> Iterator[Block]:
    """Yield every figure with its interval, and pictures of the metrics."""
    values = shown(report)
    yield Heading("All metrics", folded=True)
    yield _table(report, values)
    if report.bias:
        yield Paragraph(
            f"Bias: how far the mean over other samples of so many {report.user}s is from that of"
            " infinitely many, by the jackknife. Only runs of as many compare."
        )

    yield from _about_metrics(report, values)
    yield from _pictures(report, report.name, report.metrics)


def _about_metrics(report: Report, values: Mapping[str, Value]) -> Iterator[Block]:
    """Yield the smallest differences that a comparison shows, which metrics are better if lower,
    and which are ranked by another."""
    detectable = []
    for name, difference in report.detectable.items():
        metric = report.units[name]
        detectable.append(f"{name} {metric.text(difference)} {metric.difference_unit}")

    if detectable:
        yield Paragraph(
            f"The smallest difference that a comparison shows with these {report.user}s, at 5 %"
            " with a power of 80 %, if the other run varies as much and is not correlated with this"
            f" one: {', '.join(detectable)}."
        )

    yield from _lower_is_better(report, values)
    ranked_by_others = []
    for name in report.values:
        ranked_by = report.units[name].ranked_by
        if ranked_by in values:
            ranked_by_others.append(f"{name} by {ranked_by}")

    if ranked_by_others:
        yield Paragraph(
            "Some answers break the rules of the task. `stats` and `compare` rank runs by figures"
            f" that such answers cannot win: {', '.join(ranked_by_others)}."
        )


def _lower_is_better(report: Report, names: Iterable[str]) -> Iterator[Block]:
    lower = [name for name in names if report.units[name].lower_is_better]
    if lower:
        yield Paragraph(f"Lower is better: {', '.join(lower)}.")


def shown(report: Report) -> dict[str, Value]:
    """Return the values without those that rank a metric and are equal to it."""
    values = dict(report.values)
    for name, value in report.values.items():
        ranked_by = report.units[name].ranked_by
        ranking_value = report.values.get(ranked_by)
        if ranking_value and ranking_value.value == value.value:
            values.pop(ranked_by, None)

    return values


def _table(report: Report, values: Mapping[str, Value]) -> Table:
    """Return figures with what a reader must know of them; without columns that are empty."""
    headings = (
        *("metric", "unit", "value", "95 % interval", f"{report.user}s"),
        *(CHANCE, "bias", "as given"),
    )
    rows = [_table_row(report, name, value) for name, value in values.items()]
    return without_empty_columns(Table(headings, tuple(rows)))


def _table_row(
    report: Report,
    name: str,
    value: Value,
) -> tuple[str, ...]:
    metric = report.units[name]
    figure = report.figure(name)
    chance = bias = ""
    if figure.chance is not None:
        chance = level(metric, figure.chance, figure.chance_error)
    if figure.bias is not None:
        bias = metric.text(figure.bias, signed=True)

    text = metric.text(value.value)
    published = metric.text(figure.published.value)

    return (
        figure.name if value is figure.shown else name,
        metric.shown_unit,
        text,
        _span(report, metric, value),
        str(value.users),
        chance,
        bias,
        "" if published == text else published,
    )


def _pictures(
    report: Report,
    series: str,
    values: Mapping[str, Value],
) -> Iterator[Chart]:
    """Yield a chart of figures with their intervals and chance levels for each unit."""
    by_unit: dict[str | None, list[str]] = {}
    for name in values:
        by_unit.setdefault(report.units[name].unit, []).append(name)

    for names in by_unit.values():
        chart = intervals(", ".join(names), report.units[names[0]], {series: values}, names)
        labels = []
        for name in names:
            figure = report.figure(name)
            labels.append(figure.name if values[name] is figure.shown else name)

        all_series = chart.series
        levels = tuple(map(report.chance.get, names))
        if set(levels) != {None}:
            all_series = (*all_series, Series(CHANCE, levels))

        yield structs.replace(chart, x=tuple(labels), series=all_series)


def _span(
    report: Report,
    metric: Metric,
    value: Value,
) -> str:
    """Return an interval; a secondary metric of a benchmark with intervals of its own has none,
    whatever the users."""
    has_interval = report.intervals_over is not None or metric.name in report.metrics
    if has_interval or value.ci95:
        return spanned(metric, value)

    return "n/a"


def _histogram(
    metric: Metric,
    counts: Sequence[int],
    user: str,
) -> Chart:
    low, high = (float(bound or 0.0) for bound in metric.bounds or (0.0, 1.0))
    edges = []
    for number in range(len(counts) + 1):
        edge = low + (high - low) * number / len(counts)
        edges.append(metric.scale * edge)

    return Chart(
        "histogram",
        f"{metric.name} by {user}",
        x=tuple(edges),
        x_label=f"{metric.name}, {metric.shown_unit}",
        y_label=f"{user}s",
        series=(Series(f"{user}s", tuple(counts)),),
        percent=False,
    )


def _repeats(report: Report) -> Iterator[Block]:
    """Yield how far users differ, how far a user's answers do, and what more repeats would do."""
    section, user = report.repeats, report.user
    if section is UNSET:
        return

    yield Heading("Repeats", folded=True)
    yield Paragraph(
        f"Each {user} is played {section.repeats} times, independently; its value is the mean over"
        " its repeats."
    )
    if not section.components:
        yield Paragraph(
            f"Variances within {user}s are not estimated: no {user} has two answers, or too"
            " many do."
        )
        return

    yield Paragraph(
        "More repeats shorten the interval of a mean, but only as far as answers of the same"
        f" {user} differ: by `shrinks at most`, however many they are, and to the length in the"
        " last column (100 % is now) with twice as many. The first columns are variances, in the"
        " square of the metric's unit (of a share: as a fraction), by one-way analysis of variance"
        " with random effects."
    )
    rows = []
    for name, component in section.components.items():
        if name in report.metrics:
            rows.append(_component_row(name, component))

    columns = (
        "metric",
        f"between {user}s",
        "within",
        "shrinks at most",
        f"with {2 * section.repeats} repeats",
    )
    yield Table(columns, tuple(rows))


def _component_row(name: str, component: Component) -> tuple[str, ...]:
    between = _without_rounding(component.between)
    within = _without_rounding(component.within)
    removable = doubled = "n/a"
    # Shares of rounding say nothing.
    if between or within:
        removable = _percent(component.removable)
        doubled = _percent(component.doubled)

    return name, f"{between:.3g}", f"{within:.3g}", removable, doubled


def _without_rounding(variance: float) -> float:
    return variance if variance > ROUNDING**2 else 0.0


def _percent(share: float | None) -> str:
    return "n/a" if share is None else f"{100 * share:.1f} %"


def _diagnostics(report: Report) -> Iterator[Block]:
    counts = report.diagnostics
    yield Heading("Diagnostics", folded=True)
    yield numbers(
        ("answers", counts.answers),
        ("valid answers", counts.valid_answers),
        ("invalid answers", sum(counts.invalid.values())),
        *((f"- {kind}", number) for kind, number in counts.invalid.items()),
        *((f"repaired: {kind}", number) for kind, number in counts.repaired.items()),
    )


def _intervals(report: Report) -> Iterator[Block]:
    if report.intervals_over is not None:
        yield Heading("Intervals", folded=True)
        yield Paragraph(
            f"95 %, Student's t over {report.intervals_over} with the skewness taken out (Hall"
            f" 1992). They cover the choice of {report.user}s and of their answers, not what all"
            f" answers of a run have in common. {APPROXIMATE} Too few: fewer than {FEWEST_AT_ALL}"
            f" {report.user}s, or all have the same value."
        )


def _about_run(report: Report) -> Iterator[Block]:
    """Yield prompt, settings and tasks; the latter only where the run's manifest is known."""
    run = report.run
    prompt = report.prompt
    if prompt == "own":
        is_shipped = registry.is_shipped(report.benchmark)
        prompt = "this harness's own" if is_shipped else "the benchmark's own"

    yield Heading("What was run", folded=True)
    yield Paragraph(f"Prompt: {prompt} (prompt version {report.prompt_version}).")
    if run:
        settings = [_setting(name, value) for name, value in run.items() if name not in RUN_FACTS]
        yield Paragraph(
            f"Settings: {', '.join(settings)}. Tasks: {run['tasks']}, {run['users_in_tasks']}"
            f" {report.user}s, SHA-256 {short_hash(run['tasks_sha256'])} Endpoint:"
            f" {run['endpoint']}. Harness {run['harness']}, run begun {run['created']}."
        )


def _setting(name: str, value: object) -> str:
    text = plain(value)
    if name.endswith("_sha256"):
        text = short_hash(text)

    return f"{name} {text}"


def plain(value: object) -> str:
    return value if isinstance(value, str) else orjson.dumps(value).decode()


def _usage(report: Report) -> Iterator[Block]:
    yield Heading("Usage", folded=True)
    yield Paragraph(usage.tokens(report.usage))
    if report.cost:
        *details, _ = usage.billed(report.cost, report.coverage.scored_users, report.user)
        yield Paragraph(" ".join(details))

    session = usage.session(report.schedule, report.user)
    if session:
        yield Paragraph(session)
