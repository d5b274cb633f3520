"""Read the fields of the providers file: check each kind, report each mistake with its place, show
no value."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import TypeGuard
from urllib.parse import urlsplit

from harness.client.address import Address, check
from harness.defaults import AUTO, BITS_64, CONCURRENCY_MOST, SECONDS_MOST, STREAMS
from harness.errors import BadInput
from harness.model import JSON
from harness.option import CHECKS, NOT_NEGATIVE, POSITIVE, Check, number, one_of, whole

VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
"""A token of RFC 9110, section 5.6.2."""
PLACE = re.compile(r"\$\{(.*?)\}")
"""Where a header takes the value of a variable."""

KEYS = frozenset({"api_key", "api-key", "apikey", "key", "token", "secret"})
"""Fields by which people mean the key itself."""
NO_KEYS_HERE = (
    "keys do not belong in this file: put it into a variable, and name that variable with key_env"
)
CREDENTIALS = frozenset({"authorization", "proxy-authorization"})
OWN_HEADERS = frozenset(
    {"connection", "content-length", "content-type", "host", "transfer-encoding"}
)
"""Headers that the client sets itself."""


def checked(table: object, checks: Mapping[str, Check], where: str) -> JSON:
    """Return a table all of whose fields are known and fit. Raise `BadInput` with the field,
    without its value."""
    if type(table) is not dict:
        raise BadInput(
            f"{where}: expected a table with fields such as {', '.join(list(checks)[:3])}"
        )
    for name, value in table.items():
        if name.lower() in KEYS:
            raise BadInput(f"{where}.{name}: {NO_KEYS_HERE}")
        if name not in checks:
            raise BadInput(f"{where}: unknown field {name!r}: expected some of {', '.join(checks)}")
        fits, expected = checks[name]
        if not fits(value):
            raise BadInput(f"{where}.{name}: expected {expected}")
    return dict(table)


def header(name: str, value: object) -> tuple[str, str]:
    """Return both, if they can be sent with the harness's own headers. Raise `BadInput`, without
    the value."""
    if not HEADER_NAME.fullmatch(name):
        raise BadInput(
            f"{name!r} cannot be a header's name: expected ASCII letters, digits and '-'"
        )
    if name.lower() in CREDENTIALS:
        raise BadInput(
            f"the header {name} is for the key, which comes from a variable (a provider's key_env,"
            " or LLM_API_KEY) or a file (--api-key-file)"
        )
    if name.lower() in OWN_HEADERS:
        raise BadInput(f"the header {name} is set by the harness itself")
    if not is_header_value(value):
        raise BadInput(
            f"the header {name}: expected text in Latin-1 without line ends, control characters or"
            " margins"
        )
    return name, value


def check_headers(table: JSON, where: str) -> None:
    """Raise `BadInput` with the name of a header that cannot be sent, without its value."""
    for name, value in table.items():
        try:
            header(name, value)
        except BadInput as error:
            raise BadInput(f"{where}: {error}") from None
        # A `${` that is left over was never closed, and would be sent as it is.
        if not all(map(VARIABLE.fullmatch, PLACE.findall(value))) or "${" in PLACE.sub("", value):
            raise BadInput(
                f"{where}: the header {name}: expected the name of a variable between ${{ and }}"
            )


def is_header_value(value: object) -> TypeGuard[str]:
    """Latin-1 without control characters (RFC 9110, section 5.5), and without margins, which would
    be cut off."""
    if type(value) is not str or value != value.strip():
        return False
    return all(31 < ord(sign) < 127 or 159 < ord(sign) < 256 for sign in value)


def is_address(value: str) -> bool:
    try:
        check(Address(value))
    except BadInput:
        return False
    return True


def _are_addresses(value: object) -> bool:
    """One or a list; credentials belong in the variable that `url_env` names."""
    urls = value if type(value) is list else [value]
    return bool(urls) and all(
        type(url) is str and is_address(url) and "@" not in urlsplit(url).netloc for url in urls
    )


def _is_text(value: object) -> TypeGuard[str]:
    return type(value) is str and bool(value.strip()) and value.isprintable()


def can_name_folder(value: object) -> bool:
    """Return whether a value can be the name of a run: no path, nor a hidden folder."""
    return _is_text(value) and not value.startswith(".") and {"/", "\\"}.isdisjoint(value)


def _is_json(value: object) -> bool:
    """Whether a value of TOML, which also has dates, infinity and numbers beyond 64 bits, is one of
    JSON."""
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


CONCURRENCY: Check = (
    lambda value: value == AUTO or whole(1, CONCURRENCY_MOST)[0](value),
    f'a whole number from 1 to {CONCURRENCY_MOST}, or "{AUTO}"',
)
POSITIVE_INT = whole(1, BITS_64 - 1)
SHARE = number(lambda value: 0 < value <= 1, "a number above 0 and at most 1")
SECONDS = number(lambda value: 0 < value <= SECONDS_MOST, "seconds above 0 and at most a year")
VARIABLE_NAME: Check = (
    lambda value: value == "" or (type(value) is str and VARIABLE.fullmatch(value) is not None),
    'the name of a variable, or "" for none',
)
BODY: Check = (
    lambda value: type(value) is dict and _is_json(value),
    "a table of JSON values: no dates, inf or nan",
)
MODEL: Check = (_is_text, "the name of a model")

PROVIDER: Mapping[str, Check] = {
    "base_url": (
        _are_addresses,
        (
            "an address of the form http(s)://HOST[:PORT]/v1 without user and password, or a list"
            " of them"
        ),
    ),
    "url_env": VARIABLE_NAME,
    "key_env": VARIABLE_NAME,
    "key_required": CHECKS[bool],
    "rpm": POSITIVE,
    "tpm": POSITIVE,
    "concurrency": CONCURRENCY,
    "timeout": SECONDS,
    "extra_body": BODY,
    "extra_headers": (CHECKS[dict][0], "a table of headers"),
    "stream": one_of(STREAMS),
    "adapt": (
        lambda value: type(value) is list and all(map(_is_text, value)),
        "a list of names of quirks",
    ),
    "ca_file": (_is_text, "the path of a file of certificates"),
    "prices": (
        lambda value: type(value) is dict and all(map(_is_text, value)),
        "a table of models, each with currency, prompt and completion",
    ),
}
QUEUED: Mapping[str, Check] = {
    "model": MODEL,
    "name": (can_name_folder, "a name that a run's folder can have"),
    "extra_body": BODY,
    "temperature": NOT_NEGATIVE,
    "top_p": SHARE,
    "seed": CHECKS[int],
    "max_tokens": POSITIVE_INT,
    "roles": (
        lambda value: type(value) is dict and all(map(_is_text, value.values())),
        "a table of the benchmark's roles, each with [PROVIDER:]MODEL",
    ),
}
"""The fields of a table `[providers.NAME]`, and of an entry of a queue; extensions add theirs to
these."""
