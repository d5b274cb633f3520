"""What models cost at their providers (docs/providers.md): without it, costs are tokens alone."""

from harness.feature import Feature

FEATURE = Feature(
    "prices",
    functions={
        "price_of": "harness.features.prices.prices:price_of",
        "prices_again": "harness.features.prices.prices:prices_again",
    },
)
