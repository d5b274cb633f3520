"""Scores of StreamProfileBench: golden values with their arithmetic, an independent slow
computation, merging."""

from __future__ import annotations

import pickle
import re
from collections.abc import Sequence
from functools import reduce
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.benchmark import Metric
from harness.benchmarks import usage as used
from harness.benchmarks.streamprofile.benchmark import StreamProfile
from harness.benchmarks.streamprofile.metrics import (
    ERRORS,
    F1,
    GAINS,
    METRICS,
    NAMES,
    harmonic,
    measure_step,
)
from harness.benchmarks.streamprofile.scores import PER_STEP
from harness.benchmarks.streamprofile.summary import RELEASE
from harness.benchmarks.streamprofile.task import StepInput, Truth
from harness.document import Chart, Heading, Series, Table, Verbatim
from harness.model import JSON, Record, RunFacts
from harness.reporting.report import blocks, covered, headline
from harness.scoring import reports
from harness.scoring.reports import Report
from harness.scoring.scorer import Scorer, bounds
from harness.scoring.totals import Totals
from tests.support import examples

BENCHMARK = StreamProfile()
TRANSFERS = (*NAMES, PER_STEP)
CEILING = dict(zip(GAINS, (1.0, 0.8, 0.5, 1.0), strict=True))


def a_step(
    step_id: int, novelty: float | None = None, stability: float | None = None, **more: Any
) -> JSON:
    """A scored step; `more` are further metrics (by name) or fields of the step."""
    values = {"Precision": 0.0, "Recall": 0.0, **dict.fromkeys(METRICS[2:])}
    values |= {"Recall_Novelty": novelty, "Recall_Stability": stability}
    values |= {name: more.pop(name) for name in METRICS if name in more}
    step = {
        "step_id": step_id,
        "prediction": ["猫"],
        "metrics": values,
        "outcome": "valid",
        "repairs": [],
    }
    return {**step, "asked": 1, "out_of_pool": 0, "ceiling": CEILING, **more}


def unscored(step_id: int, **more: Any) -> JSON:
    return {**a_step(step_id), "metrics": {}, "ceiling": {}, **more}


def user(*steps: JSON, **more: Any) -> Record:
    return Record(
        "用户",
        {"user_id": "用户", "platform": "weibo", "username": "小明", "steps": list(steps), **more},
    )


def facts(expected: int = 0, failed: int = 0, **more: Any) -> RunFacts:
    fields: dict[str, Any] = {
        "subset": "weibo",
        "model": "通义",
        "name": "试",
        "prompt": "own",
        "notes": (),
        **more,
    }
    return RunFacts(expected_users=expected, failed_users=failed, **fields)


def report(records: Sequence[Record], run: RunFacts | None = None) -> Report:
    scorer = Scorer(BENCHMARK, "weibo")
    return scorer.report(scorer.score(records), run or facts(len(records)))[0]


def content_of(made: Report) -> JSON:
    """The JSON report, its own values beside the others."""
    data: JSON = orjson.loads(reports.encoded(made))
    transfer = {name: data["secondary"][f"FWT {name}"] for name in NAMES}
    return {**data["details"], **data, "fwt": transfer}


def scored(*records: Record) -> JSON:
    return content_of(report(records))


# Golden values


def test_a_step_without_truth_is_left_out_everywhere():
    """The unscored step 2 changes no value: Recall stays 0.5, and augmented has no user."""
    data = scored(user(a_step(1, Recall=0.5), unscored(2)))
    assert data["metrics"]["Recall"]["value"] == 0.5
    assert data["persona_augmented"]["Recall"] == {"value": None, "ci95": None, "users": 0}
    assert data["scored_steps"] == 1
    assert data["unscored_steps"] == 1


