"""Budgets: a cap on what requests cost, in money or in tokens, kept while many are in flight.

A request reserves what it may cost before it is sent, and its reply's usage settles that. One that does not fit waits
while others hold reservations, since their replies may give some back. Once none does, its run stops. So the cap is
exceeded only by what the replies in flight at once take beyond their reservations (docs/design.md, section 4).
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterable
from dataclasses import astuple, dataclass
from decimal import Decimal
from math import ceil

from harness.cost import Cap, Price, cost_of
from harness.endpoint.transport import Received
from harness.errors import BudgetReached, TransportFault
from harness.model import RunUsage

SAFE_START = 8192
"""Tokens that a completion may take, until `ENOUGH` replies show what they take."""
ENOUGH, REPLIES = 20, 512
"""Replies before estimates rely on them, and the number of last ones that completions are judged by."""
FREE = frozenset({"connect", "denied", "proxy", "replica", "unknown_host"})
"""Kinds of failed tries that reached no model, in addition to the statuses 4xx."""
NOTHING = Decimal(0)


class Budget:
    """One cap, which may be that of several runs: each has a `Meter` on it."""

    def __init__(self, cap: Cap) -> None:
        self.cap = cap
        self.meters: list[Meter] = []
        self.reserved = NOTHING
        self._changed: asyncio.Event | None = None

    @property
    def spent(self) -> Decimal:
        """Return what replies took, and what failed tries may have taken."""
        return sum((meter.spent for meter in self.meters), NOTHING)

    def fits(self, amount: Decimal) -> bool:
        return self.spent + self.reserved + amount <= self.cap.amount

    def take(self, amount: Decimal) -> bool:
        """Reserve an amount if it fits; return whether it did."""
        if fits := self.fits(amount):
            self.reserved += amount
        return fits

    def give_back(self, amount: Decimal) -> None:
        """End a reservation."""
        self.reserved -= amount
        if self._changed is not None:
            self._changed.set()
            self._changed = None

    async def changed(self) -> None:
        """Wait until the next reservation ends."""
        self._changed = self._changed or asyncio.Event()
        await self._changed.wait()


class Meter:
    """One run's requests on a budget. `price` is None for a budget in tokens, `most` the tokens of a completion that
    requests themselves allow, None without a limit. `usage` is that of replies saved so far, and changes here.

    `lost` is what failed tries may have cost, `waiting` the requests that wait for room.
    """

    def __init__(self, budget: Budget, price: Price | None, most: int | None, usage: RunUsage) -> None:
        self.budget = budget
        self.lost = NOTHING
        self.waiting = 0
        self._price = price
        self._most = most
        self._usage = usage
        self._replies = 0
        self._ratio = 0.0
        self._recent: deque[int] = deque()
        self._sorted: list[int] = []
        self._replied = self._of_usage()
        budget.meters.append(self)

    @property
    def spent(self) -> Decimal:
        return self._replied + self.lost

    def take(self, size: int) -> Reservation | None:
        """Return a reservation for a request of so many bytes, None if it does not fit now."""
        amount = self.estimate(size)
        return Reservation(self, amount, size) if self.budget.take(amount) else None

    async def room(self, size: int) -> None:
        """Wait until a request of so many bytes fits. Raise `BudgetReached` if it never will: nothing is in flight."""
        budget = self.budget
        while not budget.fits(amount := self.estimate(size)):
            if not budget.reserved:
                whole, spent, next_one = map(budget.cap.shown, (budget.cap.amount, budget.spent, amount))
                raise BudgetReached(
                    f"the budget of {whole} is reached ({spent} spent, the next request may take {next_one}): "
                    "resume with a larger --budget"
                )
            await budget.changed()

    def estimate(self, size: int) -> Decimal:
        """Return what a request of so many bytes may cost.

        Its prompt: a token a byte, which no tokenizer exceeds, later the most tokens a byte of any prompt so far. Its
        completion: `most`, else 8,192 tokens or the longest so far, later the 99th percentile of the last ones.
        """
        prompt = ceil(size * self._ratio) if self._replies >= ENOUGH and self._ratio else size
        return self._amount(prompt, self._completion)

    @property
    def _completion(self) -> int:
        lengths = self._sorted
        if self._most is not None:
            return self._most
        if len(lengths) < ENOUGH:
            return max([SAFE_START, *lengths[-1:]])
        return lengths[ceil(0.99 * len(lengths)) - 1]

    def settle(self, reservation: Reservation, received: Received | None, fault: TransportFault | None) -> None:
        """Count what a try has cost: its usage, or without a reply all that it reserved, unless it was refused."""
        if received is not None:
            self._learn(received, reservation.size)
            self._replied = self._of_usage()
        elif fault is not None and not (fault.kind in FREE or fault.unreachable or fault.kind.startswith("http_4")):
            self.lost += reservation.amount

    def _learn(self, received: Received, size: int) -> None:
        completion = received.completion
        self._usage.add(completion, size)
        if completion.prompt_tokens is not None:
            self._replies += 1
            self._ratio = max(self._ratio, completion.prompt_tokens / max(1, size))
        if completion.completion_tokens is not None:
            insort(self._sorted, completion.completion_tokens)
            self._recent.append(completion.completion_tokens)
            if len(self._recent) > REPLIES:
                del self._sorted[bisect_left(self._sorted, self._recent.popleft())]

    def _of_usage(self) -> Decimal:
        cost = cost_of(self._usage, self._price)
        return Decimal(sum(cost.tokens)) if cost.amount is None else cost.amount

    def _amount(self, prompt: int, completion: int) -> Decimal:
        return self._price.of(prompt, completion) if self._price else Decimal(prompt + completion)


@dataclass(frozen=True, slots=True)
class Reservation:
    """What one try of a request of `size` bytes may cost."""

    meter: Meter
    amount: Decimal
    size: int

    def settle(self, received: Received | None, fault: TransportFault | None) -> None:
        """End the reservation with what the try received, or how it failed."""
        self.meter.settle(self, received, fault)
        self.meter.budget.give_back(self.amount)


def total(usages: Iterable[RunUsage]) -> RunUsage:
    """Return the usage of several runs together."""
    return RunUsage(*map(sum, zip(*map(astuple, (RunUsage(), *usages)), strict=True)))
