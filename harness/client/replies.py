"""The meaning of an endpoint's reply: the classes of docs/design.md, section 6. Pure.

`completion` reads a reply with a status from 200 to 299, `refused` any other. Both return a
completion if the reply settles the request (a provider's content filter and a prompt that is too
long do); otherwise they raise the error of its class.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Any

import orjson

from harness.benchmarks.parsing import FINAL_REASONS, after_thinking, is_json
from harness.client import error_phrases as phrases
from harness.client.error_phrases import error_text, is_error, one_line, says
from harness.client.objects import object_of, objects_of
from harness.client.request_body import offers_tools
from harness.client.requested_wait import requested_wait
from harness.client.usage import reasoning_tokens, reported_tokens
from harness.errors import ConfigurationRefused, EndpointStopped, Rejected, TransportFault
from harness.model import Completion, ToolCall

ONLY_THINKING = "only_thinking"
"""The finish reason of a reply that was cut off before its answer began: all its tokens went into
thoughts."""
TOOL_CALL, UNCLOSED = "tool_call", "unclosed"
"""Finish reasons of a reply whose text is the arguments of its only tool call, and of one whose
JSON has no end: some relays end a stream that broke off behind them like any other (LiteLLM:
finish_reason `stop`, [DONE])."""
SETTLED = frozenset({"content_filter", "context_length", "failed_generation", "length"})
"""Meanings of errors that are finish reasons of an answer without a text."""
CLIENT_ERRORS = frozenset(status for status in HTTPStatus if status >= 400)
"""Statuses that a code below 500 may be. Relays have other codes of three digits, with meanings of
their own."""
CUT_OFF = ("length", "content_filter")
PART_MEMBERS = frozenset({"type", "text", "thinking", "annotations", "logprobs"})
"""Members of a part of a content; an object with any others is the answer itself, decoded."""
OBJECT = re.compile(r'\{\s*["}]')
FENCE_ALONE = re.compile(r"\s*(?:```\w*\s*)?")
KEY_REFUSED = "the endpoint refuses the key"
"""The beginning of a message about the key itself, and not about the account or the country."""
AZURE_HINT = "; Azure takes it as a header: --extra-header 'api-key: ...'"
HALF_PAIR = re.compile("[\ud800-\udfff]")
CHARSETS = {"gbk": "gb18030", "gb2312": "gb18030", "gb18030": "gb18030", "big5": "big5"}
"""Python's codec for the charset of a content type; GB18030 is a superset of the others that are
called GB."""
CHARSET = re.compile(r"""charset\s*=\s*["']?([\w-]+)""", re.IGNORECASE | re.ASCII)
JSON_TYPE = re.compile(r"\s*application/json\s*(?:;\s*charset=utf-8\s*)?", re.IGNORECASE)
NO_EXPLANATION = "no explanation"
HTML = re.compile(
    rb"\s*(?:<!--.{0,500}-->\s*)?<(?:!doctype html|html|head|body)\b", re.IGNORECASE | re.DOTALL
)
TO_OPENAI = "this harness speaks OpenAI's chat completions: "
FOREIGN = {
    "Anthropic's Messages API": (
        TO_OPENAI + "give the provider's OpenAI-compatible address (https://api.anthropic.com/v1)"
    ),
    "Gemini's own API": (
        TO_OPENAI + "give https://generativelanguage.googleapis.com/v1beta/openai, or your proxy's"
        " OpenAI-compatible address"
    ),
    "Ollama's own API": TO_OPENAI + "let the address end in /v1 instead of /api",
    "OpenAI's Responses API": TO_OPENAI + "let the address end before /responses",
}
"""APIs whose replies are known by their members, and what to do about each."""
JSON_MARKS = re.compile(r'"(?:[^"\\]|\\.)*"?|[{}\[\]]', re.DOTALL)
"""A string, or the rest of the text that begins like one; a bracket."""


class Denied(EndpointStopped):
    """The endpoint refuses the key, the model or the like. It may be a passing fault, or this one
    request's doing (a firewall's); hence the run ends with it only if the endpoint answers no other
    request either."""


class UsedUp(Denied):
    """The account's quota or balance is used up: the run ends at once."""


class UnknownModel(Denied, ConfigurationRefused):
    """The endpoint does not know the model."""


