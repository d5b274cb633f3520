"""Keep the runs of a command within their budgets: what each has, and the part of a budget in one
try."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any, cast

from msgspec import UnsetType

from harness.client.caller import Attempt, Caller, MakeAttempt, NotNow
from harness.client.transport import Received
from harness.cost import HOW_TO_PRICE, SAFE_COMPLETION, Reserved
from harness.engine.hooks import Hooks, PlayAlone, Say
from harness.engine.run import Run
from harness.engine.runner import ModelRunner
from harness.engine.session import PlanSession
from harness.errors import BadInput, TransportFault
from harness.extensions.budget import TOKENS, TUNING, Budget, Cap, words_in
from harness.extensions.budget.ledger import Ledger
from harness.extensions.budget.meter import Meter, SharedBudget
from harness.model import JSON, Reply
from harness.options.options import PlayOptions
from harness.options.plan import Plan
from harness.store.manifest import Manifest, part_of
from harness.store.submissions import pending


class Budgets(Hooks):
    """Plans with the same budget share it, unless it is for `each`. Ledgers are open as long as the
    runs."""

    def __init__(self, options: Budget, command: PlayOptions) -> None:
        self._asked = options.budget
        self._of_queue = command.option("queue") is not None
        self._held = ExitStack()
        self._cap_texts: dict[str, Any] = {}
        self._caps: dict[str, Cap] = {}
        """Budgets by the names of plans: in their words, and what they allow of what may cost
        something."""
        self._shared: dict[tuple[Cap, str], SharedBudget] = {}
        self._ledgers: dict[Path, Ledger] = {}
        self._meters: dict[tuple[Run, str], Meter] = {}
        """By the run and the role whose requests they count; an empty one is the model under
        test."""

    def prepare(self, plans: Sequence[Plan], held: ExitStack, say: Say) -> None:
        self._held = held

    def check(self, plans: Sequence[Plan]) -> None:
        for plan in plans:
            cap_text = self._cap_text_of(plan)
            if cap_text is None:
                continue
            self._cap_texts[plan.name] = cap_text
            cap = cap_of(plan, cap_text)
            if cap:
                self._caps[plan.name] = cap

    def _cap_text_of(self, plan: Plan) -> Any:
        """Return a plan's budget: that of its entry of a queue, of the command, or of the run that
        is resumed."""
        queued_text = plan.terms.queued.get(TUNING)
        if queued_text is not None:
            # An entry of a queue is one run, so its budget is for that run alone.
            return str(Cap.parse(queued_text)._replace(each=True))
        if self._asked is not None or self._of_queue:
            return self._asked
        return words_in(plan.terms.earlier) if plan.terms.earlier else None

    def update_manifest(self, plan: Plan, manifest: Manifest, old: Manifest | None) -> None:
        if plan.name in self._cap_texts:
            cast(JSON, manifest.tuning)[TUNING] = self._cap_texts[plan.name]

    def before_play(
        self, sessions: Sequence[PlanSession], play: PlayAlone, say: Say
    ) -> Sequence[PlanSession]:
        for session in sessions:
            cap = self._caps.get(session.plan.name)
            if cap is None:
                continue
            budget = self._budget(session.plan, session.runs, cap)
            for role, plan in {"": session.plan, **session.plan.roles}.items():
                if plan.resolved is None and cap.unit != TOKENS:
                    continue  # a baseline costs nothing
                meter = _meter(budget, plan, role, session.runs)
                self._meters |= {(run, role): meter for run in session.runs}
        return sessions

    def _budget(self, plan: Plan, runs: Sequence[Run], cap: Cap) -> SharedBudget:
        """Return the budget of a plan. What the runs' replies took that the ledger of the results
        folder does not have is added to it."""
        ledger = self._ledgers.get(plan.results)
        if ledger is None:
            ledger = self._ledgers[plan.results] = Ledger(plan.results, time.time)
            self._held.callback(ledger.close)
        run_part = plan.selection.get("part", "")
        budget = SharedBudget(cap, ledger, run_part, plan.name if cap.each else None)
        if not cap.each:
            budget = self._shared.setdefault((cap, run_part), budget)
        budget.carry(plan.name, sum([_spent(run, cap) for run in runs], Decimal(0)))
        return budget

    def forecast(self, plan: Plan, longest: int) -> Iterable[str]:
        models = (plan.sampling, *plan.sampling.roles.values())
        if plan.name in self._caps and any(model.most_completion is None for model in models):
            yield (
                f"{plan.name}: without --max-tokens the first replies, if they are longer than the"
                f" {SAFE_COMPLETION} tokens that are reserved for each, may together bill more than"
                " the budget: give --max-tokens"
            )

    def options_to_resume(self, plan: Plan) -> Sequence[str]:
        """Return a budget of twice as much for a plan that would end at once with the same one."""
        meters = [meter for meter in self._meters.values() if meter.run == plan.name]
        if not any(meter.budget.is_used_up for meter in meters):
            return ()
        cap = Cap.parse(str(self._cap_texts[plan.name]))
        return ["--budget", str(cap._replace(amount=2 * cap.amount))]

    def wrap_attempt(self, runner: ModelRunner, role: str, attempt: MakeAttempt) -> MakeAttempt:
        meter = self._meters.get((runner.runs[0], role))
        if meter is None:
            return attempt
        note = partial(runner.findings.note, "budget")
        return metered(runner.callers[role], meter, attempt, note)


def _meter(budget: SharedBudget, plan: Plan, role: str, runs: Sequence[Run]) -> Meter:
    """Return what counts the requests of a plan to the model of a role towards its budget."""
    price = None
    if budget.cap.unit != TOKENS:
        price = next((run.price_of(role) for run in runs), None) or plan.price
    return Meter(budget, price, plan.sampling.most_completion, plan.name)


def cap_of(plan: Plan, cap_text: object) -> Cap | None:
    """Return a plan's share of a budget, None if it costs nothing. Raise `BadInput` if its price
    does not fit."""
    try:
        full_cap = Cap.parse(str(cap_text))
    except ValueError as error:
        raise BadInput(f"{plan.name}: --budget: {error}") from None
    # Parts may be played on machines that share no folder, so each has its share of the cap.
    cap = full_cap._replace(amount=full_cap.amount / part_of(plan.selection)[1])
    if cap.unit == TOKENS:
        return cap
    billed = [choice for choice in (plan, *plan.roles.values()) if choice.resolved is not None]
    for choice in billed:
        model = choice.sampling.model
        if choice.price is None:
            raise BadInput(
                f"{plan.name}: a budget in {cap.unit} needs a price, and none is known for"
                f" {model}: give {HOW_TO_PRICE}, or a budget in tokens"
            )
        if choice.price.currency != cap.unit:
            raise BadInput(
                f"{plan.name}: {model} is priced in {choice.price.currency}, the budget is in"
                f" {cap.unit}"
            )
    return cap if billed else None  # a baseline costs nothing


def _spent(run: Run, cap: Cap) -> Decimal:
    """Return what a run's replies took at most, in the unit of a cap, and what is reserved for
    those to come."""
    spent = Decimal(0)
    for submission in pending(run.store.files):
        if submission.reserved and submission.reserved.unit == cap.unit:
            spent += submission.reserved.amount
    bill = run.store.tally.bill.copy()
    bill.forgive()
    cost = bill.cost(run.manifest.prices, run.sampling.most_completion)
    if cap.unit == TOKENS:
        return spent + sum(cost.bounds[1])
    for share in (cost,) if isinstance(cost.shares, UnsetType) else cost.shares:
        if share.money and share.money.currency == cap.unit:
            spent += share.money.most
    return spent


class _NoRoom(NotNow):
    """A request does not fit into what is left of a budget now."""


@dataclass(slots=True)
class _Paid:
    """The part of a budget in a try of so many bytes; `looking` is closed once there is room for
    it."""

    meter: Meter
    size: int
    looking: ExitStack
    reserved: Reserved | None = None

    def admitted(self) -> None:
        self.reserved = self.meter.take(self.size)
        if self.reserved is None:
            raise _NoRoom
        self.looking.close()

    def ended(self, received: Received | None, fault: TransportFault | None) -> None:
        assert self.reserved
        self.meter.settle(self.reserved, self.size, received, fault)


def metered(caller: Caller, meter: Meter, make_attempt: MakeAttempt, note: Say) -> MakeAttempt:
    """Return what tries a request within a budget, which the caller's other requests count towards,
    too.

    One that does not fit waits without a slot. One request of a caller looks for room at a time;
    `note` is called when it waits for other commands.
    """
    caller.allowance = meter
    turn = asyncio.Lock()

    async def within(attempt: Attempt) -> Reply:
        size = len(attempt.body)
        with ExitStack() as looking:
            attempt = attempt._replace(parts=(*attempt.parts, _Paid(meter, size, looking)))
            try:
                return await make_attempt(attempt)
            except _NoRoom:
                meter.waiting += 1
                looking.callback(meter.waits_no_more)
            # Each look reads the ledger's file under its lock: one request looks for all that wait.
            await turn.acquire()
            looking.callback(turn.release)
            why = meter.waits_for
            if why:
                note(why)
            while True:
                await meter.room(size)
                try:
                    return await make_attempt(attempt)
                except _NoRoom:
                    continue

    return within
