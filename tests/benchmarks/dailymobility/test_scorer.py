"""Scores of DailyMobility: against the protocols on plain lists, merging, intervals, and the
report."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import pairwise
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench import days as bench_days
from harness.benchmarks.dailymobility import scores, summary
from harness.benchmarks.dailymobility.benchmark import DailyMobility
from harness.benchmarks.dailymobility.groundtruth import GroundTruth, Lists
from harness.benchmarks.dailymobility.lists import read
from harness.benchmarks.dailymobility.protocols import (
    LOCATIONS,
    METRICS,
    PROPORTIONS,
    RADIUS,
    SEQUENCES,
    all_protocols,
)
from harness.benchmarks.dailymobility.scores import DivergenceEstimate
from harness.benchmarks.dailymobility.spread import FINAL, SampleSide, mixed, spread_of_both
from harness.document import Block, Heading, Paragraph, Table
from harness.model import JSON, Record, RunFacts
from harness.reporting.report import blocks, headline
from harness.reporting.text import rendered
from harness.scoring.bootstrap import Array
from harness.scoring.intervals import Moments, interval, moments
from harness.scoring.reports import encoded
from harness.scoring.scorer import Scorer
from harness.scoring.totals import Totals
from tests.support import examples


def a_day(rng: np.random.Generator, **more: Any) -> Record:
    intentions = rng.choice([1, 1, 1, 2, 2, 4, 4, 4, 3, 7], size=48).tolist()
    day = {
        "user_id": 1,
        "mode": "plan",
        "intentions": intentions,
        "places": [500_000_001] * 48,
        "visited_aois": [500_000_001],
        "daily_location_number": int(rng.integers(1, 13)),
        "gyration_radius_m": float(rng.lognormal(7.5, 1.2)),
        "intention_proportions": [intentions.count(number) / 48 for number in range(1, 8)],
        "invalid": None,
        "repairs": [],
        "warnings": [],
        "usage": {"prompt_tokens": 10, "completion_tokens": 2, "requests": 1},
    }
    return Record("用户", {**day, **more})


def home(**more: Any) -> Record:
    """An invalid day: stayed home, other."""
    fields: JSON = {
        "intentions": [3] * 48,
        "daily_location_number": 1,
        "gyration_radius_m": 0.0,
        "intention_proportions": [0, 0, 1, 0, 0, 0, 0],
        "invalid": "no_json",
    }
    return a_day(np.random.default_rng(0), **{**fields, **more})


def some_days(residents: int, seed: int = 1) -> list[Record]:
    rng = np.random.default_rng(seed)
    return [a_day(rng) for _ in range(residents)]


def a_truth(seed: int = 9, residents: int = 100) -> GroundTruth:
    """Locations as means over days, as the published ones are."""
    rng = np.random.default_rng(seed)
    sequences = rng.choice([1, 1, 1, 2, 4, 4], size=(residents, 48))
    proportions = np.stack([(sequences == number).mean(axis=1) for number in range(1, 8)], axis=1)
    columns = {
        RADIUS: rng.lognormal(7.8, 0.9, residents),
        LOCATIONS: 1 + rng.exponential(1.5, residents),
        SEQUENCES: sequences.astype(np.float64),
        PROPORTIONS: proportions,
    }
    return GroundTruth.from_lists(Lists.from_values(columns), "0" * 64)


TRUTH = a_truth()
BENCHMARK = DailyMobility(folder=None)
BENCHMARK.scoring = summary.DayScoring(TRUTH)
SCORER = Scorer(BENCHMARK, "beijing")


def facts(expected: int, failed: int = 0, **more: Any) -> RunFacts:
    fields: dict[str, Any] = {
        "subset": "beijing",
        "model": "通义",
        "name": "试",
        "prompt": "own",
        **more,
    }
    return RunFacts(expected_users=expected, failed_users=failed, **fields)


@dataclass(frozen=True)
class Made:
    """A report: `data` has its own values and secondary metrics beside the others."""

    data: JSON
    blocks: tuple[Block, ...]
    headline: str
    files: Mapping[str, bytes]


def made(scores: Totals, run: RunFacts) -> Made:
    found, files = SCORER.report(scores, run)
    data: JSON = orjson.loads(encoded(found))
    data = {**data["details"], **data, "metrics": {**data["metrics"], **data["secondary"]}}
    return Made(data, tuple(blocks(found)), headline(found), files)


def report(records: Sequence[Record], run: RunFacts | None = None) -> Made:
    return made(SCORER.score(records), run or facts(len(records)))


def text(records: Sequence[Record], run: RunFacts | None = None) -> str:
    return " ".join(rendered(report(records, run).blocks).split())


def lists_of(records: Sequence[Record]) -> Lists:
    names = {
        RADIUS: "gyration_radius_m",
        LOCATIONS: "daily_location_number",
        SEQUENCES: "intentions",
        PROPORTIONS: "intention_proportions",
    }
    return Lists.from_values(
        {
            metric: np.array([day.data[name] for day in records], dtype=np.float64)
            for metric, name in names.items()
        }
    )


# What is computed


def test_records_score_as_their_plain_lists_do():
    """Tallies, merged from shards, lose nothing: all three protocols to the last bit."""
    records = some_days(300)
    merged = SCORER.merge(SCORER.score(records[:256]), SCORER.score(records[256:]))
    found = made(merged, facts(300)).data["protocols"]
    assert found == {
        name: outcome.as_json()
        for name, outcome in all_protocols(TRUTH.sample, lists_of(records).sample).items()
    }


FORTY = [
    *some_days(37),
    home(),
    home(invalid="length"),
    a_day(np.random.default_rng(5), warnings=["later"]),
]


@settings(max_examples=examples(15), deadline=None)
@given(st.permutations(range(40)), st.lists(st.integers(0, 40), max_size=6), st.integers(0, 5))
def test_neither_order_nor_grouping_changes_a_figure(order, cuts, first):
    """Any order of residents, cut into any shards (empty ones too), merged in any grouping: the
    same JSON report."""
    moved = [FORTY[at] for at in order]
    shards = [SCORER.score(moved[start:end]) for start, end in pairwise([0, *sorted(cuts), 40])]
    at = min(first, len(shards))
    parts = [reduce(SCORER.merge, part) for part in (shards[:at], shards[at:]) if part]
    assert made(reduce(SCORER.merge, parts), facts(40)).data == report(FORTY).data


def test_the_live_figures_are_those_of_the_report():
    """The aligned score and the divergence per slot, as fractions; null before anybody is done."""
    records = some_days(30)
    metrics = report(records).data["metrics"]
    expected = {name: metrics[name]["value"] for name in ("Score", "JSD_per_slot")}
    assert SCORER.running(SCORER.score(records)) == expected
    assert SCORER.running(SCORER.score([])) == {"Score": None, "JSD_per_slot": None}


def test_an_invalid_day_counts_as_stayed_home_and_is_left_out_beside():
    """The headline has all days, the figure over valid days is that of a run without the invalid
    one."""
    valid = some_days(20)
    data = report([*valid, home()]).data
    assert data["protocols"]["aligned"] != report(valid).data["protocols"]["aligned"]
    assert data["valid_days"] == {
        "users": 20,
        "aligned": report(valid).data["protocols"]["aligned"],
    }
    assert data["diagnostics"]["invalid"] == {"no_json": 1}


def without(records: Sequence[Record]) -> Iterator[dict[str, float]]:
    """Figures with each resident really left out."""
    for at in range(len(records)):
        yield {
            name: found.value
            for name, found in figures([*records[:at], *records[at + 1 :]]).items()
        }


def figures(records: Sequence[Record]) -> dict[str, DivergenceEstimate]:
    estimates: dict[str, DivergenceEstimate] = SCORER.score(records).tally.estimates
    return estimates


def spread_of(records: Sequence[Record], other: Array, totals: Array) -> tuple[Array, Array, Array]:
    """Return variance, third cumulant and variance of second order of the five figures, by loops
    over pairs of bins.

    An independent computation of docs/statistics.md, from residents that are really left out.
    `other` and `totals` are counts by bin of both sides.
    """
    users, rows = len(records), rows_of(records)
    value = bench_days.figures(other, totals)
    parts = np.stack(
        [users * value - (users - 1) * bench_days.figures(other, totals - row) for row in rows]
    )
    off = parts - parts.mean(axis=0)
    each = np.repeat([1, 1, 48, 7], [51, 12, 7, 50])
    shares = rows / each - totals / (users * each)
    bend = np.zeros(120)
    metric = np.repeat([1, 2, 3, 4], [51, 12, 7, 50])
    for at in range(120):
        if totals[at]:
            step, own = round(totals[at] / (rows[:, at] > 0).sum()), metric == metric[at]
            p, size = other[at] / other[own].sum(), totals[own].sum()
            terms = [_term(p, (totals[at] + by) / size) for by in (step, 0, -step)]
            bend[at] = (terms[0] - 2 * terms[1] + terms[2]) * (size / step) ** 2
    noise, curve = np.zeros(5), np.zeros(5)
    for figure in range(5):
        used = [at for at in range(120) if totals[at] and figure in (0, metric[at])]
        weight = -0.25 if figure == 0 else 1.0
        for a in used:
            pull = float((shares[:, a] * off[:, figure]).mean())
            curve[figure] += weight * bend[a] * pull**2 / users**2
            for b in used:
                covariance = float((shares[:, a] * shares[:, b]).mean())
                noise[figure] += weight**2 * bend[a] * bend[b] * covariance**2 / (2 * users**2)
    variance = (off**2).sum(axis=0) / (users - 1) / users
    return variance, (off**3).mean(axis=0) / users**2 + 1.5 * curve, noise


def rows_of(records: Sequence[Record]) -> Array:
    """Return residents' counts by bin."""
    found: Array = BENCHMARK.scoring.tallied([record.data for record in records])[0]
    return found


