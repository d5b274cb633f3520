"""A streamed reply, put together into the object that it would have been whole. Pure and synchronous.

Blocks of bytes end anywhere. `Events` finds the server-sent events in them (https://html.spec.whatwg.org/, section
"Server-sent events"), `StreamedReply` merges their chunks, so that `replies` judges both kinds of reply. It also reads
what some servers send outside the standard:

- llama.cpp sent an error as a field of its own, `error: {...}` (its pull request 16109), and ends without a blank line;
- vLLM's `{"object": "error", "message": ...}` has no member `error`; its usage may come with no `choices`;
- some send a whole `message` at the end, after all the deltas, or usage within the choice.
"""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import orjson

from harness.endpoint.replies import NO_WORDS, decoded, is_first, without_half_pairs
from harness.errors import TransportFault

BYTE_ORDER_MARK = b"\xef\xbb\xbf"
DONE = b"[DONE]"
JSON_BLANKS = b" \t\r\n"
TEXTS = ("content", "reasoning_content", "reasoning", "refusal")
"""Members of a message that come in pieces."""

Event = tuple[bytes, bytes]
"""Name (empty if there is none) and data of one event."""


class Events:
    """The events of a stream. Bytes without a line end yet are kept in pieces and joined once, however many."""

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
        """Return what the end of the body completes: servers omit the last blank line, or even the line's end."""
        rest = b"".join(self._pieces)
        self._pieces = []
        return self._events([rest, b""] if rest else [b""])

    def _events(self, lines: list[bytes]) -> list[Event]:
        if not self._begun:
            self._begun = True
            lines[0] = lines[0].removeprefix(BYTE_ORDER_MARK)
        found: list[Event] = []
        for line in lines:
            if not line:
                if self._data:
                    found.append((self._name, b"\n".join(self._data)))
                    self._data = []
                self._name = b""
            elif line.startswith(b"data:"):
                self._data.append(line[6:] if line[5:6] == b" " else line[5:])
            elif line.startswith(b"event:"):
                self._name = line[6:].strip()
            elif line.startswith(b"error:"):
                self._name = b"error"
                self._data.append(line[6:])
        return found


