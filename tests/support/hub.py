"""A Hugging Face Hub on loopback: the parts of its API that downloads use, and faults on demand.

A commit is at `/api/datasets/{repository}/revision/{revision}`, its files are listed at
`.../tree/{commit}`, and are at `/datasets/{repository}/resolve/{revision}/{path}`. Files in LFS are
elsewhere, as with the real one: a redirect leads to a server of another port, which must not get
the token.
"""

from __future__ import annotations

import json
import socket
import threading
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from hashlib import sha1, sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from huggingface_hub import close_session

REPOSITORY = "someone/data"
LISTING = "listing"


@dataclass(frozen=True)
class Fault:
    """What happens to one answer. `cut` breaks the connection after so many bytes of the body, or
    keeps it open and silent there if it `stalls`; `flip` changes this byte; `length` is what is
    sent of a body, or what it is filled up to; `body` is another one; `status` refuses, with these
    `headers`."""

    cut: int | None = None
    stalls: bool = False
    flip: int | None = None
    length: int | None = None
    body: bytes | None = None
    status: int | None = None
    headers: Mapping[str, str] = field(default_factory=dict)

    def spoilt(self, body: bytes) -> bytes:
        body = body if self.body is None else self.body
        body = body[: self.length].ljust(self.length or 0, b"+")
        if self.flip is not None:
            body = body[: self.flip] + bytes([body[self.flip] ^ 1]) + body[self.flip + 1 :]
        return body


@dataclass(frozen=True)
class Asked:
    """A request: for a file's path or the `LISTING`, with which token, at which of the servers."""

    what: str
    token: str | None
    elsewhere: bool = False


@dataclass
class HubServer:
    """Files are in LFS if their path ends in one of `lfs`. `faults` are taken one by one, by path
    or `LISTING`.

    `aliases` are other data sets with the same files. With a `token` the data set is private.
    `ranges` says whether parts of files are served.
    """

    repository: str = REPOSITORY
    aliases: tuple[str, ...] = ()
    lfs: tuple[str, ...] = (".jsonl", ".pb")
    token: str | None = None
    gated: bool = False
    ranges: bool = True
    refs: dict[str, str] = field(default_factory=dict)
    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)
    faults: dict[str, list[Fault]] = field(default_factory=lambda: defaultdict(list))
    asked: list[Asked] = field(default_factory=list)
    released: threading.Event = field(default_factory=threading.Event)
    stalled: threading.Event = field(default_factory=threading.Event)
    url: str = ""
    elsewhere: str = ""

    def commit(self, files: Mapping[str, bytes]) -> str:
        """Add a commit with these files, which becomes the main branch."""
        name = sha1(repr(sorted(files.items())).encode()).hexdigest()
        self.commits[name] = dict(files)
        self.refs["main"] = name
        return name

    def downloads(self) -> list[Asked]:
        """Return the requests for contents of files."""
        return [
            one
            for one in self.asked
            if one.what != LISTING and (one.elsewhere or not self.in_lfs(one.what))
        ]

    def in_lfs(self, path: str) -> bool:
        return path.endswith(self.lfs)

    def info(self, commit: str) -> dict[str, Any]:
        files = [{"rfilename": path} for path in self.commits[commit]]
        return {
            "id": self.repository,
            "sha": commit,
            "private": self.token is not None,
            "siblings": files,
        }

    def tree(self, commit: str) -> list[dict[str, Any]]:
        folder = {"type": "directory", "path": "data", "oid": "0" * 40, "size": 0}
        return [folder, *(self._entry(path, body) for path, body in self.commits[commit].items())]

    def _entry(self, path: str, body: bytes) -> dict[str, Any]:
        size = len(body)
        entry = {"type": "file", "path": path, "size": size}
        if not self.in_lfs(path):
            return entry | {"oid": blob(body)}
        digest = sha256(body).hexdigest()
        return entry | {
            "oid": blob(digest.encode()),
            "lfs": {"oid": digest, "size": size, "pointerSize": 134},
        }


def named(files: Iterable[str], name: str) -> str:
    """Return the file of a data set that a name below the tasks folder means: the last parts of
    both are the same."""
    return next(path for path in files if PurePosixPath(path).name == PurePosixPath(name).name)


