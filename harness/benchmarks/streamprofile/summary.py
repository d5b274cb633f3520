"""Make what only a report of StreamProfileBench has: `details`, and the sections that show them.

Source: docs/design.md, section 8. Values are fractions, undefined ones null.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Literal

import msgspec
import numpy as np

from harness.benchmark import VALID, Means, Metric, Task
from harness.benchmarks.rendering import (
    ends,
    intervals,
    numbers,
    spanned,
    table,
)
from harness.benchmarks.streamprofile.chance import DRAWS, Urn, urn
from harness.benchmarks.streamprofile.metrics import (
    DEFINITIONS,
    ERRORS,
    F1,
    GAINS,
    METRICS,
    NAMES,
)
from harness.benchmarks.streamprofile.scores import (
    COLUMNS,
    INDEX,
    PARTS,
    PER_STEP,
    TRANSFER,
    CurvePoint,
    StepTally,
    rows,
    tallied,
)
from harness.benchmarks.streamprofile.task import PLATFORMS
from harness.document import (
    Block,
    Chart,
    Heading,
    Paragraph,
    Series,
    Table,
    Verbatim,
)
from harness.model import JSON
from harness.scoring.bootstrap import Array
from harness.scoring.intervals import interval, is_approximate, moments, parts
from harness.scoring.reports import Report, Scored, Value

SHARE = Metric("share")
CURVE_NAMES = (*GAINS, F1, *ERRORS)
"""Order in which a curve's columns fill a terminal of 80 columns best."""
MIN_CURVE_USERS = 10
RELEASE = f"{F1} (release code)"
GROWS = (
    f"{F1} is a harmonic mean of means, so it grows with the number of steps even if nothing is"
    " learned, as random answers show"
)
MORE, FEWER, OUTSIDE = "more_tags", "fewer_tags", "outside_pool"
"""Kinds of valid answers that break a rule of the task: the number of tags, and where they are
from."""
FOR_STATS = "for the authors' stats.py"
RELEASED = (
    f"{F1} as the authors' released code has it, and as published: users with both 0 are left out"
)

FWT = "FWT "
CUT = "with predictions cut to the asked number of tags, which Precision is divided by"
FOLLOWING = (
    "over the answers with the asked number of tags or more, all of the pool, cut to that number"
)


def _metric(name: str, definition: str) -> Metric:
    """Return a metric that runs are not ranked by itself, but by the figure that `_comparable`
    declares."""
    better: Literal["higher", "lower"] = "higher"
    if name.removeprefix(FWT) in ERRORS:
        better = "lower"
    return Metric(name, better=better, definition=definition, ranked_by=f"{name} (cut)")


def _transfer_metric(name: str) -> Metric:
    definition = f"mean over users of {name} over the steps from 2 on minus {name} at step 1"
    metric = replace(_metric(f"{FWT}{name}", definition), bounds=(-1, 1))
    if name == F1:
        return replace(metric, unranked=GROWS, ranked_by="")
    return metric


def _comparable(metric: Metric) -> Metric:
    """Return what a metric is ranked by (`scores.PARTS`)."""
    comparable = replace(
        metric,
        name=metric.ranked_by,
        definition=f"{metric.name} {CUT}",
        ranked_by="",
    )
    if metric.name.startswith(FWT) or metric.name in ERRORS:
        definition = f"{metric.name} {FOLLOWING}"
        return replace(comparable, definition=definition, leaves_out=(FEWER, OUTSIDE))

    return comparable


MEANS = tuple([_metric(name, DEFINITIONS[name]) for name in NAMES])
FURTHER = (
    _metric(RELEASE, RELEASED),
    *map(_transfer_metric, (*NAMES, PER_STEP)),
)


