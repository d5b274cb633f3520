"""What a reply of an endpoint means: the classes of docs/design.md, section 6. Pure.

`completion` reads a reply of a status from 200 to 299, `refused` any other. Both return a completion where the
reply settles the request (a provider's content filter and a prompt that is too long do), and raise
the error of the right class where it does not.
"""

from __future__ import annotations

import json
import math
import re
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
    "content_policy",
    "data_inspection_failed",  # DashScope
    "datainspectionfailed",
    "content exists risk",  # DeepSeek
    "sensitive_content",
    "sensitivecontent",  # Volcano Ark: InputTextSensitiveContentDetected
    "敏感内容",  # Zhipu
)
CONTEXT = (
    "context_length",
    "context length",  # vLLM, SGLang, DeepSeek
    "context size",  # llama.cpp
    "context window",
    "input length",  # DashScope: Range of input length should be ...
    "input token count",  # Gemini
    "prompt is too long",
    "too many tokens",
)
TOO_MANY_ASKED = re.compile(r"max_(?:completion_)?tokens\W.{0,40}too large")
"""A --max-tokens that no model allows: wrong parameters, even where the sentence goes on about the context length."""

QUOTA = (
    "insufficient_quota",
    "exceeded your current quota",
    "arrearage",
    "overdue",
    "insufficient balance",
    "insufficient_balance",
)
UNKNOWN_MODEL = ("model_not_found", "model not exist", "unknown model", "invalid model", "no such model")
BROKEN_OFF = frozenset({"insufficient_system_resource", "abort", "error"})
"""Finish reasons of a reply that the endpoint broke off itself: DeepSeek; vLLM and SGLang; OpenRouter."""

REQUESTS_LEFT, TOKENS_LEFT = "x-ratelimit-remaining-requests", "x-ratelimit-remaining-tokens"

DURATION_PART = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)(ms|h|m|s|)")
DURATION = re.compile(r"(?:\d{1,9}(?:\.\d{1,9})?(?:ms|h|m|s))+|\d{1,9}(?:\.\d{1,9})?")

LARGEST_COUNT = 2**40
"""Tokens; no reply has that many, and sums of what is below stay far inside the 64 bits that files hold."""

ECHOED_INPUT = re.compile(r"""['"]input['"]\s*:|\binput_value=""")
"""Where the message of a validator (FastAPI, pydantic) goes over to the input that it refuses."""

HALF_PAIR = re.compile("[\ud800-\udfff]")

SHOWN = 300
"""Characters of an endpoint's own words in a message."""

NO_WORDS = "no explanation"


def completion(body: bytes) -> Completion:
    """The completion in a reply of a status from 200 to 299."""
    data = _object(body)
    if data is None:
        raise TransportFault("bad_json", "the reply is not whole JSON")
    choices = data.get("choices")
    choice = choices[0] if type(choices) is list and choices else None
    error = choice.get("error") if type(choice) is dict else data.get("error")
    if error:
        said = _said(error)
        return _judged(_status_within(error, _words(said)), said, said, {}, datetime.now(UTC))
    if type(choice) is not dict:
        raise TransportFault("no_choices", "the reply has no choices")
    message = choice.get("message")
    if type(message) is not dict:
        raise TransportFault("no_choices", "the reply's choice has no message")
    reason = choice.get("finish_reason")
    if type(reason) is str and reason in BROKEN_OFF:
        raise TransportFault("broken_off", f"the endpoint ended its reply with finish_reason {reason}")
    return _completion(data, message, reason)


def _completion(data: dict[str, Any], message: dict[str, Any], reason: Any) -> Completion:
    refusal, usage, model = message.get("refusal"), data.get("usage"), data.get("model")
    usage = usage if type(usage) is dict else {}
    return Completion(
        text=_text(message.get("content")),
        finish_reason=reason if type(reason) is str else None,
        prompt_tokens=_count(usage.get("prompt_tokens")),
        completion_tokens=_count(usage.get("completion_tokens")),
        model=model if type(model) is str else None,
        refusal=refusal if type(refusal) is str and refusal else None,
    )


def refused(status: int, headers: Mapping[str, str], body: bytes, now: datetime) -> Completion:
    """What a reply of another status settles; raises what it does not."""
    data = _object(body)
    said = _said(data) if data is not None else ""
    return _judged(status, said, said or one_line(body.decode("utf-8", "replace")), headers, now)


def _judged(status: int, said: str, shown: str, headers: Mapping[str, str], now: datetime) -> Completion:
    """What an error means by its status and by what the endpoint `said`; `shown` is for messages alone."""
    low = _words(said)
    if status in (400, 403, 422) and _any(CONTENT_FILTER, low):
        return Completion("", "content_filter")
    if status == 413 or (status in (400, 422) and _any(CONTEXT, low) and not TOO_MANY_ASKED.search(low)):
        return Completion("", "context_length")
    raise _error(status, shown or NO_WORDS, low, headers, now)


