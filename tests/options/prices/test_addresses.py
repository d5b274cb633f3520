"""The price of an address stays there: runs that move, against the account of each endpoint."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path

import orjson
import pytest

from harness.defaults import SAMPLE_FOLDER
from tests.support.billing import JSON, PRICES, Account, Act, Bench, account, plain, provider

pytestmark = pytest.mark.slow


@pytest.fixture
def bench(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[Bench]:
    """At the endpoint of the provider `p`."""
    with account(plain, dict(PRICES)) as endpoint:
        yield Bench(tmp_path, endpoint, capsys)


@pytest.fixture
def other() -> Iterator[Account]:
    """An endpoint elsewhere, which bills twice as much."""
    twice = {
        model: tuple(str(2 * Fraction(price)) for price in prices)
        for model, prices in PRICES.items()
    }
    with account(plain, {model: (a, b, c) for model, (a, b, c) in twice.items()}) as endpoint:
        yield endpoint


def configure(bench: Bench, *tables: str) -> None:
    (bench.folder / "providers.toml").write_text("\n".join(tables))


def both(bench: Bench, other: Account, *, here: int | None = 1, there: int | None = 2) -> None:
    configure(
        bench, provider("p", bench.account.url, scale=here), provider("q", other.url, scale=there)
    )


def provenance(bench: Bench) -> JSON:
    found: JSON = orjson.loads((bench.results / "a" / "run_weibo.json").read_bytes())["provenance"]
    return found


def stopped(bench: Bench, *words: str) -> None:
    """Play a few users, until a budget is reached."""
    assert bench.run("--max-tokens", "60", *words, "--budget", "4ktok", limit=16) == 5
    assert bench.spent() > 0


def test_price_of_an_address_that_never_answered_is_not_that_of_the_next_one(bench, other):
    """Begun at a provider, and killed before its first request, then at a local server: no price is
    known there."""
    bench.account.script = lambda body, number: Act(None, None, "status 503")
    assert bench.run("--max-outage", "0.1", limit=3) == 3
    (bench.results / "a" / "run_weibo.log").write_bytes(b"")
    assert bench.resume("--name", "a", "--api-url", other.url) == 0
    cost = bench.cost()
    assert (cost["amount"], cost["price"], cost["requests"]) == (None, None, other.arrived)
    assert "price_endpoints" not in provenance(bench) and bench.command("verify") == 0


@pytest.mark.parametrize("again", ["resume", "run"])
def test_replies_of_an_address_without_a_price_have_none(bench, other, again):
    """What the others cost is still known, as a share, and said to be all that is."""
    stopped(bench)
    words = ("--budget", "1Mtok", "--api-url", other.url)
    if again == "run":
        assert bench.run("--max-tokens", "60", *words, "--model", "a", limit=16) == 0
    else:
        assert bench.resume("--name", "a", *words) == 0
    cost = bench.cost()
    assert "no price is known" in bench.output or cost["amount"] is None
    shares = {share["price"] is None: share for share in cost["shares"]}
    assert Fraction(shares[False]["amount"]) == bench.spent() > 0
    assert shares[True]["requests"] == other.arrived > 0 and cost["amount"] is None
    assert bench.command("verify") == 0


def test_each_address_has_its_own_price_and_a_run_may_come_back(bench, other):
    """Also where the providers file no longer has a price: an address keeps the last one."""
    both(bench, other)
    stopped(bench)
    assert bench.resume("--budget", "8ktok", "--provider", "q") == 5
    both(bench, other, here=None, there=None)
    assert bench.resume("--budget", "1Mtok", "--provider", "p") == 0
    assert bench.exact() == bench.spent() + other.total()
    assert min(bench.spent(), other.total()) > 0
    assert len(provenance(bench)["later_prices"]) == 1


def test_new_prices_are_those_of_each_address_and_later_sessions_add_theirs(bench, other):
    """By the file of `--providers`; a price that changed before is one of the place where it
    was."""
    both(bench, other)
    stopped(bench)
    both(bench, other, here=3)
    bench.account.prices["a"] = ("1.5", "0.3", "6")
    assert bench.resume("--budget", "5ktok") == 5
    assert bench.resume("--budget", "9ktok", "--provider", "q") == 5
    there = other.total()
    both(bench, other, here=1, there=6)
    assert bench.command("reeval", "--no-html", "--new-prices", *bench.providers) in (0, 1)
    assert [Fraction(share["amount"]) for share in bench.cost()["shares"]][-1] == 3 * there > 0
    both(bench, other, here=1, there=2)
    assert bench.resume("--budget", "1Mtok", "--provider", "q") == 0
    rest = other.total() - there
    assert rest > 0
    by_price = {
        Fraction(share["price"]["prompt"]): Fraction(share["amount"])
        for share in bench.cost()["shares"]
    }
    assert set(by_price) == {Fraction("0.5"), 3, 1} and (by_price[3], by_price[1]) == (
        3 * there,
        rest,
    )
    assert bench.command("verify") == 0


def test_new_prices_of_an_unknown_address_leave_the_others(bench, other):
    stopped(bench)
    assert bench.resume("--name", "a", "--budget", "1Mtok", "--api-url", other.url) == 0
    configure(bench, provider("p", bench.account.url, scale=2))
    assert bench.command("reeval", "--no-html", "--new-prices", *bench.providers) == 0
    priced, unpriced = sorted(bench.cost()["shares"], key=lambda share: share["price"] is None)
    assert Fraction(priced["amount"]) == 2 * bench.spent() and unpriced["requests"] == other.arrived
    assert bench.command("verify") == 0


def test_batches_cost_what_their_address_asks_for_batches(bench, other):
    """The rest goes one by one, elsewhere."""
    both(bench, other)
    assert bench.run("--batch", "--max-tokens", "60", "--budget", "0.001usd", limit=8) == 5
    assert bench.resume("--provider", "q", "--no-batch", "--budget", "1usd") == 0
    assert bench.exact() == bench.spent() + other.total() and min(bench.spent(), other.total()) > 0
    assert [Fraction(share["price"]["prompt"]) for share in bench.cost()["shares"]] == [
        Fraction("0.25"),
        1,
    ]


def test_replicas_of_a_provider_have_its_price_together_and_one_by_one(bench, other):
    """A run that goes on at one of them keeps it, though the file has no price by then."""
    urls = f'["{bench.account.url}", "{other.url}"]'
    other.prices = dict(PRICES)
    configure(bench, provider("p", bench.account.url).replace(f'"{bench.account.url}"', urls))
    stopped(bench)
    configure(bench, provider("p", bench.account.url, scale=None))
    assert bench.resume("--budget", "1Mtok") == 0
    assert bench.exact() == bench.spent() + other.total()


def test_price_of_a_provider_does_not_follow_to_a_relay(bench, other):
    """Named by `--api-url` next to the provider."""
    assert bench.run("--provider", "p", "--model", "a", "--api-url", other.url, limit=2) == 0
    assert bench.cost()["amount"] is None


def test_parts_of_two_addresses_are_merged_with_the_price_of_each(bench, other):
    """And the merged run goes on with them: its cost is the sum of both accounts, also by new
    prices."""
    both(bench, other)
    assert bench.run("--part", "1/2") == 0
    assert bench.run("--part", "2/2", "--provider", "q", "--model", "a") == 0
    assert bench.command("merge", "a", "--no-html", "--tasks-dir", str(SAMPLE_FOLDER)) == 0
    assert bench.exact() == bench.spent() + other.total() and min(bench.spent(), other.total()) > 0
    both(bench, other, here=3, there=4)
    assert (
        bench.command("reeval", "--no-html", "--new-prices", "--name", "a", *bench.providers) == 0
    )
    assert bench.exact() == 3 * bench.spent() + 2 * other.total()
