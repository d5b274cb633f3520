"""Play users with a baseline in the model's place, to see the requests that a run would send.
Nothing is sent."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from harness.benchmark import Benchmark, Task, model_baselines, role_baselines
from harness.benchmarks import registry
from harness.client.baselines import completion_of_answer
from harness.client.quirks import text_of
from harness.client.request_body import Sampling
from harness.engine.play import play
from harness.engine.replay import Conversation, PendingRequest
from harness.errors import AgentFailed
from harness.model import Baseline, Completion


class _NoAnswer(Exception):
    """No baseline answers these messages."""


@dataclass
class Rehearsal:
    """The requests of one user to the model under test, with a baseline in its place, and the bytes
    of their replies; `is_complete` if it answered all of them."""

    key: str
    steps: int
    answer: Callable[[Sequence[Mapping[str, Any]]], str | Mapping[str, Any]]
    roles: Mapping[str, Baseline]
    bodies: list[bytes] = field(default_factory=list)
    replied: int = 0
    is_complete: bool = True

    async def settle(self, pending: PendingRequest) -> Completion:
        messages = orjson.loads(pending.body)["messages"]
        if pending.role in self.roles:
            return completion_of_answer(self.roles[pending.role](messages, 0))
        completion = completion_of_answer(self.answer(messages))
        # Requests to a judge are answered, and counted nowhere: they have another model and another
        # price.
        if not pending.role:
            self.bodies.append(pending.body)
            self.replied += completion.size
        return completion

    @property
    def size(self) -> int:
        """Return the bytes of all requests; where only the first is known, as if all were like
        it."""
        if self.is_complete:
            return sum(map(len, self.bodies))
        return self.steps * sum(map(len, self.bodies[:1]))


def rehearsed(
    benchmark: Benchmark,
    sampling: Sampling,
    task: Task,
    repeat: int,
    loop: asyncio.Runner,
) -> Rehearsal:
    """Return the requests of a user's repeat."""
    answerer, roles = _answerer(benchmark), role_baselines(benchmark)
    rehearsal = Rehearsal(task.key, task.steps, answerer, roles)
    conversation = Conversation(sampling.of_repeat(repeat), {}, task.steps, rehearsal.settle)
    try:
        loop.run(play(benchmark, task, conversation.ask, repeat))
    # An agent may fail at a baseline's reply; its requests so far are shown all the same.
    except (_NoAnswer, AgentFailed):
        rehearsal.is_complete = False
    return rehearsal


def _answerer(
    benchmark: Benchmark,
) -> Callable[[Sequence[Mapping[str, Any]]], str | Mapping[str, Any]]:
    """Return what answers messages as a baseline of the benchmark does; it raises `_NoAnswer` if
    none can."""
    first_baseline = next(iter(model_baselines(benchmark).values()), None)

    def answer(messages: Sequence[Mapping[str, Any]]) -> str | Mapping[str, Any]:
        if first_baseline is not None:
            return first_baseline(messages, 0)
        name = registry.reader(text_of({**messages[-1]}))
        if name is None:
            raise _NoAnswer
        return registry.baselines()[name](messages, 0)

    return answer
