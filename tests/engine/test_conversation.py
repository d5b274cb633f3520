"""What `ask` does: saved responses first, and nothing returned that is not saved."""

from __future__ import annotations

import anyio
import pytest

from harness.endpoint.caller import Reply
from harness.endpoint.request_body import Sampling, digest
from harness.engine.replay import Conversation, ReplayMiss, Saved, replaying
from harness.errors import GaveUp, MachineError
from harness.model import Completion, Message, Request

SAMPLING = Sampling("模型", temperature=0.5, seed=7)


def request(text: str) -> Request:
    return Request((Message("user", text),))


def key(text: str, sampling: Sampling = SAMPLING) -> str:
    return digest(sampling.encode(request(text)))


class Endpoint:
    """Answers with a counter, and remembers what it was asked, what was saved, and the order of both."""

    def __init__(self) -> None:
        self.ranks: list[int] = []
        self.saved: list[tuple[str, int, str]] = []
        self.happened: list[str] = []

    async def call(self, body: bytes, rank: int) -> Reply:
        self.ranks.append(rank)
        self.happened.append("call")
        return Reply(Completion(f"reply {len(self.ranks)}"), 0.1, 1, "here")

    async def save(self, key: str, nth: int, reply: Reply) -> None:
        self.saved.append((key, nth, reply.completion.text))
        self.happened.append("save")

    def conversation(self, saved: Saved, steps: int = 3) -> Conversation:
        return Conversation(SAMPLING, saved, steps, self.call, self.save)


@pytest.mark.anyio
async def test_saved_response_is_returned_and_not_asked_for() -> None:
    """What the endpoint has answered once costs nothing a second time; the first new request goes out."""
    endpoint = Endpoint()
    conversation = endpoint.conversation({(key("一"), 0): Completion("saved")})
    answers = [(await conversation.ask(request(text))).text for text in ("一", "二")]
    assert answers == ["saved", "reply 1"]
    assert endpoint.saved == [(key("二"), 0, "reply 1")]
    assert (conversation.replayed, conversation.requests) == (1, 2)


@pytest.mark.anyio
async def test_same_request_asked_again_is_another_response() -> None:
    """The first, second and third asking of one request each have their own response, saved or new."""
    endpoint = Endpoint()
    conversation = endpoint.conversation({(key("一"), 0): Completion("first"), (key("一"), 2): Completion("third")})
    answers = [(await conversation.ask(request("一"))).text for _ in range(4)]
    assert answers == ["first", "reply 1", "third", "reply 2"]
    assert endpoint.saved == [(key("一"), 1, "reply 1"), (key("一"), 3, "reply 2")]


@pytest.mark.anyio
async def test_response_to_other_sampling_is_not_taken() -> None:
    """A response answers a request with its parameters: under others it is not found."""
    other = Sampling("模型", temperature=0.6, seed=7)
    endpoint = Endpoint()
    conversation = endpoint.conversation({(key("一", other), 0): Completion("saved")})
    assert (await conversation.ask(request("一"))).text == "reply 1"


@pytest.mark.anyio
async def test_reply_is_saved_before_ask_returns() -> None:
    """As long as saving takes, the benchmark does not see the reply."""
    endpoint = Endpoint()
    began, may_end, returned = anyio.Event(), anyio.Event(), anyio.Event()

    async def slow_save(key: str, nth: int, reply: Reply) -> None:
        began.set()
        await may_end.wait()
        await endpoint.save(key, nth, reply)

    conversation = Conversation(SAMPLING, {}, 1, endpoint.call, slow_save)

    async def play() -> None:
        await conversation.ask(request("一"))
        endpoint.happened.append("returned")
        returned.set()

    async with anyio.create_task_group() as group:
        group.start_soon(play)
        await began.wait()
        await anyio.wait_all_tasks_blocked()
        assert not returned.is_set()
        may_end.set()
    assert endpoint.happened == ["call", "save", "returned"]


@pytest.mark.anyio
async def test_reply_that_cannot_be_saved_is_not_returned() -> None:
    """An error in saving reaches the play in the reply's place."""
    endpoint = Endpoint()

    async def full(key: str, nth: int, reply: Reply) -> None:
        raise MachineError("full")

    with pytest.raises(MachineError, match="full"):
        await Conversation(SAMPLING, {}, 1, endpoint.call, full).ask(request("一"))


@pytest.mark.anyio
async def test_failed_call_saves_nothing() -> None:
    """What the endpoint did not answer leaves no response."""
    endpoint = Endpoint()

    async def gave_up(body: bytes, rank: int) -> Reply:
        raise GaveUp("persistent_error", "x", 9)

    with pytest.raises(GaveUp):
        await Conversation(SAMPLING, {}, 1, gave_up, endpoint.save).ask(request("一"))
    assert endpoint.saved == []


@pytest.mark.anyio
async def test_rank_is_the_steps_that_are_left() -> None:
    """A replayed step counts as done, and a chain that is longer than expected still has one step left."""
    endpoint = Endpoint()
    conversation = endpoint.conversation({(key("0"), 0): Completion("saved")}, steps=4)
    for step in range(6):
        await conversation.ask(request(str(step)))
    assert endpoint.ranks == [3, 2, 1, 1, 1]


@pytest.mark.anyio
async def test_replay_diverges_where_a_response_is_missing() -> None:
    """A play from saved responses alone never reaches an endpoint: it says that it would have to."""
    conversation = replaying(SAMPLING, {(key("一"), 0): Completion("saved")})
    assert (await conversation.ask(request("一"))).text == "saved"
    with pytest.raises(ReplayMiss):
        await conversation.ask(request("一"))


@pytest.mark.anyio
async def test_saved_responses_that_nothing_asked_for_are_counted() -> None:
    """A play that goes another way than before leaves some behind."""
    conversation = Endpoint().conversation({(key("一"), 0): Completion("a"), (key("二"), 0): Completion("b")})
    await conversation.ask(request("一"))
    await conversation.ask(request("三"))
    assert conversation.unused == 1
