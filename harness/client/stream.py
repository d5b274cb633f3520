"""A streamed reply, put together into the object that it would have been whole. Pure and
synchronous.

Blocks of bytes end anywhere. `Events` finds the server-sent events in them
(https://html.spec.whatwg.org/, section "Server-sent events"), `StreamedReply` merges their chunks,
so that `replies` judges both kinds of reply. It also reads what some servers send outside the
standard:

- llama.cpp sent an error as a field of its own, `error: {...}` (its pull request 16109), and ends
  without a blank line;
- vLLM's `{"object": "error", "message": ...}` has no member `error`; its usage may come with no
  `choices`;
- some send a whole `message` at the end, after all the deltas, or usage within the choice;
- some repeat in each delta all that came before, or send comments as data.
"""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import orjson

from harness.benchmarks.parsing import is_json
from harness.client.error_phrases import MESSAGES, is_error
from harness.client.replies import (
    NO_EXPLANATION,
    arguments_of,
    decoded,
    function_of,
    index_of,
    without_envelope,
    without_half_pairs,
)
from harness.errors import TransportFault
from harness.model import ANSWERER

BYTE_ORDER_MARK = b"\xef\xbb\xbf"
DONE = b"[DONE]"
JSON_BLANKS = b" \t\r\n"
TEXTS = ("content", "reasoning_content", "reasoning", "refusal")
"""Members of a message that come in pieces."""
END_REASONS = frozenset({"stop", "length", "content_filter", "tool_calls", "function_call"})
"""Finish reasons of the protocol. Relays send others, such as "null", before the end."""
MAX_CHOICES, MAX_MEMBERS = 128, 1000
"""That are kept of a stream: one choice is requested, and what has other members is no
completion."""
MAX_CALLS = 1000
"""Tool calls of a streamed reply. Each takes memory that the bytes of the stream do not bound."""
MIN_REPEATS = 3
"""Deltas of which each repeats all before, so that the last one may be the whole text."""

Event = tuple[bytes, bytes]
"""Name (empty if there is none) and data of one event."""


class Events:
    """The events of a stream. Bytes without a line end yet are kept in pieces and joined once,
    however many."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._after_cr = False
        self._begun = False
        self._name = b""
        self._data: list[bytes] = []

    def feed(self, block: bytes) -> list[Event]:
        """Return the events that end in this block."""
        if not block:
            return []
        if self._after_cr and block[:1] == b"\n":
            block = block[1:]  # CR and LF of one line end came apart
        self._after_cr = block[-1:] == b"\r"
        end = max(block.rfind(b"\n"), block.rfind(b"\r")) + 1
        if not end:
            self._pieces.append(block)
            return []
        lines = b"".join([*self._pieces, block[:end]]).splitlines()
        self._pieces = [block[end:]]
        return self._events(lines)

    def end(self) -> list[Event]:
        """Return what the end of the body completes: servers omit the last blank line, or even the
        line's end."""
        last_line = b"".join(self._pieces)
        self._pieces = []
        return self._events([last_line, b""] if last_line else [b""])

    def _events(self, lines: list[bytes]) -> list[Event]:
        if not self._begun:
            self._begun = True
            lines[0] = lines[0].removeprefix(BYTE_ORDER_MARK)
        events: list[Event] = []
        for line in lines:
            if not line:
                if self._data:
                    events.append((self._name, b"\n".join(self._data)))
                    self._data = []
                self._name = b""
            elif line.startswith(b"data:"):
                self._data.append(line[6:] if line[5:6] == b" " else line[5:])
            elif line.startswith(b"event:"):
                self._name = line[6:].strip()
            elif line.startswith(b"error:"):
                self._name = b"error"  # llama.cpp's own field for one
                self._data.append(line[6:])
        return events


