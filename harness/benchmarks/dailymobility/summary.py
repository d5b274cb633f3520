"""Make what only a report of DailyMobility has: `details`, and the sections that show them.

Source: docs/design.md, section 9. In `protocols` final scores are from 0 to 100 as the benchmark
has them; other values are fractions, undefined ones null.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import orjson
from msgspec import UNSET

from harness.benchmark import Metric, Scoring
from harness.benchmarks.dailymobility import scores
from harness.benchmarks.dailymobility.day import INTENTIONS, SLOTS
from harness.benchmarks.dailymobility.groundtruth import GroundTruth
from harness.benchmarks.dailymobility.protocols import (
    BINS,
    CAVEATS,
    HEADLINE,
    LOCATIONS,
    METRICS,
    PROPORTIONS,
    PROTOCOLS,
    RADIUS,
    Integers,
    Numbers,
    aligned_counts,
    by_metric,
    figures,
)
from harness.benchmarks.dailymobility.scores import DayTally
from harness.benchmarks.dailymobility.spread import (
    FIGURES,
    FINAL,
    MIN_USERS,
    MIN_USERS_LOCATIONS,
    MarkedInterval,
)
from harness.benchmarks.rendering import (
    chart,
    interval_chart,
    number,
    numbers,
    table,
)
from harness.document import Block, Chart, Heading, Paragraph, Table
from harness.model import JSON
from harness.printable import short_hash
from harness.scoring.bootstrap import Array
from harness.scoring.intervals import FEWEST_AT_ALL
from harness.scoring.reports import Report, Scored

HOURS = tuple(slot / 2 for slot in range(SLOTS))
SIDES = {"ground_truth": "ground truth", "scored": "scored"}
BINS_PER_BAR = 5
"""Bins of the aligned protocol that a bar of a picture stands for."""
SCORE, PER_SLOT = "Score", "JSD_per_slot"
NAMES = {FINAL: SCORE, **{metric: f"JSD_{metric}" for metric in METRICS}}
"""Figure -> its name among the metrics of a report."""


@dataclass(frozen=True)
class DayScoring(Scoring):
    """Divergences of the counts of all days from the ground truth. `truth` is None where nothing is
    prepared."""

    secondary = (
        Metric(
            PER_SLOT,
            better="lower",
            definition="divergence of intentions per half hour, mean of the day",
        ),
        Metric(f"{SCORE} (asbench)", definition="the score, protocol asbench"),
        Metric(
            f"{SCORE} (agentsociety2)",
            definition="the score, protocol agentsociety2",
        ),
    )
    headline = (SCORE, f"{SCORE} (asbench)", f"{SCORE} (agentsociety2)")
    live = (SCORE, PER_SLOT)
    truth: GroundTruth | None = None

    def tallied(self, records: Sequence[JSON]) -> tuple[Array, DayTally]:
        assert self.truth is not None
        return scores.tallied(records, self.truth)

    def figures(self, totals: Array) -> Array:
        assert self.truth is not None
        return figures(self.truth.totals, totals)

    def condense(self, tally: DayTally) -> DayTally:
        return tally.condensed()

    def further_figures(self, tally: DayTally) -> dict[str, float | None]:
        """Return the figures that need more than sums by bin; of a condensed tally without the
        other protocols."""
        figures: dict[str, float | None] = {PER_SLOT: float(tally.per_slot.mean())}
        # A condensed tally: asbench's bins depend on each resident's radius.
        if not tally.radii:
            return figures
        for name, outcome in tally.protocols.items():
            if name != HEADLINE:
                # Protocols have the benchmark's own scale, from 0 to 100; metrics of a report are
                # fractions.
                figures[f"Score ({name})"] = outcome.final and outcome.final / 100
        return figures

    def intervals(self, scored: Scored) -> dict[str, MarkedInterval | None]:
        return {NAMES[name]: scored.tally.estimates[name].interval for name in FIGURES}

    def bias(self, scored: Scored) -> dict[str, float]:
        """Return what the jackknife takes off each figure, from ten residents on."""
        biases = {}
        for name, estimate in scored.tally.estimates.items():
            if estimate.bias is not None:
                biases[NAMES[name]] = estimate.bias
        return biases

    def details(self, scored: Scored) -> JSON:
        """Return the benchmark's own part of the JSON report.

        `protocols` by name: the divergences, `final_score` (0 to 100), and `reason` where something
        is null. `ci95_truth` by metric; `without_bias` (`value, ci95`); `per_slot`; `histograms`
        (shares by bin of `aligned`, of both sides, and `reach_m`); `day` (48 x 7 shares, of both
        sides); `ceiling`; `valid_days`; `beside_truth`; `lists`; `ground_truth` (`residents,
        sha256`); `modes`, `repaired_users`, `warned_users`, `warnings`.
        """
        tally: DayTally = scored.tally
        truth = tally.truth
        counts = tally.counts
        spans: dict[str, tuple[float, float] | None] = {}
        approximate = []
        for name, estimate in tally.estimates.items():
            span = estimate.with_truth
            spans[NAMES[name]] = span and span[:2]
            if span and span[2]:
                approximate.append(NAMES[name])

        without_bias = None
        corrected = tally.estimates[FINAL].corrected
        if corrected:
            value, span = corrected
            without_bias = {"value": value, "ci95": span and span[:2]}

        # Counts are whole numbers; sums of rows are floats.
        valid_days = tally.valid_days.astype(np.int64)
        lists = None
        if tally.lists is not None:
            lists = f"generated_{scored.subset}.json"

        return {
            "protocols": {name: outcome.as_json() for name, outcome in tally.protocols.items()},
            "ci95_truth": spans,
            "approximate_truth": approximate,
            "without_bias": without_bias,
            "per_slot": tally.per_slot.tolist(),
            "histograms": {
                "reach_m": truth.support.reach,
                "ground_truth": _histogram_shares(truth.totals),
                "scored": _histogram_shares(tally.all_days.astype(np.int64)),
            },
            "day": {
                "ground_truth": [*map(_shares, truth.slots)],
                "scored": [*map(_shares, tally.slots)],
            },
            "ceiling": truth.ceiling(scored.users),
            "valid_days": {
                "users": counts["valid"],
                HEADLINE: aligned_counts(truth.totals, valid_days).as_json(),
            },
            "beside_truth": _beside_truth(tally, truth),
            "lists": lists,
            "ground_truth": {
                "residents": truth.residents,
                "sha256": truth.sha256,
            },
            "modes": dict(sorted(tally.modes.items())),
            "repaired_users": counts["repaired"],
            "warned_users": counts["warned"],
            "warnings": dict(sorted(tally.warnings.items())),
        }

    def sections(self, scored: Scored) -> Iterator[Block]:
        assert scored.report is not None
        return sections(scored.report)

    def report_files(self, scored: Scored) -> dict[str, bytes]:
        columns = scored.tally.columns()
        if columns is None:
            return {}
        data = orjson.dumps(columns, option=orjson.OPT_SERIALIZE_NUMPY)
        return {f"generated_{scored.subset}.json": data + b"\n"}


def _shares(counts: Integers) -> list[float]:
    shares: list[float] = (counts / max(1, int(counts.sum()))).tolist()
    return shares


def _histogram_shares(counts: Integers) -> dict[str, list[float]]:
    return {metric: _shares(bins) for metric, bins in by_metric(counts).items()}


def _beside_truth(tally: DayTally, truth: GroundTruth) -> JSON:
    """Return what a reader wants to see of both sides: the ground truth, then what is scored."""
    radii = (truth.lists.columns[RADIUS], tally.all_radii)
    locations = (truth.sample[LOCATIONS], tally.sample[LOCATIONS])
    truth_shares = _shares(truth.slots.sum(axis=0))
    scored_shares = _shares(tally.slots.sum(axis=0))
    return {
        "median_gyration_radius_m": [float(np.median(values)) for values in radii],
        "mean_daily_location_number": [*map(_mean, locations)],
        "intention_shares": {
            name: [truth_shares[intention - 1], scored_shares[intention - 1]]
            for intention, name in INTENTIONS.items()
        },
    }


def _mean(numbers: Numbers) -> float:
    return float(numbers.values @ numbers.counts / numbers.counts.sum())


def upgraded(data: JSON) -> JSON:
    """Return a JSON report of format 1 with its secondary metrics apart, and with answers counted
    under that name."""
    diagnostics = data["diagnostics"].copy()
    if "valid_days" in diagnostics:
        valid = diagnostics["valid_days"]
        diagnostics["valid_answers"] = valid
        diagnostics["answers"] = valid + sum(diagnostics["invalid"].values())

    metrics = data["metrics"].copy()
    secondary = data["secondary"].copy()
    for name in (PER_SLOT, *(f"Score ({protocol})" for protocol in PROTOCOLS)):
        if name in metrics:
            secondary[name] = metrics.pop(name)

    return {
        **data,
        "diagnostics": diagnostics,
        "secondary": secondary,
        "metrics": metrics,
    }


# Blocks


def sections(report: Report) -> Iterator[Block]:
    details = report.details
    yield Heading("Protocols")
    yield protocol_table(details["protocols"])
    yield from map(Paragraph, undefined(details["protocols"]))
    yield from _trust(report)
    yield from _valid_days(report)
    yield from map(Paragraph, about_protocols())
    yield from _about_run(report)
    yield Heading("The day, by time")
    for side, name in SIDES.items():
        yield ribbon(
            f"What residents do, {name}: share of them with each intention",
            "% of residents",
            details["day"][side],
        )

    title = "Divergence of the intentions at each half hour (0 is best)"
    series = {"JSD": details["per_slot"]}
    yield chart("curve", title, HOURS, ("hour", "JSD"), series, percent=False)
    yield from _comparison(details["beside_truth"])
    yield from _histograms(details["histograms"])
    yield Heading("Diagnostics of days")
    unit = _unit(report)
    warnings = [(f"- {kind}", count) for kind, count in details["warnings"].items()]
    yield numbers(
        (f"{unit} with a repaired answer", details["repaired_users"]),
        (f"{unit} with a warning", details["warned_users"]),
        *warnings,
    )
    if details["lists"]:
        yield Paragraph(
            f"The four lists are in {details['lists']}, residents in the order of the results file."
        )
    else:
        yield Paragraph("The four lists are not written, since there are very many residents.")


def _unit(report: Report) -> str:
    """Return what a run with or without repeats counts."""
    if report.repeats is UNSET:
        return "residents"
    return "days"


def _about_run(report: Report) -> Iterator[Block]:
    truth = report.details["ground_truth"]
    labels = {
        "plan": (
            "plan mode, in which a plain model gives the whole day at once (no mode of asbench, so"
            " no published score compares)"
        ),
        "agent": "agent mode, in which an agent file lives the day step by step",
    }
    modes = []
    for mode, days in report.details["modes"].items():
        modes.append(f"{days} {_unit(report)} in {labels.get(mode, mode)}")

    yield Paragraph(
        f"{'; '.join(modes)}. Ground truth: {truth['residents']} residents, SHA-256"
        f" {short_hash(truth['sha256'])}"
    )
    if not report.run.get("agent_parameters"):
        return

    sentence = "Requests have the sampling parameters that the agent asks for"
    parameters = [
        f"{name} {report.run[name]}"
        for name in ("temperature", "top_p", "max_tokens")
        if name in report.run
    ]
    if parameters:
        sentence += f", except for this run's own: {', '.join(parameters)}"

    sentence += "."
    if "temperature" not in report.run:
        sentence += " Without one of the agent's the temperature is 1, as upstream."

    yield Paragraph(sentence)


def protocol_table(protocols: Mapping[str, JSON]) -> Table:
    """Return final scores and divergences, a column a protocol."""
    columns = {}
    for name, outcome in protocols.items():
        column = {FINAL: number(outcome[FINAL])}
        for metric in METRICS:
            column[f"jsd_{metric}"] = jsd(outcome[f"jsd_{metric}"])

        if name == HEADLINE:
            name = f"{name} (headline)"

        columns[name] = column

    return table("", columns)


def undefined(protocols: Mapping[str, JSON]) -> Iterator[str]:
    """Yield why a protocol has no score."""
    for name, outcome in protocols.items():
        if "reason" in outcome:
            yield f"{name} is not defined here: {outcome['reason']}."


def about_protocols() -> Iterator[str]:
    """Return what each protocol is, and what none of them sees."""
    yield (
        "The final score is the mean of the four (1 - JSD) x 100, from 0 to 100; higher is better."
    )
    for name, protocol in PROTOCOLS.items():
        yield f"{name}: {protocol.about}."
    yield from CAVEATS


def _trust(report: Report) -> Iterator[Block]:
    details = report.details
    ceiling = details["ceiling"]
    unlimited = details["without_bias"]
    rows = [_trust_row(report, FINAL, FINAL, percent)]
    rows += [_trust_row(report, metric, f"jsd_{metric}", jsd) for metric in METRICS]
    yield Heading(f"How far the headline ({HEADLINE}) can be trusted")
    columns = ("", "value", "95 %: run", "run and ground truth")
    yield Table(columns, tuple(rows))
    divergences = {metric.replace("_", " "): report.metrics[NAMES[metric]] for metric in METRICS}
    title = (
        "Divergences from the ground truth, with 95 % intervals of other residents in the run (0 is"
        " best)"
    )
    yield interval_chart(title, "JSD", {"JSD": divergences}, list(divergences), percent=False)
    yield Paragraph(
        "95 % intervals are for the mean of the figure: of other residents in the run, just as"
        " many, with this ground truth (run); and of other residents in the ground truth as well,"
        " just as many (run and ground truth). They are jackknife intervals with skewness and"
        " curvature taken out. The first is for comparing runs, the second for people in general."
        " Both cover the choice of answers, not what all answers of a run have in common. ~: not"
        f" shown to hold, only the order of magnitude: fewer than {MIN_USERS} residents"
        f" ({MIN_USERS_LOCATIONS} for locations), or nearly all are alike. Too few: fewer than"
        f" {FEWEST_AT_ALL} residents, or all are alike."
    )
    yield Paragraph(ceiling_text(ceiling))
    if unlimited:
        yield Paragraph(
            f"With unlimited residents the score would be about {percent(unlimited['value'])}, 95 %"
            f" interval {span(unlimited['ci95'], percent)}: divergences of few residents are too"
            " large on average."
        )
    else:
        yield Paragraph(
            "Divergences of few residents are too large on average; fewer than "
            f"{MIN_USERS} of them do not show by how much."
        )

    yield Paragraph(
        f"Divergence per slot, averaged over the day: {jsd(report.secondary[PER_SLOT].value)} (0 is"
        f" best, 1 worst; resampled ground truth: {jsd(ceiling[PER_SLOT])})."
    )


def _trust_row(
    report: Report,
    figure: str,
    label: str,
    format_value: Callable[[float | None], str],
) -> tuple[str, ...]:
    """Return a figure with its intervals: of other residents in the run, and on both sides."""
    name = NAMES[figure]
    value = report.metrics[name]
    details = report.details
    both_sides = "n/a"
    if "ci95_truth" in details:  # reports of format 2 have none
        approximate = name in details.get("approximate_truth", ())
        both_sides = span(details["ci95_truth"][name], format_value, approximate)

    return (
        label,
        format_value(value.value),
        span(value.ci95, format_value, bool(value.approximate)),
        both_sides,
    )


def ceiling_text(ceiling: JSON) -> str:
    """Return the ceiling in a sentence."""
    return (
        f"Ceiling ({HEADLINE}): {ceiling['residents']} residents drawn from the ground truth itself"
        f" score {number(ceiling[FINAL])} on average, 95 % of the draws in"
        f" {span(ceiling['range95'], number)} ({ceiling['resamples']} draws, seed"
        f" {ceiling['seed']})."
    )


def _valid_days(report: Report) -> Iterator[Block]:
    valid_days = report.details["valid_days"]
    invalid = report.diagnostics.answers - valid_days["users"]
    if invalid:
        yield Paragraph(
            f"{invalid} of the days are invalid answers and count as stayed home with the intention"
            f" other. Over the {valid_days['users']} valid days alone the final score ({HEADLINE})"
            f" is {number(valid_days[HEADLINE][FINAL])}."
        )


def _comparison(sides: JSON) -> Iterator[Block]:
    columns = {}
    for index, side in enumerate(SIDES.values()):
        column = {
            "median gyration radius, m": number(sides["median_gyration_radius_m"][index], 0),
            "mean daily locations": number(sides["mean_daily_location_number"][index]),
        }
        for name, shares in sides["intention_shares"].items():
            column[f"time of {name}, %"] = percent(shares[index])

        columns[side] = column

    yield Heading("Compared with the ground truth")
    yield table("", columns)


def ribbon(title: str, label: str, slots: Sequence[Sequence[float]]) -> Chart:
    """Return a chart of a day: of each slot the share of each intention."""
    shares = dict(zip(INTENTIONS.values(), zip(*slots, strict=True), strict=True))
    return chart("ribbon", title, HOURS, ("hour", label), shares)


def _histograms(histograms: JSON) -> Iterator[Chart]:
    """Yield both sides in the bins of the aligned protocol, some of them put together."""
    reach = histograms["reach_m"]
    bars = BINS // BINS_PER_BAR
    width = reach * BINS_PER_BAR / BINS / 1000
    edges = [round(edge * width, 6) for edge in range(bars + 2)]
    title = f"Radius of gyration: the last bar is all beyond {reach / 1000:.1f} km"
    yield chart(
        "histogram",
        title,
        edges,
        ("km", "%"),
        _bars(histograms, RADIUS, BINS_PER_BAR),
    )
    locations = _bars(histograms, LOCATIONS, 1)
    edges = [edge - 0.5 for edge in range(len(locations["scored"]) + 1)]
    title = "Places in a day: the last bar is all beyond 10"
    yield chart("histogram", title, edges, ("places", "%"), locations)
    shares = _bars(histograms, PROPORTIONS, BINS_PER_BAR)
    edges = [edge * BINS_PER_BAR / BINS for edge in range(bars + 1)]
    title = "Shares of the day that an intention takes, all seven pooled"
    yield chart("histogram", title, edges, ("share of the day", "%"), shares)


def _bars(histograms: JSON, metric: str, width: int) -> dict[str, list[float]]:
    """Return the shares of both sides, `width` bins put together."""
    bars = {}
    for side, name in SIDES.items():
        shares = histograms[side][metric]
        bars[name] = [sum(shares[start : start + width]) for start in range(0, len(shares), width)]
    return bars


def jsd(value: float | None) -> str:
    return number(value, 4)


def percent(value: float | None) -> str:
    return number(value and 100 * value)


def span(
    interval: Sequence[float] | None,
    format_value: Callable[[float], str],
    approximate: bool = False,
) -> str:
    if interval is None:
        return "too few"
    ends = ", ".join(map(format_value, interval))
    return f"{'~' * approximate}[{ends}]"
