"""A small benchmark of dependent requests, and an endpoint for it without a network."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import anyio
import anyio.lowlevel
import orjson

from harness.benchmark import Benchmark, Metric, Records, Task
from harness.chat import Chat
from harness.client.request_body import digest
from harness.client.transport import Received
from harness.model import JSON, Completion, Message, Request


class Replies(Records):
    """A record has the replies, and is not measured again."""

    has_answer = False

    def record(
        self, task: Task, answer: list[str], metrics: Any, outcome: str, repairs: Sequence[str]
    ) -> JSON:
        own = {"user_id": task.key, "replies": answer, "length": metrics["Length"]}
        return {**own, "metrics": metrics, "outcome": outcome, "repairs": repairs}

    def rescore(self, task: Task, data: JSON) -> JSON:
        return data


class Chains(Benchmark):
    """A benchmark whose every request holds the reply before."""

    name = "chains"
    subsets: ClassVar[Mapping[str, str]] = {"weibo": "tasks.jsonl"}
    metrics = (Metric("Length", unit="replies"),)
    records = Replies()
    in_play = most_in_play = started = 0

    def parse(self, line: JSON, subset: str) -> Task:
        return Task(line["user_id"], given=line, steps=line["steps"])

    async def play(self, given: JSON, chat: Chat) -> list[str]:
        self.started += 1
        self.in_play += 1
        self.most_in_play = max(self.most_in_play, self.in_play)
        try:
            replies = [""]
            for _ in range(given["steps"]):
                replies.append((await self.asked(chat, given["user_id"], replies[-1])).text)
            return replies[1:]
        finally:
            self.in_play -= 1

    async def asked(self, chat: Chat, key: str, before: str) -> Completion:
        return await chat.ask(Request((Message("user", key), Message("assistant", before))))

    def measure(self, task: Task, answer: list[str] | None) -> Mapping[str, float | None]:
        return {"Length": len(answer or ())}


def task_lines(users: Mapping[str, int]) -> str:
    """The tasks file of `Chains`: users and their steps."""
    lines = (
        orjson.dumps({"user_id": key, "steps": steps}).decode() for key, steps in users.items()
    )
    return "\n".join(lines)


@dataclass
class Endpoint:
    """Replies are a digest of the request, after a number of turns of the loop that hangs on it.
    `script` is awaited first with the user and how many requests of it came before; what it raises
    is the reply."""

    script: Callable[[str, int], Awaitable[None]] | None = None
    sent: list[str] = field(default_factory=list)
    answered: Counter[str] = field(default_factory=Counter)
    on_the_wire: int = 0
    most_on_the_wire: int = 0

    async def send(self, body: bytes, _: str = "") -> Received:
        if body == b"?":  # a request for one token
            return Received(Completion("1"), "http://127.0.0.1:1/v1")
        user = orjson.loads(body)["messages"][0]["content"]
        before = self.sent.count(user)
        self.sent.append(user)
        self.on_the_wire += 1
        self.most_on_the_wire = max(self.most_on_the_wire, self.on_the_wire)
        try:
            if self.script is not None:
                await self.script(user, before)
            for _turn in range(body[-5] % 4 + 1):
                await anyio.lowlevel.checkpoint()
        finally:
            self.on_the_wire -= 1
        self.answered[digest(body)] += 1
        completion = Completion(
            f"答 {digest(body)[:12]}", prompt_tokens=3, completion_tokens=2, model="m"
        )
        return Received(completion, "http://here/v1")


async def no_wait(seconds: float) -> None:
    await anyio.lowlevel.checkpoint()
