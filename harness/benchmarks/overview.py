"""A derived JSON report in words, tables and pictures: for the text report and for pages.

Everything is made of the report alone, so that it can be made again without the benchmark's code.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from math import isfinite
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import orjson

from harness.benchmark import Metric
from harness.benchmarks import invalid, spent
from harness.benchmarks.rendering import called, quotes
from harness.errors import shown
from harness.model import (
    JSON,
    Block,
    Chart,
    Completion,
    Heading,
    Page,
    Paragraph,
    Quote,
    Series,
    Sketch,
    Table,
    Tags,
    Tile,
    Verbatim,
)

BLOCKS = {kind.__name__: kind for kind in (Heading, Paragraph, Table, Verbatim, Quote, Tags, Chart, Series, Sketch)}
"""What `sections` may be made of, by the name under which a report keeps it."""

NONE_OF_OURS = "not a report that this version reads: regenerate it with `reeval`"
"""Of a file that is no report."""

RUN_FACTS = frozenset(
    {"files", "tasks", "tasks_sha256", "users_in_tasks", "ratio", "sample_seed", "endpoint", "harness", "created"}
)
"""What a report says of its run besides the settings."""

METHODS = {
    "plain": "users resampled with replacement",
    "poisson_by_block": "blocks of users weighted by Poisson(1), since the users are many",
}


def metrics(data: JSON) -> dict[str, Metric]:
    """Return the metrics of a report by name. Raise `KeyError`, `TypeError` or `ValueError` where it declares none."""
    return {name: Metric.of(name, of) for name, of in data["metric_units"].items()}


def headline(data: JSON) -> str:
    """The main figures on one line, and how many answers are invalid."""
    units = metrics(data)
    figures = [f"{name} {with_unit(units[name], data['metrics'][name]['value'])}" for name in data["headline"]]
    return "; ".join(filter(None, (", ".join(figures), told_invalid(data))))


def with_unit(metric: Metric, value: float | None) -> str:
    space = "" if metric.unit is None else " "
    return metric.text(value) if value is None else f"{metric.text(value)}{space}{metric.shown_unit}"


def told_invalid(data: JSON) -> str:
    of = data["diagnostics"]
    return invalid.sentence(of["invalid"], of["answers"], "answers")


def report_blocks(data: JSON) -> Iterator[Block]:
    """The report for people, in order."""
    yield Heading(f"{data['benchmark']} ({data['subset']}): {data['model']}")
    yield Paragraph(f"Model {data['model']}, run {data['name']}, subset {data['subset']}.")
    yield from map(Paragraph, data["notes"])
    yield from coverage(data)
    yield Heading("What was run")
    yield from about_run(data)
    yield from scores(data)
    yield from map(restored, data["sections"])
    yield from checks(data)
    yield from footing(data)


def coverage(data: JSON) -> Iterator[Block]:
    """Who is scored, and how many of their answers are invalid."""
    of, user, run = data["coverage"], data["user"], data["run"]
    users, share = f"{of['scored_users']} of {of['expected_users']} {user}s are scored", run.get("ratio", 1.0)
    of_all = ""
    if share != 1.0:
        of_all = (
            f" This is a share of {share:g} of the {run['users_in_tasks']} {user}s in the tasks file, drawn with seed "
            f"{run['sample_seed']}."
        )
    if of["complete"]:
        yield Heading(f"Coverage: complete{'' if share == 1.0 else f' (of a share of {share:g})'}")
        yield Paragraph(f"{users}.{of_all}")
    else:
        yield Heading(f"INCOMPLETE: {of['scored_users']} of {of['expected_users']} {user}s")
        yield Paragraph(
            f"{users}; {of['failed_users']} failed and are not scored.{of_all} Every figure below is over the scored "
            f"{user}s only, and {user}s with few steps are scored before those with many."
        )
        yield from bounds(data)
    if words := told_invalid(data):
        yield Paragraph(f"{words}. {data['invalid_as']}.")


def bounds(data: JSON) -> Iterator[Block]:
    """What the missing users could still make of each mean, where the metrics have bounds."""
    if "bounds" not in data:
        return
    units = metrics(data)
    yield Paragraph("Lowest and highest: the mean if all who are missing had the lowest value, or the highest.")
    yield Table(
        ("metric", "unit", "mean", "lowest", "highest"),
        tuple(
            (name, units[name].shown_unit, units[name].text(of["value"]), *map(units[name].text, data["bounds"][name]))
            for name, of in data["metrics"].items()
        ),
    )


def about_run(data: JSON) -> Iterator[Block]:
    """Prompt, settings, tasks; nothing where the run's manifest is not known."""
    run = data["run"]
    whose = "the benchmark's own" if data["prompt"] == "own" else data["prompt"]
    yield Paragraph(f"Prompt: {whose} (version {data['prompt_version']}).")
    if run:
        settings = ", ".join(f"{name} {plain(value)}" for name, value in run.items() if name not in RUN_FACTS)
        yield Paragraph(
            f"Settings: {settings}. Tasks: {run['tasks']}, {run['users_in_tasks']} {data['user']}s, SHA-256 "
            f"{run['tasks_sha256'][:16]}… Endpoint: {run['endpoint']}. Harness {run['harness']}, run begun "
            f"{run['created']}."
        )


