"""A streamed reply: the same however the bytes are cut, and what comes of it can be written."""

from __future__ import annotations

import orjson

from harness.client.replies import completion_of
from harness.client.stream import StreamedReply
from harness.errors import CallError, EndpointStopped
from harness.model import Completion

EXPECTED = (CallError, EndpointStopped)
SEEDS = [
    'data: {"model": "m", "choices": [{"index": 0, "delta": {"content": "猫"}}]}\n\ndata:'
    ' {"choices": [{"index": 0, "delta": {"reasoning_content": "x"}, "finish_reason":'
    ' "stop"}]}\n\ndata: {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens":'
    " 2}}\n\ndata: [DONE]\n\n".encode(),
    b'event: error\ndata: {"error": {"message": "x", "code": 503}}\n\n',
    b'error: {"code": 400, "message": "context length"}',
    b'\xef\xbb\xbf: ping\r\n\r\ndata: {"object": "error", "message": "no"}\r\rdata: NaN\n\n',
    (
        b'data: {"choices": [{"message": {"content": [{"type": "text", "text": "a"}]},'
        b' "finish_reason": "length"}]}'
    ),
    (
        b'data: {"choices": [{"delta": {"content": "\\ud83d"}}]}\n\ndata: {"choices": [{"delta":'
        b' {"content": "\\ude00"}, "finish_reason": "stop"}]}\n\n'
    ),
]
LARGEST = 1 << 20


def run(data: bytes) -> None:
    whole = _read([data])
    size = max(1 + len(data) % 7, len(data) // 40)
    assert whole == _read([data[at : at + size] for at in range(0, len(data), size)])


def _read(blocks: list[bytes]) -> Completion | str:
    reply = StreamedReply(LARGEST)
    try:
        for block in blocks:
            reply.feed(block)
        made = completion_of(reply.whole(True))
    except EXPECTED as error:
        str(error).encode()
        return f"{type(error).__name__} {error}"
    orjson.dumps(made.data)
    return made
