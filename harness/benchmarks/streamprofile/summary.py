"""From merged scores to the report: `data` is the JSON report, and `blocks` says the same for people.

Source: docs/design.md, section 8. Values are fractions and undefined ones null; blocks are made from `data` alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from harness.benchmarks import invalid, spent
from harness.benchmarks.streamprofile.metrics import ERRORS, F1, GAINS, METRICS, NAMES
from harness.benchmarks.streamprofile.platforms import PLATFORMS
from harness.benchmarks.streamprofile.scores import BINS, SPREAD, Intervals, Mean, ShardScores
from harness.model import JSON, Block, Heading, Paragraph, Report, RunFacts, Table, Verbatim
from harness.scoring.bootstrap import RESAMPLES

FORMAT = 1
SEED = 20_250
CURVE_NAMES = (*GAINS, F1, *ERRORS)
"""Order in which a curve's columns fill a terminal of 80 columns best."""
CURVE_USERS = 10
FOR_STATS = "for the authors' stats.py"


def summarise(scores: ShardScores, run: RunFacts, prompt_version: str) -> Report:
    """The report of one subset; `scores` may stand for no user at all."""
    found = report_data(scores, run, prompt_version, scores.intervals(np.random.default_rng(SEED)))
    values = {name: found["metrics"][name]["value"] for name in ("Recall", F1)}
    headline = ", ".join(f"{name} {percent(value)}{'' if value is None else '%'}" for name, value in values.items())
    return Report(found, tuple(report_blocks(found)), "; ".join(filter(None, (headline, _invalid(found)))))


def _invalid(data: JSON) -> str:
    of = data["diagnostics"]
    return invalid.sentence(of["invalid"], of["steps"], "answers")


def report_data(scores: ShardScores, run: RunFacts, prompt_version: str, intervals: Intervals) -> JSON:
    """The JSON report."""
    means, counts = scores.means(), scores.counts
    users, missing = counts["users"], max(0, run.expected_users - counts["users"])
    part = partial(_part, means, intervals)
    reaches, cohort_users = _cohort(scores.reached)
    data: JSON = {
        "format": FORMAT,
        "benchmark": "streamprofile",
        "prompt_version": prompt_version,
        "prompt": run.prompt,
        "subset": run.subset,
        "model": run.model,
        "name": run.name,
        "coverage": {
            "expected_users": run.expected_users,
            "scored_users": users,
            "failed_users": run.failed_users,
            "scored_steps": counts["scored_steps"],
            "complete": users == run.expected_users,
        },
        "metrics": part("all"),
        "release_code": {F1: means["release", F1].value},
        "cold_start": part("cold"),
        "persona_augmented": part("augmented"),
        "delta": _delta(scores, intervals),
        "fwt": part("fwt"),
        "learning_curve": _curve(scores, lambda last, step_id: True),
        "cohort": {"reaches": reaches, "users": cohort_users},
        "cohort_curve": _curve(scores, lambda last, step_id: reaches is not None and step_id <= reaches <= last),
        "distribution": {name: [scores.spread[name, place] for place in range(BINS)] for name in SPREAD},
        "ceiling": {name: means["ceiling", name]._asdict() for name in (*GAINS, F1)},
        "diagnostics": _diagnostics(scores),
        "schedule": run.schedule,
        "run": run.run,
        "usage": {name: counts[name] for name in spent.USAGE},
        "bootstrap": {"method": intervals.method, "resamples": RESAMPLES, "seed": SEED},
        "notes": list(run.notes),
    }
    data["secondary"] = secondary(data)
    if not data["coverage"]["complete"]:
        data["bounds"] = {name: bounds(*means["all", name], missing) for name in NAMES}
    return data


def _part(means: Mapping[tuple[str, str], Mean], intervals: Intervals, name: str) -> JSON:
    """The metrics over one part of the steps."""
    return {
        metric: {
            "value": means[name, metric].value,
            "ci95": _pair(intervals.of(name, metric)),
            "users": means[name, metric].users,
        }
        for metric in NAMES
    }


def secondary(data: JSON) -> JSON:
    """The figures of a report that tables have besides its metrics."""
    release = {"value": data["release_code"][F1], "ci95": None, "users": None}
    return {f"{F1} (release code)": release, **{f"FWT {name}": of for name, of in data["fwt"].items()}}


def _release_users(data: JSON) -> int:
    users: int = data["metrics"][F1]["users"] - data["diagnostics"]["release_code_left_out"]
    return users


def bounds(value: float | None, users: int, missing: int) -> list[float | None]:
    """Lowest and highest mean of a metric in [0, 1] once `missing` more users have it: all 0, or all 1."""
    if not users + missing:
        return [None, None]
    total = (value or 0.0) * users
    return [total / (users + missing), (total + missing) / (users + missing)]


