"""What budgets keep to, against the endpoint's own account by other arithmetic."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from pathlib import Path

import pytest

from harness.defaults import SAMPLE_FOLDER
from harness.store.log import decode_line, encode_line
from tests.support.billing import (
    JSON,
    PRICES,
    Act,
    Bench,
    account,
    full,
    hang_after,
    killed_once,
    killed_three_times,
    plain,
    playing,
    providers,
    thoughts_apart,
)
from tests.support.processes import wait_for

pytestmark = pytest.mark.slow


@pytest.fixture
def bench(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[Bench]:
    with account(plain, dict(PRICES)) as made:
        yield Bench(tmp_path, made, capsys)


def ledger_sum(bench: Bench) -> Fraction:
    lines = (bench.results / "budget.jsonl").read_bytes().splitlines()
    return sum((Fraction(decode_line(line)["amount"]) for line in lines), Fraction(0))


def test_budget_counts_what_is_not_reported_as_the_most_that_it_may_be(bench):
    """Hidden tokens without a usage."""
    bench.account.script = lambda body, number: Act((700, 0, 900), None)
    assert (
        bench.run("--budget", "0.2usd", "--max-tokens", "1000", "--concurrency", "4", limit=60) == 5
    )
    assert 0 < bench.spent() <= Fraction("0.2")
    assert bench.bounds()[1] <= Fraction("0.2")


@pytest.mark.parametrize("unit", ["usd", "tok"])
def test_budget_counts_thoughts_outside_completion_tokens(bench, unit):
    """After a resume, too, whose ledger has them already."""
    cap = {"usd": Fraction("0.009"), "tok": Fraction(9000)}[unit]
    billed = {"usd": bench.spent, "tok": lambda: tokens(bench)}[unit]
    bench.account.script = thoughts_apart
    words = ("--max-tokens", "400", "--concurrency", "3", "--budget", f"{float(cap):g}{unit}")
    assert bench.run(*words) == 5
    first = billed()
    assert 0 < first <= cap and bench.exact() == bench.spent()
    assert bench.resume() == 5 and billed() == first


@pytest.mark.slow
@pytest.mark.parametrize("named", [True, False])
def test_budget_of_a_killed_run_counts_what_a_total_has_beyond_its_parts(bench, named):
    """What is only in the total counts once, also after the resume that reads it from the saved
    replies."""

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


def test_usage_of_zeros_does_not_keep_a_run_below_its_budget_for_free(bench):
    """A prompt has no 0 tokens: what is not reported counts as the most that it may be."""
    bench.account.script = lambda body, number: Act(
        (150, 0, 45), {"prompt_tokens": 0, "completion_tokens": 0}
    )
    assert bench.run("--budget", "50000tok", limit=40) == 5
    assert 0 < tokens(bench) <= 50_000


def tokens(bench: Bench) -> int:
    """All that is billed."""
    return sum(of_try for _, _, of_try in bench.account.billed)


def waits(bench: Bench, run: str) -> bool:
    """Whether a run's log has that it waits for another command."""
    log = bench.results / run / "run_weibo.log"
    return log.exists() and b"other commands have reserved" in log.read_bytes()


SHARED = ("--max-tokens", "60", "--concurrency", "1", "--budget", "4ktok/day")
"""Room for one request, of 2,000 to 3,000 bytes, and not for two; a reply takes less than 200
tokens."""


def test_second_command_waits_for_what_the_first_has_reserved(bench):
    """It says so, and goes on once replies have given that back; both together keep the budget."""
    bench.account.script = lambda body, number: replace(plain(body, number), fault="wait")
    with playing(bench, "--model", "p:b", *SHARED, limit=2) as first:
        wait_for(lambda: bench.account.arrived)
        with playing(bench, *SHARED, limit=2) as second:
            wait_for(lambda: waits(bench, "a") or second.poll() is not None)
            assert second.poll() is None and first.poll() is None
            assert {model for model, *_ in bench.account.billed} == {"b"}
            bench.account.script = plain
            bench.account.release.set()
            said = second.communicate()[0]
            assert (second.returncode, first.wait()) == (0, 0), said
    assert "other commands have reserved" in said
    assert bench.exact("a") + bench.exact("b") == bench.spent() and tokens(bench) <= 4_000


def test_what_a_dead_command_had_reserved_is_spent(bench):
    """A command that waited for it stops, and leaves nothing, since it sent nothing. The day's
    budget holds; tomorrow, or with more, the other goes on."""
    hang_after(bench, plain, 0)
    with playing(bench, "--model", "p:b", *SHARED, limit=2) as first:
        wait_for(lambda: bench.account.arrived)
        with playing(bench, *SHARED, limit=2) as second:
            wait_for(lambda: waits(bench, "a") or second.poll() is not None)
            assert second.poll() is None
            arrived = bench.account.arrived
            first.kill()
            said = second.communicate()[0]
    assert second.returncode == 5 and "is reached" in said and bench.account.arrived == arrived
    assert tokens(bench) <= 4_000
    bench.account.script = plain
    bench.account.release.set()
    assert not (bench.results / "a").exists()
    assert bench.run("--max-tokens", "60", "--budget", "30ktok/day", limit=2) == 0
    assert bench.resume("--name", "b", "--budget", "30ktok/day") == 0
    assert bench.exact("a") == bench.spent("a") and bench.spent("b") <= bench.bounds("b")[1]


