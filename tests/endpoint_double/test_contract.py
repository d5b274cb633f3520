"""The client's contract with each provider: every reply and every error body of its imitation means
the right thing.

The bodies are in tests/support/endpoint_double/imitations, after public documentation; whole and
streamed replies are judged alike.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import orjson
import pytest

from harness.client.address import Address
from harness.client.http import Client
from harness.client.quirks import Adapted
from harness.client.replies import Denied, UnknownModel
from harness.errors import HarnessError, Rejected, TransportFault
from harness.model import Completion
from tests.support.endpoint_double import imitate
from tests.support.endpoint_double.app import Options, start
from tests.support.endpoint_double.faults import FaultPlan
from tests.support.scripted import answer

PLAIN = {
    "openai": "gpt-4o-mini",
    "deepseek": "deepseek-chat",
    "dashscope": "qwen-plus",
    "siliconflow": "Qwen/Qwen2.5-7B-Instruct",
    "openrouter": "openai/gpt-4o-mini",
    "vllm": "Qwen/Qwen2.5-7B-Instruct",
    "sglang": "Qwen/Qwen2.5-7B-Instruct",
    "llamacpp": "smollm2",
}
"""A model of each that does not think."""

THINKING = {
    "openai": ("gpt-5-mini", False),
    "deepseek": ("deepseek-reasoner", True),
    "dashscope": ("qwq-plus", True),
    "siliconflow": ("deepseek-ai/DeepSeek-R1", True),
    "openrouter": ("deepseek/deepseek-r1", True),
    "vllm": ("Qwen/Qwen3-8B", True),
    "sglang": ("Qwen/Qwen3-8B", True),
    "llamacpp": ("qwen3-8b", True),
}
"""A model of each that thinks, and whether its thoughts are handed out."""

MESSAGES = [{"role": "user", "content": '从 ["狗", "猫", "鱼", "鸟"] 里选，输出 JSON'}]

MEANS: dict[str, tuple[type[HarnessError], type[HarnessError] | None] | str] = {
    "rate_limit": (TransportFault, None),
    "overloaded": (TransportFault, None),
    "quota": (Denied, None),
    "arrears": (Denied, None),
    "bad_key": (Denied, None),
    "unknown_model": (UnknownModel, None),
    "bad_parameter": (Rejected, None),
    "input_filter": "content_filter",
    "context_length": "context_length",
}
"""What an error of a kind becomes: an error of a class (and not of another), or a completion that
ended so."""

STREAMS = pytest.mark.parametrize("stream", ["off", "on"])
KINDS = [(name, kind) for name in imitate.NAMES for kind in imitate.load(name).errors]


def body(model: str, **more: Any) -> bytes:
    return orjson.dumps(
        {
            "model": model,
            "messages": MESSAGES,
            "temperature": 0.0,
            "response_format": {"type": "json_object"},
            **more,
        }
    )


@asynccontextmanager
async def sender(options: Options, stream: str) -> AsyncIterator[tuple[Adapted, dict[str, str]]]:
    """What a run sends through, to an endpoint of such options; and what it learns."""
    endpoint = await start(options)
    learned: dict[str, str] = {}
    try:
        async with Client(Address(endpoint.url), timeout=30.0, connections=2) as client:
            yield Adapted(client, stream=stream, on_learned=learned.__setitem__), learned
    finally:
        await endpoint.close()


async def completion(sending: Adapted, model: str, **more: Any) -> Completion:
    return (await sending.send(body(model, **more))).completion


def test_every_imitation_is_in_the_tables():
    """A provider that is added gets its contract."""
    assert set(PLAIN) == set(THINKING) == set(imitate.NAMES)
    assert {kind for _, kind in KINDS} == set(MEANS)
    sources = [source for name in imitate.NAMES for source in imitate.load(name).sources]
    assert all(source.startswith("https://") for source in sources)


@STREAMS
@pytest.mark.anyio
@pytest.mark.parametrize("name", imitate.NAMES)
async def test_reply_is_read_whole_and_streamed(name, stream):
    """Text, finish reason, tokens and model as the provider tells them."""
    async with sender(Options(imitate=name), stream) as (sending, learned):
        found = await completion(sending, PLAIN[name])
    assert found.text == answer("baseline/recency", MESSAGES, 0)
    assert (found.finish_reason, found.model, found.reasoning) == ("stop", PLAIN[name], None)
    assert found.prompt_tokens and found.completion_tokens
    assert learned == {}


@STREAMS
@pytest.mark.anyio
@pytest.mark.parametrize("name", imitate.NAMES)
async def test_thoughts_stay_out_of_the_answer(name, stream):
    """A thinking model's text is its answer; its thoughts stand beside it where the provider hands
    them out."""
    model, handed_out = THINKING[name]
    async with sender(Options(imitate=name), "auto" if stream == "off" else stream) as (sending, _):
        found = await completion(sending, model)
    assert found.text == answer("baseline/recency", MESSAGES, 0)
    assert (found.reasoning is not None) == handed_out


@pytest.mark.anyio
@pytest.mark.parametrize(("name", "kind"), KINDS)
async def test_error_means_what_it_says(name, kind):
    """Each error body of each provider becomes what docs/design.md, section 6, has for it."""
    async with sender(Options(imitate=name, faults=FaultPlan(1.0, (kind,))), "off") as (
        sending,
        learned,
    ):
        match MEANS[kind]:
            case str(reason):
                found = await completion(sending, PLAIN[name])
                assert (found.text, found.finish_reason) == ("", reason)
            case expected, but_not:
                with pytest.raises(HarnessError) as caught:
                    await completion(sending, PLAIN[name])
                assert isinstance(caught.value, expected)
                assert but_not is None or not isinstance(caught.value, but_not)
    assert learned == {}


@STREAMS
@pytest.mark.anyio
@pytest.mark.parametrize("name", imitate.NAMES)
async def test_reply_that_only_thought_is_a_kind_of_its_own(name, stream):
    """Cut off at its length before the answer began."""
    model, _ = THINKING[name]
    options = Options(imitate=name, faults=FaultPlan(1.0, ("length",)))
    async with sender(options, "auto" if stream == "off" else stream) as (sending, _):
        found = await completion(sending, model)
    assert (found.text, found.finish_reason) == ("", "only_thinking")


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("name", "model", "more", "quirks"),
    [
        ("openai", "gpt-5-mini", {}, {"no_temperature"}),
        ("openai", "o3-mini", {"max_tokens": 900}, {"no_temperature", "max_completion_tokens"}),
        (
            "deepseek",
            "deepseek-chat",
            {"response_format": {"type": "json_schema"}},
            {"json_object"},
        ),
        ("dashscope", "qwq-plus", {}, {"stream"}),
        ("dashscope", "qwen3-8b", {}, {"stream"}),
    ],
)
async def test_refused_parameter_is_learned_once(name, model, more, quirks):
    """One request finds out what the next ones are sent with."""
    async with sender(Options(imitate=name), "auto") as (sending, learned):
        first = await completion(sending, model, **more)
        assert set(learned) == quirks == sending.quirks
        learned.clear()
        assert await completion(sending, model, **more) == first
    assert learned == {}
    assert first.text == answer("baseline/recency", MESSAGES, 0)