class _Call:
    """The pieces of one tool call."""

    def __init__(self) -> None:
        self.id: object = None
        self.name: object = None
        self.extra_content: object = None
        self.arguments: list[str] = []

    def add(self, piece: dict[str, Any]) -> None:
        """Add a piece: only that of the arguments goes on, since some servers repeat the others."""
        self.id = self.id or piece.get("id")
        self.name = self.name or _name_of(piece)
        self.extra_content = self.extra_content or piece.get("extra_content")
        arguments = arguments_of(piece)
        if arguments:
            self.arguments.append(arguments)

    def is_over(self, piece: dict[str, Any]) -> bool:
        """Return whether a piece with the same index begins another call."""
        # Gemini gives every call the index 0, so a new id with a new name is a new call. An id
        # alone is no sign: vLLM sent another id in each piece.
        piece_id = piece.get("id")
        if not self.id or not piece_id or self.id == piece_id:
            return False
        return bool(self.name and _name_of(piece))

    def whole(self) -> dict[str, Any]:
        function = {"name": self.name, "arguments": "".join(self.arguments)}
        return {"id": self.id, "function": function, "extra_content": self.extra_content}


class _Choice:
    """The pieces of one choice, or its whole `message`; `logprobs` has the lists of all chunks
    joined."""

    def __init__(self, index: object) -> None:
        self.index = index
        self.pieces: dict[str, list[Any]] = {}
        self.calls: list[_Call] = []
        self._call_by_index: dict[int, _Call] = {}
        self.logprobs: dict[str, Any] = {}
        self.message: dict[str, Any] | None = None
        self.finish_reason: object = None

    def add(self, delta: dict[str, Any]) -> bool:
        """Add a delta; return whether it has any text, thought or piece of a tool call."""
        speaks = False
        calls = delta.get("tool_calls")
        if calls:
            speaks |= self._add_calls(calls)
        older_call = delta.get("function_call")
        if older_call:
            speaks |= self._add_calls([{"function": older_call}])
        for name in TEXTS:
            piece = delta.get(name)
            if piece and type(piece) in (str, list, dict):
                speaks = True
                pieces = self.pieces.setdefault(name, [])
                if type(piece) is list:
                    pieces.extend(piece)
                else:
                    pieces.append(piece)
        return speaks

    def _add_calls(self, calls: object) -> bool:
        """Add pieces of tool calls, each by the index of its call; return whether there are any."""
        if type(calls) is not list:
            return False
        pieces = [call for call in calls if type(call) is dict]
        for place, piece in enumerate(pieces):
            index = piece.get("index")
            if type(index) is not int:
                index = place
            call = self._call_by_index.get(index)
            if call is None or call.is_over(piece):
                call = self._call_by_index[index] = _Call()
                self.calls.append(call)
            call.add(piece)
        if len(self.calls) > MAX_CALLS:
            raise TransportFault("too_large", f"the reply has more than {MAX_CALLS} tool calls")
        return bool(pieces)

    def add_logprobs(self, logprobs: dict[str, Any]) -> None:
        """Add the log-probabilities of a chunk: lists go on, other values are the last ones."""
        for name, value in logprobs.items():
            earlier = self.logprobs.get(name)
            if type(value) is list and type(earlier) is list:
                earlier.extend(value)
            elif value is not None or earlier is None:
                self.logprobs[name] = value

    def whole(self) -> dict[str, Any]:
        message = self.message
        if message is None:
            message = {name: _joined(pieces) for name, pieces in self.pieces.items()}
            calls = [call.whole() for call in self.calls if call.name or call.arguments]
            if calls:
                message["tool_calls"] = calls
        choice = {"index": self.index, "message": message, "finish_reason": self.finish_reason}
        if self.logprobs:
            choice["logprobs"] = self.logprobs
        return choice


