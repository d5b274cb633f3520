"""What a report of StreamProfileBench has of its own: `details`, and the sections that are made of
them.

Source: docs/design.md, section 8. Values are fractions, undefined ones null.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import msgspec
import numpy as np

from harness.benchmark import VALID, Means, Metric, Task
from harness.benchmarks.rendering import ends, intervals, numbers, spanned, table
from harness.benchmarks.streamprofile.chance import DRAWS, Urn, urn
from harness.benchmarks.streamprofile.metrics import DEFINITIONS, ERRORS, F1, GAINS, METRICS, NAMES
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
from harness.document import Block, Chart, Heading, Paragraph, Series, Table, Verbatim
from harness.model import JSON
from harness.scoring.bootstrap import Array
from harness.scoring.intervals import interval, is_approximate, moments, parts
from harness.scoring.reports import Report, Scored, Value

SHARE = Metric("share")
CURVE_NAMES = (*GAINS, F1, *ERRORS)
"""Order in which a curve's columns fill a terminal of 80 columns best."""
CURVE_USERS = 10
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


def _metric(name: str, **more: Any) -> Metric:
    """Return a metric that runs are not ranked by themselves, but by the figure that `_comparable`
    declares."""
    better: Literal["higher", "lower"] = "lower" if name.removeprefix(FWT) in ERRORS else "higher"
    more = {"ranked_by": f"{name} (cut)"} | more
    return Metric(name, better=better, **more)


def _transfer_of(name: str) -> Metric:
    definition = f"mean over users of {name} over the steps from 2 on minus {name} at step 1"
    more = {"unranked": GROWS, "ranked_by": ""} if name == F1 else {}
    return _metric(f"{FWT}{name}", bounds=(-1, 1), definition=definition, **more)


def _comparable(metric: Metric) -> Metric:
    """Return what a metric is ranked by (`scores.PARTS`)."""
    of_rules = metric.name.startswith(FWT) or metric.name in ERRORS
    definition, leaves_out = (FOLLOWING, (FEWER, OUTSIDE)) if of_rules else (CUT, ())
    return replace(
        metric,
        name=metric.ranked_by,
        definition=f"{metric.name} {definition}",
        ranked_by="",
        leaves_out=leaves_out,
    )


