"""The providers file: who serves models, where, with whose key, and which models a queue runs (docs/providers.md).

The shipped `providers.toml` beside this module, and the user's own over it, field by field within a provider. Keys
never stand in such a file: it names the variables that hold them. No message shows a value of it.
"""

from __future__ import annotations

import math
import os
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from harness.endpoint.address import Address, check
from harness.errors import BadInput
from harness.model import JSON

FILE = "providers.toml"
SHIPPED = Path(__file__).with_name(FILE)
APPLICATION = "behavior-harness"
"""The folder of the user's own file, below the one that the XDG base directory specification names."""

NAME = re.compile(r"[\w.-]+")
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
"""A token of RFC 9110, section 5.6.2."""
PLACE = re.compile(r"\$\{(.*?)\}")
"""Where a header takes the value of a variable."""

STREAMS = ("auto", "on", "off")
AUTO, CONCURRENCY_MOST, SECONDS_MOST, BITS_64 = "auto", 100_000, 365 * 24 * 3600.0, 2**63
"""As `options` has them for the same settings; it imports this module."""
KEYS = frozenset({"api_key", "api-key", "apikey", "key", "token", "secret"})
"""Fields by which people mean the key itself."""
NO_KEYS_HERE = "keys do not belong in this file: put it into a variable, and name that variable with key_env"
CREDENTIALS = frozenset({"authorization", "proxy-authorization"})
OWN_HEADERS = frozenset({"connection", "content-length", "content-type", "host", "transfer-encoding"})
"""What the client says of each request itself."""

Reader = Callable[[Any, str], Any]
"""Checks a field's value and gives it as it is kept; hears where it stands, for the message."""


@dataclass(frozen=True, slots=True)
class Provider:
    """One place that serves models: an account of a hosted API, or servers of one's own.

    `base_url` are replicas of one service, empty where only the variable `url_env` can tell; where that is set, it
    tells. `key_env` is the variable of the key, None where requests go without one; `key_required` says whether a
    missing key is an error. `rpm` and `tpm` are requests and tokens a minute, `timeout` is in seconds, `concurrency`
    a number or `auto`; None leaves each to the command. `adapt` are quirks that need not be learned. `source` is the
    file that it is from, for messages.
    """

    name: str
    base_url: tuple[str, ...] = ()
    url_env: str | None = None
    key_env: str | None = None
    key_required: bool = True
    rpm: float | None = None
    tpm: float | None = None
    concurrency: int | str | None = None
    timeout: float | None = None
    extra_body: JSON = field(default_factory=dict)
    extra_headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    stream: str = "auto"
    adapt: tuple[str, ...] = ()
    ca_file: str | None = None
    source: str = ""


@dataclass(frozen=True, slots=True)
class QueuedModel:
    """An entry of a queue. `model` is as the command line takes it; None is as the command says."""

    model: str
    name: str | None = None
    extra_body: JSON = field(default_factory=dict)
    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None
    max_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Book:
    """All that the files say; `files` in the order in which they were read."""

    providers: Mapping[str, Provider]
    queues: Mapping[str, tuple[QueuedModel, ...]]
    files: tuple[Path, ...]


def read(named: Path | None, environment: Mapping[str, str]) -> Book:
    """The shipped file, and over it the one that is `named`, else that of this folder, else the user's own.

    Raises `BadInput` with file and field.
    """
    book = shipped()
    own = named or _of_user(environment)
    return book if own is None else _over(book, own)


def shipped() -> Book:
    """What the harness itself knows."""
    return _over(Book({}, {}, ()), SHIPPED)


def split_model(text: str, book: Book) -> tuple[str | None, str]:
    """Provider and model of `deepseek:deepseek-chat`; None and all of it where no provider stands before a colon.

    The part before the first colon counts where it is a known provider's name, so that `qwen2.5:7b` and
    `deepseek/deepseek-r1:free` stay models. Raises `BadInput` for a provider without a model.
    """
    provider, colon, model = text.partition(":")
    if not colon or provider not in book.providers:
        return None, text
    if not model.strip():
        raise BadInput(f"{text} names a provider without a model: expected {provider}:MODEL")
    return provider, model