def test_f1_is_the_harmonic_mean_of_the_users_means():
    """A: novelty (1 + 0) / 2 = 0.5, stability (0 + 0.5) / 2 = 0.25, so 2 * 0.125 / 0.75 = 1/3,
    though each step alone has 0; B: 2 * 0.6 * 0.3 / 0.9 = 0.4; mean 11/30."""
    data = scored(user(a_step(1, 1.0, 0.0), a_step(2, 0.0, 0.5)), user(a_step(1, 0.6, 0.3)))
    assert data["metrics"][F1]["value"] == pytest.approx(11 / 30)
    assert [point["metrics"][F1] for point in data["learning_curve"]] == [
        pytest.approx((0 + 0.4) / 2),
        0.0,
    ]


def test_f1_is_zero_where_both_means_are_and_the_release_code_leaves_that_user_out():
    """Users: both 0 -> 0; one 0 -> 0; 0.5 and 0.5 -> 0.5. Ours 0.5 / 3; the release code's 0.5 / 2,
    one left out."""
    data = scored(user(a_step(1, 0.0, 0.0)), user(a_step(1, 0.0, 1.0)), user(a_step(1, 0.5, 0.5)))
    assert (data["metrics"][F1]["value"], data["metrics"][F1]["users"]) == (
        pytest.approx(0.5 / 3),
        3,
    )
    assert data["secondary"][RELEASE]["value"] == pytest.approx(0.25)
    assert data["release_code_left_out"] == 1


def three_users() -> tuple[Record, Record, Record]:
    """Recall: A 0.2 | 0.4 0.8; B only step 1: 0.6; C no step 1: 0.1."""
    return (
        user(a_step(1, Recall=0.2), a_step(2, Recall=0.4), a_step(3, Recall=0.8)),
        user(a_step(1, Recall=0.6)),
        user(a_step(2, Recall=0.1)),
    )


def test_a_difference_with_one_user_on_a_side_has_no_interval():
    """A and B have a step 1, A alone a later one: the difference is there, its spread cannot be
    known."""
    delta = scored(*three_users()[:2])["delta"]["Recall"]
    assert (delta["value"], delta["ci95"]) == (pytest.approx(0.6 - 0.4), None)


def test_user_without_a_scored_step_is_covered_but_has_no_value():
    """It completes the coverage, counts in no mean and no cohort, and is reported."""
    data = scored(user(unscored(1)), user(a_step(1, Recall=0.5)))
    assert data["coverage"] == {
        "expected_users": 2,
        "scored_users": 2,
        "failed_users": 0,
        "complete": True,
    }
    assert (data["metrics"]["Recall"]["value"], data["metrics"]["Recall"]["users"]) == (0.5, 1)
    assert data["users_without_scored_step"] == 1
    assert data["cohort"]["users"] == 1


def test_no_users_at_all_give_a_report_of_nulls():
    """Everything failed: no value, no interval, no curve; the bounds say that anything is
    possible."""
    data = content_of(report([], facts(expected=3, failed=3)))
    assert all(data["metrics"][name] == {"value": None, "ci95": None, "users": 0} for name in NAMES)
    assert data["details"] == {} and data["sections"] == []
    assert data["bounds"] == {name: [0.0, 1.0] for name in NAMES}
    assert content_of(report([], facts(expected=0)))["coverage"]["complete"] is True


def test_diagnostics_count_what_answers_were_like():
    """Invalid by kind (an unknown kind too), repaired by kind and by step, outside the pool, wrong
    number."""
    data = scored(
        user(
            a_step(1, outcome="no_json", prediction=[]),
            a_step(2, outcome="refusal", prediction=[]),
            unscored(3, outcome="no_json", prediction=[]),
            a_step(4, outcome="new_kind", prediction=[], asked=3),
        ),
        user(
            a_step(
                1, repairs=["fence", "comma"], out_of_pool=2, prediction=["a", "b", "c"], asked=2
            ),
            a_step(2, repairs=["fence"], out_of_pool=1, prediction=["a"], asked=2),
            a_step(3, prediction=["a", "b"], asked=2),
        ),
    )
    assert data["diagnostics"] == {
        "answers": 7,
        "valid_answers": 3,
        "invalid": {"new_kind": 1, "no_json": 2, "refusal": 1},
        "repaired": {"comma": 1, "fence": 2},
        "breaches": {"outside_pool": 2},
    }
    assert (data["unscored_steps"], data["repaired_steps"]) == (1, 2)
    assert data["out_of_pool"] == {"steps": 2, "tags": 3}
    assert data["wrong_number"] == {
        "more": 1,
        "fewer": 1,
    }  # invalid answers, empty as they are, do not count


