"""Stop runs before they cost more than a cap, in money or in tokens (`--budget`;
docs/features/budget.md)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from harness.cost import plain, rounded
from harness.errors import HarnessError, in_brief
from harness.option import option
from harness.options.extension import Extension
from harness.options.options import PlayOptions
from harness.store.manifest import Manifest

if TYPE_CHECKING:
    from harness.extensions.budget.budgets import Budgets

TUNING = "budget"
"""In a manifest's tuning and in an entry of a queue: a cap in its own words, None for none."""
TOKENS = "tokens"
CAP = re.compile(
    r"([0-9]{1,12}(?:\.[0-9]{1,12})?) ?([kMG]?tok(?:ens)?|[A-Za-z]{3})( ?/ ?day)?( each)?"
)
SIZES = {"k": 10**3, "M": 10**6, "G": 10**9}


class BudgetReached(HarnessError):
    """The next request does not fit into the rest of the budget; a larger budget resumes the
    run."""

    exit_code = 5
    amount = Decimal(0)
    """What the next request may take."""


class Cap(NamedTuple):
    """What a budget allows: a positive amount of `unit`, a currency's code or `TOKENS`; `each` run
    has one of its own, or all of a results folder share it; `daily`: each day in UTC."""

    amount: Decimal
    unit: str
    each: bool = False
    daily: bool = False

    @classmethod
    def parse(cls, text: str) -> Cap:
        """Read `5usd`, `30 CNY/day`, `2Mtok` or `5 USD each`. Raise `ValueError` for anything else,
        and for nothing."""
        match = CAP.fullmatch(text.strip())
        amount = Decimal(match[1] if match else 0)
        if match is None or not amount:
            raise ValueError(
                "expected an amount above 0 with a currency or tokens, such as 5usd, 30cny/day or"
                " 2Mtok"
            )
        unit = match[2]
        daily = bool(match[3])
        for_each_run = bool(match[4])
        # `tok` has three letters, as currencies have.
        if len(unit) == 3 and unit != "tok":
            return cls(amount, unit.upper(), for_each_run, daily)
        return cls(amount * SIZES.get(unit[0], 1), TOKENS, for_each_run, daily)

    def __str__(self) -> str:
        text = f"{plain(self.amount)} {self.unit}"
        if self.daily:
            text += "/day"
        if self.each:
            text += " each"
        return text

    def shown(self, amount: Decimal) -> str:
        """Return an amount in this unit, for people."""
        if self.unit == TOKENS:
            return f"{amount:.0f} {TOKENS}"
        return f"{rounded(amount)} {self.unit}"


def _budget(text: str) -> str:
    """Return a budget in its own words."""
    try:
        return str(Cap.parse(text))
    except ValueError as error:
        raise ValueError(f"{error}, got {in_brief(text)}") from None


def _is_budget(value: object) -> bool:
    try:
        return type(value) is str and bool(Cap.parse(value))
    except ValueError:
        return False


@dataclass(frozen=True)
class Budget:
    """What all runs of the results folder may spend, such as `Budget("5usd")`."""

    budget: str | None = option(
        None,
        "stop before more is spent, such as 5usd, 30cny or 2Mtok (tokens), by all runs of the"
        " results folder, of other commands too",
        unit="AMOUNT",
        read=_budget,
        everyday=True,
    )


def words_in(manifest: Manifest) -> Any:
    """Return the budget in a run's manifest, as it is there; None without one."""
    return {**manifest.tuning}.get(TUNING)


class _Budget(Extension[Budget]):
    name, options = "budget", Budget
    queue_checks: ClassVar = {
        TUNING: (
            _is_budget,
            "an amount above 0 with a currency or tokens, such as 5usd, 30cny or 2Mtok",
        )
    }

    def hooks(self, options: Budget, command: PlayOptions) -> Budgets:
        from harness.extensions.budget.budgets import Budgets

        return Budgets(options, command)

    def is_on(self, options: Budget, command: PlayOptions) -> bool:
        return options.budget is not None or command.option("queue") is not None

    def continues(self, manifest: Manifest) -> bool:
        return words_in(manifest) is not None


EXTENSION = _Budget()