def completion(body: bytes, content_type: str = "", request: bytes = b"{}") -> Completion:
    """Return the completion in a reply with a status from 200 to 299 to the body `request`."""
    data = decoded(body, content_type)
    if data is None:
        if HTML.match(body):
            raise TransportFault(
                "bad_json", "the reply is an HTML page: check the address", foreign=True
            )
        first_line = decoded(body.partition(b"\n")[0])  # Ollama streams one object a line
        other_api = _other_api(first_line or {})
        if other_api:
            raise TransportFault("bad_json", other_api, foreign=True)
        type_note = f" (its type is {one_line(content_type) or 'not named'})"
        if JSON_TYPE.fullmatch(content_type):
            type_note = ""
        raise TransportFault("bad_json", f"the reply is not whole JSON{type_note}")
    return completion_of(data, request=request)


def completion_of(
    data: dict[str, Any], is_streamed: bool = False, request: bytes = b"{}"
) -> Completion:
    """Return the completion in a reply to the body `request` that is decoded already, or put
    together from the pieces of a stream."""
    if not data.get("choices"):
        data = without_envelope(data)
    choice = _choice(data.get("choices"))
    error = _error(choice, data)
    if choice is None or error is not None:
        return _without_answer(data, error)
    message = _message(choice)
    if message is None:
        raise TransportFault("no_choices", "the reply's choice has no message")
    refusal = message.get("refusal")
    content = message.get("content")
    reason = choice.get("finish_reason")
    model = data.get("model")
    provider = data.get("provider")
    fingerprint = data.get("system_fingerprint")
    usage = data.get("usage")
    if type(usage) is not dict:
        usage = {}
    if reason != "stop":
        reason = _finish_reason(reason)
    thoughts = message.get("reasoning_content") or message.get("reasoning")
    if not thoughts or type(thoughts) is not str:
        thoughts = None
    if type(content) is str:
        text = content
    else:
        text, thoughts_in_content = _text_and_thoughts(content)
        thoughts = thoughts or thoughts_in_content
    calls = _offered_calls(message, request)
    if not calls and (not text or text.isspace()):
        text, thoughts, reason = _without_text(message, text, thoughts, reason, usage)
    # A relay may have lost the end of a stream, and still close it as if it was whole.
    elif not calls and (is_streamed or reason != "stop") and _is_unclosed(text, reason):
        reason = UNCLOSED
    tokens = reported_tokens(usage, has_text=bool(text or thoughts or calls))
    logprobs = choice.get("logprobs")
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
        provider if type(provider) is str and provider else None,
        fingerprint if type(fingerprint) is str and fingerprint else None,
        calls,
        storable(logprobs) if type(logprobs) is dict else None,
    )


def without_envelope(data: dict[str, Any]) -> dict[str, Any]:
    """Return a reply with the members of the one in it, if a relay has put that into an object of
    its own."""
    for value in data.values():
        if type(value) is dict and type(value.get("choices")) is list:
            return data | value
    return data


def index_of(choice: dict[str, Any]) -> Any:
    """Return the index of a choice, 0 for one without."""
    index = choice.get("index")
    return 0 if not index or index == "0" else index


def _choice(choices: object) -> dict[str, Any] | None:
    """Return the choice of index 0, since only one was requested; another one that is an answer if
    that one is none."""
    objects = objects_of(choices)
    if len(objects) < 2:
        return next(iter(objects), None)
    objects.sort(key=lambda choice: index_of(choice) != 0)
    return next(filter(_is_answer, objects), objects[0])


def _is_answer(choice: dict[str, Any]) -> bool:
    message = _message(choice) or {}
    if choice.get("error") or message.get("refusal"):
        return True
    if choice.get("finish_reason") in CUT_OFF:
        return True
    text, _ = _text_and_thoughts(message.get("content"))
    return bool(text.strip() or _elsewhere(message))


def _message(choice: dict[str, Any]) -> dict[str, Any] | None:
    """Return the message of a choice, also where it is called `delta`, or is the `text` of a
    completion."""
    message = choice.get("message") or choice.get("delta")
    if message and type(message) is dict:
        return message
    text = choice.get("text")
    if type(text) is str:
        return {"content": text}
    return {} if type(choice.get("message")) is dict else None


def _error(choice: dict[str, Any] | None, data: dict[str, Any]) -> Any:
    """Return the error in a choice or beside it; None without."""
    for holder in (choice or {}, data):
        error = holder.get("error")
        if error and is_error(error):
            return error
    return None


