"""Servers that are killed under a command of several models, or of several replicas, and come
back."""

from __future__ import annotations

import pytest

from bench.models import Break, Speeds, killed, outage

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.setenv(name, "127.0.0.1")


def test_outage_of_one_account_leaves_the_other_s_run_alone_and_costs_no_user(
    tmp_path,
):
    """The other run comes to its end meanwhile; then both of the first go on to the bytes of an
    undisturbed run.

    Two retries are used up long before the server is back: those of an outage do not count.
    """
    row = outage(tmp_path, 25, {"oa": 0.1, "ds": 0.2}, Break(after=30, down=22.0))
    assert (row["exit_code"], row["failures"], row["foreign_keys"], row["identical"]) == (
        0,
        0,
        0,
        True,
    )
    assert row["own_during"] == 0
    assert row["other_ended_s"] < row["back_s"] <= row["answers_again_s"]
    assert row["most_tries"] > 3


def test_killed_replica_fails_nothing_and_gets_its_share_again(tmp_path):
    """The other replica answers meanwhile, and the results are those of an undisturbed run, byte
    for byte."""
    row = killed(tmp_path, 160, Speeds((0.04, 0.06), 4), 0, 0.5)
    assert (row["exit_code"], row["failures"], row["identical"]) == (0, 0, True)
    assert row["most_tries"] >= 2
    assert row["of_its_speed_after"] == pytest.approx(1.0, abs=0.25)