def test_usage_is_summed_and_may_be_missing():
    """Records of the authors' runner tell no usage."""
    usage = {"prompt_tokens": 10, "completion_tokens": 3, "requests": 2}
    data = scored(user(a_step(1), usage=usage), user(a_step(1)), user(a_step(1), usage=usage))
    assert data["usage"] == {
        "prompt_tokens": 20,
        "completion_tokens": 6,
        "requests": 4,
        "untold": 0,
    }


def test_tokens_that_were_not_told_are_said_to_be_missing():
    """A sum of tokens says how many of the requests it does not cover."""
    usage = {"prompt_tokens": 10, "completion_tokens": 3, "requests": 5, "untold": 2}
    assert "without those of 2 requests" in used.tokens(usage)
    assert "without" not in used.tokens(usage | {"untold": 0})


def test_bound_of_runs_that_shared_an_account_says_so():
    """The bound of several models is that of all their requests together."""
    took = {"seconds": 12.0, "slots": 4.0, "lower_bound_seconds": 10.0, "ratio": 1.2}
    assert "1.20 times" in (used.session(took, "user") or "") and "account" not in (
        used.session(took, "user") or ""
    )
    assert "with those of 2 more at the same account" in (
        used.session({**took, "runs": 3}, "user") or ""
    )
    assert (
        used.session(None, "user") is None and used.session({**took, "ratio": None}, "user") is None
    )


def test_run_held_up_by_its_event_loop_says_so():
    """With the command that has the remedies; reports of before have no such words."""
    took = {"seconds": 90.0, "slots": 4.0, "lower_bound_seconds": 60.0, "ratio": 1.5}
    assert used.bottleneck(took) is None
    words = used.bottleneck(took | {"event_loop": 0.97}) or ""
    assert "97%" in words.replace(" ", "")
    assert "harness run --help" in words
    assert words in (used.session(took | {"event_loop": 0.97}, "user") or "")


@pytest.mark.parametrize(
    ("value", "users", "missing", "expected"),
    [
        (0.5, 6, 2, [3 / 8, 5 / 8]),  # 0.5 * 6 = 3 of 8 users, or 3 + 2
        (0.5, 6, 0, [0.5, 0.5]),
        (None, 0, 2, [0.0, 1.0]),
        (None, 0, 0, [None, None]),
    ],
)
def test_bounds_take_the_missing_users_as_all_worst_or_all_best(value, users, missing, expected):
    """The lowest and highest mean that the missing users could still make."""
    assert list(bounds(Metric("m"), value or 0.0, users, missing)) == expected


def test_only_an_incomplete_report_has_bounds():
    """Recall 0.5 of 1 user, 3 missing: 0.5 / 4 and 3.5 / 4."""
    records = [user(a_step(1, Recall=0.5))]
    assert report(records, facts(1)).bounds is None
    incomplete = content_of(report(records, facts(4, failed=1)))
    assert incomplete["bounds"]["Recall"] == [0.125, 0.875]
    assert incomplete["coverage"]["complete"] is False


# Merging


RANDOM_STEP = st.builds(
    lambda *parts: parts,
    st.integers(1, 5),
    st.lists(st.sampled_from([None, 0.0, 0.25, 1 / 3, 0.6, 1.0]), min_size=8, max_size=8),
    st.sampled_from(["valid", "valid", "no_json", "unscored"]),
    st.booleans(),
    st.sampled_from([{}, {}, {"asked": 2}, {"out_of_pool": 1}]),
)


