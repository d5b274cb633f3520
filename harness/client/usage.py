"""The tokens that the usage of a reply reports, and those that it leaves unclear. Pure.

Endpoints differ in what their counts include. OpenAI's prompt includes what was cached, its
completion includes the thoughts, and `total_tokens` is their sum. xAI and Gemini leave thoughts out
of `completion_tokens`, and some relays leave cached input out of `prompt_tokens`, as Anthropic's
own counts do. A usage that contradicts OpenAI's reading is not guessed at: what may be billed less
or more is `UnclearTokens`, which gives costs their bounds.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from harness.client.objects import object_of
from harness.model import LARGEST_COUNT, UnclearTokens

NOTHING_UNCLEAR = UnclearTokens()


class ReportedTokens(NamedTuple):
    """Counts as `Completion` has them; None where none is reported."""

    prompt: int | None = None
    completion: int | None = None
    cached: int | None = None
    reasoning: int | None = None
    unclear: UnclearTokens | None = None


def reported_tokens(usage: dict[str, Any], *, has_text: bool) -> ReportedTokens:
    """Return the counts of a usage; `has_text` is whether the reply has a text or thoughts.

    No prompt has 0 tokens, nor has the completion of a text: such a count is none.
    """
    prompt = _count(usage, "prompt_tokens") or None
    completion = _count(usage, "completion_tokens")
    if not completion and (has_text or prompt is None):
        completion = None
    cached, reasoning = _cached(usage), reasoning_tokens(usage)
    tokens = ReportedTokens(prompt, completion, cached[0] if cached else None, reasoning)
    if prompt is None or completion is None:
        return tokens
    excess = max(0, (_count(usage, "total_tokens") or 0) - prompt - completion)
    if reasoning and (excess == reasoning or excess > reasoning > completion):
        tokens = tokens._replace(completion=completion + reasoning)
        excess -= reasoning
    elif reasoning and reasoning > completion:
        excess = max(excess, reasoning)
    read = _count(usage, "cache_read_input_tokens") or 0
    written = _count(usage, "cache_creation_input_tokens") or 0
    # Relays to OpenAI's format may include both in the prompt, or not.
    beyond = 0 if read in cached or (cached and not read) else read + written
    if read:
        cached.append(read)
    return _with_unclear(tokens, cached, beyond, excess)


def _with_unclear(
    tokens: ReportedTokens, cached: list[int], beyond: int, excess: int
) -> ReportedTokens:
    """Return the counts with what they leave open: `cached` are all counts of what was cached, of
    which `beyond` may be on top of the prompt, as any is that is larger than the prompt; `excess`
    tokens of the total have no name."""
    if not cached and not beyond and not excess:
        return tokens
    prompt = tokens.prompt or 0
    beyond = max([beyond, *(count for count in cached if count > prompt)])
    fewest = 0 if beyond else min(cached, default=0)
    largest = min(prompt, max(cached, default=0))
    unclear = UnclearTokens(cached=largest - fewest, prompt=beyond, either=max(0, excess - beyond))
    if unclear == NOTHING_UNCLEAR:
        return tokens
    return tokens._replace(cached=fewest if cached else None, unclear=unclear)


def reasoning_tokens(usage: dict[str, Any]) -> int | None:
    """Return the completion's tokens that are thoughts. SGLang has the count in the usage
    itself."""
    details = usage.get("completion_tokens_details")
    return _count(details if type(details) is dict else usage, "reasoning_tokens")


def _cached(usage: dict[str, Any]) -> list[int]:
    """Return all counts of the prompt's tokens that were cached. DeepSeek and Moonshot have theirs
    in the usage itself."""
    counts = (
        _count(object_of(usage.get("prompt_tokens_details")), "cached_tokens"),
        _count(usage, "prompt_cache_hit_tokens"),
        _count(usage, "cached_tokens"),
    )
    return [count for count in counts if count is not None]


def _count(counts: dict[str, Any], name: str) -> int | None:
    value = counts.get(name)
    return value if type(value) is int and 0 <= value < LARGEST_COUNT else None
