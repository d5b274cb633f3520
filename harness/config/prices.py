"""The price of a model: of the user's providers.toml, else of the shipped table, prices.toml in this folder.

A price belongs to a provider and a model by its exact name. One of the shipped table holds at that provider's own
address alone: a relay bills what it likes. docs/providers.md, "Prices", is the user's page.
"""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Mapping
from pathlib import Path

import msgspec

from harness.config import providers
from harness.config.address import Found, host_of
from harness.config.providers import Book, Provider
from harness.cost import Price

SHIPPED = Path(__file__).with_name("prices.toml")
Prices = Mapping[str, Price]


@functools.cache
def shipped() -> Mapping[str, Prices]:
    """Return the shipped prices by provider and model."""
    table = tomllib.loads(SHIPPED.read_text(encoding="utf-8"))
    return {
        name: {model: msgspec.convert({**common, **price}, Price) for model, price in common.pop("models").items()}
        for name, common in table.items()
    }


def price_of(found: Found | None, model: str, book: Book) -> Price | None:
    """Return the price of a model at an endpoint; None if it is not known, and for a baseline, which costs nothing."""
    if found is None:
        return None
    named = [found.provider] if found.provider else [one for one in book.providers.values() if _is_at(found, one)]
    own = [one.prices[model] for one in named if model in one.prices]
    table = [shipped().get(name, {}) for name, one in providers.shipped().providers.items() if _is_at(found, one)]
    return next(iter([*own, *(prices[model] for prices in table if model in prices)]), None)


def _is_at(found: Found, provider: Provider) -> bool:
    """Return whether all addresses are on servers that a providers file names for the provider."""
    return found.hosts <= {host_of(url) for url in provider.base_url}