def random_user(steps: list[tuple[int, list[float | None], str, bool, JSON]]) -> Record:
    made = []
    for step_id, values, outcome, cut, rule in sorted(steps, key=lambda step: step[0]):
        values = [*(value or 0.0 for value in values[:2]), *values[2:]]
        step = a_step(step_id, outcome=outcome, **dict(zip(METRICS, values, strict=True)), **rule)
        if cut:
            step["metrics_at_asked"] = {**step["metrics"], "Recall_Novelty": 0.25, "Precision": 0.5}
        made.append(unscored(step_id) if outcome == "unscored" else step)
    return user(*made)


USERS = st.lists(
    st.lists(RANDOM_STEP, min_size=1, max_size=5, unique_by=lambda step: step[0]).map(random_user),
    max_size=7,
)


def content(scores: Totals) -> JSON:
    """Everything that scores hold, exactly."""
    return {
        "rows": (
            scores.rows.is_dropped,
            orjson.dumps([rows.tolist() for rows in scores.rows.arrays]),
        ),
        "sums": (scores.users, [sums.tolist() for sums in scores.sums]),
        "tallies": (scores.tally if scores.users else None, scores.spread.tolist()),
        "counts": (scores.outcomes, scores.repairs, scores.usage),
    }


@given(USERS, USERS, USERS)
@settings(max_examples=examples(30), deadline=None)
def test_merging_is_associative_to_the_last_bit(a, b, c):
    """(a + b) + c and a + (b + c) hold the same, rows kept or dropped."""
    for limit in (0, 4, 50_000):
        scorer = Scorer(BENCHMARK, "weibo", rows_limit=limit)
        x, y, z = map(scorer.score, (a, b, c))
        assert content(scorer.merge(scorer.merge(x, y), z)) == content(
            scorer.merge(x, scorer.merge(y, z))
        )


def many(users: int) -> list[Record]:
    rng = np.random.default_rng(3)
    return [
        user(
            *(
                a_step(step, *rng.choice([0.0, 0.5, 1.0], 2).tolist(), Recall=rng.random())
                for step in (1, 2)
            )
        )
        for _ in range(users)
    ]


def test_above_the_limit_rows_are_dropped_and_blocks_are_the_units():
    """The means stay the same to rounding, the method is named, and the intervals are about as
    wide."""
    records = many(120)
    data = {}
    for limit in (119, 120):
        scorer = Scorer(BENCHMARK, "weibo", rows_limit=limit)
        merged = scorer.score(records[:2])
        for start, end in pairwise(range(2, 121, 2)):
            merged = scorer.merge(merged, scorer.score(records[start:end]))
        assert merged.rows.is_dropped == (limit == 119)
        data[limit] = content_of(scorer.report(merged, facts(120))[0])
    assert (data[119]["intervals_over"], data[120]["intervals_over"]) == (
        "blocks of users",
        "users",
    )
    for part in ("metrics", "cold_start", "delta", "fwt"):
        few, all_rows = data[119][part]["Recall"], data[120][part]["Recall"]
        assert few["value"] == all_rows["value"]
        widths = [interval[1] - interval[0] for interval in (few["ci95"], all_rows["ci95"])]
        assert widths[0] == pytest.approx(widths[1], rel=0.35)


def test_running_figures_are_those_of_the_report():
    """The live display shows what the report will say; of nobody it shows nothing."""
    scorer = Scorer(BENCHMARK, "weibo")
    merged = scorer.score(many(5))
    data = content_of(scorer.report(merged, facts(5))[0])["metrics"]
    assert scorer.running(merged) == {"Recall": data["Recall"]["value"], F1: data[F1]["value"]}
    assert scorer.running(scorer.score([])) == {"Recall": None, F1: None}


