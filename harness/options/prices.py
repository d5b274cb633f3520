"""The price of a model: of the user's providers.toml, else of the shipped table, prices.toml in
this folder, else of the package genai-prices or of the table inside the package litellm, if these
are installed.

A price belongs to a provider and a model by its exact name, or to the name before a date:
`gpt-4o-2024-08-06` has the price of `gpt-4o` where it has none of its own. One of the two tables
holds at that provider's own address alone: a relay bills what it likes. docs/features/prices.md
is the user's page.
"""

from __future__ import annotations

import functools
import json
import os
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

import msgspec

from harness.client.address import Address
from harness.cost import DIGITS, Price
from harness.defaults import EMBEDDED
from harness.errors import BadInput
from harness.model import JSON
from harness.options import providers
from harness.options.address import ResolvedEndpoint, hosts_in
from harness.options.providers import Book, Provider
from harness.store.manifest import Manifest, Priced

SHIPPED = Path(__file__).with_name("prices.toml")
DATE = re.compile(r"-(20[0-9]{2}-?(0[1-9]|1[0-2])-?(0[1-9]|[12][0-9]|3[01]))\Z")
"""The end of a model's name that is a version of the model, and not another model."""
LITELLM_FILE = "model_prices_and_context_window_backup.json"
IN_LITELLM = {
    "openai": "openai",
    "anthropic": "anthropic",
    "deepseek": "deepseek",
    "moonshot-intl": "moonshot",
    "openrouter": "openrouter",
    "dashscope-intl": "dashscope",
}
"""Providers that bill USD at their own address, and what litellm calls them."""
IN_GENAI = {
    "openai": "openai",
    "anthropic": "anthropic",
    "deepseek": "deepseek",
    "moonshot-intl": "moonshotai",
    "openrouter": "openrouter",
}
"""The same for the package genai-prices."""
Prices = Mapping[str, Price]


@functools.cache
def shipped() -> Mapping[str, Prices]:
    """Return the shipped prices by provider and model."""
    table = tomllib.loads(SHIPPED.read_text(encoding="utf-8"))
    return {
        name: {
            model: msgspec.convert({**common, **price}, Price)
            for model, price in common.pop("models").items()
        }
        for name, common in table.items()
    }


def price_of(endpoint: ResolvedEndpoint, model: str, book: Book) -> Price | None:
    """Return the price of a model at an endpoint, None if it is not known."""
    return next(_prices(endpoint, model, book), None)


def _prices(endpoint: ResolvedEndpoint, model: str, book: Book) -> Iterator[Price]:
    """Yield the prices of a model, the one that counts first: the user's own, then those of its
    whole name."""
    # A model's own entry counts before that of its name without the date.
    names = list(dict.fromkeys((model, DATE.sub("", model))))
    user_providers = _providers_at(endpoint, book.providers)
    # A provider that is named counts alone: another entry with its address may be another account.
    if endpoint.provider:
        user_providers = []
        if _is_at_own(endpoint, endpoint.provider):
            user_providers.append(endpoint.provider)
    for name in names:
        for provider in user_providers:
            if name in provider.prices:
                yield provider.prices[name]

    shipped_providers = _providers_at(endpoint, providers.shipped().providers)
    tables = [provider.name for provider in shipped_providers]
    for name in names:
        for table in tables:
            shipped_prices = shipped().get(table, {})
            if name in shipped_prices:
                yield shipped_prices[name]
        yield from _package_prices(tables, name)


def _providers_at(endpoint: ResolvedEndpoint, known: Mapping[str, Provider]) -> list[Provider]:
    """Return the providers that have all servers of an endpoint."""
    return [
        provider for provider in known.values() if endpoint.hosts <= hosts_in(provider.base_url)
    ]


def _package_prices(tables: Sequence[str], model: str) -> Iterator[Price]:
    """Yield the prices of a model in packages, genai-prices first."""
    for price_in, names_of_providers in ((genai_price, IN_GENAI), (litellm_price, IN_LITELLM)):
        for table in tables:
            if table in names_of_providers:
                price = price_in(names_of_providers[table], model)
                if price:
                    yield price


@functools.cache
def _litellm() -> tuple[str, Mapping[str, Any]]:
    """Return where the prices of an installed litellm are from, and its table; an empty one if it
    is not installed."""
    try:
        installed = distribution("litellm")
    except PackageNotFoundError:
        return "", {}
    path = Path(str(installed.locate_file(f"litellm/{LITELLM_FILE}")))
    try:
        # Prices are sums of decimal fractions: a float would add digits that nobody bills.
        table = json.loads(path.read_text(encoding="utf-8"), parse_float=Decimal)
    except (OSError, ValueError) as error:
        raise BadInput(
            f"{path}: litellm is installed, and its prices cannot be read ({error}): reinstall it"
        ) from None
    return f"litellm {installed.version}, {LITELLM_FILE}", table if isinstance(table, dict) else {}


