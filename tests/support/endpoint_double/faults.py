"""What the embedded endpoint can do wrong on purpose, and when.

Transport faults keep a whole reply from arriving. They are drawn again at each try of a body, as
are faults in the middle of a stream and the passing refusals of an imitated provider (too many
requests, overloaded). Content faults make the reply itself useless, and other refusals concern the
request itself; they are drawn from the body alone. So each try of a body has the same completion,
and a run with transport faults ends with the results of a run without.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from email.utils import formatdate
from hashlib import blake2b

import orjson

from harness.errors import BadInput

RESET = "reset"
RESET_BODY = "reset-body"
STALL = "stall"
TRUNCATED = "truncated"
TRANSPORT = (
    "429",
    "429-date",
    "500",
    "503-html",
    RESET,
    RESET_BODY,
    STALL,
    TRUNCATED,
    "no-choices",
)
STREAM_CUT = "stream-cut"
STREAM_ERROR = "stream-error"
STREAM_STALL = "stream-stall"
NEAREST = {STREAM_CUT: TRUNCATED, STREAM_ERROR: "500", STREAM_STALL: STALL}
"""The fault of a whole reply instead of one that only a stream can have."""
STREAM = tuple(NEAREST)
WITHIN_STREAMS = (*STREAM, TRUNCATED, RESET_BODY)
"""Faults that keep a stream from ending once it has begun."""
CONTENT = ("empty", "refusal", "length", "fenced", "broken", "no-json")
PASSING = ("rate_limit", "overloaded")
LASTING = (
    "quota",
    "arrears",
    "input_filter",
    "context_length",
    "unknown_model",
    "bad_key",
    "bad_parameter",
)
REFUSALS = (*PASSING, *LASTING)
"""Errors in the words of an imitated provider, which need not have all of them."""
STEPS = {
    "upload": ("upload-refused", "upload-500", "upload-lost"),
    "create": ("create-refused", "create-500", "create-lost"),
    "poll": ("poll-500",),
    "download": ("download-cut",),
    "batch": ("batch-expired", "batch-cancelled", "batch-failed"),
}
"""What each step of the Batch API can do wrong; `-500` and `-lost` come after the step was
accepted."""
BATCH = tuple(kind for kinds in STEPS.values() for kind in kinds)
GROUPS = {
    "transport": TRANSPORT,
    "stream": STREAM,
    "content": CONTENT,
    "refusals": REFUSALS,
    "batch": BATCH,
}
_DRAWN_AGAIN = (*TRANSPORT, *STREAM, *PASSING)
_DRAWN_ONCE = (*CONTENT, *LASTING)

RETRY_AFTER = 1
"""Seconds; short, since those who draw faults on purpose wait for them."""


@dataclass(frozen=True, slots=True)
class FaultPlan:
    """Which faults, how often. `kinds` are names of kinds or groups; `rate` is a fraction of the
    requests.

    The rate is divided evenly among the kinds. Raise `BadInput`.
    """

    rate: float
    kinds: tuple[str, ...]
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.rate <= 1:
            raise BadInput(f"fault rate {self.rate}: expected a fraction from 0 to 1")
        object.__setattr__(self, "kinds", expand(self.kinds))

    def draw(self, body: bytes, attempt: int) -> str | None:
        """Return the fault of a body (or its digest) at its n-th try, None for none."""
        passing = self._pick(_DRAWN_AGAIN, uniform(self.seed, "transport", body, attempt))
        return passing or self._pick(_DRAWN_ONCE, uniform(self.seed, "content", body))

    def draw_step(self, step: str, time: int) -> str | None:
        """Return the fault of a step of the Batch API at its n-th time, None for none."""
        return self._pick(STEPS[step], uniform(self.seed, step, b"", time))

    def against(self, provider: str | None, has: Collection[str]) -> FaultPlan:
        """Return the plan for an imitated provider (None for none) that `has` these refusals.

        All of them at once, as the group names them, are those that it has. Raise `BadInput` for
        one that it lacks.
        """
        wanted = [kind for kind in self.kinds if kind in REFUSALS]
        if wanted and provider is None:
            raise BadInput(f"fault {wanted[0]!r}: refusals are a provider's, give --imitate")
        lacking = [kind for kind in wanted if kind not in has]
        if lacking and len(wanted) < len(REFUSALS):
            raise BadInput(f"fault {lacking[0]!r}: the imitated {provider} has {', '.join(has)}")
        return dataclasses.replace(
            self, kinds=tuple([kind for kind in self.kinds if kind not in lacking])
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
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Choice:
    """The answer in a completion."""

    content: str | None
    finish_reason: str = "stop"
    refusal: str | None = None


def expand(names: Iterable[str]) -> tuple[str, ...]:
    """Return kinds by name, groups replaced by their kinds, without repeats. Raise `BadInput`."""
    kinds: dict[str, None] = {}
    for name in names:
        if name not in GROUPS and not any(name in members for members in GROUPS.values()):
            known = "; ".join(
                [f"{group}: {', '.join(members)}" for group, members in GROUPS.items()]
            )
            raise BadInput(f"unknown fault {name!r}: known are the groups and kinds {known}")
        kinds.update(dict.fromkeys(GROUPS.get(name, (name,))))
    return tuple(kinds)


def uniform(seed: int, purpose: str, body: bytes, attempt: int = 0) -> float:
    """Return a number in (0, 1), evenly distributed, that depends on the arguments alone."""
    digest = blake2b(f"{seed}/{purpose}/{attempt}/".encode() + body, digest_size=6).digest()
    return (int.from_bytes(digest, "big") + 0.5) / 2**48


def error_body(message: str, kind: str, code: str | None, param: str | None = None) -> bytes:
    return orjson.dumps({"error": {"message": message, "type": kind, "param": param, "code": code}})


FAILED = error_body("the server failed", "server_error", "internal_error")
"""The error of a server that failed, as a reply with status 500 or in the middle of a stream."""
_TOO_MANY = error_body(
    "too many requests, try again later", "rate_limit_error", "rate_limit_exceeded"
)
TOO_MANY = HttpReply(429, _TOO_MANY, retry_after=str(RETRY_AFTER))


def spoil(kind: str, text: str) -> Choice:
    """Return a reply's text (one JSON object) under a content fault."""
    match kind:
        case "empty":
            return Choice("")
        case "refusal":
            return Choice(None, refusal="抱歉，我无法协助完成这个请求。")
        case "length":
            return Choice(text[: len(text) // 2], finish_reason="length")
        case "fenced":
            return Choice(f"```json\n{text}\n```")
        case "broken":
            return Choice(text[:-1] + ",}")
        case "no-json":
            return Choice("从这一批动态看，该用户的兴趣比较稳定，接下来多半还会关注相近的话题。")
    raise ValueError(kind)


def replace(kind: str, whole: bytes, now: float) -> HttpReply:
    """Return the reply instead of the `whole` one, under a transport fault that is answered at all.

    `now` is the wall clock in seconds since 1970. A date in `Retry-After` has whole seconds only:
    it is RETRY_AFTER seconds ahead, or up to one second more.
    """
    match kind:
        case "429":
            return TOO_MANY
        case "429-date":
            return HttpReply(
                429, _TOO_MANY, retry_after=formatdate(math.ceil(now) + RETRY_AFTER, usegmt=True)
            )
        case "500":
            return HttpReply(500, FAILED)
        case "503-html":
            return HttpReply(
                503, b"<html><body><h1>503 Unavailable</h1></body></html>\n", "text/html"
            )
        case "truncated":
            return HttpReply(200, whole[: len(whole) // 2])
        case "no-choices":
            return HttpReply(200, orjson.dumps({**orjson.loads(whole), "choices": []}))
    raise ValueError(kind)
