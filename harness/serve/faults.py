"""What the embedded endpoint can do wrong on purpose, and when (docs/design.md, section 6).

Transport faults keep a whole reply from arriving; they are drawn anew at each try of a body, as are the faults in the
middle of a stream, and the refusals of an imitated provider that pass (too many requests, overloaded). Content faults
make the reply itself useless, and other refusals concern the request itself; they are drawn from the body alone, so
that a body's completion is the same however often it is asked for, and a run with transport faults ends with the
results of a run without.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from email.utils import formatdate
from hashlib import blake2b

import orjson

from harness.errors import BadInput

RESET = "reset"
RESET_BODY = "reset-body"
STALL = "stall"
TRUNCATED = "truncated"
TRANSPORT = ("429", "429-date", "500", "503-html", RESET, RESET_BODY, STALL, TRUNCATED, "no-choices")
STREAM_CUT = "stream-cut"
STREAM_ERROR = "stream-error"
STREAM_STALL = "stream-stall"
NEAREST = {STREAM_CUT: TRUNCATED, STREAM_ERROR: "500", STREAM_STALL: STALL}
"""What a whole reply gets instead of a fault that only a stream can have."""

STREAM = tuple(NEAREST)
WITHIN_STREAMS = (*STREAM, TRUNCATED, RESET_BODY)
"""What keeps a stream from ending once it has begun."""

CONTENT = ("empty", "refusal", "length", "fenced", "broken", "no-json")
PASSING = ("rate_limit", "overloaded")
LASTING = ("quota", "arrears", "input_filter", "context_length", "unknown_model", "bad_key", "bad_parameter")
REFUSALS = (*PASSING, *LASTING)
"""Errors in the words of an imitated provider, which need not have all of them."""

GROUPS = {"transport": TRANSPORT, "stream": STREAM, "content": CONTENT, "refusals": REFUSALS}
_KINDS = frozenset([kind for members in GROUPS.values() for kind in members])
_DRAWN_ANEW = (*TRANSPORT, *STREAM, *PASSING)
_DRAWN_ONCE = (*CONTENT, *LASTING)

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
        return self._pick(_DRAWN_ANEW, uniform(self.seed, "transport", body, attempt)) or self._pick(
            _DRAWN_ONCE, uniform(self.seed, "content", body)
        )

    def against(self, provider: str | None, has: Collection[str]) -> FaultPlan:
        """The plan where a provider is imitated that `has` these refusals, None for no provider.

        All of them at once, as the group names them, are those that it has. Raises `BadInput` for one that it lacks.
        """
        wanted = [kind for kind in self.kinds if kind in REFUSALS]
        if wanted and provider is None:
            raise BadInput(f"fault {wanted[0]!r}: refusals are a provider's, give --imitate")
        lacking = [kind for kind in wanted if kind not in has]
        if lacking and len(wanted) < len(REFUSALS):
            raise BadInput(f"fault {lacking[0]!r}: the imitated {provider} has {', '.join(has)}")
        return dataclasses.replace(self, kinds=tuple([kind for kind in self.kinds if kind not in lacking]))

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
    headers: Mapping[str, str] = field(default_factory=dict)


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
        if name not in GROUPS and name not in _KINDS:
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


FAILED = error_body("the server failed", "server_error", "internal_error")
"""What a server says that failed, as a reply with status 500 or in the middle of a stream."""


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
    "500": lambda whole, now: HttpReply(500, FAILED),
    "503-html": lambda whole, now: HttpReply(503, b"<html><body><h1>503 Unavailable</h1></body></html>\n", "text/html"),
    TRUNCATED: lambda whole, now: HttpReply(200, whole[: len(whole) // 2]),
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