def addresses(provider: Provider, environment: Mapping[str, str]) -> tuple[str, ...]:
    """Where its replicas are now: as the variable `url_env` says, parted by spaces or commas, else as the file says.

    Raises `BadInput` where neither does, or the variable holds no address.
    """
    told = environment.get(provider.url_env, "") if provider.url_env else ""
    found = tuple(dict.fromkeys(filter(None, re.split(r"[\s,]+", told))))
    if not found and not provider.base_url:
        raise BadInput(
            f"provider {provider.name}: {provider.url_env} is not set: set it to the address, http(s)://HOST[:PORT]/v1"
        )
    if not all(map(_is_address, found)):
        raise BadInput(
            f"provider {provider.name}: {provider.url_env}: expected an address of the form "
            "http(s)://HOST[:PORT]/v1, or several parted by spaces or commas"
        )
    return found or provider.base_url


def headers(provider: Provider, environment: Mapping[str, str]) -> dict[str, str]:
    """Its extra headers with the variables in them filled in. Raises `BadInput` for one that is not set."""
    return {name: _filled(provider, name, value, environment) for name, value in provider.extra_headers.items()}


def header(name: str, value: Any) -> tuple[str, str]:
    """Both, where they can be sent as a header beside the harness's own. Raises `BadInput`, without the value."""
    if not HEADER_NAME.fullmatch(name):
        raise BadInput(f"{name!r} cannot be a header's name: expected ASCII letters, digits and '-'")
    if name.lower() in CREDENTIALS:
        raise BadInput(
            f"the header {name} is that of the key, which comes from a variable (a provider's key_env, or LLM_API_KEY) "
            "or a file (--api-key-file)"
        )
    if name.lower() in OWN_HEADERS:
        raise BadInput(f"the header {name} is set by the harness itself")
    if not _is_header_value(value):
        raise BadInput(f"the header {name}: expected text in Latin-1 without line ends, control characters or margins")
    return name, value


def _filled(provider: Provider, name: str, value: str, environment: Mapping[str, str]) -> str:
    where = f"{provider.source}: providers.{provider.name}.extra_headers.{name}"
    for variable in PLACE.findall(value):
        if not environment.get(variable):
            raise BadInput(f"{where} takes the variable {variable}, which is not set: set it")
    filled = PLACE.sub(lambda place: environment[place[1]], value)
    if not _is_header_value(filled):
        raise BadInput(f"{where}: its variable holds line ends, control characters, or characters beyond Latin-1")
    return filled


def _of_user(environment: Mapping[str, str]) -> Path | None:
    """The user's file where the command names none."""
    configured = Path(environment.get("XDG_CONFIG_HOME") or "")
    home = Path(environment.get("HOME") or "")
    candidates = [Path(FILE)]
    if configured.is_absolute():  # the specification ignores others
        candidates.append(configured / APPLICATION / FILE)
    elif home.is_absolute():
        candidates.append(home / ".config" / APPLICATION / FILE)
    return next(filter(os.path.isfile, candidates), None)


def _over(book: Book, path: Path) -> Book:
    """What a file says over what is known already."""
    document = _document(path)
    providers = dict(book.providers)
    for name, told in _entries(document, "providers", path):
        providers[name] = _provider(providers.get(name, Provider(name)), told, path)
    queues = dict(book.queues) | {name: _queue(name, told, path) for name, told in _entries(document, "queues", path)}
    return Book(providers, queues, (*book.files, path))