def _term(p: float, q: float) -> float:
    return sum(x * float(np.log2(2 * x / (p + q))) for x in (p, q) if x) / 2


def test_intervals_have_the_spread_of_residents_that_are_left_out_with_curvature():
    """The score of 100 residents: variance less what is of second order, third cumulant with
    curvature."""
    records = some_days(100)
    totals = rows_of(records).sum(axis=0)
    variance, third, noise = spread_of(records, TRUTH.totals, totals)
    spread = side_of(records).spread
    assert spread.variance == pytest.approx(variance, rel=1e-9, abs=0)
    assert spread.third + 1.5 * spread.curve == pytest.approx(third, rel=1e-9, abs=0)
    assert spread.noise == pytest.approx(noise, rel=1e-9, abs=0)
    of = max(variance[0] - noise[0], noise[0])
    found = figures(records)
    untied = min(moments(part).untied for part in parts_of(records).T)
    expected = interval(
        found[FINAL].value,
        [Moments(100, untied, of * 100, third[0] * 10_000 * (untied + 3) / (untied + 25), 1.0)],
    )
    assert found[FINAL].interval == (*map(pytest.approx, expected or ()), False)
    assert noise[0] > 0.05 * variance[0] and abs(third[0]) > 0


def side_of(records: Sequence[Record]) -> SampleSide:
    rows = rows_of(records).astype(np.int64)
    totals = rows.sum(axis=0)
    return SampleSide.from_counts(
        [rows], totals, TRUTH.totals, bench_days.figures(TRUTH.totals, totals)
    )


