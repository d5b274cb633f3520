"""Make blocks for benchmarks' sections and pages: figures as text, charts and tables of them,
replies as quotes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Literal

import orjson

from harness.benchmark import Metric
from harness.benchmarks.records import ODD_SHAPE
from harness.document import Chart, Quote, Series, Table
from harness.model import JSON, Completion
from harness.scoring.reports import Report, Value


def called(report: Report) -> str:
    """Return the model of a report, after the run's name where that is not the model's own."""
    model = report.model
    if report.name == model.rstrip("/").rsplit("/", 1)[-1]:
        return model
    return f"{report.name}: {model}"


def quotes(completion: Completion, label: str) -> Iterator[Quote]:
    """Return a completion as it came: thoughts, text or what there is instead, tool calls after a
    text, log-probabilities of the tokens."""
    title = label
    if completion.finish_reason not in (None, "stop"):
        title = f"{label} (ended by {completion.finish_reason})"

    if completion.reasoning:
        yield Quote(f"Thoughts before {label.lower()}", completion.reasoning)

    yield Quote(title, completion.shown)
    if completion.tool_calls and completion.text:
        yield Quote(
            f"Tool calls of {label.lower()}",
            "\n".join(map(str, completion.tool_calls)),
        )

    if completion.logprobs:
        yield Quote(
            f"Log-probabilities of {label.lower()}",
            _token_lines(completion.logprobs),
        )


def numbered(replies: Sequence[Completion]) -> Iterator[Quote]:
    """Yield a user's replies as they came."""
    for number, completion in enumerate(replies, 1):
        label = f"Reply {number}" if len(replies) > 1 else "Reply"
        yield from quotes(completion, label)


def _token_lines(logprobs: JSON) -> str:
    """Return a line for each token, with those that the endpoint names as alternatives; the JSON of
    what is not in OpenAI's form."""
    try:
        return "\n".join(map(_token_line, logprobs["content"]))
    except ODD_SHAPE:
        # Endpoints other than OpenAI's have forms of their own.
        return orjson.dumps(logprobs).decode()


def _token_line(token: JSON) -> str:
    alternatives = ", ".join(map(_token, token.get("top_logprobs") or ()))
    if alternatives:
        return f"{_token(token)} (of {alternatives})"
    return _token(token)


def _token(token: JSON) -> str:
    return f"{orjson.dumps(token['token']).decode()} {token['logprob']}"


def table(head: str, columns: Mapping[str, Mapping[str, str]]) -> Table:
    """Return a table of columns, each with its cells by the name of the row; a missing cell is
    empty."""
    rows = []
    for name in dict.fromkeys(chain.from_iterable(columns.values())):
        cells = [column.get(name, "") for column in columns.values()]
        rows.append((name, *cells))
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
    series = [Series(name, tuple(numbers)) for name, numbers in values.items()]
    return Chart(kind, title, tuple(x), *labels, tuple(series), percent=percent)


def number(value: float | None, digits: int = 2) -> str:
    if value is None:
        return "n/a"
    return f"{value:.{digits}f}"


def numbers(*counts: tuple[str, int]) -> Table:
    """Return a table of counts."""
    rows = [(name, str(count)) for name, count in counts]
    return Table(("what", "number"), tuple(rows))


def spanned(metric: Metric, figure: Value, *, signed: bool = False) -> str:
    """Return the interval of a figure as text."""
    if figure.ci95 is None and figure.value is not None:
        return "too few"
    return metric.span(figure.ci95, signed=signed, approximate=bool(figure.approximate))


def intervals(
    title: str,
    metric: Metric,
    series: Mapping[str, Mapping[str, Value]],
    names: Sequence[str],
) -> Chart:
    """Return a row for each of `names`, a dot for each series. All are of the unit of `metric`."""
    title = f"{title}, with 95 % intervals"
    return interval_chart(title, metric.shown_unit, series, names, percent=metric.unit is None)


def interval_chart(
    title: str,
    label: str,
    series: Mapping[str, Mapping[str, Value]],
    names: Sequence[str],
    *,
    percent: bool,
) -> Chart:
    drawn = []
    for series_name, figures in series.items():
        chosen = [figures[name] for name in names]
        values = tuple([figure.value for figure in chosen])
        lower, upper = ends([figure.ci95 for figure in chosen])
        drawn.append(Series(series_name, values, lower, upper))

    return Chart(
        "intervals",
        title,
        tuple(names),
        label,
        "",
        tuple(drawn),
        percent=percent,
    )


def ends(
    spans: Sequence[Sequence[float] | None],
) -> tuple[tuple[float | None, ...], tuple[float | None, ...]]:
    """Return the lower and the upper ends of intervals, None for none."""
    pairs = [span or (None, None) for span in spans]
    return tuple([lower for lower, _ in pairs]), tuple([upper for _, upper in pairs])