def test_running_figures_need_no_more_room_for_more_users():
    """What the display keeps of 2,000 users shows the same as all of them, and is as large as that
    of 200."""
    scorer = Scorer(BENCHMARK, "weibo")
    shards = [scorer.score(many(200)) for _ in range(10)]
    shown = reduce(lambda a, b: scorer.condense(scorer.merge(a, b)), shards)
    assert scorer.running(shown) == pytest.approx(scorer.running(reduce(scorer.merge, shards)))
    assert len(pickle.dumps(shown)) < 1.1 * len(pickle.dumps(scorer.condense(shards[0])))
    assert scorer.running(scorer.condense(scorer.score([]))) == {"Recall": None, F1: None}


# An independent computation


def mean(values: Sequence[float | None]) -> float | None:
    there = [value for value in values if value is not None]
    return sum(there) / len(there) if there else None


def by_user(record: Record, keep: Any, field: str = "metrics") -> dict[str, float | None]:
    """One user's nine values by plain loops; `keep` says which scored steps count."""
    steps = [step for step in record.data["steps"] if step["metrics"] and keep(step)]
    tables = [
        step.get(field) or (step["metrics"] if field == "metrics_at_asked" else {})
        for step in steps
    ]
    values = {name: mean([table.get(name) for table in tables]) for name in METRICS}
    of_steps = [
        harmonic(table.get("Recall_Novelty"), table.get("Recall_Stability")) for table in tables
    ]
    return {
        **values,
        F1: harmonic(values["Recall_Novelty"], values["Recall_Stability"]),
        PER_STEP: mean(of_steps),
    }


def follows(step: JSON) -> bool:
    return len(step["prediction"]) >= step["asked"] and step["out_of_pool"] == 0


def with_cut(record: Record) -> Record:
    """The user with the values by which runs are ranked, errors aside, as those of each step."""
    steps = []
    for step in record.data["steps"]:
        values = dict(step.get("metrics_at_asked") or step["metrics"])
        if values:
            values["Precision"] *= min(len(step["prediction"]), step["asked"]) / step["asked"]
        steps.append({**step, "cut": values})
    return user(*steps)


def over_users(values: Sequence[dict[str, float | None]], names: Sequence[str] = NAMES) -> JSON:
    return {name: mean([of[name] for of in values]) for name in names}


def slow_curve(records: Sequence[Record], upto: int | None = None) -> list[JSON]:
    steps = [step for record in records for step in record.data["steps"] if step["metrics"]]
    points = []
    for step_id in sorted({step["step_id"] for step in steps}):
        if upto is None or step_id <= upto:
            here = [step["metrics"] for step in steps if step["step_id"] == step_id]
            rows = [
                {**of, F1: harmonic(of["Recall_Novelty"], of["Recall_Stability"])} for of in here
            ]
            points.append({"step_id": step_id, "users": len(here), "metrics": over_users(rows)})
    return points


def slow_cohort(records: Sequence[Record]) -> tuple[int | None, list[Record]]:
    there = [record for record in records if any(step["metrics"] for step in record.data["steps"])]
    last = [max(step["step_id"] for step in record.data["steps"]) for record in there]
    reached = [k for k in range(1, 6) if there and 2 * sum(at >= k for at in last) >= len(there)]
    if not reached:
        return None, []
    return reached[-1], [
        record for record, at in zip(there, last, strict=True) if at >= reached[-1]
    ]


def subtract(a: dict[str, float | None], b: dict[str, float | None]) -> dict[str, float | None]:
    return {
        name: x - y if (x := a[name]) is not None and (y := b[name]) is not None else None
        for name in a
    }


