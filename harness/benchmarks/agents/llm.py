"""The model as agents use it: `await self.llm.atext_request(dialog)` (names as in `agentsociety`
1.5.7)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from harness.benchmarks.agents.interface import Harness, PartialInterface
from harness.benchmarks.parsing import FINAL_REASONS
from harness.model import Completion, Message, Request

WITHOUT_TEXT = ("tool_call", "failed_generation")


class NoReply(ValueError):
    """A completion without text, for which upstream raises a `ValueError`. `kind` is the reason.

    The model or its provider caused it: an agent may catch it and go on, as upstream.
    """

    def __init__(self, kind: str) -> None:
        super().__init__(f"no content in the response ({kind})")
        self.kind = kind


def no_reply(completion: Completion) -> str | None:
    """Return why upstream has no reply in a completion, None where it has one: any text, also an
    empty one.

    An empty text next to thoughts or a refusal stands for a `null`, which upstream asks for again.
    """
    if completion.text:
        return None

    if completion.finish_reason in FINAL_REASONS:
        return completion.finish_reason

    if completion.refusal:
        return "refusal"

    if completion.reasoning or completion.finish_reason in WITHOUT_TEXT:
        return "empty"

    return None


class LLM(PartialInterface):
    def __init__(self, harness: Harness) -> None:
        self._harness: Harness = harness

    async def atext_request(
        self,
        dialog: Sequence[Any],
        response_format: object = None,
        temperature: float | None = 1,
        max_tokens: int | None = None,
        top_p: float | None = None,
        frequency_penalty: float | None = None,
        presence_penalty: float | None = None,
        timeout: float | None = None,  # noqa: ASYNC109  (upstream's)
        retries: int | None = None,
        tools: object = None,
        tool_choice: object = None,
    ) -> str:
        """Return the text of the completion. Raise `NoReply` for one that has none.

        Parameters of sampling are sent, as upstream, unless the run sets them. Time-outs and
        retries are the run's: the first use of each makes a warning. Tools are not available.
        """
        harness = self._harness
        if _is_set(tools) and tools:
            harness.refuse("agent_api", "atext_request(tools=...) is not available here")

        for name, value in {"timeout": timeout, "retries": retries}.items():
            if _is_set(value):
                harness.warn_once(
                    f"atext_request({name}=...) is ignored: the settings of the run apply"
                )

        parameters: dict[str, Any] = {
            "temperature": temperature,
            "top_p": top_p,
            "max_tokens": max_tokens,
            "frequency_penalty": frequency_penalty,
            "presence_penalty": presence_penalty,
            "response_format": response_format,
        }
        parameters = {name: value for name, value in parameters.items() if _is_set(value)}
        form = None
        if isinstance(response_format, dict):
            form = response_format.get("type")

        # It may be an iterator, and is read more than once.
        dialog = list(dialog)
        messages = tuple(map(_message, dialog))
        full_messages = None
        if not all(map(_is_plain, dialog)):
            # What `Message` does not hold, such as images or names, must reach the endpoint all the
            # same.
            full_messages = _plain([*map(dict, dialog)])

        request = Request(
            messages,
            json_object=form not in (None, "text"),
            parameters=_plain(parameters),
            full_messages=full_messages,
        )
        completion = await harness.send(request)
        reason = no_reply(completion)
        if reason is not None:
            raise NoReply(reason)

        return completion.text


def _is_plain(message: Mapping[str, Any]) -> bool:
    """Return whether a message is a role and a text, and nothing else."""
    return set(message) == {"role", "content"} and isinstance(message["content"], str)


def _is_set(value: object) -> bool:
    """Return whether a parameter was set; the `openai` package has a value of its own for those
    that were not."""
    # By the name of its class, so that the package need not be installed.
    return value is not None and type(value).__name__ not in (
        "NotGiven",
        "Omit",
    )


def _plain(value: object) -> Any:
    """Return a value as plain JSON. Raise `TypeError` or `ValueError` for what JSON cannot hold.

    The standard library's writer is upstream's: it takes the numbers of numpy that are subclasses
    of Python's.
    """
    return orjson.loads(json.dumps(value, allow_nan=False))


def _message(message: Mapping[str, Any]) -> Message:
    """Return the text of a message: role and content, of a content in parts the parts' texts.

    Whatever else a message has goes into the body by `Request.full_messages`.
    """
    role = message["role"]
    content = message.get("content")
    if not isinstance(role, str) or not isinstance(content, str | list | tuple | None):
        raise TypeError(
            f"expected a message with text as role and content, got {type(content).__name__}"
        )

    if content is None:
        content = ""

    if not isinstance(content, str):
        texts = [item.get("text") for item in content]
        content = "\n".join([text for text in texts if isinstance(text, str)])

    # The agent may have subclasses of str.
    plain = Message(str.__str__(role), str.__str__(content))
    # Half a character, which no request can carry, is the agent's error.
    (plain.role + plain.text).encode()
    return plain
