"""What a benchmark's `ask` does: the saved response, or else a call whose reply is saved before it is returned.

What a play knows of its user so far is in its variables alone, so playing a user again from its saved responses arrives
exactly where it was interrupted (docs/design.md, section 2).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping

from harness.endpoint.request_body import Sampling, digest
from harness.model import Completion, Reply, Request

Saved = Mapping[tuple[str, int], Completion]
"""Completions by digest of the request and how often that was asked before in this play."""

Call = Callable[[bytes, int], Awaitable[Reply]]
"""Settles a request body; the number is the steps that the user has left."""

Save = Callable[[str, int, Reply], Awaitable[None] | None]
"""Makes a reply durable: digest, how often asked before, reply. Returns what there is to wait for, if anything."""


class ReplayMiss(Exception):
    """A play from saved responses alone asked for one that is not there."""


class Conversation:
    """One user's play. `steps` is the expected length of its chain."""

    def __init__(self, sampling: Sampling, saved: Saved, steps: int, call: Call, save: Save) -> None:
        self.replayed = 0
        self.asked = 0
        self._sampling = sampling
        self._saved = saved
        self._steps = steps
        self._call = call
        self._save = save
        self._times: Counter[str] = Counter()

    @property
    def unused(self) -> int:
        """Saved responses that nothing asked for: the play went another way than before."""
        return len(self._saved) - self.replayed

    async def ask(self, request: Request) -> Completion:
        body = self._sampling.encode(request)
        key = digest(body)
        nth = self._times[key]
        self._times[key] += 1
        completion = self._saved.get((key, nth))
        if completion is not None:
            self.replayed += 1
        else:
            reply = await self._call(body, max(1, self._steps - self.asked))
            pending = self._save(key, nth, reply)
            if pending is not None:
                await pending
            completion = reply.completion
        self.asked += 1
        return completion


def replaying(sampling: Sampling, saved: Saved) -> Conversation:
    """A play from saved responses only; raises `ReplayMiss` where one is missing."""

    async def no_call(body: bytes, rank: int) -> Reply:
        raise ReplayMiss

    async def no_save(key: str, nth: int, reply: Reply) -> None:
        raise ReplayMiss

    return Conversation(sampling, saved, 1, no_call, no_save)
