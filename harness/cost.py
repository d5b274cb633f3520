"""What a run's replies cost: the price of a model, the tokens of replies, and their product, exact
to the last digit.

    bill = Bill()                                 # the store keeps that of every saved reply
    bill.at(Rate()).add(completion, sent=len(body))
    cost = bill.cost([price], most=None)          # price: None if it is not known: tokens only
    cost.money                                    # Money(Decimal("0.01234"), "USD", about=False)

Amounts are `Decimal`: whole tokens times a price per million, divided by a power of ten, so nothing
is rounded. A currency is never converted. Each reply costs what was in force when its request was
sent: a `Rate`. Tokens that an endpoint does not report are estimated from bytes by the run's own
ratios; such a cost is `about` right. It has bounds where that is so, and where requests without a
reply may have been billed: at least what the endpoint reported, and at most a token a byte for a
prompt, and for a completion what `ceiling` returns.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from datetime import date
from decimal import Context, Decimal, Inexact, InvalidOperation, localcontext
from typing import Annotated, NamedTuple

from msgspec import UNSET, Meta, Struct, UnsetType, field, structs

from harness.model import JSON, Money, RunUsage

EXACT = Context(prec=100, traps=[Inexact])
"""More digits than any amount has; a rounded one would be an error."""
MAX_PRICE = Decimal(10) ** 9
"""Of a currency, for a million tokens."""
DIGITS = 12
"""Decimal places of a price, and of the cost of one user."""
LONGEST = 40
"""Digits of an amount before or after its point."""
BYTES_PER_TOKEN = 3
"""Where a run has no ratio of its own: Chinese text takes about three bytes a character and a
token."""
SIGNIFICANT = 4
"""Digits of an amount that people read."""
DEFERRED = "batch"
"""In files: the factor of the price of requests that may be answered within a day, and the mark of
lines on such."""
PRICE_OPTION = "--price"
"""The source of a price that the command names."""
SAFE_COMPLETION = 8192
"""Tokens that a completion takes at most where neither its request nor a longer one shows more."""

HOW_TO_PRICE = "--price PROMPT/COMPLETION for a million tokens each, such as 0.15/0.6 or CNY:2/8"
LARGEST = (1 << 63) - 1

Count = Annotated[int, Meta(ge=0, le=LARGEST)]
CODE = re.compile("[A-Z]{3}")
"""A currency, as ISO 4217 writes it."""


class Price(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """What a provider bills for a million tokens of a model, in its own `currency` (ISO 4217).

    `cached` is for prompt tokens from its cache, None if they cost as much as others; `completion`
    includes thoughts. `deferred` is the factor of all three for requests that it may answer within
    a day, None if it has none. `date` is the day on which the page `source` had these prices, and
    `note` the condition under which they hold.
    """

    currency: str
    prompt: Decimal
    completion: Decimal
    cached: Decimal | None = None
    deferred: Decimal | None = field(default=None, name=DEFERRED)
    date: date | None = None
    source: str = ""
    note: str = ""

    def __post_init__(self) -> None:
        if not CODE.fullmatch(self.currency):
            raise ValueError("expected a currency of three capital letters, such as USD or CNY")
        for number in filter(None, (self.prompt, self.completion, self.cached, self.deferred)):
            is_in_range = number.is_finite() and 0 <= number <= MAX_PRICE
            if not is_in_range or round(number, DIGITS) != number:
                raise ValueError(f"expected prices from 0 with at most {DIGITS} decimal places")

    @property
    def when_deferred(self) -> Price:
        """Return the price of requests that may be answered within a day: the usual one where no
        other is known."""
        if (factor := self.deferred) is None:
            return self
        with localcontext(EXACT):
            cached = None if self.cached is None else self.cached * factor
            return structs.replace(
                self,
                prompt=self.prompt * factor,
                completion=self.completion * factor,
                cached=cached,
                deferred=None,
            )

    def amount(self, prompt: int, completion: int, cached: int = 0) -> Decimal:
        """Return what so many tokens cost; the `cached` ones are among those of the prompt."""
        with localcontext(EXACT):
            of_cached = self.prompt if self.cached is None else self.cached
            million = (
                (prompt - cached) * self.prompt + cached * of_cached + completion * self.completion
            )
            return million.scaleb(-6).normalize() + 0

    @property
    def described(self) -> str:
        """Return the price in words: `0.3 USD for a million prompt tokens (cached 0.006), ...`."""
        cached = "" if self.cached is None else f" (cached {plain(self.cached)})"
        of = (
            f"{plain(self.prompt)} {self.currency} for a million prompt tokens{cached},"
            f" {plain(self.completion)} for "
        )
        about = ", ".join(filter(None, (str(self.date or ""), self.source, self.note)))
        return f"{of}completion tokens{about and f' ({about})'}"


def price_in(text: str) -> Price:
    """Return the price in `[CURRENCY:]PROMPT/COMPLETION`, in USD without a currency. Raise
    `ValueError`."""
    currency, _, amounts = text.rpartition(":")
    prompt, _, completion = amounts.partition("/")
    try:
        return Price(
            currency=currency or "USD",
            prompt=Decimal(prompt),
            completion=Decimal(completion),
            source=PRICE_OPTION,
        )
    except (InvalidOperation, ValueError):
        raise ValueError(
            "expected PROMPT/COMPLETION for a million tokens each, such as 0.15/0.6 or CNY:2/8"
        ) from None


class Rate(NamedTuple):
    """Which price a request has: the place of one among those that were in force in its run, and
    deferred or not."""

    price: int = 0
    deferred: bool = False

    @property
    def data(self) -> JSON:
        """Return the members of a line that state it; the usual one has none."""
        return {
            **({"price": self.price} if self.price else {}),
            **({DEFERRED: True} if self.deferred else {}),
        }

    @classmethod
    def of_line(cls, line: JSON) -> Rate:
        """Return the rate of a line; what is no place of a price is the first."""
        place = line.get("price")
        return cls(place if type(place) is int and place >= 0 else 0, line.get(DEFERRED) is True)

    def among(self, prices: Sequence[Price | None]) -> Price | None:
        """Return the price; of a place that there is none at, the last one."""
        price = prices[min(self.price, len(prices) - 1)]
        return price.when_deferred if price and self.deferred else price


class Reserved(NamedTuple):
    """What was reserved on a `day` for requests, in a `unit`."""

    amount: Decimal
    unit: str
    day: str


class Pending(NamedTuple):
    """Requests that a provider may still answer: their number, bytes and rate, and what was
    reserved for them."""

    requests: int
    sent: int
    rate: Rate
    reserved: Reserved | None = None


class Cost(Struct, frozen=True, kw_only=True):
    """The tokens of a run's saved replies, and what they cost; without a price `amount` is None.

    Counts are the endpoint's own; those that it did not report are `estimated_*`, of
    `requests_without_usage`. Where there are such, or `requests_without_reply` that may have been
    billed, or `requests_with_unclear_usage`, which contradicts itself, `most_*` are the tokens that
    may have been billed in all (or cached, of those reported), and `low` and `high` the bounds of
    the amount. With more than one price `price` is the last one, and `shares` are the costs at
    each. Costs of one run's subsets or parts are those of their counts together.
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
    requests_without_reply: Count | UnsetType = UNSET
    most_prompt_tokens: Count | UnsetType = UNSET
    most_completion_tokens: Count | UnsetType = UNSET
    low: Decimal | UnsetType = UNSET
    high: Decimal | UnsetType = UNSET
    shares: tuple[Cost, ...] | UnsetType = UNSET
    requests_with_unclear_usage: Count | UnsetType = UNSET
    most_cached_tokens: Count | UnsetType = UNSET

    def __post_init__(self) -> None:
        if self.cached_tokens > self.prompt_tokens:
            raise ValueError("more cached tokens than tokens of prompts")
        for amount in (self.amount, self.low, self.high):
            if isinstance(amount, Decimal) and not (
                amount.is_finite() and abs(amount.adjusted()) < LONGEST
            ):
                raise ValueError("an amount of money that no run costs")

    def at(self, price: Price | None) -> Cost:
        """Return the cost of all at one price."""
        low: Decimal | UnsetType = UNSET
        high: Decimal | UnsetType = UNSET
        if price and not isinstance(self.most_prompt_tokens, UnsetType):
            fewest, most = self.bounds
            low = price.amount(*fewest, self.most_cached_tokens or self.cached_tokens)
            high = price.amount(*most, self.cached_tokens)
        return structs.replace(
            self,
            price=price,
            amount=price.amount(*self.tokens, self.cached_tokens) if price else None,
            low=low,
            high=high,
            shares=UNSET,
        )

    @property
    def tokens(self) -> tuple[int, int]:
        """Return tokens of prompts and of completions, with the estimated ones."""
        return (
            self.prompt_tokens + self.estimated_prompt_tokens,
            self.completion_tokens + self.estimated_completion_tokens,
        )

    @property
    def bounds(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """Return the fewest and the most tokens that may have been billed, of prompts and of
        completions."""
        into, out = self.tokens
        most = self.most_prompt_tokens or into, self.most_completion_tokens or out
        return (self.prompt_tokens, self.completion_tokens), (max(into, most[0]), max(out, most[1]))

    @property
    def money(self) -> Money | None:
        """Return the amount with its currency and bounds, None without a price."""
        if self.amount is None or self.price is None:
            return None
        low, high = (of if isinstance(of, Decimal) else None for of in (self.low, self.high))
        return Money(self.amount, self.price.currency, self.requests_without_usage > 0, low, high)

    @property
    def prices(self) -> tuple[Price, ...]:
        """Return the prices of the replies."""
        found = (
            [self.price]
            if isinstance(self.shares, UnsetType)
            else [share.price for share in self.shares]
        )
        return tuple(dict.fromkeys(filter(None, found)))


class Bill:
    """What a run's requests have used at each rate; an accumulator."""

    def __init__(self) -> None:
        self._usages: defaultdict[Rate, RunUsage] = defaultdict(RunUsage)

    def at(self, rate: Rate) -> RunUsage:
        """Return what counts the requests at a rate."""
        return self._usages[rate]

    def lose(self, rate: Rate, requests: int, sent: int) -> None:
        """Add requests of so many bytes that may have been billed, without a reply."""
        usage = self.at(rate)
        usage.lost += requests
        usage.lost_bytes += sent

    def copy(self, pending: Iterable[Pending] = ()) -> Bill:
        """Return a bill of the same counts, and of requests that a provider may still answer."""
        made = Bill()
        for rate, usage in self._usages.items():
            made.at(rate).merge(usage)
        for one in pending:
            made.lose(one.rate, one.requests, one.sent)
        return made

    @property
    def total(self) -> RunUsage:
        """Return what all requests have used."""
        made = RunUsage()
        for usage in self._usages.values():
            made.merge(usage)
        return made

    def cost(self, prices: Sequence[Price | None], most: int | None) -> Cost:
        """Return what all cost at the prices of their rates; `most` as for `ceiling`.

        What is not reported is estimated by the ratios of all.
        """
        total = self.total
        by_price: dict[Price | None, list[Cost]] = {}
        for rate, usage in sorted(self._usages.items()):
            if usage.requests or usage.lost:
                price = rate.among(prices)
                by_price.setdefault(price, []).append(cost_of(usage, price, most, total))
        if not by_price:
            return Cost().at(Rate().among(prices))
        shares = tuple(_sum(costs).at(price) for price, costs in by_price.items())
        return shares[0] if len(shares) == 1 else _of_shares(shares)

    def at_places(self, places: Collection[int]) -> Bill:
        """Return the part of the bill at the prices of some places."""
        part = Bill()
        for rate, usage in self._usages.items():
            if rate.price in places:
                part.at(rate).merge(usage)
        return part

    def forgive(self) -> None:
        """Forget the requests without a reply."""
        for usage in self._usages.values():
            usage.lost = usage.lost_bytes = 0

    @property
    def has_requests(self) -> bool:
        """Return whether any request may have been billed."""
        return any(usage.requests or usage.lost for usage in self._usages.values())

    @property
    def has_deferred(self) -> bool:
        """Return whether any request is known to have been deferred."""
        return any(rate.deferred for rate in self._usages)


def _sum(costs: Sequence[Cost]) -> Cost:
    """Return the counts of costs together, without a price."""
    counts: JSON = {name: sum(getattr(one, name) for one in costs) for name in COUNTS}
    if any(not isinstance(one.most_prompt_tokens, UnsetType) for one in costs):
        most = [one.bounds[1] for one in costs]
        counts |= {
            "most_prompt_tokens": sum(of[0] for of in most),
            "most_completion_tokens": sum(of[1] for of in most),
        }
    if any(one.most_cached_tokens for one in costs):
        counts["most_cached_tokens"] = sum(
            one.most_cached_tokens or one.cached_tokens for one in costs
        )
    for name in ("requests_without_reply", "requests_with_unclear_usage"):
        counts[name] = sum(getattr(one, name) or 0 for one in costs) or UNSET
    return Cost(**counts)


def _of_shares(shares: tuple[Cost, ...]) -> Cost:
    """Return costs at several prices together; the amount is unknown where one of them is, and
    where they are in two currencies."""
    made, amounts = _sum(shares), [share.money for share in shares]
    sums = together(amounts)
    if None in amounts or len(sums) > 1:
        return structs.replace(made, shares=shares)
    [whole] = sums
    low, high = (UNSET if of is None else of for of in (whole.low, whole.high))
    return structs.replace(
        made, price=shares[-1].price, amount=whole.amount, low=low, high=high, shares=shares
    )


REPORTED = (
    *(
        "requests",
        "prompt_tokens",
        "cached_tokens",
        "completion_tokens",
        "reasoning_tokens",
        "requests_without_usage",
    ),
)
COUNTS = (*REPORTED, "estimated_prompt_tokens", "estimated_completion_tokens")


def cost_of(
    usage: RunUsage, price: Price | None, most: int | None = None, seen: RunUsage | None = None
) -> Cost:
    """Return what requests cost at one price, with estimates for the tokens that the endpoint did
    not report.

    `most` is as for `ceiling`; `seen` is the usage whose ratios and longest completion count, by
    default the same.
    """
    seen = seen or usage
    made = Cost(
        **{name: getattr(usage, name) for name in REPORTED},
        estimated_prompt_tokens=_estimated(
            usage.unknown_prompt, seen.seen_prompt_tokens, seen.sent
        ),
        estimated_completion_tokens=_estimated(
            usage.unknown_completion, seen.seen_tokens, seen.seen_bytes
        ),
    )
    if usage.lost or usage.requests_without_usage or usage.unclear:
        into = usage.unknown_prompt + usage.lost_bytes + usage.unclear_prompt
        out = (usage.unknown_completions + usage.lost) * ceiling(most, seen.longest)
        out += usage.unknown_completion if most is None else 0
        if price and price.prompt > price.completion:
            into += usage.unclear_either
        else:
            out += usage.unclear_either
        made = structs.replace(
            made,
            requests_without_reply=usage.lost or UNSET,
            requests_with_unclear_usage=usage.unclear or UNSET,
            most_prompt_tokens=min(made.prompt_tokens + into, LARGEST),
            most_completion_tokens=min(made.completion_tokens + out, LARGEST),
            most_cached_tokens=(
                made.cached_tokens + usage.unclear_cached if usage.unclear_cached else UNSET
            ),
        )
    return made.at(price)


def ceiling(most: int | None, longest: int = 0) -> int:
    """Return the tokens that a completion of unknown length takes at most, besides a token for each
    byte of its text: the `most` that requests allow, else 8,192 or the `longest` so far."""
    return max(SAFE_COMPLETION, longest) if most is None else most


def _estimated(size: int, tokens: int, seen: int) -> int:
    """Return the tokens of so many bytes by the ratio of tokens to bytes seen, rounded up, and at
    most what a file can hold."""
    tokens, seen = (tokens, seen) if tokens and seen else (1, BYTES_PER_TOKEN)
    return min(-(-size * tokens // seen), LARGEST)


def together(amounts: Iterable[Money | None]) -> tuple[Money, ...]:
    """Return the sum of the known amounts in each currency, in the order of their first
    occurrence."""
    sums: dict[str, Money] = {}
    with localcontext(EXACT):
        for one in filter(None, amounts):
            before = sums.get(one.currency, Money(Decimal(0), one.currency))
            bounds: tuple[Decimal | None, Decimal | None] = (None, None)
            if one.high is not None or before.high is not None:
                bounds = before.least + one.least, before.most + one.most
            sums[one.currency] = Money(
                before.amount + one.amount, one.currency, before.about or one.about, *bounds
            )
    return tuple(sums.values())


def each(amounts: Iterable[Money], users: int) -> tuple[Money, ...]:
    """Return the amounts for one of so many users, rounded to `DIGITS` decimal places; nothing
    without users."""
    with localcontext(prec=EXACT.prec):
        return tuple(_divided(one, users) for one in amounts) if users else ()


def _divided(one: Money, users: int) -> Money:
    low, high = (of if of is None else round(of / users, DIGITS) for of in (one.low, one.high))
    return one._replace(amount=round(one.amount / users, DIGITS), low=low, high=high)


def money_text(amounts: Sequence[Money]) -> str:
    """Return amounts for people, joined by a plus, such as `about 1.640 USD (0.5000 to 4.270) +
    3.200 CNY`, or `0.7700 to 1.130 USD` where nothing is estimated; empty for none."""
    words = " + ".join(map(_money_text, amounts))
    return f"about {words}" if any(one.about for one in amounts) else words


def _money_text(one: Money) -> str:
    bounds = f"{rounded(one.least)} to {rounded(one.most)}"
    if one.high is None:
        return f"{rounded(one.amount)} {one.currency}"
    return (
        f"{rounded(one.amount)} {one.currency} ({bounds})"
        if one.about
        else f"{bounds} {one.currency}"
    )


def rounded(amount: Decimal) -> str:
    """Return an amount with two decimal places, or as many more as its first significant digits
    need."""
    places = max(2, SIGNIFICANT - 1 - amount.adjusted()) if amount else 2
    return f"{amount:.{places}f}"


def plain(amount: Decimal) -> str:
    """Return an exact amount without an exponent."""
    return f"{EXACT.normalize(amount):f}"
