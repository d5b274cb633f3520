"""The viewer's server, safe on a machine that others use, too.

Only loopback is listened on. Another user of the machine can reach that, so all pages are below a
random path, and the printed address has a random token, which is exchanged for a cookie; without
these nothing is answered. Browsers send cookies to every port of a host: the cookie has that path,
so no other server gets it. Pages of other sites can send requests to loopback by the user's
browser: the cookie stays away from them (`SameSite`), the name of the host must be that of loopback
(DNS rebinding), and a browser that names another origin is refused. A policy lets pages load their
own files and nothing else. Only GET and HEAD are answered, and nothing is written.

Each connection has one request and a thread, for which the end of the process does not wait.
Connections that have shown no access are few and short, so they cannot keep others out.
"""

from __future__ import annotations

import errno
import hmac
import secrets
import socket
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from email.message import Message
from http.server import BaseHTTPRequestHandler
from importlib.resources import files
from socketserver import ThreadingTCPServer
from threading import Lock, Thread
from time import monotonic
from typing import Any
from urllib.parse import SplitResult, parse_qs, urlencode, urlsplit

from markupsafe import escape

from harness.commands.view.reading import Chosen, Folder
from harness.commands.view.site import NotThere, Site
from harness.errors import HarnessError, MachineError

HOST = "127.0.0.1"
NAMES = frozenset({HOST, "localhost"})
"""Names of this machine in requests, with any port: a tunnel from another machine has its own."""
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src data:; connect-src 'self';"
    " form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
HTML = "text/html; charset=utf-8"
TEXT = "text/plain; charset=utf-8"
COOKIE = "harness-view"
MAX_QUERY_CHARACTERS = 4096
"""Characters of a query."""
ENTRY_PAGE = (
    '<!doctype html><meta http-equiv="refresh" content="0;url=./"><a href="./">The runs</a>'
)
"""After the token: a redirect would be part of a navigation that another page may have begun,
without the cookie."""
MAX_STRANGERS = 64
"""Connections that have shown no access; of more the oldest are closed."""
STRANGER_SECONDS = 10.0
"""How long a connection may show no access."""
POLL_SECONDS = 0.1


ASSETS = {
    "page.css": ("harness.reporting", "text/css; charset=utf-8"),
    "page.js": ("harness.reporting", "text/javascript; charset=utf-8"),
    "view.css": ("harness.commands.view", "text/css; charset=utf-8"),
    "view.js": ("harness.commands.view", "text/javascript; charset=utf-8"),
}
"""The files that pages load: of each its package and type."""


def asset(name: str) -> bytes:
    return (files(ASSETS[name][0]) / "assets" / name).read_bytes()


def _secret() -> str:
    return secrets.token_urlsafe(24)


@dataclass(frozen=True, slots=True)
class Pass:
    """What a request must have: a `path` that no other server knows, and the `token` in the printed
    address, once, then the `cookie`."""

    path: str = field(default_factory=_secret, repr=False)
    token: str = field(default_factory=_secret, repr=False)
    cookie: str = field(default_factory=_secret, repr=False)

    def refused(self, headers: Message, address: SplitResult) -> str:
        """Return why a request is refused, empty if it is not."""
        host = headers.get("Host", "")
        origin = headers.get("Origin")
        if _host_name(host) not in NAMES:
            return "another host"
        if origin is not None and origin != f"http://{host}":
            return "another origin"
        if self.is_entering(address):
            return ""
        if headers.get("Sec-Fetch-Site", "none") not in ("none", "same-origin"):
            return "another site"
        if not (_same(address.path[: len(self.root)], self.root) and self._has_cookie(headers)):
            return "no access: open the address that `harness view` has printed"
        return ""

    def _has_cookie(self, headers: Message) -> bool:
        # Other servers of this host may have set some of the same name.
        cookies = headers.get("Cookie", "").split(";")
        return any(_same(cookie.strip(), f"{COOKIE}={self.cookie}") for cookie in cookies)

    @property
    def root(self) -> str:
        """Return how the paths of all pages begin."""
        return f"/{self.path}/"

    def is_entering(self, address: SplitResult) -> bool:
        [token] = parse_qs(address.query, max_num_fields=50).get("token", [""])[-1:]
        return _same(address.path, self.root) and _same(token, self.token)


def link(view: str, **arguments: object) -> str:
    """Return the address of a view on the server, from any other."""
    set_arguments = [(key, value) for key, value in arguments.items() if value not in (None, "")]
    query = urlencode(set_arguments, doseq=True)
    address = view or "./"
    if query:
        address += f"?{query}"
    return address


