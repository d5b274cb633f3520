"""The meaning of an endpoint's reply: the classes of docs/design.md, section 6. Pure.

`completion` reads a reply with a status from 200 to 299, `refused` any other. Both return a completion if the reply
settles the request (a provider's content filter and a prompt that is too long do); otherwise they raise the error of
its class.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import orjson
from msgspec import structs

from harness.endpoint import error_phrases as phrases
from harness.endpoint.error_phrases import error_text, one_line, says
from harness.endpoint.requested_wait import requested_wait
from harness.endpoint.usage import reasoning_tokens, reported_tokens
from harness.errors import ConfigurationRefused, EndpointStopped, Rejected, TransportFault
from harness.model import Completion

RETRIED = frozenset({402, 408, 409, 425, 429})
"""402 is retried only if it is not an empty account, which is checked first."""
ONLY_THINKING = "only_thinking"
"""The finish reason of a reply that was cut off before its answer began: all its tokens went into thoughts."""
TOOL_CALL, UNCLOSED = "tool_call", "unclosed"
"""Finish reasons of a reply whose text is the arguments of its only tool call, and of a streamed one whose JSON has no
end: some relays end a stream that broke off behind them like any other (LiteLLM: finish_reason `stop`, [DONE])."""
REFUSED = "the endpoint refuses the key"
"""The beginning of a message about the key itself, and not about the account or the country."""
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
"""Python's codec for the charset of a content type; GB18030 is a superset of the others that are called GB."""
CHARSET = re.compile(r"""charset\s*=\s*["']?([\w-]+)""", re.IGNORECASE | re.ASCII)
JSON_TYPE = re.compile(r"\s*application/json\s*(?:;\s*charset=utf-8\s*)?", re.IGNORECASE)
FENCED = re.compile(r"```\w*\s*\n(.*)\n\s*```", re.DOTALL)
NO_WORDS = "no explanation"
HTML = re.compile(rb"\s*(?:<!--.{0,500}-->\s*)?<(?:!doctype html|html|head|body)\b", re.IGNORECASE | re.DOTALL)
TO_OPENAI = "this harness speaks OpenAI's chat completions: "
FOREIGN = {
    "Anthropic's Messages API": TO_OPENAI
    + "give the provider's OpenAI-compatible address (https://api.anthropic.com/v1)",
    "Gemini's own API": TO_OPENAI
    + "give https://generativelanguage.googleapis.com/v1beta/openai, or your proxy's OpenAI-compatible address",
    "Ollama's own API": TO_OPENAI + "let the address end in /v1 instead of /api",
    "OpenAI's Responses API": TO_OPENAI + "let the address end before /responses",
}
"""APIs whose replies are known by their members, and what to do about each."""
JSON_MARKS = re.compile(r'"(?:[^"\\]|\\.)*"?|[{}\[\]]', re.DOTALL)
"""A string, or the rest of the text that begins like one; a bracket."""


class Denied(EndpointStopped):
    """401, 403 or a used-up quota: terminal before any success. After one it may be a passing fault of the endpoint, or
    a limit of tokens a minute in the same words, until a later try is denied too."""


def completion(body: bytes, content_type: str = "") -> Completion:
    """Return the completion in a reply with a status from 200 to 299."""
    data = decoded(body, content_type)
    if data is None:
        if HTML.match(body):
            raise TransportFault("bad_json", "the reply is an HTML page: check the address", foreign=True)
        if (first := decoded(body.partition(b"\n")[0])) is not None and (why := _other_api(first)):
            raise TransportFault("bad_json", why, foreign=True)  # Ollama streams one object a line
        named = "" if JSON_TYPE.fullmatch(content_type) else f" (its type is {one_line(content_type) or 'not named'})"
        raise TransportFault("bad_json", f"the reply is not whole JSON{named}")
    return completion_of(data)


def completion_of(data: dict[str, Any]) -> Completion:
    """Return the completion in a reply that is decoded already, or put together from the pieces of a stream."""
    choices, error = data.get("choices"), data.get("error")
    choice = next(filter(is_first, choices), None) if type(choices) is list else None
    if choice is not None:
        error = choice.get("error") or error
    if error or choice is None:
        return _without_answer(data, error)
    message = choice.get("message")
    if type(message) is not dict:
        raise TransportFault("no_choices", "the reply's choice has no message")
    refusal, content, reason = message.get("refusal"), message.get("content"), choice.get("finish_reason")
    usage, model = data.get("usage"), data.get("model")
    if reason != "stop":
        reason = _finish_reason(reason)
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
        calls = message.get("tool_calls")
        if calls and not text.strip() and reason in ("tool_calls", "stop", None):
            text, reason = _of_tool_call(text, reason, calls)
    tokens = reported_tokens(usage, has_text=bool(text or thoughts))
    return Completion(  # by position, which is faster
        text,
        reason,
        tokens.prompt,
        tokens.completion,
        model if type(model) is str else None,
        refusal if type(refusal) is str and refusal else None,
        thoughts,
        tokens.cached,
        tokens.reasoning,
        tokens.unclear,
    )


