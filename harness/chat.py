"""Ask a model on behalf of a benchmark: one `Chat` per user.

A `Chat` counts usage, extracts JSON from replies, and asks again after an unusable reply, with a note on what was
wrong. Only the completion decides the result, so the same completions always give the same answer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import orjson

from harness.benchmarks.parsing import answer_text, json_object
from harness.benchmarks.records import ODD_SHAPE
from harness.benchmarks.user_code import described, place
from harness.defaults import PARSE_RETRIES
from harness.errors import InvalidReply
from harness.model import JSON, Ask, Completion, Message, Request, Usage

T = TypeVar("T")

Prompt = str | Sequence[Message | Mapping[str, str]]
"""The text of the user message, or all messages: `Message(role, content)` or `{"role": ..., "content": ...}`."""


@dataclass(frozen=True, slots=True)
class Asking:
    """How every benchmark asks: whether requests want a JSON object from the endpoint, and how many times an unusable
    reply is asked for again."""

    structured: bool = True
    parse_retries: int = PARSE_RETRIES

    @property
    def identity(self) -> JSON:
        return {"structured": "json_object" if self.structured else "none", "parse_retries": self.parse_retries}


ASKING = Asking()


@dataclass(frozen=True, slots=True)
class Note:
    """Define the note of one language that asks for a reply again.

    The note is added to the last message, because some endpoints refuse a conversation with their broken reply.
    `reasons` is kind -> reason, for an `InvalidReply` without a reason.
    """

    text: str
    json: str
    reasons: Mapping[str, str]

    def of(self, error: InvalidReply, *, json: bool) -> str:
        return (self.json if json else self.text).format(why=error.why or self.reasons.get(error.kind, error.kind))


NOTES = {
    "en": Note(
        "\n\nNote: the last reply could not be used ({why}). Answer again in exactly the format asked for.",
        "\n\nNote: the last reply could not be used ({why}). Answer again in exactly the format asked for, with one "
        "JSON object and nothing else.",
        {
            "refusal": "it gave no answer",
            "empty": "it was empty",
            "no_json": "it held no JSON",
            "not_object": "its JSON was not an object",
            "wrong_shape": "its JSON lacked a field, or had a value of another type",
        },
    ),
    "zh": Note(
        "\n\n注意：上一次的回答无法使用（{why}）。请严格按要求的格式重新作答。",
        "\n\n注意：上一次的回答无法使用（{why}）。请严格按要求的格式重新作答，只输出一个 JSON 对象。",
        {
            "refusal": "没有给出回答",
            "empty": "回答是空的",
            "no_json": "回答里没有可用的 JSON",
            "not_object": "最外层不是一个 JSON 对象",
            "wrong_shape": "JSON 缺少字段，或字段类型不对",
        },
    ),
}


class Chat:
    """Send the requests of one user and read the replies.

    `usage` counts requests and tokens so far. `repairs` lists the kinds of repairs that replies needed. `failed` is the
    error of a request without a reply: the user fails with it, even if the benchmark catches it. `odd` says what `read`
    ended in where it did not raise `InvalidReply`: an odd reply, or a mistake in `read`.
    """

    def __init__(self, ask: Ask, asking: Asking = ASKING, language: Literal["en", "zh"] = "en") -> None:
        self.usage = Usage()
        self.repairs: list[str] = []
        self.odd: list[str] = []
        self.failed: BaseException | None = None
        self._ask = ask
        self._asking = asking
        self._note = NOTES[language]

    async def ask(self, request: Request) -> Completion:
        """Return the completion of one request, unchanged. Raise the error of a request that got no reply."""
        try:
            completion = await self._ask(request)
            self.usage = self.usage.plus(completion)  # of a saved reply that somebody changed it may be no number
        except BaseException as error:  # of a cancelled user too nothing may be made that counts as an answer
            self.failed = error
            raise
        return completion

    async def json(self, prompt: Prompt, read: Callable[[JSON], T] | None = None) -> T:
        """Return the JSON object of the reply, or the result of `read(object)`.

        `read` raises `InvalidReply(kind, why)` for an unusable object. Raise `InvalidReply` if the reply is still
        unusable after all retries.
        """

        def reader(completion: Completion) -> tuple[Any, list[str]]:
            repairs: list[str] = []
            data = _storable(json_object(completion, repairs))
            return (data if read is None else read(data)), repairs

        made: T = await self._kept(prompt, reader, json=True)
        return made

    async def text(self, prompt: Prompt, read: Callable[[str], T] | None = None) -> T:
        """Return the text of the reply, or the result of `read(text)`. Raise the same errors as `json`."""

        def reader(completion: Completion) -> tuple[Any, list[str]]:
            repairs: list[str] = []
            text = answer_text(completion, repairs)
            return (text if read is None else read(text)), repairs

        made: T = await self._kept(prompt, reader, json=False)
        return made

    async def _kept(self, prompt: Prompt, reader: Callable[[Completion], tuple[Any, list[str]]], *, json: bool) -> Any:
        made, repairs = await self.read(prompt, reader, json=json)
        self.repairs += repairs
        return made

    async def read(self, prompt: Prompt, read: Callable[[Completion], T], *, json: bool = True) -> T:
        """Return the result of `read(completion)`; ask again while it raises `InvalidReply`.

        `json` is whether the reply has to be a JSON object. An error of shape in `read` (`LookupError`,
        `TypeError`, ...) becomes `InvalidReply("wrong_shape")`. Raise the last `InvalidReply` after all retries, or at
        once if it is final.
        """
        messages = _messages(prompt)
        wants_object, retries = json and self._asking.structured, self._asking.parse_retries
        request = Request(messages, wants_object)
        while True:
            completion = await self.ask(request)
            try:
                return read(completion)
            except InvalidReply as invalid:
                error = invalid
            except ODD_SHAPE as odd:
                error = InvalidReply("wrong_shape")
                error.__cause__ = odd
                self.odd.append(f"{described(odd)}{place(odd)}")
            if error.final or not retries:
                raise error
            retries -= 1
            note = self._note.of(error, json=json)
            last = messages[-1]
            request = Request((*messages[:-1], Message(last.role, last.content + note)), wants_object)


def _storable(data: JSON) -> JSON:
    """Return an object that a file can hold. Raise `InvalidReply` for one that was repaired into what none can: half a
    surrogate pair, or a whole number beyond 64 bits."""
    try:
        orjson.dumps(data)
    except TypeError:
        raise InvalidReply("no_json") from None
    return data


def _messages(prompt: Prompt) -> tuple[Message, ...]:
    if isinstance(prompt, str):
        return (Message("user", prompt),)
    made = [one if isinstance(one, Message) else Message(one["role"], one["content"]) for one in prompt]
    if not made:
        raise ValueError("a prompt has at least one message")
    return tuple(made)