@given(USERS)
@settings(max_examples=examples(40), deadline=None)
def test_report_equals_a_slow_independent_computation(records):
    """Every value of the report, computed again by plain loops over the records."""
    if not records:
        return
    data = scored(*records)
    cold = [by_user(record, lambda step: step["step_id"] == 1) for record in records]
    later = [by_user(record, lambda step: step["step_id"] >= 2) for record in records]
    overall = [by_user(record, lambda step: True) for record in records]
    at_asked = [by_user(record, lambda step: True, "metrics_at_asked") for record in records]
    ceilings = [by_user(record, lambda step: True, "ceiling") for record in records]
    valid = [by_user(record, lambda step: step["outcome"] == "valid") for record in records]
    transfer = [subtract(b, a) for a, b in zip(cold, later, strict=True)]
    reaches, cohort = slow_cohort(records)
    same = {
        "metrics": over_users(overall),
        "cold_start": over_users(cold, TRANSFERS),
        "persona_augmented": over_users(later, TRANSFERS),
        "delta": subtract(over_users(later, TRANSFERS), over_users(cold, TRANSFERS)),
        "fwt": over_users(transfer),
        "ceiling": {
            name: value for name, value in over_users(ceilings).items() if name not in ERRORS
        },
    }
    for part, expected in same.items():
        assert {name: entry["value"] for name, entry in data[part].items()} == pytest.approx(
            expected, abs=1e-12
        )
    for part, users in (
        ("metrics", overall),
        ("cold_start", cold),
        ("persona_augmented", later),
        ("fwt", transfer),
    ):
        for name in NAMES:
            assert data[part][name]["users"] == sum(of[name] is not None for of in users)
    cut = list(map(with_cut, records))
    all_cut = over_users([by_user(record, lambda step: True, "cut") for record in cut])
    all_cut |= over_users([by_user(record, follows, "cut") for record in cut], ERRORS)
    first = [
        by_user(record, lambda step: follows(step) and step["step_id"] == 1, "cut")
        for record in cut
    ]
    after = [
        by_user(record, lambda step: follows(step) and step["step_id"] >= 2, "cut")
        for record in cut
    ]
    fwt_cut = over_users(
        [subtract(b, a) for a, b in zip(first, after, strict=True)], (*METRICS, PER_STEP)
    )
    ranking = all_cut | {f"FWT {name}": value for name, value in fwt_cut.items()}
    assert {name: data["secondary"][f"{name} (cut)"]["value"] for name in ranking} == pytest.approx(
        ranking, abs=1e-12
    )
    assert data["secondary"][f"FWT {PER_STEP}"]["value"] == pytest.approx(
        mean([of[PER_STEP] for of in transfer]), abs=1e-12
    )
    assert data["at_asked"] == pytest.approx(over_users(at_asked), abs=1e-12)
    errors = {name: value for name, value in over_users(valid).items() if name in ERRORS}
    assert data["errors_over_valid"] == pytest.approx(errors, abs=1e-12)
    assert data["cohort"] == {"reaches": reaches, "users": len(cohort)}
    for curve, expected_curve in (
        (data["learning_curve"], slow_curve(records)),
        (data["cohort_curve"], slow_curve(cohort, reaches)),
    ):
        assert [(p["step_id"], p["users"]) for p in curve] == [
            (p["step_id"], p["users"]) for p in expected_curve
        ]
        for point, expected_point in zip(curve, expected_curve, strict=True):
            assert point["metrics"] == pytest.approx(expected_point["metrics"], abs=1e-12)
    both_zero = [of for of in overall if of["Recall_Novelty"] == 0 and of["Recall_Stability"] == 0]
    kept = [of[F1] for of in overall if of not in both_zero]
    assert data["secondary"][RELEASE]["value"] == pytest.approx(mean(kept), abs=1e-12)
    assert data["release_code_left_out"] == len(both_zero)


@given(USERS, st.integers(1, 6))
@settings(max_examples=examples(15), deadline=None)
def test_how_users_are_cut_into_shards_changes_no_value(records, size):
    """Scored at once or in shards and merged: the same report but for rounding in the last
    place."""
    scorer = Scorer(BENCHMARK, "weibo")
    merged = scorer.score([])
    for start in range(0, len(records), size):
        merged = scorer.merge(merged, scorer.score(records[start : start + size]))
    whole, parts = scorer.score(records), merged
    assert (parts.outcomes, parts.repairs, parts.users) == (
        whole.outcomes,
        whole.repairs,
        whole.users,
    )
    if not records:
        return
    assert parts.tally.counts == whole.tally.counts
    assert parts.total == pytest.approx(whole.total, abs=1e-12)
    assert parts.tally.curves.keys() == whole.tally.curves.keys()
    for key, point in whole.tally.curves.items():
        assert parts.tally.curves[key].users == point.users
        assert parts.tally.curves[key].sums == point.sums
        assert parts.tally.curves[key].means() == pytest.approx(point.means(), abs=1e-12)