def blob(body: bytes) -> str:
    return sha1(b"blob %d\0" % len(body) + body).hexdigest()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    hub: HubServer

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        words = [unquote(word) for word in urlsplit(self.path).path.split("/")[1:]]
        token = (self.headers.get("Authorization") or "").removeprefix("Bearer ") or None
        if words[0] == "elsewhere":
            what = "/".join(words[2:])
            self._note(what, token, elsewhere=True)
            self._send_file(what, self.hub.commits[words[1]][what])
        elif words[:2] == ["api", "datasets"] and words[4:5] == ["revision"]:
            self._note(LISTING, token)
            if commit := self._allowed("/".join(words[2:4]), words[5], token):
                self._send(
                    LISTING,
                    200,
                    json.dumps(self.hub.info(commit)).encode(),
                    {"X-Repo-Commit": commit},
                )
        elif words[:2] == ["api", "datasets"] and words[4:5] == ["tree"]:
            self._note(LISTING, token)
            if commit := self._allowed("/".join(words[2:4]), words[5], token):
                self._send(LISTING, 200, json.dumps(self.hub.tree(commit)).encode(), {})
        elif words[0] == "datasets" and words[3] == "resolve":
            what = "/".join(words[5:])
            self._note(what, token)
            if commit := self._allowed("/".join(words[1:3]), words[4], token):
                self._resolve(commit, what)
        else:
            self._refuse(404, "")

    def _note(self, what: str, token: str | None, elsewhere: bool = False) -> None:
        if self.command == "GET":
            self.hub.asked.append(Asked(what, token, elsewhere))

    def _start(self) -> int:
        return int(self.headers.get("Range", "bytes=0-").removeprefix("bytes=").removesuffix("-"))

    def _allowed(self, repository: str, revision: str, token: str | None) -> str | None:
        """Return the commit, or refuse as the real hub does, which does not say what exists without
        a token."""
        hub = self.hub
        if token is not None and hub.token is not None and token != hub.token:
            self._refuse(401, "", "Invalid credentials in Authorization header")
        elif repository not in (hub.repository, *hub.aliases) or (
            hub.token is not None and token is None
        ):
            self._refuse(404 if token else 401, "RepoNotFound" if token else "")
        elif hub.gated:
            self._refuse(403, "GatedRepo")
        elif (commit := hub.refs.get(revision, revision)) not in hub.commits:
            self._refuse(404, "RevisionNotFound")
        else:
            return commit
        return None

    def _resolve(self, commit: str, what: str) -> None:
        body = self.hub.commits[commit].get(what)
        if body is None:
            self._refuse(404, "EntryNotFound")
        elif self.hub.in_lfs(what):
            headers = {
                "X-Linked-Etag": f'"{sha256(body).hexdigest()}"',
                "X-Linked-Size": str(len(body)),
            }
            headers |= {
                "X-Repo-Commit": commit,
                "Location": f"{self.hub.elsewhere}/elsewhere/{commit}/{quote(what)}",
            }
            self._send("", 302, b"", headers)
        else:
            self._send_file(what, body, {"ETag": f'"{blob(body)}"', "X-Repo-Commit": commit})

    def _send_file(self, what: str, body: bytes, headers: Mapping[str, str] | None = None) -> None:
        start, whole = self._start(), len(body)
        if not start or not self.hub.ranges:
            self._send(what, 200, body, {"Accept-Ranges": "bytes", **(headers or {})})
        elif start >= whole:
            self._send("", 416, b"", {"Content-Range": f"bytes */{whole}"})
        else:
            part = {"Content-Range": f"bytes {start}-{whole - 1}/{whole}", **(headers or {})}
            self._send(what, 206, body[start:], part)

    def _refuse(self, status: int, code: str, words: str = "") -> None:
        headers = {"X-Error-Code": code} if code else {}
        self._send(
            "",
            status,
            b'{"error": "refused"}',
            headers | ({"X-Error-Message": words} if words else {}),
        )

    def _send(self, what: str, status: int, body: bytes, headers: Mapping[str, str]) -> None:
        fault = (
            self.hub.faults[what].pop(0)
            if self.command == "GET" and self.hub.faults.get(what)
            else Fault()
        )
        if fault.status is not None:
            status, body, headers = fault.status, b"", fault.headers
        body = fault.spoilt(body)
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        with suppress(ConnectionError):
            self.wfile.write(b"" if self.command == "HEAD" else body[: fault.cut])
        if fault.stalls:
            self.hub.stalled.set()
            self.hub.released.wait()
        if fault.cut is not None:
            self.close_connection = True
            with suppress(OSError):
                self.connection.shutdown(socket.SHUT_RDWR)


@contextmanager
def serving_hub(hub: HubServer) -> Iterator[HubServer]:
    """Serve a hub at `hub.url` while the block runs."""
    handler = type("Handler", (_Handler,), {"hub": hub})
    servers = [ThreadingHTTPServer(("127.0.0.1", 0), handler) for _ in range(2)]
    hub.url, hub.elsewhere = (f"http://127.0.0.1:{server.server_port}" for server in servers)
    for server in servers:
        threading.Thread(target=server.serve_forever, args=(0.005,), daemon=True).start()
    try:
        yield hub
    finally:
        hub.released.set()
        close_session()  # its idle connections
        for server in servers:
            server.shutdown()
            server.server_close()
