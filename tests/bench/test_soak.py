"""The soak: its statistics, its reading, and ten seconds of it."""

from __future__ import annotations

import csv
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bench.soak import (
    SETTLING,
    TERMINATED,
    Sample,
    Setting,
    Soak,
    Trend,
    _check,
    _Growing,
    flat,
    passed,
    report,
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


def test_slope_of_a_straight_line_is_its_own() -> None:
    """Growth is reported in ten minutes; without noise the interval has no width."""
    seconds = [EVERY * n for n in range(100)]
    found = trend(seconds, [7 + 3 * at / 600 for at in seconds])
    assert found is not None
    assert (found.slope, found.low, found.high) == pytest.approx((3.0, 3.0, 3.0))
    assert (found.least, found.most) == pytest.approx((7.0, 7 + 3 * 495 / 600))


@pytest.mark.parametrize("kept", [0.0, 0.5, 0.9, 0.95])
def test_interval_of_a_slope_covers_it_where_samples_depend_on_each_other(kept: float) -> None:
    """Of 300 series without slope about 95 % have zero in it; as if samples were independent, a
    third would at 0.9."""
    rng = np.random.default_rng(1)
    seconds = [EVERY * n for n in range(300)]
    found = [trend(seconds, autoregression(rng, kept, 300)) for _ in range(300)]
    covered = sum(one is not None and one.low <= 0 <= one.high for one in found) / len(found)
    assert 0.9 <= covered <= 0.98


def test_series_that_never_changes_has_no_slope() -> None:
    """Threads that stay six are flat for certain."""
    found = trend([EVERY * n for n in range(50)], [6.0] * 50)
    assert found == Trend(50, 6.0, 6.0, 6.0, 0.0, 0.0, 0.0)


def test_slope_of_a_few_samples_is_not_told() -> None:
    """Nine say nothing."""
    assert trend([EVERY * n for n in range(9)], [1.0] * 9) is None


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (-0.5, 3.0, True),
        (0.1, 0.9, True),
        (-2.0, -1.0, True),
        (0.1, 1.0, False),
        (2.0, 3.0, False),
        (-80.0, 370.0, False),
    ],
)
def test_memory_is_flat_where_its_interval_holds_zero_or_is_below_one_mb(
    low: float, high: float, expected: bool
) -> None:
    """Memory that shrinks is flat, too; of an interval as wide as a leak nothing can be said."""
    assert flat(Trend(300, 150.0, 140.0, 160.0, (low + high) / 2, low, high)) is expected


def test_first_minutes_are_no_part_of_the_slopes() -> None:
    """A run that takes its memory in the first five minutes and no more after them is flat."""
    seen = [
        replace(one, resident_mb=one.resident_mb - 100 * (one.seconds < SETTLING))
        for one in looks(400, 0.0)
    ]
    found = trends(seen, SETTLING)
    assert found["resident_mb"].samples == 340
    assert found["resident_mb"].slope == pytest.approx(0.0, abs=0.2)
    assert trends(seen, 0.0)["resident_mb"].slope > 20


def test_counts_are_told_as_rates_and_what_was_not_told_is_left_out() -> None:
    """A thousand requests every five seconds are 200 a second; tasks that were never counted have
    no row."""
    seen = [replace(one, backing_off=7 if one.seconds % 10 else None) for one in looks(60, 0.0)]
    found = trends(seen, 0.0)
    assert (found["requests/s"].mean, found["requests/s"].slope) == pytest.approx((200.0, 0.0))
    assert (found["backing_off"].samples, found["backing_off"].mean) == (30, 7.0)
    assert "tasks" not in found


def test_soak_passes_where_nobody_was_lost_and_memory_is_flat() -> None:
    """Growth of two MB in ten minutes fails it, and so do a lost user and a run that did not end as
    asked."""
    setting, good = Setting(30, 1000, 0.2), Soak(looks(360, 0.0), TERMINATED, 0, {"500": 3})
    assert passed(good, setting)
    assert not passed(replace(good, samples=looks(360, 2.0)), setting)
    assert not passed(replace(good, failed=1), setting)
    assert not passed(replace(good, code=1), setting)


def test_table_has_a_line_for_each_series() -> None:
    """Slope and interval beside it, and how the run ended above."""
    shown = report(
        Soak(looks(360, 2.0), TERMINATED, 0, {"500": 3}), Setting(30, 1000, 0.2)
    ).splitlines()
    assert "359,000 requests" in shown[0]
    assert "exit code 143" in shown[0]
    [memory] = [line.split() for line in shown if line.startswith("resident_mb")]
    assert float(memory[6]) < 2.0 < float(memory[8])
    assert shown[-1] == 'faults served: {"500":3}'


def test_users_last_for_the_time_where_nothing_fails() -> None:
    """1,000 in flight at 4 s are 250 answers a second of both models together."""
    assert Setting(30, 1000, 0.2).steps == 1800 * 250 / 2


def test_file_that_grows_is_read_from_where_it_was_left(tmp_path: Path) -> None:
    """One that is not there yet has nothing."""
    growing = _Growing(tmp_path / "log")
    assert growing.more() == ""
    (tmp_path / "log").write_text("一\n", encoding="utf-8")
    assert growing.more() == "一\n"
    with (tmp_path / "log").open("a") as file:
        file.write("b\n")
    assert (growing.more(), growing.more()) == ("b\n", "")


def test_run_that_ends_by_itself_is_an_error(tmp_path: Path) -> None:
    """Its exit code and its last words are reported, not slopes of what came before."""
    (tmp_path / "display").write_text("harness: no file left", encoding="utf-8")
    with (
        subprocess.Popen([sys.executable, "-S", "-c", "raise SystemExit(4)"]) as process,
        pytest.raises(RuntimeError, match="exit code 4: harness: no file left"),
    ):
        process.wait()
        _check(process, tmp_path)


@pytest.mark.slow
def test_ten_seconds_of_the_soak_tell_every_series(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
