"""What one endpoint takes differently from another, and how that is learned from what it refuses.

A request's body has the form of harness/client/request_body.py, whichever endpoint it goes to. A
quirk is one change of it. It is learned from a refusal that names a parameter, once per endpoint
and model, and applies from then on to every request (docs/design.md, section 6). quirks.toml has
the rules. Nothing is probed, since a probe costs a request and most endpoints need no quirk. A
value out of range is no quirk: the user has to correct it. A quirk is adopted only after the
changed request succeeded, since a refusal may name a parameter that is not the cause.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import orjson

from harness.client.error_phrases import searchable
from harness.client.objects import object_of
from harness.client.request_body import SCHEMA_NAME
from harness.client.transport import Received, Transport
from harness.errors import BadInput, ConfigurationRefused, EndpointStopped, Rejected, TransportFault
from harness.model import JSON

Quirks = frozenset[str]
"""Names in quirks.toml."""

BAD_REQUEST_KINDS = frozenset({"http_400", "http_422"})
FAILED = frozenset({"http_500", "http_501"})
"""How llama-cpp-python and older llama.cpp refuse a `response_format`; nothing else is learned from
these."""
SETTLED_UNREAD = frozenset({"content_filter", "context_length"})
"""Finish reasons of a completion that need not mean that the endpoint took the request's
parameters."""
LONGEST_ENUM = 250
"""Values: OpenAI bounds the characters of an enum with more, and the number of all values by a
multiple of it."""
WITHOUT_SCHEMA = frozenset({"no_strict_schema", "json_object", "json_schema", "no_response_format"})
"""Quirks with which requests go out without the benchmark's schema."""
REQUEST = re.compile(r"\{.*[\"']messages[\"'].*\}", re.DOTALL)
"""A request that an error quotes: it names every parameter, and none of them is what is wrong."""
NEAR = r"(?:(?!\. ).){0,60}?"
"""What may be between a parameter and the phrase about it: no end of a sentence."""


@dataclass(frozen=True, slots=True)
class Quirk:
    """A rule of quirks.toml, which describes its fields. Patterns match lower case; `re` compiles
    one at its first use, since most runs meet no refusal."""

    member: str
    refusal: str
    sentence: str
    unless: str | None
    requires: str
    undoes: str
    needed: str
    change: Callable[[JSON], object]


def _near(names: list[str], phrases: list[str]) -> str:
    name = rf"(?<!\w)(?:{'|'.join(names)})(?!\w)"
    phrase = f"(?:{'|'.join(phrases)})"
    return f"{name}{NEAR}{phrase}|{phrase}{NEAR}{name}"


def _form(body: JSON) -> object:
    return object_of(body.get("response_format")).get("type")


def _has_our_schema(body: JSON) -> bool:
    """Return whether the `response_format` is a benchmark's schema (`request_body`)."""
    schema = object_of(object_of(body.get("response_format")).get("json_schema"))
    return schema.get("name") == SCHEMA_NAME and schema.get("strict") is True


def _our_subschemas(body: JSON) -> Iterator[JSON]:
    """Yield every object in a benchmark's schema, none in a user's own."""
    if _has_our_schema(body):
        yield from _subschemas(body["response_format"])


def _subschemas(schema: object) -> Iterator[JSON]:
    """Yield every object in a schema, itself included."""
    if isinstance(schema, dict):
        yield schema
        for value in schema.values():
            yield from _subschemas(value)
    elif isinstance(schema, list):
        for item in schema:
            yield from _subschemas(item)


def _any_length(body: JSON) -> None:
    for schema in _our_subschemas(body):
        if schema.get("type") == "array":
            schema.pop("minItems", None)
            schema.pop("maxItems", None)


def _short_enums(body: JSON) -> None:
    for schema in _our_subschemas(body):
        enum = schema.get("enum")
        if isinstance(enum, list) and len(enum) > LONGEST_ENUM:
            del schema["enum"]


def _not_our_schema(body: JSON) -> None:
    if _has_our_schema(body):
        _any_object(body)


def _any_object(body: JSON) -> None:
    if _form(body) == "json_schema":
        body["response_format"] = {"type": "json_object"}


def _as_schema(body: JSON) -> None:
    if _form(body) == "json_object":
        schema = {"name": "answer", "schema": {"type": "object"}}
        body["response_format"] = {"type": "json_schema", "json_schema": schema}


def _only_with_json_in_prompt(body: JSON) -> None:
    if _form(body) != "json_object":
        return
    prompt = "".join(map(text_of, body["messages"]))
    if "json" not in prompt.lower():
        del body["response_format"]


