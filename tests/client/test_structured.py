"""The JSON schema of a request: its bytes, what endpoints refuse of it, and what is sent
instead."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import orjson
import pytest

from harness.benchmarks.parsing import strict_object
from harness.benchmarks.streamprofile import reply
from harness.client.quirks import Adapted, adapt, learn
from harness.client.replies import refused
from harness.client.request_body import Sampling
from harness.client.transport import Received
from harness.errors import ConfigurationRefused, Rejected
from harness.model import JSON, Completion, Message, Request
from tests.client.test_quirks import NOW, SCHEMA, openai
from tests.client.test_quirks import request as without_schema

POOL = ("猫", "“狗”", "鸟,鱼", 'C"++\\', "猫", "é")
"""With a tag that is there twice, and marks that JSON escapes."""

MATH: JSON = {
    "type": "object",
    "properties": {
        "steps": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {"explanation": {"type": "string"}, "output": {"type": "string"}},
                "required": ["explanation", "output"],
                "additionalProperties": False,
            },
        },
        "final_answer": {"type": "string"},
    },
    "required": ["steps", "final_answer"],
    "additionalProperties": False,
}
"""OpenAI's own example, https://platform.openai.com/docs/guides/structured-outputs
(`math_reasoning`)."""


def encoded(schema: JSON | None, **more: Any) -> bytes:
    messages = (Message("system", "你是研究者。"), Message("user", "从候选里选，输出 JSON"))
    return Sampling("qwen", extra_body=more).encode(Request(messages, schema=schema))


def form(body: bytes) -> JSON:
    found: JSON = orjson.loads(body)["response_format"]
    return found


def test_body_has_the_form_of_openais_documented_example():
    """`type`, and under `json_schema` the name, `strict` and the schema unchanged; nothing else
    differs."""
    made = orjson.loads(encoded(MATH))
    documented = {"name": "math_reasoning", "schema": MATH, "strict": True}
    assert made.pop("response_format") == {
        "type": "json_schema",
        "json_schema": documented | {"name": "answer"},
    }
    plain = orjson.loads(encoded(None))
    assert plain.pop("response_format") == {"type": "json_object"}
    assert made == plain


def test_strict_object_makes_the_objects_of_that_example():
    """All fields are required, and no others allowed."""
    step = strict_object(explanation={"type": "string"}, output={"type": "string"})
    assert (
        strict_object(steps={"type": "array", "items": step}, final_answer={"type": "string"})
        == MATH
    )


def test_tags_are_in_the_schema_exactly_as_given():
    """In UTF-8, without escapes but JSON's own, in the pool's order, each once."""
    body = encoded(reply.schema(POOL, 2))
    assert '"enum":["猫","“狗”","鸟,鱼","C\\"++\\\\","é"]'.encode() in body
    tags = form(body)["json_schema"]["schema"]["properties"]["predicted_tags"]
    assert tags["items"]["enum"] == list(dict.fromkeys(POOL))
    assert (tags["minItems"], tags["maxItems"]) == (2, 2)
    assert "enum" not in reply.schema((), 1)["properties"]["predicted_tags"]["items"]


# Refusals. Typed after the public threads and pages that quirks.toml names.

LONG = reply.schema(tuple(f"标签{number}" for number in range(600)), 3)
SHORT = reply.schema(POOL, 2)
REFUSED = [
    ("no_array_length", SHORT, "The provided JSON schema contains features not supported by xgrammar."),
    ("no_array_length", SHORT, "Invalid schema for response_format 'answer': In context=('properties', "
                               "'predicted_tags'), 'minItems' is not permitted."),
    ("no_array_length", SHORT, "Invalid JSON payload received. Unknown name \"maxItems\" at 'generation_config."
                               "response_schema.properties[1].value': Cannot find field."),
    ("no_long_enum", LONG, "Invalid schema for response_format 'answer': Expected at most 500 enum values in total "
                           "within a schema, but got 600."),
    ("no_strict_schema", SHORT, "Invalid schema for response_format 'answer': In context=(), 'x' is not permitted."),
    ("no_strict_schema", SHORT, '"json_schema": JSON schema conversion failed:\nUnrecognized schema: {}'),
    ("no_strict_schema", SHORT, "Invalid schema for response_format 'answer': Expected at most 4 enum values"),
    ("json_object", SHORT, "The parameter `response_format.type` specified in the request are not valid: invalid "
                           "value: `json_schema`, supported values are: `json_object` and `text`."),
    ("json_object", SHORT, "This response_format type is unavailable now"),
]  # fmt: skip


@pytest.mark.parametrize(("quirk", "schema", "message"), REFUSED)
def test_refused_schema_teaches_the_mildest_change(quirk, schema, message):
    """Lengths go, or long enums, where the words are about these; otherwise the schema goes."""
    with pytest.raises(Rejected) as caught:
        refused(400, {}, openai(message, code="x"), NOW)
    error = caught.value
    assert learn(frozenset(), error.kind, error.detail, encoded(schema)) == quirk


def test_each_change_leaves_the_rest_of_the_schema():
    """A run that falls back asks for as much as the endpoint takes."""
    expected = deepcopy(form(encoded(LONG)))
    tags = expected["json_schema"]["schema"]["properties"]["predicted_tags"]
    del tags["minItems"], tags["maxItems"]
    assert form(adapt(encoded(LONG), frozenset({"no_array_length"}))) == expected
    del tags["items"]["enum"]
    assert form(adapt(encoded(LONG), frozenset({"no_array_length", "no_long_enum"}))) == expected
    assert form(adapt(encoded(LONG), frozenset({"no_strict_schema"}))) == {"type": "json_object"}
    short = encoded(SHORT)
    assert adapt(short, frozenset({"no_long_enum"})) is short


def test_schemas_of_others_are_theirs_to_correct():
    """An agent's or user's schema is not changed by what is learned of the benchmark's."""
    theirs = {"type": "json_schema", "json_schema": {"name": "日", "strict": True, "schema": SHORT}}
    for foreign in (without_schema(response_format=theirs), without_schema(response_format=SCHEMA)):
        assert (
            adapt(foreign, frozenset({"no_array_length", "no_long_enum", "no_strict_schema"}))
            is foreign
        )