class StreamedReply:
    """One reply as it arrives. Raise `TransportFault` beyond `largest` bytes, and for data that is
    not JSON.

    `done`: nothing that follows matters. `speaks`: a piece of text or thought has come.
    """

    def __init__(self, largest: int) -> None:
        self.done = False
        self.speaks = False
        self._largest = largest
        self._size = 0
        self._events = Events()
        self._choices: dict[int | str, _Choice] = {}
        self._other_members: dict[str, Any] = {}
        self._error: object = None
        self._named: dict[str, Any] = {"model": None}
        self._usage: dict[str, Any] | None = None
        self._has_halves = False
        self._begun = False
        self._plain: list[bytes] | None = None

    @property
    def finished(self) -> bool:
        """Whether a finish_reason has come: the answer is whole then, whatever becomes of the rest
        of the stream."""
        # The end of the stream is weaker evidence: relays end every stream alike, also one that
        # broke off behind them.
        first = self._choices.get(0) or next(iter(self._choices.values()), None)
        return first is not None and first.finish_reason in END_REASONS

    def feed(self, block: bytes) -> None:
        self._size += len(block)
        if self._size > self._largest:
            raise TransportFault("too_large", f"the reply is longer than {self._largest >> 20} MB")
        if not self._begun:
            text = block.lstrip(JSON_BLANKS)
            self._begun = bool(text)
            if text.startswith(b"{"):
                self._plain = []  # a whole reply under the type of a stream
        if self._plain is not None:
            self._plain.append(block)
            return
        for name, data in self._events.feed(block):
            self._take(name, data)

    def whole(self, ended: bool) -> dict[str, Any]:
        """Return the reply after its last byte (or after `done`), in the form of one that came
        whole.

        `ended` is whether the body came to its proper end. Raise `TransportFault` if it broke off.
        """
        if self._plain is not None:
            data = decoded(b"".join(self._plain))
            if data is None:
                raise TransportFault("bad_json", "the reply is not whole JSON")
            return data
        broke_off = TransportFault("truncated", "the stream broke off")
        if not self.done:
            try:
                for name, event in self._events.end():
                    self._take(name, event)
            except TransportFault:  # half an event
                if not self.finished:
                    raise broke_off from None
        if self._error is not None:
            return self._writable({"error": self._error})
        has_end = ended if self._choices else bool(self._other_members)
        if not (self.done or self.finished or has_end):
            raise broke_off
        reply = {**self._other_members, **self._named, "usage": self._usage}
        if self._choices:
            reply["choices"] = [choice.whole() for choice in self._choices.values()]
        return self._writable(reply)

    def _writable(self, reply: dict[str, Any]) -> dict[str, Any]:
        """Join the halves of surrogate pairs that chunks had cut apart; replace a half alone, which
        no file holds."""
        if not self._has_halves:
            return reply
        joined: dict[str, Any] = json.loads(json.dumps(reply), object_pairs_hook=without_half_pairs)
        return joined

    def _take(self, name: bytes, data: bytes) -> None:
        if self.done or not data or data.isspace():
            return
        try:
            chunk = orjson.loads(data)
        except ValueError:
            self._take_odd(name, data)
            return
        if name == b"error":
            self._fail(chunk)
        elif type(chunk) is dict:
            self._merge(chunk)

    def _take_odd(self, name: bytes, data: bytes) -> None:
        """Take the end, a comment, several events without a blank line, an error in plain words, or
        JSON that orjson refuses."""
        if data.strip() == DONE:
            self.done = True
        elif data.lstrip().startswith(b":") and b"\n" not in data:
            return  # a comment
        elif name == b"error":
            self._fail(data.decode("utf-8", "replace"))
        elif b"\n" in data:
            for line in data.split(b"\n"):
                self._take(name, line)
        else:
            # A bare NaN, half a surrogate pair, and bytes that are not UTF-8 do no harm.
            self._has_halves = True
            try:
                chunk = json.loads(data.decode("utf-8", "replace"), strict=False)
            except (ValueError, RecursionError):
                raise TransportFault(
                    "bad_json", "the stream has data in it that is not JSON"
                ) from None
            if type(chunk) is dict:
                self._merge(chunk)

    def _fail(self, error: object) -> None:
        self.done = True
        if self.finished:
            return
        if type(error) is dict:
            error = error.get("error") or error
        self._error = error or NO_EXPLANATION

    def _merge(self, chunk: dict[str, Any]) -> None:
        if not chunk.get("choices"):
            chunk = without_envelope(chunk)
        error = chunk.get("error")
        if error and is_error(error):
            self._fail(chunk)
            return
        self._note_answerer(chunk)
        usage = chunk.get("usage")
        choices = chunk.get("choices")
        if type(usage) is dict:
            self._usage = usage
        if type(choices) is list:
            for choice in choices:
                if type(choice) is dict:
                    self._merge_choice(choice)
        elif chunk.get("object") == "error" or _is_error(chunk):
            self._fail(chunk)
        elif len(self._other_members) < MAX_MEMBERS:
            self._other_members |= chunk

    def _note_answerer(self, chunk: dict[str, Any]) -> None:
        for name in ANSWERER:
            if not self._named.get(name) and chunk.get(name):
                self._named[name] = chunk[name]

    def _merge_choice(self, choice: dict[str, Any]) -> None:
        index = index_of(choice)
        key = index if type(index) is int else str(index)
        merged = self._choices.get(key)
        if merged is None:
            if len(self._choices) >= MAX_CHOICES:
                return
            merged = self._choices[key] = _Choice(index)
        delta = choice.get("delta")
        message = choice.get("message")
        if type(delta) is dict:
            self.speaks |= merged.add(delta)
        elif type(message) is dict:
            merged.message = message
            merged.logprobs = {}  # those of the whole message follow
            self.speaks = True
        elif type(choice.get("text")) is str:
            self.speaks |= merged.add({"content": choice["text"]})
        logprobs = choice.get("logprobs")
        if type(logprobs) is dict:
            merged.add_logprobs(logprobs)
        error = choice.get("error")
        if error and is_error(error):
            self._fail(choice)
        elif choice.get("finish_reason"):
            self._finish(merged, choice)

    def _finish(self, merged: _Choice, choice: dict[str, Any]) -> None:
        """Take the finish reason of a choice, and the usage that some servers put next to it."""
        reason = choice["finish_reason"]
        # A relay's own reason, such as "null", does not replace one of the protocol.
        replaces = reason in END_REASONS or merged.finish_reason not in END_REASONS
        if type(reason) is str and replaces:
            merged.finish_reason = reason
        if type(choice.get("usage")) is dict:
            self._usage = choice["usage"]