def _renamed(body: JSON) -> None:
    if "max_tokens" in body:
        body.setdefault("max_completion_tokens", body.pop("max_tokens"))


def _streamed(body: JSON) -> None:
    if body.setdefault("stream", True):
        body.setdefault("stream_options", {"include_usage": True})


def _system_first(body: JSON) -> None:
    """Put the text of the system messages in front of the first user message."""
    messages: list[JSON] = body["messages"]
    others = [message for message in messages if message["role"] != "system"]
    system_texts = [text_of(message) for message in messages if message["role"] == "system"]
    if not system_texts:
        return
    first = next((message for message in others if message["role"] == "user"), None)
    if first is None:
        first = {"role": "user", "content": ""}
        others.insert(0, first)
    content = first["content"]
    if isinstance(content, str):
        first["content"] = "\n\n".join([*system_texts, content]).rstrip()
    else:
        first["content"] = [{"type": "text", "text": text} for text in system_texts] + content
    body["messages"] = others


def text_of(message: JSON) -> str:
    """Return the text of a message; for a content in parts, their JSON."""
    content = message.get("content") or ""
    if isinstance(content, str):
        return content
    return orjson.dumps(content).decode()


CHANGES: dict[str, Callable[[JSON], object]] = {
    "no_array_length": _any_length,
    "no_long_enum": _short_enums,
    "no_strict_schema": _not_our_schema,
    "json_object": _any_object,
    "json_schema": _as_schema,
    "json_word": _only_with_json_in_prompt,
    "max_completion_tokens": _renamed,
    "stream": _streamed,
    "no_system_role": _system_first,
}
"""Changes of the decoded body; the other quirks remove their member."""

_RULES = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
_PHRASES: dict[str, list[str]] = _RULES["phrases"]


def _quirk(name: str, rule: dict[str, Any]) -> Quirk:
    if "refusal" in rule:
        refusal = "|".join(rule["refusal"])
    else:
        phrases = chain.from_iterable(map(_PHRASES.__getitem__, rule["refused"]))
        refusal = _near(rule["names"], list(phrases))
    return Quirk(
        member=rule["member"],
        refusal=refusal,
        sentence=rule["sentence"],
        unless="|".join(_PHRASES[rule["unless"]]) if "unless" in rule else None,
        requires=rule.get("requires", ""),
        undoes=rule.get("undoes", ""),
        needed=rule.get("needed", ""),
        change=CHANGES.get(name, lambda body: body.pop(rule["member"], None)),
    )


QUIRKS: dict[str, Quirk] = {name: _quirk(name, rule) for name, rule in _RULES["quirks"].items()}
"""By name, in the order in which they are applied to a body, and looked for in a refusal."""

NEEDED = frozenset(name for name, quirk in QUIRKS.items() if quirk.needed)
"""Quirks of members without which a reply is of no use to the benchmark that asks for them."""

PLAINLY_THE_FORMAT = re.compile(
    _near(
        _RULES["quirks"]["json_object"]["names"],
        [*_PHRASES["not_this_form"], *_PHRASES["not_taken"]],
    )
)
"""What an endpoint must say about a response_format if it calls the refusal a failure of its
own."""


def checked(names: Iterable[str]) -> Quirks:
    """Return the quirks of these names. Raise `BadInput` for an unknown one."""
    for name in names:
        if name not in QUIRKS:
            raise BadInput(
                f"{name!r} is no known habit of an endpoint; those known are {', '.join(QUIRKS)}"
            )
    return frozenset(names)


def unwanted(needs_schema: bool) -> Quirks:
    """Return the quirks that requests must not have; `needs_schema`: those without the benchmark's
    schema are among them."""
    return NEEDED | WITHOUT_SCHEMA if needs_schema else NEEDED


def adapt(body: bytes, quirks: Quirks, fixed: Collection[str] = ()) -> bytes:
    """Return a request as an endpoint with these quirks takes it; the same object if nothing
    changes.

    `fixed` are the members that the user set by --extra-body, which stay as they are;
    only `response_format` may be replaced by a weaker one.
    """
    if not quirks:
        return body
    request = orjson.loads(body)
    for name, quirk in QUIRKS.items():
        may_change = quirk.member == "response_format" or quirk.member not in fixed
        if name in quirks and may_change:
            quirk.change(request)
    adapted = orjson.dumps(request)
    return body if adapted == body else adapted


