"""The bytes of a request, and their digest (docs/design.md, section 2).

A request is identified by this body, before any change that one provider needs.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

import orjson

from harness.model import JSON, Request


@dataclass(frozen=True, slots=True)
class Sampling:
    """Parameters that the run adds to every request. `None` leaves one out of the body."""

    model: str
    temperature: float | None = 0.0
    top_p: float | None = None
    seed: int | None = None
    max_tokens: int | None = None
    extra_body: JSON = field(default_factory=dict)

    def encode(self, request: Request) -> bytes:
        """Return the JSON body, UTF-8."""
        body: dict[str, Any] = {"model": self.model, "messages": request.messages, **request.parameters}
        for name in ("temperature", "top_p", "seed", "max_tokens"):
            if (value := getattr(self, name)) is not None:
                body[name] = value
        if request.json_object:
            body.setdefault("response_format", {"type": "json_object"})
        if self.extra_body:
            body |= self.extra_body
        return orjson.dumps(body)


def digest(body: bytes) -> str:
    """Return 32 hexadecimal digits that identify a request."""
    return sha256(body).hexdigest()[:32]
