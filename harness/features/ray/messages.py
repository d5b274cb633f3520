"""The messages between driver and workers: lists in msgpack, one in each direction per turn.

Numbers of users are the driver's, those of requests the worker's own, from 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Struct

from harness.cost import Rate
from harness.endpoint.replies import Denied
from harness.engine.answers import Judgement
from harness.errors import (
    AgentFailed,
    BadInput,
    BenchmarkError,
    ConfigurationRefused,
    EndpointStopped,
    GaveUp,
    HarnessError,
    MachineError,
    Rejected,
    TransportFault,
)
from harness.model import Completion


class Raised(Struct, frozen=True, array_like=True):
    """An error of the harness: the name of its class, and what it holds."""

    name: str
    sentences: list[Any]
    state: dict[str, Any]


ERRORS: dict[str, type[HarnessError]] = {
    kind.__name__: kind
    for kind in (
        AgentFailed,
        BadInput,
        BenchmarkError,
        ConfigurationRefused,
        Denied,
        EndpointStopped,
        GaveUp,
        HarnessError,
        MachineError,
        Rejected,
        TransportFault,
    )
}


def packed(error: HarnessError) -> Raised:
    """Return an error as a message has it; one of an unlisted class as its nearest listed base."""
    name = next(kind.__name__ for kind in type(error).__mro__ if kind.__name__ in ERRORS)
    return Raised(name, [str(sentence) for sentence in error.args], vars(error))


def unpacked(raised: Raised) -> HarnessError:
    kind = ERRORS[raised.name]
    error = kind.__new__(kind, *raised.sentences)
    vars(error).update(raised.state)
    return error


class _Message(Struct, frozen=True, array_like=True, tag=True):
    pass


# From the driver


class Play(_Message, frozen=True):
    """Play a user: a line of a tasks file, with the saved responses as (digest, nth, completion).

    `ahead` is a lease: as of `Settled`. `rate` is that of the run's requests, `repeats` how many each user has.
    """

    user: int
    lane: int
    subset: str
    file: str
    number: int
    line: bytes
    repeat: int
    repeats: int
    saved: list[tuple[str, int, Completion]]
    rate: Rate
    ahead: int


class Granted(_Message, frozen=True):
    """A slot for a request that was announced by `Ask`: send it, once."""

    user: int
    request: int


class Settled(_Message, frozen=True):
    """The reply is saved: the play goes on, with the reply that came last if there is no `completion`.

    `ahead` leases a slot: the next request of the play may be sent without asking, once, if its body has at most so
    many bytes; 0 leases none.
    """

    request: int
    completion: Completion | None
    ahead: int = 0


class Refused(_Message, frozen=True):
    """There will be no reply: the play gets this error."""

    request: int
    error: Raised


class Cancel(_Message, frozen=True):
    user: int


class Reclaim(_Message, frozen=True):
    """Give back the slots of a lane that are leased and not in use."""

    lane: int


TaskLine = tuple[int, str, int, bytes]
"""A place among records, and the task of its user: file, number of the line, and line."""


class Score(_Message, frozen=True):
    """Score a shard of records, given by their lines, for the report of the lane's run of a subset."""

    shard: int
    lane: int
    subset: str
    lines: Sequence[bytes]
    tasks: Sequence[TaskLine]


class Adopt(_Message, frozen=True):
    """Apply a quirk of the endpoint that another worker has learned."""

    lane: int
    quirk: str


# From a worker


class Ask(_Message, frozen=True):
    """A play needs a reply: `body`, `rank`, digest and `nth` as for `Settle`.

    With `failed`, the first try was made, with a slot, and failed so after so many `seconds`.
    """

    user: int
    request: int
    key: str
    body: bytes
    rank: int
    digest: str
    nth: int
    failed: Raised | None = None
    seconds: float = 0.0


class Replied(_Message, frozen=True):
    """A slot was used for a request, and this is the sealed `line` of its reply, after so many `seconds`.

    `used` are the counts of `RunUsage` that it adds, in order; `size` is of the request's body in bytes.
    """

    user: int
    request: int
    key: str
    line: bytes
    used: tuple[int, ...]
    size: int
    seconds: float


class Late(_Message, frozen=True):
    """A slot is in use for so many seconds."""

    user: int
    request: int
    key: str
    seconds: float


class GivenBack(_Message, frozen=True):
    """A slot that was leased, or granted to a `request`, is not in use, and will not be."""

    user: int
    request: int = 0


class PlayEnded(_Message, frozen=True):
    """The end of a play, as `Ended`; `line` is the sealed one of its record. A slot that it has leased is free."""

    user: int
    key: str
    line: bytes | None
    error: Raised | None
    played: bool
    replayed: int
    unused: int


class Scored(_Message, frozen=True):
    """The totals of a shard, as `scoring.packed` has them."""

    shard: int
    totals: bytes | None


class Running(_Message, frozen=True):
    """What some users whose plays have ended add to the running scores, as `scoring.packed` has it."""

    users: list[int]
    sums: bytes | None


class Stopped(_Message, frozen=True):
    """An error after which the whole run cannot go on; `defect` is the traceback of one that nobody foresaw."""

    user: int
    error: Raised | None
    defect: str = ""


class Worked(_Message, frozen=True):
    """The share of a turn for which the worker had work, not waiting; at its end."""

    share: float


class Learned(_Message, frozen=True):
    lane: int
    quirk: str
    words: str


class Exhausted(_Message, frozen=True):
    """A quota is used up for so many seconds."""

    lane: int
    seconds: float


class Noted(_Message, frozen=True):
    """A replica was set aside, or is back."""

    lane: int
    detail: str


class Logged(_Message, frozen=True):
    """Lines and warnings of a benchmark."""

    lane: int
    lines: list[str]
    warnings: list[str]


ToWorker = Play | Granted | Settled | Refused | Cancel | Reclaim | Score | Adopt


class Judged(_Message, frozen=True):
    """Why the new reply of a user cannot be used."""

    user: int
    how: Judgement


class Usable(_Message, frozen=True):
    """How many new replies of a lane could be used."""

    lane: int
    number: int


ToDriver = (
    Ask
    | Replied
    | Late
    | GivenBack
    | PlayEnded
    | Scored
    | Running
    | Stopped
    | Worked
    | Learned
    | Exhausted
    | Noted
    | Logged
    | Judged
    | Usable
)

encode = msgspec.msgpack.Encoder().encode
to_worker = msgspec.msgpack.Decoder(list[ToWorker]).decode
to_driver = msgspec.msgpack.Decoder(list[ToDriver]).decode