def _name_of(call: dict[str, Any]) -> object:
    return (function_of(call) or {}).get("name")


def _is_error(chunk: dict[str, Any]) -> bool:
    """Return whether a chunk without choices is an error that has no member of its own."""
    messages = [chunk[name] for name in MESSAGES if type(chunk.get(name)) is str]
    return any(messages) and is_error(chunk)


def looks_streamed(body: bytes) -> bool:
    """Return whether a body is a stream, whatever its type: servers name the type wrongly, and no
    JSON begins so."""
    return body[:64].lstrip().startswith((b"data:", b"event:", b":"))


def whole_stream(body: bytes, largest: int, ended: bool) -> dict[str, Any]:
    """Return the reply in a stream, of which `ended` is as for `whole`. Raise `TransportFault` if
    it broke off."""
    reply = StreamedReply(largest)
    reply.feed(body)
    return reply.whole(ended)


def _joined(pieces: list[Any]) -> Any:
    """Return a text, or a list of parts if one of the pieces was a part."""
    if any(type(piece) is not str for piece in pieces):
        return [
            {"type": "text", "text": piece} if type(piece) is str else piece for piece in pieces
        ]
    text = "".join(pieces)
    if len(pieces) < MIN_REPEATS:
        return text
    # Some servers repeat in each delta all that came before: the last one is the text, if that is
    # JSON and the sum of all is none.
    repeats = all(later.startswith(earlier) for earlier, later in pairwise(pieces))
    if repeats and is_json(pieces[-1]) and not is_json(text):
        return pieces[-1]
    return text