def _pair(interval: tuple[float, float] | None) -> list[float] | None:
    return list(interval) if interval else None


def _delta(scores: ShardScores, intervals: Intervals) -> JSON:
    """Persona-augmented minus cold start, each over the users that have it."""
    means, delta = scores.means(), {}
    for name in NAMES:
        cold, augmented = means["cold", name], means["augmented", name]
        delta[name] = {
            "value": None if cold.value is None or augmented.value is None else augmented.value - cold.value,
            "ci95": _pair(intervals.of_difference("augmented", "cold", name)),
            "users_cold": cold.users,
            "users_augmented": augmented.users,
        }
    return delta


def _cohort(reached: Counter[int]) -> tuple[int | None, int]:
    """The largest step_id that at least half of the users with a scored step reach, and how many do."""
    at_least = 0
    for last in sorted(reached, reverse=True):
        at_least += reached[last]
        if 2 * at_least >= reached.total():
            return last, at_least
    return None, 0


def _curve(scores: ShardScores, chosen: Callable[[int, int], bool]) -> list[JSON]:
    """Means per step_id over the users and steps for which `chosen(last step_id, step_id)` holds."""
    by_step: dict[int, Any] = {}
    for (last, step_id), point in scores.curves.items():
        if chosen(last, step_id):
            by_step[step_id] = by_step[step_id].plus(point) if step_id in by_step else point
    return [
        {
            "step_id": step_id,
            "users": by_step[step_id].users,
            "metrics": dict(zip(NAMES, by_step[step_id].means(), strict=True)),
            "ci95": {name: _pair(found) for name, found in zip(NAMES, by_step[step_id].intervals(), strict=True)},
        }
        for step_id in sorted(by_step)
    ]


def _diagnostics(scores: ShardScores) -> JSON:
    means, counts = scores.means(), scores.counts
    return {
        "steps": counts["steps"],
        "unscored_steps": counts["steps"] - counts["scored_steps"],
        "users_without_scored_step": counts["users_without_scored_step"],
        "valid_answers": counts["valid_answers"],
        "invalid": dict(sorted(scores.invalid.items())),
        "repaired_steps": counts["repaired_steps"],
        "release_code_left_out": counts["release_code_left_out"],
        "repaired": dict(sorted(scores.repaired.items())),
        "out_of_pool": {"steps": counts["out_of_pool_steps"], "tags": counts["out_of_pool_tags"]},
        "wrong_number": {"more": counts["more_tags"], "fewer": counts["fewer_tags"]},
        "at_asked": {name: means["at_asked", name].value for name in NAMES},
        "errors_over_valid": {name: means["valid", name].value for name in ERRORS},
    }


def report_blocks(data: JSON) -> Iterator[Block]:
    """The report for people, in order."""
    yield Heading(f"StreamProfileBench, {PLATFORMS[data['subset']].name} ({data['subset']}): {data['model']}")
    yield Paragraph(f"Model {data['model']}, run {data['name']}, platform {data['subset']}.")
    yield from map(Paragraph, data["notes"])
    yield from coverage(data)
    yield Heading("What was run")
    yield Paragraph(about_prompt(data))
    yield from about_run(data["run"])
    yield from macro(data)
    yield from cold_start(data)
    yield from forward_transfer(data)
    yield from curves(data)
    yield from checks(data)
    yield from footing(data)
    yield Heading(FOR_STATS)
    yield Verbatim(_for_stats(data))


def coverage(data: JSON) -> Iterator[Block]:
    """Who is scored, and how many of their answers are invalid."""
    yield from _covered(data)
    if words := _invalid(data):
        yield Paragraph(f"{words}: scored as empty predictions.")


def _covered(data: JSON) -> Iterator[Block]:
    of = data["coverage"]
    users = f"{of['scored_users']} of {of['expected_users']} users are scored, over {of['scored_steps']} steps"
    share = data["run"].get("ratio", 1.0)
    of_all = (
        ""
        if share == 1.0
        else (
            f" This is a share of {share:g} of the {data['run']['users_in_tasks']} users in the tasks file, drawn with "
            f"seed {data['run']['sample_seed']}."
        )
    )
    if of["complete"]:
        yield Heading(f"Coverage: complete{'' if share == 1.0 else f' (of a share of {share:g})'}")
        yield Paragraph(f"{users}.{of_all}")
        return
    yield Heading(f"INCOMPLETE: {of['scored_users']} of {of['expected_users']} users")
    yield Paragraph(
        f"{users}; {of['failed_users']} failed and are not scored.{of_all} Every mean below is over the scored users "
        "only, and users with few steps are scored before those with many: until all are, the means lean to the short. "
        "Lowest and highest: the mean if all the missing users had 0, or all had 100 % (Error_*: lowest is best)."
    )
    yield Table(
        ("metric", "mean (%)", "lowest", "highest"),
        tuple((name, percent(data["metrics"][name]["value"]), *map(percent, data["bounds"][name])) for name in NAMES),
    )


