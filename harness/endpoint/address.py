"""Where requests go: an address with its key, the part of it that may be shown, and its secrets, which may not."""

from __future__ import annotations

import re
import string
import sys
from base64 import b64encode, urlsafe_b64encode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from html.entities import html5
from urllib.parse import SplitResult, quote, unquote, unquote_plus, urlsplit

from harness.errors import BadInput

SHORTEST_SECRET = 6
"""Characters; shorter keys (`EMPTY`, `none`) are placeholders of local servers, and ordinary words."""
SHORTEST_PASSWORD = 4
"""Characters; nobody writes a placeholder for a password, but a shorter one would match within words of a message."""
LONG_SECRET = 20
"""Characters from which on a secret without spaces is so random that no part of it is a word by chance."""
PART = 10
"""Consecutive characters of such a secret, or of a spelling of it, that count as a part of it."""
HIDDEN = "***"
LEVELS = 4
"""Of nested escapes: JSON in JSON in the address of a page."""
BLOCK, OVERLAP = 1 << 16, 1 << 13
"""Characters that are read at a time, and of the next block with them: longer than a long key in any spelling."""
ESCAPE = re.compile(
    r"%[0-9a-f]{2}"
    r"|&#(?:[0-9]{1,9};|1[0-2][0-9]|[3-9][0-9]|x(?:[0-9a-f]{1,8};|[0-9a-f]{2}))|&[a-z][a-z0-9]{1,31};"
    r"|\\(?:u[0-9a-f]{4}|x[0-9a-f]{2}|[\"'/\\])",
    re.IGNORECASE | re.ASCII,
)
"""One character, as addresses, HTML (by number, in hex, by name) and JSON or Python write it. Without its semicolon,
HTML's number is taken for that of an ASCII character, so that a following digit is not part of it."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where requests go, and what is sent with them. `url` is the base (".../v1").

    `headers` are sent in addition to the key; neither appears in a representation. `ca_file` holds certificates that
    are trusted in addition to the system's. `called` is the name in files and displays, if that is not the url.
    """

    url: str
    key: str | None = None
    insecure_tls: bool = False
    headers: Mapping[str, str] = field(default_factory=dict, hash=False)
    ca_file: str | None = None
    called: str | None = None

    def __repr__(self) -> str:
        return f"Address({self.shown!r})"

    @property
    def shown(self) -> str:
        return self.called or public_url(self.url)


