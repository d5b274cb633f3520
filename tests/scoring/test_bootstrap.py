"""Bootstrap intervals against a plain loop, against scipy, and by how often they cover the truth."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from harness.scoring import bootstrap
from harness.scoring.bootstrap import interval, resample_blocks, resample_users

NAN = float("nan")


def with_gaps(seed: int, users: int, columns: int) -> bootstrap.Array:
    rng = np.random.default_rng(seed)
    rows = rng.random((users, columns))
    rows[rng.random(rows.shape) < 0.2] = NAN
    return rows


def test_plain_resamples_equal_a_loop_over_the_same_draws() -> None:
    """Each resample's mean is that of the users drawn, those without a value left out."""
    rows = with_gaps(1, users=7, columns=3)
    drawn = np.random.default_rng(5).integers(7, size=(20, 7))
    expected = [[np.nanmean([rows[user, column] for user in users]) for column in range(3)] for users in drawn]
    np.testing.assert_allclose(resample_users(rows, np.random.default_rng(5), 20), expected)


def test_resamples_drawn_in_several_chunks_are_all_different() -> None:
    """More weights than are held at once: each chunk draws anew, and the means spread as s / sqrt(n)."""
    users = 5000
    values = np.random.default_rng(2).random(users)
    resamples = 3 * bootstrap.CELLS // users
    means = resample_users(values[:, None], np.random.default_rng(3), resamples)
    assert len(np.unique(means)) == resamples
    assert means.mean() == pytest.approx(values.mean(), abs=0.001)
    assert means.std() == pytest.approx(values.std() / users**0.5, rel=0.1)


def test_plain_interval_agrees_with_scipy() -> None:
    """The same percentile interval of a mean as scipy.stats.bootstrap, up to the draws."""
    values = np.random.default_rng(7).beta(2, 5, size=80)
    ours = interval(resample_users(values[:, None], np.random.default_rng(1), 4000)[:, 0], 80)
    theirs = stats.bootstrap(
        (values,), np.mean, n_resamples=4000, method="percentile", rng=np.random.default_rng(2)
    ).confidence_interval
    assert ours == pytest.approx((theirs.low, theirs.high), abs=0.004)


def test_columns_share_their_resamples() -> None:
    """The difference of a column and itself plus a constant is that constant in every resample."""
    rows = with_gaps(3, users=40, columns=1)
    means = resample_users(np.hstack([rows, rows + 0.25]), np.random.default_rng(0), 200)
    np.testing.assert_allclose(means[:, 1] - means[:, 0], 0.25)


def test_same_seed_same_resamples() -> None:
    """All randomness comes from the generator that is handed in."""
    rows = with_gaps(4, users=20, columns=2)
    first, again, other = (resample_users(rows, np.random.default_rng(seed), 50) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)


def test_resample_without_a_value_is_undefined_and_left_out() -> None:
    """One user of three has a value: (2/3)^3 = 30 % of the resamples miss it, the others have it."""
    means = resample_users(np.array([[NAN], [0.4], [NAN]]), np.random.default_rng(0), 500)[:, 0]
    assert 0.2 < np.isnan(means).mean() < 0.4
    assert interval(means, 2) == pytest.approx((0.4, 0.4))


def test_fewer_than_two_values_have_no_interval() -> None:
    """One user says nothing of how users differ; none at all has no mean either."""
    assert interval(np.array([0.5, 0.5]), 1) is None
    assert interval(np.array([NAN, NAN]), 2) is None
    assert interval(np.array([]), 0) is None


def test_no_users_have_undefined_resamples() -> None:
    """Nothing to draw from: every mean is undefined, and nothing is raised."""
    assert np.isnan(resample_users(np.empty((0, 2)), np.random.default_rng(0), 4)).all()


def test_block_resamples_equal_a_loop_over_the_same_weights() -> None:
    """Each resample's mean is the weighted sum over the weighted count of the blocks."""
    sums, counts = np.array([[3.0, 0.0], [1.0, 2.0], [5.0, 4.0]]), np.array([[4.0, 0.0], [2.0, 2.0], [9.0, 5.0]])
    weights = np.random.default_rng(5).poisson(1.0, size=(30, 3))
    expected = []
    for drawn in weights:
        totals = [sum(w * s for w, s in zip(drawn, sums[:, column], strict=True)) for column in (0, 1)]
        numbers = [sum(w * c for w, c in zip(drawn, counts[:, column], strict=True)) for column in (0, 1)]
        expected.append([total / number if number else NAN for total, number in zip(totals, numbers, strict=True)])
    np.testing.assert_allclose(resample_blocks(sums, counts, np.random.default_rng(5), 30), expected)


def test_block_interval_is_about_as_wide_as_the_plain_one() -> None:
    """With many blocks of like users both say the same of the same mean."""
    values = np.random.default_rng(9).random(4000)
    blocks = values.reshape(200, 20)
    plain = interval(resample_users(values[:, None], np.random.default_rng(1), 500)[:, 0], 4000)
    by_block = resample_blocks(blocks.sum(axis=1)[:, None], np.full((200, 1), 20.0), np.random.default_rng(2), 500)
    poisson = interval(by_block[:, 0], 200)
    assert plain is not None and poisson is not None
    assert poisson[1] - poisson[0] == pytest.approx(plain[1] - plain[0], rel=0.25)
    assert sum(poisson) / 2 == pytest.approx(sum(plain) / 2, abs=0.005)


def test_interval_covers_the_true_mean_as_often_as_it_says() -> None:
    """Over 400 samples of 60 users each, the mean 0.3 lies inside about 95 times in 100."""
    rng = np.random.default_rng(11)
    samples = rng.beta(3, 7, size=(400, 60))
    inside = 0
    for sample in samples:
        found = interval(resample_users(sample[:, None], rng, 300)[:, 0], 60)
        assert found is not None
        inside += found[0] <= 0.3 <= found[1]
    assert 0.91 <= inside / 400 <= 0.98
