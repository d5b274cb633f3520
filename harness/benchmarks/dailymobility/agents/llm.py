"""The model as agents use it: `await self.llm.atext_request(dialog)` (names as in `agentsociety` 1.5.7)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from harness.benchmarks.dailymobility.agents.interface import Harness, Incomplete, lacks
from harness.benchmarks.parsing import FINAL_REASONS
from harness.model import Message, Request


class NoReply(ValueError):
    """A completion without text, for which upstream raises a `ValueError`. `kind` is the reason.

    The model or its provider caused it: an agent may catch it and go on, as upstream.
    """

    def __init__(self, kind: str) -> None:
        super().__init__(f"no content in the response ({kind})")
        self.kind = kind


class LLM(Incomplete):
    LACKS = lacks("LLM")

    def __init__(self, harness: Harness) -> None:
        self._harness: Harness = harness

    async def atext_request(
        self,
        dialog: Sequence[Any],
        response_format: Any = None,
        temperature: float | None = None,
        max_tokens: int | None = None,
        top_p: float | None = None,
        frequency_penalty: float | None = None,
        presence_penalty: float | None = None,
        timeout: float | None = None,  # noqa: ASYNC109  (upstream's)
        retries: int | None = None,
        tools: Any = None,
        tool_choice: Any = None,
    ) -> str:
        """Return the text of the completion. Raise `NoReply` for one without text.

        Sampling, time-outs and retries are the run's: the first use of each parameter for them makes a warning. Tools
        are not available.
        """
        harness = self._harness
        if _given(tools) and tools:
            harness.refuse("agent_api", "atext_request(tools=...) is not available here")
        ignored = {"temperature": temperature, "max_tokens": max_tokens, "top_p": top_p}
        ignored |= {"frequency_penalty": frequency_penalty, "presence_penalty": presence_penalty}
        for name, value in (ignored | {"timeout": timeout, "retries": retries}).items():
            if _given(value):
                harness.warn_once(f"atext_request({name}=...) is ignored: the settings of the run apply")
        form = response_format.get("type") if isinstance(response_format, dict) else None
        if form not in (None, "text", "json_object"):
            harness.warn_once(f"atext_request(response_format={form}) is sent as a request for a JSON object")
        messages = tuple(_message(each) for each in dialog)
        completion = await harness.send(Request(messages, form not in (None, "text")))
        if completion.text.strip():
            return completion.text
        if completion.finish_reason in FINAL_REASONS:
            raise NoReply(completion.finish_reason)
        raise NoReply("refusal" if completion.refusal else "empty")


def _given(value: Any) -> bool:
    """Return whether a parameter was set; the `openai` package has a value of its own for those that were not."""
    return value is not None and type(value).__name__ not in ("NotGiven", "Omit")


def _message(given: Any) -> Message:
    role, content = given["role"], given.get("content")
    if not isinstance(role, str) or not isinstance(content, str | None):
        raise TypeError(f"expected a message with text as role and content, got {type(content).__name__}")
    plain = Message(str.__str__(role), "" if content is None else str.__str__(content))
    (plain.role + plain.content).encode()  # half a character, which no request can carry, is the agent's error
    return plain