def plain(value: object) -> str:
    return value if isinstance(value, str) else orjson.dumps(value).decode()


def scores(data: JSON) -> Iterator[Block]:
    units = metrics(data)
    yield Heading("Scores")
    rows = tuple(
        (name, units[name].shown_unit, units[name].text(of["value"]), units[name].span(of["ci95"]), str(of["users"]))
        for name, of in data["metrics"].items()
    )
    yield Table(("metric", "unit", "value", "95 % interval", f"{data['user']}s"), rows)
    lower = [name for name in data["metrics"] if units[name].lower_is_better]
    if lower:
        yield Paragraph(f"Lower is better: {', '.join(lower)}.")


def checks(data: JSON) -> Iterator[Block]:
    of = data["diagnostics"]
    counted = [
        ("answers", of["answers"]),
        ("valid answers", of["valid_answers"]),
        ("invalid answers", sum(of["invalid"].values())),
        *((f"- {kind}", number) for kind, number in of["invalid"].items()),
        *((f"repaired: {kind}", number) for kind, number in of["repaired"].items()),
    ]
    yield Heading("Diagnostics")
    yield Table(("what", "number"), tuple((what, str(number)) for what, number in counted))


def footing(data: JSON) -> Iterator[Block]:
    of = data["bootstrap"]
    yield Heading("Intervals")
    yield Paragraph(
        f"95 % percentile bootstrap over users, {of['resamples']} resamples, seed {of['seed']}: "
        f"{METHODS[of['method']]}. They cover the choice of users, not the model's own variation."
    )
    yield Heading("Usage")
    yield Paragraph(spent.tokens(data["usage"]))
    if session := spent.session(data["schedule"], data["user"]):
        yield Paragraph(session)


# Pages


def page(data: JSON) -> Page:
    of, user = data["coverage"], data["user"]
    covered = f"{of['scored_users']} of {of['expected_users']} {user}s are scored, {of['failed_users']} failed"
    title = f"{called(data)} · {data['benchmark']} ({data['subset']})"
    return Page(title, "" if of["complete"] else f"INCOMPLETE: {covered}", tuple(_tiles(data)), tuple(_blocks(data)))


def _tiles(data: JSON) -> Iterator[Tile]:
    units, of = metrics(data), data["coverage"]
    for name in data["headline"]:
        found = data["metrics"][name]
        shown = units[name].text(found["value"])
        unit = "" if found["value"] is None else f" {units[name].shown_unit}"
        yield Tile(name, shown + unit, f"95 % interval {units[name].span(found['ci95'])}")
    yield Tile(f"{data['user']}s scored", str(of["scored_users"]), f"of {of['expected_users']}")


def _blocks(data: JSON) -> Iterator[Block]:
    yield Paragraph(f"Run {data['name']}, model {data['model']}, subset {data['subset']}.")
    yield from map(Paragraph, data["notes"])
    yield from coverage(data)
    yield from scores(data)
    yield from _pictures(data)
    yield from map(restored, data["sections"])
    yield from checks(data)
    yield Heading("What was run")
    yield from about_run(data)
    yield from footing(data)


def _pictures(data: JSON) -> Iterator[Block]:
    """Intervals of the metrics that share a unit, and how each metric is distributed over users."""
    units, by_unit = metrics(data), dict[str | None, list[str]]()
    for name in data["metrics"]:
        by_unit.setdefault(units[name].unit, []).append(name)
    for names in by_unit.values():
        yield intervals(f"{', '.join(names)}, with 95 % intervals", units, data["metrics"], names)
    if data["distribution"]:
        yield Heading(f"Distribution over {data['user']}s")
    for name, counts in data["distribution"].items():
        yield histogram(units[name], counts, f"{data['user']}s")