def _error(status: int, said: str, low: str, headers: Mapping[str, str], now: datetime) -> CallError | EndpointStopped:
    kind = f"http_{status}"
    if status == 402 or _any(QUOTA, low):
        return Denied(
            f"the endpoint says that the account's quota or balance is used up ({said}): top it up, then resume"
        )
    if status in (400, 403, 404) and _names_no_model(low):
        return EndpointStopped(f"the endpoint does not know this model ({said}): check --model")
    if status in (401, 403):
        return Denied(f"the endpoint refuses the key with status {status} ({said}): check the key and what it may use")
    if 300 <= status < 400:
        target = one_line(headers.get("Location", "another address"))
        return EndpointStopped(f"the endpoint redirects to {target}: give that address if it is right")
    if status in RETRIED or status >= 500:
        return TransportFault(kind, said, retry_after=retry_after(headers.get("Retry-After"), now))
    if status == 404:
        return TransportFault(kind, said, unreachable=True)
    return Rejected(kind, said)


def _names_no_model(low: str) -> bool:
    return _any(UNKNOWN_MODEL, low) or ("model" in low and ("not found" in low or "does not exist" in low))


class Denied(EndpointStopped):
    """401, 403 or a quota that is used up: terminal before any success; after one it may be a passing fault of the
    endpoint, or (some say it so) a limit of tokens a minute, until a later try is denied too."""


def retry_after(value: str | None, now: datetime) -> float | None:
    """Seconds to wait: from seconds or an HTTP date; None where there is no such header or it makes no sense."""
    if value is None:
        return None
    try:
        seconds = float(value)
    except ValueError:
        try:
            at = parsedate_to_datetime(value)
        except (ValueError, OverflowError):
            return None
        seconds = (at.replace(tzinfo=at.tzinfo or UTC) - now).total_seconds()
    return min(max(seconds, 0.0), LONGEST_RETRY_AFTER) if math.isfinite(seconds) else None


def exhausted(headers: Mapping[str, str]) -> float | None:
    """Seconds until requests or tokens are to be had again, by the `x-ratelimit-*` headers; None while there are."""
    waits = [
        _duration(headers.get(left.replace("remaining", "reset"), ""))
        for left in (REQUESTS_LEFT, TOKENS_LEFT)
        if headers.get(left, "").strip() == "0"
    ]
    return min(max(waits), LONGEST_RETRY_AFTER) if waits else None


def _duration(text: str) -> float:
    """Seconds in words like `6m0s`, `1.5s`, `20ms`, or a bare number of seconds; 0 for anything else."""
    units = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001, "": 1.0}
    if not DURATION.fullmatch(text.strip()):
        return 0.0
    return sum(float(number) * units[unit] for number, unit in DURATION_PART.findall(text))


def _object(body: bytes) -> dict[str, Any] | None:
    """The JSON object of a body; None where it is none, or not whole."""
    try:
        data = orjson.loads(body)
    except ValueError:
        data = _leniently(body)
    return data if type(data) is dict else None


def _leniently(body: bytes) -> Any:
    """A body that is whole, and hence paid for, though orjson refuses it; None where it is not whole.

    A bare NaN, a byte order mark, half a surrogate pair, line ends in strings, and bytes that are no UTF-8 do no harm.
    """
    try:
        return json.loads(body.decode("utf-8-sig", "replace"), strict=False, object_pairs_hook=_writable)
    except (ValueError, RecursionError):
        return None


def _writable(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object whose texts a file can hold: half a surrogate pair becomes U+FFFD."""
    return {name: HALF_PAIR.sub("\ufffd", value) if type(value) is str else value for name, value in pairs}


def _said(holder: Any) -> str:
    """The endpoint's own words on one line, the error's code in front; empty where they stand in no known place."""
    if type(holder) is str:
        return one_line(holder)
    if type(holder) is not dict:
        return ""
    if type(holder.get("error")) is dict:
        holder = holder["error"]
    values = [holder.get(name) for name in ("error", "code", "type", "message", "detail")]
    return one_line(", ".join(dict.fromkeys([str(value) for value in values if value and type(value) in (str, int)])))


def _words(said: str) -> str:
    """What the lists above are looked up in: the endpoint's own words in lower case, without the input it quotes."""
    return ECHOED_INPUT.split(said, maxsplit=1)[0].lower()


def one_line(text: str) -> str:
    """Foreign words as a message shows them: printable, on one line, and not too long.

    A word that the end cuts in two goes as a whole, since a part of an echoed key would not be recognised as one.
    """
    line = "".join(filter(str.isprintable, " ".join(text.split())))
    return line if len(line) <= SHOWN else re.sub(r"[!-~]+\Z", "", line[:SHOWN]) + "…"


def _text(content: Any) -> str:
    """The text of a message: a string, or the parts of type text that some endpoints make of it."""
    if type(content) is list:
        texts = [part.get("text") for part in content if type(part) is dict and part.get("type") == "text"]
        return "".join([text for text in texts if type(text) is str])
    return content if type(content) is str else ""


def _status_within(error: Any, low: str) -> int:
    """Some relays answer 200 with an error object: its code tells the status, or else what it says; 502 by default."""
    code = error.get("code") if type(error) is dict else None
    code = str(code) if type(code) in (str, int) else ""
    if len(code) == 3 and code.isdecimal() and int(code) >= 400:
        return int(code)
    return 400 if _any(CONTENT_FILTER, low) or _any(CONTEXT, low) or _any(UNKNOWN_MODEL, low) else 502


def _count(value: Any) -> int | None:
    return value if type(value) is int and 0 <= value < LARGEST_COUNT else None


def _any(words: tuple[str, ...], text: str) -> bool:
    return any(word in text for word in words)
