"""Replies, streams and errors in the shapes of one provider, as its data file has them (`shapes`).

With an imitation any model is answered, under the name that was asked for. Source: docs/design.md, section 7, `serve`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from string import Template
from typing import Any

import orjson

from harness.benchmarks import registry
from harness.serve.faults import HttpReply
from harness.serve.stream import Manner

NO_SUCH_MODEL = "no-such-model"
"""The one name that is not answered, where the provider has an error for it."""

FIXED = '{"reply": "收到，这是一条固定的回复。"}'
"""The answer to prompts that no baseline can read."""

THOUGHTS = "先看最近几批动态里反复出现的标签，再对照候选，排除只是一时热门的，然后按把握大小排序。"
HIDDEN, INLINE = "hidden", "inline"
SHOWN = ("reasoning_content", "reasoning", INLINE, HIDDEN)
_ABSENT = object()
_COUNT = re.compile(r"\{(\w+)\}")


@dataclass(frozen=True, slots=True)
class Condition:
    """On a call's parameter, dotted for a member of one: that it is there, one of `equals` and none of `other_than`,
    or else, with `absent`, that it is not there. Without a parameter it always holds.
    """

    parameter: str | None = None
    equals: tuple[Any, ...] | None = None
    other_than: tuple[Any, ...] = ()
    absent: bool = False

    def holds(self, call: Mapping[str, Any]) -> bool:
        if self.parameter is None:
            return True
        value = member(call, self.parameter)
        if value is _ABSENT:
            return self.absent
        return (self.equals is None or value in self.equals) and value not in self.other_than


@dataclass(frozen=True, slots=True)
class Thinking:
    """Models that think first. `shown` is where their thoughts stand: in a member of the message, `inline` in its
    content, or `hidden`; `counted` says whether the usage tells their tokens apart.
    """

    models: re.Pattern[str]
    shown: str
    counted: bool
    when: Condition


@dataclass(frozen=True, slots=True)
class Error:
    """An HTTP reply; `body` is JSON with `$model` and `$value` in it."""

    status: int
    body: str
    headers: Mapping[str, str]

    def reply(self, model: str, value: Any = None) -> HttpReply:
        named = Template(self.body).safe_substitute(model=_inside(model), value=_inside(_shown(value)))
        return HttpReply(self.status, named.encode(), headers=self.headers)


@dataclass(frozen=True, slots=True)
class Refused:
    """Calls that the provider does not take: of these models, streamed or not (None: either), where no message has the
    word, and where the condition holds.
    """

    models: re.Pattern[str]
    streamed: bool | None
    without_word: str | None
    when: Condition
    error: Error

    def concerns(self, call: Mapping[str, Any]) -> bool:
        if self.streamed not in (None, bool(call.get("stream"))) or not self.models.search(call["model"]):
            return False
        if self.without_word and any(self.without_word in said["content"].lower() for said in call["messages"]):
            return False
        return self.when.holds(call)


@dataclass(frozen=True, slots=True)
class Imitation:
    """One provider. `reply`, `choice`, `message` and `usage` are members of whole replies beside OpenAI's; `parts`:
    contents are lists of parts; `empty_lines`: these keep a connection alive until a whole reply comes.
    """

    name: str
    sources: tuple[str, ...]
    reply: dict[str, Any]
    choice: dict[str, Any]
    message: dict[str, Any]
    usage: dict[str, Any]
    usage_missing: bool
    parts: bool
    empty_lines: bool
    manner: Manner
    thinking: tuple[Thinking, ...]
    refused: tuple[Refused, ...]
    errors: Mapping[str, Error]

    def refusal(self, call: Mapping[str, Any]) -> HttpReply | None:
        """The error that the provider has for a call as it stands, None where it takes it."""
        if call["model"] == NO_SUCH_MODEL and "unknown_model" in self.errors:
            return self.errors["unknown_model"].reply(NO_SUCH_MODEL)
        for rule in self.refused:
            if rule.concerns(call):
                value = member(call, rule.when.parameter) if rule.when.parameter else None
                return rule.error.reply(call["model"], None if value is _ABSENT else value)
        return None

    def error(self, kind: str, model: str) -> HttpReply:
        """The error of a kind that the provider has."""
        return self.errors[kind].reply(model)

    def shape(self, reply: dict[str, Any], call: Mapping[str, Any]) -> dict[str, Any]:
        """A whole reply of ours in the provider's shape."""
        choice, usage = reply["choices"][0], dict(reply["usage"])
        message = choice["message"] | self.message
        finish_reason = choice["finish_reason"]
        thinking = next((entry for entry in self.thinking if _thinks(entry, call)), None)
        if thinking:
            message, usage = _with_thoughts(thinking, message, usage, finish_reason)
        usage = _merged(usage, _counted(self.usage, usage))
        if self.parts and isinstance(message["content"], str):
            message["content"] = [{"type": "text", "text": message["content"]}]
        shaped = {**reply, "choices": [{**choice, "message": message, **self.choice}], "usage": usage, **self.reply}
        if self.usage_missing:
            del shaped["usage"]
        return shaped


def answer(call: Mapping[str, Any], seed: int) -> str:
    """What any model says: a baseline's answer, of that name or of a benchmark whose prompt this is, or a fixed one."""
    model, messages = call["model"], call["messages"]
    text = "\n".join([message["content"] for message in messages if message["role"] == "user"])
    known = registry.baselines()
    name = model if model in known else registry.reader(text)
    return known[name](messages, seed) if name else FIXED


def member(call: Mapping[str, Any], dotted: str) -> Any:
    """A member of a call, or a member of that; a value of its own where it is not there."""
    value: Any = call
    for name in dotted.split("."):
        if not isinstance(value, Mapping) or name not in value:
            return _ABSENT
        value = value[name]
    return value


def _thinks(entry: Thinking, call: Mapping[str, Any]) -> bool:
    return bool(entry.models.search(call["model"])) and entry.when.holds(call)


def _with_thoughts(
    thinking: Thinking, message: dict[str, Any], usage: dict[str, Any], finish_reason: str
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Message and usage of a model that thought first. A reply cut off by its length never got beyond the thoughts."""
    if finish_reason == "length":
        usage["completion_tokens"] = 0
        message["content"] = ""
    if thinking.shown == INLINE:
        end = "" if finish_reason == "length" else f"\n</think>\n\n{message['content'] or ''}"
        message["content"] = f"<think>\n{THOUGHTS}{end}"
    elif thinking.shown != HIDDEN:
        message[thinking.shown] = THOUGHTS
    spent = len(THOUGHTS) // 2
    usage["completion_tokens"] += spent
    usage["total_tokens"] = usage["prompt_tokens"] + usage["completion_tokens"]
    if thinking.counted:
        usage["completion_tokens_details"] = {"reasoning_tokens": spent}
    return message, usage


def _counted(members: Any, usage: Mapping[str, Any]) -> Any:
    """The members with the counts that they name."""
    if isinstance(members, dict):
        return {name: _counted(value, usage) for name, value in members.items()}
    named = _COUNT.fullmatch(members) if isinstance(members, str) else None
    return usage[named[1]] if named else members


def _merged(counts: dict[str, Any], members: dict[str, Any]) -> dict[str, Any]:
    """Counts win over members of the same name, at each level."""
    both = {**members, **counts}
    for name, value in counts.items():
        if isinstance(value, dict) and isinstance(members.get(name), dict):
            both[name] = members[name] | value
    return both


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else orjson.dumps(value).decode()


def _inside(text: str) -> str:
    """A text as it stands between the quotation marks of a JSON string."""
    return orjson.dumps(text).decode()[1:-1]
