"""What a reply of an endpoint means: the classes of docs/design.md, section 6. Pure.

`completion` reads a reply of a status from 200 to 299, `refused` any other. Both return a completion where the
reply settles the request (a provider's content filter and a prompt that is too long do), and raise
the error of the right class where it does not.
"""

from __future__ import annotations

import codecs
import json
import math
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

import orjson

from harness.endpoint.error_phrases import (
    BASE_RESP,
    BROKEN_OFF,
    CONTENT_FILTER,
    CONTEXT,
    FINISH_REASONS,
    REGION,
    UNKNOWN_MODEL,
    any_of,
    names_no_model,
    own_words,
    said,
    too_long,
    used_up,
    without_quotes,
)
from harness.endpoint.error_phrases import one_line as one_line  # who shows foreign words finds it here
from harness.errors import CallError, EndpointStopped, Rejected, TransportFault
from harness.model import LARGEST_COUNT, Completion

RETRIED = frozenset({402, 408, 409, 425, 429})
"""402 is here for what is left of it once an empty account has been told apart."""

LONGEST_RETRY_AFTER = 3600.0
"""Seconds; a longer wait is cut to this, since nobody waits a day for one request."""

ONLY_THINKING = "only_thinking"
"""The finish reason of a reply that was cut off before its answer began: all its tokens went into thoughts."""

REFUSED = "the endpoint refuses the key"
"""How a sentence begins that is about the key itself, and not about the account or the country."""

REQUESTS_LEFT, TOKENS_LEFT = "x-ratelimit-remaining-requests", "x-ratelimit-remaining-tokens"

DURATION_PART = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)(ms|h|m|s|)")
DURATION = re.compile(r"(?:\d{1,9}(?:\.\d{1,9})?(?:ms|h|m|s))+|\d{1,9}(?:\.\d{1,9})?")

HALF_PAIR = re.compile("[\ud800-\udfff]")

