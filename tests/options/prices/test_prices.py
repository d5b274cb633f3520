"""Prices: what ships, what a file of the user's changes, where a price holds, and exact arithmetic
with them."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import msgspec
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.client.address import Address
from harness.cost import Cost, Price, cost_of, each, money_text, plain, rounded, together
from harness.errors import BadInput
from harness.model import Completion, Money, RunUsage
from harness.options import prices, providers
from harness.options.address import ResolvedEndpoint
from harness.options.providers import Book

OWN = '{currency = "CNY", prompt = 1, completion = 2}'


def read(folder: Path, text: str) -> Book:
    file = folder / "供应商.toml"
    file.write_text(text, encoding="utf-8")
    return providers.read(file, {})


def at(url: str, provider: str | None = None, book: Book | None = None) -> ResolvedEndpoint:
    book = book or providers.shipped()
    return ResolvedEndpoint(
        (Address(url),), "--api-key", book.providers[provider] if provider else None
    )


def test_every_shipped_price_has_a_day_and_a_page():
    """Of providers that ship, in the currency that they bill; a cached token costs no more than
    another."""
    table = prices.shipped()
    assert {"openai", "deepseek", "dashscope", "moonshot", "zhipuai", "anthropic"} <= table.keys()
    assert table.keys() <= providers.shipped().providers.keys()
    for provider, models in table.items():
        for model, price in models.items():
            assert price.date and "https://" in price.source, (provider, model)
            assert price.currency in ("USD", "CNY") and 0 < price.prompt < price.completion, (
                provider,
                model,
            )
            assert price.cached is None or price.cached < price.prompt, (provider, model)


def test_price_is_that_of_provider_and_model():
    """Also where only the address is given; another model, and a relay of the same models, have
    none."""
    book, flash = providers.shipped(), prices.shipped()["deepseek"]["deepseek-flash"]
    assert (
        prices.price_of(at("https://api.deepseek.com/v1", "deepseek"), "deepseek-flash", book)
        == flash
    )
    assert prices.price_of(at("https://api.deepseek.com/beta"), "deepseek-flash", book) == flash
    assert prices.price_of(at("https://api.deepseek.com/v1"), "deepseek-flash-2", book) is None
    assert prices.price_of(at("https://relay.example/v1"), "deepseek-flash", book) is None
    assert prices.price_of(at("https://relay.example/v1", "openai"), "gpt-4.1", book) is None


def test_two_regions_of_a_provider_bill_in_their_own_currency():
    """The same model costs yuan at one address and dollars at the other."""
    book = providers.shipped()
    found = [
        prices.price_of(at(f"https://api.moonshot.{end}/v1"), "kimi-k3", book)
        for end in ("cn", "ai")
    ]
    assert [price and price.currency for price in found] == ["CNY", "USD"]


def test_price_of_the_users_file_comes_first(tmp_path):
    """For its model alone, and with the numbers exactly as they are written."""
    book = read(
        tmp_path,
        f'[providers.openai.prices]\n"gpt-4.1" = {OWN}\nmine = {OWN.replace("1,", "0.1,")}\n',
    )
    found = at("https://api.openai.com/v1", "openai", book)
    assert prices.price_of(found, "gpt-4.1", book) == Price(
        currency="CNY", prompt=Decimal(1), completion=Decimal(2)
    )
    mine, mini = (prices.price_of(found, model, book) for model in ("mine", "gpt-4.1-mini"))
    assert mine and mine.prompt == Decimal("0.1")
    assert mini == prices.shipped()["openai"]["gpt-4.1-mini"]


def test_price_of_a_provider_of_ones_own_holds_without_its_name_too(tmp_path):
    """Its address is enough."""
    book = read(
        tmp_path, f'[providers.mine]\nbase_url = "http://h:1/v1"\nprices = {{ m = {OWN} }}\n'
    )
    assert prices.price_of(at("http://h:1/v2"), "m", book) == book.providers["mine"].prices["m"]
    assert prices.price_of(at("http://h:2/v1"), "m", book) is None


@pytest.mark.parametrize(
    "table",
    [
        "{prompt = 1, completion = 2}",
        '{currency = "CNY", prompt = 1}',
        '{currency = "yuan", prompt = 1, completion = 2}',
        '{currency = "CNY", prompt = -1, completion = 2}',
        '{currency = "CNY", prompt = inf, completion = 2}',
        '{currency = "CNY", prompt = nan, completion = 2}',
        '{currency = "CNY", prompt = 1e-300, completion = 2}',
        '{currency = "CNY", prompt = "one", completion = 2}',
        '{currency = "CNY", prompt = 1, completion = 2, output = 3}',
        '{currency = "CNY", prompt = 1, completion = 2, date = "soon"}',
        "3",
    ],
)
def test_price_that_cannot_be_is_refused_with_its_place(tmp_path, table):
    """File, provider and model."""
    with pytest.raises(BadInput, match=r"供应商\.toml: providers\.mine\.prices"):
        read(
            tmp_path, f'[providers.mine]\nbase_url = "http://h:1/v1"\nprices = {{ m = {table} }}\n'
        )


# Arithmetic

DECIMALS = st.decimals(0, 10**6, allow_nan=False, allow_infinity=False, places=9)
TOKENS = st.integers(0, 2**62)


@given(DECIMALS, DECIMALS, st.none() | DECIMALS, TOKENS, TOKENS, TOKENS)
def test_amounts_are_exact(prompt, completion, cached, into, out, hit):
    """As fractions give them, of any counts; the amount survives JSON."""
    price, hit = (
        Price(currency="USD", prompt=prompt, completion=completion, cached=cached),
        min(hit, into),
    )
    expected = (into - hit) * Fraction(prompt) + hit * Fraction(
        prompt if cached is None else cached
    )
    expected = (expected + out * Fraction(completion)) / 10**6
    cost = Cost(prompt_tokens=into, cached_tokens=hit, completion_tokens=out).at(price)
    assert cost.amount is not None and Fraction(cost.amount) == expected == Fraction(
        price.amount(into, out, hit)
    )
    assert msgspec.convert(msgspec.to_builtins(cost), Cost) == cost


def test_price_in_a_batch_is_the_factor_of_every_price():
    """Without one a batch costs what single requests do."""
    price = Price(
        currency="USD", prompt=Decimal("0.3"), completion=Decimal("1.1"), cached=Decimal("0.03")
    )
    half = msgspec.structs.replace(price, deferred=Decimal("0.5")).when_deferred
    assert price.when_deferred is price
    assert (half.prompt, half.cached, half.completion) == (
        Decimal("0.15"),
        Decimal("0.015"),
        Decimal("0.55"),
    )


def test_currencies_are_added_apart():
    """And never converted."""
    one, other = Money(Decimal("0.1"), "USD"), Money(Decimal("0.2"), "CNY", about=True)
    assert together([one, None, other, one]) == (Money(Decimal("0.2"), "USD"), other)
    assert money_text(together([one, other])) == "about 0.1000 USD + 0.2000 CNY"
    assert plain(Decimal(f"1{'0' * 30}.10")) == f"1{'0' * 30}.1"
    assert each([one], 3) == (Money(Decimal("0.033333333333"), "USD"),) and each([one], 0) == ()


@pytest.mark.parametrize(
    ("amount", "text"),
    [
        ("0", "0.00"),
        ("0.00001234567", "0.00001235"),
        ("0.5", "0.5000"),
        ("12.3456", "12.35"),
        ("123456.7", "123456.70"),
    ],
)
def test_small_amounts_keep_their_digits(amount, text):
    """A cost that is not nothing never looks like it."""
    assert rounded(Decimal(amount)) == text


def counts(*completions: Completion) -> RunUsage:
    made = RunUsage()
    for one in completions:
        made.add(one, sent=300)
    return made


def test_unreported_tokens_are_estimated_by_the_ratio_seen():
    """1001 tokens were for 600 bytes of prompts, and 15 for 24 bytes of completions, thoughts with
    them: each side has its own ratio."""
    reported = Completion("字" * 4, prompt_tokens=1000, completion_tokens=9, reasoning_tokens=3)
    shown_thoughts = Completion("字" * 2, "stop", 1, 6, reasoning="字" * 2, reasoning_tokens=2)
    cost = cost_of(counts(reported, shown_thoughts, Completion("字" * 2)), None)
    assert (cost.requests, cost.requests_without_usage) == (3, 1)
    assert (cost.estimated_prompt_tokens, cost.estimated_completion_tokens) == (501, 4)


def test_estimate_of_a_lying_endpoint_still_fits_a_file():
    """A count that no reply has, for one byte, and then none for a very long prompt."""
    usage = RunUsage()
    usage.add(Completion("a", "stop", 1, 2**40 - 1), sent=1)
    usage.add(Completion("a"), sent=2**39)
    cost = cost_of(usage, Price(currency="USD", prompt=Decimal(10**9), completion=Decimal(1)))
    assert msgspec.convert(orjson.loads(orjson.dumps(msgspec.to_builtins(cost))), Cost) == cost


def test_nothing_is_estimated_for_what_no_model_saw():
    """A prompt that the endpoint refused, and counts of one side alone."""
    refused, half = Completion("", "content_filter"), Completion("字", prompt_tokens=5)
    cost = cost_of(counts(refused, half), None)
    assert (cost.requests_without_usage, cost.prompt_tokens) == (1, 5)
    assert (cost.estimated_prompt_tokens, cost.estimated_completion_tokens) == (0, 1)


# Names with a date, and the table of litellm


def test_dated_name_has_the_price_of_its_model(tmp_path):
    """Where it has none of its own; another ending is another model."""
    openai, table = at("https://api.openai.com/v1", "openai"), prices.shipped()["openai"]
    for model in ("gpt-4o-2024-08-06", "gpt-4o-20240806"):
        assert prices.price_of(openai, model, providers.shipped()) == table["gpt-4o"]
    for model in ("gpt-4o-2024-13-06", "gpt-4o-0806", "gpt-4o-audio", "gpt-4o-2024-08-06-x"):
        assert prices.price_of(openai, model, providers.shipped()) is None
    book = read(
        tmp_path,
        f'[providers.mine]\nbase_url = "http://h:1/v1"\n[providers.mine.prices]\nm = {OWN}\n'
        f'"m-2026-01-02" = {OWN.replace("1,", "7,")}\n',
    )
    found = [
        prices.price_of(at("http://h:1/v1"), f"m{end}", book)
        for end in ("-2026-01-02", "-2026-01-03")
    ]
    assert [price and price.prompt for price in found] == [7, 1]


@pytest.fixture
def litellm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An installed litellm, which cannot be imported."""
    package, about = tmp_path / "litellm", tmp_path / "litellm-9.8.7.dist-info"
    for folder in (package, about):
        folder.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError\n")
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: litellm\nVersion: 9.8.7\n")
    chat = (
        '"input_cost_per_token": 3e-06, "output_cost_per_token": 1.2e-05, "litellm_provider":'
        ' "openai"'
    )
    batches = '"input_cost_per_token_batches": 1.5e-06, "output_cost_per_token_batches": 6e-06'
    deepseek = chat.replace('"openai"', '"deepseek"').replace("3e-06", "2.8e-07")
    (package / prices.LITELLM_FILE).write_text(
        f'{{"new-model": {{{chat}, {batches}, "cache_read_input_token_cost": 7.5e-07}}, '
        f'"gpt-4o-2024-05-13": {{{chat}}}, "deepseek/new-chat": {{{deepseek}}}, '
        '"embedding": {"input_cost_per_token": 1e-07, "litellm_provider": "openai"}}'
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    prices._litellm.cache_clear()
    yield package
    prices._litellm.cache_clear()


def test_table_of_litellm_is_the_last_source(litellm):
    """At a provider's own address, without an import; its source and version are recorded."""
    book = providers.shipped()
    openai, deepseek = at("https://api.openai.com/v1", "openai"), at("https://api.deepseek.com/v1")
    price = prices.price_of(openai, "new-model-2026-02-03", book)
    assert price and (price.prompt, price.completion, price.cached) == (3, 12, Decimal("0.75"))
    assert (
        price.deferred == Decimal("0.5")
        and price.currency == "USD"
        and "litellm 9.8.7" in price.source
    )
    exact = prices.price_of(openai, "gpt-4o-2024-05-13", book)
    assert exact and exact.prompt == 3  # of the whole name, before that of gpt-4o
    assert prices.price_of(openai, "gpt-4o", book) == prices.shipped()["openai"]["gpt-4o"]
    new = prices.price_of(deepseek, "new-chat", book)
    assert new and new.prompt == Decimal("0.28")
    for found, model in (
        (openai, "new-chat"),
        (openai, "embedding"),
        (at("https://relay.example/v1"), "new-model"),
    ):
        assert prices.price_of(found, model, book) is None


def test_broken_table_of_litellm_is_named(litellm):
    (litellm / prices.LITELLM_FILE).write_text("{")
    with pytest.raises(BadInput, match=prices.LITELLM_FILE):
        prices.price_of(at("https://api.openai.com/v1", "openai"), "new-model", providers.shipped())
