"""What the embedded endpoint can do wrong on purpose, and when (docs/design.md, section 6).

Transport faults keep a whole reply from arriving; they are drawn anew at each try of a body. Content faults make the
reply itself useless; they are drawn from the body alone, so that a body's completion is the same however often it is
asked for, and a run with transport faults ends with the results of a run without.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from email.utils import formatdate
from hashlib import blake2b

import orjson

from harness.errors import BadInput

RESET = "reset"
RESET_BODY = "reset-body"
STALL = "stall"
TRANSPORT = ("429", "429-date", "500", "503-html", RESET, RESET_BODY, STALL, "truncated", "no-choices")
CONTENT = ("empty", "refusal", "length", "fenced", "broken", "no-json")
GROUPS = {"transport": TRANSPORT, "content": CONTENT}

RETRY_AFTER = 1
"""Seconds; short, since those who draw faults on purpose wait for them."""


@dataclass(frozen=True, slots=True)
class FaultPlan:
    """Which faults, how often. `kinds` are names of kinds or groups; `rate` is a fraction of the requests.

    Each group gets the part of the rate that its kinds are of all kinds. Raises `BadInput`.
    """

    rate: float
    kinds: tuple[str, ...]
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.rate <= 1:
            raise BadInput(f"fault rate {self.rate}: expected a fraction from 0 to 1")
        object.__setattr__(self, "kinds", expand(self.kinds))

    def draw(self, body: bytes, attempt: int) -> str | None:
        """The fault of a body (or its digest) at its n-th try, None for none."""
        return self._pick(TRANSPORT, uniform(self.seed, "transport", body, attempt)) or self._pick(
            CONTENT, uniform(self.seed, "content", body)
        )

    def _pick(self, group: tuple[str, ...], drawn: float) -> str | None:
        kinds = [kind for kind in self.kinds if kind in group]
        if not kinds:
            return None
        place = int(drawn / (self.rate / len(self.kinds))) if self.rate else len(kinds)
        return kinds[place] if place < len(kinds) else None


@dataclass(frozen=True, slots=True)
class HttpReply:
    status: int
    body: bytes
    content_type: str = "application/json"
    retry_after: str | None = None


@dataclass(frozen=True, slots=True)
class Choice:
    """What a completion says."""

    content: str | None
    finish_reason: str = "stop"
    refusal: str | None = None


def expand(names: Iterable[str]) -> tuple[str, ...]:
    """Kinds by name, groups replaced by their kinds, without repeats. Raises `BadInput`."""
    kinds: dict[str, None] = {}
    for name in names:
        if name not in GROUPS and name not in TRANSPORT and name not in CONTENT:
            known = "; ".join([f"{group}: {', '.join(members)}" for group, members in GROUPS.items()])
            raise BadInput(f"unknown fault {name!r}: known are the groups and kinds {known}")
        kinds.update(dict.fromkeys(GROUPS.get(name, (name,))))
    return tuple(kinds)


def uniform(seed: int, purpose: str, body: bytes, attempt: int = 0) -> float:
    """A number in (0, 1), evenly distributed, that depends on the arguments alone."""
    digest = blake2b(f"{seed}/{purpose}/{attempt}/".encode() + body, digest_size=6).digest()
    return (int.from_bytes(digest, "big") + 0.5) / 2**48


def spoil(kind: str, text: str) -> Choice:
    """A reply's text (one JSON object) under a content fault."""
    return _SPOIL[kind](text)


def replace(kind: str, whole: bytes, now: float) -> HttpReply:
    """What comes instead of the whole reply, under a transport fault that is answered at all.

    `now` is the wall clock in seconds since 1970, for `Retry-After` as a date.
    """
    return _REPLACE[kind](whole, now)


def error_body(message: str, kind: str, code: str | None) -> bytes:
    return orjson.dumps({"error": {"message": message, "type": kind, "code": code}})


def too_many(retry_after: str) -> HttpReply:
    body = error_body("too many requests, try again later", "rate_limit_error", "rate_limit_exceeded")
    return HttpReply(429, body, retry_after=retry_after)


def _retry_date(now: float) -> str:
    """HTTP dates have whole seconds only: this one lies RETRY_AFTER seconds ahead, or up to one second more."""
    return formatdate(math.ceil(now) + RETRY_AFTER, usegmt=True)


def _without_choices(whole: bytes) -> HttpReply:
    return HttpReply(200, orjson.dumps({**orjson.loads(whole), "choices": []}))


_REPLACE: dict[str, Callable[[bytes, float], HttpReply]] = {
    "429": lambda whole, now: too_many(str(RETRY_AFTER)),
    "429-date": lambda whole, now: too_many(_retry_date(now)),
    "500": lambda whole, now: HttpReply(500, error_body("the server failed", "server_error", "internal_error")),
    "503-html": lambda whole, now: HttpReply(503, b"<html><body><h1>503 Unavailable</h1></body></html>\n", "text/html"),
    "truncated": lambda whole, now: HttpReply(200, whole[: len(whole) // 2]),
    "no-choices": lambda whole, now: _without_choices(whole),
}
_SPOIL: dict[str, Callable[[str], Choice]] = {
    "empty": lambda text: Choice(""),
    "refusal": lambda text: Choice(None, refusal="抱歉，我无法协助完成这个请求。"),
    "length": lambda text: Choice(text[: len(text) // 2], finish_reason="length"),
    "fenced": lambda text: Choice(f"```json\n{text}\n```"),
    "broken": lambda text: Choice(text[:-1] + ",}"),
    "no-json": lambda text: Choice("从这一批动态看，该用户的兴趣比较稳定，接下来多半还会关注相近的话题。"),
}