def public_url(url: str) -> str:
    """Return the address without credentials, query and fragment."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        host = None
    if not host:
        return "(not an address)"
    host = f"[{host}]" if ":" in host else host
    return f"{parts.scheme}://{host}{f':{port}' if port else ''}{parts.path}".rstrip("/")


def check(address: Address) -> None:
    """Raise `BadInput` for an address or key that no request could be sent with."""
    try:
        address.url.encode()  # an argument that is not UTF-8 has halves of surrogate pairs
        parts = urlsplit(address.url)
        host, port = (parts.hostname or "").encode("idna"), parts.port
        usable = parts.scheme in ("http", "https") and host and port != 0 and not re.search(r"\s", address.url)
    except ValueError:
        usable = False
    if not usable:
        raise BadInput("the endpoint's address is not of the form http(s)://HOST[:PORT]/v1")
    try:
        basic_token(parts)
    except ValueError:
        raise BadInput(
            f"{public_url(address.url)} has credentials in it that cannot be sent: "
            "a colon in the user's name, or characters beyond Latin-1"
        ) from None
    if address.key is None:
        return
    if not (address.key.isascii() and address.key.isprintable() and " " not in address.key):
        raise BadInput("the key has characters that no key has (spaces, line ends, or non-ASCII): set it again")
    if "@" in parts.netloc:
        raise BadInput(
            f"{public_url(address.url)} has credentials in it and comes with a key: only one of them can be sent"
        )


def secrets(address: Address, proxy: str | None, public: str) -> tuple[str, ...]:
    """Return what no message may show, longest first: key, headers, and the parts of address and proxy that
    `public_url` leaves out."""
    found = {address.key or "", *address.headers.values()}
    passwords = set()
    for parts in map(urlsplit, (address.url, proxy or "")):
        found.add(basic_token(parts))
        for item in parts.query.split("&"):
            found |= _spellings(item.partition("=")[2] or item)
        passwords |= _spellings(parts.password or parts.username or "")
    long = {secret for secret in found if len(secret) >= SHORTEST_SECRET}
    long |= {secret for secret in passwords if len(secret) >= SHORTEST_PASSWORD}
    return tuple(sorted((one for one in long if one == address.key or one not in public), key=len, reverse=True))


class Scrubber:
    """Remove secrets from foreign words: whole, and of long ones every part, in every spelling that endpoints use.

    A part is the rest of a key that was cut short, or that is shown with stars in its middle. Escapes (of addresses,
    HTML, JSON) are decoded in any number, nested up to `LEVELS`. Parts of `public` are shown all the same. Time and
    memory are linear in the text, and in the secrets.
    """

    def __init__(self, secrets: Iterable[str], public: str = "") -> None:
        given = tuple(secrets)
        meant = {secret: {text for text, _ in _unescaped(secret)} for secret in given}
        others = {text for texts in meant.values() for text in texts if len(text) >= SHORTEST_SECRET}
        others |= {text for secret in given for text in _written(secret) if len(text) >= PART}
        self._whole = (*given, *(text for text in others.difference(given) if text not in public))
        long = [secret for secret in given if len(secret) >= LONG_SECRET and not re.search(r"\s", secret)]
        spelt = {text for secret in long for text in (*_written(secret), *meant[secret])}
        parts = {text[at : at + PART] for text in spelt for at in range(len(text) - PART + 1)}
        self._parts = frozenset(part for part in parts if part not in public)

    def __call__(self, text: str) -> str:
        shown, end = [], 0
        places = (  # block by block, which bounds the memory
            (block + starts[start], block + starts[stop])
            for block in range(0, len(text), BLOCK)
            for read, starts in _unescaped(text[block : block + BLOCK + OVERLAP])
            for start, stop in self._found(read)
        )
        for start, stop in sorted(places):
            if start >= end:
                shown += [text[end:start], HIDDEN]
            end = max(end, stop)
        return "".join([*shown, text[end:]])

    def _found(self, text: str) -> Iterator[tuple[int, int]]:
        for secret in self._whole:
            for found in re.finditer(re.escape(secret), text):
                yield found.span()
        if self._parts:
            for at in range(len(text) - PART + 1):
                if text[at : at + PART] in self._parts:
                    yield at, at + PART


def _unescaped(text: str) -> Iterator[tuple[str, Sequence[int]]]:
    """Yield a text as it is, then without one more level of escapes each time, and the original place of each character
    and of the end."""
    starts: Sequence[int] = range(len(text) + 1)
    yield text, starts
    for _ in range(LEVELS):
        read, begun, end = list[str](), list[int](), 0
        for found in ESCAPE.finditer(text):
            if character := _meant(found[0]):
                read += text[end : found.start()], character
                begun += starts[end : found.start() + 1]
                end = found.end()
        if not end:
            return
        text, starts = "".join([*read, text[end:]]), [*begun, *starts[end:]]
        yield text, starts


def _meant(escape: str) -> str | None:
    """Return the character of an escape, or None."""
    kind, digits = escape[0], escape[1:].rstrip(";")
    if kind == "%":
        return chr(int(digits, 16))
    if kind == "\\":
        return chr(int(digits[1:], 16)) if digits[1:] else digits
    if digits[0] != "#":
        named = html5.get(escape[1:], "")
        return named if len(named) == 1 else None
    number = int(digits[2:], 16) if digits[1] in "xX" else int(digits[1:])
    return chr(number) if number <= sys.maxunicode else None


def _written(secret: str) -> set[str]:
    """Return a secret as addresses, headers and logs spell it; base64 depends on the number of bytes before, modulo 3.

    `_unescaped` gives each byte of a non-ASCII character a character of its own, as Latin-1 does.
    """
    raw = secret.encode()
    encoders = (b64encode, urlsafe_b64encode)
    found = {secret, raw.decode("latin-1"), quote(secret), quote(secret, safe=""), raw.hex(), raw.hex().upper()}
    found |= {encode(b"\0" * before + raw).decode()[4:] for before in range(3) for encode in encoders}
    return found | {encode(raw).decode() for encode in encoders}


def _spellings(value: str) -> set[str]:
    """Return a part of an address as it was given, as it is sent, and as a server reads it."""
    return {value, quote(value, safe=string.punctuation), unquote(value), unquote_plus(value)}


def basic_token(parts: SplitResult) -> str:
    """Return an address's credentials as a header has them, without padding. Raise `ValueError` if none can."""
    user, password = unquote(parts.username or ""), unquote(parts.password or "")
    if ":" in user:
        raise ValueError("a colon would end the user's name")
    return b64encode(f"{user}:{password}".encode("latin-1")).decode().rstrip("=")
