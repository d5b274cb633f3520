"""The data files of imitations: one for each provider, written after its public documentation, validated when read.

JSON stands in them as text, since TOML has no null. `$model` and `$value` in the body of an error stand for the model
that was asked for and the value that is refused; `"{prompt_tokens}"` in a usage takes that count.

| field of `imitations/NAME.toml` | what |
|---|---|
| `sources` | public pages and threads that it was written after |
| `reply`, `choice`, `message`, `usage` | members of whole replies beside OpenAI's: JSON objects |
| `chunk`, `chunk_choice` | the same of the chunks of streams |
| `parts`, `usage_missing`, `usage_at_finish` | contents are lists of parts; no usage; it comes with a stream's end |
| `comment`, `empty_lines` | what keeps a connection alive: an SSE comment in streams, lines before whole replies |
| `stream_error` | the data of an error in mid-stream: a JSON object |
| `[[thinking]]` | `models` (regular expression), `shown` (one of imitate.SHOWN), `counted`, a condition |
| `[[refused]]` | `models`, `streamed`, `without_word`, a condition; `status`, `headers`, `body` |
| a condition | `parameter`, `equals`, `other_than`, `absent`: see imitate.Condition |
| `[errors.KIND]` | `status`, `headers`, `body` of a kind of faults.REFUSALS |
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson

from harness.errors import BadInput
from harness.serve.faults import FAILED, REFUSALS
from harness.serve.imitate import SHOWN, Condition, Error, Imitation, Refused, Thinking
from harness.serve.stream import Manner

FOLDER = Path(__file__).parent / "imitations"
NAMES = ("openai", "deepseek", "dashscope", "siliconflow", "openrouter", "vllm", "sglang", "llamacpp")


def load(name: str, folder: Path = FOLDER) -> Imitation:
    """The imitation of a provider. Raises `BadInput` for a name without a file and for a mistake in one."""
    path = folder / f"{name}.toml"
    if folder is FOLDER and name not in NAMES:
        raise BadInput(f"cannot imitate {name!r}: known are {', '.join(NAMES)}")
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadInput(f"cannot read {path}: {error.strerror}") from None
    except ValueError as error:
        raise BadInput(f"{path}: not TOML: {error}") from None
    return _imitation(name, _Table(data, str(path)))


class _Table:
    """A table whose fields are taken one by one; what is left over at the end is a mistake."""

    def __init__(self, fields: dict[str, Any], where: str) -> None:
        self._fields = dict(fields)
        self._where = where

    def wrong(self, name: str, expected: str) -> BadInput:
        return BadInput(f"{self._where}, {name}: expected {expected}")

    def take(self, name: str, kind: type, expected: str, default: Any) -> Any:
        """The field, of this very type. Without a default (`...`) it must be there."""
        value = self._fields.pop(name, default)
        if value is ... or (value is not default and type(value) is not kind):
            raise self.wrong(name, expected)
        return value

    def text(self, name: str, default: Any = ...) -> Any:
        return self.take(name, str, "text", default)

    def flag(self, name: str, default: bool | None = False) -> Any:
        return self.take(name, bool, "true or false", default)

    def json(self, name: str, default: Any = "{}") -> Any:
        """A JSON object that stands in the file as text."""
        try:
            value = orjson.loads(self.text(name, default))
        except orjson.JSONDecodeError:
            value = None
        if not isinstance(value, dict):
            raise self.wrong(name, "a JSON object as text")
        return value

    def pattern(self, name: str) -> re.Pattern[str]:
        try:
            return re.compile(self.text(name, ""))
        except re.error as error:
            raise self.wrong(name, f"a regular expression ({error})") from None

    def tables(self, name: str) -> list[_Table]:
        entries = self.take(name, list, "tables", [])
        if not all(isinstance(entry, dict) for entry in entries):
            raise self.wrong(name, "tables")
        return [_Table(entry, f"{self._where}, {name}[{number}]") for number, entry in enumerate(entries)]

    def named_tables(self, name: str) -> dict[str, _Table]:
        entries = self.take(name, dict, "tables", {})
        if not all(isinstance(entry, dict) for entry in entries.values()):
            raise self.wrong(name, "tables")
        return {key: _Table(entry, f"{self._where}, {name}.{key}") for key, entry in entries.items()}

    def end(self) -> None:
        if self._fields:
            raise BadInput(f"{self._where}: unknown field {next(iter(self._fields))!r}")


def _imitation(name: str, table: _Table) -> Imitation:
    errors = table.named_tables("errors")
    if unknown := [kind for kind in errors if kind not in REFUSALS]:
        raise table.wrong(f"errors.{unknown[0]}", f"one of {', '.join(REFUSALS)}")
    manner = Manner(
        chunk=table.json("chunk"),
        choice=table.json("chunk_choice"),
        comment=table.text("comment", None),
        usage_at_finish=table.flag("usage_at_finish"),
        error=orjson.dumps(table.json("stream_error", FAILED.decode())),
    )
    imitation = Imitation(
        name=name,
        sources=tuple(table.take("sources", list, "a list of addresses", ...)),
        reply=table.json("reply"),
        choice=table.json("choice"),
        message=table.json("message"),
        usage=table.json("usage"),
        usage_missing=table.flag("usage_missing"),
        parts=table.flag("parts"),
        empty_lines=table.flag("empty_lines"),
        manner=manner,
        thinking=tuple([_thinking(entry) for entry in table.tables("thinking")]),
        refused=tuple([_refused(entry) for entry in table.tables("refused")]),
        errors={kind: _error(entry) for kind, entry in errors.items()},
    )
    table.end()
    return imitation


def _thinking(table: _Table) -> Thinking:
    shown = table.text("shown")
    if shown not in SHOWN:
        raise table.wrong("shown", f"one of {', '.join(SHOWN)}")
    thinking = Thinking(table.pattern("models"), shown, table.flag("counted"), _condition(table))
    table.end()
    return thinking


def _refused(table: _Table) -> Refused:
    streamed, without_word = table.flag("streamed", None), table.text("without_word", None)
    return Refused(table.pattern("models"), streamed, without_word, _condition(table), _error(table))


def _condition(table: _Table) -> Condition:
    equals = table.take("equals", list, "a list of values", None)
    return Condition(
        parameter=table.text("parameter", None),
        equals=None if equals is None else tuple(equals),
        other_than=tuple(table.take("other_than", list, "a list of values", [])),
        absent=table.flag("absent"),
    )


def _error(table: _Table) -> Error:
    status = table.take("status", int, "a status from 400 to 599", ...)
    if not 400 <= status <= 599:
        raise table.wrong("status", "a status from 400 to 599")
    body = table.text("body")
    headers: Mapping[str, Any] = table.take("headers", dict, "a table of texts", {})
    if not all(isinstance(value, str) for value in headers.values()):
        raise table.wrong("headers", "a table of texts")
    try:
        orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise table.wrong("body", f"JSON as text ({error})") from None
    table.end()
    return Error(status, body, headers)
