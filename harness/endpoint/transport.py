"""The seam between what is asked and how it is sent: what the rest of the harness needs of a client."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from harness.model import Completion


class Received(NamedTuple):
    """What one try brought: `endpoint` is the address that answered, as it may be shown.

    `first_token` is the seconds until the first piece of a streamed reply, None for one that came whole.
    """

    completion: Completion
    endpoint: str
    first_token: float | None = None


class Transport(Protocol):
    """What tests put a script in the place of."""

    async def send(self, body: bytes, user: str = "") -> Received:
        """One try of a request. `user` is whose it is: the steps of one user share a prefix, which servers keep.

        Raises `TransportFault`, `Rejected`, `EndpointStopped` or `MachineError`.
        """
        ...
