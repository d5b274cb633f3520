"""The model as agents know it: `await self.llm.atext_request(dialog)` (names as in `agentsociety` 1.5.7)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from harness.benchmarks.dailymobility.agents.interface import Backstage, Bounded, names
from harness.benchmarks.parsing import FINAL_REASONS
from harness.model import Completion, Message, Request


class NoReply(ValueError):
    """A completion without text, which upstream raises a `ValueError` for. `kind` says why there is none.

    It is the model's or its provider's doing: an agent may catch it and go on, as it may upstream.
    """

    def __init__(self, kind: str) -> None:
        super().__init__(f"no content in the response ({kind})")
        self.kind = kind


class LLM(Bounded):
    LACKS = names("configs get_log_list clear_log_list prompt_tokens_used completion_tokens_used")

    def __init__(self, backstage: Backstage) -> None:
        self._backstage = backstage

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
        """The text of the completion. Raises `NoReply` for one without text.

        What is not followed is said once a run: sampling, time-outs and retries are the run's. Tools cannot be had.
        """
        if _given(tools) and tools:
            self._backstage.refuse("agent_api", "atext_request(tools=...) is not available here")
        self._not_followed(
            temperature=temperature,
            max_tokens=max_tokens,
            top_p=top_p,
            frequency_penalty=frequency_penalty,
            presence_penalty=presence_penalty,
            timeout=timeout,
            retries=retries,
        )
        messages = tuple(_message(each) for each in dialog)
        return _text(await self._backstage.send(Request(messages, self._as_json(response_format))))

    def _not_followed(self, **given: Any) -> None:
        for name, value in given.items():
            if _given(value):
                self._backstage.warn_once(f"atext_request({name}=...) is not followed: the settings of the run are")

    def _as_json(self, response_format: Any) -> bool:
        asked = response_format.get("type") if isinstance(response_format, dict) else None
        if asked not in (None, "text", "json_object"):
            self._backstage.warn_once(f"atext_request(response_format={asked}) is asked for as a JSON object")
        return self._backstage.json_object if asked is None else bool(asked != "text")


def _given(value: Any) -> bool:
    """Whether a parameter was set; the `openai` package has a word of its own for those that were not."""
    return value is not None and type(value).__name__ not in ("NotGiven", "Omit")


def _message(given: Any) -> Message:
    role, content = given["role"], given.get("content")
    if not isinstance(role, str) or not isinstance(content, str | None):
        raise TypeError(f"expected a message with text as role and content, got {type(content).__name__}")
    plain = Message(str.__str__(role), "" if content is None else str.__str__(content))
    (plain.role + plain.content).encode()  # half a character, which no request can carry, is the agent's error
    return plain


def _text(completion: Completion) -> str:
    if completion.text.strip():
        return completion.text
    if completion.finish_reason in FINAL_REASONS:
        raise NoReply(completion.finish_reason)
    raise NoReply("refusal" if completion.refusal else "empty")