def _document(path: Path) -> JSON:
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise BadInput(f"cannot read {path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        place = re.search(r"\bat (line \d+|end)\b", str(error)) if isinstance(error, tomllib.TOMLDecodeError) else None
        raise BadInput(f"{path}{f', {place[1]}' if place else ''}: expected TOML in UTF-8") from None
    for name in sorted(document.keys() - {"providers", "queues"}):
        raise BadInput(f"{path}: unknown field {name!r}: expected tables [providers.NAME], and [queues]")
    return document


def _entries(document: JSON, kind: str, path: Path) -> list[tuple[str, Any]]:
    """Name and content of each provider, or of each queue."""
    entries = document.get(kind, {})
    if type(entries) is not dict:
        raise BadInput(f"{path}: field {kind}: expected a table")
    for name in entries:
        if not NAME.fullmatch(name):
            raise BadInput(f"{path}: {kind}: the name {name!r}: expected letters, digits, '-', '_' and '.' only")
    return list(entries.items())


def _provider(below: Provider, told: Any, path: Path) -> Provider:
    where = f"{path}: providers.{below.name}"
    given = _fields(told, PROVIDER_FIELDS, where)
    if "ca_file" in given:
        given["ca_file"] = str(path.absolute().parent / os.path.expanduser(given["ca_file"]))
    made = replace(below, **given, source=str(path))
    if not made.base_url and made.url_env is None:
        raise BadInput(f"{where}.base_url: expected an address, or in url_env the name of the variable that has it")
    if "key_env" not in given and below.key_required and _moved(below, made):
        raise BadInput(
            f"{where} has another address than before, to which the key in {below.key_env} would go: "
            "say in key_env which variable holds the key for it"
        )
    return made


def _moved(below: Provider, made: Provider) -> bool:
    """Whether a key would go to another host than the one that it was named for."""
    known = {urlsplit(url)[:2] for url in below.base_url}
    elsewhere = {urlsplit(url)[:2] for url in made.base_url} - known
    return below.key_env is not None and bool(elsewhere or made.url_env != below.url_env)


def _queue(name: str, told: Any, path: Path) -> tuple[QueuedModel, ...]:
    where = f"{path}: queues.{name}"
    if type(told) is not list or not told:
        raise BadInput(f'{where}: expected a list of models, such as ["deepseek:deepseek-chat", {{model = "..."}}]')
    return tuple(_queued(entry, f"{where}[{number}]") for number, entry in enumerate(told))


def _queued(told: Any, where: str) -> QueuedModel:
    given = _fields({"model": told} if type(told) is str else told, QUEUE_FIELDS, where)
    if "model" not in given:
        raise BadInput(f"{where}.model: expected the name of a model")
    return QueuedModel(**given)


def _fields(told: Any, readers: Mapping[str, Reader], where: str) -> JSON:
    """The fields of a table in the form in which they are kept."""
    if type(told) is not dict:
        raise BadInput(f"{where}: expected a table with fields such as {', '.join(list(readers)[:3])}")
    found = {}
    for name, value in told.items():
        if name.lower() in KEYS:
            raise BadInput(f"{where}.{name}: {NO_KEYS_HERE}")
        if name not in readers:
            raise BadInput(f"{where}: unknown field {name!r}: expected some of {', '.join(readers)}")
        found[name] = readers[name](value, f"{where}.{name}")
    return found


def _reader(fits: Callable[[Any], bool], expected: str, kept: Callable[[Any], Any] | None = None) -> Reader:
    """Reads a field that `fits`, in the form in which it is `kept`."""

    def read(value: Any, where: str) -> Any:
        if not fits(value):
            raise BadInput(f"{where}: expected {expected}")
        return kept(value) if kept else value

    return read


def _number(fits: Callable[[float], bool], expected: str) -> Reader:
    return _reader(lambda value: type(value) in (int, float) and math.isfinite(value) and fits(value), expected)


def _whole(least: int, most: int) -> Reader:
    return _reader(lambda value: type(value) is int and least <= value <= most, f"a whole number, {least} to {most}")


def _is_text(value: Any) -> bool:
    return type(value) is str and bool(value.strip()) and value.isprintable()


def _names_a_run(value: Any) -> bool:
    return _is_text(value) and not value.startswith(".") and not {"/", "\\"} & set(value)


def _is_address(value: Any) -> bool:
    try:
        check(Address(value))
    except BadInput:
        return False
    return True


def _are_addresses(value: Any) -> bool:
    """One or a list; credentials belong in the variable that `url_env` names."""
    urls = value if type(value) is list else [value]
    return bool(urls) and all(type(url) is str and _is_address(url) and "@" not in urlsplit(url).netloc for url in urls)


def _is_variable(value: Any) -> bool:
    return value == "" or (type(value) is str and VARIABLE.fullmatch(value) is not None)


def _is_json(value: Any) -> bool:
    """Whether a value of TOML, which also has dates, infinity and numbers beyond 64 bits, is one of JSON."""
    match value:
        case dict():
            return all(map(_is_json, value.values()))
        case list():
            return all(map(_is_json, value))
        case float():
            return math.isfinite(value)
        case int():
            return -BITS_64 <= value < BITS_64
        case _:
            return type(value) is str


def _is_header_value(value: Any) -> bool:
    """Latin-1 without control characters (RFC 9110, section 5.5), and without margins, which would be cut off."""
    if type(value) is not str or value != value.strip():
        return False
    return all(31 < ord(sign) < 127 or 159 < ord(sign) < 256 for sign in value)


def _headers(value: Any, where: str) -> dict[str, str]:
    """A table of headers: each mistake names the header, and none shows a value."""
    if type(value) is not dict:
        raise BadInput(f"{where}: expected a table of headers")
    for name, content in value.items():
        try:
            header(name, content)
        except BadInput as error:
            raise BadInput(f"{where}: {error}") from None
        if not all(map(VARIABLE.fullmatch, PLACE.findall(content))) or "${" in PLACE.sub("", content):
            raise BadInput(f"{where}: the header {name}: expected the name of a variable between ${{ and }}")
    return dict(value)


POSITIVE = _number(lambda value: value > 0, "a number above 0")
VARIABLE_NAME = _reader(_is_variable, 'the name of a variable, or "" for none', lambda value: value or None)
BODY = _reader(lambda value: type(value) is dict and _is_json(value), "a table of what JSON has: no dates, inf or nan")

PROVIDER_FIELDS: Mapping[str, Reader] = {
    "base_url": _reader(
        _are_addresses,
        "an address of the form http(s)://HOST[:PORT]/v1 without user and password, or a list of them",
        lambda value: tuple(dict.fromkeys(value if type(value) is list else [value])),
    ),
    "url_env": VARIABLE_NAME,
    "key_env": VARIABLE_NAME,
    "key_required": _reader(lambda value: type(value) is bool, "true or false"),
    "rpm": POSITIVE,
    "tpm": POSITIVE,
    "concurrency": _reader(
        lambda value: value == AUTO or (type(value) is int and 1 <= value <= CONCURRENCY_MOST),
        f'a whole number, 1 to {CONCURRENCY_MOST}, or "{AUTO}"',
    ),
    "timeout": _number(lambda value: 0 < value <= SECONDS_MOST, "seconds above 0 and at most a year"),
    "extra_body": BODY,
    "extra_headers": _headers,
    "stream": _reader(lambda value: type(value) is str and value in STREAMS, f"one of {', '.join(STREAMS)}"),
    "adapt": _reader(
        lambda value: type(value) is list and all(map(_is_text, value)), "a list of names of quirks", tuple
    ),
    "ca_file": _reader(_is_text, "the path of a file of certificates"),
}
QUEUE_FIELDS: Mapping[str, Reader] = {
    "model": _reader(_is_text, "the name of a model"),
    "name": _reader(_names_a_run, "a name that a run's folder can have"),
    "extra_body": BODY,
    "temperature": _number(lambda value: value >= 0, "a number from 0"),
    "top_p": _number(lambda value: 0 < value <= 1, "a number above 0 and at most 1"),
    "seed": _whole(-BITS_64, BITS_64 - 1),
    "max_tokens": _whole(1, BITS_64 - 1),
}
