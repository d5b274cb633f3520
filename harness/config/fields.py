"""Read the fields of the providers file: check each kind, report each mistake with its place, show no value."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlsplit

from harness.defaults import AUTO, BITS_64, CONCURRENCY_MOST, SECONDS_MOST, STREAMS
from harness.endpoint.address import Address, check
from harness.errors import BadInput
from harness.model import JSON

VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
"""A token of RFC 9110, section 5.6.2."""
PLACE = re.compile(r"\$\{(.*?)\}")
"""Where a header takes the value of a variable."""

KEYS = frozenset({"api_key", "api-key", "apikey", "key", "token", "secret"})
"""Fields by which people mean the key itself."""
NO_KEYS_HERE = "keys do not belong in this file: put it into a variable, and name that variable with key_env"
CREDENTIALS = frozenset({"authorization", "proxy-authorization"})
OWN_HEADERS = frozenset({"connection", "content-length", "content-type", "host", "transfer-encoding"})
"""Headers that the client sets itself."""

Reader = Callable[[Any, str], Any]
"""From a value and its place in the file to the form in which it is kept."""


def header(name: str, value: Any) -> tuple[str, str]:
    """Return both, if they can be sent with the harness's own headers. Raise `BadInput`, without the value."""
    if not HEADER_NAME.fullmatch(name):
        raise BadInput(f"{name!r} cannot be a header's name: expected ASCII letters, digits and '-'")
    if name.lower() in CREDENTIALS:
        raise BadInput(
            f"the header {name} is that of the key, which comes from a variable (a provider's key_env, or LLM_API_KEY) "
            "or a file (--api-key-file)"
        )
    if name.lower() in OWN_HEADERS:
        raise BadInput(f"the header {name} is set by the harness itself")
    if not is_header_value(value):
        raise BadInput(f"the header {name}: expected text in Latin-1 without line ends, control characters or margins")
    return name, value


def fields(table: Any, readers: Mapping[str, Reader], where: str) -> JSON:
    """Return the fields of a table in the form in which they are kept."""
    if type(table) is not dict:
        raise BadInput(f"{where}: expected a table with fields such as {', '.join(list(readers)[:3])}")
    found = {}
    for name, value in table.items():
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
    return _reader(lambda value: _is_number(value) and fits(value), expected)


def _is_number(value: Any) -> bool:
    """A number that a float can hold; TOML's have no end."""
    try:
        return type(value) in (int, float) and math.isfinite(value)
    except OverflowError:
        return False


def _whole(least: int, most: int) -> Reader:
    return _reader(lambda value: type(value) is int and least <= value <= most, f"a whole number, {least} to {most}")


def _is_text(value: Any) -> bool:
    return type(value) is str and bool(value.strip()) and value.isprintable()


def _names_a_run(value: Any) -> bool:
    return _is_text(value) and not value.startswith(".") and not {"/", "\\"} & set(value)


def is_address(value: Any) -> bool:
    try:
        check(Address(value))
    except BadInput:
        return False
    return True


def _are_addresses(value: Any) -> bool:
    """One or a list; credentials belong in the variable that `url_env` names."""
    urls = value if type(value) is list else [value]
    return bool(urls) and all(type(url) is str and is_address(url) and "@" not in urlsplit(url).netloc for url in urls)


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


def is_header_value(value: Any) -> bool:
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
