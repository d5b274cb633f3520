"""A report in words, tables and pictures: for the text report and for pages.

Everything is made of the report alone, so that it can be made again without the benchmark's code.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import orjson
from msgspec import UNSET

from harness.benchmark import Benchmark, Metric, metrics_of
from harness.benchmarks import registry, usage
from harness.benchmarks.rendering import intervals, numbers, spanned
from harness.document import Block, Chart, Heading, Paragraph, Quote, Series, Table
from harness.model import RUN_FACTS
from harness.printable import short_hash
from harness.scoring.intervals import FEWEST, FEWEST_AT_ALL, FEWEST_UNTIED
from harness.scoring.reports import Diagnostics, Report, Value

CHANCE = "chance"
APPROXIMATE = (
    f"~: not shown to hold, only the order of magnitude: fewer than {FEWEST} users, fewer than {FEWEST_UNTIED} whose "
    "value is not the most common one, or a few outliers that decide."
)


def headline(report: Report) -> str:
    """Return the main figures on one line, and how many answers are invalid."""
    figures = ", ".join(_in_headline(report, report.units[name]) for name in report.headline)
    return "; ".join(filter(None, (figures, _invalid(report), breaking(report.diagnostics))))


def _in_headline(report: Report, metric: Metric) -> str:
    more = "; ".join(next_to(report, metric))
    return f"{metric.name} {with_unit(metric, report.ranking(metric).value)}{more and f' ({more})'}"


def next_to(report: Report, metric: Metric) -> Iterator[str]:
    """Yield what a reader of the figure that ranks must know: the published one where it is another, and the chance
    level."""
    given = report.values[metric.name].value
    if metric.text(given) != metric.text(report.ranking(metric).value):
        yield f"as published {with_unit(metric, given)}"
    if (chance := report.chance.get(metric.name)) is not None:
        yield f"chance {with_unit(metric, chance, report.chance_error.get(metric.name))}"
    if bias := _bias(report, metric):
        yield f"bias {bias} {metric.difference_unit}"


def _bias(report: Report, metric: Metric) -> str:
    bias = report.bias.get(metric.name)
    return "" if bias is None else metric.text(bias, signed=True)


def running(benchmark: Benchmark, figures: Mapping[str, float | None]) -> str:
    """Return running figures on one line."""
    units = metrics_of(benchmark)
    return ", ".join(f"{name} {with_unit(units[name], value)}" for name, value in figures.items())


def covered(report: Report, user: str) -> str:
    """Return `38 of 40 users`, and with repeats how many plays of these users are scored."""
    of, repeats = report.coverage, report.repeats
    users = f"{of.scored_users} of {of.expected_users} {user}s"
    return users if repeats is UNSET else f"{users}, {repeats.scored} of {repeats.expected} repeats"


def _invalid(report: Report) -> str:
    return sentence_on_invalid(report.diagnostics.invalid, report.diagnostics.answers)


def with_unit(metric: Metric, value: float | None, error: float | None = None) -> str:
    """Return a value with its unit, and its standard error before that, if there is one."""
    space = "" if metric.unit is None else " "
    return metric.text(value) if value is None else f"{level(metric, value, error)}{space}{metric.shown_unit}"


def level(metric: Metric, value: float, error: float | None) -> str:
    """Return a chance level as text, with the standard error of one that is drawn."""
    return f"{metric.text(value)}{f' ± {metric.text(error)}' if error else ''}"


def blocks(report: Report, *, posts: bool = False) -> Iterator[Block]:
    """Yield the report for people, in order, with users' own texts if `posts` are shown. Text leaves out pictures."""
    yield Heading(f"{report.heading} ({report.subset}): {report.model}")
    yield Paragraph(f"Model {report.model}, run {report.name}, subset {report.subset}.")
    yield from map(Paragraph, report.notes)
    yield from _coverage(report)
    yield Heading("What was run")
    yield from _about_run(report)
    yield from _scores(report)
    yield from _repeats(report)
    yield from _diagnostics(report)
    yield from _footing(report)
    yield from shown_blocks(report.sections, posts=posts)


def shown_blocks(blocks: Iterable[Block], *, posts: bool) -> Iterator[Block]:
    """Yield blocks, without users' own texts unless `posts` are shown."""
    return (block for block in blocks if posts or not (isinstance(block, Quote) and block.private))


def _coverage(report: Report) -> Iterator[Block]:
    """Who is scored, and how many of their answers are invalid."""
    of, user, run = report.coverage, report.user, report.run
    share, of_all, limit = run.get("ratio", 1.0), "", run.get("limit")
    users = f"{covered(report, user)} are scored"
    part = f"a share of {share:g}" if share != 1.0 else ""
    if limit is not None and limit < run["users_in_tasks"]:
        part = f"a limit of {limit}"
    if "part" in run:
        part = f"part {run['part']}{part and f' of {part}'}"
    if part:
        of_all = (
            f" This is {part} of the {run['users_in_tasks']} {user}s in the tasks file, drawn with seed "
            f"{run['sample_seed']}."
        )
    if of.complete:
        yield Heading(f"Coverage: complete{part and f' (of {part})'}")
        yield Paragraph(f"{users}.{of_all}")
    else:
        order = f", and {user}s with few steps are scored before those with many" if run else ""
        yield Heading(f"INCOMPLETE: {covered(report, user)}")
        yield Paragraph(f"{users}; {_missing(report)}.{of_all} Every figure is over the scored {user}s only{order}.")
        yield from _bounds(report)
    if words := _invalid(report):
        yield Paragraph(f"{words}. {report.invalid_as}.")
    if words := breaking(report.diagnostics):
        yield Paragraph(f"{words}.")