def is_first(choice: Any) -> bool:
    """Return whether a choice has index 0 or none; only one was requested."""
    return type(choice) is dict and not choice.get("index")


def _without_answer(data: dict[str, Any], error: Any) -> Completion:
    """Settle a reply that has an error object or no choice. Relays and MiniMax send errors with status 200.

    The code of an error object may be its status; otherwise its words decide, 502 by default.
    """
    words = error_text(error or data)
    if error:
        code = error.get("code") if type(error) is dict else None
        code, low = str(code) if type(code) in (str, int) else "", phrases.searchable(words)
        bad_request = any(says(topic, low) for topic in ("content_filter", "context", "unknown_model"))
        is_status = len(code) == 3 and code.isdecimal() and int(code) >= 400
        status = int(code) if is_status else 400 if bad_request else 502
    else:
        base = data.get("base_resp")
        code = base.get("status_code") if type(base) is dict else None
        if type(code) is not int or not code:
            if why := _other_api(data):
                raise TransportFault("no_choices", why, foreign=True)
            lacks = "no choice of index 0" if data.get("choices") else "no choices"
            raise TransportFault("no_choices", f"the reply has {lacks}" + (f": {words}" if words else ""))
        status = phrases.BASE_RESP.get(code, 500)
    return _settle(status, words, words, {}, datetime.now(UTC), delay=phrases.retry_delay(data))


def _finish_reason(reason: Any) -> str | None:
    """Return OpenAI's word for a finish reason, or the endpoint's own where there is none."""
    if type(reason) is not str:
        return None
    low = reason.lower()
    if low in phrases.PHRASES["broken_off"]:
        raise TransportFault("broken_off", f"the endpoint ended its reply with finish_reason {reason}")
    return phrases.FINISH_REASONS.get(low, reason)


def _without_text(
    text: str, thoughts: str | None, reason: str | None, usage: Any
) -> tuple[str, str | None, str | None]:
    """Return text, thoughts and finish reason of a reply with a blank text.

    vLLM and SGLang with a reasoning parser put the answer of a model that does not think in the member for thoughts
    (vllm-project/vllm issues): a JSON object and nothing else there is the answer.
    """
    if reason == "length" and (thoughts or (type(usage) is dict and reasoning_tokens(usage))):
        return text, thoughts, ONLY_THINKING
    if reason in ("stop", None) and thoughts:
        fenced = FENCED.fullmatch(thoughts.strip())
        with suppress(ValueError):
            if type(orjson.loads(fenced[1] if fenced else thoughts)) is dict:
                return thoughts, None, reason
    return text, thoughts, reason


def _of_tool_call(text: str, reason: str | None, calls: Any) -> tuple[str, str | None]:
    """Return text and finish reason of a reply without a text: the arguments of its only tool call, if they are an
    object. No tools are offered, so such a call is the answer of a model that answers by tool calls."""
    call = calls[0] if type(calls) is list and len(calls) == 1 else None
    function = call.get("function") if type(call) is dict else None
    arguments = function.get("arguments") if type(function) is dict else None
    if type(arguments) is str:
        with suppress(ValueError):
            if type(orjson.loads(arguments)) is dict:
                return arguments, TOOL_CALL
    return text, reason


def without_end(reply: Completion) -> Completion:
    """Return a streamed reply marked as `unclosed` if its JSON has no end, although the stream has one."""
    if reply.finish_reason not in ("stop", None) or not _is_unclosed(reply.text):
        return reply
    return structs.replace(reply, finish_reason=UNCLOSED)


def _is_unclosed(text: str) -> bool:
    """Return whether a text stops within an object. A string that has no end, in a text that has one, is a mark that
    the model forgot to escape."""
    answer = text.rpartition("</think>")[2]
    start = answer.find("{")
    if start < 0:
        return False
    with suppress(ValueError):
        orjson.loads(answer[start:])
        return False
    depth = 0
    for mark in JSON_MARKS.findall(answer, start):
        if mark[0] == '"':
            if (len(mark) == 1 or mark[-1] != '"') and answer.rstrip("` \t\r\n").endswith("}"):
                return False
        else:
            depth += 1 if mark in "{[" else -1
            if depth <= 0:
                return False  # the first object is whole
    return depth > 0


def _other_api(data: Mapping[str, Any]) -> str | None:
    """Return which other API a reply seems to be of, and what to do; None for none that is known."""
    message = data.get("message")
    kind = data.get("type")
    if (kind == "message" and type(data.get("content")) is list) or kind in ("message_start", "message_stop"):
        name = "Anthropic's Messages API"
    elif type(data.get("candidates")) is list or type(data.get("usageMetadata")) is dict:
        name = "Gemini's own API"
    elif type(data.get("done")) is bool and (type(message) is dict or type(data.get("response")) is str):
        name = "Ollama's own API"
    elif data.get("object") == "response" and type(data.get("output")) is list:
        name = "OpenAI's Responses API"
    else:
        return None
    return f"the reply is of {name}: {FOREIGN[name]}"


