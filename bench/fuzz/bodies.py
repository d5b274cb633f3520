"""The body of a reply with any status and headers: a completion that can be written, or an error of
the known kinds."""

from __future__ import annotations

from datetime import UTC, datetime

import orjson

from harness.client.replies import completion, refused
from harness.client.requested_wait import exhausted, retry_after
from harness.errors import CallError, EndpointStopped

EXPECTED = ()
SEEDS = [
    (
        b'200 1 {"model": "m", "choices": [{"message": {"content": "x"}, "finish_reason": "stop"}],'
        b' "usage": {"prompt_tokens": 3, "completion_tokens": 2}}'
    ),
    (
        b'200 1 {"choices": [{"message": {"content": [{"type": "thinking", "thinking": [{"type":'
        b' "text", "text": "t"}]}, {"type": "text", "text": "a"}], "reasoning_content": "r"},'
        b' "finish_reason": "max_tokens"}]}'
    ),
    b'429 6m0s {"error": {"message": "slow down", "code": "rate_limit", "type": 1, "param": "x"}}',
    b'400 Wed, 21 Oct 2015 07:28:00 GMT {"error": {"code": "data_inspection_failed"}}',
    (
        b'400 1e400 {"detail": [{"loc": ["body", 0], "msg": "max_tokens too large: 5. maximum'
        b' context length is 9"}]}'
    ),
    b'200 20ms {"base_resp": {"status_code": 1002, "status_msg": "limit"}, "error": ""}',
    b"502 -1 <html>Bad gateway</html>",
    (
        b'200 NaN {"error": {"metadata": {"raw": "{\\"error\\": \\"x\\"}", "flagged_input": ""},'
        b' "code": 429}}'
    ),
]
NOW = datetime(2025, 1, 1, tzinfo=UTC)
ASKED = b'{"model": "m", "messages": [{"role": "user", "content": "context length"}]}'


def run(data: bytes) -> None:
    status = int(data[:3]) if data[:3].isdigit() and data[:3].isascii() else 200
    header, brace, rest = data[3:].partition(b"{")
    text = header.decode("latin-1").strip()
    headers = {"Retry-After": text, "Location": text, "x-ratelimit-remaining-requests": "0"}
    headers["x-ratelimit-reset-requests"] = text
    for wait in (retry_after(text, NOW), exhausted(headers, NOW)):
        assert wait is None or 0 <= wait <= 3600
    body = brace + rest
    try:
        made = (
            completion(body)
            if 200 <= status < 300
            else refused(max(status, 100), headers, body, NOW, ASKED)
        )
    except (CallError, EndpointStopped) as error:
        str(error).encode()
        return
    orjson.dumps(made.data)
