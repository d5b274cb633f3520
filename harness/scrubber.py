"""Remove secrets from text that is shown or kept: keys, passwords, values of headers.

A secret is looked for as it is, percent-encoded, and in base64 at its three offsets (`Basic
dXNlcjpr...`): whole, or by its beginning, as in a message that cuts it short. Other escapes, and
the middle or the end of a secret alone, are not looked for. Time is linear in the text. What a
model has answered never passes through here.
"""

from __future__ import annotations

import re
from base64 import b64encode, urlsafe_b64encode
from collections.abc import Iterable, Iterator
from urllib.parse import quote

HIDDEN = "***"
SHORTEST_SECRET = 6
"""Characters; shorter keys (`EMPTY`, `none`) are placeholders of local servers, and ordinary
words."""
BEGINNING = 12
"""Characters (in base64 bytes) of a longer secret that are never there by chance."""
REST = r"[\w.~%+/=-]*"
"""What may follow a beginning: the rest of the secret in any of its spellings."""


class Scrubber:
    """Put stars in the place of secrets."""

    def __init__(self, secrets: Iterable[str]) -> None:
        # Of two secrets that begin alike the shorter one would leave the end of the longer.
        longest_first = sorted(set(secrets) - {""}, key=len, reverse=True)
        patterns = [pattern for secret in longest_first for pattern in _patterns(secret)]
        self._pattern = re.compile("|".join(patterns)) if patterns else None

    def __call__(self, text: str) -> str:
        return self._pattern.sub(HIDDEN, text) if self._pattern else text


def _patterns(secret: str) -> Iterator[str]:
    """Yield expressions for a secret, whole ones before its beginning."""
    raw = secret.encode()
    yield from map(re.escape, (secret, quote(secret, safe=""), *_in_base64(raw)))
    remainder = REST if len(secret) > BEGINNING else ""
    yield "".join(map(_percent_encoded, secret[:BEGINNING])) + remainder
    if len(raw) > BEGINNING:
        yield from (re.escape(text) + REST for text in _in_base64(raw[:BEGINNING]))


def _percent_encoded(character: str) -> str:
    """Return an expression for a character as it is, and by its bytes."""
    encoded = "".join(f"%{byte:02x}" for byte in character.encode())
    return f"(?:{re.escape(character)}|(?i:{encoded}))"


def _in_base64(raw: bytes) -> set[str]:
    """Return what base64 makes of these bytes alone, wherever they begin among its groups of
    three."""
    texts = set()
    for offset in range(3):
        # Of 8 bits a byte and 6 a character, the first and the last may depend on other bytes.
        first = -(-offset * 8 // 6)
        end = (offset + len(raw)) * 8 // 6
        for encode in (b64encode, urlsafe_b64encode):
            texts.add(encode(b"\0" * offset + raw).decode()[first:end])
    # Shorter ones occur by chance.
    return {text for text in texts if len(text) >= SHORTEST_SECRET}