class StepScoring(Means):
    """Means over users of what `scores.tallied` makes of their steps."""

    is_measured = False
    headline = ("Recall", F1)
    secondary = (
        *FURTHER,
        *(_comparable(metric) for metric in (*MEANS, *FURTHER) if metric.ranked_by),
    )

    def tallied(self, records: Sequence[JSON]) -> tuple[Array, StepTally]:
        return tallied(records)

    def running(self, records: Sequence[JSON]) -> tuple[Array, None]:
        return rows(records), None

    def facts(self, task: Task) -> Mapping[int, Urn]:
        pairs = zip(task.given.steps, task.truth, strict=True)
        return {step.step_id: urn(task.key, truth, step) for step, truth in pairs}

    def with_task(self, record: JSON, urns: Mapping[int, Urn]) -> JSON:
        steps = [{**step, "urn": urns.get(step["step_id"])} for step in record["steps"]]
        return {**record, "steps": steps}

    def breaches(self, record: JSON) -> Iterator[str]:
        for step in record["steps"]:
            if step["outcome"] != VALID:
                continue

            extra = len(step["prediction"]) - step["asked"]
            # One kind an answer: the first that applies.
            if step["out_of_pool"]:
                yield OUTSIDE
            elif extra > 0:
                yield MORE
            elif extra < 0:
                yield FEWER

    def chance(self, scored: Scored) -> dict[str, float | tuple[float, float]]:
        """Return what random answers have on average, by metric; what is drawn with its standard
        error."""
        levels: dict[str, float | tuple[float, float]] = {}
        exact = {"value": 0.0}
        for prefix, section in (("", "chance"), (FWT, "chance_fwt")):
            noises = _means(scored, f"{section}_noise")
            for name, figure in _means(scored, section).items():
                value = figure["value"]
                noise = noises.get(name, exact)["value"]
                if value is None or noise is None:
                    continue

                levels[prefix + name] = value
                if noise:
                    levels[prefix + name] = (
                        value,
                        math.sqrt(noise / figure["users"]),
                    )

        return levels

    def details(self, scored: Scored) -> JSON:
        """Return the benchmark's own part of the JSON report.

        `scored_steps`, `unscored_steps`, `users_without_scored_step`; `cold_start` and
        `persona_augmented` (by metric `value, ci95, users`); `delta` (`value, ci95, users_cold,
        users_augmented`); `chance` (`fwt` and `delta` of random answers); `learning_curve`;
        `cohort` (`reaches, users`) and `cohort_curve`; `ceiling`; `repaired_steps`,
        `release_code_left_out`, `out_of_pool`, `wrong_number`, `at_asked`, `errors_over_valid`.
        Answers are steps.
        """
        assert scored.report is not None
        tally: StepTally = scored.tally
        counts = tally.counts
        reaches, cohort_users = _cohort(tally.reached)
        cohort = [key for key in tally.curves if key[1] <= (reaches or 0) <= key[0]]
        return {
            "scored_steps": counts["scored_steps"],
            "unscored_steps": scored.report.diagnostics.answers - counts["scored_steps"],
            "users_without_scored_step": counts["users_without_scored_step"],
            "cold_start": _means(scored, "cold", (0.0, 1.0)),
            "persona_augmented": _means(scored, "augmented", (0.0, 1.0)),
            "delta": _delta(scored, "", PARTS["cold"]),
            "chance": {
                "fwt": _means(scored, "chance_fwt", (-1.0, 1.0)),
                "delta": _delta(scored, "chance_", TRANSFER),
            },
            "learning_curve": _curve(tally, tally.curves),
            "cohort": {"reaches": reaches, "users": cohort_users},
            "cohort_curve": _curve(tally, cohort),
            "ceiling": _means(scored, "ceiling"),
            "repaired_steps": counts["repaired_steps"],
            "release_code_left_out": counts["release_code_left_out"],
            "out_of_pool": {
                "steps": counts["out_of_pool_steps"],
                "tags": counts["out_of_pool_tags"],
            },
            "wrong_number": {
                "more": counts["more_tags"],
                "fewer": counts["fewer_tags"],
            },
            "at_asked": _values(_means(scored, "at_asked")),
            "errors_over_valid": _values(_means(scored, "valid")),
        }

    def sections(self, scored: Scored) -> Iterator[Block]:
        report = scored.report
        assert report is not None
        yield Heading(f"About the scores, on {PLATFORMS[report.subset].name}")
        yield from map(Paragraph, _about(report))
        yield from _cold_start(report.details)
        yield from _transfer(report)
        yield from _curves(report.details)
        yield from _checks(report)
        yield Heading(FOR_STATS)
        yield Verbatim(_for_stats(report))


def _means(
    scored: Scored, section: str, bounds: tuple[float, float] | None = None
) -> dict[str, JSON]:
    """Return the means over users of a part of the scores, with intervals if these have bounds."""
    figures: dict[str, JSON] = {}
    for name in PARTS[section]:
        total, count = _column(scored.totals[None], section, name)[0]
        figure: JSON = {"value": None, "users": int(count)}
        if count:
            figure["value"] = float(total / count)

        if bounds:
            rows = _column(scored.units, section, name)
            user_parts = parts(rows, _mean, rows[:, 1:] > 0)
            figure |= _span(figure["value"], user_parts, bounds)

        figures[name] = figure

    return figures


def _values(figures: Mapping[str, JSON]) -> dict[str, float | None]:
    return {name: figure["value"] for name, figure in figures.items()}