def _without_answer(data: dict[str, Any], error: object = None) -> Completion:
    """Settle a reply that has an error object or no choice.

    A code of three digits is its status; otherwise its message decides.
    """
    # Relays and MiniMax send errors with status 200.
    code = object_of(data.get("base_resp")).get("status_code")
    if error is None and type(code) is int and code:
        status: int | None = phrases.BASE_RESP.get(code, 500)
    else:
        status = _status(error) or _status(data)
    message = error_text(data if error is None else error)
    if error is None and status is None:
        other_api = _other_api(data)
        if other_api:
            raise TransportFault("no_choices", other_api, foreign=True)
        if phrases.rule_of(None, phrases.searchable(message)).meaning == "transient":
            shown = message or one_line(json.dumps(data, ensure_ascii=False))
            raise TransportFault("no_choices", f"the reply has no choices: {shown}")
    delay = phrases.retry_delay(data)
    return _settle(status, message, message, {}, datetime.now(UTC), delay=delay)


def _status(error: object) -> int | None:
    """Return the status that an error names, None without one."""
    members = object_of(error)
    for name in ("code", "status_code", "status"):
        value = members.get(name)
        if type(value) not in (str, int):
            continue
        code = str(value)
        if len(code) != 3 or not code.isdecimal():
            continue
        if int(code) >= 500 or int(code) in CLIENT_ERRORS:
            return int(code)
    return None


def _finish_reason(reason: object) -> str | None:
    """Return OpenAI's word for a finish reason, or the endpoint's own where there is none."""
    if type(reason) is not str:
        return None
    low = reason.lower()
    if low in phrases.PHRASES["broken_off"]:
        raise TransportFault(
            "broken_off", f"the endpoint ended its reply with finish_reason {reason}"
        )
    return phrases.FINISH_REASONS.get(low, reason)


def _without_text(
    message: dict[str, Any],
    text: str,
    thoughts: str | None,
    reason: str | None,
    usage: dict[str, Any],
) -> tuple[str, str | None, str | None]:
    """Return text, thoughts and finish reason of a reply with a blank text and no call of a tool
    that was offered."""
    if reason == "length" and (thoughts or reasoning_tokens(usage)):
        return text, thoughts, ONLY_THINKING
    # No tool was offered, so a call is how this model writes its answer.
    answer = "" if reason in FINAL_REASONS else _elsewhere(message)
    if answer:
        if not message.get("parsed"):
            reason = TOOL_CALL
        return answer, thoughts, reason
    # vLLM and SGLang with a reasoning parser put the answer of a model that does not think in the
    # member for thoughts, and all of a reply whose thoughts have no end. The only object there, at
    # its end, is the answer (vllm-project/vllm issues).
    if reason in ("stop", None) and thoughts:
        return _within_thoughts(text, thoughts, reason)
    is_empty = not (thoughts or message.get("refusal") or message.get("tool_calls"))
    if is_empty and reason not in FINAL_REASONS and usage.get("completion_tokens") == 0:
        why = "the reply is empty, and its usage has no completion token"
        raise TransportFault("no_completion", why)
    return text, thoughts, reason


def _elsewhere(message: dict[str, Any]) -> str:
    """Return the answer of a message in another member than its content; "" for none.

    That is the parsed answer, or the arguments of the only call if they are an object.
    """
    if message.get("parsed"):
        return _as_text(message["parsed"])
    calls = _listed_calls(message)
    if len(calls) == 1:
        arguments = arguments_of(calls[0])
        with suppress(ValueError):
            if type(orjson.loads(arguments)) is dict:
                return arguments
    return ""


def _listed_calls(message: dict[str, Any]) -> list[Any]:
    """Return the tool calls of a message, its only one also where it is in the older member."""
    calls = message.get("tool_calls") or [{"function": message.get("function_call")}]
    return calls if type(calls) is list else []


def _offered_calls(message: dict[str, Any], request: bytes) -> tuple[ToolCall, ...]:
    """Return the tool calls of a message if the body `request` offers tools: they are the answer
    then, with or without a text."""
    has_call = message.get("tool_calls") or message.get("function_call")
    if not has_call or not offers_tools(request):
        return ()
    return tuple(tool_calls_of(_listed_calls(message)))


def tool_calls_of(calls: Iterable[Any]) -> Iterator[ToolCall]:
    """Yield the tool calls of a message in OpenAI's form; what has no function is none."""
    for number, call in enumerate(calls, 1):
        function = function_of(call)
        if function is None:
            continue
        call_id = call.get("id")
        name = function.get("name")
        extra = call.get("extra_content")
        yield ToolCall(
            call_id if call_id and type(call_id) is str else f"call_{number}",
            name if type(name) is str else "",
            arguments_of(call),
            storable(extra) if type(extra) is dict else None,
        )


