"""Words of endpoints that do not answer: as messages show them, and what they mean.

error_phrases.toml has the phrases, and the table of what they and a status mean.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, TypeGuard

import orjson

from harness.client.objects import object_of, objects_of

PHRASES: dict[str, Any] = tomllib.loads(
    Path(__file__).with_suffix(".toml").read_text(encoding="utf-8")
)
FINISH_REASONS: dict[str, str] = {}
"""OpenAI's finish reason by that of another endpoint, in lower case."""
for _reason, _equivalents in PHRASES["finish_reasons"].items():
    FINISH_REASONS.update(dict.fromkeys(_equivalents, _reason))
BASE_RESP: dict[int, int] = {}
"""HTTP status by MiniMax's own code."""
for _status, _codes in PHRASES["base_resp"].items():
    BASE_RESP.update(dict.fromkeys(_codes, int(_status)))

TOO_MANY_REQUESTED = re.compile(r"max_(?:completion_)?tokens\W.{0,40}too large(?:: (\d{1,15})\b)?")
"""A --max-tokens that no model allows: wrong parameters, even where the sentence goes on about the
context length."""
WHOLE_CONTEXT = re.compile(r"maximum context length is (\d{1,15})\b")
QUOTED = re.compile(r"""['"`“‘「『](.*?)['"`”’」』]""")
ECHOED_INPUT = re.compile(r"""['"]input['"]\s*:|\binput_value=""")
"""Where the message of a validator (FastAPI, pydantic) begins to quote the input that it
refuses."""
PARAMETER = re.compile(r"[A-Za-z_][\w.\[\]-]{0,63}", re.ASCII)
"""The name of a parameter or the path to it: anything else in its place may be a user's text."""
MESSAGES = ("message", "msg", "error_msg", "errmsg", "error_message", "detail")
"""Members with an endpoint's own words."""
MEMBERS = ("error", "code", "type", "param", *MESSAGES)
SUCCESS = frozenset({"", "0", "200", "none", "null", "false", "ok", "success"})
"""What an endpoint without an error has in a member for one, in lower case."""
CONTEXT = ("context", "context_in_other_words")
LONGEST_MESSAGE = 300
"""Characters of an endpoint's own words in a message."""


def error_text(error: object) -> str:
    """Return the endpoint's own words on one line, the error's code first; "" if no known member
    has any."""
    if type(error) is str:
        return one_line(error)
    error = object_of(error)
    error = object_of(error.get("error")) or error
    messages = [*_usual_messages(error), *_relay_messages(error)]
    return one_line(", ".join(dict.fromkeys(messages)))


def _usual_messages(error: dict[str, Any]) -> Iterator[str]:
    """Yield the words of an error's members, in OpenAI's form and those of validators."""
    for name in MEMBERS:
        value = error.get(name)
        if name == "message":
            yield from _quotas(error)
        if name == "param" and not _is_parameter(value):
            continue
        if type(value) is dict:
            value = value.get("detail")
        if type(value) is list:
            yield from _validation_errors(value)
        elif value and type(error[name]) in (str, int):
            yield str(value)


def _is_parameter(value: object) -> TypeGuard[str]:
    return type(value) is str and PARAMETER.fullmatch(value) is not None


def _relay_messages(error: dict[str, Any]) -> Iterator[str]:
    """Yield the words of members that only some have."""
    base = error.get("base_resp")
    if type(base) is dict:  # MiniMax
        yield f"{base.get('status_code')}, {base.get('status_msg')}"
    # OpenRouter: its moderation, or the provider's own error
    metadata = object_of(error.get("metadata"))
    if "flagged_input" in metadata:
        yield "input was flagged"
    message = ""
    with suppress(ValueError):
        message = error_text(orjson.loads(metadata.get("raw", "")))
    if message:
        yield message


def retry_delay(data: object) -> str | None:
    """Return the seconds to wait, as text, that an error of Google's names
    (`google.rpc.RetryInfo`); None without."""
    for detail in _details(object_of(data).get("error")):
        delay = detail.get("retryDelay")
        if type(delay) is str:
            return delay.removesuffix("s")
    return None


