"""The seam between requests and the way they are sent: what the rest of the harness needs of a
client."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol

from harness.model import Completion


class Received(NamedTuple):
    """The result of one try; `endpoint` is the address that answered, as it may be shown.

    `first_token` is the seconds until the first piece of a streamed reply, None for one that came
    whole.
    """

    completion: Completion
    endpoint: str
    first_token: float | None = None


class Transport(Protocol):
    """The part that tests replace by a script."""

    async def send(self, body: bytes, user: str = "") -> Received:
        """Try a request once. The steps of one `user` share a prefix, which servers cache.

        Raise `TransportFault`, `Rejected`, `EndpointStopped` or `MachineError`.
        """
        ...


def is_framed(headers: Mapping[str, str]) -> bool:
    """Return whether a body has a proper end. Without, it ends where its connection does, as if it
    broke off."""
    return "Content-Length" in headers or "chunked" in headers.get("Transfer-Encoding", "").lower()