def intervals(title: str, units: Mapping[str, Metric], of: JSON, names: Sequence[str]) -> Chart:
    """A row a metric; all of one unit."""
    low, high = ([of[name]["ci95"][end] if of[name]["ci95"] else None for name in names] for end in (0, 1))
    series = Series("value", tuple(of[name]["value"] for name in names), tuple(low), tuple(high))
    first = units[names[0]]
    return Chart("intervals", title, tuple(names), first.shown_unit, "", (series,), percent=first.unit is None)


def histogram(metric: Metric, counts: Sequence[int], users: str) -> Chart:
    low, high = (float(bound or 0.0) for bound in metric.bounds or (0.0, 1.0))
    edges = tuple(metric.scale * (low + (high - low) * at / len(counts)) for at in range(len(counts) + 1))
    title = f"{metric.name} by {users.removesuffix('s')}"
    series = (Series(users, tuple(counts)),)
    return Chart("histogram", title, edges, f"{metric.name}, {metric.shown_unit}", users, series, percent=False)


def own_card(data: JSON, replies: Sequence[Completion], units: Mapping[str, Metric]) -> Iterator[Block]:
    """What a card shows where the benchmark does not say: values, answer, replies."""
    if data["outcome"] != "valid":
        yield Paragraph(f"Invalid answer ({data['outcome']}).")
    yield Paragraph(f"{_values(data['metrics'], units)}.")
    if data["answer"] is not None:
        answer = orjson.dumps(data["answer"], option=orjson.OPT_INDENT_2).decode()
        yield Quote("Answer", answer, open=True)
    for order, completion in enumerate(replies, 1):
        yield from quotes(completion, f"Reply {order}" if len(replies) > 1 else "Reply")


def _values(values: Any, units: Mapping[str, Metric]) -> str:
    """A user's values: those of declared metrics with their unit, others as they are saved."""
    if not isinstance(values, Mapping):
        return plain(values)
    texts = (
        with_unit(units[name], value) if name in units and is_value(value) else plain(value)
        for name, value in values.items()
    )
    return " · ".join(f"{name} {text}" for name, text in zip(values, texts, strict=True))


def is_value(value: object) -> bool:
    """Whether a metric can show this."""
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))


# Sections as a report keeps them


def saved(block: Any) -> JSON:
    """A block as JSON. Raise `TypeError` for what is none, or has a field of another type."""
    kind = type(block).__name__
    if BLOCKS.get(kind) is not type(block):
        raise TypeError(f"expected a block of a report, got {kind}")
    for name, hint in get_type_hints(type(block)).items():
        if not _fits(getattr(block, name), hint):
            raise TypeError(f"{kind}.{name} is {shown(getattr(block, name))}, expected {hint}")
    if isinstance(block, Table) and any(len(row) != len(block.columns) for row in block.rows):
        raise TypeError(f"a Table of {len(block.columns)} columns has a row of another length")
    if isinstance(block, Chart):
        _check_series(block)
    made: JSON = orjson.loads(
        orjson.dumps({"kind": kind, **{of.name: _plain(getattr(block, of.name)) for of in fields(block)}})
    )
    return made


def _check_series(chart: Chart) -> None:
    wanted = len(chart.x) - (chart.kind == "histogram")
    for series in chart.series:
        if any(
            len(values) != wanted
            for values in (series.values, series.low or series.values, series.high or series.values)
        ):
            raise TypeError(f"Chart {chart.title}: the series {series.name} has not {wanted} values")


def _fits(value: Any, hint: Any) -> bool:
    """Whether a value has the type of a block's field; a number is finite, and a list passes for a tuple."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return any(_fits(value, one) for one in inner)
    if origin is Literal:
        return value in inner
    if origin is tuple:
        each = [inner[0]] * len(value) if inner[-1] is ... and isinstance(value, list | tuple) else inner
        return isinstance(value, list | tuple) and len(value) == len(each) and all(map(_fits, value, each))
    if origin is Mapping:
        return isinstance(value, dict) and all(
            _fits(key, inner[0]) and _fits(one, inner[1]) for key, one in value.items()
        )
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)
    return isinstance(value, hint)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(name): _plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [saved(one) if isinstance(one, Series) else _plain(one) for one in value]
    return value


def restored(data: JSON) -> Block:
    """The block that `saved` made JSON of. Raise `KeyError` or `TypeError` for what is none."""
    made: Block = _made(data)
    return made


def _made(data: JSON) -> Any:
    kind = BLOCKS[data["kind"]]
    return kind(**{name: _tupled(value) for name, value in data.items() if name != "kind"})


def _tupled(value: Any) -> Any:
    if isinstance(value, dict):
        return (
            _made(value) if "kind" in value and value["kind"] in BLOCKS else {k: _tupled(v) for k, v in value.items()}
        )
    return tuple(map(_tupled, value)) if isinstance(value, list) else value
