"""Play residents by an agent file, as a benchmark does it: through a user's `Chat`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from msgspec import structs

from harness.benchmark import Benchmark
from harness.benchmarks.agents import session
from harness.benchmarks.agents.llm import no_reply
from harness.benchmarks.agents.loader import AgentClass, load_agent
from harness.benchmarks.agents.resident import Resident, Row
from harness.benchmarks.agents.runner import Runner, World
from harness.benchmarks.hash_seed import COPY_PREFIX
from harness.benchmarks.parsing import FINAL_REASONS
from harness.chat import Asking, Chat
from harness.errors import AgentFailed, InvalidReply
from harness.model import Completion, Request

NO_REPLY = frozenset({*FINAL_REASONS, "refusal", "empty"})
"""Why an agent had no reply to go on with: the model's or its provider's doing, so an invalid
answer and no failure."""


class AgentPlayer:
    """`sends_parameters` is whether requests have the parameters that the agent asks for."""

    def __init__(self, runner: Runner, asking: Asking, *, sends_parameters: bool = True) -> None:
        self._runner = runner
        self._asking = asking
        self._sends_parameters = sends_parameters

    @classmethod
    def of(
        cls,
        benchmark: Benchmark,
        path: Path,
        base: AgentClass,
        world: World,
        seed: int = 0,
    ) -> AgentPlayer:
        """Return the player of a benchmark's run; for `prepare`.

        Requests then have the temperature that the agent asks for, and the run's folder keeps the
        modules that the file imports from its own folder. Raise `BadInput` for a file without one
        class derived from `base`.
        """
        agent = load_agent(path, base, benchmark.digests)
        siblings = {COPY_PREFIX + name: content for name, content in agent.siblings.items()}
        configuration = benchmark.configuration
        files = {**configuration.files, **siblings}
        # None: the agent's own temperature is sent.
        benchmark.configuration = replace(configuration, files=files, temperature=None)
        log = benchmark.logged.append
        runner = Runner(agent, world, seed=seed, warn=benchmark.warn, log=log)
        return cls(runner, benchmark.asking)

    async def play(self, resident: Resident, chat: Chat) -> tuple[list[Row], Counter[str]]:
        """Return a row for each step, and how many replies were odd, by kind.

        Raise `InvalidReply` if the agent failed for want of a reply, `AgentFailed` if it failed
        otherwise.
        """
        oddities = Counter[str]()

        async def ask(request: Request) -> Completion:
            """Send the same request once more while the completion has no reply, as often as the
            run allows."""
            request = self._as_this_run_sends(request)
            for _ in range(self._asking.parse_retries + 1):
                completion = await chat.ask(request)
                if completion.finish_reason == "tool_call":  # upstream reads no tool call
                    completion = structs.replace(completion, text="")

                if no_reply(completion) is None or completion.finish_reason in FINAL_REASONS:
                    break

            # Only of the last reply: the agent does not see the earlier ones.
            oddities.update(_oddities(completion))
            return completion

        try:
            return await session.play(self._runner, resident, ask, chat.repeat), oddities
        except AgentFailed as failure:
            if failure.kind not in NO_REPLY:
                raise

            # The model's doing: an invalid answer is scored, a failed resident is not.
            raise InvalidReply(failure.kind) from failure

    def _as_this_run_sends(self, request: Request) -> Request:
        """Return a request without its `response_format`, or without all that the agent asks for,
        as this run's settings demand."""
        if not self._sends_parameters:
            request = replace(request, parameters={}, full_messages=None)
        if self._asking.wants_json:
            return request
        parameters = {**request.parameters}
        parameters.pop("response_format", None)
        return replace(request, json_object=False, parameters=parameters)


def _oddities(completion: Completion) -> Iterator[str]:
    """Return what a record says of a reply that an agent had to go on with."""
    if not completion.text.strip():
        yield "no_reply"
    elif completion.finish_reason == "length":
        yield "cut_off"
