"""Requests for chat completions: what OpenAI's API takes, its errors for all else, and where an
answer is cut.

Source: https://platform.openai.com/docs/api-reference/chat/create
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, NoReturn, TypeVar

import msgspec
import orjson
from aiohttp import web
from msgspec import Meta, Struct

from harness.client import baselines
from tests.support.endpoint_double import schemas
from tests.support.endpoint_double.faults import Choice, error_body

T = TypeVar("T")
List = Annotated[list[T], Meta(min_length=1)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]
Tokens = Annotated[int, Meta(ge=1)]
Objects = List[dict[str, Any]]


class Text(Struct, tag_field="type", tag="text"):
    text: str


class Declined(Struct, tag_field="type", tag="refusal"):
    refusal: str


class Message(Struct):
    """One message; only text can be read, so that parts with images, audio or files are refused."""

    role: Literal["developer", "system", "user", "assistant", "tool", "function"]
    content: str | list[Text | Declined] | None = None
    tool_calls: Objects | None = None
    function_call: dict[str, Any] | None = None

    def text(self) -> str:
        """Return the content, parts of text joined with line ends."""
        parts = [self.content] if isinstance(self.content, str) else self.content or ()
        return "\n".join(
            [part if isinstance(part, str) else getattr(part, "text", "") for part in parts]
        )


class Call(Struct):
    """The members that decide an answer, as every provider has them."""

    model: str
    messages: List[Message]
    n: Annotated[int, Meta(ge=1, le=128)] | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    stop: str | Annotated[list[str], Meta(max_length=4)] | None = None
    stream: bool | None = None


class Schema(Struct):
    name: str
    schema: dict[str, Any] | None = None
    strict: bool | None = None


class ResponseFormat(Struct):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: Schema | None = None


class OpenAICall(Call, forbid_unknown_fields=True):
    """All members that OpenAI's API takes."""

    max_tokens: Tokens | None = None
    max_completion_tokens: Tokens | None = None
    stream_options: dict[str, bool | None] | None = None
    response_format: ResponseFormat | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    frequency_penalty: Penalty | None = None
    presence_penalty: Penalty | None = None
    logit_bias: dict[str, Annotated[int, Meta(ge=-100, le=100)]] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    seed: int | None = None
    user: str | None = None
    safety_identifier: str | None = None
    store: bool | None = None
    metadata: dict[str, str] | None = None
    service_tier: str | None = None
    reasoning_effort: str | None = None
    verbosity: str | None = None
    tools: Objects | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    functions: Objects | None = None
    function_call: str | dict[str, Any] | None = None
    modalities: list[Literal["text"]] | None = None
    audio: dict[str, Any] | None = None
    prediction: dict[str, Any] | None = None
    moderation: dict[str, Any] | None = None
    web_search_options: dict[str, Any] | None = None
    prompt_cache_key: str | None = None
    prompt_cache_options: dict[str, Any] | None = None
    prompt_cache_retention: str | None = None


_ONLY_WITH = {
    "stream_options": "stream",
    "top_logprobs": "logprobs",
    "tool_choice": "tools",
    "parallel_tool_calls": "tools",
    "function_call": "functions",
}
_ANSWERED = {
    "logprobs": (False,),
    "tool_choice": ("none", "auto"),
    "function_call": ("none", "auto"),
}
"""The values that a baseline can follow: it has no probabilities, and calls no tool."""
_CODES = (
    (r"missing required field `(.+?)`", "missing_required_parameter"),
    (r"unknown field `(.+?)`", "unknown_parameter"),
    (r"Invalid (?:enum )?value", "invalid_value"),
    (r"`array` of length >=", "empty_array"),
    (r"`array` of length <=", "array_above_max_length"),
    (r"`int` >=", "integer_below_min_value"),
    (r"`int` <=", "integer_above_max_value"),
    (r"`float` >=", "decimal_below_min_value"),
    (r"`float` <=", "decimal_above_max_value"),
    (r"", "invalid_type"),
)
"""OpenAI's codes, by msgspec's sentences; a group is the name of a member."""