SETTINGS = ("persona", "structured", "parse_retries", "temperature", "top_p", "seed", "max_tokens", "extra_body")


def about_run(run: JSON) -> Iterator[Block]:
    """What else decides what the numbers mean; nothing where the run's manifest is not known."""
    if not run:
        return
    if run.get("persona") is False:
        yield Paragraph("Ablation without persona: no step saw the summary of the one before.")
    shown = ", ".join(f"{name} {run[name]}" for name in SETTINGS if name in run)
    yield Paragraph(
        f"Settings: {shown}. Tasks: {run['tasks']}, {run['users_in_tasks']} users, SHA-256 {run['tasks_sha256'][:16]}… "
        f"Endpoint: {run['endpoint']}. Harness {run['harness']}, run begun {run['created']}."
    )


def about_prompt(data: JSON) -> str:
    if data["prompt"] == "authors":
        return "The benchmark authors' own prompt. Scores compare with published ones where sampling and data do."
    whose = "This harness's own prompt" if data["prompt"] == "own" else f"A prompt of the user's, {data['prompt']},"
    return (
        f"{whose} (prompt version {data['prompt_version']}), not the benchmark authors'. Scores compare with other "
        "runs of the same prompt, but not with published ones: those need the authors' prompt (--prompt bench_task.py)."
    )


def macro(data: JSON) -> Iterator[Block]:
    left_out, of = data["diagnostics"]["release_code_left_out"], data["metrics"]
    rows = [(name, percent(of[name]["value"]), span(of[name]["ci95"]), str(of[name]["users"])) for name in NAMES]
    rows.append((f"{F1} (release code)", percent(data["release_code"][F1]), "", str(_release_users(data))))
    yield Heading("Macro averages (M_bar)")
    yield Paragraph(
        "Mean within a user over its scored steps, then mean over users; undefined values are left out. Higher is "
        "better but for Error_*: Precision is the share of predicted tags that are used next, Recall the share of tags "
        "used next that are predicted, Recall_Novelty and _Stability that of the new and of the kept ones, Error_* the "
        "share of a kind of distractors in the pool that is predicted (peers of the truth, viral that day, decayed, "
        "random). Formulas: docs/design.md, section 8."
    )
    yield Table(("metric", "mean (%)", "95 % interval", "users"), tuple(rows))
    yield Paragraph(
        f"{F1} is the harmonic mean of a user's mean Recall_Novelty and mean Recall_Stability, 0 where both are 0. "
        f"The authors' released code leaves users with both 0 out: here {left_out}."
    )


def cold_start(data: JSON) -> Iterator[Block]:
    yield Heading("Cold start and persona-augmented")
    yield Paragraph(
        "Cold start is step 1, persona-augmented every later step. The difference is that of the two means, each over "
        "the users that have it, in percentage points."
    )
    rows = []
    for name in NAMES:
        cold, augmented, delta = (data[part][name] for part in ("cold_start", "persona_augmented", "delta"))
        rows.append(
            (
                name,
                percent(cold["value"]),
                str(cold["users"]),
                percent(augmented["value"]),
                str(augmented["users"]),
                points(delta["value"]),
                span(delta["ci95"], points),
            )
        )
    yield Table(("metric", "cold", "users", "later", "users", "diff.", "95 % interval"), tuple(rows))


def forward_transfer(data: JSON) -> Iterator[Block]:
    yield Heading("Forward transfer (FWT)")
    yield Paragraph(
        "A user's value over the steps from 2 on minus its value at step 1, then the mean over the users that have "
        "both, in percentage points: unlike the difference above, both sides are the same users. For Error_* a "
        f"positive FWT is bad: more distractors are taken. {F1} tends to be higher over many steps than over one even "
        "where nothing improves, since means over more steps are steadier; the learning curve is free of that."
    )
    of = data["fwt"]
    yield Table(
        ("metric", "FWT", "95 % interval", "users"),
        tuple(
            (name, points(of[name]["value"]), span(of[name]["ci95"], points), str(of[name]["users"])) for name in NAMES
        ),
    )


