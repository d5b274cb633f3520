"""The metrics of one step against values computed by hand and by brute force (docs/design.md,
section 8)."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.benchmarks.streamprofile.metrics import (
    ERRORS,
    GAINS,
    METRICS,
    ceiling,
    harmonic,
    measure_step,
)
from harness.benchmarks.streamprofile.task import StepInput, Truth
from tests.support import examples

POOL = tuple("猫狗茶书画诗球车花酒山海云雨雪风")  # 16 tags: round(0.25 * 16) = 4 are asked for


def truth(kept: str = "", new: str = "", **distractors: str) -> Truth:
    """Tags as single characters."""
    return Truth(
        frozenset(kept),
        frozenset(new),
        {name: frozenset(tags) for name, tags in distractors.items()},
    )


def step(pool: tuple[str, ...] = POOL) -> StepInput:
    return StepInput(1, 1, "", pool)


FULL = truth(
    "猫狗",
    "茶书画",
    Error_Peer="诗球",
    Error_Viral="车花酒",
    Error_Decay="山",
    Error_Random="海云雨雪",
)


def test_every_metric_has_its_golden_value():
    """G = {猫 狗 茶 书 画}, and P = {猫 茶 书 诗 山 海} has 3 of them."""
    assert measure_step(FULL, step(), list("猫茶书诗山海")).values == {
        "Precision": 3 / 6,  # 猫 茶 书 of six
        "Recall": 3 / 5,  # of the five true ones
        "Recall_Novelty": 2 / 3,  # 茶 书 of 茶 书 画
        "Recall_Stability": 1 / 2,  # 猫 of 猫 狗
        "Error_Peer": 1 / 2,  # 诗 of 诗 球
        "Error_Viral": 0 / 3,  # none of 车 花 酒
        "Error_Decay": 1 / 1,  # 山
        "Error_Random": 1 / 4,  # 海 of four
    }


def test_metrics_come_in_the_order_of_the_design():
    """Precision, the recalls, then the errors: in `METRICS`, and in every step."""
    names = (
        "Precision Recall Recall_Novelty Recall_Stability Error_Peer Error_Viral Error_Decay"
        " Error_Random"
    )
    assert METRICS == tuple(names.split()) == tuple(measure_step(FULL, step(), ["猫"]).values)


def test_empty_prediction_has_precision_zero_and_no_errors():
    """With P empty nothing is undefined that was not before: Precision is 0, not a division by
    zero."""
    assert measure_step(FULL, step(), []).values == dict.fromkeys(METRICS, 0.0)


def test_recall_novelty_is_undefined_without_new_tags():
    """N empty: G = K = {猫 狗}, P = {猫 诗} has 1 of 2 true tags."""
    values = measure_step(truth("猫狗"), step(), ["猫", "诗"]).values
    assert (values["Recall_Novelty"], values["Recall_Stability"], values["Recall"]) == (
        None,
        1 / 2,
        1 / 2,
    )


def test_recall_stability_is_undefined_without_kept_tags():
    """K empty: G = N = {茶 书 画}, P = {茶 诗} has 1 of 3."""
    values = measure_step(truth("", "茶书画"), step(), ["茶", "诗"]).values
    assert (values["Recall_Novelty"], values["Recall_Stability"], values["Recall"]) == (
        1 / 3,
        None,
        1 / 3,
    )


@pytest.mark.parametrize("missing", ERRORS)
def test_an_error_is_undefined_without_its_distractors(missing):
    """D empty, whether the list is empty or absent: that error alone is undefined."""
    others = {name: "诗" for name in ERRORS if name != missing}
    for distractors in (others, {**others, missing: ""}):
        values = measure_step(truth("猫", "茶", **distractors), step(), ["诗"]).values
        assert {name for name in METRICS if values[name] is None} == {missing}
        assert all(values[name] == 1.0 for name in others)


def test_step_without_truth_is_not_scored():
    """G empty: no values, no ceiling; what lies outside the pool is still counted."""
    measured = measure_step(truth(Error_Peer="诗"), step(), [*POOL, "外"])
    assert (measured.values, measured.at_asked, measured.ceiling, measured.out_of_pool) == (
        {},
        None,
        {},
        1,
    )


def test_tags_outside_the_pool_count_as_given():
    """Two of four tags are not in the pool: Precision is over four, and a true tag outside the pool
    is a hit."""
    measured = measure_step(truth("猫外", "茶"), step(), ["猫", "外", "天", "诗"])
    assert measured.values["Precision"] == 2 / 4  # 猫 外
    assert measured.values["Recall"] == 2 / 3  # of 猫 外 茶
    assert measured.out_of_pool == 2  # 外 天


def test_a_tag_both_kept_and_new_counts_in_both_recalls_and_once_in_the_truth():
    """K = {猫 狗}, N = {狗 茶}: G has three tags, and 狗 alone is half of each."""
    values = measure_step(truth("猫狗", "狗茶"), step(), ["狗"]).values
    assert [values[name] for name in GAINS] == [1.0, 1 / 3, 1 / 2, 1 / 2]


def test_a_long_prediction_is_also_measured_at_the_asked_number():
    """Four are asked for, six given: 猫 茶 书 诗 is what counts at the asked number."""
    at_asked = measure_step(FULL, step(), list("猫茶书诗山海")).at_asked
    assert at_asked is not None
    assert at_asked == {
        "Precision": 3 / 4,
        "Recall": 3 / 5,
        "Recall_Novelty": 2 / 3,
        "Recall_Stability": 1 / 2,
        "Error_Peer": 1 / 2,
        "Error_Viral": 0.0,
        "Error_Decay": 0.0,  # 山 was the fifth
        "Error_Random": 0.0,  # 海 was the sixth
    }


@pytest.mark.parametrize("number", [0, 3, 4])
def test_a_prediction_no_longer_than_asked_has_no_second_measure(number):
    """Cutting changes nothing, so nothing is recorded."""
    assert measure_step(FULL, step(), POOL[:number]).at_asked is None


def test_ceiling_splits_the_asked_number_for_the_best_harmonic_mean():
    """Four tags for K of 2 and N of 3. 2 kept + 2 new: H(2/3, 1) = 0.8; 1 kept + 3 new: H(1, 1/2) =
    0.667."""
    assert measure_step(FULL, step(), []).ceiling == {
        "Precision": 4 / 4,
        "Recall": 4 / 5,
        "Recall_Novelty": 2 / 3,
        "Recall_Stability": 1.0,
    }


def test_ceiling_fills_up_with_other_tags_and_reaches_only_what_the_pool_has():
    """Of K = {猫 外} and N = {茶} the pool has 猫 and 茶: 2 hits of 4 answered, 2 of 3 true."""
    reached = ceiling(truth("猫外", "茶").sets, set(POOL), 4)
    assert [reached[name] for name in GAINS] == [2 / 4, 2 / 3, 1.0, 1 / 2]


def test_ceiling_leaves_undefined_what_has_no_truth():
    """Only kept tags, then only new ones: the other recall stays undefined, the rest is reached."""
    assert list(ceiling(truth("猫狗").sets, set(POOL), 4).values()) == [2 / 4, 1.0, None, 1.0]
    assert list(ceiling(truth("", "猫狗").sets, set(POOL), 1).values()) == [1.0, 1 / 2, 1 / 2, None]


def test_ceiling_with_one_tag_takes_the_one_worth_most():
    """F1^NS is 0 either way; one of K = 1 is worth more than one of N = 2."""
    assert list(ceiling(truth("猫", "茶书").sets, set(POOL), 1).values()) == [1.0, 1 / 3, 0.0, 1.0]


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        (0.5, 1.0, 2 / 3),  # 2 * 0.5 * 1 / 1.5
        (0.0, 1.0, 0.0),
        (0.0, 0.0, 0.0),  # both 0: 0, not 0 / 0
        (None, 1.0, None),
        (1.0, None, None),
        (None, None, None),
    ],
)
def test_harmonic_mean(a, b, expected):
    """0 where both are 0, undefined where either is."""
    assert harmonic(a, b) == expected


tags = st.frozensets(st.sampled_from("甲乙丙丁戊己"), max_size=5)


@given(kept=tags, new=tags, pool=tags, asked=st.integers(1, 4))
@settings(max_examples=examples(150), deadline=None)
def test_no_answer_of_the_asked_number_beats_the_ceiling(kept, new, pool, asked):
    """Tried with every choice from the pool: none has more hits, and none with as many a higher
    F1^NS."""
    if not kept | new:
        return
    made = ceiling(Truth(kept, new, {}).sets, pool, asked)
    answers = [set(chosen) for chosen in combinations(sorted(pool), min(asked, len(pool)))]
    most = max(len(answer & (kept | new)) for answer in answers)
    best = max(
        (
            harmonic(len(answer & new) / len(new), len(answer & kept) / len(kept)) or 0.0
            if new and kept
            else 0.0
        )
        for answer in answers
        if len(answer & (kept | new)) == most
    )
    assert (made["Precision"], made["Recall"]) == (most / asked, most / len(kept | new))
    assert (harmonic(made["Recall_Novelty"], made["Recall_Stability"]) or 0.0) == pytest.approx(
        best
    )