def parts_of(records: Sequence[Record]) -> Array:
    """Return the pseudo-values of the four divergences."""
    rows = rows_of(records)
    totals, users = rows.sum(axis=0), len(rows)
    whole = bench_days.figures(TRUTH.totals, totals)
    found: Array = np.stack(
        [
            users * whole - (users - 1) * bench_days.figures(TRUTH.totals, totals - row)
            for row in rows
        ]
    )
    return found[:, 1:]


def test_spread_over_both_sides_is_the_same_whichever_is_the_run():
    """A divergence is symmetric, so is what both samples say of it."""
    a, b = (rows_of(some_days(users, users)).astype(np.int64) for users in (60, 90))
    p, q = a.sum(axis=0), b.sum(axis=0)
    values = bench_days.figures(p, q)
    one, other = (
        SampleSide.from_counts([a], p, q, values),
        SampleSide.from_counts([b], q, p, values),
    )
    there, back = spread_of_both(one, other, mixed(p, q)), spread_of_both(other, one, mixed(q, p))
    for name in ("variance", "third", "noise", "curve", "untied"):
        assert getattr(there, name) == pytest.approx(getattr(back, name))
    assert (there.noise > one.spread.noise + other.spread.noise).all()


def test_curvature_over_both_sides_has_that_by_both_shares():
    """Of each bin -1 / (2 ln 2 (p + q)) times both pulls, twice; the score has a quarter of all of
    them, negative."""
    totals, each = (
        rows_of(some_days(60)).sum(axis=0).astype(np.int64),
        np.repeat([1, 1, 48, 7], [51, 12, 7, 50]),
    )
    run = side_of(some_days(60))
    truth = SampleSide.from_counts(
        [TRUTH.counts], TRUTH.totals, totals, bench_days.figures(TRUTH.totals, totals)
    )
    shares = TRUTH.totals / (100 * each) + totals / (60 * each)
    second = np.array([-1 / (2 * np.log(2) * share) if share else 0.0 for share in shares])
    found = spread_of_both(run, truth, mixed(TRUTH.totals, totals))
    extra = found.curve - run.spread.curve - truth.spread.curve
    of_score = -sum(second * run.pull[:, 0] * truth.pull[:, 0]) / 4 * 2 / 6000
    of_radius = sum((second * run.pull[:, 1] * truth.pull[:, 1])[:51]) * 2 / 6000
    assert extra[:2] == pytest.approx([of_score, of_radius])


