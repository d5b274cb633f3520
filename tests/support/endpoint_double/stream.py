"""A completion as a stream of server-sent events, in OpenAI's chunk format, cut from the whole
reply.

Source: https://platform.openai.com/docs/api-reference/chat-streaming
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import cycle, pairwise
from typing import Any

import orjson

from tests.support.endpoint_double import faults
from tests.support.endpoint_double.imitate import Imitation

DONE = b"data: [DONE]\n\n"
HEADERS = {"Content-Type": "text/event-stream", "Cache-Control": "no-cache"}
WRITES = 5
"""Parts that a stream is sent in, with pauses between; they end anywhere, even within a
character."""

_PIECES = 12  # about so many of a completion's text


def encode(
    reply: dict[str, Any],
    digest: bytes,
    include_usage: bool,
    provider: Imitation,
    fault: str | None,
) -> tuple[bytes, bytes]:
    """Return the comment before the stream of a whole reply, and the bytes that arrive under a
    fault in mid-stream.

    Without such a fault all bytes arrive. `digest` decides where the text is cut. A `provider` that
    sends the usage with the finish reason does so whether it was requested or not.
    """
    usage = {"usage": reply["usage"]} if "usage" in reply else {}
    usage_last = bool(include_usage and usage and not provider.usage_at_finish)
    head = {
        "id": reply["id"],
        "object": "chat.completion.chunk",
        "created": reply["created"],
        "model": reply["model"],
    }
    head |= {**provider.chunk, **({"usage": None} if usage_last else {})}

    def chunk(choices: list[dict[str, Any]], **members: Any) -> bytes:
        return _event(orjson.dumps({**head, "choices": choices, **members}))

    def delta(
        index: int, delta: dict[str, Any], finish_reason: str | None = None, **members: Any
    ) -> bytes:
        choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
        choice |= provider.chunk_choice
        return chunk([choice], **members)

    choices = reply["choices"]
    deltas = [
        (choice["index"], each)
        for choice in choices
        for each in ({"role": "assistant", "content": ""}, *_deltas(choice["message"], digest))
    ]
    events = [delta(index, each) for index, each in deltas]
    comment = f"{provider.comment}\n\n".encode() if provider.comment else b""
    if comment:
        events.insert(len(events) // 2, comment)
    begun, half = b"".join(events), b"".join(events[: max(1, len(events) // 2)])
    if fault in (faults.TRUNCATED, faults.RESET_BODY):
        return comment, begun[: len(begun) // 2]
    if fault == faults.STREAM_ERROR:
        return comment, half + _event(orjson.dumps(provider.stream_error))
    if fault in (faults.STREAM_CUT, faults.STREAM_STALL):
        return comment, half
    ends = [
        delta(
            index,
            {},
            choice["finish_reason"],
            **usage if provider.usage_at_finish and choice is choices[-1] else {},
        )
        for index, choice in enumerate(choices)
    ]
    if usage_last:
        ends.append(chunk([], **usage))
    return comment, begun + b"".join(ends) + DONE


def pieces(text: str, digest: bytes) -> Iterator[str]:
    """Yield a text in pieces of uneven lengths, cut between any two characters."""
    longest = 2 * len(text) // _PIECES + 1
    start = 0
    for byte in cycle(digest):
        if start >= len(text):
            return
        end = start + 1 + byte % longest
        yield text[start:end]
        start = end


def slices(data: bytes) -> Sequence[bytes]:
    """Return the parts that are written at once, in order."""
    ends = [len(data) * number // WRITES for number in range(WRITES + 1)]
    return [data[start:end] for start, end in pairwise(ends) if end > start]


def pauses(seconds: float, parts: int) -> list[float]:
    """Return the seconds before each part: half of all before the first, the rest between the
    parts."""
    return [seconds / 2, *[seconds / 2 / max(1, parts - 1)] * (parts - 1)]


def _deltas(message: dict[str, Any], digest: bytes) -> Iterator[dict[str, Any]]:
    """Yield the deltas in order: thoughts first, and a null for the member that does not grow."""
    thoughts, content = message.get("reasoning_content"), message["content"]
    if isinstance(content, list):
        content = "".join(
            [part["text"] for part in content]
        )  # streams have strings, whatever whole replies have
    for piece in pieces(thoughts or "", digest):
        yield {"content": None, "reasoning_content": piece}
    for name in ("reasoning", "refusal"):
        for piece in pieces(message.get(name) or "", digest):
            yield {name: piece}
    for piece in pieces(content or "", digest):
        yield {"content": piece, "reasoning_content": None} if thoughts else {"content": piece}


def _event(data: bytes) -> bytes:
    return b"data: " + data + b"\n\n"
