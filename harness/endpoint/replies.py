"""What a reply of an endpoint means: the classes of docs/design.md, section 6. Pure.

`completion` reads a reply of status 200, `refused` any other. Both return a completion where the
reply settles the request (a provider's content filter and a prompt that is too long do), and raise
the error of the right class where it does not.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

import orjson

from harness.errors import CallError, EndpointStopped, Rejected, TransportFault
from harness.model import Completion

RETRIED = frozenset({408, 409, 425, 429})
LONGEST_RETRY_AFTER = 3600.0
"""Seconds; a longer wait is cut to this, since nobody waits a day for one request."""

CONTENT_FILTER = (
    "content_filter",
    "data_inspection_failed",
    "datainspectionfailed",
    "content_policy",
    "sensitive_content",
)
CONTEXT = (
    "context_length",
    "maximum context",
    "context window",
    "too many tokens",
    "prompt is too long",
    "exceeds the max",
)
QUOTA = (
    "insufficient_quota",
    "arrearage",
    "insufficient balance",
    "insufficient_balance",
    "exceeded your current quota",
    "overdue",
)
UNKNOWN_MODEL = (
    "model_not_found",
    "model not exist",
    "model does not exist",
    "unknown model",
    "invalid model",
    "no such model",
)
SHOWN = 300
"""Characters of an endpoint's own words in a message."""


def completion(body: bytes) -> Completion:
    """The completion in a reply of status 200."""
    data = _object(body)
    if data is None:
        raise TransportFault("bad_json", "the reply is not whole JSON")
    if "choices" not in data and "error" in data:
        return refused(_status_within(data["error"]), {}, body, datetime.now(UTC))
    choices = data.get("choices")
    if type(choices) is not list or not choices or type(choices[0]) is not dict:
        raise TransportFault("no_choices", "the reply has no choices")
    message = choices[0].get("message")
    if type(message) is not dict:
        raise TransportFault("no_choices", "the reply's choice has no message")
    content, reason, refusal = message.get("content"), choices[0].get("finish_reason"), message.get("refusal")
    usage = data.get("usage")
    usage = usage if type(usage) is dict else {}
    model = data.get("model")
    return Completion(
        text=content if type(content) is str else "",
        finish_reason=reason if type(reason) is str else None,
        prompt_tokens=_count(usage.get("prompt_tokens")),
        completion_tokens=_count(usage.get("completion_tokens")),
        model=model if type(model) is str else None,
        refusal=refusal if type(refusal) is str and refusal else None,
    )


def refused(status: int, headers: Mapping[str, str], body: bytes, now: datetime) -> Completion:
    """What a reply of another status settles; raises what it does not."""
    said = _said(body)
    low = said.lower()
    kind = f"http_{status}"
    if status in (400, 403, 422) and _any(CONTENT_FILTER, low):
        return Completion("", "content_filter")
    if status == 413 or (status in (400, 422) and _any(CONTEXT, low)):
        return Completion("", "context_length")
    raise _error(status, kind, said, low, headers, now)


def _error(
    status: int, kind: str, said: str, low: str, headers: Mapping[str, str], now: datetime
) -> CallError | EndpointStopped:
    if status == 402 or _any(QUOTA, low):
        return EndpointStopped(
            f"the endpoint says that the account's quota or balance is used up ({said}): top it up, then resume"
        )
    if status in (400, 403, 404) and (_any(UNKNOWN_MODEL, low) or ("model" in low and "not found" in low)):
        return EndpointStopped(f"the endpoint does not know this model ({said}): check --model")
    if status in (401, 403):
        return Unauthorised(
            f"the endpoint refuses the key with status {status} ({said}): check the key and what it may use"
        )
    if 300 <= status < 400:
        return EndpointStopped(
            f"the endpoint redirects to {headers.get('Location', 'another address')}: give that address if it is right"
        )
    if status in RETRIED or status >= 500:
        return TransportFault(kind, said, retry_after=retry_after(headers.get("Retry-After"), now))
    if status == 404:
        return TransportFault(kind, said, unreachable=True)
    return Rejected(kind, said)


class Unauthorised(EndpointStopped):
    """401 or 403: terminal before any success, a passing fault of the endpoint after one."""


def retry_after(value: str | None, now: datetime) -> float | None:
    """Seconds to wait: from seconds or an HTTP date; None where there is no such header or it makes no sense."""
    if value is None:
        return None
    try:
        seconds = float(value)
    except ValueError:
        try:
            at = parsedate_to_datetime(value)
        except ValueError:
            return None
        seconds = (at.replace(tzinfo=at.tzinfo or UTC) - now).total_seconds()
    return min(max(seconds, 0.0), LONGEST_RETRY_AFTER) if seconds == seconds else None


def _object(body: bytes) -> dict[str, Any] | None:
    try:
        data = orjson.loads(body)
    except ValueError:
        return None
    return data if type(data) is dict else None


def _said(body: bytes) -> str:
    """The endpoint's own words, on one line and not too long, with the error's code in front."""
    data = _object(body)
    error: Any = data.get("error", data) if data is not None else None
    if type(error) is dict:
        words = [str(error[name]) for name in ("code", "type", "message", "detail") if error.get(name)]
        said = ", ".join(dict.fromkeys(words)) or orjson.dumps(error).decode()
    elif error is not None:
        said = str(error)
    else:
        said = body[:2000].decode("utf-8", "replace")
    said = " ".join(said.split())
    return said[:SHOWN] + ("…" if len(said) > SHOWN else "") or "no explanation"


def _status_within(error: Any) -> int:
    """Some relays answer 200 with an error object; its code tells the status, else it counts as a 502."""
    code = error.get("code") if type(error) is dict else None
    text = str(code) if code is not None else ""
    return int(text) if text.isdecimal() and 400 <= int(text) < 600 else 502


def _count(value: Any) -> int | None:
    return value if type(value) is int and value >= 0 else None


def _any(words: tuple[str, ...], text: str) -> bool:
    return any(word in text for word in words)
