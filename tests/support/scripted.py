"""A scripted OpenAI-compatible server on loopback, for tests that look at a whole run from
outside."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from zlib import crc32

import orjson

from harness.benchmarks import registry

Script = Callable[[dict[str, Any]], tuple[int, bytes]]
"""From a request body to a status and a reply body."""


@dataclass
class Server:
    """`bodies`, `keys` and whole `heads` are what arrived, in order."""

    url: str
    script: Script
    bodies: list[bytes] = field(default_factory=list)
    keys: list[str | None] = field(default_factory=list)
    heads: list[str] = field(default_factory=list)


def answer(model: str, messages: Sequence[Mapping[str, Any]], seed: int) -> str:
    """The reply of a baseline."""
    return registry.baselines()[model](messages, seed)


def baseline(body: dict[str, Any]) -> tuple[int, bytes]:
    """Answers as `baseline/recency` does, whatever the model is called."""
    return 200, completion(answer("baseline/recency", body["messages"], 0))


def by_turns(*answerers: Mapping[str, Any]) -> Script:
    """Answers as `baseline` does, in the name of one of these; each request always has the same."""

    def script(body: dict[str, Any]) -> tuple[int, bytes]:
        status, reply = baseline(body)
        return status, orjson.dumps(orjson.loads(reply) | answerer_of(body, answerers))

    return script


def answerer_of(body: dict[str, Any], answerers: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    return answerers[crc32(orjson.dumps(body["messages"])) % len(answerers)]


def busy(_: dict[str, Any]) -> tuple[int, bytes]:
    """Nobody is served, and any request may have been billed: with `UNTIL_STOPPED` a run is soon
    left to be resumed."""
    return 503, b"{}"


UNTIL_STOPPED = ("--max-outage", "0.1")


def completion(text: str) -> bytes:
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": text},
        "finish_reason": "stop",
    }
    usage = {"prompt_tokens": 10, "completion_tokens": 5}
    return orjson.dumps({"model": "scripted", "choices": [choice], "usage": usage})


class PromptHandler(BaseHTTPRequestHandler):
    """HTTP/1.1 in silence, for well-formed requests: Python's own parser takes headers for those of
    an e-mail, which takes longer than most scripts do."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = (
        True  # a reply is two packets: the second would wait 40 ms for an acknowledgement
    )

    def parse_request(self) -> bool:
        self.command, self.path, self.request_version = self.raw_requestline.decode(
            "iso-8859-1"
        ).split()
        self.headers = Message()
        while line := self.rfile.readline().decode("iso-8859-1").rstrip("\r\n"):
            name, _, value = line.partition(":")
            self.headers[name] = value.strip()
        self.close_connection = self.headers["Connection"] == "close"
        return True

    def send_response(self, code: int, message: str | None = None) -> None:
        self.send_response_only(code, message)

    def log_message(self, format: str, *args: object) -> None:
        pass


class _PromptServer(ThreadingHTTPServer):
    daemon_threads = True
    # with 5, the default, some of a run's first connections are tried again after a second
    request_queue_size = 1024


@contextmanager
def listening(handler: type[BaseHTTPRequestHandler]) -> Iterator[int]:
    """Serve on a port of loopback, in a thread for each connection."""
    http = _PromptServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(
        target=http.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True
    )
    thread.start()
    try:
        yield http.server_port
    finally:
        http.shutdown()
        http.server_close()
        thread.join()


@contextmanager
def serving(script: Script) -> Iterator[Server]:
    class Handler(PromptHandler):
        wbufsize = -1  # a reply is one packet

        def do_POST(self) -> None:
            server.heads.append(
                "\n".join(
                    [self.path, *(f"{name}: {value}" for name, value in self.headers.items())]
                )
            )
            server.keys.append(self.headers.get("Authorization"))
            body = self.rfile.read(int(self.headers["Content-Length"]))
            server.bodies.append(body)
            status, content = server.script(orjson.loads(body))
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

    with listening(Handler) as port:
        server = Server(f"http://127.0.0.1:{port}/v1", script)
        yield server
