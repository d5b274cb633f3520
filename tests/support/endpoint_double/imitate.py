"""Replies, streams and errors in the shapes of one provider, as its data file has them:
imitations/NAME.toml.

Each file is written after public documentation and validated when read. JSON is text in it, since
TOML has no null. With an imitation any model is answered, under the name that was requested.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from string import Template
from typing import Annotated, Any, Literal, TypeVar

import msgspec
import orjson
from msgspec import Struct, field

from harness.benchmarks import registry
from harness.client.baselines import tokens
from harness.errors import BadInput
from tests.support.endpoint_double import calls
from tests.support.endpoint_double.faults import FAILED, REFUSALS, HttpReply

FOLDER = Path(__file__).parent / "imitations"
NAMES = (
    "openai",
    "deepseek",
    "dashscope",
    "siliconflow",
    "openrouter",
    "vllm",
    "sglang",
    "llamacpp",
)
NO_SUCH_MODEL = "no-such-model"
"""The one name that is not answered, if the provider has an error for it."""
FIXED = '{"reply": "收到，这是一条固定的回复。"}'
"""The answer to prompts that no baseline can read."""
THOUGHTS = "先看最近几批动态里反复出现的标签，再对照候选，排除只是一时热门的，然后按把握大小排序。"

Status = Annotated[int, msgspec.Meta(ge=400, le=599)]
T = TypeVar("T")

_ABSENT = object()
_COUNT = re.compile(r"\{(\w+)\}")


class Members(dict[str, Any]):
    """Members of a JSON object, which is text in a data file."""


class Body(str):
    """JSON, in which `$model` and `$value` are the requested model and the refused value."""


class Error(Struct, frozen=True, forbid_unknown_fields=True):
    """An error as an HTTP reply."""

    status: Status
    body: Body
    headers: dict[str, str] = {}

    def reply(self, model: str, value: Any = None) -> HttpReply:
        shown = value if isinstance(value, str) else orjson.dumps(value).decode()
        model, shown = (
            orjson.dumps(text).decode()[1:-1] for text in (model, shown)
        )  # as within a JSON string
        body = Template(self.body).safe_substitute(model=model, value=shown)
        return HttpReply(self.status, body.encode(), headers=self.headers)


class Rule(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A rule for calls of these models with a condition on a parameter, dotted for a member of one:
    it is one of `equals` and none of `other_than`; or, with `absent`, it is not there. Without a
    parameter the rule always applies.
    """

    models: re.Pattern[str] = re.compile("")
    parameter: str | None = None
    equals: tuple[Any, ...] | None = None
    other_than: tuple[Any, ...] = ()
    absent: bool = False

    def applies(self, call: Mapping[str, Any]) -> bool:
        if not self.models.search(call["model"]):
            return False
        value = self.value(call)
        if value is _ABSENT:
            return self.absent or self.parameter is None
        return (self.equals is None or value in self.equals) and value not in self.other_than

    def value(self, call: Mapping[str, Any]) -> Any:
        """Return the parameter's value in a call, `_ABSENT` if it is not there."""
        value: Any = call if self.parameter else _ABSENT
        for name in (self.parameter or "").split("."):
            value = value.get(name, _ABSENT) if isinstance(value, Mapping) else _ABSENT
        return value


