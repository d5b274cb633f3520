"""Baselines that answer in this process: what they are cut to, what fits a schema, and what they
refuse."""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

import orjson
import pytest

from harness.benchmark import Benchmark
from harness.client.baselines import Baselines, fitted
from harness.client.transport import Received
from harness.errors import ConfigurationRefused, Rejected

TEXT = {"type": "string"}
TAGS = {
    "type": "object",
    "properties": {
        "tags": {
            "type": "array",
            "items": {**TEXT, "enum": ["猫", "狗"]},
            "minItems": 2,
            "maxItems": 2,
        }
    },
}


class Spoken(Benchmark):
    """A benchmark whose baselines answer, fail, and return what is no text."""

    baselines: ClassVar[Any] = {
        "talks": lambda messages, seed: f"seed {seed}, then 猫 and more",
        "fails": lambda messages, seed: messages[7],
        "counts": lambda messages, seed: 7,
        "halves": lambda messages, seed: "\ud83d",
    }


def formatted(schema: Any) -> Any:
    return {
        "type": "json_schema",
        "json_schema": {"name": "answer", "strict": True, "schema": schema},
    }


def sent(model: str = "baseline/talks", **members: Any) -> Received:
    call = {"model": model, "messages": [{"role": "user", "content": "say something"}], **members}
    return asyncio.run(Baselines(Spoken).send(orjson.dumps(call)))


@pytest.mark.parametrize(
    ("members", "error"),
    [
        ({"model": "baseline/nobody"}, ConfigurationRefused),
        ({"model": "baseline/fails"}, Rejected),
        ({"model": "baseline/counts"}, Rejected),
        ({"model": "baseline/halves"}, Rejected),
        ({"stop": 5}, Rejected),
        ({"response_format": formatted({"enum": []})}, Rejected),
    ],
)
def test_what_no_baseline_answers_is_refused(members, error):
    """Once: no other try would help."""
    with pytest.raises(error) as raised:
        sent(**members)
    assert type(raised.value) is error and getattr(raised.value, "kind", "http_400") == "http_400"


def test_others_run_between_a_request_and_its_answer():
    """No request waits for a network, and signals must get their turn."""
    turns: list[str] = []

    async def ask(name: str) -> None:
        turns.append(name)
        body = orjson.dumps(
            {"model": "baseline/talks", "messages": [{"role": "user", "content": "x"}]}
        )
        await Baselines(Spoken).send(body)
        turns.append(name)

    async def both() -> None:
        await asyncio.gather(ask("one"), ask("other"))

    asyncio.run(both())
    assert turns == ["one", "other", "one", "other"]


@pytest.mark.parametrize(
    ("text", "fit"),
    [
        ('{"tags":["狗","猫"]}', '{"tags":["狗","猫"]}'),
        ('{"tags":["狗","猫","狗"],"more":1}', '{"tags":["狗","猫"]}'),
        ('{"tags":["鱼"]}', '{"tags":["猫","猫"]}'),
        ("没有 JSON", '{"tags":["猫","猫"]}'),
        ("[1]", '{"tags":["猫","猫"]}'),
    ],
)
def test_answers_are_made_to_fit(text, fit):
    """What fits stays; fields, items and values that do not are replaced or left out."""
    assert fitted(text, formatted(TAGS)) == fit


def test_values_of_other_kinds_are_made_to_fit():
    """A number is its own text among texts; any number is a number, and what is of another type is
    empty."""
    kinds = {
        name: {"type": name}
        for name in ("string", "number", "integer", "boolean", "array", "object")
    }
    form = formatted(
        {"type": "object", "properties": {"place": {**TEXT, "enum": ["home", "7"]}, **kinds}}
    )
    whole = {
        "place": 7,
        "string": "是",
        "number": 3,
        "integer": 4,
        "boolean": True,
        "array": [1],
        "object": {"a": 1},
    }
    assert orjson.loads(fitted(orjson.dumps(whole).decode(), form)) == {**whole, "place": "7"}
    empty = {
        "place": "home",
        "string": "",
        "number": 0,
        "integer": 0,
        "boolean": False,
        "array": [],
        "object": {},
    }
    assert orjson.loads(fitted("{}", form)) == empty
