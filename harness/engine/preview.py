"""Show what plans would send, without sending it: users, steps, requests, bytes, and some prompts as they would be.

A sample of users is played with a baseline in the model's place, since a prompt may depend on earlier replies. So
counts and sizes beyond users and steps are approximate; a benchmark without a baseline shows first requests only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray
from rich.console import Console

from harness.benchmark import Benchmark
from harness.benchmarks import registry, tasks
from harness.config.plan import Plan
from harness.endpoint.quirks import text_of
from harness.engine.play import play
from harness.engine.replay import Conversation
from harness.engine.run import PLAIN
from harness.engine.session import index_key, open_indexes
from harness.errors import AgentFailed
from harness.model import Completion
from harness.store.tasks import TaskIndex
from harness.ui.words import plural

SAMPLED, SHOWN = 50, 3
"""Users of a subset that are played with a baseline, and of these whose first prompt is shown."""


class _NoAnswer(Exception):
    """No baseline answers these messages."""


@dataclass
class _Rehearsal:
    """The requests of one user, with a baseline in the model's place; `whole` if it answered all of them."""

    key: str
    steps: int
    answer: Callable[[Sequence[Mapping[str, Any]]], str]
    bodies: list[bytes] = field(default_factory=list)
    whole: bool = True

    async def settle(self, body: bytes, rank: int, digest: str, nth: int) -> Completion:
        self.bodies.append(body)
        return Completion(self.answer(orjson.loads(body)["messages"]))


@dataclass(frozen=True)
class Preview:
    """What one subset of a plan would send. `requests`, and `size` in bytes of their bodies, are projected from sampled
    users by their steps; `whole` means that a baseline answered all of these. `first` has (key, steps, first body)."""

    users: int
    steps: int
    requests: int
    size: int
    whole: bool
    first: tuple[tuple[str, int, bytes], ...]


def show(plans: Sequence[Plan], console: Console) -> int:
    """Print what plans would send, and return an exit code. Raise `BadInput` for what `run` would refuse."""
    with ExitStack() as held:
        indexes = open_indexes(plans, held)
        for plan in plans:
            console.print(f"{plan.name}: {plan.sampling.model}", **PLAIN)
            for subset in plan.tasks:
                _print(subset, preview(plan, subset, indexes[index_key(plan, subset)]), console)
    console.print("nothing was sent, and nothing written", **PLAIN)
    return 0


def preview(plan: Plan, subset: str, index: TaskIndex) -> Preview:
    """Return what a subset of a plan would send, from its first user to its last."""
    chosen = np.flatnonzero(index.selected(plan.selection))
    steps = int(index.steps[chosen].sum())
    sample = chosen[_spread(index.steps[chosen], SAMPLED)]
    with asyncio.Runner() as loop:
        played = [_rehearsed(plan, subset, index, int(position), loop) for position in sample]
    bodies, whole = [body for of in played for body in of.bodies], all(of.whole for of in played)
    requests = round(steps * len(bodies) / int(index.steps[sample].sum())) if whole else steps
    first = [played[at] for at in _spread(index.steps[sample], SHOWN)]
    return Preview(
        users=index.users(index.selected(plan.selection)),
        steps=steps,
        requests=requests,
        size=round(requests * sum(map(len, bodies)) / max(1, len(bodies))),
        whole=whole,
        first=tuple((of.key, of.steps, of.bodies[0]) for of in first if of.bodies),
    )


def _spread(steps: NDArray[np.int32], most: int) -> NDArray[np.int64]:
    """Return the places of at most so many chains, evenly over all lengths, the shortest and the longest included."""
    order = np.argsort(steps, kind="stable")
    chosen: NDArray[np.int64] = order[np.unique(np.linspace(0, len(order) - 1, most).round().astype(np.int64))]
    return chosen


def _rehearsed(plan: Plan, subset: str, index: TaskIndex, position: int, loop: asyncio.Runner) -> _Rehearsal:
    benchmark, repeat = plan.benchmark, index.repeat(position)
    task = tasks.parse(benchmark, index.read(position), index.where(position), subset)
    of = _Rehearsal(task.key, task.steps, _answerer(benchmark))
    conversation = Conversation(plan.sampling.of_repeat(repeat), {}, task.steps, of.settle)
    try:
        loop.run(play(benchmark, task, conversation.ask, repeat))
    except (_NoAnswer, AgentFailed):
        of.whole = False
    return of


def _answerer(benchmark: Benchmark) -> Callable[[Sequence[Mapping[str, Any]]], str]:
    """Return what answers messages as a baseline of the benchmark does; it raises `_NoAnswer` if none can."""
    own = next(iter(benchmark.baselines.values()), None)

    def answer(messages: Sequence[Mapping[str, Any]]) -> str:
        if own is not None:
            return own(messages, 0)
        if (name := registry.reader(text_of({**messages[-1]}))) is None:
            raise _NoAnswer
        return registry.baselines()[name](messages, 0)

    return answer


def _print(subset: str, of: Preview, console: Console) -> None:
    about = "about " if of.whole else "at least "
    console.print(
        f"{subset}: {plural(of.users, 'user')}, {plural(of.steps, 'step')}; {about}{plural(of.requests, 'request')} if "
        f"every reply can be used, about {of.size / 1e6:.1f} MB of prompts",
        **PLAIN,
    )
    for key, steps, body in of.first:
        console.print()
        console.print(f"{subset}, user {key}, {plural(steps, 'step')}, first request:", **PLAIN)
        for message in orjson.loads(body)["messages"]:
            for line in (f"[{message['role']}]", *text_of(message).split("\n")):
                console.print(line, **PLAIN)
    console.print()
