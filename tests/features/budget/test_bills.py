"""What budgets keep to, against the endpoint's own account by other arithmetic."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from pathlib import Path

import pytest

from harness.defaults import SAMPLE_FOLDER
from harness.store.log import seal, unseal
from tests.support.billing import (
    JSON,
    PRICES,
    Act,
    Bench,
    account,
    killed_once,
    killed_three_times,
    plain,
    providers,
    thoughts_apart,
)


@pytest.fixture
def bench(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[Bench]:
    with account(plain, dict(PRICES)) as made:
        yield Bench(tmp_path, made, capsys)


def ledger_sum(bench: Bench) -> Fraction:
    lines = (bench.results / "budget.jsonl").read_bytes().splitlines()
    return sum((Fraction(unseal(line)["amount"]) for line in lines), Fraction(0))


def test_budget_counts_what_is_not_reported_as_the_most_that_it_may_be(bench: Bench) -> None:
    """Hidden tokens without a usage."""
    bench.account.script = lambda body, number: Act((700, 0, 900), None)
    assert bench.run("--budget", "0.2usd", "--max-tokens", "1000", "--concurrency", "4", limit=60) == 5
    assert 0 < bench.spent() <= Fraction("0.2")
    assert bench.bounds()[1] <= Fraction("0.2")


@pytest.mark.parametrize("unit", ["usd", "tok"])
def test_budget_counts_thoughts_outside_completion_tokens(bench: Bench, unit: str) -> None:
    """After a resume, too, whose ledger has them already."""
    cap = {"usd": Fraction("0.009"), "tok": Fraction(9000)}[unit]
    billed = {"usd": bench.spent, "tok": lambda: sum(tokens for _, _, tokens in bench.account.billed)}[unit]
    bench.account.script = thoughts_apart
    words = ("--max-tokens", "400", "--concurrency", "3", "--budget", f"{float(cap):g}{unit}")
    assert bench.run(*words) == 5
    first = billed()
    assert 0 < first <= cap and bench.exact() == bench.spent()
    assert bench.resume() == 5 and billed() == first


@pytest.mark.parametrize("named", [True, False])
def test_budget_of_a_killed_run_counts_what_a_total_has_beyond_its_parts(bench: Bench, named: bool) -> None:
    """What is only in the total counts once, also after the resume that reads it from the saved replies."""

    def script(body: JSON, number: int) -> Act:
        act = thoughts_apart(body, number)
        if not named and act.usage:
            del act.usage["completion_tokens_details"]
        return act

    words = killed_once(bench, script, "--max-tokens", "400", "--budget", "1usd")
    counted, billed = ledger_sum(bench), bench.spent()
    assert counted >= billed
    assert bench.command("run", *words, "--budget", "1usd") == 0
    assert ledger_sum(bench) - counted == bench.spent() - billed > 0
    low, high = bench.bounds()
    assert low < bench.spent() <= high


def test_usage_of_zeros_does_not_keep_a_run_below_its_budget_for_free(bench: Bench) -> None:
    """A prompt has no 0 tokens: what is not reported counts as the most that it may be."""
    bench.account.script = lambda body, number: Act((150, 0, 45), {"prompt_tokens": 0, "completion_tokens": 0})
    assert bench.run("--budget", "50000tok", limit=40) == 5
    assert 0 < sum(tokens for _, _, tokens in bench.account.billed) <= 50_000


def test_shared_budget_holds_where_its_runs_are_resumed_one_by_one(bench: Bench) -> None:
    """Over commands: what the others have spent counts."""
    words = ("--max-tokens", "60", "--budget")
    assert bench.run("--model", "p:a", "--model", "p:b", *words, "0.006usd", limit=30) == 5
    assert 0 < bench.spent() <= Fraction("0.006")
    for name in "ab":
        assert bench.resume("--name", name, "--budget", "0.008usd") in (0, 5)
        assert bench.spent() <= Fraction("0.008")
    assert bench.resume("--name", "a", "--budget", "1usd") == 0
    assert bench.resume("--name", "b", "--budget", "1usd") == 0
    assert bench.exact("a") + bench.exact("b") == bench.spent()
    ledger = [unseal(line) for line in (bench.results / "budget.jsonl").read_bytes().splitlines()]
    assert sum(Fraction(line["amount"]) for line in ledger) == bench.spent()


def test_replies_of_before_a_budget_count_towards_it(bench: Bench) -> None:
    """Once, by however many commands."""
    assert bench.run("--max-tokens", "60", limit=4) == 0
    before, words = bench.spent(), ("--max-tokens", "60", "--budget", "0.005usd")
    for _ in range(2):
        assert bench.run(*words, limit=40) == 5
        assert before < bench.spent() <= Fraction("0.005")


def test_budget_of_a_day_holds_until_midnight(bench: Bench) -> None:
    """UTC; the next day has as much again."""
    words, cap = ("--max-tokens", "60", "--budget", "0.002usd/day"), Fraction("0.002")
    assert bench.run(*words) == 5
    first = bench.spent()
    assert 0 < first <= cap
    assert bench.resume() == 5 and bench.spent() == first
    path = bench.results / "budget.jsonl"
    yesterday = (datetime.now(UTC) - timedelta(days=1)).date().isoformat()
    path.write_bytes(b"".join(seal({**unseal(line), "day": yesterday}) for line in path.read_bytes().splitlines()))
    assert bench.resume() in (0, 5)
    assert first < bench.spent() <= first + cap


def test_failed_tries_count_towards_a_budget(bench: Bench) -> None:
    """As they were reserved, since they may have been billed."""
    bench.account.script = lambda body, number: Act((200, 0, 60), None, "status 500") if number == 1 else plain(body, 2)
    assert bench.run("--max-tokens", "60", "--budget", "0.006usd") == 5
    assert 0 < bench.spent() <= Fraction("0.006")
    low, high = bench.bounds()
    assert low < bench.spent() <= high


def test_batches_at_two_prices_are_resumed_at_what_each_reply_cost(bench: Bench) -> None:
    """Batches stop at a budget; after a change of the price they go on by batch, then as single requests."""
    words = ("--batch", "--max-tokens", "60", "--budget", "0.001usd")
    assert bench.run(*words, limit=8) == 5
    first = bench.spent()
    assert 0 < first <= Fraction("0.001") and bench.exact() == first
    bench.account.prices["a"] = ("0.7", *PRICES["a"][1:])
    providers(bench.folder, bench.account.url, a="0.7")
    assert bench.resume("--budget", "1usd") == 0
    assert bench.run("--max-tokens", "60", limit=12) == 0
    assert bench.exact() == bench.spent() > first and max(bench.account.tries.values()) == 1
    assert {share["price"]["prompt"] for share in bench.cost()["shares"]} == {"0.25", "0.35", "0.7"}


def test_repeats_of_two_models_cost_the_same_however_often_they_are_resumed(bench: Bench) -> None:
    """A budget stops both; then one is resumed after the other."""
    words = ("--model", "p:a", "--model", "p:b", "--repeats", "3", "--max-tokens", "60")
    assert bench.run(*words, "--budget", "0.004usd", limit=8) == 5
    assert 0 < bench.spent() <= Fraction("0.004")
    assert bench.resume("--name", "a", "--budget", "1usd") == 0
    assert bench.exact("a") == bench.spent("a") and bench.exact("b") == bench.spent("b")
    assert bench.resume("--name", "b", "--budget", "1usd") == 0
    assert bench.exact("b") == bench.spent("b") and bench.spent() == bench.exact("a") + bench.exact("b")


def test_parts_under_a_budget_are_resumed_and_merged_to_what_was_billed(bench: Bench) -> None:
    """A part stops at the budget of the folder, which counts the other part too."""
    words = ("--max-tokens", "60", "--budget")
    assert bench.run("--part", "1/2", *words, "1usd", limit=12) == 0
    cap = bench.spent() + Fraction("0.001")
    assert bench.run("--part", "2/2", *words, f"{float(cap):.6f}usd", limit=12) == 5
    assert 0 < bench.spent() <= cap
    assert bench.resume("--budget", "1usd") == 0
    assert bench.command("merge", "a", "--no-html", "--tasks-dir", str(SAMPLE_FOLDER)) == 0
    assert bench.exact() == bench.spent() and max(bench.account.tries.values()) == 1


@pytest.mark.slow
def test_batches_keep_a_budget_wave_by_wave(bench: Bench) -> None:
    """A wave goes out as far as it fits; then the run stops, and goes on with more. Nothing is billed twice."""
    words = ("--batch", "--max-tokens", "60", "--budget")
    assert bench.run(*words, "0.0015usd", limit=12) == 5
    assert 0 < bench.spent() <= Fraction("0.0015") and len(bench.account.batch_requests) > 1
    assert bench.exact() == bench.spent()
    assert bench.resume() == 5 and bench.spent() <= Fraction("0.0015")
    assert bench.resume("--budget", "1usd") == 0
    assert bench.exact() == bench.spent() and max(bench.account.tries.values()) == 1


@pytest.mark.slow
def test_run_that_is_killed_three_times_keeps_its_budget(bench: Bench) -> None:
    """At 100 requests in flight, all of which are billed."""
    words = killed_three_times(bench, "--budget", "0.5usd")
    assert bench.command("run", *words, "--budget", "0.3usd") in (0, 5)
    low, high = bench.bounds()
    assert low < bench.spent() <= min(high, Fraction("0.3"))