def litellm_price(provider: str, model: str) -> Price | None:
    """Return the price that litellm's table has of a provider's chat model, None if it has none."""
    source, table = _litellm()
    # litellm lists a model by its own name, or with the provider in front.
    entry = table.get(model, table.get(f"{provider}/{model}"))
    # Resellers list the same models at prices of their own.
    if not isinstance(entry, dict) or entry.get("litellm_provider") != provider:
        return None
    prompt = _per_million(entry, "input_cost_per_token")
    completion = _per_million(entry, "output_cost_per_token")
    if prompt is None or completion is None:
        return None
    # A price here has no tiers: it is that of short prompts, and its note says so.
    tiers = [
        name for name in entry if name.startswith("input_cost_per_token") and "_above_" in name
    ]
    note = ""
    if tiers:
        note = f"prompts up to {min(tiers).partition('_above_')[2].partition('_')[0]} tokens"
    return Price(
        currency="USD",
        prompt=prompt,
        completion=completion,
        cached=_per_million(entry, "cache_read_input_token_cost"),
        deferred=_deferred_factor(entry, prompt, completion),
        source=source,
        note=note,
    )


def _deferred_factor(entry: JSON, prompt: Decimal, completion: Decimal) -> Decimal | None:
    """Return the factor of litellm's prices for deferred requests, None if prompts and completions
    have no factor in common."""
    deferred_prompt = _per_million(entry, "input_cost_per_token_batches")
    deferred_completion = _per_million(entry, "output_cost_per_token_batches")
    # A model that is free has no factor, and would divide by zero.
    if not prompt or deferred_prompt is None:
        return None
    factor = deferred_prompt / prompt
    # One factor is all that a price here has, so a discount on one side alone cannot be said.
    if round(factor, DIGITS) != factor or deferred_completion != factor * completion:
        return None
    return factor


def genai_price(provider: str, model: str) -> Price | None:
    """Return the price that the package genai-prices has of a provider's model, None without it.

    A price that depends on the time of day is none: a run has one price.
    """
    try:
        from genai_prices import __version__, data_snapshot
    except ImportError:
        return None
    try:
        _, info = data_snapshot.get_snapshot().find_provider_model(model, None, provider, None)
    except LookupError:
        return None
    price = info.prices
    # The package also finds models whose names merely begin alike.
    if info.id != model or isinstance(price, list):
        return None
    prompt, completion, cached = map(
        _lowest_tier, (price.input_mtok, price.output_mtok, price.cache_read_mtok)
    )
    if prompt is None or completion is None:
        return None
    has_tiers = not isinstance(price.input_mtok, Decimal)
    return Price(
        currency="USD",
        prompt=prompt,
        completion=completion,
        cached=cached,
        source=f"genai-prices {__version__}",
        note="the price of short prompts" if has_tiers else "",
    )


def _lowest_tier(price: Any) -> Decimal | None:
    """Return a price of genai-prices, of a price in tiers that of the shortest prompts."""
    lowest: Decimal | None = getattr(price, "base", price)
    return lowest


def _per_million(entry: JSON, name: str) -> Decimal | None:
    """Return a price of litellm's table for a million tokens, None if it has none that a price can
    be."""
    number = entry.get(name)
    if not isinstance(number, (int, Decimal)):
        return None
    amount = Decimal(number).scaleb(6)
    if not amount.is_finite() or amount < 0 or round(amount, DIGITS) != amount:
        return None
    # `normalize` alone makes 1E+1 of 10.
    return amount.normalize() + 0


def prices_again(manifest: Manifest, providers_file: Path | None) -> list[Price | None]:
    """Return what a saved run's model costs today where each of its prices holds, None where that
    is not known."""
    if manifest.provenance["endpoint"] == EMBEDDED:
        return []
    book = providers.read(providers_file, os.environ)
    return [_price_again(manifest, priced, book) for priced in manifest.priced]


def _price_again(manifest: Manifest, priced: Priced, book: Book) -> Price | None:
    provenances: list[Mapping[str, Any]] = [manifest.provenance]
    provenances += manifest.provenance.get("roles", {}).values()
    name = ""
    for provenance in provenances:
        if provenance["endpoint"] == priced.endpoint:
            name = name or provenance.get("provider") or ""
    addresses = tuple(map(Address, priced.endpoint.split()))
    endpoint = ResolvedEndpoint(addresses, None, book.providers.get(name))
    return price_of(endpoint, priced.model or manifest.identity["model"], book)


def _is_at_own(endpoint: ResolvedEndpoint, provider: Provider) -> bool:
    """Return whether all addresses are on servers that the providers file, or a variable, names for
    the provider. One that has no address of its own is wherever the user says."""
    if not provider.base_url:
        return True
    provider_urls = (*provider.base_url, *providers.addresses(provider, os.environ))
    return endpoint.hosts <= hosts_in(provider_urls)
