"""Budgets where other features take part in requests, too. What they need is imported where they
are there."""

from __future__ import annotations

import pytest
from hypothesis import given, settings

from harness.cli import main
from harness.client.caller import Caller, MakeAttempt
from harness.engine.hooks import Hooks
from harness.engine.runner import ModelRunner
from harness.extensions.budget.budgets import metered
from harness.extensions.budget.meter import Meter
from tests.extensions.budget import test_meter as of_meter
from tests.support import SHIPPED, examples
from tests.support.scripted import baseline, serving


class Within(Hooks):
    def __init__(self, meter: Meter) -> None:
        self._meter = meter

    def wrap_attempt(self, runner: ModelRunner, role: str, attempt: MakeAttempt) -> MakeAttempt:
        return metered(runner.caller, self._meter, attempt, print)


@settings(max_examples=examples(25))
@given(**of_meter.CASES)
def test_budget_holds_where_tries_race(**case):
    """A try that loses the race may end with a reply, too, which is paid for."""
    hedging = pytest.importorskip("harness.extensions.hedging.hedging")

    def prepare(caller: Caller) -> None:
        caller.make_attempt = hedging.hedged(caller, 1.0, caller.make_attempt)

    ledger, took = of_meter.played(**case, prepare=prepare)
    assert ledger.spent - ledger.lost >= took


def test_budget_too_small_for_the_first_users_ends_the_run(tmp_path):
    words = [
        *SHIPPED,
        "--platform",
        "weibo",
        "--sample-seed",
        "1",
        "--no-html",
        "--results-dir",
        str(tmp_path / "r"),
    ]
    with serving(baseline) as server:
        words += [
            "--api-url",
            server.url,
            "--model",
            "m",
            "--estimate",
            "--yes",
            "--budget",
            "5ktok",
        ]
        assert main(["run", *words]) == 5
