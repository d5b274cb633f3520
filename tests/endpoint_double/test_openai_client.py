"""What the `openai` client sends in chat calls, and what its caller gets: as from OpenAI's API.

The requests in `tests/data/openai_calls.jsonl` were captured from that client by
`bench/clients/openai_calls.py`; what its callers got was read and compared with OpenAI's API
reference and with error bodies that its users reported.
"""

from __future__ import annotations

import subprocess
from typing import Any

import aiohttp
import orjson
import pytest
from yarl import URL

from tests.support import ROOT
from tests.support.embedded import served, session_with
from tests.support.endpoint_double.app import Embedded, Options
from tests.support.endpoint_double.calls import OpenAICall

CLIENT = ROOT / ".bench/openai/bin/python"
FILE = ROOT / "tests/data/openai_calls.jsonl"
HEAD, *CALLS = [orjson.loads(line) for line in FILE.read_bytes().splitlines()]
MESSAGES = CALLS[0]["body"]["messages"]
"""Their thoughts are in a member of the message, in its content, and hidden."""


async def ask(
    endpoint: Embedded,
    session: aiohttp.ClientSession,
    path: str,
    method: str = "GET",
    body: Any = None,
) -> tuple[int, Any]:
    """Return the status, and the JSON of a reply or of each event of a stream."""
    url = URL(endpoint.url.removesuffix("/v1") + path, encoded=True)
    async with session.request(method, url, json=body) as response:
        data = await response.read()
    if response.content_type == "text/event-stream":
        events = [event.removeprefix(b"data: ") for event in data.split(b"\n\n")]
        assert events[-2:] == [b"[DONE]", b""]
        return response.status, [orjson.loads(event) for event in events[:-2]]
    assert response.content_type == "application/json"
    return response.status, orjson.loads(data)


async def chat(endpoint: Embedded, session: aiohttp.ClientSession, **members: Any) -> Any:
    body = {"model": "baseline/recency", "messages": MESSAGES, **members}
    status, reply = await ask(endpoint, session, "/v1/chat/completions", "POST", body)
    assert status == 200, reply
    return reply


def outcome(status: int, reply: Any) -> dict[str, Any]:
    """What a caller of the client sees of a reply, as the file has it."""
    if status != 200:
        return {
            "status": status,
            **{name: reply["error"][name] for name in ("type", "param", "code")},
        }
    if "object" in reply and reply["object"] in ("list", "model"):
        return {"status": 200, "value": reply.get("id") or [model["id"] for model in reply["data"]]}
    chunks = reply if isinstance(reply, list) else [reply]
    texts: dict[int, str] = {}
    reasons: dict[int, str] = {}
    for choice in [choice for chunk in chunks for choice in chunk["choices"]]:
        message = choice["message"] if "message" in choice else choice["delta"]
        texts[choice["index"]] = texts.get(choice["index"], "") + (message.get("content") or "")
        reasons[choice["index"]] = choice["finish_reason"]
    usage = chunks[-1].get("usage")
    tokens = (
        [usage[f"{kind}_tokens"] for kind in ("prompt", "completion", "total")] if usage else None
    )
    return {
        "status": 200,
        "texts": list(texts.values()),
        "reasons": list(reasons.values()),
        "usage": tokens,
    }


@pytest.mark.anyio
@pytest.mark.parametrize("call", CALLS, ids=[call["name"] for call in CALLS])
async def test_captured_request_is_answered_as_openai_would(call):
    """Texts, finish reasons and usage, or status, type, param and code of the error; every error
    has a message."""
    async with session_with(Options()) as (endpoint, session):
        status, reply = await ask(endpoint, session, call["path"], call["method"], call["body"])
    assert outcome(status, reply) == call["got"]
    assert status == 200 or reply["error"]["message"]


def test_every_member_that_the_client_can_send_is_known():
    """A new member of the client needs a type here."""
    assert set(OpenAICall.__struct_fields__) == {*HEAD["members"]}
    assert (
        f"openai[aiohttp]=={HEAD['version']}" in (ROOT / "requirements/peer-openai.in").read_text()
    )


@pytest.mark.slow
@pytest.mark.skipif(not CLIENT.exists(), reason="no openai client: make .bench/openai/made")
def test_client_sends_and_gets_what_the_file_has():
    """The client itself, over a connection of its own."""
    with served(Options()) as endpoint:
        command = [CLIENT, ROOT / "bench/clients/openai_calls.py", endpoint.url]
        output = subprocess.run(command, check=True, capture_output=True).stdout
    assert [orjson.loads(line) for line in output.splitlines()] == [HEAD, *CALLS]


# Paths