def _missing(report: Report) -> str:
    of, repeats = report.coverage, report.repeats
    if repeats is UNSET:
        missing = of.expected_users - of.scored_users
        return f"{missing} are missing, of whom {of.failed_users} failed and are not scored"
    missing = repeats.expected - repeats.scored
    return f"repeats missing: {missing}; {report.user}s with failed ones, which are not scored: {of.failed_users}"


def _bounds(report: Report) -> Iterator[Block]:
    """Return what the missing users could still make of each mean, where the metrics have bounds."""
    if report.bounds is None:
        yield Paragraph(
            f"These figures are no means, so no lowest or highest value can be given for the missing {report.user}s: "
            "the figures change once they are scored."
        )
        return
    units, of = report.units, report.metrics
    yield Paragraph(
        "Lowest and highest: the mean if all who are missing had the lowest value (of a share 0) or the highest "
        "(100 %)."
    )
    yield Table(
        ("metric", "unit", "mean", "lowest", "highest"),
        tuple(
            (name, units[name].shown_unit, *map(units[name].text, (of[name].value, *ends)))
            for name, ends in report.bounds.items()
        ),
    )


def _about_run(report: Report) -> Iterator[Block]:
    """Prompt, settings, tasks; the latter only where the run's manifest is known."""
    run = report.run
    maker = "this harness's" if registry.is_shipped(report.benchmark) else "the benchmark's"
    whose = f"{maker} own" if report.prompt == "own" else report.prompt
    yield Paragraph(f"Prompt: {whose} (prompt version {report.prompt_version}).")
    if run:
        settings = ", ".join(_setting(name, value) for name, value in run.items() if name not in RUN_FACTS)
        yield Paragraph(
            f"Settings: {settings}. Tasks: {run['tasks']}, {run['users_in_tasks']} {report.user}s, SHA-256 "
            f"{short_hash(run['tasks_sha256'])} Endpoint: {run['endpoint']}. Harness {run['harness']}, run begun "
            f"{run['created']}."
        )
    if report.replies:
        for words in report.replies.sentences():
            yield Paragraph(f"{words[0].upper()}{words[1:]}.")


def _setting(name: str, value: object) -> str:
    text = plain(value)
    return f"{name} {short_hash(text) if name.endswith('_sha256') else text}"


def plain(value: object) -> str:
    return value if isinstance(value, str) else orjson.dumps(value).decode()


def _scores(report: Report) -> Iterator[Block]:
    """Every figure with its interval, pictures of them, and how each is distributed over users."""
    units, values = report.units, shown(report)
    yield Heading("Scores")
    chance = [CHANCE] if report.chance else []
    bias = ["bias"] if report.bias else []
    yield Table(
        ("metric", "unit", "value", "95 % interval", f"{report.user}s", *chance, *bias),
        tuple(
            (
                *row(units[name], of, has_interval=report.intervals_over is not None or name in report.metrics),
                *(_of_chance(report, units[name]) for _ in chance),
                *(_bias(report, units[name]) for _ in bias),
            )
            for name, of in values.items()
        ),
    )
    if chance:
        yield Paragraph(
            "Chance: what random answers to the same tasks have on average, with the standard error (±) where it is "
            "drawn; no request was sent for it. A figure near it shows no skill."
        )
    if bias:
        yield Paragraph(
            f"Bias: how far the mean over other samples of so many {report.user}s is from that of infinitely many, by "
            "the jackknife. Only runs of as many compare."
        )
    if report.detectable:
        least = (f"{name} {_of_difference(units[name], value)}" for name, value in report.detectable.items())
        yield Paragraph(
            f"The smallest difference that a comparison shows with these {report.user}s, at 5 % with a power of 80 %, "
            f"if the other run varies as much and is not correlated with this one: {', '.join(least)}."
        )
    if lower := [name for name in values if units[name].lower_is_better]:
        yield Paragraph(f"Lower is better: {', '.join(lower)}.")
    if by := [f"{name} by {units[name].ranked_by}" for name in report.values if units[name].ranked_by in values]:
        yield Paragraph(
            "Some answers break the rules of the task. `stats` and `compare` rank runs by figures that such answers "
            f"cannot win: {', '.join(by)}."
        )
    by_unit: dict[str | None, list[str]] = {}
    for name in report.metrics:
        by_unit.setdefault(units[name].unit, []).append(name)
    for names in by_unit.values():
        yield intervals(", ".join(names), units[names[0]], {"value": report.metrics}, names)
    for name, counts in report.distribution.items():
        yield _histogram(units[name], counts, report.user)