def _column(rows: Array, section: str, name: str) -> Array:
    """Return what rows add to a mean: rows x (sum, count)."""
    column = INDEX[section, name]
    return rows[:, [column, column + len(COLUMNS)]]


def _mean(totals: Array) -> Array:
    return totals[:, :1] / totals[:, 1:]


def _difference(totals: Array) -> Array:
    return _mean(totals[:, 2:]) - _mean(totals[:, :2])


def _span(value: float | None, user_parts: Array, bounds: tuple[float, float]) -> JSON:
    """Return the members of a value's interval; `approximate` only where it is."""
    strata = [moments(user_parts[:, 0])]
    span: JSON = {"ci95": interval(value, strata, bounds)}
    if span["ci95"] and is_approximate(strata):
        span["approximate"] = True
    return span


def _delta(scored: Scored, prefix: str, names: Sequence[str]) -> dict[str, JSON]:
    """Return persona-augmented minus cold start, each over the users that have it; `prefix` is that
    of both parts."""
    sides = (f"{prefix}cold", f"{prefix}augmented")
    cold = _means(scored, sides[0])
    augmented = _means(scored, sides[1])
    figures = {}
    for name in names:
        value = None
        if cold[name]["users"] and augmented[name]["users"]:
            value = augmented[name]["value"] - cold[name]["value"]

        rows = np.hstack([_column(scored.units, side, name) for side in sides])
        # The difference is of two means, each over its own users.
        has_either = rows[:, 1::2].max(axis=1, keepdims=True) > 0
        figures[name] = {
            "value": value,
            **_span(value, parts(rows, _difference, has_either), (-1.0, 1.0)),
            "users_cold": cold[name]["users"],
            "users_augmented": augmented[name]["users"],
        }

    return figures


def _cohort(reached: Counter[int]) -> tuple[int | None, int]:
    """Return the largest step_id that at least half of the users with a scored step reach, and how
    many do. A curve over these users alone shows what is not due to who stays."""
    users = 0
    for last_step in sorted(reached, reverse=True):
        users += reached[last_step]
        if 2 * users >= reached.total():
            return last_step, users
    return None, 0


def _curve(tally: StepTally, keys: Iterable[tuple[int, int]]) -> list[JSON]:
    """Return means per step_id over the points of some keys (last step_id of users, step_id)."""
    by_step: dict[int, CurvePoint] = {}
    for key in keys:
        point = tally.curves[key]
        step_id = key[1]
        if step_id in by_step:
            point = by_step[step_id].plus(point)

        by_step[step_id] = point

    return [_point(step_id, by_step[step_id]) for step_id in sorted(by_step)]


def _point(step_id: int, point: CurvePoint) -> JSON:
    """Return a step of a curve; `approximate` has the metrics whose interval is, where there are
    any."""
    spans: dict[str, tuple[float, float] | None] = {}
    approximate = []
    for name, span in zip(NAMES, point.intervals(), strict=True):
        spans[name] = span and span[:2]
        if span and span[2]:
            approximate.append(name)

    data = {
        "step_id": step_id,
        "users": point.users,
        "metrics": dict(zip(NAMES, point.means(), strict=True)),
        "ci95": spans,
    }
    if approximate:
        data["approximate"] = approximate

    return data


def upgraded(data: JSON) -> JSON:
    """Return a JSON report of format 1 with its secondary metrics, and with the scored steps among
    its details. A metric that was not measured then is undefined."""
    details = data["details"].copy()
    for moved in ("steps", "release_code", "fwt"):
        details.pop(moved, None)

    details["scored_steps"] = data["coverage"].get("scored_steps")
    undefined: JSON = {name: {"value": None, "users": 0} for name in NAMES}
    for side in ("cold_start", "persona_augmented"):
        details[side] = undefined | details[side]
    for curve in ("learning_curve", "cohort_curve"):
        details[curve] = [_completed_point(point) for point in details[curve]]

    completed = {**data, "details": details, "metrics": undefined | data["metrics"]}
    if "release_code" not in data:
        return completed

    secondary = {RELEASE: {"value": data["release_code"][F1]}}
    for name, figure in data["fwt"].items():
        secondary[FWT + name] = figure

    return {**completed, "secondary": secondary}


def _completed_point(point: JSON) -> JSON:
    undefined = dict.fromkeys(NAMES)
    return {
        **point,
        "metrics": undefined | point["metrics"],
        "ci95": undefined | point["ci95"],
    }


# Blocks