MARKS = {
    codecs.BOM_UTF32_LE: "utf-32",  # before that of UTF-16, with which it begins
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
CHARSETS = {
    **dict.fromkeys(("gbk", "gb2312", "gb18030"), "gb18030"),
    **{name: name for name in ("big5", "utf-16", "utf-16le", "utf-16be", "utf-32", "utf-32le", "utf-32be")},
}
"""Python's codec by the charset of a type; of each that is called GB in the wild, the one that holds them all."""
CHARSET = re.compile(r"""charset\s*=\s*["']?([\w-]+)""", re.IGNORECASE | re.ASCII)
JSON_TYPE = re.compile(r"\s*application/json\s*(?:;\s*charset=utf-8\s*)?", re.IGNORECASE)

FENCED = re.compile(r"```\w*\s*\n(.*)\n\s*```", re.DOTALL)

NO_WORDS = "no explanation"


def completion(body: bytes, content_type: str = "") -> Completion:
    """The completion in a reply of a status from 200 to 299."""
    data = _object(body, content_type)
    if data is None:
        named = "" if JSON_TYPE.fullmatch(content_type) else f" (its type is {one_line(content_type) or 'not named'})"
        raise TransportFault("bad_json", f"the reply is not whole JSON{named}")
    return completion_of(data)


def completion_of(data: dict[str, Any]) -> Completion:
    """The same for a reply that is decoded already, or put together from the pieces of a stream."""
    choices = data.get("choices")
    choice = next(filter(is_first, choices), None) if type(choices) is list else None
    error = data.get("error")
    if choice is not None:
        error = choice.get("error") or error
    if error:
        words = said(error)
        return _judged(_status_within(error, own_words(words)), words, words, {}, datetime.now(UTC))
    if choice is None:
        return _without_choices(data)
    message = choice.get("message")
    if type(message) is not dict:
        raise TransportFault("no_choices", "the reply's choice has no message")
    reason = choice.get("finish_reason")
    return _completion(data, message, reason if reason == "stop" else _finish_reason(reason))


def is_first(choice: Any) -> bool:
    """Whether a choice is that of index 0, as one without an index is; others answer what nobody asked."""
    return type(choice) is dict and not choice.get("index")


def _without_choices(data: dict[str, Any]) -> Completion:
    words, base = said(data), data.get("base_resp")
    code = base.get("status_code") if type(base) is dict else None
    if type(code) is int and code:
        return _judged(BASE_RESP.get(code, 500), words, words, {}, datetime.now(UTC))
    lacks = "no choice of index 0" if data.get("choices") else "no choices"
    raise TransportFault("no_choices", f"the reply has {lacks}" + (f": {words}" if words else ""))


def _finish_reason(reason: Any) -> str | None:
    """A finish reason in OpenAI's words where it means the same as one of them, else as it is."""
    if type(reason) is not str:
        return None
    low = reason.lower()
    if low in BROKEN_OFF:
        raise TransportFault("broken_off", f"the endpoint ended its reply with finish_reason {reason}")
    return FINISH_REASONS.get(low, reason)


def _completion(data: dict[str, Any], message: dict[str, Any], reason: str | None) -> Completion:
    refusal, usage, model, content = (
        message.get("refusal"),
        data.get("usage"),
        data.get("model"),
        message.get("content"),
    )
    usage = usage if type(usage) is dict else {}
    thoughts = message.get("reasoning_content") or message.get("reasoning")
    if not thoughts or type(thoughts) is not str:
        thoughts = None
    if type(content) is str:
        text = content
    else:
        text, within = _parts(content)
        thoughts = thoughts or within
    if not text or text.isspace():
        text, thoughts, reason = _without_text(text, thoughts, reason, usage)
    return Completion(  # by position, which is faster
        text,
        reason,
        _count(usage.get("prompt_tokens")),
        _count(usage.get("completion_tokens")),
        model if type(model) is str else None,
        refusal if type(refusal) is str and refusal else None,
        thoughts,
    )


def _without_text(
    text: str, thoughts: str | None, reason: str | None, usage: dict[str, Any]
) -> tuple[str, str | None, str | None]:
    """Text, thoughts and finish reason of a reply whose text is blank.

    vLLM and SGLang with a reasoning parser put the answer of a model whose thinking is turned off where its thoughts
    would be (vllm-project/vllm issues): a JSON object and nothing else there is the answer.
    """
    if reason == "length" and (thoughts or _thought_tokens(usage)):
        return text, thoughts, ONLY_THINKING
    if reason in ("stop", None) and thoughts and _is_object(thoughts):
        return thoughts, None, reason
    return text, thoughts, reason


def _thought_tokens(usage: dict[str, Any]) -> int | None:
    """As OpenAI tells them, or SGLang: beside the other counts."""
    details = usage.get("completion_tokens_details")
    return _count((details if type(details) is dict else usage).get("reasoning_tokens"))


def _is_object(text: str) -> bool:
    fenced = FENCED.fullmatch(text.strip())
    try:
        return type(orjson.loads(fenced[1] if fenced else text)) is dict
    except ValueError:
        return False


def refused(status: int, headers: Mapping[str, str], body: bytes, now: datetime, asked: bytes = b"") -> Completion:
    """What a reply of another status to the request `asked` settles; raises what it does not."""
    data = _object(body, headers.get("Content-Type", ""))
    words = said(data) if data is not None else ""
    shown = words or one_line(body.decode("utf-8", "replace"))
    return _judged(status, words, shown, headers, now, asked.decode("utf-8", "replace"))


def _judged(
    status: int, words: str, shown: str, headers: Mapping[str, str], now: datetime, asked: str = ""
) -> Completion:
    """What an error means by its status and by the endpoint's own `words`; `shown` is for messages alone."""
    low = own_words(without_quotes(words, asked))
    if status in (400, 403, 422) and any_of(CONTENT_FILTER, low):
        return Completion("", "content_filter")
    if too_long(status, low):
        return Completion("", "context_length")
    raise _error(status, shown or NO_WORDS, low, headers, now)


def _error(status: int, shown: str, low: str, headers: Mapping[str, str], now: datetime) -> CallError | EndpointStopped:
    kind = f"http_{status}"
    if used_up(status, low):
        return Denied(
            f"the endpoint says that the account's quota or balance is used up ({shown}): top it up, then resume"
        )
    if status in (400, 403, 404) and names_no_model(low):
        return EndpointStopped(f"the endpoint does not know this model ({shown}): check --model")
    if status in (401, 403):
        if any_of(REGION, low):
            return Denied(f"the endpoint does not serve the country that this machine is in ({shown})")
        return Denied(f"{REFUSED} with status {status} ({shown}): check the key and what it may use")
    if 300 <= status < 400:
        target = one_line(headers.get("Location", "another address"))
        return EndpointStopped(f"the endpoint redirects to {target}: give that address if it is right")
    if status in RETRIED or not 200 <= status < 500:
        return TransportFault(kind, shown, retry_after=retry_after(headers.get("Retry-After"), now))
    if status == 404:
        return TransportFault(kind, shown, unreachable=True)
    return Rejected(kind, shown)


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


def _object(body: bytes, content_type: str = "") -> dict[str, Any] | None:
    """The JSON object of a body; None where it is none, or not whole."""
    try:
        data = orjson.loads(body)
    except ValueError:
        data = _leniently(body, content_type)
    return data if type(data) is dict else None


def _leniently(body: bytes, content_type: str) -> Any:
    """A body that is whole, and hence paid for, though orjson refuses it; None where it is not whole.

    A bare NaN, a byte order mark, half a surrogate pair, line ends in strings, and bytes that are no UTF-8 do no harm.
    """
    try:
        return json.loads(_text(body, content_type), strict=False, object_pairs_hook=_writable)
    except (ValueError, RecursionError):
        return None


def _text(body: bytes, content_type: str) -> str:
    """A body as text: UTF-8, or what its byte order mark or else its type says. Raises `ValueError`.

    What a type says does not count where the body is UTF-8 all the same: JSON has no other (RFC 8259, section 8.1), and
    servers write any charset. Some bytes that are no UTF-8 do no harm, but a text of another charset would be gibberish
    from end to end that looks like an answer.
    """
    for mark, codec in MARKS.items():
        if body.startswith(mark):
            return body.decode(codec)
    try:
        return body.decode("utf-8-sig")
    except UnicodeDecodeError:
        charset = CHARSET.search(content_type)
        name = charset[1].lower() if charset else "utf-8"
        if name in ("utf-8", "utf8"):
            return body.decode("utf-8-sig", "replace")
        if name not in CHARSETS:
            raise
        return body.decode(CHARSETS[name])


def _writable(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object whose texts a file can hold: half a surrogate pair becomes U+FFFD."""
    return {name: HALF_PAIR.sub("\ufffd", value) if type(value) is str else value for name, value in pairs}


def _parts(content: Any) -> tuple[str, str | None]:
    """Text and thoughts of a content that is a list of parts, which some endpoints make of it; else nothing.

    Mistral's thoughts are a part of type `thinking` that holds parts of type text itself.
    """
    parts = [part for part in content if type(part) is dict] if type(content) is list else []
    text = "".join(_texts(parts, "text"))
    thoughts = "".join([*_texts(parts, "thinking"), *_texts(parts, "reasoning")])
    return text, thoughts or None


def _texts(parts: list[dict[str, Any]], kind: str) -> list[str]:
    found = []
    for part in parts:
        value = part.get(kind) or part.get("text") if part.get("type") == kind else None
        found.append(_parts(value)[0] if type(value) is list else value)
    return [text for text in found if type(text) is str]


def _status_within(error: Any, low: str) -> int:
    """Some relays answer 200 with an error object: its code tells the status, or else what it says; 502 by default."""
    code = error.get("code") if type(error) is dict else None
    code = str(code) if type(code) in (str, int) else ""
    if len(code) == 3 and code.isdecimal() and int(code) >= 400:
        return int(code)
    return 400 if any_of(CONTENT_FILTER, low) or any_of(CONTEXT, low) or any_of(UNKNOWN_MODEL, low) else 502


def _count(value: Any) -> int | None:
    return value if type(value) is int and 0 <= value < LARGEST_COUNT else None