def test_intervals_are_approximate_with_fewer_residents_than_simulations_allow():
    """From 100 residents they are not, of locations from 400."""
    printed = {
        users: {
            name
            for name, found in figures(some_days(users)).items()
            if found.interval and not found.interval[2]
        }
        for users in (99, 100, 399, 400)
    }
    most = {FINAL, RADIUS, SEQUENCES, PROPORTIONS}
    assert printed == {99: set(), 100: most, 399: most, 400: most | {LOCATIONS}}


def test_score_has_an_approximate_interval_where_one_divergence_hardly_moves():
    """Commuters of whom all but three go to three places: the next such resident would change the
    score most."""
    records = [Record(day.key, {**day.data, "daily_location_number": 3}) for day in some_days(100)]
    assert (figures(records)[FINAL].interval or ())[2]
    moved = [Record(day.key, {**day.data, "daily_location_number": 2}) for day in records[:9]]
    assert (figures([*moved[:3], *records[3:]])[FINAL].interval or ())[2]
    assert not (figures([*moved, *records[9:]])[FINAL].interval or ())[2]


@pytest.mark.slow
def test_the_bias_is_taken_off_from_100_residents():
    """value - (n - 1) x (mean of the figures with one left out - value); more residents score
    higher."""
    records = some_days(100)
    found = figures(records)[FINAL]
    values = np.array([figure[FINAL] for figure in without(records)])
    assert found.corrected is not None
    assert found.corrected[0] == pytest.approx(found.value - 99 * (values.mean() - found.value))
    assert found.value < found.corrected[0] <= 1
    assert figures(some_days(99))[FINAL].corrected is None


ONE = a_day(np.random.default_rng(0), gyration_radius_m=900.0, daily_location_number=2)


@pytest.mark.parametrize("records", [[], [ONE]], ids=["nobody", "one"])
def test_nothing_is_said_of_the_spread_of_less_than_two(records):
    """No interval, and without anybody no figure at all: null, never 0 or NaN."""
    metrics = report(records).data["metrics"]
    assert {metric["ci95"] for metric in metrics.values()} == {None}
    assert all((metric["value"] is None) == (not records) for metric in metrics.values())