def test_measured_steps_can_be_scored():
    """What `measure_step` makes is what the scorer reads: P = {猫 诗} of G = {猫 茶}."""
    pool = ("猫", "茶", "诗", "书")
    measured = measure_step(
        Truth(frozenset("猫"), frozenset("茶"), {"Error_Peer": frozenset("诗")}),
        StepInput(1, 1, "", pool),
        ["猫", "诗"],
    )
    step = a_step(1, metrics_at_asked=measured.at_asked, ceiling=measured.ceiling)
    data = scored(user({**step, "metrics": measured.values}))
    assert data["metrics"]["Precision"]["value"] == 0.5
    assert data["metrics"]["Error_Peer"]["value"] == 1.0
    assert data["at_asked"]["Error_Peer"] == 0.0  # one is asked for: 猫
    assert data["ceiling"]["Precision"]["value"] == 1.0


# The report


KEYS = (
    "format benchmark title metric_units headline subsets user invalid_as defaults prompt_version"
    " prompt subset model name coverage metrics secondary bounds distribution chance chance_error"
    " bias detectable details sections diagnostics schedule run usage intervals_over notes"
)


def test_report_data_has_the_agreed_keys():
    """These and no others; who the run was is reported as it was."""
    data = orjson.loads(reports.encoded(report([user(a_step(1))])))
    assert " ".join(data) == KEYS
    assert (data["format"], data["benchmark"], data["prompt_version"]) == (4, "streamprofile", "1")
    assert (data["subset"], data["model"], data["name"], data["prompt"]) == (
        "weibo",
        "通义",
        "试",
        "own",
    )
    assert data["intervals_over"] == "users"


def test_report_data_is_json_without_nan():
    """Plain numbers, no NaN and no Infinity, whatever is undefined; orjson would make null of a NaN
    in silence."""
    for data in (
        scored(*three_users()),
        content_of(report([], facts(2))),
        scored(user(unscored(1))),
    ):
        text = orjson.dumps(data)
        assert orjson.loads(text) == data


def texts(made: Report) -> list[str]:
    return [getattr(block, "text", "") for block in blocks(made)]


def test_report_starts_with_its_headline_and_an_incomplete_one_with_its_coverage():
    """Right after the title; coverage is then headed INCOMPLETE, and shows bounds next to the
    means."""
    complete = report([user(a_step(1))], facts(1))
    headings = [block for block in blocks(complete) if isinstance(block, Heading)]
    assert [block.text for block in headings[1:3]] == ["Headline figures", "Coverage: complete"]
    assert all(block.folded for block in headings[3:]) and not any(
        block.folded for block in headings[:3]
    )
    incomplete = report([user(a_step(1, Recall=0.5))], facts(4, failed=2))
    assert isinstance(list(blocks(incomplete))[2], Heading)
    assert list(blocks(incomplete))[2].text == "INCOMPLETE: 1 of 4 users"
    assert "2 failed" in texts(incomplete)[3]
    table = list(blocks(incomplete))[5]
    assert isinstance(table, Table)
    assert ("Recall", "%", "50.00", "12.50", "87.50") in table.rows
    assert not any("INCOMPLETE" in text for text in texts(complete))


def test_first_picture_has_the_figures_that_rank_and_the_chance_level():
    """With an interval each, and a series without bounds; what is published stands in the table
    below."""
    made = report(many(60), facts(60))
    first = next(block for block in blocks(made) if isinstance(block, Chart))
    assert first.kind == "intervals" and first.x == ("Recall", F1)
    assert first.series[0].values == tuple(figure.shown.value for figure in made.figures)
    assert first.series[0].low == tuple(
        figure.shown.ci95 and figure.shown.ci95[0] for figure in made.figures
    )
    random = msgspec.structs.replace(made, chance={"Recall": 0.25})
    first = next(block for block in blocks(random) if isinstance(block, Chart))
    assert first.series[1] == Series("chance", (0.25, None))