class StreamedReply:
    """One reply as it arrives. Raise `TransportFault` beyond `largest` bytes, and for data that is not JSON.

    `done`: nothing that follows matters. `speaks`: a piece of text or thought has come.
    """

    def __init__(self, largest: int) -> None:
        self.done = False
        self.speaks = False
        self._largest = largest
        self._size = 0
        self._events = Events()
        self._pieces: dict[str, list[Any]] = {}
        self._calls: dict[Any, list[str]] = {}
        self._rest: dict[str, Any] = {}
        self._error: Any = None
        self._model: str | None = None
        self._usage: dict[str, Any] | None = None
        self._finish_reason: Any = None
        self._has_choice = False
        self._has_halves = False
        self._begun = False
        self._plain: list[bytes] | None = None

    @property
    def finished(self) -> bool:
        """Whether a finish_reason has come: the answer is whole then, whatever becomes of the rest of the stream.

        The end of the stream is weaker evidence: relays end every stream alike, also one that broke off behind them.
        """
        return self._finish_reason is not None

    def feed(self, block: bytes) -> None:
        self._size += len(block)
        if self._size > self._largest:
            raise TransportFault("too_large", f"the reply is longer than {self._largest >> 20} MB")
        if not self._begun and (text := block.lstrip(JSON_BLANKS)):
            self._begun = True
            self._plain = [] if text.startswith(b"{") else None  # a whole reply under the type of a stream
        if self._plain is not None:
            self._plain.append(block)
            return
        for name, data in self._events.feed(block):
            self._take(name, data)

    def whole(self) -> dict[str, Any]:
        """Return the reply after its last byte (or after `done`), in the form of one that came whole.

        Raise `TransportFault` if it broke off.
        """
        if self._plain is not None:
            if (data := decoded(b"".join(self._plain))) is None:
                raise TransportFault("bad_json", "the reply is not whole JSON")
            return data
        if not self.done:
            with suppress(TransportFault):  # half an event: whether the reply is whole without it is checked below
                for name, event in self._events.end():
                    self._take(name, event)
        if self._error is not None:
            return self._writable({"error": self._error})
        judged_elsewhere = not self._has_choice and (self._rest or self.done)
        if not (self.finished or judged_elsewhere):
            raise TransportFault("truncated", "the stream broke off")
        found = {**self._rest, "model": self._model, "usage": self._usage}
        if self._has_choice:
            message = {name: _joined(pieces) for name, pieces in self._pieces.items()}
            if self._calls:
                calls = [{"function": {"arguments": "".join(pieces)}} for pieces in self._calls.values()]
                message["tool_calls"] = calls
            found["choices"] = [{"message": message, "finish_reason": self._finish_reason}]
        return self._writable(found)

    def _writable(self, found: dict[str, Any]) -> dict[str, Any]:
        """Join the halves of surrogate pairs that chunks had cut apart; replace a half alone, which no file holds."""
        if not self._has_halves:
            return found
        whole: dict[str, Any] = json.loads(json.dumps(found), object_pairs_hook=without_half_pairs)
        return whole

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
        """Take the end, several events without a blank line, an error in plain words, or JSON that orjson refuses.

        A bare NaN, half a surrogate pair, and bytes that are not UTF-8 do no harm.
        """
        if data.strip() == DONE:
            self.done = True
        elif name == b"error":
            self._fail(data.decode("utf-8", "replace"))
        elif b"\n" in data:
            for line in data.split(b"\n"):
                self._take(name, line)
        else:
            self._has_halves = True
            try:
                chunk = json.loads(data.decode("utf-8", "replace"), strict=False)
            except (ValueError, RecursionError):
                raise TransportFault("bad_json", "the stream has data in it that is not JSON") from None
            if type(chunk) is dict:
                self._merge(chunk)

    def _fail(self, error: Any) -> None:
        self.done = True
        if not self.finished:
            self._error = ((error.get("error") or error) if type(error) is dict else error) or NO_WORDS

    def _merge(self, chunk: dict[str, Any]) -> None:
        if chunk.get("error"):
            self._fail(chunk)
            return
        if self._model is None:
            self._model = chunk.get("model") or None
        usage, choices = chunk.get("usage"), chunk.get("choices")
        if type(usage) is dict:
            self._usage = usage
        if type(choices) is list:
            for choice in choices:
                if is_first(choice):
                    self._merge_choice(choice)
        elif chunk.get("object") == "error" or (type(chunk.get("message")) is str and chunk["message"]):
            self._fail(chunk)
        else:
            self._rest |= chunk

    def _merge_choice(self, choice: dict[str, Any]) -> None:
        self._has_choice = True
        delta = choice.get("delta")
        if type(delta) is dict:
            self._add(delta)
        elif type(message := choice.get("message")) is dict:
            self._pieces, self._calls = {}, {}
            self._add(message)
        if choice.get("error"):
            self._fail(choice)
        elif reason := choice.get("finish_reason"):
            self._finish_reason = reason
            if type(usage := choice.get("usage")) is dict:
                self._usage = usage

    def _add_calls(self, calls: Any) -> None:
        """Add pieces of the arguments of tool calls, each by the index of its call."""
        for place, call in enumerate(calls if type(calls) is list else ()):
            function = call.get("function") if type(call) is dict else None
            piece = function.get("arguments") if type(function) is dict else None
            if type(piece) is str:
                index = call.get("index", place)
                self._calls.setdefault(index if type(index) is int else place, []).append(piece)

    def _add(self, delta: dict[str, Any]) -> None:
        if calls := delta.get("tool_calls"):
            self._add_calls(calls)
        for name in TEXTS:
            piece = delta.get(name)
            if piece and (type(piece) is str or type(piece) is list):
                self.speaks = True
                pieces = self._pieces.setdefault(name, [])
                if type(piece) is str:
                    pieces.append(piece)
                else:
                    pieces.extend(piece)


def looks_streamed(body: bytes) -> bool:
    """Return whether a body is a stream, whatever its type: servers name the type wrongly, and no JSON begins so."""
    return body[:64].lstrip().startswith((b"data:", b"event:", b":"))


def whole_stream(body: bytes, largest: int) -> dict[str, Any]:
    """Return the reply in a stream that has come to its end. Raise `TransportFault` if it broke off."""
    reply = StreamedReply(largest)
    reply.feed(body)
    return reply.whole()


def _joined(pieces: list[Any]) -> Any:
    """Return a text, or a list of parts if one of the pieces was a part."""
    if all(type(piece) is str for piece in pieces):
        return "".join(pieces)
    return [{"type": "text", "text": piece} if type(piece) is str else piece for piece in pieces]
