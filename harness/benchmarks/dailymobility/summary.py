"""What a report of DailyMobility has of its own: `details`, and the sections that are made of them.

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
    Numbers,
    Whole,
    aligned_counts,
    by_metric,
    figures,
)
from harness.benchmarks.dailymobility.scores import Tally
from harness.benchmarks.dailymobility.spread import FEWEST, FEWEST_LOCATIONS, FIGURES, FINAL, Marked
from harness.benchmarks.rendering import chart, interval_chart, number, numbers, table
from harness.document import Block, Chart, Heading, Paragraph, Table
from harness.model import JSON
from harness.printable import short_hash
from harness.scoring.bootstrap import Array
from harness.scoring.intervals import FEWEST_AT_ALL
from harness.scoring.reports import Report, Scored

HOURS = tuple(slot / 2 for slot in range(SLOTS))
SIDES = {"ground_truth": "ground truth", "scored": "scored"}
COARSER = 5
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
        *(
            Metric(f"{SCORE} ({of})", definition=f"the score, protocol {of}")
            for of in ("asbench", "agentsociety2")
        ),
    )
    headline = (SCORE, f"{SCORE} (asbench)", f"{SCORE} (agentsociety2)")
    live = (SCORE, PER_SLOT)
    truth: GroundTruth | None = None

    def tallied(self, records: Sequence[JSON]) -> tuple[Array, Tally]:
        assert self.truth is not None
        return scores.tallied(records, self.truth)

    def figures(self, totals: Array) -> Array:
        assert self.truth is not None
        return figures(self.truth.totals, totals)

    def condense(self, tally: Tally) -> Tally:
        return tally.condensed()

    def further_figures(self, tally: Tally) -> dict[str, float | None]:
        """Return the figures that need more than sums by bin; of a condensed tally without the
        other protocols."""
        finals = (
            {name: of.final for name, of in tally.protocols.items() if name != HEADLINE}
            if tally.radii
            else {}
        )
        others = {
            f"Score ({name})": None if final is None else final / 100
            for name, final in finals.items()
        }
        return {PER_SLOT: float(tally.per_slot.mean()), **others}

    def intervals(self, scored: Scored) -> dict[str, Marked | None]:
        return {NAMES[name]: scored.tally.estimates[name].interval for name in FIGURES}

    def bias(self, scored: Scored) -> dict[str, float]:
        """Return what the jackknife takes off each figure, from ten residents on."""
        estimates = scored.tally.estimates
        return {NAMES[name]: bias for name in FIGURES if (bias := estimates[name].bias) is not None}

    def details(self, scored: Scored) -> JSON:
        """Return the benchmark's own part of the JSON report.

        `protocols` by name: the divergences, `final_score` (0 to 100), and `reason` where something
        is null. `ci95_truth` by metric; `without_bias` (`value, ci95`); `per_slot`; `histograms`
        (shares by bin of `aligned`, of both sides, and `reach_m`); `day` (48 x 7 shares, of both
        sides); `ceiling`; `valid_days`; `beside_truth`; `lists`; `ground_truth` (`residents,
        sha256`); `modes`, `repaired_users`, `warned_users`, `warnings`.
        """
        tally: Tally = scored.tally
        truth, counts, estimates = tally.truth, tally.counts, tally.estimates
        corrected = estimates[FINAL].corrected
        wider = {NAMES[name]: estimates[name].with_truth for name in FIGURES}
        all_days, valid_days = (of.astype(np.int64) for of in (tally.all_days, tally.valid_days))
        return {
            "protocols": {name: outcome.as_json() for name, outcome in tally.protocols.items()},
            "ci95_truth": {name: ends and ends[:2] for name, ends in wider.items()},
            "approximate_truth": [name for name, ends in wider.items() if ends and ends[2]],
            "without_bias": (
                corrected and {"value": corrected[0], "ci95": corrected[1] and corrected[1][:2]}
            ),
            "per_slot": tally.per_slot.tolist(),
            "histograms": {
                "reach_m": truth.support.reach,
                **{
                    side: {metric: _shares(part) for metric, part in by_metric(of).items()}
                    for side, of in (("ground_truth", truth.totals), ("scored", all_days))
                },
            },
            "day": {
                side: [_shares(slot) for slot in of]
                for side, of in (("ground_truth", truth.slots), ("scored", tally.slots))
            },
            "ceiling": truth.ceiling(scored.users),
            "valid_days": {
                "users": counts["valid"],
                HEADLINE: aligned_counts(truth.totals, valid_days).as_json(),
            },
            "beside_truth": _beside_truth(tally, truth),
            "lists": None if tally.lists is None else f"generated_{scored.subset}.json",
            "ground_truth": {"residents": truth.residents, "sha256": truth.sha256},
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
        return {
            f"generated_{scored.subset}.json": (
                orjson.dumps(columns, option=orjson.OPT_SERIALIZE_NUMPY) + b"\n"
            )
        }


def _shares(counts: Whole) -> list[float]:
    shares: list[float] = (counts / max(1, int(counts.sum()))).tolist()
    return shares


def _beside_truth(tally: Tally, truth: GroundTruth) -> JSON:
    """Return what a reader wants to see of both sides: the ground truth, then what is scored."""
    radii = truth.lists.columns[RADIUS], tally.all_radii
    return {
        "median_gyration_radius_m": [float(np.median(of)) for of in radii],
        "mean_daily_location_number": [
            _mean_of(side[LOCATIONS]) for side in (truth.sample, tally.sample)
        ],
        "intention_shares": {
            name: [
                float(slots[:, intention - 1].sum() / slots.sum())
                for slots in (truth.slots, tally.slots)
            ]
            for intention, name in INTENTIONS.items()
        },
    }


def _mean_of(numbers: Numbers) -> float:
    return float(numbers.values @ numbers.counts / numbers.counts.sum())


def upgraded(data: JSON) -> JSON:
    """Return a JSON report of format 1 with its secondary metrics apart, and with answers counted
    under that name."""
    metrics, of = dict(data["metrics"]), data["diagnostics"]
    if "valid_days" in of:
        answers = of["valid_days"] + sum(of["invalid"].values())
        data = {
            **data,
            "diagnostics": {**of, "valid_answers": of["valid_days"], "answers": answers},
        }
    names = [
        name for name in (PER_SLOT, *(f"Score ({name})" for name in PROTOCOLS)) if name in metrics
    ]
    return {
        **data,
        "secondary": {**data["secondary"], **{name: metrics.pop(name) for name in names}},
        "metrics": metrics,
    }


# Blocks


def sections(report: Report) -> Iterator[Block]:
    of = report.details
    yield Heading("Protocols")
    yield protocol_table(of["protocols"])
    yield from map(Paragraph, undefined(of["protocols"]))
    yield from _trust(report)
    yield from _valid_days(report)
    yield from map(Paragraph, about_protocols())
    yield from _about_run(report)
    yield Heading("The day, by time")
    for side, name in SIDES.items():
        yield ribbon(
            f"What residents do, {name}: share of them with each intention",
            "% of residents",
            of["day"][side],
        )
    title = "Divergence of the intentions at each half hour (0 is best)"
    yield chart("curve", title, HOURS, ("hour", "JSD"), {"JSD": of["per_slot"]}, percent=False)
    yield from _beside(of["beside_truth"])
    yield from _histograms(of["histograms"])
    yield Heading("Diagnostics of days")
    what = "residents" if report.repeats is UNSET else "days"
    yield numbers(
        (f"{what} with a repaired answer", of["repaired_users"]),
        (f"{what} with a warning", of["warned_users"]),
        *((f"- {kind}", count) for kind, count in of["warnings"].items()),
    )
    yield Paragraph(
        f"The four lists are in {of['lists']}, residents in the order of the results file."
        if of["lists"]
        else "The four lists are not written, since there are very many residents."
    )


def _about_run(report: Report) -> Iterator[Block]:
    of, truth = report.details, report.details["ground_truth"]
    labels = {
        "plan": (
            "plan mode, in which a plain model gives the whole day at once (no mode of asbench, so"
            " no published score compares)"
        ),
        "agent": "agent mode, in which an agent file lives the day step by step",
    }
    what = "residents" if report.repeats is UNSET else "days"
    modes = "; ".join(
        f"{days} {what} in {labels.get(mode, mode)}" for mode, days in of["modes"].items()
    )
    yield Paragraph(
        f"{modes}. Ground truth: {truth['residents']} residents, SHA-256"
        f" {short_hash(truth['sha256'])}"
    )
    if report.run.get("agent_parameters"):
        own = [
            f"{name} {report.run[name]}"
            for name in ("temperature", "top_p", "max_tokens")
            if name in report.run
        ]
        runs = f", except for this run's own: {', '.join(own)}" if own else ""
        yield Paragraph(
            f"Requests have the sampling parameters that the agent asks for{runs}."
            + (
                ""
                if "temperature" in report.run
                else " Without one of the agent's the temperature is 1, as upstream."
            )
        )


def protocol_table(protocols: Mapping[str, JSON]) -> Table:
    """Return final scores and divergences, a column a protocol."""
    columns = {}
    for name, of in protocols.items():
        divergences = {key: jsd(of[key]) for key in (f"jsd_{metric}" for metric in METRICS)}
        columns[name + " (headline)" * (name == HEADLINE)] = {
            FINAL: number(of[FINAL]),
            **divergences,
        }
    return table("", columns)


def undefined(protocols: Mapping[str, JSON]) -> Iterator[str]:
    """Why a protocol has no score."""
    for name, of in protocols.items():
        if "reason" in of:
            yield f"{name} is not defined here: {of['reason']}."


def about_protocols() -> Iterator[str]:
    """Return what each protocol is, and what none of them sees."""
    yield (
        "The final score is the mean of the four (1 - JSD) x 100, from 0 to 100; higher is better."
    )
    for name, protocol in PROTOCOLS.items():
        yield f"{name}: {protocol.about}."
    yield from CAVEATS


def _trust(report: Report) -> Iterator[Block]:
    of, ceiling, unlimited = (
        report.metrics,
        report.details["ceiling"],
        report.details["without_bias"],
    )
    wider = report.details.get("ci95_truth")  # reports of format 2 have none
    rows = []
    for name, key in NAMES.items():
        label, shown = (name, percent) if name == FINAL else (f"jsd_{name}", jsd)
        both = (
            "n/a"
            if wider is None
            else span(wider[key], shown, key in report.details.get("approximate_truth", ()))
        )
        rows.append(
            (
                label,
                shown(of[key].value),
                span(of[key].ci95, shown, bool(of[key].approximate)),
                both,
            )
        )
    yield Heading(f"How far the headline ({HEADLINE}) can be trusted")
    columns = ("", "value", "95 %: run", "run and ground truth")
    yield Table(columns, tuple(rows))
    divergences = {metric.replace("_", " "): of[NAMES[metric]] for metric in METRICS}
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
        f" shown to hold, only the order of magnitude: fewer than {FEWEST} residents"
        f" ({FEWEST_LOCATIONS} for locations), or nearly all are alike. Too few: fewer than"
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
            f"{FEWEST} of them do not show by how much."
        )
    yield Paragraph(
        f"Divergence per slot, averaged over the day: {jsd(report.secondary[PER_SLOT].value)} (0 is"
        f" best, 1 worst; resampled ground truth: {jsd(ceiling[PER_SLOT])})."
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
    of = report.details["valid_days"]
    if invalid := report.diagnostics.answers - of["users"]:
        yield Paragraph(
            f"{invalid} of the days are invalid answers and count as stayed home with the intention"
            f" other. Over the {of['users']} valid days alone the final score ({HEADLINE}) is"
            f" {number(of[HEADLINE][FINAL])}."
        )


def _beside(of: JSON) -> Iterator[Block]:
    sides = {}
    for place, name in enumerate(SIDES.values()):
        sides[name] = {
            "median gyration radius, m": number(of["median_gyration_radius_m"][place], 0),
            "mean daily locations": number(of["mean_daily_location_number"][place]),
            **{
                f"time of {name}, %": percent(shares[place])
                for name, shares in of["intention_shares"].items()
            },
        }
    yield Heading("Compared with the ground truth")
    yield table("", sides)


def ribbon(title: str, label: str, slots: Sequence[Sequence[float]]) -> Chart:
    shares = {
        name: [slot[intention - 1] for slot in slots] for intention, name in INTENTIONS.items()
    }
    return chart("ribbon", title, HOURS, ("hour", label), shares)


def _histograms(of: JSON) -> Iterator[Chart]:
    """Both sides in the bins of the aligned protocol, some of them put together."""
    width = of["reach_m"] * COARSER / BINS / 1000
    edges = [round(place * width, 6) for place in range(BINS // COARSER + 2)]
    title = f"Radius of gyration: the last bar is all beyond {of['reach_m'] / 1000:.1f} km"
    yield chart("histogram", title, edges, ("km", "%"), _sides(of, RADIUS, COARSER))
    counts = _sides(of, LOCATIONS, 1)
    edges = [place - 0.5 for place in range(len(counts["scored"]) + 1)]
    yield chart(
        "histogram",
        "Places in a day: the last bar is all beyond 10",
        edges,
        ("places", "%"),
        counts,
    )
    edges = [place * COARSER / BINS for place in range(BINS // COARSER + 1)]
    title = "Shares of the day that an intention takes, all seven pooled"
    yield chart(
        "histogram", title, edges, ("share of the day", "%"), _sides(of, PROPORTIONS, COARSER)
    )


def _sides(of: JSON, metric: str, width: int) -> dict[str, list[float]]:
    """Return the shares of both sides, `width` bins put together."""
    sides = {}
    for side, name in SIDES.items():
        shares = of[side][metric]
        sides[name] = [sum(shares[at : at + width]) for at in range(0, len(shares), width)]
    return sides


def jsd(value: float | None) -> str:
    return number(value, 4)


def percent(value: float | None) -> str:
    return number(None if value is None else 100 * value)


def span(
    interval: Sequence[float] | None, shown: Callable[[float], str], approximate: bool = False
) -> str:
    return (
        "too few" if interval is None else f"{'~' * approximate}[{', '.join(map(shown, interval))}]"
    )
