"""Where `--reuse` meets prices and estimates."""

from __future__ import annotations

from typing import Any

import pytest

from tests.options.prices.test_bills import PRICES, Bench, account, plain


@pytest.fixture
def bench(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> Any:
    with account(plain, dict(PRICES)) as endpoint:
        yield Bench(tmp_path, endpoint, capsys)


def test_reused_replies_cost_nothing_again(bench):
    """They were paid for in the run that has them."""
    assert bench.run(limit=5) == 0
    assert bench.run("--name", "reused", "--reuse", "a", limit=5) == 0
    assert bench.exact() == bench.spent() and bench.exact("reused") == 0


def test_estimate_is_refused(bench):
    """What costs nothing says nothing about what costs."""
    assert bench.run(limit=5) == 0
    assert bench.run("--name", "reused", "--reuse", "a", "--estimate", limit=5) == 2
