"""Budgets where other features take part in requests, too. What they need is imported where they are there."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import given, settings

from harness.cli import main
from harness.endpoint.caller import Caller, Trying
from harness.engine.extension import Extension
from harness.engine.lane import Lane
from harness.errors import HarnessError
from harness.features.budget import BudgetReached, Cap
from harness.features.budget.budgets import metered
from harness.features.budget.meter import Budget, Meter
from harness.store import log
from tests.features.budget import test_meter as of_meter
from tests.support import examples, virtual
from tests.support.chain_runs import STEPS, Run
from tests.support.chains import Endpoint
from tests.support.scripted import baseline, serving


class Within(Extension):
    def __init__(self, meter: Meter) -> None:
        self._meter = meter

    def trying(self, lane: Lane, trying: Trying) -> Trying:
        return metered(lane.caller, self._meter, trying, print)


@settings(max_examples=examples(25))
@given(**of_meter.CASES)
def test_budget_holds_where_tries_race(**case: Any) -> None:
    """A try that loses the race may end with a reply, too, which is paid for."""
    hedging = pytest.importorskip("harness.features.hedging.hedging")

    def prepare(caller: Caller) -> None:
        caller.trying = hedging.hedged(caller, 1.0, caller.trying)

    ledger, took = of_meter.played(**case, prepare=prepare)
    assert ledger.spent - ledger.lost >= took


def test_budget_holds_over_all_workers_and_loses_nothing(tmp_path: Path) -> None:
    """A leased slot reserves what its request may take; what was answered is saved, and more of the budget ends the run
    without a second try."""
    workers = pytest.importorskip("tests.features.ray.workers")
    run, endpoint = Run(tmp_path, benchmark=workers.importable(workers.Shared)), Endpoint()

    async def scene(cap: str) -> tuple[HarnessError | None, Budget]:
        """Play; note how many requests were not leased, so that the driver sent them."""
        budget = Budget(Cap.parse(cap))
        with run.open() as job:
            usage = job.store.bill.total
        budget.entries.add("run", Decimal(usage.prompt_tokens + usage.completion_tokens))
        within = Within(Meter(budget, None, 10))
        async with workers.crew_of(run, endpoint) as (crew, yard):
            ending = await run.play(endpoint, crew=crew, extensions=[within], sleep=anyio.sleep)
            told = [message for worker in yard.workers for _, message in worker.sent]
            unleased.append(sum(getattr(message, "completion", None) is not None for message in told))
            return ending, budget

    unleased = list[int]()
    ending, budget = virtual.run(lambda: scene("210tok"))
    assert isinstance(ending, BudgetReached)
    assert 0 < budget.spent <= 210 and budget.reserved == 0
    assert len(list(log.sound_lines(run.files.responses))) == endpoint.answered.total() == budget.spent / 5
    ending, budget = virtual.run(lambda: scene("1Mtok"))
    assert ending is None and set(endpoint.answered.values()) == {1}
    assert budget.spent == 5 * STEPS and unleased[-1] <= 3


def test_budget_too_small_for_the_first_users_ends_the_run(tmp_path: Path) -> None:
    words = ["--demo", "--platform", "weibo", "--sample-seed", "1", "--no-html", "--results-dir", str(tmp_path / "r")]
    with serving(baseline) as server:
        words += ["--api-url", server.url, "--model", "m", "--estimate", "--yes", "--budget", "5ktok"]
        assert main(["run", *words]) == 5
