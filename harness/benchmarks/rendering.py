"""What benchmarks' sections and pages are made with: figures as text, charts and tables of them,
replies as quotes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

import orjson

from harness.benchmark import Metric
from harness.benchmarks.records import ODD_SHAPE
from harness.document import Chart, Quote, Series, Table
from harness.model import JSON, Completion
from harness.scoring.reports import Report, Value


def called(report: Report) -> str:
    """Return the model of a report, after the run's name where that is not the model's own."""
    name, model = report.name, report.model
    return model if name == model.rstrip("/").rsplit("/", 1)[-1] else f"{name}: {model}"


def quotes(completion: Completion, label: str) -> Iterator[Quote]:
    """Return a completion as it came: thoughts, text or what there is instead, tool calls after a
    text, log-probabilities of the tokens."""
    ended = (
        ""
        if completion.finish_reason in (None, "stop")
        else f" (ended by {completion.finish_reason})"
    )
    if completion.reasoning:
        yield Quote(f"Thoughts before {label.lower()}", completion.reasoning)
    yield Quote(f"{label}{ended}", completion.shown)
    if completion.tool_calls and completion.text:
        yield Quote(f"Tool calls of {label.lower()}", "\n".join(map(str, completion.tool_calls)))
    if completion.logprobs:
        yield Quote(f"Log-probabilities of {label.lower()}", _token_lines(completion.logprobs))


def _token_lines(logprobs: JSON) -> str:
    """Return a line for each token, with those that the endpoint names as alternatives; the JSON of
    what is not in OpenAI's form."""
    try:
        return "\n".join(_token_line(token) for token in logprobs["content"])
    except ODD_SHAPE:
        return orjson.dumps(logprobs).decode()


def _token_line(token: JSON) -> str:
    alternatives = ", ".join(_token(other) for other in token.get("top_logprobs") or ())
    return f"{_token(token)} (of {alternatives})" if alternatives else _token(token)


def _token(token: JSON) -> str:
    return f"{orjson.dumps(token['token']).decode()} {token['logprob']}"


def table(head: str, columns: Mapping[str, Mapping[str, str]]) -> Table:
    """Return a table of columns, each with its cells by the name of the row; a missing cell is
    empty."""
    names = dict.fromkeys(name for cells in columns.values() for name in cells)
    rows = ((name, *(cells.get(name, "") for cells in columns.values())) for name in names)
    return Table((head, *columns), tuple(rows))


def chart(
    kind: Literal["curve", "histogram", "ribbon"],
    title: str,
    x: Sequence[float],
    labels: tuple[str, str],
    values: Mapping[str, Sequence[float | None]],
    *,
    percent: bool = True,
) -> Chart:
    """Return a chart of series without intervals, by name; `labels` are those of x and y."""
    series = tuple(Series(name, tuple(of_series)) for name, of_series in values.items())
    return Chart(kind, title, tuple(x), *labels, series, percent=percent)


def number(value: float | None, digits: int = 2) -> str:
    return "n/a" if value is None else f"{value:.{digits}f}"


def numbers(*counted: tuple[str, int]) -> Table:
    """Return a table of counts."""
    return Table(("what", "number"), tuple((what, str(number)) for what, number in counted))


def spanned(metric: Metric, of: Value, *, signed: bool = False) -> str:
    """Return the interval of a figure as text."""
    if of.ci95 is None and of.value is not None:
        return "too few"
    return metric.span(of.ci95, signed=signed, approximate=bool(of.approximate))


def intervals(
    title: str, metric: Metric, parts: Mapping[str, Mapping[str, Value]], names: Sequence[str]
) -> Chart:
    """Return a row for each of `names`, a dot for each part. All are of the unit of `metric`."""
    title = f"{title}, with 95 % intervals"
    return interval_chart(title, metric.shown_unit, parts, names, percent=metric.unit is None)


def interval_chart(
    title: str,
    label: str,
    parts: Mapping[str, Mapping[str, Value]],
    names: Sequence[str],
    *,
    percent: bool,
) -> Chart:
    series = []
    for part, values in parts.items():
        chosen = [values[name] for name in names]
        series.append(
            Series(
                part,
                tuple(value.value for value in chosen),
                *ends([value.ci95 for value in chosen]),
            )
        )
    return Chart("intervals", title, tuple(names), label, "", tuple(series), percent=percent)


def ends(
    found: Sequence[Sequence[float] | None],
) -> tuple[tuple[float | None, ...], tuple[float | None, ...]]:
    """Return the lower and the upper ends of intervals, None for none."""
    return tuple(one[0] if one else None for one in found), tuple(
        one[1] if one else None for one in found
    )