def test_residents_that_are_all_alike_have_no_interval():
    """A model that gives everybody the same day: none, in place of one of no width; of both sides a
    rough one."""
    found = figures([home()] * 400)
    assert {of.interval for of in found.values()} == {None}
    assert all(of.with_truth[2] for of in found.values() if of.with_truth)


def population(kind: str, residents: int, rng: np.random.Generator) -> list[Record]:
    """Days drawn near the ground truth, or commuters nearly all alike."""
    if kind == "alike":
        works = rng.random(residents) < 0.7
        return [
            home(
                intentions=[1] * 16 + [4 if at_work else 2] * int(rng.integers(14, 20)) + [2] * 12,
                gyration_radius_m=(
                    float(rng.choice(TRUTH.lists.columns[RADIUS])) if at_work else 0.0
                ),
                daily_location_number=1 + int(at_work) + int(rng.random() < 0.2),
            )
            for at_work in works
        ]
    drawn = rng.integers(TRUTH.residents, size=residents)
    columns = TRUTH.lists.columns
    return [
        home(
            intentions=columns[SEQUENCES][at].tolist(),
            gyration_radius_m=float(columns[RADIUS][at] * rng.lognormal(0.0, 0.15)),
            daily_location_number=int(columns[LOCATIONS][at] + 0.5),
        )
        for at in drawn
    ]


def padded(records: list[Record]) -> list[Record]:
    return [
        Record(day.key, {**day.data, "intentions": (day.data["intentions"] + [1] * 48)[:48]})
        for day in records
    ]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "residents"), [("near", 100), ("alike", 200)])
def test_95_percent_intervals_hold_what_they_should_as_often_as_they_say(kind, residents):
    """200 simulated runs: the mean score of such runs, and that of unlimited ones."""
    rng = np.random.default_rng(3)
    unlimited = figures(padded(population(kind, 20_000, rng)))[FINAL].value
    runs = [figures(padded(population(kind, residents, rng)))[FINAL] for _ in range(200)]
    mean = float(np.mean([run.value for run in runs]))
    intervals = np.array([run.interval for run in runs if run.interval])
    assert len(intervals) > 150
    assert mean < unlimited - 0.003
    assert 0.92 <= _held(intervals, mean) <= 0.98
    corrected = np.array([run.corrected[1] for run in runs if run.corrected and run.corrected[1]])
    assert 0.90 <= _held(corrected, unlimited) <= 0.98
    assert _held(intervals, unlimited) < 0.85  # without the correction it would not be held


def _held(intervals: Array, value: float) -> float:
    return float(((intervals[:, 0] <= value) & (value <= intervals[:, 1])).mean())


# The report


def test_the_report_has_the_three_protocols_with_the_keys_that_are_promised():
    """Four divergences and a final score each, nothing else where all is defined."""
    data = report(some_days(5)).data
    keys = [*(f"jsd_{metric}" for metric in METRICS), "final_score"]
    assert {name: list(of) for name, of in data["protocols"].items()} == {
        "aligned": keys,
        "asbench": keys,
        "agentsociety2": keys,
    }
    assert list(data["metrics"]) == [
        "Score",
        *(f"JSD_{metric}" for metric in METRICS),
        "JSD_per_slot",
        "Score (asbench)",
        "Score (agentsociety2)",
    ]
    assert data["metrics"]["Score"]["value"] == pytest.approx(
        data["protocols"]["aligned"]["final_score"] / 100
    )


def test_an_undefined_protocol_is_null_with_its_reason_and_the_others_stand():
    """Everybody beyond the ground truth's range of radii: no agentsociety2."""
    far = [a_day(np.random.default_rng(at), gyration_radius_m=1e7 + at) for at in range(5)]
    found = report(far)
    assert found.data["protocols"]["agentsociety2"]["final_score"] is None
    assert found.data["protocols"]["aligned"]["final_score"] is not None
    assert found.data["metrics"]["Score (agentsociety2)"]["value"] is None
    assert "agentsociety2 is not defined here: gyration_radius: every value lies outside" in text(
        far
    )
    assert "Score (agentsociety2) n/a" in found.headline


