"""What a worker sends: errors, which another process gets as they were."""

from __future__ import annotations

import pickle
from decimal import Decimal

import pytest

from harness.errors import (
    AgentFailed,
    BadInput,
    EndpointStopped,
    GaveUp,
    HarnessError,
    RunStopped,
    TransportFault,
)


@pytest.mark.parametrize(
    "error",
    [
        AgentFailed("agent_error", "no"),
        BadInput("one", "two"),
        EndpointStopped("no answer"),
        GaveUp("persistent_error", "http_503", 3),
        RunStopped(143),
        TransportFault("http_429", "later", retry_after=2.0),
    ],
    ids=lambda error: type(error).__name__,
)
def test_error_is_the_same_in_another_process(error):
    """Its class, sentences, exit code and what else it holds, whatever its constructor takes."""
    check_copy(error)


def test_error_of_a_budget_is_the_same_in_another_process():
    """With the amount that the driver says again for the whole budget."""
    budget = pytest.importorskip("harness.extensions.budget")
    error = budget.BudgetReached("the budget is reached")
    error.amount = Decimal("0.25")
    check_copy(error)


def check_copy(error: HarnessError) -> None:
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), str(copy), copy.exit_code, vars(copy)) == (
        type(error),
        str(error),
        error.exit_code,
        vars(error),
    )
