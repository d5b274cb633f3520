"""What models cost at their providers (docs/providers.md): without it, costs are tokens alone."""

from harness.feature import Feature

FEATURE = Feature(
    "prices",
    functions={
        "price_of": "harness.options.prices:price_of",
        "prices_again": "harness.options.prices:prices_again",
    },
)
