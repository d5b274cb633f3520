"""A benchmark's `ask`: return the saved response, or else one that is settled, which includes that
it is saved.

The state of a play is in its variables alone, so playing a user again from its saved responses
arrives exactly where it was interrupted (docs/design.md, section 2).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import NamedTuple, NoReturn

from harness.chat import Judged, unnoticed
from harness.client.request_body import Sampling, digest
from harness.errors import BenchmarkError, InvalidReply
from harness.model import Completion, Request, role_of

Saved = Mapping[tuple[str, int], Completion]
"""Completions by digest of the request and how often that request was made before in this play."""


class PendingRequest(NamedTuple):
    """A request to which no reply is saved.

    `body` is its JSON. `rank` is how many steps the user has left, `digest` that of the body, and
    `nth` how often the same was sent before in this play. `role` names the model that is asked,
    empty for the one under test.
    """

    body: bytes
    rank: int
    digest: str
    nth: int
    role: str = ""


Settle = Callable[[PendingRequest], Awaitable[Completion]]
"""Return the reply to a request once it is saved."""


class ReplayMiss(Exception):
    """A play from saved responses alone needs one that is missing."""


class Conversation:
    """One user's requests. `steps` is the expected length of its chain, in requests to the model
    under test, which `requests` counts. `judged` is called for each new reply of that model that is
    read, as `Chat` does for every reply."""

    def __init__(
        self,
        sampling: Sampling,
        saved: Saved,
        steps: int,
        settle: Settle,
        judged: Judged = unnoticed,
    ) -> None:
        self.replayed = 0
        self.requests = 0
        self._replayed_of_roles = 0
        self._sampling = sampling
        self._saved = saved
        self._steps = steps
        self._settle = settle
        self._times: dict[str, int] = {}
        self._judged = judged
        self._is_new = False

    @property
    def unused(self) -> int:
        """Return the number of saved responses of the model under test that were not used: the play
        went another way than before. Those of an earlier judge are not used, either."""
        saved = sum(1 for request, _ in self._saved if not role_of(request))
        return saved - (self.replayed - self._replayed_of_roles)

    async def ask(self, request: Request) -> Completion:
        role = request.role
        if role and role not in self._sampling.roles:
            raise BenchmarkError(
                f"a request names the role {role}, which has no model: name it with --role"
                f" {role}=MODEL"
            )
        body = self._sampling.encode(request)
        # Of the body before quirks: what is learned in mid-run makes no saved reply useless.
        key = digest(body, role)
        # The same request can come twice in one play, and each has a reply of its own.
        nth = self._times.get(key, 0)
        self._times[key] = nth + 1
        completion = self._saved.get((key, nth))
        is_saved = completion is not None
        if completion is None:
            steps_left = max(1, self._steps - self.requests)
            completion = await self._settle(PendingRequest(body, steps_left, key, nth, role))
        else:
            self.replayed += 1
            self._replayed_of_roles += bool(role)
        self.requests += not role
        # of the reply that is returned now: it is read before any other request goes on
        self._is_new = not (is_saved or role)
        return completion

    def judge(self, completion: Completion, error: InvalidReply | None) -> None:
        """Take note of how the reply that came last was read; saved responses were noted when they
        came."""
        if self._is_new:
            self._judged(completion, error)


def replaying(sampling: Sampling, saved: Saved) -> Conversation:
    """Return a conversation from saved responses only, which raises `ReplayMiss` where one is
    missing."""
    return Conversation(sampling, saved, 1, _miss)


async def _miss(*_: object) -> NoReturn:
    raise ReplayMiss