def read(body: bytes, openai: bool) -> dict[str, Any]:
    """Return a request's members, each message with its content as text.

    With `openai` all members are checked, else only those that decide an answer. Raise
    `web.HTTPBadRequest`.
    """
    try:
        call = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        refuse(f"the body is not JSON: {error}")
    try:
        messages = msgspec.convert(call, OpenAICall if openai else Call).messages
    except msgspec.ValidationError as error:
        _refuse_mistake(str(error))
    for number, message in enumerate(messages):
        if message.content is None and not (message.tool_calls or message.function_call):
            refuse(
                "a message needs a content",
                f"messages[{number}].content",
                "missing_required_parameter",
            )
    if openai:
        _check_combinations(call)
    texts = [message.text() for message in messages]
    call["messages"] = [
        {**message, "content": text} for message, text in zip(call["messages"], texts, strict=True)
    ]
    return call  # type: ignore[no-any-return]


def refuse(message: str, param: str | None = None, code: str | None = None) -> NoReturn:
    """Raise OpenAI's error for a request that is wrong."""
    text = error_body(message, "invalid_request_error", code, param).decode()
    raise web.HTTPBadRequest(text=text, content_type="application/json")


def fitted(text: str, call: Mapping[str, Any]) -> str:
    """Return an answer as the JSON schema of its call constrains it; unchanged without one."""
    try:
        return baselines.fitted(text, call.get("response_format"))
    except ValueError as error:
        refuse(f"the schema cannot be followed ({error})", "response_format")


def limit(call: Mapping[str, Any]) -> int | None:
    """Return the most tokens that a choice may have, thoughts included; None for any number."""
    most = call.get("max_completion_tokens") or call.get("max_tokens")
    return most if most and most > 0 else None  # llama.cpp takes -1 for no limit


def cut(choice: Choice, call: Mapping[str, Any], room: int | None) -> Choice:
    """End a choice before the first of the call's `stop`, and at `room` tokens."""
    if not choice.content:
        return choice
    content, is_cut = baselines.ended(choice.content, call.get("stop") or (), room)
    return dataclasses.replace(
        choice, content=content, finish_reason="length" if is_cut else choice.finish_reason
    )


def _refuse_mistake(sentence: str) -> NoReturn:
    said, _, path = sentence.partition(" - at `$")
    pattern, code = next((pattern, code) for pattern, code in _CODES if re.search(pattern, said))
    named = re.search(pattern, said)
    param = ".".join(
        [
            part
            for part in (path.rstrip("`").lstrip("."), *(named.groups() if named else ()))
            if part
        ]
    )
    refuse(f"{param or 'the body'}: {said}", param or None, code)


def _check_combinations(call: Mapping[str, Any]) -> None:
    for name, needed in _ONLY_WITH.items():
        if call.get(name) is not None and not call.get(needed):
            refuse(f"{name}: expected only in a request with {needed}", name)
    for name, values in _ANSWERED.items():
        if call.get(name) is not None and call[name] not in values:
            shown = orjson.dumps(call[name]).decode()
            refuse(
                f"{name}: this endpoint cannot answer {shown}; leave it out",
                name,
                "unsupported_value",
            )
    wanted = call.get("response_format") or {}
    if wanted.get("type") == "json_schema" and not wanted.get("json_schema"):
        refuse("a schema is missing", "response_format.json_schema", "missing_required_parameter")
    schema = wanted.get("json_schema") or {}
    if schema.get("strict") and (why := schemas.complaint(schema.get("schema"))):
        refuse(f"Invalid schema for response_format '{schema['name']}': {why}.", "response_format")
    if call.get("max_tokens") and call.get("max_completion_tokens"):
        message = "max_tokens and max_completion_tokens are the same limit: give one of them"
        refuse(message, "max_tokens", "invalid_parameter_combination")