def curves(data: JSON) -> Iterator[Block]:
    yield Heading("Learning curve")
    yield Paragraph(
        "Mean over the users with a scored step of that number, in percent. Who stays differs from step to step. "
        f"Later steps with fewer than {CURVE_USERS} users say little and stand in the JSON report only."
    )
    yield _curve_table([point for point in data["learning_curve"] if is_told(point)])
    cohort = data["cohort"]
    yield Heading("Learning curve of a fixed cohort")
    if cohort["reaches"] is None:
        yield Paragraph("No user has a scored step.")
        return
    yield Paragraph(
        f"The same for the {cohort['users']} users that reach step {cohort['reaches']}, the last step that at "
        "least half of the scored users reach."
    )
    yield _curve_table(data["cohort_curve"])


def is_told(point: JSON) -> bool:
    """Whether a point of a curve is over enough users, or early enough, to be shown to people."""
    return bool(point["users"] >= CURVE_USERS or point["step_id"] <= 3)


def _curve_table(curve: Sequence[JSON]) -> Table:
    return Table(
        ("step (users)", *CURVE_NAMES),
        tuple(
            (f"{point['step_id']} ({point['users']})", *(percent(point["metrics"][name]) for name in CURVE_NAMES))
            for point in curve
        ),
    )


def checks(data: JSON) -> Iterator[Block]:
    of = data["diagnostics"]
    counted = [
        ("steps", of["steps"]),
        ("not scored: the truth is empty", of["unscored_steps"]),
        ("users without a scored step", of["users_without_scored_step"]),
        ("valid answers", of["valid_answers"]),
        ("invalid answers, scored as empty", sum(of["invalid"].values())),
        *((f"- {kind}", number) for kind, number in of["invalid"].items()),
        ("repaired answers", of["repaired_steps"]),
        *((f"- {kind}", number) for kind, number in of["repaired"].items()),
        ("answers with tags outside the pool", of["out_of_pool"]["steps"]),
        ("tags outside the pool", of["out_of_pool"]["tags"]),
        ("valid answers with too many tags", of["wrong_number"]["more"]),
        ("valid answers with too few tags", of["wrong_number"]["fewer"]),
    ]
    yield Heading("Diagnostics")
    yield Table(("what", "number"), tuple((what, str(number)) for what, number in counted))
    yield Paragraph(
        "In percent. Cut: predictions cut to the asked number of tags. Valid only: Error_* over valid answers, since "
        "an empty prediction makes no errors either. Ceiling: an oracle that knows the truth, answers with the asked "
        f"number of tags from the pool and, step by step, seeks the highest {F1}."
    )
    yield Table(
        ("metric", "as given", "cut", "valid only", "ceiling"),
        tuple(
            (
                name,
                percent(data["metrics"][name]["value"]),
                percent(of["at_asked"][name]),
                percent(of["errors_over_valid"][name]) if name in ERRORS else "",
                percent(data["ceiling"][name]["value"]) if name in data["ceiling"] else "",
            )
            for name in NAMES
        ),
    )


def footing(data: JSON) -> Iterator[Block]:
    bootstrap, usage = data["bootstrap"], data["usage"]
    how = {
        "plain": "users resampled with replacement",
        "poisson_by_block": "blocks of users weighted by Poisson(1), since the users are many",
    }
    yield Heading("Intervals")
    yield Paragraph(
        f"95 % percentile bootstrap over users, {bootstrap['resamples']} resamples, seed {bootstrap['seed']}: "
        f"{how[bootstrap['method']]}. They cover the choice of users, not the model's own variation."
    )
    yield Heading("Usage")
    yield Paragraph(f"{spent.tokens(usage)} {_asked_again(data)}")
    if session := spent.session(data["schedule"], "user"):
        yield Paragraph(session)


def _asked_again(data: JSON) -> str:
    """Requests beyond one a step; the authors' runner tells none."""
    more = data["usage"]["requests"] - data["diagnostics"]["steps"]
    return f"{more} of the requests asked again for a reply that could not be used." if more > 0 else ""


def _for_stats(data: JSON) -> str:
    """What that script's patterns find; an undefined value has no line."""
    title = "Overall Macro Average"
    values = [(name, data["metrics"][name]["value"]) for name in METRICS]
    lines = [f"  {name} : {percent(value)}%" for name, value in values if value is not None]
    release = data["release_code"][F1]
    last = [f"{F1} : {percent(release)}%"] if release is not None else []
    return "\n".join([title, "=" * len(title), *lines, f"Users: {data['coverage']['scored_users']}", *last])


def percent(value: float | None) -> str:
    return "n/a" if value is None else f"{100 * value:.2f}"


def points(value: float | None) -> str:
    return "n/a" if value is None else f"{100 * value:+.2f}"


def span(interval: Sequence[float] | None, shown: Callable[[float], str] = percent) -> str:
    return "n/a" if interval is None else f"[{', '.join(map(shown, interval))}]"
