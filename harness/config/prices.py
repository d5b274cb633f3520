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
from harness.defaults import EMBEDDED
from harness.endpoint.address import Address
from harness.store.manifest import Manifest

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


def price_again(manifest: Manifest, book: Book) -> Price | None:
    """Return what a saved run's model costs today at its endpoint, None if that is not known."""
    if (endpoint := manifest.provenance["endpoint"]) == EMBEDDED:
        return None
    provider = book.providers.get(manifest.provenance.get("provider") or "")
    found = Found(tuple(map(Address, endpoint.split())), None, provider)
    return price_of(found, manifest.identity["model"], book)


def _is_at(found: Found, provider: Provider) -> bool:
    """Return whether all addresses are on servers that a providers file names for the provider."""
    return found.hosts <= {host_of(url) for url in provider.base_url}
