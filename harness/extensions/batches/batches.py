"""Play the runs of a plan by batches: all users at once, in waves."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, cast

from harness.client.control import FixedControl
from harness.client.http import Client
from harness.client.limiter import Slots
from harness.client.quirks import Adapted
from harness.cost import Rate
from harness.engine.extension import Extension
from harness.engine.lane import Lane, Settle, User
from harness.engine.replay import Asked
from harness.engine.run import Run
from harness.errors import BadInput
from harness.extensions.batches import TUNING, by_batches
from harness.extensions.batches.api import BatchApi
from harness.extensions.batches.journal import outstanding
from harness.extensions.batches.waves import Waves
from harness.model import JSON, Completion
from harness.options.plan import Plan
from harness.store.manifest import Manifest
from harness.ui.words import plural


class Batches(Extension):
    def __init__(self, args: Any) -> None:
        self._wanted: bool | None = args.batch
        self._local = getattr(args, "engine", "local") == "local"
        self._estimating = bool(getattr(args, "estimate", False))
        self._waves: dict[Lane, Waves] = {}

    def check(self, plans: Sequence[Plan]) -> None:
        for plan in filter(self._goes, plans):
            if not self._local:
                raise BadInput("--batch needs the engine local: a batch is submitted by one process")
            if self._estimating:
                raise BadInput("--estimate is for requests that are sent one by one: not with --batch")
            if plan.found is not None and len(plan.found.addresses) > 1:
                raise BadInput(f"{plan.name}: --batch needs one address: a batch is on the server that took it")

    def _goes(self, plan: Plan) -> bool:
        """Return whether a plan goes by batches: by this command's options, else as its run did."""
        if self._wanted is not None:
            return self._wanted
        return plan.terms.earlier is not None and by_batches(plan.terms.earlier)

    def rated(self, plan: Plan, rate: Rate) -> Rate:
        return rate._replace(deferred=True) if self._goes(plan) else rate

    def opened(self, plan: Plan, manifest: Manifest, old: Manifest | None) -> None:
        if self._goes(plan):
            cast(JSON, manifest.tuning)[TUNING] = True

    def expected(self, plan: Plan, longest: Callable[[], int]) -> Iterable[str]:
        if self._goes(plan):
            waves = longest()
            yield (
                f"--batch: {plural(waves, 'wave')}, and each may take a day: {plural(waves, 'day')} at worst, more "
                "where the provider has a limit of requests or tokens that are enqueued"
            )

    def limiting(self, runs: Sequence[Run], slots: Slots) -> Slots:
        """Return slots with which all users are in play at once: batches have no limit of requests in flight."""
        if not by_batches(runs[0].manifest):
            return slots
        return Slots(FixedControl(sum([len(run.remaining) for run in runs])), time.monotonic)

    def joining(self, lane: Lane) -> Waves | None:
        if not by_batches(lane.runs[0].manifest):
            return None
        adapted = lane.caller.transport
        assert isinstance(adapted, Adapted) and isinstance(adapted.transport, Client)  # one address has no replicas
        self._waves[lane] = Waves(lane, BatchApi(adapted.transport), adapted)
        return self._waves[lane]

    def settling(self, settle: Settle) -> Settle:
        async def settled(user: User, asked: Asked) -> Completion:
            waves = self._waves.get(user.lane)
            return await (settle(user, asked) if waves is None else waves.settle(user, asked))

        return settled

    def stopped(self, runs: Sequence[Run]) -> Iterable[str]:
        if left := sum([len(outstanding(run.store.files)) for run in runs if by_batches(run.manifest)]):
            yield f"{plural(left, 'batch', 'batches')} at the provider: `resume` picks up their replies"
