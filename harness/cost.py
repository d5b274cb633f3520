"""What a run's replies cost: the price of a model, the tokens of replies, and their product, exact
to the last digit.

    bill = Bill()                                 # the store keeps that of every saved reply
    bill.at(Rate()).add(completion, sent=len(body))
    cost = bill.cost([price], None)               # price: None if it is not known: tokens only
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

# `Inexact` raises instead of rounding: an amount that is not exact is a mistake.
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
# The largest number of 64 bits with a sign, which any reader of the files can hold.
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
        factor = self.deferred
        if factor is None:
            return self
        with localcontext(EXACT):
            return structs.replace(
                self,
                prompt=self.prompt * factor,
                completion=self.completion * factor,
                cached=None if self.cached is None else self.cached * factor,
                deferred=None,
            )

    def amount(self, prompt: int, completion: int, cached: int = 0) -> Decimal:
        """Return what so many tokens cost; the `cached` ones are among those of the prompt."""
        with localcontext(EXACT):
            price_of_cached = self.prompt if self.cached is None else self.cached
            amount = (prompt - cached) * self.prompt + completion * self.completion
            amount += cached * price_of_cached
            # Prices are for a million tokens; 1E+3 plus 0 is 1000.
            return amount.scaleb(-6).normalize() + 0

    @property
    def described(self) -> str:
        """Return the price in words: `0.3 USD for a million prompt tokens (cached 0.006), ...`."""
        text = f"{plain(self.prompt)} {self.currency} for a million prompt tokens"
        if self.cached is not None:
            text += f" (cached {plain(self.cached)})"
        text += f", {plain(self.completion)} for completion tokens"
        about = ", ".join(filter(None, (str(self.date or ""), self.source, self.note)))
        return f"{text} ({about})" if about else text


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
        data: JSON = {}
        if self.price:
            data["price"] = self.price
        if self.deferred:
            data[DEFERRED] = True
        return data

    @classmethod
    def of_line(cls, line: JSON) -> Rate:
        """Return the rate of a line; what is no place of a price is the first."""
        place = line.get("price")
        # Not `isinstance`, for which True is a whole number.
        if type(place) is not int or place < 0:
            place = 0
        return cls(place, line.get(DEFERRED) is True)

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
            if not isinstance(amount, Decimal):
                continue
            # A file may hold any number: one with a billion digits would take the memory of whoever
            # adds it.
            if not amount.is_finite() or abs(amount.adjusted()) >= LONGEST:
                raise ValueError("an amount of money that no run costs")

    def at(self, price: Price | None) -> Cost:
        """Return the cost of all at one price."""
        amount: Decimal | None = None
        low: Decimal | UnsetType = UNSET
        high: Decimal | UnsetType = UNSET
        if price:
            amount = price.amount(*self.tokens, self.cached_tokens)
        if price and not isinstance(self.most_prompt_tokens, UnsetType):
            fewest_tokens, most_tokens = self.bounds
            # Cached tokens cost less: the lower bound has as many as there may be.
            low = price.amount(*fewest_tokens, self.most_cached_tokens or self.cached_tokens)
            high = price.amount(*most_tokens, self.cached_tokens)
        return structs.replace(self, price=price, amount=amount, low=low, high=high, shares=UNSET)

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
        prompt, completion = self.tokens
        fewest_tokens = (self.prompt_tokens, self.completion_tokens)
        most_prompt = max(prompt, self.most_prompt_tokens or 0)
        return fewest_tokens, (most_prompt, max(completion, self.most_completion_tokens or 0))

    @property
    def money(self) -> Money | None:
        """Return the amount with its currency and bounds, None without a price."""
        if self.amount is None or self.price is None:
            return None
        low = None if isinstance(self.low, UnsetType) else self.low
        high = None if isinstance(self.high, UnsetType) else self.high
        return Money(self.amount, self.price.currency, self.requests_without_usage > 0, low, high)

    @property
    def prices(self) -> tuple[Price, ...]:
        """Return the prices of the replies."""
        prices = [share.price for share in self.shares or (self,)]
        return tuple(dict.fromkeys(filter(None, prices)))


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
        copied = Bill()
        for rate, usage in self._usages.items():
            copied.at(rate).merge(usage)
        for submission in pending:
            copied.lose(submission.rate, submission.requests, submission.sent)
        return copied

    @property
    def total(self) -> RunUsage:
        """Return what all requests have used."""
        total = RunUsage()
        for usage in self._usages.values():
            total.merge(usage)
        return total

    def cost(self, prices: Sequence[Price | None], max_completion: int | None) -> Cost:
        """Return what all cost at the prices of their rates; `max_completion` as for `ceiling`.

        What is not reported is estimated by the ratios of all.
        """
        # Ratios of all replies, whatever their price: a rate with few replies has none to rely on.
        total = self.total
        by_price: dict[Price | None, list[Cost]] = {}
        for rate, usage in sorted(self._usages.items()):
            if usage.requests or usage.lost:
                price = rate.among(prices)
                cost = cost_of(usage, price, max_completion, total)
                by_price.setdefault(price, []).append(cost)
        if not by_price:
            return Cost().at(Rate().among(prices))
        shares = tuple(_sum(costs).at(price) for price, costs in by_price.items())
        return shares[0] if len(shares) == 1 else _of_shares(shares)

    def at_places(self, places: Collection[int]) -> Bill:
        """Return the part of the bill at the prices of some places."""
        bill = Bill()
        for rate, usage in self._usages.items():
            if rate.price in places:
                bill.at(rate).merge(usage)
        return bill

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
    counts = JSON()
    for name in COUNTS:
        counts[name] = sum([getattr(cost, name) for cost in costs])
    if any(not isinstance(cost.most_prompt_tokens, UnsetType) for cost in costs):
        # A cost without bounds adds its tokens to those of the others.
        prompts, completions = zip(*[cost.bounds[1] for cost in costs], strict=True)
        counts["most_prompt_tokens"] = sum(prompts)
        counts["most_completion_tokens"] = sum(completions)
    if any(cost.most_cached_tokens for cost in costs):
        most_cached = [cost.most_cached_tokens or cost.cached_tokens for cost in costs]
        counts["most_cached_tokens"] = sum(most_cached)
    for name in ("requests_without_reply", "requests_with_unclear_usage"):
        counts[name] = sum([getattr(cost, name) or 0 for cost in costs]) or UNSET
    return Cost(**counts)


def _of_shares(shares: tuple[Cost, ...]) -> Cost:
    """Return costs at several prices together; the amount is unknown where one of them is, and
    where they are in two currencies."""
    cost = structs.replace(_sum(shares), shares=shares)
    amounts = [share.money for share in shares]
    sums = together(amounts)
    if None in amounts or len(sums) > 1:
        return cost
    [money] = sums
    low = UNSET if money.low is None else money.low
    high = UNSET if money.high is None else money.high
    return structs.replace(cost, price=shares[-1].price, amount=money.amount, low=low, high=high)


REPORTED = (
    "requests",
    "prompt_tokens",
    "cached_tokens",
    "completion_tokens",
    "reasoning_tokens",
    "requests_without_usage",
)
COUNTS = (*REPORTED, "estimated_prompt_tokens", "estimated_completion_tokens")


def cost_of(
    usage: RunUsage,
    price: Price | None,
    max_completion: int | None = None,
    seen: RunUsage | None = None,
) -> Cost:
    """Return what requests cost at one price, with estimates for the tokens that the endpoint did
    not report.

    `max_completion` is as for `ceiling`; `seen` is the usage whose ratios and longest completion
    count, by default the same.
    """
    seen = seen or usage
    prompt = _estimated(usage.unknown_prompt, seen.seen_prompt_tokens, seen.sent)
    completion = _estimated(usage.unknown_completion, seen.seen_tokens, seen.seen_bytes)
    cost = Cost(
        **{name: getattr(usage, name) for name in REPORTED},
        estimated_prompt_tokens=prompt,
        estimated_completion_tokens=completion,
    )
    if usage.lost or usage.requests_without_usage or usage.unclear:
        more_prompt = usage.unknown_prompt + usage.lost_bytes + usage.unclear_prompt
        without_length = usage.unknown_completions + usage.lost
        more_completion = without_length * ceiling(max_completion, seen.longest)
        if max_completion is None:
            # Where requests set no limit, each byte of the text may have been a token.
            more_completion += usage.unknown_completion
        # Tokens of prompt or completion are counted as the dearer of the two.
        if price and price.prompt > price.completion:
            more_prompt += usage.unclear_either
        else:
            more_completion += usage.unclear_either
        most_cached: int | UnsetType = UNSET
        if usage.unclear_cached:
            most_cached = cost.cached_tokens + usage.unclear_cached
        cost = structs.replace(
            cost,
            requests_without_reply=usage.lost or UNSET,
            requests_with_unclear_usage=usage.unclear or UNSET,
            most_prompt_tokens=min(cost.prompt_tokens + more_prompt, LARGEST),
            most_completion_tokens=min(cost.completion_tokens + more_completion, LARGEST),
            most_cached_tokens=most_cached,
        )
    return cost.at(price)


def ceiling(max_completion: int | None, longest: int = 0) -> int:
    """Return the tokens that a completion of unknown length takes at most, in addition to a token
    for each byte of its text: `max_completion`, which requests allow, else 8,192 or the `longest`
    so far."""
    if max_completion is None:
        return max(SAFE_COMPLETION, longest)
    return max_completion


def _estimated(size: int, tokens: int, seen: int) -> int:
    """Return the tokens of so many bytes by the ratio of tokens to bytes seen, rounded up, and at
    most what a file can hold."""
    if not tokens or not seen:
        tokens, seen = 1, BYTES_PER_TOKEN
    # Rounded up in whole numbers: a float would lose tokens of long runs.
    return min(-(-size * tokens // seen), LARGEST)


def together(amounts: Iterable[Money | None]) -> tuple[Money, ...]:
    """Return the sum of the known amounts in each currency, in the order of their first
    occurrence."""
    sums: dict[str, Money] = {}
    with localcontext(EXACT):
        for money in filter(None, amounts):
            currency = money.currency
            so_far = sums.get(currency, Money(Decimal(0), currency))
            amount = so_far.amount + money.amount
            total = Money(amount, currency, so_far.about or money.about)
            if money.high is not None or so_far.high is not None:
                low, high = so_far.least + money.least, so_far.most + money.most
                total = total._replace(low=low, high=high)
            sums[currency] = total
    return tuple(sums.values())


def each(amounts: Iterable[Money], users: int) -> tuple[Money, ...]:
    """Return the amounts for one of so many users, rounded to `DIGITS` decimal places; nothing
    without users."""
    if not users:
        return ()
    # Not the exact context: a division rarely ends.
    with localcontext(prec=EXACT.prec):
        return tuple([_divided(money, users) for money in amounts])


def _divided(money: Money, users: int) -> Money:
    shares: JSON = {}
    for name in ("amount", "low", "high"):
        value = getattr(money, name)
        if value is not None:
            shares[name] = round(value / users, DIGITS)
    return money._replace(**shares)


def money_text(amounts: Sequence[Money]) -> str:
    """Return amounts for people, joined by a plus, such as `about 1.640 USD (0.5000 to 4.270) +
    3.200 CNY`, or `0.7700 to 1.130 USD` where nothing is estimated; empty for none."""
    text = " + ".join(map(_money_text, amounts))
    if any(money.about for money in amounts):
        return f"about {text}"
    return text


def _money_text(money: Money) -> str:
    amount = f"{rounded(money.amount)} {money.currency}"
    if money.high is None:
        return amount
    bounds = f"{rounded(money.least)} to {rounded(money.most)}"
    if money.about:
        return f"{amount} ({bounds})"
    return f"{bounds} {money.currency}"


def rounded(amount: Decimal) -> str:
    """Return an amount with two decimal places, or as many more as its first significant digits
    need."""
    places = 2
    if amount:
        places = max(2, SIGNIFICANT - 1 - amount.adjusted())
    return f"{amount:.{places}f}"


def plain(amount: Decimal) -> str:
    """Return an exact amount without an exponent."""
    # `normalize` makes 1E+1 of 10, and the format `f` writes it out.
    return f"{EXACT.normalize(amount):f}"