def _about(report: Report) -> Iterator[str]:
    if report.prompt == "authors":
        yield (
            "The benchmark authors' own prompt. Scores compare with published ones where sampling"
            " and data do."
        )
    else:
        yield (
            "Not the benchmark authors' prompt. Scores compare with other runs of the same prompt,"
            " but not with published ones: those need the authors' prompt (--prompt bench_task.py)."
        )

    if report.run.get("persona") is False:
        yield "Ablation without persona: no step saw the summary of the one before."

    yield f"{report.details['scored_steps']} of {report.diagnostics.answers} steps are scored."
    yield (
        "Mean within a user over its scored steps, then mean over users (M_bar); undefined values"
        f" are left out. {'; '.join(f'{name}: {DEFINITIONS[name]}' for name in METRICS)}. Formulas:"
        " docs/design.md, section 8."
    )
    yield (
        f"{F1} is the {DEFINITIONS[F1]}. The authors' released code, and so published scores, "
        f"leave out users with both 0: here {report.details['release_code_left_out']}."
    )
    yield (
        "Forward transfer (FWT) is a user's value over the steps from 2 on minus its value at step"
        " 1, then the mean over the users that have both, in percentage points. For Error_* a"
        " positive FWT is bad: more distractors are taken."
    )


def _cold_start(details: JSON) -> Iterator[Block]:
    yield Heading("Cold start and persona-augmented")
    yield Paragraph(
        "Cold start is step 1, persona-augmented every later step. The difference is that of the"
        " two means, each over the users that have it, in percentage points. Unlike it, FWT has the"
        " same users on both sides."
    )
    cold = msgspec.convert(details["cold_start"], dict[str, Value])
    later = msgspec.convert(details["persona_augmented"], dict[str, Value])
    rows = []
    for name, delta in details["delta"].items():
        row = [name]
        for figure in (cold[name], later[name]):
            row += [SHARE.text(figure.value), str(figure.users)]

        rows.append((*row, *_signed(msgspec.convert(delta, Value))))

    yield Table(
        ("metric", "cold", "users", "later", "users", "diff.", "95 % interval"),
        tuple(rows),
    )
    sides: Mapping[str, Mapping[str, Value]] = {
        "cold start": cold,
        "later steps": later,
    }
    yield intervals("Cold start and later steps", SHARE, sides, (F1, *GAINS))
    yield intervals("Error rates by distractor", SHARE, sides, ERRORS)


def _transfer(report: Report) -> Iterator[Block]:
    """Yield the figures of F1^NS from step 1 to the later ones, and those of random answers of the
    same users."""
    yield Heading(f"Transfer of {F1}, and what random answers show")
    if "chance" not in report.details:
        yield Paragraph(
            "This report is of an earlier version: `reeval` adds what random answers show."
        )
        return

    random = report.details["chance"]
    yield Paragraph(
        f"{GROWS}: its FWT and its difference are not ranked. Per step: the mean of the {F1} of"
        " each step, which does not grow so. Random: as many tags as asked for, drawn from the"
        f" pool for each step of the same users ({random['fwt'][F1]['users']} of them have an FWT;"
        f" of a large tasks file it is a sample), the mean of {DRAWS} draws; no request was sent"
        " for it."
    )
    rows = []
    for name in TRANSFER:
        random_fwt = msgspec.convert(random["fwt"][name], Value)
        rows.append(
            (
                FWT + name,
                *_signed(report.secondary[FWT + name]),
                *_signed(random_fwt),
            )
        )

    for name in TRANSFER:
        delta = msgspec.convert(report.details["delta"][name], Value)
        random_delta = msgspec.convert(random["delta"][name], Value)
        rows.append((f"{name}, difference", *_signed(delta), *_signed(random_delta)))

    yield Table(
        ("figure", "run", "95 % interval", "random", "95 % interval"),
        tuple(rows),
    )


def _signed(figure: Value) -> tuple[str, str]:
    return SHARE.text(figure.value, signed=True), spanned(SHARE, figure, signed=True)


def _curves(details: JSON) -> Iterator[Block]:
    cohort = details["cohort"]
    yield Heading("Learning curve")
    yield Paragraph(
        "Mean over the users with a scored step of that number, in percent. Who stays differs from"
        f" step to step. Later steps with fewer than {MIN_CURVE_USERS} users are in the JSON report"
        " only."
    )
    yield from _curve_blocks(details["learning_curve"])
    yield Heading("Learning curve of a fixed cohort")
    if cohort["reaches"] is None:
        yield Paragraph("No user has a scored step.")
        return

    yield Paragraph(
        f"The same for the {cohort['users']} users that reach step {cohort['reaches']},"
        " the last step that at least half of the scored users reach."
    )
    yield from _curve_blocks(details["cohort_curve"])


