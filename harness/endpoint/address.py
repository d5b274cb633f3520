"""Where requests go: an address with its key, what may be shown of it, and what no message may show."""

from __future__ import annotations

import re
import string
from base64 import b64encode, urlsafe_b64encode
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from urllib.parse import SplitResult, quote, unquote, unquote_plus, urlsplit

from harness.errors import BadInput

SHORTEST_SECRET = 6
"""Characters; shorter keys (`EMPTY`, `none`) are placeholders of local servers, and ordinary words."""
SHORTEST_PASSWORD = 4
"""Characters; nobody writes a placeholder for a password, but fewer would take words of a message apart."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where requests go, and what goes with them. `url` is the base (".../v1").

    `headers` are sent beside the key; key and headers never appear in a representation. `ca_file` holds certificates
    that are trusted besides the system's. `called` is what files and displays call it, if not by its url.
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
        """The address without credentials, query and fragment."""
        return self.called or public_url(self.url)


def public_url(url: str) -> str:
    """The address without credentials, query and fragment."""
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
    """Raises `BadInput` for an address or key that no request could be sent with."""
    try:
        address.url.encode()  # an argument that is no UTF-8 comes with halves of pairs
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
    """What no message may show, longest first: key, headers, and of address and proxy what `public_url` leaves out."""
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


LONG_SECRET = 20
"""Characters from which on a secret without spaces is random enough that a part of it is no word by chance."""
PART = 10
"""Characters in a row of such a secret, or of a spelling of it, that are a part of it."""


class Scrubber:
    """Takes secrets out of foreign words: whole, and of long ones every part, in every spelling that endpoints use.

    A part is what is left of a key that was cut short, or that is shown with stars in its middle. What stands in
    `public` is shown all the same.
    """

    def __init__(self, secrets: Iterable[str], public: str = "") -> None:
        self._secrets = tuple(secrets)
        long = [secret for secret in self._secrets if len(secret) >= LONG_SECRET and not re.search(r"\s", secret)]
        spelt = {text for secret in long for text in _written(secret)}
        parts = {text[at : at + PART] for text in spelt for at in range(len(text) - PART + 1)}
        self._parts = frozenset(part for part in parts if part not in public)

    def __call__(self, text: str) -> str:
        for secret in self._secrets:
            text = text.replace(secret, HIDDEN)
        return self._without_parts(text) if self._parts else text

    def _without_parts(self, text: str) -> str:
        shown, end = [], 0
        for at in range(len(text) - PART + 1):
            if text[at : at + PART] in self._parts:
                if at >= end:
                    shown += [text[end:at], HIDDEN]
                end = at + PART
        return "".join([*shown, text[end:]])


HIDDEN = "***"


def _written(secret: str) -> set[str]:
    """As it is, as addresses, headers and logs spell it; base64 depends on how many bytes stand before, by threes."""
    raw = secret.encode()
    return {
        secret,
        quote(secret),
        quote(secret, safe=""),
        raw.hex(),
        *(
            encode(b"\0" * before + raw).decode()[4:]
            for before in range(3)
            for encode in (b64encode, urlsafe_b64encode)
        ),
        *(encode(raw).decode() for encode in (b64encode, urlsafe_b64encode)),
    }


def _spellings(value: str) -> set[str]:
    """A part of an address as it was given, as it is sent, and as a server reads it."""
    return {value, quote(value, safe=string.punctuation), unquote(value), unquote_plus(value)}


def basic_token(parts: SplitResult) -> str:
    """What stands for an address's credentials in a header, without padding. Raises `ValueError` if nothing can."""
    user, password = unquote(parts.username or ""), unquote(parts.password or "")
    if ":" in user:
        raise ValueError("a colon ends the user's name")
    return b64encode(f"{user}:{password}".encode("latin-1")).decode().rstrip("=")
