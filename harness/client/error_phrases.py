"""Words of endpoints that do not answer: as messages show them, and what they mean.

error_phrases.toml has the phrases, and the table of what they and a status mean.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import orjson

PHRASES: dict[str, Any] = tomllib.loads(
    Path(__file__).with_suffix(".toml").read_text(encoding="utf-8")
)
FINISH_REASONS: dict[str, str] = {
    theirs: ours for ours, words in PHRASES["finish_reasons"].items() for theirs in words
}
BASE_RESP: dict[int, int] = {
    code: int(status) for status, codes in PHRASES["base_resp"].items() for code in codes
}

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
    if type(error) is not dict:
        return ""
    inner = error.get("error")
    said = inner if type(inner) is dict and inner else error
    return one_line(", ".join(dict.fromkeys([*_of_error(said), *_of_relay(said)])))


def _of_error(error: dict[str, Any]) -> Iterator[str]:
    """Yield the words of an error's members, in OpenAI's form and those of validators."""
    for name in MEMBERS:
        value = error.get(name)
        if name == "message":
            yield from _quotas(error)
        if name == "param" and not (type(value) is str and PARAMETER.fullmatch(value)):
            continue
        if value and type(value) in (str, int):
            yield str(value)
        elif type(value) in (list, dict):
            yield from _validation_errors(value.get("detail") if type(value) is dict else value)


def _of_relay(error: dict[str, Any]) -> Iterator[str]:
    """Yield the words of members that only some have."""
    if type(base := error.get("base_resp")) is dict:  # MiniMax
        yield f"{base.get('status_code')}, {base.get('status_msg')}"
    if (
        type(metadata := error.get("metadata")) is dict
    ):  # OpenRouter: its moderation, or the provider's own error
        if "flagged_input" in metadata:
            yield "input was flagged"
        with suppress(ValueError):
            if type(raw := metadata.get("raw")) is str and (words := error_text(orjson.loads(raw))):
                yield words


def retry_delay(data: object) -> str | None:
    """Return the seconds to wait, as text, that an error of Google's names
    (`google.rpc.RetryInfo`); None without."""
    error = data.get("error") if type(data) is dict else None
    named = (each.get("retryDelay") for each in _details(error))
    return next((delay.removesuffix("s") for delay in named if type(delay) is str), None)


def _quotas(error: dict[str, Any]) -> list[str]:
    """Return the quotas that an error of Google's names (`google.rpc.QuotaFailure`), of a day alone
    if there are any.

    Its message has the same words for a limit a minute, which passes by itself, and for one a day.
    """
    named = [
        one.get("quotaId") for each in _details(error) for one in _objects(each.get("violations"))
    ]
    quotas = [quota for quota in named if type(quota) is str and PARAMETER.fullmatch(quota)]
    return [quota for quota in quotas if "PerDay" in quota] or quotas


def _details(error: object) -> list[dict[str, Any]]:
    return _objects(error.get("details")) if type(error) is dict else []


def _objects(value: object) -> list[dict[str, Any]]:
    return [each for each in value if type(each) is dict] if type(value) is list else []


def _validation_errors(errors: object) -> list[str]:
    """Return the place and message of the first errors of a validator (FastAPI, pydantic), without
    the quoted input."""
    found = []
    for each in errors[:3] if type(errors) is list else ():
        if type(each) is dict and type(each.get("loc")) is list and type(each.get("msg")) is str:
            place = ".".join(
                str(step)
                for step in each["loc"]
                if type(step) is int or PARAMETER.fullmatch(str(step))
            )
            found.append(f"{place}: {each['msg']}")
    return found


def one_line(text: str) -> str:
    """Return foreign words as a message shows them: printable, on one line, and not too long.

    A word that the end would cut in two is left out, since a part of an echoed key would not be
    recognised as one.
    """
    line = "".join(filter(str.isprintable, " ".join(text.split())))
    return (
        line
        if len(line) <= LONGEST_MESSAGE
        else re.sub(r"[!-~]+\Z", "", line[:LONGEST_MESSAGE]) + "…"
    )


def searchable(text: str) -> str:
    """Return the words in which phrases are looked up: in lower case, without the input that a
    validator quotes."""
    return ECHOED_INPUT.split(text, maxsplit=1)[0].lower()


def without_quotes(words: str, request: str) -> str:
    """Remove what an error quotes of the request: a quoted post about an empty account must not be
    taken for one."""
    return QUOTED.sub(lambda quote: "" if quote[1] and quote[1] in request else quote[0], words)


def says(topic: str, low: str) -> bool:
    """Return whether `searchable` words have a phrase of this list of error_phrases.toml."""
    if (
        topic == "unknown_model"
        and "model" in low
        and ("not found" in low or "does not exist" in low)
    ):
        return True
    found = any(phrase in low for phrase in PHRASES[topic])
    return found and not (topic in CONTEXT and _asks_too_much(low))


def _asks_too_much(low: str) -> bool:
    """Return whether an absurd --max-tokens is the reason, and not the prompt's length."""
    if not (requested := TOO_MANY_REQUESTED.search(low)):
        return False
    # vLLM also says this where the prompt leaves less room than was requested, though the model has
    # more.
    whole = WHOLE_CONTEXT.search(low)
    return not (requested[1] and whole and int(requested[1]) < int(whole[1]))


class Rule(NamedTuple):
    """What an error means, as a row of `meanings` in error_phrases.toml has it."""

    meaning: str
    statuses: Sequence[int | str] = ()
    topics: Sequence[str] = ()
    billed: bool = False


RULES = [Rule(**row) for row in PHRASES["meanings"]["rows"]]


def rule_of(status: int | None, low: str) -> Rule:
    """Return the rule for an error with these `searchable` words; without a status of its own, by
    the words alone."""
    for rule in RULES:
        if status is None:
            fits = bool(rule.topics or not rule.statuses)
        else:
            fits = (
                not rule.statuses
                or status in rule.statuses
                or f"{status // 100}xx" in rule.statuses
            )
        if fits and all(says(topic, low) for topic in rule.topics):
            return rule
    raise AssertionError("the last row fits every error")


def is_error(error: object) -> bool:
    """Return whether a member for errors has one: some endpoints always send it, empty, or with
    words of success."""
    if type(error) is not dict:
        return bool(error) if type(error) is list else str(error).strip().lower() not in SUCCESS
    said = [error[name] for name in MEMBERS if name in error] or error.values()
    return any(bool(value) if type(value) in (dict, list) else is_error(value) for value in said)