def _of_chance(report: Report, metric: Metric) -> str:
    name = metric.name
    return level(metric, report.chance[name], report.chance_error.get(name)) if name in report.chance else ""


def _of_difference(metric: Metric, value: float) -> str:
    return f"{metric.text(value)} {metric.difference_unit}"


def shown(report: Report) -> dict[str, Value]:
    """Return the values without those that rank a metric and are equal to it."""
    values, same = report.values, set[str]()
    for name, metric in report.units.items():
        if (by := values.get(metric.ranked_by)) and name in values and by.value == values[name].value:
            same.add(metric.ranked_by)
    return {name: of for name, of in values.items() if name not in same}


def row(metric: Metric, of: Value, *, has_interval: bool = True) -> tuple[str, ...]:
    """Return the cells of a figure.

    A secondary metric of a benchmark with intervals of its own has none, whatever the number of users.
    """
    span = spanned(metric, of) if has_interval or of.ci95 else "n/a"
    return metric.name, metric.shown_unit, metric.text(of.value), span, str(of.users)


def _histogram(metric: Metric, counts: Sequence[int], user: str) -> Chart:
    low, high = (float(bound or 0.0) for bound in metric.bounds or (0.0, 1.0))
    edges = tuple(metric.scale * (low + (high - low) * at / len(counts)) for at in range(len(counts) + 1))
    series, label = (Series(f"{user}s", tuple(counts)),), f"{metric.name}, {metric.shown_unit}"
    return Chart("histogram", f"{metric.name} by {user}", edges, label, f"{user}s", series, percent=False)


def _repeats(report: Report) -> Iterator[Block]:
    """How far users differ, how far a user's answers do, and what more repeats would do."""
    if (of := report.repeats) is UNSET:
        return
    yield Heading("Repeats")
    yield Paragraph(
        f"Each {report.user} is played {of.repeats} times, independently; its value is the mean over its repeats."
    )
    if not of.components:
        yield Paragraph(
            f"Variances within {report.user}s are not estimated: no {report.user} has two answers, or too many do."
        )
        return
    yield Paragraph(
        f"Variances between {report.user}s and within a {report.user}'s answers, in the square of the metric's unit "
        "(of a share: as a fraction), by one-way analysis of variance with random effects. `removable` is the part of "
        "the mean's standard error that more repeats could remove at most, the last column the length of its interval "
        f"with {2 * of.repeats} repeats, compared with now."
    )
    yield Table(
        ("metric", "between", "within", "removable", f"{2 * of.repeats} repeats"),
        tuple(
            (name, f"{one.between:.3g}", f"{one.within:.3g}", _percent(one.removable), _percent(one.doubled))
            for name, one in of.components.items()
            if name in report.metrics
        ),
    )


def _percent(share: float | None) -> str:
    return "n/a" if share is None else f"{100 * share:.1f} %"


def _diagnostics(report: Report) -> Iterator[Block]:
    of = report.diagnostics
    yield Heading("Diagnostics")
    yield numbers(
        ("answers", of.answers),
        ("valid answers", of.valid_answers),
        ("invalid answers", sum(of.invalid.values())),
        *((f"- {kind}", number) for kind, number in of.invalid.items()),
        *((f"repaired: {kind}", number) for kind, number in of.repaired.items()),
    )


def _footing(report: Report) -> Iterator[Block]:
    if report.intervals_over is not None:
        yield Heading("Intervals")
        yield Paragraph(
            f"95 %, Student's t over {report.intervals_over} with the skewness taken out (Hall 1992). They cover the "
            f"choice of {report.user}s and of their answers, not what all answers of a run have in common. "
            f"{APPROXIMATE} Too few: fewer than {FEWEST_AT_ALL} {report.user}s, or all have the same value."
        )
    yield Heading("Usage")
    yield Paragraph(usage.tokens(report.usage))
    if report.cost:
        yield Paragraph(" ".join(usage.billed(report.cost, report.coverage.scored_users, report.user)))
    if session := usage.session(report.schedule, report.user):
        yield Paragraph(session)


def breaking(diagnostics: Diagnostics) -> str:
    """Return `990 of 990 answers break the rules of the task (more_tags 990)`; empty if none does."""
    return _counted(diagnostics.breaches or {}, diagnostics.answers, "breaks", "break", "the rules of the task")


def sentence_on_invalid(invalid: Mapping[str, int], answers: int) -> str:
    """Return `12 of 100 answers are invalid (no_day 10, refusal 2)`, the most frequent kind first; empty if none is."""
    return _counted(invalid, answers, "is", "are", "invalid")


def _counted(counts: Mapping[str, int], answers: int, one: str, many: str, what: str) -> str:
    total = sum(counts.values())
    ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    kinds = ", ".join(f"{kind} {count}" for kind, count in ranked)
    return f"{total} of {answers} answers {one if total == 1 else many} {what} ({kinds})" if total else ""