class Endpoint:
    """Refuses every body with a schema that `refuses`; keeps the forms of all."""

    def __init__(self, refuses: Callable[[JSON], bool], words: str) -> None:
        self.forms: list[str] = []
        self._refuses, self._words = refuses, words

    async def send(self, body: bytes, user: str = "") -> Received:
        asked = form(body)
        self.forms.append(asked["type"])
        if self._refuses(asked):
            raise Rejected("http_400", self._words)
        return Received(Completion("{}"), "")


def is_schema(asked: JSON) -> bool:
    return bool(asked["type"] == "json_schema")


@pytest.mark.parametrize("moved", [False, True])
@pytest.mark.parametrize("words", [REFUSED[-1][2], REFUSED[4][2]])
def test_required_schema_that_is_refused_ends_the_run(words, moved):
    """At the first refusal, and whatever an earlier session or a providers file had learned; over
    another transport, too."""
    endpoint = Endpoint(is_schema, words)
    sending = Adapted(endpoint, ["json_object", "no_seed"], needs_schema=True)
    if moved:
        sending = Adapted(
            Endpoint(is_schema, ""), ["json_object", "no_seed"], needs_schema=True
        ).over(endpoint)
    assert sending.quirks == {"no_seed"}
    with pytest.raises(ConfigurationRefused):
        asyncio.run(sending.send(encoded(SHORT)))
    assert endpoint.forms == ["json_schema"]


def test_required_schema_may_lose_its_lengths():
    """It is still the benchmark's schema; the report has the quirk."""
    endpoint = Endpoint(lambda asked: b"minItems" in orjson.dumps(asked), REFUSED[0][2])
    sending = Adapted(endpoint, needs_schema=True)
    asyncio.run(sending.send(encoded(SHORT)))
    assert (endpoint.forms, sending.quirks) == (["json_schema"] * 2, {"no_array_length"})


# Over real connections
