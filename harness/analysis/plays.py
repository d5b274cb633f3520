"""Users of a saved run with the requests and replies that their records were made of: each is
played again."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from harness.analysis.replies import Replies
from harness.analysis.saved_runs import SavedRun
from harness.benchmark import Benchmark, Task
from harness.benchmarks.rendering import quotes
from harness.client.request_body import Sampling
from harness.document import Block, Heading, Paragraph, Quote
from harness.engine.files import index_file
from harness.engine.play import play
from harness.engine.replay import ReplayMiss, replaying
from harness.errors import AgentFailed
from harness.model import JSON, Completion, Message, Request
from harness.options.plan import sampling_again
from harness.store.run import completion_of
from harness.store.tasks import TaskIndex
from harness.ui.streams import tell
from harness.ui.words import plural

COST = ("requests", "prompt_tokens", "completion_tokens", "seconds")
"""What replies add up to, by the names that rows have; seconds are those of the tries that
succeeded."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """A request and its reply; `line` is that of the file of responses."""

    request: Request
    completion: Completion
    line: JSON


@dataclass(frozen=True, slots=True)
class Transcript:
    """The exchanges of one user in their order. `reads` are the sizes of the groups that each gave
    one answer; empty where the benchmark does not show them."""

    exchanges: tuple[Exchange, ...]
    reads: tuple[int, ...]

    def groups(self, rows: int) -> list[tuple[Exchange, ...]]:
        """Return the exchanges of each of a user's rows. Where their numbers do not fit, as with a
        whole day in one reply, they are all in the first row's, so that sums over rows are
        right."""
        if len(self.reads) != rows or sum(self.reads) != len(self.exchanges):
            return [self.exchanges, *[()] * (rows - 1)][:rows]
        remaining = iter(self.exchanges)
        return [tuple(islice(remaining, size)) for size in self.reads]


class Plays:
    """Plays the users of a run again. `diverged` counts those whose saved responses do not give
    their records."""

    def __init__(
        self, run: SavedRun, benchmark: Benchmark, index: TaskIndex, loop: asyncio.Runner
    ) -> None:
        self.benchmark = benchmark
        self.diverged = 0
        self._run = run
        self._index = index
        self._loop = loop
        self._sampling = sampling_again(run.manifest)
        self._replies = Replies(run.files.responses, index.position_of, lambda: None)
        # Read them all; what is wrong with lines is for `verify`.
        deque(self._replies.findings(), maxlen=0)

    def exchanges_of(self, record: JSON) -> Transcript | None:
        """Return the exchanges of a record's user, None if these are not known."""
        position = self._index.current(record)
        if position is None:
            self.diverged += 1
            return None
        task = self._index.task(self.benchmark, position, self._run.files.subset)
        lines = self._replies.lines(position)
        repeat = self._index.repeat(position)
        played = self._loop.run(
            transcript(self.benchmark, self._sampling, task, repeat, lines, record)
        )
        self.diverged += played is None
        return played


async def transcript(
    benchmark: Benchmark,
    sampling: Sampling,
    task: Task,
    repeat: int,
    lines: Iterable[JSON],
    record: JSON,
) -> Transcript | None:
    """Play a user again from the `lines` of its responses; return its exchanges, None if they do
    not give its `record`."""
    completions = dict[tuple[str, int], Completion]()
    # By identity, since several requests may have equal completions.
    line_by_id = dict[int, JSON]()
    for line in lines:
        saved = completion_of(line)
        if saved:
            completions[line["request"], line["nth"]] = saved
            line_by_id[id(saved)] = line
    exchanges = list[Exchange]()
    replayed = replaying(sampling.of_repeat(repeat), completions)

    async def ask(request: Request) -> Completion:
        completion = await replayed.ask(request)
        exchanges.append(Exchange(request, completion, line_by_id[id(completion)]))
        return completion

    try:
        played = await play(benchmark, task, ask, repeat)
    except (ReplayMiss, AgentFailed):
        return None
    if played.chat.usage_data != record.get("usage"):
        return None
    return Transcript(tuple(exchanges), tuple(played.chat.reads))


def conversation(exchanges: Sequence[Exchange]) -> Iterator[list[Block]]:
    """Yield each request with its reply. Messages that continue the conversation before, with the
    same role, are left out."""
    previous_of_roles: dict[str, tuple[Message, ...]] = {}
    for number, exchange in enumerate(exchanges, 1):
        messages = exchange.request.messages
        role = exchange.request.role
        same = _same_at_start(previous_of_roles.get(role, ()), messages)
        to_role = f", to the {role}" if role else ""
        blocks: list[Block] = [Heading(f"Request {number} of {len(exchanges)}{to_role}")]
        if same:
            blocks.append(Paragraph(f"{plural(same, 'message')} as before."))
        for message in messages[same:]:
            blocks.append(Quote(message.role, message.text))
        yield [*blocks, *quotes(exchange.completion, "reply")]
        previous_of_roles[role] = (*messages, exchange.completion.as_message())


def _same_at_start(earlier: Sequence[Message], messages: Sequence[Message]) -> int:
    """Return how many messages at the start are those that were sent earlier."""
    same = 0
    for message, earlier_message in zip(messages, earlier, strict=False):
        if message != earlier_message:
            break
        same += 1
    return same


@contextmanager
def opened(run: SavedRun, tasks: Path | None, results: Path) -> Iterator[Plays]:
    """Open a run's plays; at the end report on stderr how many users diverged. Raise `BadInput` if
    the run cannot be played: without its tasks, or trust in its code."""
    benchmark = run.as_it_was(tasks, play=True)
    path = run.tasks(tasks)
    selected = run.manifest.selection
    with (
        closing(index_file(benchmark, run.files.subset, path, results, selected)) as index,
        asyncio.Runner() as loop,
    ):
        plays = Plays(run, benchmark, index, loop)
        yield plays
    if plays.diverged:
        users = plural(plays.diverged, "user")
        tell(
            f"{run.label}: {users} could not be played again from the saved responses, and have no"
            " tokens or messages"
        )


def cost(exchanges: tuple[Exchange, ...]) -> JSON:
    """Return what replies add up to, by `COST`; tokens are None if the endpoint counted none of
    any."""

    def total(field: str) -> int | None:
        known = []
        for exchange in exchanges:
            count = getattr(exchange.completion, field)
            if count is not None:
                known.append(count)
        return sum(known) if known or not exchanges else None

    return {
        "requests": len(exchanges),
        "prompt_tokens": total("prompt_tokens"),
        "completion_tokens": total("completion_tokens"),
        "seconds": round(sum(map(seconds, exchanges)), 4),
    }


def seconds(exchange: Exchange) -> float:
    """Return the seconds of the try that succeeded; 0 where the line has none."""
    value = exchange.line.get("seconds")
    return float(value) if isinstance(value, int | float) else 0.0