MEANS = tuple(_metric(name, definition=DEFINITIONS[name]) for name in NAMES)
FURTHER = (_metric(RELEASE, definition=RELEASED), *map(_transfer_of, (*NAMES, PER_STEP)))


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
        given = zip(task.given.steps, task.truth, strict=True)
        return {step.step_id: urn(task.key, truth, step) for step, truth in given}

    def with_task(self, record: JSON, urns: Mapping[int, Urn]) -> JSON:
        return {
            **record,
            "steps": [{**step, "urn": urns.get(step["step_id"])} for step in record["steps"]],
        }

    def breaches(self, record: JSON) -> Iterator[str]:
        for step in record["steps"]:
            if step["outcome"] == VALID:
                extra = len(step["prediction"]) - step["asked"]
                if step["out_of_pool"] or extra:
                    yield OUTSIDE if step["out_of_pool"] else MORE if extra > 0 else FEWER

    def chance(self, scored: Scored) -> dict[str, float | tuple[float, float]]:
        """Return what random answers have on average, by metric; what is drawn with its standard
        error."""
        levels: dict[str, float | tuple[float, float]] = {}
        for prefix, part in (("", "chance"), (FWT, "chance_fwt")):
            noises = _part(scored, f"{part}_noise")
            for name, figure in _part(scored, part).items():
                value, noise = figure["value"], noises[name]["value"] if name in noises else 0.0
                if value is not None and noise is not None:
                    error = math.sqrt(noise / figure["users"])
                    levels[prefix + name] = (value, error) if error else value
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
        cold, augmented = (_part(scored, name, (0.0, 1.0)) for name in ("cold", "augmented"))
        tally, (reaches, cohort_users) = scored.tally, _cohort(scored.tally.reached)
        of = tally.counts
        assert scored.report is not None
        return {
            "scored_steps": of["scored_steps"],
            "unscored_steps": scored.report.diagnostics.answers - of["scored_steps"],
            "users_without_scored_step": of["users_without_scored_step"],
            "cold_start": cold,
            "persona_augmented": augmented,
            "delta": _delta(scored, "", PARTS["cold"]),
            "chance": {
                "fwt": _part(scored, "chance_fwt", (-1.0, 1.0)),
                "delta": _delta(scored, "chance_", TRANSFER),
            },
            "learning_curve": _curve(tally, lambda last, step_id: True),
            "cohort": {"reaches": reaches, "users": cohort_users},
            "cohort_curve": _curve(
                tally, lambda last, step_id: reaches is not None and step_id <= reaches <= last
            ),
            "ceiling": _part(scored, "ceiling"),
            "repaired_steps": of["repaired_steps"],
            "release_code_left_out": of["release_code_left_out"],
            "out_of_pool": {"steps": of["out_of_pool_steps"], "tags": of["out_of_pool_tags"]},
            "wrong_number": {"more": of["more_tags"], "fewer": of["fewer_tags"]},
            "at_asked": {name: found["value"] for name, found in _part(scored, "at_asked").items()},
            "errors_over_valid": {
                name: found["value"] for name, found in _part(scored, "valid").items()
            },
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


def _part(scored: Scored, part: str, bounds: tuple[float, float] | None = None) -> dict[str, JSON]:
    """Return the means of a part of the steps over users, with intervals if these have bounds."""
    figures: dict[str, JSON] = {}
    for name in PARTS[part]:
        total, count = _column(scored.totals[None], part, name)[0]
        value = float(total / count) if count else None
        rows = _column(scored.units, part, name)
        span = _span(value, parts(rows, _mean, rows[:, 1:] > 0), bounds) if bounds else {}
        figures[name] = {"value": value, "users": int(count), **span}
    return figures


def _column(rows: Array, part: str, name: str) -> Array:
    """Return what rows add to a mean: rows x (sum, count)."""
    place = INDEX[part, name]
    return rows[:, [place, place + len(COLUMNS)]]


def _mean(totals: Array) -> Array:
    return totals[:, :1] / totals[:, 1:]


def _difference(totals: Array) -> Array:
    return _mean(totals[:, 2:]) - _mean(totals[:, :2])


def _span(value: float | None, parts_of_users: Array, bounds: tuple[float, float]) -> JSON:
    """Return the members of a value's interval; `approximate` only where it is."""
    strata = [moments(parts_of_users[:, 0])]
    ends = interval(value, strata, bounds)
    return {"ci95": ends, **({"approximate": True} if ends and is_approximate(strata) else {})}


def _delta(scored: Scored, prefix: str, names: Sequence[str]) -> dict[str, JSON]:
    """Return persona-augmented minus cold start, each over the users that have it; `prefix` is that
    of both parts."""
    sides = [f"{prefix}{part}" for part in ("cold", "augmented")]
    cold, augmented = (_part(scored, side) for side in sides)
    figures = {}
    for name in names:
        values = cold[name]["value"], augmented[name]["value"]
        value = None if None in values else values[1] - values[0]
        rows = np.hstack([_column(scored.units, side, name) for side in sides])
        has = rows[:, 1::2].max(axis=1, keepdims=True) > 0
        figures[name] = {
            "value": value,
            **_span(value, parts(rows, _difference, has), (-1.0, 1.0)),
            "users_cold": cold[name]["users"],
            "users_augmented": augmented[name]["users"],
        }
    return figures


def _cohort(reached: Counter[int]) -> tuple[int | None, int]:
    """Return the largest step_id that at least half of the users with a scored step reach, and how
    many do. A curve over these users alone shows what is not due to who stays."""
    at_least = 0
    for last in sorted(reached, reverse=True):
        at_least += reached[last]
        if 2 * at_least >= reached.total():
            return last, at_least
    return None, 0


def _curve(tally: StepTally, chosen: Callable[[int, int], bool]) -> list[JSON]:
    """Return means per step_id over the users and steps for which `chosen(last step_id, step_id)`
    holds."""
    by_step: dict[int, CurvePoint] = {}
    for (last, step_id), point in tally.curves.items():
        if chosen(last, step_id):
            by_step[step_id] = by_step[step_id].plus(point) if step_id in by_step else point
    return [_point(step_id, point) for step_id, point in sorted(by_step.items())]


def _point(step_id: int, point: CurvePoint) -> JSON:
    """Return a step of a curve; `approximate` has the metrics whose interval is, where there are
    any."""
    intervals = dict(zip(NAMES, point.intervals(), strict=True))
    approximate = [name for name, ends in intervals.items() if ends and ends[2]]
    return {
        "step_id": step_id,
        "users": point.users,
        "metrics": dict(zip(NAMES, point.means(), strict=True)),
        "ci95": {name: ends and ends[:2] for name, ends in intervals.items()},
        **({"approximate": approximate} if approximate else {}),
    }


def upgraded(data: JSON) -> JSON:
    """Return a JSON report of format 1 with its secondary metrics, and with the scored steps among
    its details."""
    moved = ("steps", "release_code", "fwt")
    details = {name: of for name, of in data["details"].items() if name not in moved}
    details["scored_steps"] = data["coverage"].get("scored_steps")
    if "release_code" not in data:
        return {**data, "details": details}
    release = {"value": data["release_code"][F1]}
    secondary = {RELEASE: release, **{f"FWT {name}": of for name, of in data["fwt"].items()}}
    return {**data, "details": details, "secondary": secondary}


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


def _cold_start(of: JSON) -> Iterator[Block]:
    yield Heading("Cold start and persona-augmented")
    yield Paragraph(
        "Cold start is step 1, persona-augmented every later step. The difference is that of the"
        " two means, each over the users that have it, in percentage points. Unlike it, FWT has the"
        " same users on both sides."
    )
    cold, later = (
        msgspec.convert(of[part], dict[str, Value]) for part in ("cold_start", "persona_augmented")
    )
    rows = []
    for name, delta in of["delta"].items():
        sides = [(SHARE.text(side[name].value), str(side[name].users)) for side in (cold, later)]
        rows.append((name, *sides[0], *sides[1], *_signed(delta)))
    yield Table(
        ("metric", "cold", "users", "later", "users", "diff.", "95 % interval"), tuple(rows)
    )
    parts: Mapping[str, Mapping[str, Value]] = {"cold start": cold, "later steps": later}
    yield intervals("Cold start and later steps", SHARE, parts, (F1, *GAINS))
    yield intervals("Error rates by distractor", SHARE, parts, ERRORS)


def _transfer(report: Report) -> Iterator[Block]:
    """Yield the figures of F1^NS from step 1 to the later ones, and those of random answers of the
    same users."""
    yield Heading(f"Transfer of {F1}, and what random answers show")
    if "chance" not in report.details:
        yield Paragraph(
            "This report is of an earlier version: `reeval` adds what random answers show."
        )
        return
    of, random = report.details, report.details["chance"]
    yield Paragraph(
        f"{GROWS}: its FWT and its difference are not ranked. Per step: the mean of the {F1} of"
        " each step, which does not grow so. Random: as many tags as asked for, drawn from the"
        f" pool for each step of the same users ({random['fwt'][F1]['users']} of them have an FWT;"
        f" of a large tasks file it is a sample), the mean of {DRAWS} draws; no request was sent"
        " for it."
    )
    named = {
        f"FWT {name}": (report.secondary[f"FWT {name}"], random["fwt"][name]) for name in TRANSFER
    }
    named |= {
        f"{name}, difference": (of["delta"][name], random["delta"][name]) for name in TRANSFER
    }
    rows = (
        (name, *_signed(of_run), *_signed(at_random)) for name, (of_run, at_random) in named.items()
    )
    yield Table(("figure", "run", "95 % interval", "random", "95 % interval"), tuple(rows))


def _signed(of: Value | JSON) -> tuple[str, str]:
    value = of if isinstance(of, Value) else msgspec.convert(of, Value)
    return SHARE.text(value.value, signed=True), spanned(SHARE, value, signed=True)


def _curves(of: JSON) -> Iterator[Block]:
    yield Heading("Learning curve")
    yield Paragraph(
        "Mean over the users with a scored step of that number, in percent. Who stays differs from"
        f" step to step. Later steps with fewer than {CURVE_USERS} users are in the JSON report"
        " only."
    )
    yield from _curve_blocks(of["learning_curve"])
    yield Heading("Learning curve of a fixed cohort")
    if of["cohort"]["reaches"] is None:
        yield Paragraph("No user has a scored step.")
        return
    yield Paragraph(
        f"The same for the {of['cohort']['users']} users that reach step {of['cohort']['reaches']},"
        " the last step that at least half of the scored users reach."
    )
    yield from _curve_blocks(of["cohort_curve"])


def _curve_blocks(curve: Sequence[JSON]) -> Iterator[Block]:
    """Yield pictures and table of the points that are over enough users, or early enough."""
    points = [point for point in curve if point["users"] >= CURVE_USERS or point["step_id"] <= 3]
    for title, names in (("Hits", (F1, "Recall_Novelty", "Recall_Stability")), ("Errors", ERRORS)):
        series = tuple(
            Series(
                name,
                tuple(at["metrics"][name] for at in points),
                *ends([at["ci95"][name] for at in points]),
            )
            for name in names
        )
        steps = tuple(point["step_id"] for point in points)
        yield Chart("curve", f"{title}, with 95 % bands", steps, "step", "%", series)
    rows = tuple(
        (
            f"{point['step_id']} ({point['users']})",
            *(SHARE.text(point["metrics"][name]) for name in CURVE_NAMES),
        )
        for point in points
    )
    yield Table(("step (users)", *CURVE_NAMES), rows)


def _checks(report: Report) -> Iterator[Block]:
    of, more = report.details, report.usage["requests"] - report.diagnostics.answers
    yield Heading("Diagnostics of steps")
    yield numbers(
        ("steps", report.diagnostics.answers),
        ("scored steps", of["scored_steps"]),
        ("not scored: the truth is empty", of["unscored_steps"]),
        ("users without a scored step", of["users_without_scored_step"]),
        ("repaired answers", of["repaired_steps"]),
        ("answers with tags outside the pool", of["out_of_pool"]["steps"]),
        ("tags outside the pool", of["out_of_pool"]["tags"]),
        ("valid answers with too many tags", of["wrong_number"]["more"]),
        ("valid answers with too few tags", of["wrong_number"]["fewer"]),
    )
    if more > 0:  # the authors' runner does not report its requests
        yield Paragraph(f"{more} of the requests asked again for a reply that could not be used.")
    yield Paragraph(
        "In percent. At asked: the first tags, up to the asked number. Valid only: Error_* over"
        " valid answers, since an empty prediction makes no errors either. Cut: what runs are"
        " ranked and compared by: Precision over the asked number, and Error_* over the answers"
        " that follow the rules of the task (the asked number of tags or more, all of the pool)."
        " Stepwise oracle: it knows the truth, answers with the asked number of tags from the"
        f" pool, and maximises the {F1} of each step. That is not the maximum of a user's {F1},"
        " which is of the means over its steps."
    )
    columns = {
        "as given": {name: report.metrics[name].value for name in NAMES},
        "at asked": of["at_asked"],
        "valid only": of["errors_over_valid"],
        "cut": {
            name: report.secondary.get(report.units[name].ranked_by, Value(None)).value
            for name in NAMES
        },
        "stepwise oracle": {name: ceiling["value"] for name, ceiling in of["ceiling"].items()},
    }
    shown = {
        column: {name: SHARE.text(value) for name, value in cells.items()}
        for column, cells in columns.items()
    }
    yield table("metric", shown)


def _for_stats(report: Report) -> str:
    """Return what that script's patterns find; an undefined value has no line. It takes the first
    match in the file, so no earlier part of the text report may fit its patterns.

    Unless all users are scored, every name has a mark, so that the script makes other files of
    these figures. Its pattern for F1^NS finds no mark: a marked one is among the other metrics,
    whose pattern does.
    """
    of, title, release = report.coverage, "Overall Macro Average", report.secondary[RELEASE].value
    share = (
        "(share)" if report.run.get("users_in_tasks", of.expected_users) > of.expected_users else ""
    )
    mark = share if of.complete else "(INCOMPLETE)"
    values = [(name, report.metrics[name].value) for name in METRICS]
    lines = [
        f"  {name}{mark} : {SHARE.text(value)}%" for name, value in values if value is not None
    ]
    last = [f"{F1}{mark} : {SHARE.text(release)}%"] if release is not None else []
    users = [f"Users: {of.scored_users}{f' of {of.expected_users} {mark}' if mark else ''}"]
    return "\n".join([title, "=" * len(title), *lines, *(last + users if mark else users + last)])