def test_marks_of_a_share_and_of_synthetic_tasks_follow_the_coverage():
    """In the line that a run ends with, wherever it is printed."""
    run = {"limit": 2, "users_in_tasks": 8, "sample_seed": 1}
    made = report(many(2), facts(2, run=run, notes=("The tasks are synthetic.",)))
    assert covered(made) == "2 of 2 users, a limit of 2, synthetic"
    assert made.is_partial and made.is_limited and made.is_synthetic and made.share == 0.25
    whole = report(many(2), facts(3))
    assert covered(whole) == "2 of 3 users (INCOMPLETE)"
    assert whole.is_partial and not whole.is_limited and not whole.is_synthetic


@pytest.mark.parametrize(
    ("prompt", "said"),
    [
        ("own", "Prompt: this harness's own"),
        ("authors", "Prompt: authors"),
        ("我的.txt", "Prompt: 我的.txt"),
    ],
)
def test_report_says_whose_prompt_was_used(prompt, said):
    """And only with the authors' does it call published scores comparable."""
    found = texts(report([user(a_step(1))], facts(1, prompt=prompt)))
    assert any(text.startswith(f"{said} (prompt version 1)") for text in found)
    assert any("not with published ones" in text for text in found) == (prompt != "authors")


def test_report_tells_notes_and_repairs():
    """Notes of the run and every kind of invalid or repaired answer are shown."""
    made = report(
        [user(a_step(1, outcome="refusal"), a_step(2, repairs=["fence"]))],
        facts(1, notes=("改了参数",)),
    )
    assert "改了参数" in texts(made)
    rows = [row for block in blocks(made) if isinstance(block, Table) for row in block.rows]
    assert ("- refusal", "1") in rows and ("repaired: fence", "1") in rows


def test_invalid_answers_stand_beside_the_score():
    """In the one line that a run ends with, and under the coverage, by kind; nothing is said where
    there is none."""
    steps = [
        a_step(1, outcome="refusal"),
        a_step(2, outcome="no_json"),
        a_step(3, outcome="no_json"),
        a_step(4),
    ]
    made = report([user(*steps)], facts(1))
    said = "3 of 4 answers are invalid (no_json 2, refusal 1)"
    assert headline(made).endswith(f"; {said}")
    assert f"{said}. Invalid answers count as empty." in texts(made)
    assert "invalid" not in headline(report([user(a_step(1))], facts(1)))


def test_last_block_is_for_the_authors_stats():
    """The eight metrics, undefined ones left out, then the users, then F1^NS as the release code
    has it."""
    made = report(
        [user(a_step(1, 0.0, 0.0, Recall=0.25)), user(a_step(1, 0.5, 0.5, Recall=0.5))], facts(2)
    )
    block = list(blocks(made))[-1]
    assert isinstance(block, Verbatim)
    assert "Error_" not in block.text and "n/a" not in block.text
    found = re.search(r"Overall Macro Average.*?\n=+\n(.*?)Users:", block.text, re.DOTALL)
    assert found is not None
    assert re.findall(r"^\s*(\S+)\s*:\s*([\d.]+)%", found[1], re.MULTILINE) == [
        ("Precision", "0.00"),
        ("Recall", "37.50"),  # (0.25 + 0.5) / 2
        ("Recall_Novelty", "25.00"),
        ("Recall_Stability", "25.00"),
    ]
    assert re.findall(r"F1\^NS\s*:\s*([\d.]+)%", block.text) == ["50.00"]  # 25.00 by our definition
    assert block.text.index("Users: 2") < block.text.index("F1^NS :")
    assert (
        isinstance(list(blocks(made))[-2], Heading)
        and list(blocks(made))[-2].text == "for the authors' stats.py"
    )