@pytest.mark.parametrize("budget", ["5000tok", "5000tok/day", "0.001usd/day"])
def test_budget_below_one_request_says_so_before_anything_is_sent(bench, budget):
    """Tomorrow would be no better; a limit of the completion, which is named, would be."""
    assert bench.run("--budget", budget) == 5
    said = bench.output + bench.errors
    assert (
        "less than one request may take" in said
        and "--max-tokens" in said
        and "tomorrow" not in said
    )
    assert bench.account.arrived == 0


def test_first_replies_without_a_limit_are_announced(bench):
    """They may be longer than what is reserved for them, all at once."""
    bench.account.script = lambda body, number: Act((150, 0, 20_000), full(150, 0, 20_000))
    assert bench.run("--budget", "0.3usd") in (0, 5)
    assert "bill more than the budget" in bench.output and "--max-tokens" in bench.output
    assert bench.run("--model", "p:b", "--max-tokens", "60", "--budget", "9usd", limit=1) == 0
    assert "bill more" not in bench.output


def test_shared_budget_holds_where_its_runs_are_resumed_one_by_one(bench):
    """Over commands: what the others have spent counts."""
    words = ("--max-tokens", "60", "--budget")
    assert bench.run("--model", "p:a", "--model", "p:b", *words, "0.006usd", limit=12) == 5
    assert 0 < bench.spent() <= Fraction("0.006")
    for name in "ab":
        assert bench.resume("--name", name, "--budget", "0.008usd") in (0, 5)
        assert bench.spent() <= Fraction("0.008")
    assert bench.resume("--name", "a", "--budget", "1usd") == 0
    assert bench.resume("--name", "b", "--budget", "1usd") == 0
    assert bench.exact("a") + bench.exact("b") == bench.spent()
    ledger = [
        decode_line(line) for line in (bench.results / "budget.jsonl").read_bytes().splitlines()
    ]
    assert sum(Fraction(line["amount"]) for line in ledger) == bench.spent()


def test_replies_of_before_a_budget_count_towards_it(bench):
    """Once, by however many commands."""
    assert bench.run("--max-tokens", "60", limit=4) == 0
    before, words = bench.spent(), ("--max-tokens", "60", "--budget", "0.005usd")
    for _ in range(2):
        assert bench.run(*words, limit=12) == 5
        assert before < bench.spent() <= Fraction("0.005")


def test_budget_of_a_day_holds_until_midnight(bench):
    """UTC; the next day has as much again."""
    words, cap = ("--max-tokens", "60", "--budget", "0.002usd/day"), Fraction("0.002")
    assert bench.run(*words) == 5
    first = bench.spent()
    assert 0 < first <= cap
    assert bench.resume() == 5 and bench.spent() == first
    path = bench.results / "budget.jsonl"
    yesterday = (datetime.now(UTC) - timedelta(days=1)).date().isoformat()
    path.write_bytes(
        b"".join(
            encode_line({**decode_line(line), "day": yesterday})
            for line in path.read_bytes().splitlines()
        )
    )
    assert bench.resume() in (0, 5)
    assert first < bench.spent() <= first + cap


def test_failed_tries_count_towards_a_budget(bench):
    """As they were reserved, since they may have been billed."""
    bench.account.script = lambda body, number: (
        Act((200, 0, 60), None, "status 500") if number == 1 else plain(body, 2)
    )
    assert bench.run("--max-tokens", "60", "--budget", "0.006usd") == 5
    assert 0 < bench.spent() <= Fraction("0.006")
    low, high = bench.bounds()
    assert low < bench.spent() <= high


def test_batches_at_two_prices_are_resumed_at_what_each_reply_cost(bench):
    """Batches stop at a budget; after a change of the price they go on by batch, then as single
    requests."""
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


def test_repeats_of_two_models_cost_the_same_however_often_they_are_resumed(bench):
    """A budget stops both; then one is resumed after the other."""
    words = ("--model", "p:a", "--model", "p:b", "--repeats", "3", "--max-tokens", "60")
    assert bench.run(*words, "--budget", "0.004usd", limit=8) == 5
    assert 0 < bench.spent() <= Fraction("0.004")
    assert bench.resume("--name", "a", "--budget", "1usd") == 0
    assert bench.exact("a") == bench.spent("a") and bench.exact("b") == bench.spent("b")
    assert bench.resume("--name", "b", "--budget", "1usd") == 0
    assert bench.exact("b") == bench.spent("b") and bench.spent() == bench.exact("a") + bench.exact(
        "b"
    )


def test_parts_under_a_budget_are_resumed_and_merged_to_what_was_billed(bench):
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
def test_batches_keep_a_budget_wave_by_wave(bench):
    """A wave goes out as far as it fits; then the run stops, and goes on with more. Nothing is
    billed twice."""
    words = ("--batch", "--max-tokens", "60", "--budget")
    assert bench.run(*words, "0.0015usd", limit=12) == 5
    assert 0 < bench.spent() <= Fraction("0.0015") and len(bench.account.batch_requests) > 1
    assert bench.exact() == bench.spent()
    assert bench.resume() == 5 and bench.spent() <= Fraction("0.0015")
    assert bench.resume("--budget", "1usd") == 0
    assert bench.exact() == bench.spent() and max(bench.account.tries.values()) == 1


@pytest.mark.slow
def test_run_that_is_killed_three_times_keeps_its_budget(bench):
    """At 100 requests in flight, all of which are billed."""
    words = killed_three_times(bench, "--budget", "0.5usd")
    assert bench.command("run", *words, "--budget", "0.3usd") in (0, 5)
    low, high = bench.bounds()
    assert low < bench.spent() <= min(high, Fraction("0.3"))
