"""What a run's replies cost: the price of a model, the tokens of replies, and their product, exact to the last digit.

    usage = RunUsage()                            # harness/model.py; the store keeps that of every saved reply
    usage.add(completion, sent=len(body))
    cost = cost_of(usage, price)                  # price: `config/prices.py`, or None: tokens only
    cost.money                                    # Money(Decimal("0.01234"), "USD", about=False)

Amounts are `Decimal`: whole tokens times a price per million, divided by a power of ten, so nothing is rounded. A
currency is never converted. Tokens that an endpoint does not report are estimated from bytes by the run's own ratio;
such a cost is `about` right. Not in it: tries that failed, and replies that were never saved, though some are billed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from datetime import date
from decimal import Context, Decimal, Inexact, localcontext
from typing import Annotated, NamedTuple

from msgspec import Meta, Struct, structs

from harness.model import Money, RunUsage

EXACT = Context(prec=100, traps=[Inexact])
"""More digits than any amount has; a rounded one would be an error."""
MOST = Decimal(10) ** 9
"""Of a currency, for a million tokens."""
DIGITS = 12
"""Decimal places of a price, and of the cost of one user."""
LONGEST = 40
"""Digits of an amount before or after its point."""
BYTES_PER_TOKEN = 3
"""Where a run has no ratio of its own: Chinese text takes about three bytes a character and a token."""
SIGNIFICANT = 4
"""Digits of an amount that people read."""

TOKENS = "tokens"
CAP = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,12})?) ?([kMG]?tok(?:ens)?|[A-Za-z]{3})( each)?")
SIZES = {"k": 10**3, "M": 10**6, "G": 10**9}
LARGEST = (1 << 63) - 1

Count = Annotated[int, Meta(ge=0, le=LARGEST)]
Code = Annotated[str, Meta(pattern=r"^[A-Z]{3}\Z")]


class Price(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """What a provider bills for a million tokens of a model, in its own `currency` (ISO 4217).

    `cached` is for prompt tokens from its cache, None if they cost as much as others; `completion` includes thoughts.
    `batch` is the factor of all three in its batch API, None if it has none. `date` is the day on which the page
    `source` had these prices, and `note` the condition under which they hold.
    """

    currency: Code
    prompt: Decimal
    completion: Decimal
    cached: Decimal | None = None
    batch: Decimal | None = None
    date: date | None = None
    source: str = ""
    note: str = ""

    def __post_init__(self) -> None:
        for number in filter(None, (self.prompt, self.completion, self.cached, self.batch)):
            if not (number.is_finite() and 0 <= number <= MOST and round(number, DIGITS) == number):
                raise ValueError(f"expected prices from 0 with at most {DIGITS} decimal places")

    @property
    def in_batch(self) -> Price | None:
        """Return the price in the provider's batch API, None if it has none."""
        if (factor := self.batch) is None:
            return None
        with localcontext(EXACT):
            cached = None if self.cached is None else self.cached * factor
            return structs.replace(
                self, prompt=self.prompt * factor, completion=self.completion * factor, cached=cached, batch=None
            )

    def of(self, prompt: int, completion: int, cached: int = 0) -> Decimal:
        """Return what so many tokens cost; the `cached` ones are among those of the prompt."""
        with localcontext(EXACT):
            of_cached = self.prompt if self.cached is None else self.cached
            million = (prompt - cached) * self.prompt + cached * of_cached + completion * self.completion
            return million.scaleb(-6).normalize() + 0

    @property
    def described(self) -> str:
        """Return the price in words: `0.3 USD for a million prompt tokens (cached 0.006), ...`."""
        cached = "" if self.cached is None else f" (cached {plain(self.cached)})"
        of = f"{plain(self.prompt)} {self.currency} for a million prompt tokens{cached}, {plain(self.completion)} for "
        about = ", ".join(filter(None, (str(self.date or ""), self.source, self.note)))
        return f"{of}completion tokens{about and f' ({about})'}"


