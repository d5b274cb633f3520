"""Baselines as an endpoint of this process: they answer a request as a server would, without a
connection.

Token counts are an approximation: half the number of characters, rounded down.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import orjson
from msgspec import Struct, structs

from harness import defaults
from harness.benchmark import Benchmark
from harness.benchmarks import registry
from harness.client.replies import completion_of, storable, tool_calls_of
from harness.client.transport import Received
from harness.errors import ConfigurationRefused, Rejected
from harness.model import JSON, Completion

_EMPTY: Mapping[str, Any] = {
    "object": {},
    "array": [],
    "string": "",
    "number": 0.0,
    "integer": 0,
    "boolean": False,
}


class Call(Struct):
    """The members of a request that decide an answer."""

    model: str
    messages: list[JSON]
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    stop: str | list[str] | None = None
    seed: Any = None
    response_format: Any = None


msgspec.json.Decoder(Call)  # as in `scoring/reports.py`: before two threads look at it at once


class Baselines:
    """A transport to the baselines that ship and those of one benchmark."""

    def __init__(self, cls: type[Benchmark]) -> None:
        self._models = {**registry.baselines(), **registry.served(cls)}

    async def send(self, body: bytes, user: str = "") -> Received:
        """Answer a request. Raise `Rejected` where a baseline fails, and `ConfigurationRefused` if
        there is none."""
        # No request waits otherwise: signals and displays would wait for the whole run.
        await asyncio.sleep(0)
        try:
            call = msgspec.json.decode(body, type=Call)
        except msgspec.ValidationError as error:
            raise Rejected("http_400", str(error)) from None
        if call.model not in self._models:
            raise ConfigurationRefused(
                f"no baseline {call.model}; there are {', '.join(self._models)}: check --model"
            )
        room = call.max_completion_tokens or call.max_tokens
        if room is not None and room <= 0:
            room = None
        answer = self._answer(call)
        text, is_cut = ended(answer.text, call.stop or (), room)
        prompt = sum([len(message["content"] or "") for message in call.messages]) // 2
        reason = answer.finish_reason or "stop"
        if is_cut:
            reason = "length"
        message = {"content": text, "tool_calls": [call.wire for call in answer.tool_calls]}
        choice = {"message": message, "finish_reason": reason, "logprobs": answer.logprobs}
        counted = "".join([text, *map(str, answer.tool_calls)])
        reply = {
            "model": call.model,
            "choices": [choice],
            "usage": {
                "prompt_tokens": prompt,
                "completion_tokens": completion_tokens(counted, reason),
            },
        }
        return Received(completion_of(reply, request=body), defaults.EMBEDDED)

    def _answer(self, call: Call) -> Completion:
        seed = call.seed if type(call.seed) is int else 0
        try:
            answer = completion_of_answer(self._models[call.model](call.messages, seed))
            answer.text.encode()
            if not answer.tool_calls:
                answer = structs.replace(answer, text=fitted(answer.text, call.response_format))
            return answer
        except Exception as error:  # the author's code; another try would not help
            why = f"{type(error).__name__}: {error}"
            raise Rejected("http_400", f"the baseline {call.model} failed: {why}") from None


def completion_of_answer(answer: str | Mapping[str, Any]) -> Completion:
    """Return the completion of a baseline's answer: a text, or a message in OpenAI's form, which
    may have the `logprobs` of its choice too."""
    if isinstance(answer, str):
        return Completion(answer)
    calls = tuple(tool_calls_of(answer.get("tool_calls") or ()))
    logprobs = answer.get("logprobs")
    return Completion(
        answer.get("content") or "",
        "tool_calls" if calls else "stop",
        tool_calls=calls,
        logprobs=storable(logprobs) if logprobs else None,
    )


def tokens(text: str) -> int:
    return len(text) // 2


def completion_tokens(text: str, finish_reason: str) -> int:
    """Return the tokens of a completion. That of an empty one is its end: a model has made it."""
    return tokens(text) if text or finish_reason != "stop" else 1


def ended(text: str, stop: str | Sequence[str], room: int | None) -> tuple[str, bool]:
    """Return a text up to the first of the `stop` texts and to `room` tokens, and whether it has
    more tokens."""
    end = len(text)
    for marker in (stop,) if isinstance(stop, str) else stop:
        if marker and marker in text:
            end = min(end, text.index(marker))
    text = text[:end]
    if room is not None and tokens(text) > room:
        return text[: 2 * room], True
    return text, False


def fitted(text: str, response_format: object) -> str:
    """Return the JSON that is nearest to a text and fits the schema of a response format; the text
    without one. Raise `ValueError` if the schema is malformed."""
    schema = response_format
    for name in ("json_schema", "schema"):
        schema = schema.get(name) if isinstance(schema, dict) else None
    if not isinstance(schema, dict) or not schema:
        return text
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError:
        value = None
    try:
        return orjson.dumps(_fitting(value, schema)).decode()
    except (AttributeError, IndexError, KeyError, TypeError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from None


def _fitting(value: Any, schema: Mapping[str, Any]) -> Any:
    """Return a value as a schema has it: what does not fit becomes the first value of its enum, or
    an empty one."""
    if "enum" in schema:
        for allowed in schema["enum"]:
            if str(allowed) == str(value):
                return allowed
        return schema["enum"][0]
    kind = schema.get("type")
    empty = _EMPTY.get(kind, value) if isinstance(kind, str) else value
    is_whole_number = kind == "number" and type(value) is int
    if type(value) is not type(empty) and not is_whole_number:
        value = empty
    if kind == "object":
        members = {}
        for name, member in schema.get("properties", {}).items():
            members[name] = _fitting(value.get(name), member)
        return members or value
    if kind == "array":
        value = value[: schema.get("maxItems")]
        missing = schema.get("minItems", 0) - len(value)
        return [_fitting(item, schema.get("items", {})) for item in [*value, *[None] * missing]]
    return value