def _curve_blocks(curve: Sequence[JSON]) -> Iterator[Block]:
    """Yield pictures and table of the points that are over enough users, or early enough."""
    points = []
    for point in curve:
        if point["users"] >= MIN_CURVE_USERS or point["step_id"] <= 3:
            points.append(point)

    yield _curve_chart("Hits", points, (F1, "Recall_Novelty", "Recall_Stability"))
    yield _curve_chart("Errors", points, ERRORS)
    rows = []
    for point in points:
        cells = [SHARE.text(point["metrics"][name]) for name in CURVE_NAMES]
        rows.append((f"{point['step_id']} ({point['users']})", *cells))

    yield Table(("step (users)", *CURVE_NAMES), tuple(rows))


def _curve_chart(title: str, points: Sequence[JSON], names: Sequence[str]) -> Chart:
    series = []
    for name in names:
        values = tuple([point["metrics"][name] for point in points])
        lower, upper = ends([point["ci95"][name] for point in points])
        series.append(Series(name, values, lower, upper))
    steps = tuple([point["step_id"] for point in points])
    return Chart("curve", f"{title}, with 95 % bands", steps, "step", "%", tuple(series))


def _checks(report: Report) -> Iterator[Block]:
    details = report.details
    repeated_requests = report.usage["requests"] - report.diagnostics.answers
    yield Heading("Diagnostics of steps")
    yield numbers(
        ("steps", report.diagnostics.answers),
        ("scored steps", details["scored_steps"]),
        ("not scored: the truth is empty", details["unscored_steps"]),
        ("users without a scored step", details["users_without_scored_step"]),
        ("repaired answers", details["repaired_steps"]),
        ("answers with tags outside the pool", details["out_of_pool"]["steps"]),
        ("tags outside the pool", details["out_of_pool"]["tags"]),
        ("valid answers with too many tags", details["wrong_number"]["more"]),
        ("valid answers with too few tags", details["wrong_number"]["fewer"]),
    )
    # The authors' runner does not report its requests: the difference is negative there.
    if repeated_requests > 0:
        yield Paragraph(
            f"{repeated_requests} of the requests asked again for a reply that could not be used."
        )

    yield Paragraph(
        "In percent. At asked: the first tags, up to the asked number. Valid only: Error_* over"
        " valid answers, since an empty prediction makes no errors either. Cut: what runs are"
        " ranked and compared by: Precision over the asked number, and Error_* over the answers"
        " that follow the rules of the task (the asked number of tags or more, all of the pool)."
        " Stepwise oracle: it knows the truth, answers with the asked number of tags from the"
        f" pool, and maximises the {F1} of each step. That is not the maximum of a user's {F1},"
        " which is of the means over its steps."
    )
    as_answered: dict[str, float | None] = {}
    cut: dict[str, float | None] = {}
    for name in NAMES:
        comparable = report.secondary.get(report.units[name].ranked_by, Value(None))
        as_answered[name] = report.metrics[name].value
        cut[name] = comparable.value

    columns = {
        "as given": as_answered,
        "at asked": details["at_asked"],
        "valid only": details["errors_over_valid"],
        "cut": cut,
        "stepwise oracle": _values(details["ceiling"]),
    }
    cells = {}
    for column, values in columns.items():
        cells[column] = {name: SHARE.text(value) for name, value in values.items()}

    yield table("metric", cells)


def _for_stats(report: Report) -> str:
    """Return what that script's patterns find; an undefined value has no line. It takes the first
    match in the file, so no earlier part of the text report may fit its patterns.

    Unless all users are scored, every name has a mark, so that the script makes other files of
    these figures. Its pattern for F1^NS finds no mark: a marked one is among the other metrics,
    whose pattern does.
    """
    coverage = report.coverage
    title = "Overall Macro Average"
    mark = ""
    if not coverage.complete:
        mark = "(INCOMPLETE)"
    elif report.run.get("users_in_tasks", coverage.expected_users) > coverage.expected_users:
        mark = "(share)"

    users = f"Users: {coverage.scored_users}"
    if mark:
        users += f" of {coverage.expected_users} {mark}"

    lines = [title, "=" * len(title)]
    for name in METRICS:
        value = report.metrics[name].value
        if value is not None:
            lines.append(f"  {name}{mark} : {SHARE.text(value)}%")

    release = report.secondary[RELEASE].value
    if release is not None:
        lines.append(f"{F1}{mark} : {SHARE.text(release)}%")

    # The script reads F1^NS after the users' line, and a marked one among the other metrics.
    if not mark and release is not None:
        lines.insert(-1, users)
    else:
        lines.append(users)

    return "\n".join(lines)