class Cost(Struct, frozen=True, kw_only=True):
    """The tokens of a run's saved replies, and what they cost at its price; without one `amount` is None.

    Counts are the endpoint's own; those that it did not report are `estimated_*`, of `requests_without_usage`. Costs of
    one run's subsets or parts are those of their counts together.
    """

    requests: Count = 0
    prompt_tokens: Count = 0
    cached_tokens: Count = 0
    completion_tokens: Count = 0
    reasoning_tokens: Count = 0
    requests_without_usage: Count = 0
    estimated_prompt_tokens: Count = 0
    estimated_completion_tokens: Count = 0
    amount: Decimal | None = None
    price: Price | None = None

    def __post_init__(self) -> None:
        if self.cached_tokens > self.prompt_tokens:
            raise ValueError("more cached tokens than tokens of prompts")
        if self.amount is not None and not (self.amount.is_finite() and abs(self.amount.adjusted()) < LONGEST):
            raise ValueError("an amount of money that no run costs")

    def at(self, price: Price | None) -> Cost:
        """Return the cost at another price."""
        return structs.replace(self, price=price, amount=price.of(*self.tokens, self.cached_tokens) if price else None)

    @property
    def tokens(self) -> tuple[int, int]:
        """Return tokens of prompts and of completions, with the estimated ones."""
        return (
            self.prompt_tokens + self.estimated_prompt_tokens,
            self.completion_tokens + self.estimated_completion_tokens,
        )

    @property
    def money(self) -> Money | None:
        """Return the amount with its currency, None without a price."""
        if self.amount is None or self.price is None:
            return None
        return Money(self.amount, self.price.currency, self.requests_without_usage > 0)


class Cap(NamedTuple):
    """A budget: a positive amount of `unit`, a currency's code or `TOKENS`; `each` run has one of its own, or all of a
    command share it."""

    amount: Decimal
    unit: str
    each: bool = False

    @classmethod
    def parse(cls, text: str) -> Cap:
        """Read `5usd`, `30 CNY`, `2Mtok`, or `5 USD each`. Raise `ValueError` for anything else, and for nothing."""
        if (found := CAP.fullmatch(text.strip())) is None or not (amount := Decimal(found[1])):
            raise ValueError("expected an amount above 0 with a currency or tokens, such as 5usd, 30cny or 2Mtok")
        unit = found[2]
        if len(unit) == 3 and unit != "tok":
            return cls(amount, unit.upper(), bool(found[3]))
        return cls(amount * SIZES.get(unit[0], 1), TOKENS, bool(found[3]))

    def __str__(self) -> str:
        return f"{plain(self.amount)} {self.unit}{' each' if self.each else ''}"

    def shown(self, amount: Decimal) -> str:
        """Return an amount in this unit, for people."""
        return f"{amount:.0f} {TOKENS}" if self.unit == TOKENS else f"{rounded(amount)} {self.unit}"


def cost_of(usage: RunUsage, price: Price | None) -> Cost:
    """Return what replies cost, with estimates for the tokens that the endpoint did not report."""
    return Cost(
        requests=usage.requests,
        prompt_tokens=usage.prompt_tokens,
        cached_tokens=usage.cached_tokens,
        completion_tokens=usage.completion_tokens,
        reasoning_tokens=usage.reasoning_tokens,
        requests_without_usage=usage.requests_without_usage,
        estimated_prompt_tokens=_estimated(usage.unknown_prompt, usage),
        estimated_completion_tokens=_estimated(usage.unknown_completion, usage),
    ).at(price)


def _estimated(size: int, usage: RunUsage) -> int:
    """Return the tokens of so many bytes by the ratio seen, rounded up, and at most what a file can hold."""
    tokens, seen = (usage.seen_tokens, usage.seen_bytes) if usage.seen_tokens else (1, BYTES_PER_TOKEN)
    return min(-(-size * tokens // seen), LARGEST)


def together(amounts: Iterable[Money | None]) -> tuple[Money, ...]:
    """Return the sum of the known amounts in each currency, in the order of their first occurrence."""
    sums: dict[str, Money] = {}
    with localcontext(EXACT):
        for one in filter(None, amounts):
            before = sums.get(one.currency, Money(Decimal(0), one.currency))
            sums[one.currency] = Money(before.amount + one.amount, one.currency, before.about or one.about)
    return tuple(sums.values())


def each(amounts: Iterable[Money], users: int) -> tuple[Money, ...]:
    """Return the amounts for one of so many users, rounded to `DIGITS` decimal places; nothing without users."""
    with localcontext(prec=EXACT.prec):
        return tuple(one._replace(amount=round(one.amount / users, DIGITS)) for one in amounts) if users else ()


def shown(amounts: Sequence[Money]) -> str:
    """Return amounts for people, joined by a plus, such as `about 0.01234 USD + 3.200 CNY`; empty for none."""
    words = " + ".join(f"{rounded(one.amount)} {one.currency}" for one in amounts)
    return f"about {words}" if any(one.about for one in amounts) else words


def rounded(amount: Decimal) -> str:
    """Return an amount with two decimal places, or as many more as its first significant digits need."""
    places = max(2, SIGNIFICANT - 1 - amount.adjusted()) if amount else 2
    return f"{amount:.{places}f}"


def plain(amount: Decimal) -> str:
    """Return an exact amount without an exponent."""
    return f"{EXACT.normalize(amount):f}"
