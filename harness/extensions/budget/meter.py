"""Budgets: a cap on what requests cost, in money or in tokens, kept while many are in flight.

A request reserves what it may cost before it is sent, and its reply's usage settles that. One that
does not fit waits while others hold reservations, since their replies may give some back, also
those of other commands on the same budget. Once none does, its run stops. So the cap is exceeded
only by what the replies in flight at once take beyond their reservations (docs/features/budget.md).

Reservations and what became of them are in the ledger, with those of other processes.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import Iterable, Sequence
from decimal import Decimal
from math import ceil

import anyio

from harness.client.caller import Allowance
from harness.client.transport import Received
from harness.cost import SAFE_COMPLETION, Price, Reserved, ceiling, rounded
from harness.errors import HarnessError, TransportFault
from harness.extensions.budget import TOKENS, BudgetReached, Cap
from harness.extensions.budget.ledger import NOTHING, DaySum, Ledger
from harness.extensions.budget.loans import MeterLoan
from harness.model import Completion, Load, UnclearTokens
from harness.ui.words import count

MIN_REPLIES, REPLIES = 20, 512
"""Replies before estimates rely on them, and the number of last ones that completions are judged
by."""
LOOK_SECONDS = 0.5
"""Between two looks at what other processes have given back."""
NOTHING_UNCLEAR = UnclearTokens()


class SharedBudget:
    """One cap, which may be that of several runs: each has a `Meter` on it, and its amounts in the
    ledger.

    `run_part` is what the cap is a share of, such as 1/2, and `run` the one whose own it is, None
    for one that is shared. `reserved` is by this process.
    """

    def __init__(
        self, cap: Cap, ledger: Ledger, run_part: str = "", run: str | None = None
    ) -> None:
        self.cap = cap
        self.reserved = NOTHING
        self.is_used_up = False
        """Whether a run has ended since this budget is reached, today and on later days."""
        self._ledger = ledger
        self._name = " ".join(filter(None, [cap.unit, run_part, "each" if cap.each else ""]))
        self._run = run
        self._played: set[str] = set()
        """Runs that this process plays."""
        self._changed: asyncio.Event | None = None

    def totals(self) -> tuple[Decimal, Decimal]:
        """Return all that counts now, and how much of it other processes have reserved that still
        play."""
        reserved = NOTHING
        with self._ledger.locked():
            entries = self._sums()
            for entry in entries:
                if entry.reserved <= 0 or entry.run in self._played:
                    continue
                # What a dead process had reserved counts as spent.
                if self._ledger.is_played(entry.run):
                    reserved += entry.reserved
        return _total(entries), reserved

    def _sums(self) -> list[DaySum]:
        day = self._ledger.today if self.cap.daily else None
        return self._ledger.sums(self._name, self._run, day)

    def carry(self, run: str, amount: Decimal) -> None:
        """Have no less of a run, which this process plays, than an amount, on days that are not
        known. What a dead process had reserved for it is spent."""
        self._played.add(run)
        with self._ledger.locked():
            entries = self._ledger.sums(self._name, run, None)
            for entry in entries:
                # This process holds the run's lock, so such a reservation is of a process that
                # died.
                if entry.reserved > 0:
                    self._ledger.append(self._name, run, entry.day, NOTHING, -entry.reserved)
            missing = amount - _total(entries)
            if missing > 0:
                self._ledger.append(self._name, run, "", missing)

    @property
    def spent(self) -> Decimal:
        """Return what replies took, and what failed tries and those of dead processes may have
        taken."""
        total, elsewhere = self.totals()
        # What is reserved may be of the day before.
        return max(NOTHING, total - elsewhere - self.reserved)

    def take(self, amount: Decimal, run: str = "", *, anyway: bool = False) -> str | None:
        """Reserve an amount if it fits, or `anyway`; return the day to which it belongs, None if it
        does not."""
        with self._ledger.locked():
            if not anyway and _total(self._sums()) + amount > self.cap.amount:
                return None
            day = self._ledger.today
            self._ledger.append(self._name, run, day, amount, amount)
        self.reserved += amount
        return day

    def resume(self, amount: Decimal, day: str, run: str) -> None:
        """Take an amount that counts already as reserved by this process."""
        self.reserved += amount
        with self._ledger.locked():
            self._ledger.append(self._name, run, day, NOTHING, amount)

    def settle(self, amount: Decimal, taken: Decimal, day: str, run: str = "") -> None:
        """End the reservation of an amount of a day, of which so much was taken."""
        self.reserved -= amount
        with self._ledger.locked():
            self._ledger.append(self._name, run, day, taken - amount, -amount)
        if self._changed is not None:
            self._changed.set()
            self._changed = None

    async def changed(self) -> None:
        """Wait until the next reservation ends, or until those of other processes may have."""
        self._changed = self._changed or asyncio.Event()
        # Another process cannot wake this one.
        with anyio.move_on_after(LOOK_SECONDS if self.totals()[1] else None):
            await self._changed.wait()

    def room(self, amount: Decimal, run: str = "") -> Decimal:
        """Return what is left. Raise `BudgetReached` for a request of a run that may take an
        amount, if that will not fit whatever reservations give back."""
        total, elsewhere = self.totals()
        left = self.cap.amount - total
        # What another process has reserved may still come back.
        never_fits = amount > self.cap.amount or not elsewhere
        if amount > left and never_fits and not self.reserved:
            raise self.reached(amount, run)
        return left

    def reached(self, amount: Decimal, run: str = "") -> BudgetReached:
        """Return the error for a request of a run that may take an amount, and never fits."""
        cap = self.cap
        cap_text = cap.shown(cap.amount)
        later = ""
        if cap.daily:
            cap_text += " a day"
            later = "tomorrow (UTC), or "
        if amount > cap.amount:
            why = (
                f"is less than one request may take ({cap.shown(amount)}): give a larger"
                " --budget, or less --max-tokens"
            )
        else:
            # A daily budget has room again tomorrow, so `resume` needs no larger one.
            self.is_used_up = not cap.daily
            why = (
                f"is reached ({cap.shown(self.spent)} spent{self._of_others(run)}, the next request"
                f" may take {cap.shown(amount)}): resume {later}with a larger --budget"
            )
        error = BudgetReached(f"the budget of {cap_text} {why}")
        error.amount = amount
        return error

    def _of_others(self, run: str) -> str:
        """Return how much of this budget other runs than this one have spent; empty if none has."""
        others = [entry for entry in self._sums() if entry.run != run]
        spent = sum([entry.amount - entry.reserved for entry in others], NOTHING)
        if spent <= 0:
            return ""
        return f", {self.cap.shown(spent)} of it by other runs of this results folder"


def _total(entries: Iterable[DaySum]) -> Decimal:
    return sum([entry.amount for entry in entries], NOTHING)


class Meter(Allowance):
    """One run's requests on a budget. `price` is None for a budget in tokens, `max_completion` the
    tokens of a completion that requests themselves allow, None without a limit. `run` is its name
    in the ledger.

    `spent` is what its requests took in this session, `lost` the part of it that failed tries may
    have cost.
    """

    held_by = "budget"

    def __init__(
        self, budget: SharedBudget, price: Price | None, max_completion: int | None, run: str = ""
    ) -> None:
        self.budget = budget
        self.run = run
        self.spent = self.lost = NOTHING
        self.waiting = 0
        self._price = price
        self._max_completion = max_completion
        self._taken: defaultdict[str, Decimal] = defaultdict(Decimal)
        """What the answered requests of each group took, by its label."""
        self._replies = 0
        self._ratio = 0.0
        self._completions: deque[int] = deque(maxlen=REPLIES)
        """Tokens of the last ones."""

    @property
    def load(self) -> Load:
        cap = self.budget.cap
        spent = self.budget.spent
        if cap.unit == TOKENS:
            return (f"budget {count(float(spent))} of {count(float(cap.amount))} {TOKENS}",)
        return (f"budget {rounded(spent)} of {rounded(cap.amount)} {cap.unit}",)

    @property
    def waits_for(self) -> str:
        """Return why a request waits for other commands; empty if it does not."""
        cap = self.budget.cap
        _, elsewhere = self.budget.totals()
        if self.budget.reserved or not elsewhere:
            return ""
        reserved = cap.shown(elsewhere)
        return (
            f"waiting: other commands have reserved {reserved} of the budget of"
            f" {cap.shown(cap.amount)}"
        )

    def reserve(self, sizes: Sequence[int]) -> list[Reserved]:
        if not sizes:
            return []
        budget = self.budget
        amounts: list[Decimal] = []
        total = NOTHING
        room = budget.room(self.estimate(sizes[0]), self.run)
        for size in sizes:
            amount = self.estimate(size)
            if total + amount > room:
                break
            total += amount
            amounts.append(amount)
        day = budget.take(total, self.run) if amounts else None
        if day is None:  # another process may have been faster
            return []
        return [Reserved(amount, budget.cap.unit, day) for amount in amounts]

    def resume(self, reserved: Reserved | None) -> None:
        amount = self._own(reserved)
        if reserved and amount:
            self.budget.resume(amount, reserved.day, self.run)

    def took(
        self, label: str, reserved: Reserved | None, size: int, answer: Received | HarnessError
    ) -> None:
        expected = reserved.amount if reserved else self.estimate(size)
        received = answer if isinstance(answer, Received) else None
        fault = answer if isinstance(answer, TransportFault) else None
        self._taken[label] += self.taken(expected, size, received, fault)

    def end(self, label: str, reserved: Reserved | None) -> None:
        taken = self._taken.pop(label, NOTHING)
        day = reserved.day if reserved else ""
        self.budget.settle(self._own(reserved), taken, day, self.run)

    def loan(self) -> MeterLoan:
        return MeterLoan(self)

    def limit(self, amount: Decimal) -> None:
        self.budget.cap = self.budget.cap._replace(amount=self.budget.totals()[0] + amount)
        self.budget.settle(NOTHING, NOTHING, "")  # who waits looks again

    def spent_and_reserved(self) -> tuple[Decimal, Decimal]:
        return self.spent, self.budget.reserved

    def _own(self, reserved: Reserved | None) -> Decimal:
        """Return what was reserved in the unit of this budget."""
        if reserved is None or reserved.unit != self.budget.cap.unit:
            return NOTHING
        return reserved.amount

    def take(self, size: int) -> Reserved | None:
        """Reserve what a request of so many bytes may cost; return None if it does not fit now."""
        amount = self.estimate(size)
        day = self.budget.take(amount, self.run)
        return None if day is None else Reserved(amount, self.budget.cap.unit, day)

    async def room(self, size: int) -> None:
        """Wait until a request of so many bytes fits. Raise `BudgetReached` if it never will."""
        budget = self.budget
        while True:
            amount = self.estimate(size)
            if budget.room(amount, self.run) >= amount:
                return
            await budget.changed()

    def waits_no_more(self) -> None:
        """Note that a request that waited has room, or is gone."""
        self.waiting -= 1

    def estimate(self, size: int) -> Decimal:
        """Return what a request of so many bytes may cost.

        Its prompt: a token a byte, which no tokenizer exceeds, later the most tokens a byte of any
        prompt so far. Its completion: `max_completion`, else 8,192 tokens or the longest so far,
        later the 99th percentile of the last ones.
        """
        prompt = size
        if self._ratio and self._replies >= MIN_REPLIES:
            prompt = ceil(size * self._ratio)
        return self._amount(prompt, self._completion)

    @property
    def _completion(self) -> int:
        lengths = self._completions
        if self._max_completion is not None:
            return self._max_completion
        if len(lengths) < MIN_REPLIES:
            return max([SAFE_COMPLETION, *lengths])
        return sorted(lengths)[ceil(0.99 * len(lengths)) - 1]

    def settle(
        self, reserved: Reserved, size: int, received: Received | None, fault: TransportFault | None
    ) -> None:
        """Count what a try of so many bytes has cost: its usage, or without a reply all that it
        reserved, unless it was refused."""
        taken = self.taken(reserved.amount, size, received, fault)
        self.budget.settle(reserved.amount, taken, reserved.day, self.run)

    def taken(
        self, amount: Decimal, size: int, received: Received | None, fault: TransportFault | None
    ) -> Decimal:
        """Return and count what a try of so many bytes took, of which an amount was expected."""
        taken = NOTHING
        if received is not None:
            taken = self._billed(received, size)
            # With a fault it is a probe's, far smaller than the request in whose place it went.
            if fault is None:
                self._learn(received, size)
        elif fault is not None and fault.billed:
            taken = amount
            self.lost += amount
        self.spent += taken
        return taken

    def _billed(self, received: Received, size: int) -> Decimal:
        """Return what a reply cost; what its usage does not say as much as it may be."""
        completion = received.completion
        prompt = completion.prompt_tokens
        answer = completion.completion_tokens
        if prompt is None:
            prompt = size if completion.lacks_usage else 0
        if answer is None:
            answer = self._largest_answer(completion) if completion.lacks_usage else 0
        # With more cached tokens than the prompt has, a part of the cost would be negative.
        cached = min(completion.cached_tokens or 0, completion.prompt_tokens or 0)
        unclear = completion.unclear
        if unclear is None:
            return self._amount(prompt, answer, cached)
        prompt += unclear.prompt
        as_prompt = self._amount(prompt + unclear.either, answer, cached)
        # The budget must hold whichever of the two the unclear tokens were.
        return max(as_prompt, self._amount(prompt, answer + unclear.either, cached))

    def _largest_answer(self, completion: Completion) -> int:
        """Return the most tokens of a completion for which none are reported."""
        tokens = ceiling(self._max_completion, max(self._completions, default=0))
        tokens += completion.reasoning_tokens or 0
        return tokens if self._max_completion is not None else tokens + completion.size

    def _learn(self, received: Received, size: int) -> None:
        completion = received.completion
        unclear = completion.unclear or NOTHING_UNCLEAR
        if completion.prompt_tokens is not None:
            self._replies += 1
            prompt = completion.prompt_tokens + unclear.prompt + unclear.either
            self._ratio = max(self._ratio, prompt / max(1, size))
        if completion.completion_tokens is not None:
            self._completions.append(completion.completion_tokens + unclear.either)

    def _amount(self, prompt: int, completion: int, cached: int = 0) -> Decimal:
        if self._price is None:
            return Decimal(prompt + completion)
        return self._price.amount(prompt, completion, cached)
