"""What runs by batches say they cost, against the endpoint's own account."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.billing import PRICES, Bench, account, failing, half, plain


@pytest.fixture
def bench(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[Bench]:
    with account(plain, dict(PRICES)) as made:
        yield Bench(tmp_path, made, capsys)


@pytest.mark.slow
def test_modes_mixed_cost_each_their_own(bench):
    """Single, then by batches, then single again; and the other way round."""
    for words in ((), ("--batch",), ()):
        assert bench.run(*words, limit=len(bench.account.billed) // 3 + 3) == 0
    assert bench.account.batch_requests
    assert bench.exact() == bench.spent("a")
    for words, limit in ((("--batch",), 3), ((), 9)):
        assert bench.run("--model", "p:b", *words, limit=limit) == 0
    assert bench.exact("b") == bench.spent("b")
    shares = bench.cost("b")["shares"]
    assert [share["price"]["prompt"] for share in shares] == ["1", "0.5"]


@pytest.mark.parametrize("script", [failing, half])
def test_truth_is_within_the_bounds(bench, script):
    bench.account.script = script
    assert bench.run("--batch", limit=6) == 0
    low, high = bench.bounds()
    assert low <= bench.spent() <= high and low < high
    assert bench.command("verify", "--name", "a") == 0
