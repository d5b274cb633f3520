"""Variance components of users with several answers: by hand, and in simulated models with known
variances."""

from __future__ import annotations

import math

import numpy as np
import pytest

from harness.scoring.components import components
from harness.scoring.intervals import interval, moments

NAN = float("nan")


def test_balanced_components_are_those_of_the_analysis_of_variance():
    """Users of 1, 3 | 5, 7 | 9, 11: mean squares 32 and 2 by hand, so 15 between users and 2
    within."""
    found = components(np.array([1.0, 3, 5, 7, 9, 11]), np.array([0, 0, 1, 1, 2, 2]))
    assert found is not None
    assert (found.between, found.within, found.number, found.repeats) == pytest.approx(
        (15, 2, 3, 2)
    )
    assert found.share == pytest.approx(1 / 16)
    assert found.error() == pytest.approx(math.sqrt(16 / 3))
    assert found.error(2) == pytest.approx(math.sqrt(15.5 / 3))
    assert found.error(math.inf) == pytest.approx(math.sqrt(5))


def test_unequal_numbers_of_answers_weigh_as_in_searle():
    """Users of 1, 3 | 5 with n0 = 4/3: mean squares 6 and 2, so 3 between users; an undefined
    answer is left out."""
    found = components(np.array([1.0, NAN, 3, 5, NAN]), np.array([0, 0, 0, 1, 2]))
    assert found is not None
    assert (found.between, found.within, found.number, found.repeats) == pytest.approx(
        (3, 2, 2, 4 / 3)
    )


def test_variance_between_users_is_never_negative():
    """Users alike in the mean: all of the variance is within."""
    found = components(np.array([0.0, 1, 1, 0]), np.array([0, 0, 1, 1]))
    assert found is not None and (found.between, found.share) == (0.0, 1.0)


@pytest.mark.parametrize(
    ("values", "users"),
    [([], []), ([1.0, 2], [0, 0]), ([1.0, 2], [0, 1]), ([NAN, 2, 3], [0, 1, 1])],
)
def test_components_need_two_users_and_a_second_answer(values, users):
    """Of one user, or one answer of each, nothing can be distinguished."""
    assert components(np.array(values), np.array(users, dtype=np.int_)) is None


def test_equal_answers_have_no_share():
    """Where nothing varies there is nothing to share, and no error to remove."""
    found = components(np.ones(4), np.array([0, 0, 1, 1]))
    assert found is not None and (found.share, found.error()) == (None, 0.0)


@pytest.mark.slow
@pytest.mark.parametrize(("between", "within"), [(0.04, 0.09), (0.01, 0.16), (0.09, 0.01)])
def test_both_parts_are_recovered_and_intervals_of_user_means_hold(between, within):
    """200 users, 5 answers each, 1,000 simulated models: each part within 10 % on average, 93 to 97
    % of intervals."""
    users, repeats, models, truth = 200, 5, 1000, 0.4
    rng = np.random.default_rng(1)
    own = rng.normal(truth, math.sqrt(between), (users, 1, models))
    answers = own + rng.normal(0, math.sqrt(within), (users, repeats, models))
    numbers = np.repeat(np.arange(users), repeats)
    found = [components(column, numbers) for column in answers.reshape(-1, models).T]
    assert np.mean([of.between for of in found if of]) == pytest.approx(between, rel=0.1)
    assert np.mean([of.within for of in found if of]) == pytest.approx(within, rel=0.1)
    ends = (interval(of.mean(), [moments(of)]) for of in answers.mean(axis=1).T)
    held = [of is not None and of[0] <= truth <= of[1] for of in ends]
    assert 0.93 <= np.mean(held) <= 0.97
    errors = answers.mean(axis=(0, 1)).std()
    assert np.mean([of.error() for of in found if of]) == pytest.approx(errors, rel=0.1)
