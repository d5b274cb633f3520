"""The soak: its statistics, its reading, and ten seconds of it."""

from __future__ import annotations

import csv
from dataclasses import replace

import numpy as np
import pytest

from bench.soak import (
    TERMINATED,
    Sample,
    Setting,
    Soak,
    passed,
    soak,
    trend,
    trends,
)

EVERY = 5.0
LOOK = Sample(0.0, 150.0, 110.0, 1100, 6, 0.0, 0, 0, 0, None, None, None, None)


def autoregression(rng: np.random.Generator, kept: float, count: int) -> list[float]:
    """A series without slope, each value with so much of the one before."""
    values = [rng.standard_normal() / np.sqrt(1 - kept**2)]
    for _ in range(count - 1):
        values.append(kept * values[-1] + rng.standard_normal())
    return values


def looks(count: int, growth: float) -> list[Sample]:
    """Samples of half an hour and more, with memory that grows by so many MB in ten minutes, and
    noise."""
    noise = np.random.default_rng(0).standard_normal(count)
    return [
        replace(
            LOOK,
            seconds=EVERY * n,
            resident_mb=150 + growth * EVERY * n / 600 + float(noise[n]),
            requests=1000 * n,
        )
        for n in range(count)
    ]


def test_slope_of_a_straight_line_is_its_own():
    """Growth is reported in ten minutes; without noise the interval has no width."""
    seconds = [EVERY * n for n in range(100)]
    found = trend(seconds, [7 + 3 * at / 600 for at in seconds])
    assert found is not None
    assert (found.slope, found.low, found.high) == pytest.approx((3.0, 3.0, 3.0))
    assert (found.least, found.most) == pytest.approx((7.0, 7 + 3 * 495 / 600))


@pytest.mark.slow
@pytest.mark.parametrize("kept", [0.0, 0.9])
def test_interval_of_a_slope_covers_it_where_samples_depend_on_each_other(kept):
    """Of 300 series without slope about 95 % have zero in it; as if samples were independent, a
    third would at 0.9."""
    rng = np.random.default_rng(1)
    seconds = [EVERY * n for n in range(300)]
    found = [trend(seconds, autoregression(rng, kept, 300)) for _ in range(300)]
    covered = sum(one is not None and one.low <= 0 <= one.high for one in found) / len(found)
    assert 0.9 <= covered <= 0.98


def test_soak_passes_where_nobody_was_lost_and_memory_is_flat():
    """Growth of two MB in ten minutes fails it, and so do a lost user and a run that did not end as
    asked."""
    setting, good = Setting(30, 1000, 0.2), Soak(looks(360, 0.0), TERMINATED, 0, {"500": 3})
    assert passed(good, setting)
    assert not passed(replace(good, samples=looks(360, 2.0)), setting)
    assert not passed(replace(good, failed=1), setting)
    assert not passed(replace(good, code=1), setting)


@pytest.mark.slow
def test_ten_seconds_of_the_soak_tell_every_series(tmp_path, monkeypatch):
    """A faulty endpoint, streams and whole replies: nobody is lost, and the file holds what was
    seen."""
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.setenv(name, "127.0.0.1")
    setting = Setting(10 / 60, 50, 0.2, latency=0.5, every=0.5, settling=3.0)
    found = soak(tmp_path, setting, tmp_path / "soak.csv")
    assert (found.code, found.failed) == (TERMINATED, 0)
    assert (
        len(trends(found.samples, setting.settling)) >= 10
    )  # lateness is told every ten seconds only
    last = found.samples[-1]
    assert 50 <= last.files <= 200
    assert last.tasks is not None and last.tasks > 50
    assert last.completed > last.users > 100
    assert found.faults["reset"] > 0
    with (tmp_path / "soak.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [float(row["seconds"]) for row in rows] == [sample.seconds for sample in found.samples]