def test_both_intervals_are_in_the_report_and_the_earlier_one_without_the_second_is_readable():
    """By metric in the JSON, side by side in the table; a report of format 2 has but the first."""
    records = some_days(100)
    data, found = report(records).data, figures(records)
    assert data["ci95_truth"] == {
        "Score": pytest.approx((found[FINAL].with_truth or ())[:2]),
        **{f"JSD_{name}": pytest.approx((found[name].with_truth or ())[:2]) for name in METRICS},
    }
    assert data["approximate_truth"] == ["JSD_daily_location_numbers"]
    of, _ = SCORER.report(SCORER.score(records), facts(100))
    del of.details["ci95_truth"]
    table = next(
        block
        for block in summary.sections(of)
        if isinstance(block, Table) and "value" in block.columns
    )
    assert [row[3] for row in table.rows] == ["n/a"] * 5 and table.rows[2][2].startswith("~[")


def test_a_score_without_any_method_for_its_interval_does_not_blame_the_residents():
    """The other protocols' scores have no interval, however many residents there are."""
    of, _ = SCORER.report(SCORER.score(some_days(100)), facts(100))
    tables = [
        block
        for block in blocks(of)
        if isinstance(block, Table) and "95 % interval" in block.columns
    ]
    shown = {row[0]: row[3] for table in tables for row in table.rows}
    assert (
        shown["JSD_daily_location_numbers"].startswith("~[") and shown["Score (asbench)"] == "n/a"
    )


def test_a_run_of_part_of_the_residents_is_headed_incomplete():
    """Who is missing is said, and why no bounds can be given."""
    found = report(some_days(3), facts(10, 4))
    assert found.data["coverage"] == {
        "expected_users": 10,
        "scored_users": 3,
        "failed_users": 4,
        "complete": False,
    }
    assert [block.text for block in found.blocks if isinstance(block, Heading)][
        1
    ] == "INCOMPLETE: 3 of 10 residents"
    assert "7 are missing, of whom 4 failed" in text(some_days(3), facts(10, 4))


@pytest.mark.parametrize(
    "sentence",
    [
        "aligned: the benchmark's formula as written",
        "asbench: as asbench 0.1.4 computes it",
        "agentsociety2: as agentsociety2 computes it",
        "turning every day by 12 hours changes no score",
        "So no single day reaches 100, nor the ceiling",
        "blind to shift and unit",
        "cannot fall below 16.7",
        "Ceiling (aligned): 100 residents drawn from the ground truth itself score",
        "With unlimited residents the score would be about",
        "of other residents in the run, just as many, with this ground truth (run)",
        "of other residents in the ground truth as well, just as many (run and ground truth)",
        "Divergence per slot, averaged over the day",
        (
            "3 of the days are invalid answers and count as stayed home with the intention other."
            " Over the 97 valid days"
        ),
        "100 residents in plan mode",
        "200 requests, 2000 prompt tokens, 400 completion tokens",
        "generated_beijing.json",
        "合成",
    ],
)
def test_the_report_says_what_stands_beside_the_numbers(sentence):
    """Protocols, what they do not see, ceiling, bias, invalid days, mode, usage, files, notes."""
    usage = {"prompt_tokens": 20, "completion_tokens": 4, "requests": 2}
    days = [
        Record(day.key, {**day.data, "usage": usage}) for day in [*some_days(97), *[home()] * 3]
    ]
    assert sentence in text(days, facts(100, notes=("合成。",)))


def test_invalid_days_stand_beside_the_score():
    """In the one line that a run ends with, and under the coverage; nothing is said where there is
    none."""
    day = a_day(np.random.default_rng(1))
    found = report([home(invalid="length"), day])
    said = "1 of 2 answers is invalid (length 1)"
    assert found.headline.endswith(f"; {said}")
    assert any(
        isinstance(block, Paragraph) and block.text.startswith(said) for block in found.blocks
    )
    assert "invalid" not in report([day]).headline