class Thinking(Rule, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Models that think first. `shown` is the place of their thoughts: a member of the message,
    `inline` in its content, or `hidden`; `counted`: the usage has their tokens apart.
    """

    shown: Literal["reasoning_content", "reasoning", "inline", "hidden"]
    counted: bool = False


class Refused(Rule, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Calls that the provider refuses: to which the rule applies, streamed or not (None: either),
    and whose messages lack the word. `status`, `body` and `headers` are those of the `Error`.
    """

    status: Status
    body: Body
    headers: dict[str, str] = {}
    streamed: bool | None = None
    without_word: str | None = None

    def concerns(self, call: Mapping[str, Any]) -> bool:
        if self.streamed not in (None, bool(call.get("stream"))) or not self.applies(call):
            return False
        word = self.without_word
        return not (
            word and any(word in message["content"].lower() for message in call["messages"])
        )


class Imitation(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One provider. `sources` are the public pages and threads that its file was written after.

    `reply`, `choice`, `message` and `usage` are members of whole replies in addition to OpenAI's,
    `chunk` and `chunk_choice` those of the chunks of streams; `"{prompt_tokens}"` in a usage is
    replaced by that count. `parts`: contents are lists of parts. `usage_at_finish`: it comes with a
    stream's end. A `comment` in streams and `empty_lines` before whole replies keep a connection
    alive. `ignores_schemas`: a `json_schema` is taken, and the answer need not fit it.
    `stream_error` is the data of an error in mid-stream. `errors` are by kind, of faults.REFUSALS.
    """

    sources: tuple[str, ...]
    reply: Members = field(default_factory=Members)
    choice: Members = field(default_factory=Members)
    message: Members = field(default_factory=Members)
    usage: Members = field(default_factory=Members)
    chunk: Members = field(default_factory=Members)
    chunk_choice: Members = field(default_factory=Members)
    comment: str | None = None
    stream_error: Members = field(default_factory=lambda: Members(orjson.loads(FAILED)))
    parts: bool = False
    usage_missing: bool = False
    usage_at_finish: bool = False
    empty_lines: bool = False
    ignores_schemas: bool = False
    thinking: tuple[Thinking, ...] = ()
    refused: tuple[Refused, ...] = ()
    errors: dict[str, Error] = {}

    def unknown(self, model: str) -> HttpReply | None:
        """Return the provider's error for a model that it does not have, None if it has it."""
        error = self.errors.get("unknown_model") if model == NO_SUCH_MODEL else None
        return error.reply(model) if error else None

    def thoughts(self, call: Mapping[str, Any]) -> str:
        """Return what the model thinks before each choice, as far as the call's limit lets it."""
        most = calls.limit(call)
        return THOUGHTS[: None if most is None else 2 * most] if self._thinking(call) else ""

    def _thinking(self, call: Mapping[str, Any]) -> Thinking | None:
        return next((rule for rule in self.thinking if rule.applies(call)), None)

    def refusal(self, call: Mapping[str, Any]) -> HttpReply | None:
        """Return the provider's error for a call of a model that it has, None if it takes it."""
        for rule in self.refused:
            if rule.concerns(call):
                value = rule.value(call)
                error = Error(rule.status, rule.body, rule.headers)
                return error.reply(call["model"], None if value is _ABSENT else value)
        return None

    def shape(self, reply: dict[str, Any], call: Mapping[str, Any]) -> dict[str, Any]:
        """Return a whole reply of ours in the provider's shape."""
        usage, choices, thinking = dict(reply["usage"]), [], self._thinking(call)
        if thinking:
            thought = tokens(self.thoughts(call)) * len(reply["choices"])
            usage["completion_tokens"] += thought
            usage["total_tokens"] += thought
            if thinking.counted:
                usage["completion_tokens_details"] = {"reasoning_tokens": thought}
        for choice in reply["choices"]:
            message = choice["message"] | self.message
            if thinking:
                _think(thinking.shown, self.thoughts(call), message, choice["finish_reason"])
            if self.parts and isinstance(message["content"], str):
                message["content"] = [{"type": "text", "text": message["content"]}]
            choices.append({**choice, "message": message, **self.choice})
        usage = _merged(usage, _counted(self.usage, usage))
        shaped = {**reply, "choices": choices, "usage": usage, **self.reply}
        if self.usage_missing:
            del shaped["usage"]
        return shaped


PLAIN = Imitation(sources=())
"""OpenAI's shapes, of which no member is a provider's own."""


def load(name: str, folder: Path = FOLDER) -> Imitation:
    """Return the imitation of a provider. Raise `BadInput` for a name without a file and for a
    mistake in one."""
    path = folder / f"{name}.toml"
    if folder is FOLDER and name not in NAMES:
        raise BadInput(f"cannot imitate {name!r}: known are {', '.join(NAMES)}")
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadInput(f"cannot read {path}: {error.strerror}") from None
    except ValueError as error:
        raise BadInput(f"{path}: not TOML: {error}") from None
    errors = data.get("errors", {})
    for kind, each in (
        errors.items() if isinstance(errors, dict) else ()
    ):  # one by one: msgspec names no key
        if kind not in REFUSALS:
            raise BadInput(f"{path}, errors.{kind}: expected one of {', '.join(REFUSALS)}")
        _converted(each, Error, f"{path}, errors.{kind}")
    return _converted(data, Imitation, str(path))


def _converted(data: Any, kind: type[T], where: str) -> T:
    try:
        return msgspec.convert(data, kind, dec_hook=_decoded)
    except msgspec.ValidationError as error:
        raise BadInput(f"{where}: {error}") from None


def _decoded(kind: type, text: Any) -> Any:
    """Decode a regular expression or the text of JSON. Raise `ValueError`."""
    try:
        value: Any = orjson.loads(text) if kind in (Members, Body) else re.compile(text)
    except (orjson.JSONDecodeError, re.error, TypeError) as error:
        expected = "JSON as text" if kind in (Members, Body) else "a regular expression"
        raise ValueError(f"expected {expected} ({error})") from None
    if kind is Members and not isinstance(value, dict):
        raise ValueError("expected a JSON object as text")
    return Members(value) if kind is Members else Body(text) if kind is Body else value


def answer(call: Mapping[str, Any], seed: int) -> str:
    """Return the answer of the baseline of that name, or of a benchmark with such prompts, or a
    fixed one."""
    model, messages = call["model"], call["messages"]
    text = "\n".join([message["content"] for message in messages if message["role"] == "user"])
    known = registry.baselines()
    name = model if model in known else registry.reader(text)
    return known[name](messages, seed) if name else FIXED


def _think(shown: str, thoughts: str, message: dict[str, Any], finish_reason: str) -> None:
    """Add thoughts to a message. One cut off by its length may not have got beyond them."""
    if shown == "inline":
        content = message["content"] or ""
        end = f"\n</think>\n\n{content}" if content or finish_reason != "length" else ""
        message["content"] = f"<think>\n{thoughts}{end}"
    elif shown != "hidden":
        message[shown] = thoughts


def _counted(members: Any, usage: Mapping[str, Any]) -> Any:
    """Return the members with the counts of the usage that they name."""
    if isinstance(members, dict):
        return {name: _counted(value, usage) for name, value in members.items()}
    named = _COUNT.fullmatch(members) if isinstance(members, str) else None
    return usage[named[1]] if named else members


def _merged(counts: dict[str, Any], members: dict[str, Any]) -> dict[str, Any]:
    """Merge both; counts win over members of the same name, at each level."""
    both = {**members, **counts}
    for name, value in counts.items():
        if isinstance(value, dict) and isinstance(members.get(name), dict):
            both[name] = members[name] | value
    return both