def storable(data: dict[str, Any]) -> dict[str, Any] | None:
    """Return data as it will be read again from a file, None for nothing: a bare NaN is null there.
    Raise `TransportFault` for what no file can hold."""
    try:
        stored = orjson.dumps(data)
    except TypeError as error:
        raise TransportFault("bad_json", f"the reply cannot be saved: {error}") from None
    loaded: dict[str, Any] = orjson.loads(stored)
    return loaded or None


def function_of(call: object) -> dict[str, Any] | None:
    """Return the function of a tool call, or of a piece of one; None if it has none."""
    function = object_of(call).get("function")
    return function if type(function) is dict else None


def arguments_of(call: object) -> str:
    """Return the arguments of a tool call, or a piece of them; "" if it has none."""
    function = function_of(call) or {}
    return _as_text(function.get("arguments"))


def _as_text(value: object) -> str:
    """Return a text, or the JSON of an object that came decoded; "" for anything else."""
    if type(value) is dict:
        return json.dumps(value, ensure_ascii=False)
    return value if type(value) is str else ""


def _within_thoughts(
    text: str, thoughts: str, reason: str | None
) -> tuple[str, str | None, str | None]:
    bare = after_thinking(thoughts.strip()) or thoughts
    start = OBJECT.search(bare)
    if start is None:
        return text, thoughts, reason
    answer = bare[start.start() :].strip().removesuffix("```").rstrip()
    if not is_json(answer):
        return text, thoughts, reason
    prefix = thoughts.rpartition(answer)[0]
    if FENCE_ALONE.fullmatch(prefix):
        return thoughts, None, reason
    return answer, prefix, reason


def _is_unclosed(text: str, reason: str | None) -> bool:
    """Return whether a text stops within an object, and its finish reason does not say why."""
    if reason in FINAL_REASONS:
        return False
    answer = after_thinking(text.strip())
    if answer is None:
        answer = text
    start = answer.find("{")
    if start < 0:
        return False
    with suppress(ValueError):
        orjson.loads(answer[start:])
        return False
    ends_in_brace = answer.rstrip("` \t\r\n").endswith("}")
    depth = 0
    for mark in JSON_MARKS.findall(answer, start):
        if mark[0] == '"':
            has_no_end = len(mark) == 1 or mark[-1] != '"'
            # In a text that ends properly, it is a mark that the model forgot to escape.
            if has_no_end and ends_in_brace:
                return False
        else:
            depth += 1 if mark in "{[" else -1
            if depth <= 0:
                return False  # the first object is whole
    return depth > 0


def _other_api(data: Mapping[str, Any]) -> str | None:
    """Return which other API a reply seems to be of, and what to do; None for none that is
    known."""
    message = data.get("message")
    kind = data.get("type")
    is_message = kind == "message" and type(data.get("content")) is list
    has_answer = type(message) is dict or type(data.get("response")) is str
    if is_message or kind in ("message_start", "message_stop"):
        name = "Anthropic's Messages API"
    elif type(data.get("candidates")) is list or type(data.get("usageMetadata")) is dict:
        name = "Gemini's own API"
    elif type(data.get("done")) is bool and has_answer:
        name = "Ollama's own API"
    elif data.get("object") == "response" and type(data.get("output")) is list:
        name = "OpenAI's Responses API"
    else:
        return None
    return f"the reply is of {name}: {FOREIGN[name]}"


def refused(
    status: int, headers: Mapping[str, str], body: bytes, now: datetime, request: bytes = b""
) -> Completion:
    """Return what a reply of another status to the body `request` settles; raise the error that it
    means otherwise."""
    data = decoded(body, headers.get("Content-Type", ""))
    message = error_text(data) if data is not None else ""
    if status == 403 and HTML.match(body):
        raise Denied(_blocked(status, headers, body))
    shown = message or one_line(body.decode("utf-8", "replace"))
    delay = phrases.retry_delay(data)
    return _settle(status, message, shown, headers, now, request.decode("utf-8", "replace"), delay)


def _blocked(status: int, headers: Mapping[str, str], body: bytes) -> str:
    """Return what a page in place of an API's error means: what stands in front of the endpoint
    refused the request."""
    sender = "a gateway"
    if headers.get("Server", "").lower() == "cloudflare" or b"cloudflare" in body.lower():
        sender = "Cloudflare"
    return (
        f"{sender} in front of the endpoint answers with"
        f" status {status} and an HTML page, which says nothing about the key: it may block this"
        " client or this machine's address; try from another network, or ask the provider to allow"
        " yours"
    )