def _quotas(error: dict[str, Any]) -> list[str]:
    """Return the quotas that an error of Google's names (`google.rpc.QuotaFailure`), of a day alone
    if there are any."""
    quotas: list[str] = []
    for detail in _details(error):
        for violation in objects_of(detail.get("violations")):
            quota = violation.get("quotaId")
            if _is_parameter(quota):
                quotas.append(quota)
    # The message is the same for a limit a minute, which passes by itself, and for one a day.
    return [quota for quota in quotas if "PerDay" in quota] or quotas


def _details(error: object) -> list[dict[str, Any]]:
    return objects_of(object_of(error).get("details"))


def _validation_errors(errors: list[Any]) -> Iterator[str]:
    """Yield the place and message of the first errors of a validator (FastAPI, pydantic), without
    the quoted input."""
    for error in objects_of(errors[:3]):
        location = error.get("loc")
        message = error.get("msg")
        if type(location) is list and type(message) is str:
            yield f"{_path(location)}: {message}"


def _path(location: list[Any]) -> str:
    """Return the steps to a parameter, joined by dots, without those that may quote a text."""
    steps = [str(step) for step in location if type(step) is int or _is_parameter(str(step))]
    return ".".join(steps)


def one_line(text: str) -> str:
    """Return foreign words as a message shows them: printable, on one line, and not too long."""
    line = "".join(filter(str.isprintable, " ".join(text.split())))
    if len(line) <= LONGEST_MESSAGE:
        return line
    # A word that the end would cut in two is left out, since a part of an echoed key would not be
    # recognised as one.
    return re.sub(r"[!-~]+\Z", "", line[:LONGEST_MESSAGE]) + "…"


def searchable(text: str) -> str:
    """Return the words in which phrases are looked up: in lower case, without the input that a
    validator quotes."""
    return ECHOED_INPUT.split(text, maxsplit=1)[0].lower()


def without_quotes(message: str, request: str) -> str:
    """Remove what an error quotes of the request: a quoted post about an empty account must not be
    taken for one."""
    return QUOTED.sub(lambda quote: "" if quote[1] and quote[1] in request else quote[0], message)


def says(topic: str, message: str) -> bool:
    """Return whether a `searchable` message has a phrase of this list of error_phrases.toml."""
    is_missing = "not found" in message or "does not exist" in message
    if topic == "unknown_model" and is_missing and "model" in message:
        return True
    if topic in CONTEXT and _asks_too_much(message):
        return False
    return any(phrase in message for phrase in PHRASES[topic])


def _asks_too_much(message: str) -> bool:
    """Return whether an absurd --max-tokens is the reason, and not the prompt's length."""
    requested = TOO_MANY_REQUESTED.search(message)
    if requested is None:
        return False
    context = WHOLE_CONTEXT.search(message)
    if context is None or not requested[1]:
        return True
    # vLLM also says this where the prompt leaves less room than was requested, though the model has
    # more.
    return int(requested[1]) >= int(context[1])


class Rule(NamedTuple):
    """What an error means, as a row of `meanings` in error_phrases.toml has it."""

    meaning: str
    statuses: Sequence[int | str] = ()
    topics: Sequence[str] = ()
    billed: bool = False


RULES = [Rule(**row) for row in PHRASES["meanings"]["rows"]]


def rule_of(status: int | None, message: str) -> Rule:
    """Return the rule for an error with this `searchable` message; without a status of its own, by
    the message alone."""
    for rule in RULES:
        if not rule.statuses:
            fits = True
        elif status is None:
            fits = bool(rule.topics)
        else:
            fits = status in rule.statuses or f"{status // 100}xx" in rule.statuses
        if fits and all(says(topic, message) for topic in rule.topics):
            return rule
    raise AssertionError("the last row fits every error")


def is_error(error: object) -> bool:
    """Return whether a member for errors has one: some endpoints always send it, empty, or with
    words of success."""
    if type(error) is list:
        return bool(error)
    if type(error) is not dict:
        return str(error).strip().lower() not in SUCCESS
    values = [error[name] for name in MEMBERS if name in error] or error.values()
    return any(bool(value) if type(value) is dict else is_error(value) for value in values)
