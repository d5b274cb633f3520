"""What runs say they cost, against the endpoint's own account by other arithmetic."""

from __future__ import annotations

import re
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import orjson
import pytest

from harness import run
from harness.defaults import SAMPLE_FOLDER
from harness.model import Snapshot
from tests.support import SHIPPED, first_quick
from tests.support.billing import (
    JSON,
    PRICES,
    Act,
    Bench,
    account,
    draw,
    failing,
    full,
    half,
    killed_three_times,
    plain,
    providers,
    thoughts_apart,
)

pytestmark = pytest.mark.slow


@pytest.fixture
def bench(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    with account(plain, dict(PRICES)) as made:
        yield Bench(tmp_path, made, capsys)


# Complete usage: exact


def test_cached_reasoning_repeats_and_two_currencies(bench):
    def script(body: JSON, number: int) -> Act:
        tokens = 100 + draw(body) % 9, draw(body) % 50, 300
        return Act(tokens, full(*tokens, reasoning=260))

    bench.account.script = script
    assert bench.run("--model", "p:a", "--model", "p:yuan", "--repeats", "2", limit=3) == 0
    assert bench.exact() == bench.spent("a") and bench.exact("yuan") == bench.spent("yuan")


def test_thoughts_outside_completion_tokens_are_part_of_the_bill(bench):
    """The total has them, and a count of reasoning tokens says what they are."""
    bench.account.script = thoughts_apart
    assert bench.run(limit=4) == 0
    assert bench.exact() == bench.spent()
    assert bench.cost()["reasoning_tokens"] == 260 * bench.account.arrived


def test_refused_tries_cost_nothing(bench):
    """429 before a reply."""
    bench.account.script = lambda body, number: (
        Act(None, None, "status 429") if number == 1 else plain(body, number)
    )
    assert bench.run(limit=2) == 0
    assert bench.exact() == bench.spent()


def test_sessions_and_parts(bench):
    for limit in (2, 5):
        assert bench.run(limit=limit) == 0
    assert bench.exact() == bench.spent()
    for number in ("1/2", "2/2"):
        assert bench.run("--model", "p:b", "--part", number) == 0
    assert bench.command("merge", "b", "--no-html", "--tasks-dir", str(SAMPLE_FOLDER)) == 0
    assert bench.exact("b") == bench.spent("b")


def test_changed_price_is_for_new_replies(bench):
    """Also by `resume`, and back to the old one."""
    for price, limit in (("0.5", 2), ("0.7", 4), ("0.5", 6)):
        bench.account.prices["a"] = (price, *PRICES["a"][1:])
        providers(bench.folder, bench.account.url, a=price)
        bench.account.script = plain
        assert bench.run(limit=limit) == 0
    assert bench.exact() == bench.spent()
    bench.account.script = lambda body, number: Act(None, None, "status 400")
    assert bench.run(limit=8) in (1, 3)
    bench.account.prices["a"], bench.account.script = ("0.9", *PRICES["a"][1:]), plain
    providers(bench.folder, bench.account.url, a="0.9")
    assert bench.resume() == 0
    assert "0.9 USD" in bench.output and "0.5 USD" in bench.output
    assert bench.exact() == bench.spent()
    lines = (bench.results / "a" / "responses_weibo.jsonl").read_bytes().splitlines()
    assert {orjson.loads(line).get("price") for line in lines} == {None, 1, 2, 3}


def test_price_that_a_command_names_is_that_of_a_complete_run(bench):
    """No request is sent; replies of before any price was known, or at another price, have it."""
    file = bench.folder / "providers.toml"
    file.write_text(file.read_text().partition("[providers.p.prices")[0])
    assert bench.run(limit=2) == 0 and bench.cost()["amount"] is None
    arrived, saved = bench.account.arrived, bench.cost()
    results = (bench.results / "a" / "inference_results_weibo.jsonl").read_bytes()
    for price in ("1/2", "5/6"):
        prompt, completion = map(int, price.split("/"))
        assert bench.run("--price", price, limit=2) == 0
        tokens = saved["prompt_tokens"] * prompt + saved["completion_tokens"] * completion
        assert bench.exact() == Fraction(tokens, 10**6)
        assert "new-prices" not in bench.output
    assert bench.account.arrived == arrived
    assert (bench.results / "a" / "inference_results_weibo.jsonl").read_bytes() == results
    assert bench.run(limit=2) == 0 and bench.exact() == Fraction(tokens, 10**6)


def test_estimate_counts_earlier_replies_at_the_price_that_they_had(bench):
    """What is paid is paid: a price that is ten times higher is for those who are left."""
    assert bench.run(limit=12) == 0
    bench.account.prices["a"] = ("5", "1", "20")
    providers(bench.folder, bench.account.url, a="5")
    text = (
        (bench.folder / "providers.toml")
        .read_text()
        .replace("cached = 0.1\ncompletion = 2\n", "PRICE", 1)
    )
    (bench.folder / "providers.toml").write_text(
        text.replace("PRICE", "cached = 1\ncompletion = 20\n")
    )
    assert bench.run("--estimate", limit=24) == 5
    found = re.search(r"cost \S+ \((\S+) to (\S+)\) USD", bench.output)
    assert found
    assert bench.run(limit=24) == 0
    assert bench.exact() == bench.spent()
    assert Fraction(found[1]) <= bench.spent() <= Fraction(found[2])


@pytest.mark.parametrize("script", first_quick([thoughts_apart, half, failing]))
def test_estimate_counts_what_tries_without_a_reply_and_without_usage_may_cost(bench, script):
    """The whole is within its interval, by the endpoint's account; so are the requests."""
    bench.account.script = script
    assert bench.run("--estimate", limit=24) == 5
    amounts = re.search(r"cost \S+ \((\S+) to (\S+)\) USD", bench.output)
    requests = re.search(r"requests \S+ \((\S+) to (\S+)\)", bench.output)
    assert amounts and requests
    assert bench.run(limit=24) == 0
    assert Fraction(amounts[1]) <= bench.spent() <= Fraction(amounts[2])
    assert int(requests[1]) <= bench.account.arrived <= int(requests[2])


def test_live_costs_and_scores_of_repeats_of_two_models_are_those_of_their_reports(
    bench,
):
    """The last snapshots, in a run and in the session that continues it with more users."""
    seen: list[Sequence[Snapshot]] = []
    for limit in (4, 7):
        where = {"providers": bench.providers[1], "results_dir": bench.results}
        run(
            model=["p:a", "p:b"],
            subset="weibo",
            repeats=3,
            limit=limit,
            tasks_dir=SHIPPED[1],
            **where,
            progress=seen.append,
        )
        for snapshot in seen[-1]:
            report = orjson.loads(
                (bench.results / snapshot.name / "eval_report_weibo.json").read_bytes()
            )
            [subset], [money] = snapshot.subsets, snapshot.cost
            assert (
                Fraction(money.amount) == bench.exact(snapshot.name) == bench.spent(snapshot.name)
            )
            assert subset.scores and subset.scored_users == limit
            for name, value in subset.scores.items():
                assert value == pytest.approx(report["metrics"][name]["value"], abs=1e-12)
        assert {snapshot.name for snapshot in seen[-1]} == {"a", "b"}


def test_price_in_another_currency_is_refused(bench):
    """A run has one."""
    assert bench.run(limit=1) == 0
    file = bench.folder / "providers.toml"
    file.write_text(file.read_text().replace("USD", "CNY"))
    before = bench.account.arrived
    assert bench.run(limit=3) == 2 and bench.account.arrived == before


def test_dated_name_has_the_price_of_its_model(bench):
    assert bench.run("--model", "p:a-2026-01-31", limit=2) == 0
    assert bench.exact("a-2026-01-31") == bench.spent()


# Otherwise: the truth is within bounds


def _silent(body: JSON, number: int) -> Act:
    return Act((700, 0, 900), None)


def _hidden(body: JSON, number: int) -> Act:
    return Act((150, 0, 3000), full(150, 0, 3000, 2950) if draw(body) % 3 else None)


def _prompt_alone(body: JSON, number: int) -> Act:
    return Act(
        (150, 0, 800),
        {"prompt_tokens": 150, "completion_tokens_details": {"reasoning_tokens": 750}},
    )


def _cut(body: JSON, number: int) -> Act:
    return Act((150, 0, 9), None, "cut") if number == 1 and draw(body) % 3 else plain(body, number)


def _zeros(body: JSON, number: int) -> Act:
    return Act((150, 0, 45), {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0})


def _unnamed_thoughts(body: JSON, number: int) -> Act:
    return Act((150, 0, 340), {**full(150, 0, 40), "total_tokens": 490})


def _thoughts_without_total(body: JSON, number: int) -> Act:
    return Act((150, 0, 340), full(150, 0, 40, 300))


def _cached_left_out(body: JSON, number: int) -> Act:
    return Act((150, 120, 40), {**full(30, 0, 40, 25), "total_tokens": 190})


def _more_cached_than_prompt(body: JSON, number: int) -> Act:
    return Act((150, 120, 40), full(30, 120, 40))


def _thoughts_and_more_cached_than_prompt(body: JSON, number: int) -> Act:
    return Act((150, 120, 40), {**full(30, 120, 40, 25), "total_tokens": 190})


def _cached_in_two_counts(body: JSON, number: int) -> Act:
    return Act((150, 120, 40), {**full(150, 0, 40), "prompt_cache_hit_tokens": 120})


def _cache_read_apart(body: JSON, number: int) -> Act:
    return Act(
        (270, 120, 40),
        {"prompt_tokens": 150, "completion_tokens": 40, "cache_read_input_tokens": 120},
    )


def _cache_read_within(body: JSON, number: int) -> Act:
    return Act(
        (150, 120, 40),
        {"prompt_tokens": 150, "completion_tokens": 40, "cache_read_input_tokens": 120},
    )


@pytest.mark.parametrize(
    ("script", "words"),
    [
        *first_quick([(_zeros, ()), (_prompt_alone, ())]),
        *first_quick([(_unnamed_thoughts, ()), (_thoughts_without_total, ())]),
        *first_quick([(_thoughts_and_more_cached_than_prompt, ()), (_more_cached_than_prompt, ())]),
        *first_quick([(_cached_left_out, ()), (_cached_in_two_counts, ())]),
        *first_quick([(_cache_read_apart, ()), (_cache_read_within, ())]),
        *first_quick([(_silent, ()), (_silent, ("--max-tokens", "900")), (half, ())]),
        *first_quick([(_hidden, ())]),
        (failing, ()),
        (_cut, ("--stream", "on")),
    ],
)
def test_truth_is_within_the_bounds(bench, script, words):
    bench.account.script = script
    assert bench.run(*words, limit=6) == 0
    low, high = bench.bounds()
    assert low <= bench.spent() <= high and low < high
    assert bench.verified == 0


def test_counts_that_agree_are_exact(bench):
    """Anthropic's count of cached tokens next to the same one in OpenAI's place, and a total that
    is the sum."""

    def script(body: JSON, number: int) -> Act:
        usage = {**full(150, 120, 40, 30), "total_tokens": 190, "cache_read_input_tokens": 120}
        return Act((150, 120, 40), {**usage, "cache_creation_input_tokens": 0})

    bench.account.script = script
    assert bench.run(limit=3) == 0
    assert bench.exact() == bench.spent()


@pytest.mark.parametrize(("script", "off"), [(half, Fraction(1, 3)), (_hidden, Fraction(1, 3))])
def test_estimate_has_a_ratio_for_each_side(bench, script, off):
    """Hidden thoughts are in that of completions, and not in that of prompts."""
    bench.account.script = script
    assert bench.run("--concurrency", "1") == 0
    amount = Fraction(bench.cost()["amount"])
    assert abs(amount - bench.spent()) < off * bench.spent()


def test_parts_with_failed_tries_are_merged_with_their_bounds(bench):
    bench.account.script = failing
    for number in ("1/2", "2/2"):
        assert bench.run("--part", number) == 0
    assert bench.command("merge", "a", "--no-html", "--tasks-dir", str(SAMPLE_FOLDER)) == 0
    low, high = bench.bounds()
    assert low < bench.spent() <= high


def test_stats_have_the_bounds(bench):
    bench.account.script = failing
    assert bench.run(limit=5) == 0
    found = bench.said("stats")["costs"]["a"]["weibo"]
    assert (
        Fraction(found["low"])
        == Fraction(found["amount"])
        < bench.spent()
        <= Fraction(found["high"])
    )


def test_share_of_cached_tokens_is_that_of_reported_prompts(bench):
    """Prompts without a usage, whose tokens are estimated, say nothing of it."""

    def script(body: JSON, number: int) -> Act:
        return Act((200, 80, 40), full(200, 80, 40) if draw(body) % 2 else None)

    bench.account.script = script
    assert bench.run(limit=6) == 0
    assert bench.cost()["requests_without_usage"] > 0
    assert bench.command("stats") == 0
    assert "40.0 %" in bench.output


@pytest.mark.slow
def test_second_tries_are_within_the_bounds(bench):
    """`--hedge`: the try that loses may be billed."""
    slow = {"left": 1}

    def script(body: JSON, number: int) -> Act:
        if number == 1 and bench.account.arrived > 24 and slow["left"]:
            slow["left"] -= 1
            return Act((150, 0, 45), None, "hang")
        return plain(body, number)

    bench.account.script = script
    assert bench.run("--hedge", "1", "--concurrency", "3", limit=15) == 0
    assert not slow["left"]
    low, high = bench.bounds()
    assert low < bench.spent() <= high


@pytest.mark.slow
def test_run_that_is_killed_three_times_is_within_the_bounds(bench):
    """At 100 requests in flight, all of which are billed."""
    words = killed_three_times(bench)
    assert bench.command("run", *words) == 0
    low, high = bench.bounds()
    assert low < bench.spent() <= high
