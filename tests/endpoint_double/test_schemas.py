"""Schemas that the embedded endpoint refuses as OpenAI does, and answers that fit the others."""

from __future__ import annotations

from typing import Any

import pytest

from harness.benchmarks.parsing import strict_object
from tests.support.embedded import session_with
from tests.support.endpoint_double.app import Options

TEXT = {"type": "string"}
TAGS = strict_object(
    tags={"type": "array", "items": {**TEXT, "enum": ["猫", "狗"]}, "minItems": 2, "maxItems": 2}
)


def enum(count: int, length: int) -> dict[str, Any]:
    return strict_object(tag={**TEXT, "enum": [f"{number:0{length}}" for number in range(count)]})


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("name", "schema", "strict", "status"),
    [
        (None, TAGS, True, 200),
        ("openai", TAGS, True, 200),
        ("openai", {"type": "object"}, True, 400),
        ("openai", {"type": "object"}, False, 200),
        ("vllm", {"type": "object"}, True, 200),
        ("vllm", {"type": "string", "enum": []}, True, 400),
        ("openrouter", {"type": "string", "enum": []}, True, 200),
    ],
)
async def test_endpoint_refuses_what_it_cannot_follow(name, schema, strict, status):
    """OpenAI by its rules for strict schemas, others what no answer fits, and one that ignores
    schemas nothing."""
    form = {"type": "json_schema", "json_schema": {"name": "x", "strict": strict, "schema": schema}}
    messages = [{"role": "user", "content": 'Tags: 猫\n从 ["狗", "猫"] 里选，输出 JSON'}]
    body = {"model": "baseline/recency", "messages": messages, "response_format": form}
    async with (
        session_with(Options(imitate=name)) as (endpoint, session),
        session.post(f"{endpoint.url}/chat/completions", json=body) as response,
    ):
        found, content = response.status, await response.read()
    assert (found, b"error" in content) == (status, status == 400)
