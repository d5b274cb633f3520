"""What a run cost and how long it took, for reports."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from harness.benchmarks.records import count
from harness.cost import Cost, each, money_text, plain
from harness.model import JSON

USAGE = ("prompt_tokens", "completion_tokens", "requests", "untold")
"""What is counted of each user, by the names in records; a record without `untold` has none."""


def counted(record: JSON) -> dict[str, int]:
    """Return a user's usage. Raise `ValueError` for what is no count."""
    usage = record.get("usage") or {}
    return {name: count(usage.get(name)) for name in USAGE}


def tokens(usage: Mapping[str, int]) -> str:
    text = (
        f"{usage['requests']} requests, {usage['prompt_tokens']} prompt tokens, "
        f"{usage['completion_tokens']} completion tokens"
    )
    if usage["untold"]:
        text += f", without those of {usage['untold']} requests whose usage was not reported"
    return f"{text}."


def billed(cost: Cost, users: int, user: str) -> Iterator[str]:
    """Yield the tokens of all saved replies in words, and what they cost; `users` are scored, and
    called `user`."""
    yield (
        f"All saved replies, of {user}s that are not scored too: {cost.requests} requests,"
        f" {cost.prompt_tokens} prompt tokens ({cost.cached_tokens} cached),"
        f" {cost.completion_tokens} completion tokens ({cost.reasoning_tokens} reasoning)."
    )
    if cost.requests_without_usage:
        yield (
            f"The endpoint reported no usage for {cost.requests_without_usage} requests: about"
            f" {cost.estimated_prompt_tokens} more prompt tokens and"
            f" {cost.estimated_completion_tokens} more completion tokens, by the ratios of tokens"
            " to bytes of the other prompts and completions."
        )

    if cost.requests_with_unclear_usage:
        yield (
            f"The usage of {cost.requests_with_unclear_usage} requests contradicts itself, so their"
            " cost has bounds."
        )

    if cost.requests_without_reply:
        yield (
            f"Up to {cost.requests_without_reply} tries without a reply may have been billed in"
            " addition."
        )

    if cost.money is None or cost.price is None:
        yield "No price is known for this model."
        return

    bill = f"{plain(cost.money.amount)} {cost.money.currency}"
    if cost.money.about:
        bill = f"about {bill}"

    # Unclear usage gives the bill a lower and an upper bound.
    if cost.money.high is not None:
        bill += f" (the bill is {plain(cost.money.least)} to {plain(cost.money.most)})"

    # A price for each user lets runs over different numbers of users be compared.
    if users:
        bill += f", {money_text(each([cost.money], users))} a {user}"

    prices = [price.described for price in cost.prices]
    yield f"Cost: {bill}. Price: {'; '.join(prices)}."


def session(took: JSON | None, user: str) -> str | None:
    """Return how close the last session came to its bound (docs/design.md, section 4); None if
    nothing was played.

    `user` is the benchmark's word for who has a chain of requests.
    """
    if not took or took["ratio"] is None:
        return None

    # Several models at one account share its slots, and so one bound.
    further_runs = took.get("runs", 1) - 1
    shared = ""
    if further_runs:
        shared = f", with those of {further_runs} more at the same account"

    text = (
        f"The last session took {took['seconds']:.1f} s, {took['ratio']:.2f} times the least that"
        f" its requests allow ({took['lower_bound_seconds']:.1f} s: the larger of all their time"
        f" over {took['slots']:g} slots, and the longest {user}'s chain{shared})."
    )
    return " ".join(filter(None, (text, bottleneck(took))))


def bottleneck(took: JSON) -> str | None:
    """Return that the event loop held the last session up, and what to do about it; None if it did
    not."""
    share = took.get("event_loop")
    if share is None:
        return None
    return (
        f"The event loop used {100 * share:.0f} % of its core and held the run up:"
        " `harness run --help` has what uses more."
    )
