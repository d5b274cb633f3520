"""Where requests go: an address with its key, the part of it that may be shown, and its secrets,
which may not."""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import SplitResult, unquote, unquote_plus, urlsplit

from harness.errors import BadInput
from harness.scrubber import SHORTEST_SECRET

SHORTEST_PASSWORD = 4
"""Characters; nobody writes a placeholder for a password, but a shorter one would match within
words of a message."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where requests go, and what is sent with them. `url` is the base (".../v1").

    `headers` are sent in addition to the key; neither appears in a representation. `ca_file` holds
    certificates that are trusted in addition to the system's. `called` is the name in files and
    displays, if that is not the url.
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
        split = urlsplit(url)
        host, port = split.hostname, split.port
    except ValueError:
        host = None
    if not host:
        return "(not an address)"
    if ":" in host:  # an IPv6 address
        host = f"[{host}]"
    if port:
        host = f"{host}:{port}"
    return f"{split.scheme}://{host}{split.path}".rstrip("/")


def check(address: Address) -> None:
    """Raise `BadInput` for an address or key that no request could be sent with."""
    try:
        address.url.encode()  # an argument that is not UTF-8 has halves of surrogate pairs
        split = urlsplit(address.url)
        host = (split.hostname or "").encode("idna")
        has_space = re.search(r"\s", address.url) is not None
        usable = split.scheme in ("http", "https") and bool(host) and split.port != 0
    except ValueError:
        usable = False
    if not usable or has_space:
        raise BadInput("the endpoint's address is not of the form http(s)://HOST[:PORT]/v1")
    try:
        basic_token(split)
    except ValueError:
        raise BadInput(
            f"{public_url(address.url)} has credentials in it that cannot be sent: "
            "a colon in the user's name, or characters beyond Latin-1"
        ) from None
    if address.key is None:
        return
    if not (address.key.isascii() and address.key.isprintable() and " " not in address.key):
        raise BadInput(
            "the key has characters that no key has (spaces, line ends, or non-ASCII): set it again"
        )
    if "@" in split.netloc:
        raise BadInput(
            f"{public_url(address.url)} has credentials in it and comes with a key: only one of"
            " them can be sent"
        )


def secrets(address: Address, proxy: str | None, public: str) -> set[str]:
    """Return what no message may show: key, headers, and the parts of address and proxy that
    `public_url` leaves out."""
    values = {address.key or "", *address.headers.values()}
    passwords: set[str] = set()
    for url in (address.url, proxy or ""):
        split = urlsplit(url)
        values.add(basic_token(split))
        for item in split.query.split("&"):
            values |= _spellings(item.partition("=")[2] or item)
        passwords |= _spellings(split.password or split.username or "")
    long = {value for value in values if len(value) >= SHORTEST_SECRET}
    long |= {password for password in passwords if len(password) >= SHORTEST_PASSWORD}
    # A part of the address that is shown all the same, such as a user's name in its path.
    return {secret for secret in long if secret == address.key or secret not in public}


def _spellings(value: str) -> set[str]:
    """Return a part of an address as it was given, and as a server reads it."""
    return {value, unquote(value), unquote_plus(value)}


def basic_token(url: SplitResult) -> str:
    """Return an address's credentials as a header has them, without padding. Raise `ValueError` if
    none can."""
    user = unquote(url.username or "")
    password = unquote(url.password or "")
    if ":" in user:
        raise ValueError("a colon would end the user's name")
    return b64encode(f"{user}:{password}".encode("latin-1")).decode().rstrip("=")
