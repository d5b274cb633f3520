"""The ledger of budgets: shared by whoever uses the folder, by day, whole after any death."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import pytest

from harness.client.transport import Received
from harness.errors import MachineError
from harness.extensions.budget import Cap
from harness.extensions.budget.ledger import NAME, Ledger
from harness.extensions.budget.meter import Meter, SharedBudget
from harness.model import Completion
from harness.store.files import RunFiles
from harness.store.lock import RunLock

MIDNIGHT = 1_795_478_400.0
"""The beginning of 2026-11-24 in UTC."""


def entries(
    folder: Path,
    cap: str = "10usd",
    clock: float = MIDNIGHT,
    part: str = "",
    run: str | None = None,
) -> SharedBudget:
    parsed = Cap.parse(cap)
    return SharedBudget(parsed, Ledger(folder, lambda: clock), part, run)


def test_two_who_use_a_folder_never_take_more_than_the_cap(tmp_path):
    """What one has taken the other sees, and what one gives back the other may take."""
    one, other = entries(tmp_path), entries(tmp_path)
    assert one.take(Decimal(6), "a") == "2026-11-24"
    assert other.take(Decimal(6), "b") is None
    assert other.spent == 6 and one.spent == 0
    one.settle(Decimal(6), Decimal("1.5"), "2026-11-24", "a")
    assert other.take(Decimal(6), "b") == "2026-11-24"
    assert (one.spent, other.spent) == (Decimal("7.5"), Decimal("1.5"))


def test_each_day_has_as_much_and_a_reply_belongs_to_the_day_of_its_request(tmp_path):
    """UTC; also where midnight passes while requests are in flight."""
    now = [MIDNIGHT - 1]
    cap = Cap.parse("10usd/day")
    budget = SharedBudget(cap, Ledger(tmp_path, lambda: now[0]))
    meter = Meter(budget, None, 4, "a")
    budget.take(Decimal(4), "a")
    reservation = meter.take(2)
    assert reservation is not None and reservation.day == "2026-11-23"
    assert meter.take(2) is None
    now[0] += 2
    assert budget.spent == 0
    assert budget.take(Decimal(10), "a") == "2026-11-24"
    meter.settle(
        reservation, 2, Received(Completion("", prompt_tokens=1, completion_tokens=1), ""), None
    )
    assert budget.take(Decimal(1), "a") is None
    now[0] -= 2
    assert budget.totals()[0] == 6


def test_budgets_of_other_units_runs_and_parts_are_others(tmp_path):
    shared, tokens = entries(tmp_path), entries(tmp_path, "10tok")
    own, others = entries(tmp_path, "10usd each", run="a"), entries(tmp_path, "10usd each", run="b")
    part = entries(tmp_path, part="1/2")
    for budget, run in ((shared, "a"), (tokens, "a"), (own, "a"), (others, "b"), (part, "c")):
        assert budget.take(Decimal(8), run) is not None
        assert budget.take(Decimal(8), run) is None


def test_torn_line_of_a_dead_process_hides_no_other(tmp_path):
    """It is left out, and the next line is whole."""
    entries(tmp_path).take(Decimal(3), "a")
    path = tmp_path / NAME
    path.write_bytes(path.read_bytes() + path.read_bytes()[:40])
    assert entries(tmp_path).take(Decimal(4), "a") is not None
    assert entries(tmp_path).totals()[0] == 7


def test_what_a_run_has_spent_without_the_ledger_is_carried_once(tmp_path):
    budget = entries(tmp_path)
    budget.take(Decimal(2), "a")
    for amount, total in ((5, 5), (5, 5), (4, 5), (6, 6)):
        budget.carry("a", Decimal(amount))
        assert budget.totals()[0] == total


def test_runs_of_one_command_on_one_budget_are_nobody_elses(tmp_path):
    """What they have reserved is not reserved by other commands, too."""
    budget = entries(tmp_path)
    for run in ("a", "b"):
        (tmp_path / run).mkdir()
        budget.carry(run, Decimal(1))
    lock = RunLock(RunFiles(tmp_path / "b", "weibo").lock, lambda: MIDNIGHT)
    RunFiles(tmp_path / "b", "weibo").manifest.write_text("{}")
    budget.take(Decimal(3), "b")
    assert (budget.totals(), budget.spent) == ((5, 0), 2)
    assert entries(tmp_path).totals() == (5, 3)
    lock.release()


def test_ledger_that_is_shortened_is_noticed(tmp_path):
    budget = entries(tmp_path)
    budget.take(Decimal(1), "a")
    (tmp_path / NAME).write_bytes(b"")
    with pytest.raises(MachineError, match=NAME):
        budget.take(Decimal(1), "a")
