"""The part of a budget that another process spends: reserved here, and settled by what that process
reports."""

from __future__ import annotations

from decimal import ROUND_DOWN, Decimal
from typing import TYPE_CHECKING

from harness.errors import HarnessError
from harness.extensions.budget import BudgetReached
from harness.extensions.budget.ledger import NOTHING

if TYPE_CHECKING:
    from harness.extensions.budget.meter import Meter

SMALLEST = Decimal("1e-9")


class MeterLoan:
    """What one borrower may take. The reservation is in the ledger before the borrower has it, so
    the budget holds for all of them together."""

    def __init__(self, meter: Meter) -> None:
        self._meter = meter
        self._amount = self._taken = NOTHING
        self._day = ""

    def renewed(self, taken: Decimal, reserved: Decimal, borrowers: int) -> Decimal:
        """Return what the borrower may take from now on beyond what it has `taken` so far and
        `reserved` for requests in flight: its share of what is left."""
        self.settle(taken)
        budget = self._meter.budget
        run = self._meter.run
        room = max(NOTHING, budget.cap.amount - budget.totals()[0] - reserved)
        amount = reserved + (room / borrowers).quantize(SMALLEST, ROUND_DOWN)
        day = budget.take(amount, run)
        if day is None:  # another process was faster: what is in flight counts all the same
            amount = reserved
            day = budget.take(amount, run, anyway=True)
        self._amount, self._day = amount, day or ""
        return amount - reserved

    def settle(self, taken: Decimal) -> None:
        """End the reservation of a borrower that has taken so much in all."""
        new = taken - self._taken
        self._taken = taken
        self._meter.spent += new
        self._meter.budget.settle(self._amount, new, self._day, self._meter.run)
        self._amount = NOTHING

    def lose(self) -> None:
        """Count all that a lost borrower might have taken."""
        self.settle(self._taken + self._amount)

    def reached(self, error: HarnessError) -> HarnessError:
        """Return the error of a borrower as one about the whole budget."""
        if not isinstance(error, BudgetReached):
            return error
        return self._meter.budget.reached(error.amount, self._meter.run)
