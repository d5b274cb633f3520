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
    counts = (
        f"{usage['requests']} requests, {usage['prompt_tokens']} prompt tokens, "
        f"{usage['completion_tokens']} completion tokens"
    )
    missing = usage["untold"]
    return (
        f"{counts}, without those of {missing} requests whose usage was not reported."
        if missing
        else f"{counts}."
    )


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
    about, bounds = "about " if cost.money.about else "", ""
    if cost.money.high is not None:
        bounds = f" (the bill is {plain(cost.money.least)} to {plain(cost.money.most)})"
    of_each = f", {money_text(each([cost.money], users))} a {user}" if users else ""
    yield (
        f"Cost: {about}{plain(cost.money.amount)} {cost.money.currency}{bounds}{of_each}. "
        f"Price: {'; '.join(price.described for price in cost.prices)}."
    )


def session(took: JSON | None, user: str) -> str | None:
    """Return how close the last session came to its bound (docs/design.md, section 4); None if
    nothing was played.

    `user` is the benchmark's word for who has a chain of requests.
    """
    if not took or took["ratio"] is None:
        return None
    others = (
        took.get("runs", 1) - 1
    )  # several models at one account share its slots, and so one bound
    shared = f", with those of {others} more at the same account" if others else ""
    held_up = f" {words}" if (words := bottleneck(took)) else ""
    return (
        f"The last session took {took['seconds']:.1f} s, {took['ratio']:.2f} times the least that"
        f" its requests allow ({took['lower_bound_seconds']:.1f} s: the larger of all their time"
        f" over {took['slots']:g} slots, and the longest {user}'s chain{shared}).{held_up}"
    )


def bottleneck(took: JSON) -> str | None:
    """Return that the event loop held the last session up, and what to do about it; None if it did
    not."""
    if (share := took.get("event_loop")) is None:
        return None
    used = f"{100 * share:.0f} % of its core"
    return (
        f"The event loop used {used} and held the run up: `harness run --help` has what uses more."
    )