def refused(status: int, headers: Mapping[str, str], body: bytes, now: datetime, request: bytes = b"") -> Completion:
    """Return what a reply of another status to the body `request` settles; raise the error that it means otherwise."""
    data = decoded(body, headers.get("Content-Type", ""))
    words = error_text(data) if data is not None else ""
    if status == 403 and HTML.match(body):
        raise Denied(_blocked(status, headers, body))
    shown = words or one_line(body.decode("utf-8", "replace"))
    delay = phrases.retry_delay(data)
    return _settle(status, words, shown, headers, now, request.decode("utf-8", "replace"), delay)


def _blocked(status: int, headers: Mapping[str, str], body: bytes) -> str:
    """Return what a page in place of an API's error means: what stands in front of the endpoint refused the request."""
    by_cloudflare = headers.get("Server", "").lower() == "cloudflare" or b"cloudflare" in body.lower()
    return (
        f"{'Cloudflare' if by_cloudflare else 'a gateway'} in front of the endpoint answers with status {status} "
        "and an HTML page, which says nothing about the key: it may block this client or this machine's address; try "
        "from another network, or ask the provider to allow yours"
    )


def _settle(
    status: int,
    words: str,
    shown: str,
    headers: Mapping[str, str],
    now: datetime,
    request: str = "",
    delay: str | None = None,
) -> Completion:
    """Judge an error by its status and the endpoint's own `words`; `shown` is for messages alone."""
    low = phrases.searchable(phrases.without_quotes(words, request))
    if status in (400, 403, 422) and says("content_filter", low):
        return Completion("", "content_filter")
    if phrases.too_long(status, low):
        return Completion("", "context_length")
    kind, shown = f"http_{status}", shown or NO_WORDS
    if stop := _stop(status, low, shown):
        raise stop
    if 300 <= status < 400:
        target = one_line(headers.get("Location", "another address"))
        raise EndpointStopped(f"the endpoint redirects to {target}: give that address if it is right")
    if status == 429 and says("too_large", low):
        raise Rejected(kind, shown)
    if status in RETRIED or not 200 <= status < 500:
        raise TransportFault(kind, shown, retry_after=requested_wait(status, headers, now, low, delay))
    if status in (404, 405):
        raise TransportFault(kind, shown, unreachable=True)
    raise Rejected(kind, shown)


def _stop(status: int, low: str, shown: str) -> EndpointStopped | None:
    """Return the error of an account, model or key that the endpoint does not serve; None for others."""
    if phrases.used_up(status, low):
        return Denied(
            f"the endpoint says that the account's quota or balance is used up ({shown}): top it up, then resume"
        )
    if status in (400, 403, 404) and phrases.unknown_model(low):
        return ConfigurationRefused(f"the endpoint does not know this model ({shown}): check --model")
    if status in (400, 401, 403) and says("region", low):
        return Denied(
            f"the endpoint does not serve the country that this machine is in ({shown}): take another provider"
        )
    if status in (401, 403) or (status == 400 and says("key", low)):
        header = "; Azure takes it as a header: --extra-header 'api-key: ...'" if says("azure_key", low) else ""
        return Denied(f"{REFUSED} with status {status} ({shown}): check the key and what it may use{header}")
    return None


def decoded(body: bytes, content_type: str = "") -> dict[str, Any] | None:
    """Return the JSON object of a body; None if it is no object, or not whole. Gemini sends errors as a list of one.

    A body that is whole, and hence billed, is read although orjson refuses it: a bare NaN, a byte order mark, half a
    surrogate pair, line ends in strings, and bytes that are not UTF-8 do no harm.
    """
    try:
        data = orjson.loads(body)
    except ValueError:
        try:
            data = json.loads(_text(body, content_type), strict=False, object_pairs_hook=without_half_pairs)
        except (ValueError, RecursionError):
            return None
    if type(data) is list and len(data) == 1:
        (data,) = data
    return data if type(data) is dict else None


def _text(body: bytes, content_type: str) -> str:
    """Decode a body: UTF-8, or the encoding of its byte order mark or else of its type. Raise `ValueError`.

    The type does not count if the body is UTF-8 all the same: JSON has no other encoding (RFC 8259, section 8.1), and
    servers write any charset. Some bytes that are not UTF-8 do no harm, but a text of another charset would be
    gibberish from end to end that looks like an answer.
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


def without_half_pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object with texts that a file can hold: half a surrogate pair becomes U+FFFD."""
    return {name: HALF_PAIR.sub("\ufffd", value) if type(value) is str else value for name, value in pairs}


def _parts(content: Any) -> tuple[str, str | None]:
    """Return text and thoughts of a content that is a list of parts; nothing for any other content.

    Mistral's thoughts are a part of type `thinking` that holds parts of type text itself.
    """
    parts = [part for part in content if type(part) is dict] if type(content) is list else []
    thoughts = _texts(parts, "thinking") + _texts(parts, "reasoning")
    return _texts(parts, "text"), thoughts or None


def _texts(parts: list[dict[str, Any]], kind: str) -> str:
    found = []
    for part in parts:
        value = part.get(kind) or part.get("text") if part.get("type") == kind else None
        found.append(_parts(value)[0] if type(value) is list else value)
    return "".join([text for text in found if type(text) is str])