class _Server(ThreadingTCPServer):
    """Accepts connections, and closes those that show no access in time. Errors are no output of
    the command."""

    # The port is free again at once, and open connections do not hold up the end of the process.
    allow_reuse_address = daemon_threads = True
    request_queue_size = 128

    def __init__(self, site: Site, access: Pass, port: int) -> None:
        super().__init__((HOST, port), _PageRequest)
        self.site = site
        self.access = access
        self.turn = Lock()
        self.strangers: dict[Any, float] = {}
        """When each connection began that has shown no access."""

    def process_request(self, request: Any, client_address: object) -> None:
        self.strangers[request] = monotonic()
        super().process_request(request, client_address)

    def service_actions(self) -> None:
        strangers = list(self.strangers.items())
        surplus = len(strangers) - MAX_STRANGERS
        for number, (connection, began) in enumerate(strangers):
            if number < surplus or monotonic() - began > STRANGER_SECONDS:
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)  # its thread reads the end, and closes it

    def close_request(self, request: Any) -> None:
        self.strangers.pop(request, None)
        super().close_request(request)

    def handle_error(self, request: Any, client_address: object) -> None:
        with suppress(OSError):  # of a connection that has broken
            request.sendall(
                b"HTTP/1.0 500 Internal Server Error\r\n\r\nThis page cannot be made.\n"
            )


class _PageRequest(BaseHTTPRequestHandler):
    """Answers a request. Pages are made one at a time: what is read of a run is shared by all of
    them."""

    server: _Server
    timeout = 60.0

    def do_GET(self) -> None:
        try:
            address = urlsplit(self.path)
            why = self.server.access.refused(self.headers, address)
        except ValueError:
            why = "no address of a page"
        if why:
            self._answer(403, TEXT, f"{why}\n".encode())
            return
        self.server.strangers.pop(self.connection, None)
        if self.server.access.is_entering(address):
            self._answer(200, HTML, ENTRY_PAGE.encode(), entering=True)
            return
        view = address.path.removeprefix(self.server.access.root)
        if view in ASSETS:
            self._answer(200, ASSETS[view][1], asset(view))
            return
        self._answer(*self._page(view, address.query))

    do_HEAD = do_GET

    def _page(self, view: str, query: str) -> tuple[int, str, bytes]:
        """Return status, type and body of a view."""
        if len(query) > MAX_QUERY_CHARACTERS:
            return 414, TEXT, b"too long\n"
        # A comparison may take long, and reads for itself.
        turn = nullcontext() if view == "compare" else self.server.turn
        with turn:
            try:
                return 200, HTML, self.server.site.page(view, parse_qs(query, max_num_fields=50))
            except (NotThere, ValueError) as error:
                reason = str(error) if isinstance(error, NotThere) else ""
                return 404, HTML, _message("There is no such page.", reason)
            except HarnessError as error:
                return 500, HTML, _message("This page cannot be made.", str(error))

    def _answer(self, status: int, kind: str, body: bytes, *, entering: bool = False) -> None:
        access = self.server.access
        headers = {
            **HEADERS,
            "Content-Type": kind,
            "Content-Length": str(len(body)),
            "Allow": "GET, HEAD",
        }
        if entering:
            headers["Set-Cookie"] = (
                f"{COOKIE}={access.cookie}; Path={access.root}; HttpOnly; SameSite=Strict"
            )
        # `send_response` would add the versions of Python and of its server.
        self.send_response_only(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        if code in (405, 501):
            self._answer(405, TEXT, b"only GET and HEAD\n")
        else:
            self._answer(code, TEXT, b"no request of HTTP\n")

    # The library would print each address on stderr, the first one with its token.
    def log_message(self, format: str, *args: object) -> None:
        pass


def _message(title: str, detail: str) -> bytes:
    text = escape(f"{title} {detail}")
    page = f'<!doctype html><title>{escape(title)}</title><p>{text}</p><p><a href="./">Runs</a></p>'
    return page.encode("utf-8", "replace")


@contextmanager
def serving(chosen: Chosen, port: int = 0, access: Pass | None = None) -> Iterator[str]:
    """Serve a folder, and yield the address with its token. Raise `MachineError` for a port that
    cannot be had."""
    access = access or Pass()
    try:
        server = _Server(Site(Folder(chosen), link), access, port)
    except OSError as error:
        why = "another program has it" if error.errno == errno.EADDRINUSE else error.strerror
        raise MachineError(
            f"cannot serve on {HOST} port {port}: {why}: give another --port"
        ) from None
    Thread(target=server.serve_forever, args=(POLL_SECONDS,), daemon=True).start()
    try:
        query = urlencode({"token": access.token})
        yield f"http://{HOST}:{server.server_address[1]}{access.root}?{query}"
    finally:
        server.shutdown()
        server.server_close()


def _host_name(header: str) -> str:
    """Return the name in a Host header, empty for an odd one."""
    if "@" in header or "/" in header:
        return ""
    return urlsplit(f"//{header}").hostname or ""


def _same(received: str, expected: str) -> bool:
    # In a time that does not depend on how much of a secret is right.
    return hmac.compare_digest(received.encode("utf-8", "replace"), expected.encode())
