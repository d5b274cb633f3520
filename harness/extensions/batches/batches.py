"""Play the runs of a plan by batches: all users at once, in waves."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import cast

from harness.client.control import FixedControl
from harness.client.http import Client
from harness.client.limiter import Slots
from harness.client.quirks import Adapted
from harness.cost import Rate
from harness.engine.hooks import Hooks
from harness.engine.replay import PendingRequest
from harness.engine.runner import ModelRunner, Settle, User
from harness.errors import BadInput
from harness.extensions.batches import TUNING, Batch, by_batches
from harness.extensions.batches.api import BatchApi
from harness.extensions.batches.waves import Waves
from harness.model import JSON, Completion
from harness.options.options import PlayOptions
from harness.options.plan import Plan
from harness.store.manifest import Manifest
from harness.ui.words import plural


class Batches(Hooks):
    def __init__(self, options: Batch, command: PlayOptions) -> None:
        self._wanted = options.batch
        self._local = command.option("engine", "local") == "local"
        self._estimating = command.option("estimate", False)
        self._waves: dict[ModelRunner, Waves] = {}

    def check(self, plans: Sequence[Plan]) -> None:
        for plan in filter(self._goes, plans):
            if not self._local:
                raise BadInput(
                    "--batch needs the engine local: a batch is submitted by one process"
                )
            if self._estimating:
                raise BadInput(
                    "--estimate is for requests that are sent one by one: not with --batch"
                )
            if plan.resolved is not None and len(plan.resolved.addresses) > 1:
                raise BadInput(
                    f"{plan.name}: --batch needs one address: a batch is on the server that took it"
                )

    def _goes(self, plan: Plan) -> bool:
        """Return whether a plan goes by batches: by this command's options, else as its run did."""
        if self._wanted is not None:
            return self._wanted
        return plan.terms.earlier is not None and by_batches(plan.terms.earlier)

    def adjust_price(self, plan: Plan, rate: Rate) -> Rate:
        return rate._replace(deferred=True) if self._goes(plan) else rate

    def update_manifest(self, plan: Plan, manifest: Manifest, old: Manifest | None) -> None:
        if self._goes(plan):
            cast(JSON, manifest.tuning)[TUNING] = True

    def forecast(self, plan: Plan, longest: int) -> Iterable[str]:
        if self._goes(plan):
            yield (
                f"--batch: {plural(longest, 'wave')}, and each may take a day:"
                f" {plural(longest, 'day')} at worst, more where the provider has a limit of"
                " requests or tokens that are enqueued"
            )

    def runner_task(self, runner: ModelRunner) -> Waves | None:
        if not by_batches(runner.runs[0].manifest):
            return None
        # Batches have no limit of requests in flight: all users are in play at once.
        users = sum([len(run.remaining) for run in runner.runs])
        runner.caller.limiter.slots = Slots(FixedControl(users), time.monotonic)
        self._waves[runner] = self._made(runner)
        return self._waves[runner]

    def _made(self, runner: ModelRunner) -> Waves:
        adapted = runner.caller.transport
        assert isinstance(adapted, Adapted) and isinstance(
            adapted.transport, Client
        )  # one address has no replicas
        return Waves(runner, BatchApi(adapted.transport), adapted)

    def wrap_settle(self, settle: Settle) -> Settle:
        async def settled(user: User, pending: PendingRequest) -> Completion:
            waves = None if pending.role else self._waves.get(user.runner)
            return await (settle(user, pending) if waves is None else waves.settle(user, pending))

        return settled
