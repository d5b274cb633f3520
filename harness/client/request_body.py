"""The bytes of a request, and their digest (docs/design.md, section 2).

A request is identified by this body, before any change that one provider needs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from hashlib import blake2b, sha256
from typing import Any

import orjson

from harness.model import JSON, Request

PARAMETERS = ("temperature", "top_p", "seed", "max_tokens", "extra_body")
SCHEMA_NAME = "answer"
"""The name of a benchmark's schema in a request."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """Parameters that the run adds to every request. `None` leaves one out of the body.

    `roles` are those of the requests to other models than the one under test, by role.
    """

    model: str
    temperature: float | None = 0.0
    top_p: float | None = None
    seed: int | None = None
    max_tokens: int | None = None
    extra_body: JSON = field(default_factory=dict)
    roles: Mapping[str, Sampling] = field(default_factory=dict)

    @property
    def identity(self) -> JSON:
        """Return the parameters as a manifest has them: without the model, and without roles."""
        parameters = asdict(replace(self, roles={}))
        return {name: parameters[name] for name in PARAMETERS}

    @property
    def most_completion(self) -> int | None:
        """Return the tokens of a completion that requests allow, None without a limit."""
        for limit in (
            self.extra_body.get("max_completion_tokens"),
            self.extra_body.get("max_tokens"),
            self.max_tokens,
        ):
            if type(limit) is int:
                return limit
        return None

    def of_repeat(self, repeat: int) -> Sampling:
        """Return the parameters of a user's repeat, from 1: the first has the run's seed or none,
        each further one a seed from 0 to 2**31 - 1 that depends on the run's (0 if it has none) and
        on its number."""
        if repeat == 1:
            return self
        drawn = blake2b(f"{self.seed or 0} {repeat}".encode(), digest_size=4).digest()
        roles = {role: sampling.of_repeat(repeat) for role, sampling in self.roles.items()}
        return replace(self, seed=int.from_bytes(drawn, "big") >> 1, roles=roles)

    def probe(self) -> bytes:
        """Return the smallest request, for one token; as the others where a user's own members of
        the body decide."""
        body = {
            "model": self.model,
            "messages": [{"role": "user", "content": "1"}],
            **self.extra_body,
        }
        body.pop("max_completion_tokens", None)
        body.pop("n", None)
        body["max_tokens"] = 1
        return orjson.dumps(body)

    def encode(self, request: Request) -> bytes:
        """Return the JSON body, UTF-8. Raise `KeyError` for a role without a model."""
        if request.role:
            return self.roles[request.role].encode(replace(request, role=""))
        messages = request.full_messages or request.messages
        body: dict[str, Any] = {"model": self.model, "messages": messages, **request.parameters}
        for name in ("temperature", "top_p", "seed", "max_tokens"):
            value = getattr(self, name)
            if value is not None:
                body[name] = value
        if request.json_object:
            body.setdefault("response_format", _response_format(request.schema))
        if request.tools:
            body["tools"] = request.tools
        if request.tool_choice is not None:
            body["tool_choice"] = request.tool_choice
        if self.extra_body:
            body |= self.extra_body
        return orjson.dumps(body)


def _response_format(schema: Mapping[str, Any] | None) -> JSON:
    if schema is None:
        return {"type": "json_object"}
    return {
        "type": "json_schema",
        "json_schema": {"name": SCHEMA_NAME, "strict": True, "schema": schema},
    }


def offers_tools(body: bytes) -> bool:
    """Return whether a request's body has tools that the model may call."""
    return bool(orjson.loads(body).get("tools"))


def digest(body: bytes, role: str = "") -> str:
    """Return what identifies a request: 32 hexadecimal digits, after its role and a colon if it has
    one."""
    hexadecimal = sha256(body).hexdigest()[:32]
    return f"{role}:{hexadecimal}" if role else hexadecimal
