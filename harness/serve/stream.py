"""A completion as a stream of server-sent events, in OpenAI's chunk format: cut from the whole reply, so that it says
the same. Source: docs/design.md, section 7, and https://platform.openai.com/docs/api-reference/chat-streaming
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import cycle, pairwise
from typing import Any

import orjson

from harness.serve import faults

DONE = b"data: [DONE]\n\n"
HEADERS = {"Content-Type": "text/event-stream", "Cache-Control": "no-cache"}
WRITES = 5
"""Parts that a stream is sent in, with pauses between; they end anywhere, even within a character."""

_PIECES = 12  # about so many of a completion's text


@dataclass(frozen=True, slots=True)
class Manner:
    """What a provider does differently in streams.

    `chunk` holds members of each chunk and `choice` members of its choice, beside OpenAI's; `comment` is sent to keep
    the connection alive; `error` is the data of the event that tells of a failure in the middle. With
    `usage_at_finish` the usage comes with the finish reason, asked for or not.
    """

    chunk: dict[str, Any] = field(default_factory=dict)
    choice: dict[str, Any] = field(default_factory=dict)
    comment: str | None = None
    usage_at_finish: bool = False
    error: bytes = faults.FAILED


@dataclass(frozen=True, slots=True)
class Stream:
    """The events of one completion: a comment while it waits, those before the end of its text is told, and the end."""

    comment: bytes

    begun: tuple[bytes, ...]
    ended: tuple[bytes, ...]
    manner: Manner

    def sent(self, fault: str | None) -> bytes:
        """The bytes that arrive under a fault in mid-stream, all of them without one."""
        half = self.begun[: max(1, len(self.begun) // 2)]
        if fault in (faults.TRUNCATED, faults.RESET_BODY):
            begun = b"".join(self.begun)
            return begun[: len(begun) // 2]
        if fault == faults.STREAM_ERROR:
            return b"".join([*half, _event(self.manner.error)])
        if fault in (faults.STREAM_CUT, faults.STREAM_STALL):
            return b"".join(half)
        return b"".join([*self.begun, *self.ended])


def of(reply: dict[str, Any], digest: bytes, include_usage: bool, manner: Manner) -> Stream:
    """The stream that says what a whole reply says; `digest` decides where its text is cut."""
    choice = reply["choices"][0]
    message = choice["message"]
    head = {"id": reply["id"], "object": "chat.completion.chunk", "created": reply["created"], "model": reply["model"]}

    def chunk(choices: list[dict[str, Any]], **members: Any) -> bytes:
        return _event(orjson.dumps({**head, **manner.chunk, "choices": choices, **members}))

    def delta(said: dict[str, Any], finish_reason: str | None = None, **members: Any) -> bytes:
        return chunk([{"index": 0, "delta": said, "finish_reason": finish_reason, **manner.choice}], **members)

    begun = [delta({"role": "assistant", "content": ""}), *[delta(said) for said in _said(message, digest)]]
    comment = f"{manner.comment}\n\n".encode() if manner.comment else b""
    if comment:
        begun.insert(len(begun) // 2, comment)
    usage = {"usage": reply["usage"]} if "usage" in reply else {}
    ended = [delta({}, choice["finish_reason"], **usage if manner.usage_at_finish else {})]
    if include_usage and usage and not manner.usage_at_finish:
        ended.append(chunk([], **usage))
    return Stream(comment, tuple(begun), (*ended, DONE), manner)


def pieces(text: str, digest: bytes) -> Iterator[str]:
    """A text in pieces of uneven lengths, cut between any two characters."""
    longest = 2 * len(text) // _PIECES + 1
    start = 0
    for byte in cycle(digest):
        if start >= len(text):
            return
        end = start + 1 + byte % longest
        yield text[start:end]
        start = end


def slices(data: bytes) -> Sequence[bytes]:
    """What is written at once, in order."""
    ends = [len(data) * number // WRITES for number in range(WRITES + 1)]
    return [data[start:end] for start, end in pairwise(ends) if end > start]


def pauses(seconds: float, parts: int) -> list[float]:
    """Seconds before each part: half of them all before the first, the rest between the parts."""
    return [seconds / 2, *[seconds / 2 / max(1, parts - 1)] * (parts - 1)]


def _said(message: dict[str, Any], digest: bytes) -> Iterator[dict[str, Any]]:
    """What the deltas say, in order: thoughts first, and a null for the member whose turn it is not."""
    thoughts = message.get("reasoning_content")
    for piece in pieces(thoughts or "", digest):
        yield {"content": None, "reasoning_content": piece}
    for name in ("reasoning", "refusal"):
        for piece in pieces(message.get(name) or "", digest):
            yield {name: piece}
    for piece in pieces(_content(message["content"]), digest):
        yield {"content": piece, "reasoning_content": None} if thoughts else {"content": piece}


def _content(content: str | list[dict[str, str]] | None) -> str:
    """Streams have strings, whatever whole replies have."""
    return "".join([part["text"] for part in content]) if isinstance(content, list) else content or ""


def _event(data: bytes) -> bytes:
    return b"data: " + data + b"\n\n"
