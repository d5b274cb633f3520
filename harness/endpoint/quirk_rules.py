"""The quirks of endpoints: rules from quirk_rules.toml, and the change of a request that each one makes."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from harness.model import JSON

NEAR = r"(?:(?!\. ).){0,60}?"
"""What may be between a parameter and the phrase about it: no end of a sentence."""


@dataclass(frozen=True, slots=True)
class Quirk:
    """A rule of quirk_rules.toml, which describes its fields; patterns are compiled, and match lower case."""

    member: str
    refusal: re.Pattern[str]
    sentence: str
    unless: re.Pattern[str] | None
    requires: str
    undoes: str
    change: Callable[[JSON], object]


def _near(names: list[str], phrases: list[str]) -> str:
    name, phrase = rf"(?<!\w)(?:{'|'.join(names)})(?!\w)", f"(?:{'|'.join(phrases)})"
    return f"{name}{NEAR}{phrase}|{phrase}{NEAR}{name}"


def _form(body: JSON) -> object:
    form = body.get("response_format")
    return form.get("type") if isinstance(form, dict) else None


def _any_object(body: JSON) -> None:
    if _form(body) == "json_schema":
        body["response_format"] = {"type": "json_object"}


def _as_schema(body: JSON) -> None:
    if _form(body) == "json_object":
        schema = {"name": "answer", "schema": {"type": "object"}}
        body["response_format"] = {"type": "json_schema", "json_schema": schema}


def _only_with_json_in_prompt(body: JSON) -> None:
    if _form(body) == "json_object" and not any("json" in text_of(message).lower() for message in body["messages"]):
        del body["response_format"]


def _renamed(body: JSON) -> None:
    if "max_tokens" in body:
        body.setdefault("max_completion_tokens", body.pop("max_tokens"))


def _streamed(body: JSON) -> None:
    if body.setdefault("stream", True):
        body.setdefault("stream_options", {"include_usage": True})


def _system_first(body: JSON) -> None:
    """Put the text of the system messages in front of the first user message."""
    system = [text_of(message) for message in body["messages"] if message["role"] == "system"]
    others = [message for message in body["messages"] if message["role"] != "system"]
    if not system:
        return
    first = next((message for message in others if message["role"] == "user"), None)
    if first is None:
        others.insert(0, first := {"role": "user", "content": ""})
    if isinstance(first["content"], str):
        first["content"] = "\n\n".join([*system, first["content"]]).rstrip()
    else:
        first["content"] = [*({"type": "text", "text": text} for text in system), *first["content"]]
    body["messages"] = others


def text_of(message: JSON) -> str:
    """Return the text of a message; for a content in parts, their JSON."""
    content = message.get("content", "")
    return content if isinstance(content, str) else orjson.dumps(content).decode()


CHANGES: dict[str, Callable[[JSON], object]] = {
    "json_object": _any_object,
    "json_schema": _as_schema,
    "json_word": _only_with_json_in_prompt,
    "max_completion_tokens": _renamed,
    "stream": _streamed,
    "no_system_role": _system_first,
}
"""Changes of the decoded body; the other quirks remove their member."""

_RULES = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
_PHRASES: dict[str, list[str]] = _RULES["phrases"]


def _quirk(name: str, rule: dict[str, Any]) -> Quirk:
    if "refusal" in rule:
        refusal = "|".join(rule["refusal"])
    else:
        refusal = _near(rule["names"], [phrase for group in rule["refused"] for phrase in _PHRASES[group]])
    unless = re.compile("|".join(_PHRASES[rule["unless"]])) if "unless" in rule else None
    change = CHANGES.get(name, lambda body: body.pop(rule["member"], None))
    requires, undoes = rule.get("requires", ""), rule.get("undoes", "")
    return Quirk(rule["member"], re.compile(refusal), rule["sentence"], unless, requires, undoes, change)


QUIRKS: dict[str, Quirk] = {name: _quirk(name, rule) for name, rule in _RULES["quirks"].items()}
"""By name, in the order in which they are applied to a body, and looked for in a refusal."""

PLAINLY_THE_FORMAT = re.compile(
    _near(_RULES["quirks"]["json_object"]["names"], [*_PHRASES["not_this_form"], *_PHRASES["not_taken"]])
)
"""What an endpoint must say about a response_format if it calls the refusal a failure of its own."""
