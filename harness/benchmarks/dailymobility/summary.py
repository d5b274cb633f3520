"""From merged scores to the report: `data` is the JSON report, and `blocks` says the same for people.

Source: docs/design.md, section 9. In `metrics` values are fractions, in `protocols` final scores are from 0 to 100 as
the benchmark has them; undefined ones are null. Blocks are made from `data` alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import orjson

from harness.benchmarks import invalid, spent
from harness.benchmarks.dailymobility.day import INTENTIONS
from harness.benchmarks.dailymobility.groundtruth import Ceiling, GroundTruth
from harness.benchmarks.dailymobility.protocols import (
    CAVEATS,
    HEADLINE,
    LOCATIONS,
    METRICS,
    PROTOCOLS,
    RADIUS,
    Numbers,
    Whole,
    aligned_histograms,
    all_protocols,
    per_slot,
)
from harness.benchmarks.dailymobility.scores import CORRECTED_FROM, FINAL, Estimate, ShardScores, estimates
from harness.model import JSON, Block, Heading, Paragraph, Report, RunFacts, Table
from harness.scoring.bootstrap import RESAMPLES

FORMAT = 1
SEED = 20_250


def summarise(scores: ShardScores, truth: GroundTruth, run: RunFacts, prompt_version: str) -> Report:
    """The report of one subset; `scores` may stand for no resident at all."""
    data = report_data(scores, truth, run, prompt_version)
    lists = data["lists"]
    files = {lists: orjson.dumps(scores.lists(), option=orjson.OPT_SERIALIZE_NUMPY) + b"\n"} if lists else {}
    headline = "; ".join(filter(None, (_headline(data["protocols"]), _invalid(data))))
    return Report(data, tuple(report_blocks(data)), headline, files)


def _invalid(data: JSON) -> str:
    of = data["diagnostics"]
    return invalid.sentence(of["invalid"], of["valid_days"] + sum(of["invalid"].values()), "days")


def _headline(protocols: Mapping[str, JSON]) -> str:
    return ", ".join(f"{name} {points(of[FINAL])}" for name, of in protocols.items())


def report_data(scores: ShardScores, truth: GroundTruth, run: RunFacts, prompt_version: str) -> JSON:
    """The JSON report."""
    users = scores.residents
    outcomes = all_protocols(truth.sample, scores.sample)
    slots = per_slot(truth.slots, scores.slots)
    found = estimates(scores, truth)
    finals = {name: outcome.final for name, outcome in outcomes.items()}
    return {
        "format": FORMAT,
        "benchmark": "dailymobility",
        "prompt_version": prompt_version,
        "prompt": run.prompt,
        "subset": run.subset,
        "model": run.model,
        "name": run.name,
        "coverage": {
            "expected_users": run.expected_users,
            "scored_users": users,
            "failed_users": run.failed_users,
            "complete": users == run.expected_users,
        },
        "protocols": {name: outcome.as_json() for name, outcome in outcomes.items()},
        "metrics": {
            "Score": _metric(found.get(FINAL), users),
            **{f"JSD_{metric}": _metric(found.get(metric), users) for metric in METRICS},
            "JSD_per_slot": {"value": _mean(slots), "ci95": None, "users": users},
            **{
                f"Score ({name})": {"value": None if final is None else final / 100, "ci95": None, "users": users}
                for name, final in finals.items()
                if name != HEADLINE
            },
        },
        "without_bias": _without_bias(found.get(FINAL)),
        "per_slot": None if slots is None else slots.tolist(),
        "histograms": _histograms(scores, truth),
        "day": {name: _of_slots(side) for name, side in (("ground_truth", truth.slots), ("scored", scores.slots))},
        "ceiling": ceiling_data(truth.ceiling(users, np.random.default_rng(SEED)) if users else None, users),
        "valid_days": {
            "users": users - scores.invalid.total(),
            HEADLINE: aligned_histograms(truth.histograms, scores.valid_days).as_json(),
        },
        "beside_truth": _beside_truth(scores, truth),
        "lists": f"generated_{run.subset}.json" if users and scores.kept else None,
        "ground_truth": {"residents": truth.residents, "sha256": truth.sha256},
        "diagnostics": _diagnostics(scores),
        "schedule": run.schedule,
        "run": run.run,
        "usage": {name: scores.counts[name] for name in spent.USAGE},
        "notes": list(run.notes),
    }


def _metric(estimate: Estimate | None, users: int) -> JSON:
    interval = estimate.interval if estimate else None
    return {
        "value": estimate.value if estimate else None,
        "ci95": list(interval) if interval else None,
        "users": users,
    }


def _histograms(scores: ShardScores, truth: GroundTruth) -> JSON:
    """Shares by bin of the aligned protocol, of both sides; the radius has equal bins up to `reach_m`, and beyond."""
    sides = {"ground_truth": truth.histograms, "scored": scores.all_days}
    found = {name: {metric: _shares(counts[metric]) for metric in METRICS} for name, counts in sides.items()}
    return {"reach_m": truth.support.reach, **found}


def _shares(counts: Whole) -> list[float]:
    return (counts / max(1, counts.sum())).tolist()  # type: ignore[no-any-return]


def _of_slots(slots: Whole) -> list[list[float]]:
    """Of each slot, the share of residents with each intention: 48 x 7."""
    return [_shares(slot) for slot in slots]


def _mean(values: np.ndarray[tuple[int, ...], np.dtype[np.float64]] | None) -> float | None:
    return None if values is None else float(values.mean())


def _without_bias(estimate: Estimate | None) -> JSON | None:
    """The score, as a fraction, that unlimited residents would have."""
    if estimate is None or estimate.corrected is None:
        return None
    value, interval = estimate.corrected
    return {"value": value, "ci95": list(interval)}


def ceiling_data(ceiling: Ceiling | None, residents: int) -> JSON | None:
    """What the ground truth itself would score; shared with `score-mobility`."""
    if ceiling is None:
        return None
    return {
        "residents": residents,
        FINAL: ceiling.score,
        "range95": list(ceiling.score_range),
        "JSD_per_slot": ceiling.slots,
        "JSD_per_slot_range95": list(ceiling.slots_range),
        "resamples": RESAMPLES,
        "seed": SEED,
    }


def _beside_truth(scores: ShardScores, truth: GroundTruth) -> JSON | None:
    """What a reader wants to see of both sides."""
    if not scores.residents:
        return None
    columns = truth.lists.columns
    return {
        "median_gyration_radius_m": [float(np.median(columns[RADIUS])), float(np.median(scores.all_radii))],
        "mean_daily_location_number": [_mean_of(side[LOCATIONS]) for side in (truth.sample, scores.sample)],
        "intention_shares": {
            name: [_share(truth.slots, number), _share(scores.slots, number)] for number, name in INTENTIONS.items()
        },
    }


def _mean_of(numbers: Numbers) -> float:
    return float(numbers.values @ numbers.counts / numbers.counts.sum())


def _share(slots: Whole, number: int) -> float:
    return float(slots[:, number - 1].sum() / slots.sum())


def _diagnostics(scores: ShardScores) -> JSON:
    return {
        "modes": dict(sorted(scores.modes.items())),
        "valid_days": scores.residents - scores.invalid.total(),
        "valid_answers": scores.residents - scores.invalid.total(),
        "invalid": dict(sorted(scores.invalid.items())),
        "repaired_users": scores.counts["repaired"],
        "repaired": dict(sorted(scores.repaired.items())),
        "warned_users": scores.counts["warned"],
        "warnings": dict(sorted(scores.warnings.items())),
    }


def report_blocks(data: JSON) -> Iterator[Block]:
    """The report for people, in order."""
    yield Heading(f"DailyMobility ({data['subset']}): {data['model']}")
    yield Paragraph(f"Model {data['model']}, run {data['name']}, subset {data['subset']}.")
    yield from map(Paragraph, data["notes"])
    yield from coverage(data)
    yield from about_run(data)
    yield Heading("Scores")
    yield protocol_table(data["protocols"])
    yield from map(Paragraph, undefined(data["protocols"]))
    yield from trust(data)
    yield from valid_days(data)
    yield from map(Paragraph, about_protocols())
    yield from beside(data["beside_truth"])
    yield from checks(data)
    yield from usage(data)


def coverage(data: JSON) -> Iterator[Block]:
    """Who is scored, and how many of their days are invalid."""
    yield from _covered(data)
    if words := _invalid(data):
        yield Paragraph(f"{words}: scored as a day at home with the intention other.")


def _covered(data: JSON) -> Iterator[Block]:
    of, run = data["coverage"], data["run"]
    users = f"{of['scored_users']} of {of['expected_users']} residents are scored"
    share = run.get("ratio", 1.0)
    of_all = (
        ""
        if share == 1.0
        else (
            f" This is a share of {share:g} of the {run['users_in_tasks']} residents in the tasks file, drawn with "
            f"seed {run['sample_seed']}."
        )
    )
    if of["complete"]:
        yield Heading(f"Coverage: complete{'' if share == 1.0 else f' (of a share of {share:g})'}")
        yield Paragraph(f"{users}.{of_all}")
        return
    missing = of["expected_users"] - of["scored_users"]
    yield Heading(f"INCOMPLETE: {of['scored_users']} of {of['expected_users']} residents")
    yield Paragraph(
        f"{users}; {missing} are missing, of whom {of['failed_users']} failed.{of_all} Every figure below is over the "
        "scored residents only. Divergences compare whole distributions and are larger the fewer residents there are, "
        "so no lowest or highest value can be given for the missing: the scores change once they are there."
    )


SETTINGS = (
    "structured",
    "parse_retries",
    "simulator",
    "agent_seed",
    "map_sha256",
    "temperature",
    "top_p",
    "seed",
    "max_tokens",
    "extra_body",
)


def about_run(data: JSON) -> Iterator[Block]:
    run, modes, truth = data["run"], data["diagnostics"]["modes"], data["ground_truth"]
    yield Heading("What was run")
    labels = {
        "plan": "plan mode, in which a plain model gives the whole day at once (no mode of asbench, so no published "
        "score compares)",
        "agent": "agent mode, in which an agent file lives the day step by step",
    }
    yield Paragraph(
        "; ".join(f"{users} residents in {labels.get(mode, mode)}" for mode, users in modes.items()) + "."
        if modes
        else "Nobody was scored."
    )
    own = f"This harness's own prompt (prompt version {data['prompt_version']})"
    whose = own if data["prompt"] == "own" else f"The user's own: {data['prompt']}"
    yield Paragraph(f"{whose}. Ground truth: {truth['residents']} residents, SHA-256 {truth['sha256'][:16]}…")
    if run:
        settings = ", ".join(f"{name} {value}" for name, value in run.items() if name in SETTINGS)
        yield Paragraph(
            f"Settings: {settings}. Tasks: {run['tasks']}, {run['users_in_tasks']} residents, SHA-256 "
            f"{run['tasks_sha256'][:16]}… Endpoint: {run['endpoint']}. Harness {run['harness']}, run begun "
            f"{run['created']}."
        )


def protocol_table(protocols: Mapping[str, JSON]) -> Table:
    """Final scores and divergences, a column a protocol."""
    keys = (FINAL, *(f"jsd_{metric}" for metric in METRICS))
    shown: dict[str, Callable[[float | None], str]] = {FINAL: points}
    return Table(
        ("", *(f"{name} (headline)" if name == HEADLINE else name for name in protocols)),
        tuple((key, *(shown.get(key, jsd)(of[key]) for of in protocols.values())) for key in keys),
    )


def undefined(protocols: Mapping[str, JSON]) -> Iterator[str]:
    """Why a protocol has no score."""
    for name, of in protocols.items():
        if "reason" in of:
            yield f"{name} is not defined here: {of['reason']}."


def about_protocols() -> Iterator[str]:
    """What each protocol is, and what none of them sees."""
    yield "The final score is the mean of the four (1 - JSD) x 100, from 0 to 100; higher is better."
    for name, protocol in PROTOCOLS.items():
        yield f"{name}: {protocol.about}."
    yield from CAVEATS


def trust(data: JSON) -> Iterator[Block]:
    of, ceiling, unlimited = data["metrics"], data["ceiling"], data["without_bias"]
    if ceiling is None:
        return
    rows = [("final_score", percent(of["Score"]["value"]), span(of["Score"]["ci95"], percent))]
    rows += [(f"jsd_{name}", jsd(of[f"JSD_{name}"]["value"]), span(of[f"JSD_{name}"]["ci95"], jsd)) for name in METRICS]
    yield Heading(f"How far the headline ({HEADLINE}) can be trusted")
    yield Table(("", "value", "95 % interval"), tuple(rows))
    yield Paragraph(
        "The interval is for the mean over other residents, just as many, by the jackknife: it covers the choice of "
        "residents, not the model's own variation, nor that the ground truth is itself of few residents."
    )
    yield Paragraph(ceiling_told(ceiling))
    if unlimited:
        yield Paragraph(
            f"With unlimited residents the score would be about {percent(unlimited['value'])}, 95 % interval "
            f"{span(unlimited['ci95'], percent)}: divergences of few residents are too large on average."
        )
    else:
        yield Paragraph(
            "Divergences of few residents are too large on average; by how much cannot be told from fewer than "
            f"{CORRECTED_FROM} of them."
        )
    yield Paragraph(
        f"Divergence per slot, averaged over the day: {jsd(of['JSD_per_slot']['value'])} (0 is best, 1 worst; "
        f"resampled ground truth: {jsd(ceiling['JSD_per_slot'])})."
    )


def ceiling_told(ceiling: JSON) -> str:
    """The ceiling in a sentence."""
    return (
        f"Ceiling ({HEADLINE}): {ceiling['residents']} residents drawn from the ground truth itself score "
        f"{points(ceiling[FINAL])} on average, 95 % of the draws in {span(ceiling['range95'], points)} "
        f"({ceiling['resamples']} draws, seed {ceiling['seed']})."
    )


def valid_days(data: JSON) -> Iterator[Block]:
    invalid = data["coverage"]["scored_users"] - data["valid_days"]["users"]
    if invalid:
        yield Paragraph(
            f"{invalid} of the days are invalid answers and count as stayed home with the intention other. Over the "
            f"{data['valid_days']['users']} valid days alone the final score ({HEADLINE}) is "
            f"{points(data['valid_days'][HEADLINE][FINAL])}."
        )


def beside(of: JSON | None) -> Iterator[Block]:
    if of is None:
        return
    radius, locations = of["median_gyration_radius_m"], of["mean_daily_location_number"]
    yield Heading("Beside the ground truth")
    yield Table(
        ("", "ground truth", "scored"),
        (
            ("median gyration radius, m", *(f"{value:.0f}" for value in radius)),
            ("mean daily locations", *(f"{value:.2f}" for value in locations)),
            *(
                (f"time of {name}, %", *(percent(value) for value in shares))
                for name, shares in of["intention_shares"].items()
            ),
        ),
    )


def checks(data: JSON) -> Iterator[Block]:
    of = data["diagnostics"]
    counted = [
        ("valid days", of["valid_days"]),
        ("invalid days", sum(of["invalid"].values())),
        *((f"- {kind}", number) for kind, number in of["invalid"].items()),
        ("residents with a repaired answer", of["repaired_users"]),
        *((f"- {kind}", number) for kind, number in of["repaired"].items()),
        ("residents with a warning", of["warned_users"]),
        *((f"- {kind}", number) for kind, number in of["warnings"].items()),
    ]
    yield Heading("Diagnostics")
    yield Table(("what", "number"), tuple((what, str(number)) for what, number in counted))


def usage(data: JSON) -> Iterator[Block]:
    yield Paragraph(
        f"The four lists stand in {data['lists']}, residents in the order of the results file."
        if data["lists"]
        else "The four lists are not written: there are no residents, or very many."
    )
    yield Heading("Usage")
    yield Paragraph(spent.tokens(data["usage"]))
    if session := spent.session(data["schedule"], "resident"):
        yield Paragraph(session)


def points(value: float | None) -> str:
    """A final score."""
    return "n/a" if value is None else f"{value:.2f}"


def jsd(value: float | None) -> str:
    return "n/a" if value is None else f"{value:.4f}"


def percent(value: float | None) -> str:
    return "n/a" if value is None else f"{100 * value:.2f}"


def span(interval: Sequence[float] | None, shown: Callable[[float], str]) -> str:
    return "n/a" if interval is None else f"[{', '.join(map(shown, interval))}]"
