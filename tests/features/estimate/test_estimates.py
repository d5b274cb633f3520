"""`run --estimate`: what a few users tell of the whole, against what the whole then takes."""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from harness.features.estimate.estimates import choose, estimates, sample_of
from harness.features.estimate.prediction import Range
from tests.support.workloads import QUANTITIES, Played, Workload, held_by, workloads

SOME = Workload(1, "normal", "normal", "none", 300, 16, 0.0)


@pytest.mark.slow
def test_intervals_hold_with_heavy_tails_and_limits() -> None:
    """Each quantity, time included, of 24 workloads; the seeds are not those that constants were chosen with."""
    held, all_of = Counter[str](), workloads(first_seed=9_000)
    for _, found in held_by(all_of):
        held.update(name for name, (of, truth) in found.items() if of.low <= truth <= of.high)
    assert len(all_of) == 24 and all(held[name] >= 21 for name in QUANTITIES), held


def test_first_users_are_of_all_lengths(tmp_path: Path) -> None:
    """One of each tenth of the chains, by length; so their mean is about that of all, and the seed decides who."""
    with ExitStack() as held:
        run = Played(tmp_path, SOME, held).run
        steps = np.sort(run.index.steps)
        chosen = np.sort(run.index.steps[choose(run)])
        assert len(chosen) == 30 and (choose(run) == choose(run)).all()
        assert ((steps[::10] <= chosen) & (chosen <= steps[9::10])).all()


def test_second_estimate_plays_nobody_more(tmp_path: Path) -> None:
    """The first users are in the run, and how fast the endpoint was is in its manifest: the estimate is the same."""
    with ExitStack() as held:
        played = Played(tmp_path, SOME, held)
        run = played.run
        run.first = choose(run)
        lane, _ = played.play()
        first = estimates([(played.plan, lane, [sample_of(run)])], 0.0)
        run.first = choose(run)
        assert not len(run.first)
        lane, _ = played.play()
        assert estimates([(played.plan, lane, [sample_of(run)])], 0.0) == first


def test_what_is_left_is_what_is_not_paid_yet(tmp_path: Path) -> None:
    """The whole is what the saved replies cost, and the rest; a question is for the rest."""
    with ExitStack() as held:
        played = Played(tmp_path, SOME, held)
        run = played.run
        run.first = choose(run)
        lane, _ = played.play()
        [made] = estimates([(played.plan, lane, [sample_of(run)])], 5.0) or []
        assert run.cost is not None and made.amount is not None
        assert made.paid == pytest.approx(float(run.cost.amount or 0)) and made.paid > 0
        assert made.left == pytest.approx(made.amount.value - made.paid)


def test_prompts_go_by_their_bytes(tmp_path: Path) -> None:
    """Users with long texts are known from the tasks file, whoever is played first."""
    with ExitStack() as held:
        played = Played(tmp_path, SOME, held)
        run = played.run
        run.first = choose(run)
        played.play()
        sample = sample_of(run)
        assert sample.prompt_tokens.high / sample.prompt_tokens.low < 1.2
        assert np.corrcoef(sample.prompts, [usage.prompt_tokens for usage in sample.usage])[0, 1] > 0.99


def test_subset_without_anybody_left_needs_no_prediction(tmp_path: Path) -> None:
    """What it took is known, however few its users are; too few users of others leave no estimate."""
    with ExitStack() as held:
        played = Played(tmp_path, SOME, held)
        played.run.expected[1:] = False
        played.run.first = choose(played.run)
        lane, _ = played.play()
        sample = sample_of(played.run)
        assert len(sample.steps) == 1 and sample.requests == Range(0.0, 0.0, 0.0)
        played.run.expected[1] = True
        assert estimates([(played.plan, lane, [sample_of(played.run)])], 1.0) is None