def test_invalid_days_repairs_warnings_and_modes_are_counted_by_kind():
    """Warnings without their numbers, so that those of many residents are few."""
    rng = np.random.default_rng(1)
    days = [
        home(),
        home(invalid="length"),
        home(),
        a_day(
            rng,
            repairs=["fence", "json"],
            warnings=["AOI 500000123 is unknown", "AOI 500000124 is unknown"],
        ),
        a_day(rng, mode="agent", warnings=["step 40 took 12.5 s"]),
    ]
    data = report(days).data
    assert data["diagnostics"] == {
        "answers": 5,
        "valid_answers": 2,
        "invalid": {"length": 1, "no_json": 2},
        "repaired": {"fence": 1, "json": 1},
        "breaches": {},
    }
    assert (data["modes"], data["repaired_users"], data["warned_users"]) == (
        {"agent": 1, "plan": 4},
        1,
        2,
    )
    assert data["warnings"] == {"AOI # is unknown": 2, "step # took # s": 1}


def test_both_sides_are_shown():
    """Median radius, mean number of locations, time spent: the ground truth's and the run's."""
    records = some_days(50)
    of = report(records).data["beside_truth"]
    assert of["median_gyration_radius_m"][1] == np.median(
        [day.data["gyration_radius_m"] for day in records]
    )
    assert of["mean_daily_location_number"][1] == np.mean(
        [day.data["daily_location_number"] for day in records]
    )
    asleep = sum(day.data["intentions"].count(1) for day in records) / (50 * 48)
    assert of["intention_shares"]["sleep"][1] == pytest.approx(asleep)
    assert sum(truth for truth, _ in of["intention_shares"].values()) == pytest.approx(1)


def test_the_four_lists_are_written_and_score_the_same(tmp_path):
    """`generated_<subset>.json`, residents in order, read back: the same three protocols."""
    records = some_days(30)
    found = report(records)
    (name, content), *others = found.files.items()
    (tmp_path / name).write_bytes(content)
    lists = read(tmp_path / name)
    assert (name, others) == ("generated_beijing.json", [])
    assert orjson.loads(content)[RADIUS] == [day.data["gyration_radius_m"] for day in records]
    assert {metric: lists.columns[metric].tolist() for metric in METRICS} == {
        metric: lists_of(records).columns[metric].tolist() for metric in METRICS
    }
    assert {
        kind: outcome.as_json()
        for kind, outcome in all_protocols(TRUTH.sample, lists.sample).items()
    } == found.data["protocols"]


def test_very_many_residents_are_scored_the_same_without_lists(
    monkeypatch,
):
    """Above the limit the lists are dropped, however shards are merged, and no figure changes."""
    records = some_days(30)
    whole = report(records).data
    monkeypatch.setattr(scores, "LISTS_LIMIT", 20)
    a, b, c = (SCORER.score(records[start : start + 10]) for start in (0, 10, 20))
    for merged in (SCORER.merge(SCORER.merge(a, b), c), SCORER.merge(a, SCORER.merge(b, c))):
        found = made(merged, facts(30))
        assert (found.files, found.data["lists"]) == ({}, None)
        for part in (
            "metrics",
            "protocols",
            "histograms",
            "without_bias",
            "valid_days",
            "beside_truth",
        ):
            assert found.data[part] == whole[part]


def test_a_report_of_nobody_is_a_report():
    """Every failure at once: nothing is scored, and nothing is invented."""
    found = report([], facts(2, 2))
    assert found.data["details"] == {} and found.files == {}
    assert found.headline == "Score n/a, Score (asbench) n/a, Score (agentsociety2) n/a"
    orjson.dumps(found.data)


def test_the_ceiling_is_what_draws_of_the_ground_truth_score():
    """Where all of its residents are the same every draw scores 100; else few residents score less
    than many."""
    columns = {
        name: np.repeat(TRUTH.lists.columns[name][:1], 5, axis=0) for name in TRUTH.lists.columns
    }
    alike = GroundTruth.from_lists(Lists(columns), "0" * 64).ceiling(3)
    assert alike["final_score"] == alike["range95"][0] == 100.0 and alike["JSD_per_slot"] == 0.0
    few, many = (TRUTH.ceiling(count)["final_score"] for count in (5, 500))
    assert few < many < 100.0
