"""What one endpoint takes differently from another, and how that is learned from what it refuses.

A request's body stands in the form of harness/endpoint/wire.py, whoever it goes to. A quirk is one change of it. It is
learned from a refusal that names a parameter, once per endpoint and model, and counts from then on for every request
(docs/design.md, section 6).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable

import orjson

from harness.endpoint.error_phrases import own_words
from harness.endpoint.quirk_rules import PLAINLY_THE_FORMAT, QUIRKS, Quirk, text_of
from harness.endpoint.transport import Received, Transport
from harness.errors import BadInput, EndpointStopped, Rejected, TransportFault

Quirks = frozenset[str]
"""Names of the table in harness/endpoint/habits.py."""

REFUSED = frozenset({"http_400", "http_422"})
FAILED = frozenset({"http_500", "http_501"})
"""How llama-cpp-python and older llama.cpp refuse a `response_format`, and nothing else is believed there."""

SETTLED_UNREAD = frozenset({"content_filter", "context_length"})
"""Finish reasons of a completion that need not mean that the endpoint took the request's parameters."""


def checked(names: Iterable[str]) -> Quirks:
    """The quirks of these names. Raises `BadInput` for one that is none."""
    for name in names if not isinstance(names, str) else (names,):
        if name not in QUIRKS:
            raise BadInput(f"{name!r} is no known habit of an endpoint; those known are {', '.join(QUIRKS)}")
    return frozenset(names)


def adapt(body: bytes, quirks: Quirks, stream: bool = False, given: Collection[str] = ()) -> bytes:
    """A request as an endpoint with these quirks takes it, streamed if so asked; the same object if nothing changes.

    `given` names the members that the user gave by --extra-body, which stay as they are; `response_format` alone may
    step down.
    """
    if not quirks and not stream:
        return body
    request = orjson.loads(body)
    for name, quirk in QUIRKS.items():
        if (name in quirks or (stream and name == "stream")) and _free(quirk, given):
            quirk.change(request)
    adapted = orjson.dumps(request)
    return body if adapted == body else adapted


REQUEST = re.compile(r"\{.*[\"']messages[\"'].*\}", re.DOTALL)
"""A request that an error quotes: it names every parameter, and none of them is what is wrong."""


def learn(
    known: Quirks, kind: str, words: str, body: bytes, stream: bool = False, given: Collection[str] = ()
) -> str | None:
    """The quirk that a refusal of an adapted `body` teaches; None where it names nothing that could be sent otherwise.

    `body` is the request before it was adapted to what is `known`; `kind` and `words` are the error's kind and detail.
    """
    low = own_words(REQUEST.sub("", words))
    if kind not in REFUSED and not (kind in FAILED and PLAINLY_THE_FORMAT.search(low)):
        return None
    sent = adapt(body, known, stream, given)
    for name, quirk in QUIRKS.items():
        if quirk.undoes in known or (kind in FAILED and quirk.member != "response_format"):
            continue
        if _names(low, quirk, body) and adapt(body, known | {name}, stream, given) != sent:
            return name
    return None


def _free(quirk: Quirk, given: Collection[str]) -> bool:
    return quirk.member not in given or quirk.member == "response_format"


def _names(low: str, quirk: Quirk, body: bytes) -> bool:
    """Whether a refusal speaks of this quirk, and not only in words of the request's own messages, which some quote."""
    found = quirk.refusal.search(low)
    if found is None or quirk.beside not in low or (quirk.unless and quirk.unless.search(low)):
        return False
    return not any(found[0] in text_of(message).lower() for message in orjson.loads(body)["messages"])


class Adapted:
    """A sender for one endpoint and model that learns what it takes: what is refused is sent again at once, otherwise.

    A quirk is adopted for every request, and `on_learned` hears of it and of the endpoint's words, once a request that
    was changed by it got through; where the same request is refused all the same, nothing is adopted. All that are
    refused at the start learn side by side: nobody waits for another's reply. `known` are quirks learned
    before. `stream` is `on`, `off`, or `auto` (for an endpoint that answers no other way). `given` as for `adapt`.
    """

    def __init__(
        self,
        sender: Transport,
        known: Iterable[str] = (),
        stream: str = "auto",
        on_learned: Callable[[str, str], None] = lambda name, words: None,
        given: Collection[str] = (),
    ) -> None:
        self.quirks = checked(known) - ({"stream"} if stream == "off" else set())
        self.on_learned = on_learned
        self._sender = sender
        self._stream = stream
        self._given = frozenset(given)

    async def send(self, body: bytes, user: str = "") -> Received:
        """One try, or as many as it takes to learn. Raises what the sender raises.

        Raises `EndpointStopped` where the endpoint answers in streams only, and none are wanted.
        """
        quirks = self.quirks
        try:
            return await self._sender.send(self._adapted(body, quirks), user)
        except (Rejected, TransportFault) as refusal:
            if self._taught(quirks, refusal, body) is None:
                raise
            return await self._otherwise(body, user, refusal, quirks)

    def _adapted(self, body: bytes, quirks: Quirks) -> bytes:
        on = self._stream == "on"
        return adapt(body, quirks, on, self._given) if quirks or on else body

    def _taught(self, known: Quirks, refusal: Rejected | TransportFault, body: bytes) -> str | None:
        name = learn(known, refusal.kind, refusal.detail, body, self._stream == "on", self._given)
        if name == "stream" and self._stream == "off":
            raise EndpointStopped(
                f"the endpoint answers in streams only ({refusal.detail}): run with --stream auto"
            ) from None
        return name

    async def _otherwise(self, body: bytes, user: str, refusal: Rejected | TransportFault, sent: Quirks) -> Received:
        """Sends a request, refused as it was `sent`, otherwise until it gets through, and adopts what that took."""
        learned: dict[str, str] = {}
        while True:
            quirks = self.quirks | learned.keys()
            if quirks == sent:  # else others have learned in the meantime
                if (name := self._taught(quirks, refusal, body)) is None:
                    raise refusal
                learned[name] = refusal.detail
                quirks |= {name}
            sent = quirks
            try:
                received = await self._sender.send(self._adapted(body, sent), user)
            except (Rejected, TransportFault) as another:
                refusal = another
                continue
            if received.completion.finish_reason not in SETTLED_UNREAD or received.completion.text:
                self._adopt(body, sent, learned)
            return received

    def _adopt(self, body: bytes, quirks: Quirks, learned: dict[str, str]) -> None:
        """Of what was learned on the way, what the request that got through needed."""
        sent = self._adapted(body, quirks)
        needed = [name for name in learned if self._adapted(body, quirks - {name}) != sent]
        news = [name for name in needed if name not in self.quirks]
        self.quirks = self.quirks.union(needed)
        for name in news:
            self.on_learned(name, learned[name])
