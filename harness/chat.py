"""Ask a model on behalf of a benchmark: one `Chat` per user.

A `Chat` counts usage, extracts JSON from replies, and asks again after an unusable reply, with a
note on what was wrong. Only the completion decides the result, so the same completions always give
the same answer.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any, Literal, TypeVar

import orjson

from harness.benchmarks.parsing import answer_text, json_object
from harness.benchmarks.records import ODD_SHAPE
from harness.benchmarks.user_code import described, place
from harness.defaults import PARSE_RETRIES
from harness.errors import BadInput, InvalidReply
from harness.model import JSON, Ask, Completion, Message, Request, Usage, message_of

T = TypeVar("T")

Structured = Literal["json_object", "json_schema", "auto", "none"]
"""What requests for JSON ask for: any object; the benchmark's schema and nothing less; the schema,
or else as much as the endpoint takes; nothing."""

Prompt = str | Sequence[Message | Mapping[str, str]]
"""The text of the user message, or all messages: `Message(role, content)` or `{"role": ...,
"content": ...}`."""


@dataclass(frozen=True, slots=True)
class Asking:
    """Settings of every benchmark: the form in which requests ask the endpoint for JSON, how many
    times an unusable reply is asked for again, and which of its `roles` have a model."""

    structured: Structured = "json_object"
    parse_retries: int = PARSE_RETRIES
    roles: frozenset[str] = frozenset()

    @property
    def wants_json(self) -> bool:
        return self.structured != "none"

    @property
    def wants_schema(self) -> bool:
        return self.structured in ("json_schema", "auto")

    @property
    def needs_schema(self) -> bool:
        return self.structured == "json_schema"

    @property
    def identity(self) -> JSON:
        return {"structured": self.structured, "parse_retries": self.parse_retries}


ASKING = Asking()


@dataclass(frozen=True, slots=True)
class Note:
    """The note of one language that asks for a reply again; see chat.toml."""

    text: str
    json: str
    again: str
    reasons: Mapping[str, str]


_LANGUAGES = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
Judged = Callable[[Completion, InvalidReply | None], None]
"""Called for each reply that was read, at once: with the error of one that cannot be used."""


def unnoticed(completion: Completion, error: InvalidReply | None) -> None:
    """Ignore how a reply was read."""


NOTES = {language: Note(**text) for language, text in _LANGUAGES.items()}


class Chat:
    """Send the requests of one user and read the replies.

    `usage` counts requests and tokens so far, `usage_of_roles` those of each role among them, and
    `reads` the requests of each `read` that has ended. `repairs` lists the kinds of repairs that
    replies needed. `failed` is the error of a request without a reply: the user fails with it, even
    if the benchmark catches it. `odd` describes other errors than `InvalidReply` that `read`
    raised: an odd reply, or a mistake in `read`. `repeat` is which of the user's repeats is played,
    from 1; a benchmark that draws random numbers makes them depend on it. `judged` is called for
    each reply that is read. With `same_note` every retry after the same mistake is the same
    request, as in results that exist of the benchmarks that ship.

    A `role` is one of the benchmark's `roles`: its model is asked instead of the one under test.
    """

    def __init__(
        self,
        ask: Ask,
        asking: Asking = ASKING,
        language: Literal["en", "zh"] = "en",
        repeat: int = 1,
        *,
        judged: Judged = unnoticed,
        same_note: bool = False,
    ) -> None:
        self.repeat = repeat
        self.usage = Usage()
        self.usage_of_roles: dict[str, Usage] = {}
        self.reads: list[int] = []
        self.repairs: list[str] = []
        self.odd: list[str] = []
        self.failed: BaseException | None = None
        self.unjudged: Completion | None = None
        self._ask = ask
        self._asking = asking
        self._note = NOTES[language]
        self._judged = judged
        self._same_note = same_note

    @property
    def roles(self) -> frozenset[str]:
        """Return the roles that have a model in this run."""
        return self._asking.roles

    @property
    def usage_data(self) -> JSON:
        """Return the usage as records have it, with a part for each role that was asked."""
        data = self.usage.data
        if self.usage_of_roles:
            data["roles"] = {role: usage.data for role, usage in self.usage_of_roles.items()}
        return data

    async def ask(self, request: Request) -> Completion:
        """Return the completion of one request, unchanged. Raise the error of a request that got no
        reply."""
        try:
            completion = await self._ask(request)
            # counts of a changed saved reply may be no numbers
            self.usage = self.usage.plus(completion)
            self.unjudged = completion
            if request.role:
                self.unjudged = None
                usage = self.usage_of_roles.get(request.role, Usage())
                self.usage_of_roles[request.role] = usage.plus(completion)
        except BaseException as error:  # also a cancelled user must not become an answer
            self.failed = error
            raise
        return completion

    async def json(
        self,
        prompt: Prompt,
        read: Callable[[JSON], T] | None = None,
        schema: JSON | None = None,
        *,
        role: str = "",
    ) -> T:
        """Return the JSON object of the reply, or the result of `read(object)`.

        `read` raises `InvalidReply(kind, why)` for an unusable object. `schema` is the object's
        JSON schema, which requests have if the run asks for it: in strict dialects all fields are
        required, and `additionalProperties` is false. An endpoint may ignore it. Raise
        `InvalidReply` if the reply is still unusable after all retries.
        """
        answer: T = await self._read(prompt, _object, read, json=True, schema=schema, role=role)
        return answer

    async def text(
        self, prompt: Prompt, read: Callable[[str], T] | None = None, *, role: str = ""
    ) -> T:
        """Return the text of the reply, or the result of `read(text)`. Raise the same errors as
        `json`."""
        answer: T = await self._read(prompt, answer_text, read, json=False, role=role)
        return answer

    async def _read(
        self,
        prompt: Prompt,
        extract: Callable[..., Any],
        read: Callable[[Any], Any] | None,
        *,
        json: bool,
        schema: JSON | None = None,
        role: str,
    ) -> Any:
        def reader(completion: Completion) -> tuple[Any, list[str]]:
            repairs: list[str] = []
            value = extract(completion, repairs)
            if read is not None:
                value = read(value)
            return value, repairs

        answer, repairs = await self.read(prompt, reader, json=json, schema=schema, role=role)
        self.repairs += repairs
        return answer

    async def read(
        self,
        prompt: Prompt,
        read: Callable[[Completion], T],
        *,
        json: bool = True,
        schema: JSON | None = None,
        role: str = "",
    ) -> T:
        """Return the result of `read(completion)`; ask again while it raises `InvalidReply`.

        `json` is whether the reply has to be a JSON object, `schema` as for `json`. An error of
        shape in `read` (`LookupError`, `TypeError`, ...) becomes `InvalidReply("wrong_shape")`.
        Raise the last `InvalidReply` after all retries, or at once if it is final.
        """
        count_before = self.usage.requests
        try:
            request = self._request(_messages(prompt), json, schema, role)
            return await self._read_in_tries(request, read, json=json)
        finally:
            # Also where it fails: `reads` says how many requests each reading took.
            self.reads.append(self.usage.requests - count_before)

    async def _read_in_tries(
        self, request: Request, read: Callable[[Completion], T], *, json: bool
    ) -> T:
        messages = request.messages
        # The number of the next try, which its note names.
        for number in count(2):
            completion = await self.ask(request)
            try:
                answer = read(completion)
            except InvalidReply as invalid:
                error = invalid
            except ODD_SHAPE as odd:
                error = InvalidReply("wrong_shape")
                error.__cause__ = odd
                self.odd.append(f"{described(odd)}{place(odd)}")
            else:
                self.unjudged = None
                self._judged(completion, None)
                return answer
            error.role = request.role
            self.unjudged = None
            self._judged(completion, error)
            if error.final or number > self._asking.parse_retries + 1:
                raise error
            note = self._note.json if json else self._note.text
            note = note.format(why=error.why or self._note.reasons.get(error.kind, error.kind))
            # A retry that equals the one before it would get the same reply at temperature 0.
            if number > 2 and not self._same_note:
                note += self._note.again.format(number=number)
            # The user's message at the end, and no new message: templates of some models take turns
            # strictly.
            request = replace(request, messages=(*messages[:-1], messages[-1].with_note(note)))
        raise AssertionError("the last try returns or raises")

    def _request(
        self, messages: tuple[Message, ...], json: bool, schema: JSON | None, role: str
    ) -> Request:
        asking = self._asking
        if json and schema is None and asking.needs_schema:
            raise BadInput(
                "--structured json_schema: the benchmark gives no schema with its request: run with"
                " --structured auto"
            )
        return Request(
            messages,
            json and asking.wants_json,
            schema=schema if json and asking.wants_schema else None,
            role=role,
        )


def _object(completion: Completion, repairs: list[str]) -> JSON:
    """Return the object of a reply. Raise `InvalidReply`, also for one that was repaired into what
    a file cannot hold: half a surrogate pair, or a whole number beyond 64 bits."""
    data = json_object(completion, repairs)
    try:
        orjson.dumps(data)
    except TypeError:
        raise InvalidReply("no_json") from None
    return data


def _messages(prompt: Prompt) -> tuple[Message, ...]:
    if isinstance(prompt, str):
        return (Message("user", prompt),)
    messages = [
        message if isinstance(message, Message) else message_of(message) for message in prompt
    ]
    if not messages:
        raise ValueError("a prompt has at least one message")
    return tuple(messages)