def _settle(
    status: int | None,
    message: str,
    shown: str,
    headers: Mapping[str, str],
    now: datetime,
    request: str = "",
    delay: str | None = None,
) -> Completion:
    """Judge an error by its status, if it has one, and the endpoint's own `message`; `shown` is
    what our messages quote."""
    searched = phrases.searchable(phrases.without_quotes(message, request))
    meaning, _, _, billed = phrases.rule_of(status, searched)
    if meaning in SETTLED:
        return Completion("", meaning)
    status = status or 502
    shown = shown or NO_EXPLANATION
    kind = f"http_{status}"
    match meaning:
        case "used_up" | "payment":
            error = UsedUp if meaning == "used_up" else Denied
            raise error(
                f"the endpoint says that the account's quota or balance is used up ({shown}): top"
                " it up, then go on"
            )
        case "unknown_model":
            raise UnknownModel(f"the endpoint does not know this model ({shown}): check --model")
        case "region":
            raise Denied(
                f"the endpoint does not serve the country that this machine is in ({shown}): take"
                " another provider"
            )
        case "key":
            hint = "check the key and what it may use" + AZURE_HINT * says("azure_key", searched)
            raise Denied(f"{KEY_REFUSED} with status {status} ({shown}): {hint}")
        case "moved":
            target = one_line(headers.get("Location", "another address"))
            raise EndpointStopped(
                f"the endpoint redirects to {target}: give that address if it is right"
            )
        case "rate_limit" | "too_large" | "transient":
            status = {"rate_limit": 429, "too_large": 413}.get(meaning, status)
            wait = requested_wait(status, headers, now, searched, delay)
            raise TransportFault(f"http_{status}", shown, retry_after=wait, billed=billed)
        case "refused_member":
            raise Rejected("http_400", shown)
        case "no_path":
            raise TransportFault(kind, shown, unreachable=True)
    raise Rejected(kind, shown)


def decoded(body: bytes, content_type: str = "") -> dict[str, Any] | None:
    """Return the JSON object of a body; None if it is no object, or not whole."""
    try:
        data = orjson.loads(body)
    except ValueError:
        # A body that is whole is billed, so it is read although orjson refuses it: a bare NaN, a
        # byte order mark, half a surrogate pair, line ends in strings, and bytes that are not UTF-8
        # do no harm.
        try:
            text = _text(body, content_type)
            data = json.loads(text, strict=False, object_pairs_hook=without_half_pairs)
        except (ValueError, RecursionError):
            return None
    if type(data) is list and len(data) == 1:  # Gemini's errors
        (data,) = data
    return data if type(data) is dict else None


def _text(body: bytes, content_type: str) -> str:
    """Decode a body: UTF-8, UTF-16 or UTF-32 by its first bytes, else by the charset of its type.
    Raise `ValueError`."""
    codec = json.detect_encoding(body)
    if not codec.startswith("utf-8"):
        return body.decode(codec)
    # The type does not count if the body is UTF-8 all the same: JSON has no other encoding (RFC
    # 8259, section 8.1), and servers write any charset. Some bytes that are not UTF-8 do no harm,
    # but a text of another charset would be gibberish that looks like an answer.
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
    return {
        name: HALF_PAIR.sub("\ufffd", value) if type(value) is str else value
        for name, value in pairs
    }


def _text_and_thoughts(content: Any) -> tuple[str, str | None]:
    """Return text and thoughts of a content: a text, a content part, or a list of both; nothing
    for any other content."""
    if type(content) is str:
        return content, None
    if type(content) is dict and not content.keys() <= PART_MEMBERS:
        return _as_text(content), None
    text = ""
    thoughts = ""
    for item in content if type(content) is list else [content]:
        if type(item) is not dict:
            text += _as_text(item)
            continue
        kind = item.get("type")
        inner = item.get("text")
        if kind in ("thinking", "reasoning"):
            # Mistral's thoughts hold parts of type text themselves.
            thoughts += _text_and_thoughts(item.get(kind) or inner)[0]
        elif not kind and not item.keys() <= PART_MEMBERS:
            text += _as_text(item)
        elif type(inner) is dict:
            text += _as_text(inner.get("value"))
        else:
            text += _text_and_thoughts(inner)[0]
    return text, thoughts or None
