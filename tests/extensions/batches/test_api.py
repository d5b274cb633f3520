"""The Batch API against providers that answer oddly, and what a line of results means."""

from __future__ import annotations

import errno
import io
from collections.abc import Callable
from typing import Any

import pytest

from harness.client.address import Address
from harness.client.http import LARGEST_REPLY, Client
from harness.client.replies import Denied
from harness.errors import EndpointStopped, MachineError, Rejected, TransportFault
from harness.extensions.batches.api import BatchApi
from harness.model import JSON
from tests.client.test_client import HANGS, header, http, serving

pytestmark = pytest.mark.anyio

KEY = "sk-Zq0123456789abcdefWXYZ"
REPLY = {"choices": [{"message": {"content": "好"}, "finish_reason": "stop"}]}


class Scripted(BatchApi):
    """Answers calls by a function of path and query, and keeps them."""

    def __init__(self, answer: Callable[[str], JSON]) -> None:
        super().__init__(Client(Address("http://there/v1", KEY), timeout=1.0, connections=1))
        self.calls: list[str] = []
        self._answer = answer

    async def call(self, path: str, query: str = "", **_: Any) -> JSON:
        self.calls.append(f"{path}?{query}")
        return self._answer(self.calls[-1])


def api(answer: Callable[[str], JSON] = lambda call: {}) -> BatchApi:
    return Scripted(answer)


async def test_list_that_shows_the_same_page_for_ever_ends():
    """Some providers take no `after`, and say that there is more."""
    made = Scripted(lambda call: {"data": [{"id": "batch-1"}], "has_more": True})
    assert await made.find_batch("file", "label") is None
    assert len(made.calls) == 2


@pytest.mark.parametrize("page", [{}, {"data": None}, {"data": ["odd"], "has_more": True}])
async def test_list_of_another_shape_holds_nothing(page):
    """No error: what is not listed is not there."""
    assert await api(lambda call: page).find_file("name") is None


@pytest.mark.parametrize("reply", [{}, {"id": 3}, {"id": ""}])
async def test_answer_without_an_id_is_a_fault(reply):
    """It may have been accepted, so that it is looked up before the next try."""
    made = api(lambda call: reply)
    for act in (made.upload("name", b""), made.create("file", "label"), made.get("batch")):
        with pytest.raises(TransportFault) as caught:
            await act
        assert caught.value.kind == "bad_json"


async def test_ids_are_quoted_in_paths():
    """They are the provider's words."""
    made = Scripted(lambda call: {"id": "b"})
    await made.get("../files?x")
    assert made.calls == ["/batches/..%2Ffiles%3Fx?"]


@pytest.mark.parametrize(
    ("line", "error", "kind"),
    [
        (
            {"response": {"status_code": 500, "body": {"error": {"message": "x"}}}},
            TransportFault,
            "http_500",
        ),
        (
            {"response": {"status_code": 400, "body": {"error": {"message": "x"}}}},
            Rejected,
            "http_400",
        ),
        (
            {"response": None, "error": {"code": "batch_expired", "message": "x"}},
            TransportFault,
            "batch_expired",
        ),
        ({"response": {"status_code": 200, "body": "text"}}, TransportFault, "batch_error"),
        ({"error": {"code": KEY, "message": KEY}}, TransportFault, "batch_error"),
        ({}, TransportFault, "batch_error"),
    ],
)
def test_line_with_an_error_is_what_the_same_reply_is(line, error, kind):
    """A passing one is a fault of transport, a refusal is one, and no word of it holds the key."""
    with pytest.raises(error) as caught:
        api().judged(line, b"{}")
    assert caught.value.kind == kind  # type: ignore[attr-defined]
    assert KEY not in str(caught.value)


def test_line_that_denies_the_key_stops_the_run():
    """As the reply to a request does."""
    with pytest.raises(Denied):
        api().judged(
            {"response": {"status_code": 401, "body": {"error": {"message": "no"}}}}, b"{}"
        )


def test_line_with_a_reply_is_its_completion():
    """Whatever else the line has."""
    received = api().judged(
        {"custom_id": "1", "response": {"status_code": 200, "body": REPLY}, "error": None}, b"{}"
    )
    assert received.completion.text == "好"


def test_line_keeps_calls_and_log_probabilities_and_has_the_limit_of_a_reply():
    """The request of the line decides whether a call is an answer."""
    call = {"id": "a", "function": {"name": "f", "arguments": "{}"}}
    logprobs = {"content": [{"token": "A", "logprob": -1.5}]}
    choice: JSON = {"message": {"tool_calls": [call]}, "logprobs": logprobs}
    line: JSON = {"response": {"status_code": 200, "body": {"choices": [choice]}}}
    received = api().judged(line, b'{"tools": [{}]}')
    assert [(one.id, one.name) for one in received.completion.tool_calls] == [("a", "f")]
    assert received.completion.logprobs == logprobs
    assert api().judged(line, b"{}").completion.tool_calls == ()
    choice["logprobs"] = {"content": [{"token": "A" * LARGEST_REPLY, "logprob": -1.5}]}
    with pytest.raises(TransportFault) as caught:
        api().judged(line, b"{}")
    assert caught.value.kind == "too_large"


async def call(address: Address, *arguments: Any, **options: Any) -> dict[str, Any]:
    async with Client(address, timeout=HANGS, connections=2) as client:
        return await BatchApi(client).call(*arguments, **options)


async def test_plain_call_goes_below_the_base_with_key_and_query():
    """A GET, and a POST of JSON; the query of the address stays, and the path of chat calls is not
    in it."""
    async with serving(http(200, b'{"id": "x"}')) as server:
        address = Address(f"{server.url}/chat/completions?version=2", KEY)
        assert await call(address, "/batches", "limit=1") == {"id": "x"}
        assert await call(address, "/batches", data=b"{}") == {"id": "x"}
    assert [head.partition(" HTTP")[0] for head in server.heads] == [
        "GET /v1/batches?version=2&limit=1",
        "POST /v1/batches?version=2",
    ]
    assert [header(head, "Authorization") for head in server.heads] == [f"Bearer {KEY}"] * 2
    assert [header(head, "Content-Type") for head in server.heads] == [None, "application/json"]


@pytest.mark.parametrize(
    ("reply", "error"),
    [
        (http(400, b'{"error": {"message": "no %b"}}' % KEY.encode()), Rejected),
        (http(413, b""), Rejected),
        (http(500, KEY.encode()), TransportFault),
        (http(401, b""), EndpointStopped),
        (http(302, b"", "Location: http://elsewhere/"), EndpointStopped),
        (http(200, b"[]"), TransportFault),
        (http(200, b'{"id": "x"}')[:-4], TransportFault),
    ],
)
async def test_refused_plain_call_is_the_error_of_its_class_without_the_key(reply, error):
    """The classes are those of chat calls; redirects are not followed."""
    async with serving(reply) as server:
        with pytest.raises(error) as caught:
            await call(Address(server.url, KEY), "/files")
    assert KEY not in str(caught.value)
    assert len(server.heads) == 1


async def test_download_that_cannot_be_kept_is_an_error_of_this_machine():
    """A full disk is no fault of the connection, which would be tried again."""

    class Full(io.BytesIO):
        def write(self, content: Any) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

    async with serving(http(200, b"content")) as server:
        into = io.BytesIO()
        assert await call(Address(server.url), "/files/x/content", into=into) == {}
        assert into.getvalue() == b"content"
        with pytest.raises(MachineError):
            await call(Address(server.url), "/files/x/content", into=Full())
