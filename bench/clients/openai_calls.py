"""Chat calls with the `openai` client, to see that the endpoint of the tests answers each as
OpenAI's API would.

`.bench/openai/bin/python bench/clients/openai_calls.py URL`, after `make .bench/openai/made`.
Prints JSON lines: first the client's version and the members that it can send, then each call by
its name, with what the client sent and what its caller got. `tests/data/openai_calls.jsonl` is such
output, read line by line, of the version that is pinned.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import openai
from openai.types.chat.completion_create_params import CompletionCreateParamsNonStreaming

PROMPT = '[1] Content: 早\nTags: 猫\n从 ["狗", "猫", "鸟", "鱼"] 里选，以 JSON 回答'
USER = {"role": "user", "content": PROMPT}
PARTS = {"role": "user", "content": [{"type": "text", "text": part} for part in PROMPT.split("\n")]}
PICTURE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
TOOL = {
    "type": "function",
    "function": {"name": "look", "parameters": {"type": "object", "properties": {}}},
}
CALLED = {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
SCHEMA = {"type": "object", "properties": {}, "additionalProperties": True}
USAGE = {"include_usage": True}
NAMED = {"type": "function", "function": {"name": "look"}}

CREATE: dict[str, dict[str, Any]] = {
    "plain": {},
    "parts": {"messages": [{"role": "developer", "content": "短"}, PARTS]},
    "assistant and tool": {
        "messages": [
            USER,
            {"role": "assistant", "content": None, "tool_calls": [CALLED]},
            {"role": "tool", "tool_call_id": "call_1", "content": "[]"},
            {"role": "assistant", "content": [{"type": "refusal", "refusal": "不"}]},
            USER,
        ]
    },
    "three": {"n": 3},
    "three of random": {"n": 3, "seed": 7, "model": "baseline/random"},
    "three streamed": {"n": 3, "stream": True, "stream_options": USAGE},
    "five tokens": {"max_tokens": 5},
    "five tokens streamed": {
        "max_completion_tokens": 5,
        "n": 2,
        "stream": True,
        "stream_options": USAGE,
    },
    "a thousand tokens": {"max_completion_tokens": 1000},
    "stop": {"stop": ["没有", ":"]},
    "one stop": {"stop": "{"},
    "streamed": {"stream": True},
    "streamed with usage": {
        "stream": True,
        "stream_options": {"include_usage": True, "include_obfuscation": False},
    },
    "sampling": {
        "temperature": 0,
        "top_p": 1,
        "frequency_penalty": 0.5,
        "presence_penalty": -0.5,
        "seed": 7,
        "user": "me",
        "logit_bias": {"50256": -100},
        "logprobs": False,
    },
    "nulls": {"temperature": None, "max_tokens": None, "n": None, "stop": None, "logprobs": None},
    "service": {
        "store": False,
        "metadata": {"run": "a"},
        "service_tier": "auto",
        "safety_identifier": "x",
        "prompt_cache_key": "x",
        "reasoning_effort": "low",
        "verbosity": "low",
        "modalities": ["text"],
    },
    "text format": {"response_format": {"type": "text"}},
    "json_object": {"response_format": {"type": "json_object"}},
    "json_schema": {
        "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
    },
    "tools": {"tools": [TOOL], "tool_choice": "auto", "parallel_tool_calls": True},
    "json_object without the word": {
        "response_format": {"type": "json_object"},
        "messages": [{"role": "user", "content": "你好"}],
    },
    "json_schema without a schema": {"response_format": {"type": "json_schema"}},
    "another format": {"response_format": {"type": "yaml"}},
    "tool required": {"tools": [TOOL], "tool_choice": "required"},
    "tool named": {"tools": [TOOL], "tool_choice": NAMED},
    "choice of no tool": {"tool_choice": "auto"},
    "logprobs": {"logprobs": True},
    "top_logprobs alone": {"top_logprobs": 2},
    "usage of no stream": {"stream_options": USAGE},
    "both limits": {"max_tokens": 5, "max_completion_tokens": 5},
    "picture": {"messages": [{"role": "user", "content": [PICTURE]}]},
    "sound": {"modalities": ["text", "audio"], "audio": {"format": "mp3", "voice": "alloy"}},
    "no messages": {"messages": []},
    "no role": {"messages": [{"content": "x"}]},
    "another role": {"messages": [{"role": "poet", "content": "x"}]},
    "no content": {"messages": [{"role": "user"}]},
    "n of nothing": {"n": 0},
    "n too large": {"n": 129},
    "n as text": {"n": "2"},
    "no tokens": {"max_tokens": 0},
    "too hot": {"temperature": 2.1},
    "hot as text": {"temperature": "hot"},
    "five stops": {"stop": list("abcde")},
    "unknown member": {"extra_body": {"top_k": 5}},
    "unknown model": {"model": "gpt-4o"},
    "unknown model streamed": {"model": "gpt-4o", "stream": True},
}


def main(url: str) -> None:
    sent: list[Any] = []
    client = openai.OpenAI(
        base_url=url,
        api_key="sk-test-any",
        max_retries=0,
        http_client=openai.DefaultHttpxClient(
            trust_env=False, event_hooks={"request": [sent.append]}
        ),
    )
    create = client.chat.completions.create
    calls: dict[str, Callable[[], Any]] = {
        name: lambda members=members: create(
            **{"model": "baseline/recency", "messages": [USER], **members}
        )
        for name, members in CREATE.items()
    }
    calls |= {
        "models": lambda: [model.id for model in client.models.list()],
        "model": lambda: client.models.retrieve("baseline/recency").id,
        "no such model": lambda: client.models.retrieve("gpt-4o").id,
        "stored": lambda: [each.id for each in client.chat.completions.list()],
        "stored one": lambda: client.chat.completions.retrieve("chatcmpl-1").id,
        "completions": lambda: client.completions.create(model="baseline/recency", prompt="x"),
        "embeddings": lambda: client.embeddings.create(model="baseline/recency", input="x"),
        "responses": lambda: client.responses.create(model="baseline/recency", input="x"),
    }
    members = sorted(CompletionCreateParamsNonStreaming.__annotations__)
    print(json.dumps({"version": openai.__version__, "members": members}))
    for name, call in calls.items():
        try:
            got = outcome(call())
        except openai.APIStatusError as error:
            got = {
                "status": error.status_code,
                "type": error.type,
                "param": error.param,
                "code": error.code,
            }
        request = sent.pop()
        body = json.loads(request.content) if request.content else None
        path = request.url.raw_path.decode()
        line = {"name": name, "method": request.method, "path": path, "body": body, "got": got}
        print(json.dumps(line, ensure_ascii=False))


def outcome(reply: Any) -> Any:
    """Return what a caller of the client sees: texts and finish reasons by choice, and the
    usage."""
    if isinstance(reply, (str, list)):
        return {"status": 200, "value": reply}
    chunks = [reply] if hasattr(reply, "choices") else list(reply)
    texts: dict[int, str] = {}
    reasons: dict[int, str] = {}
    usage = None
    for chunk in chunks:
        for choice in chunk.choices:
            message = getattr(choice, "message", None) or choice.delta
            texts[choice.index] = texts.get(choice.index, "") + (message.content or "")
            reasons[choice.index] = choice.finish_reason or reasons.get(choice.index, "")
        usage = chunk.usage or usage
    tokens = [usage.prompt_tokens, usage.completion_tokens, usage.total_tokens] if usage else None
    return {
        "status": 200,
        "texts": list(texts.values()),
        "reasons": list(reasons.values()),
        "usage": tokens,
    }


if __name__ == "__main__":
    main(sys.argv[1])