def learn(
    known: Quirks, kind: str, detail: str, body: bytes, fixed: Collection[str] = ()
) -> str | None:
    """Return the quirk that a refusal of an adapted `body` teaches; None if it names nothing that
    could be changed.

    `body` is the request before it was adapted to what is `known`; `kind` and `detail` are the
    error's. `fixed` as for `adapt`.
    """
    message = searchable(REQUEST.sub("", detail))
    if kind in FAILED:
        if not PLAINLY_THE_FORMAT.search(message):
            return None
    elif kind not in BAD_REQUEST_KINDS:
        return None
    sent = adapt(body, known, fixed)
    for name, quirk in QUIRKS.items():
        if quirk.undoes in known or (kind in FAILED and quirk.member != "response_format"):
            continue
        if _names(message, quirk, body) and adapt(body, known | {name}, fixed) != sent:
            return name
    return None


def _names(refusal: str, quirk: Quirk, body: bytes) -> bool:
    """Return whether a refusal names this quirk, and not only by quoting the request's own
    messages."""
    phrase = re.search(quirk.refusal, refusal)
    if phrase is None or quirk.requires not in refusal:
        return False
    if quirk.unless and re.search(quirk.unless, refusal):
        return False
    messages = orjson.loads(body)["messages"]
    return not any(phrase[0] in text_of(message).lower() for message in messages)


class Adapted:
    """A transport for one endpoint and model that learns its quirks: a refused request is sent
    again at once, changed.

    A quirk is adopted for every request, and `on_learned` gets it and the endpoint's words, once a
    request that it changed got through; if the same request is refused all the same, nothing is
    adopted. `known` are quirks learned before. `stream` is `on`, `off`, or `auto` (for an endpoint
    that answers in no other way). `fixed` as for `adapt`. `needs_schema`: the run ends where an
    endpoint does not take the benchmark's JSON schema, as it does where one takes no tools or
    log-probabilities that a request asks for.
    """

    def __init__(
        self,
        transport: Transport,
        known: Iterable[str] = (),
        stream: str = "auto",
        on_learned: Callable[[str, str], None] = lambda name, detail: None,
        fixed: Collection[str] = (),
        needs_schema: bool = False,
    ) -> None:
        self._unwanted = unwanted(needs_schema)
        if stream == "off":
            self._unwanted |= {"stream"}
        self.quirks = checked(known) - self._unwanted
        if stream == "on":
            self.quirks |= {"stream"}
        self.on_learned = on_learned
        self.transport = transport
        self._fixed = frozenset(fixed)

    def over(self, transport: Transport) -> Adapted:
        """Return the same, with the quirks that are known now, over another transport, which does
        not stream."""
        needs_schema = self._unwanted >= WITHOUT_SCHEMA
        return Adapted(transport, self.quirks, "off", self.on_learned, self._fixed, needs_schema)

    async def send(self, body: bytes, user: str = "") -> Received:
        """Try once, or as often as it takes to learn. Raise what the transport raises.

        Raise `EndpointStopped` if the endpoint answers in streams only, and none are wanted, or if
        it does not take a schema that it must.
        """
        learned: dict[str, str] = {}
        quirks = self.quirks
        while True:
            try:
                received = await self.transport.send(adapt(body, quirks, self._fixed), user)
            except (Rejected, TransportFault) as refusal:
                name = self._taught(quirks, refusal, body)
                if name is None:
                    raise
                known = self.quirks | learned.keys()
                # Requests that are refused at the start learn concurrently: none waits for the
                # reply to another. One that has learned in the meantime may have been enough.
                if known == quirks:
                    learned[name] = refusal.detail
                quirks = known | learned.keys()
                continue
            completion = received.completion
            if learned and (completion.finish_reason not in SETTLED_UNREAD or completion.text):
                self._adopt(body, quirks, learned)
            return received

    def _taught(self, known: Quirks, refusal: Rejected | TransportFault, body: bytes) -> str | None:
        name = learn(known, refusal.kind, refusal.detail, body, self._fixed)
        if name not in self._unwanted:
            return name
        if name == "stream":
            raise EndpointStopped(
                f"the endpoint answers in streams only ({refusal.detail}): run with --stream auto"
            ) from None
        quirk = QUIRKS[name]
        if quirk.needed:
            raise ConfigurationRefused(
                f"the endpoint takes no {quirk.member} ({refusal.detail}): {quirk.needed}"
            ) from None
        raise ConfigurationRefused(
            f"the endpoint does not take the JSON schema ({refusal.detail}): run with"
            " --structured auto"
        ) from None

    def _adopt(self, body: bytes, quirks: Quirks, learned: dict[str, str]) -> None:
        """Adopt those of the learned quirks that the request that got through needed."""
        sent = adapt(body, quirks, self._fixed)
        needed = [name for name in learned if adapt(body, quirks - {name}, self._fixed) != sent]
        new = [name for name in needed if name not in self.quirks]
        self.quirks = self.quirks.union(needed)
        for name in new:
            self.on_learned(name, learned[name])
