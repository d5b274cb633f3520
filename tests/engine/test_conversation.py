"""What `ask` does: saved responses first, and nothing returned that is not saved."""

from __future__ import annotations

import pytest

from harness.client.request_body import Sampling, digest
from harness.engine.replay import Conversation, PendingRequest, ReplayMiss, Saved, replaying
from harness.errors import MachineError
from harness.model import Completion, Message, Request

SAMPLING = Sampling("模型", temperature=0.5, seed=7)


def request(text: str) -> Request:
    return Request((Message("user", text),))


def key(text: str, sampling: Sampling = SAMPLING) -> str:
    return digest(sampling.encode(request(text)))


class Endpoint:
    """Answers with a counter, and remembers what it was asked and what was saved."""

    def __init__(self) -> None:
        self.ranks: list[int] = []
        self.saved: list[tuple[str, int, str]] = []

    async def settle(self, asked: PendingRequest) -> Completion:
        self.ranks.append(asked.rank)
        self.saved.append((asked.digest, asked.nth, f"reply {len(self.ranks)}"))
        return Completion(f"reply {len(self.ranks)}")

    def conversation(self, saved: Saved, steps: int = 3) -> Conversation:
        return Conversation(SAMPLING, saved, steps, self.settle)


@pytest.mark.anyio
async def test_saved_response_is_returned_and_not_asked_for():
    """What the endpoint has answered once costs nothing a second time; the first new request goes
    out."""
    endpoint = Endpoint()
    conversation = endpoint.conversation({(key("一"), 0): Completion("saved")})
    answers = [(await conversation.ask(request(text))).text for text in ("一", "二")]
    assert answers == ["saved", "reply 1"]
    assert endpoint.saved == [(key("二"), 0, "reply 1")]
    assert (conversation.replayed, conversation.requests) == (1, 2)


@pytest.mark.anyio
async def test_same_request_asked_again_is_another_response():
    """The first, second and third asking of one request each have their own response, saved or
    new."""
    endpoint = Endpoint()
    conversation = endpoint.conversation(
        {(key("一"), 0): Completion("first"), (key("一"), 2): Completion("third")}
    )
    answers = [(await conversation.ask(request("一"))).text for _ in range(4)]
    assert answers == ["first", "reply 1", "third", "reply 2"]
    assert endpoint.saved == [(key("一"), 1, "reply 1"), (key("一"), 3, "reply 2")]


@pytest.mark.anyio
async def test_response_to_other_sampling_is_not_taken():
    """A response answers a request with its parameters: under others it is not found."""
    other = Sampling("模型", temperature=0.6, seed=7)
    endpoint = Endpoint()
    conversation = endpoint.conversation({(key("一", other), 0): Completion("saved")})
    assert (await conversation.ask(request("一"))).text == "reply 1"


@pytest.mark.anyio
async def test_error_of_a_request_reaches_the_play():
    """What could not be settled, or saved, is no reply."""

    async def full(*_: object) -> Completion:
        raise MachineError("full")

    conversation = Conversation(SAMPLING, {}, 1, full)
    with pytest.raises(MachineError, match="full"):
        await conversation.ask(request("一"))
    assert conversation.requests == 0


@pytest.mark.anyio
async def test_rank_is_the_steps_that_are_left():
    """A replayed step counts as done, and a chain that is longer than expected still has one step
    left."""
    endpoint = Endpoint()
    conversation = endpoint.conversation({(key("0"), 0): Completion("saved")}, steps=4)
    for step in range(6):
        await conversation.ask(request(str(step)))
    assert endpoint.ranks == [3, 2, 1, 1, 1]


@pytest.mark.anyio
async def test_replay_diverges_where_a_response_is_missing():
    """A play from saved responses alone never reaches an endpoint: it says that it would have
    to."""
    conversation = replaying(SAMPLING, {(key("一"), 0): Completion("saved")})
    assert (await conversation.ask(request("一"))).text == "saved"
    with pytest.raises(ReplayMiss):
        await conversation.ask(request("一"))


@pytest.mark.anyio
async def test_saved_responses_that_nothing_asked_for_are_counted():
    """A play that goes another way than before leaves some behind."""
    conversation = Endpoint().conversation(
        {(key("一"), 0): Completion("a"), (key("二"), 0): Completion("b")}
    )
    await conversation.ask(request("一"))
    await conversation.ask(request("三"))
    assert conversation.unused == 1
