"""Rows of saved runs, from Python."""

from __future__ import annotations

from harness import run
from tests.interface.test_interface import small


def test_rows_are_flat_and_agree_with_the_report(tmp_path):
    """Users, steps and replies of a run are read back, with the numbers of its report."""
    [made] = small(tmp_path)
    users, steps, replies = list(made.users()), list(made.steps()), list(made.responses())
    assert len(users) == 3 == made.report.coverage.scored_users == len(list(made.records()))
    assert (
        len(steps)
        == sum(user["answers"] for user in users)
        == len(replies)
        == made.report.usage["requests"]
    )
    assert not any(
        isinstance(value, (dict, list))
        for row in [*users, *steps, *replies]
        for value in row.values()
    )
    assert {reply["user_id"] for reply in replies} == {user["user_id"] for user in users}


def test_day_has_a_row_for_each_half_hour(tmp_path):
    """48 slots, each with a place and an intention."""
    [made] = run(
        "dailymobility",
        model="baseline/commuter",
        demo=True,
        limit=2,
        results_dir=tmp_path,
        html=False,
    )
    steps = list(made.steps())
    assert [step["slot"] for step in steps] == [*range(48)] * 2
    assert all(1 <= step["intention"] <= 7 for step in steps)
