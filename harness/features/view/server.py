"""The viewer's server, safe on a machine that others use, too.

Only loopback is listened on. Another user of the machine can reach that, so the printed address has a random token,
which is exchanged for a cookie; without either nothing is answered. Pages of other sites can send requests to loopback
by the user's browser: the cookie stays away from them (`SameSite`), the name of the host must be that of loopback (DNS
rebinding), and a browser that names another origin is refused. A policy lets pages load their own files and nothing
else. Only GET and HEAD are answered, and nothing is written.
"""

from __future__ import annotations

import asyncio
import errno
import hmac
import logging
import secrets
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

from aiohttp import web

from harness.errors import HarnessError, MachineError
from harness.features.view.reading import Chosen, Folder
from harness.features.view.site import NotThere, Site

HOST = "127.0.0.1"
NAMES = frozenset({HOST, "localhost"})
"""Names of this machine in requests, with any port: a tunnel from another machine has its own."""
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src data:; connect-src 'self'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'"
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
QUERY_MOST = 4096
"""Characters of a query."""
ENTERED = '<!doctype html><meta http-equiv="refresh" content="0;url=/"><a href="/">The runs</a>'
"""After the token: a redirect would be part of a navigation that another page may have begun, without the cookie."""


ASSETS = {
    "page.css": ("harness.features.documents", "text/css; charset=utf-8"),
    "view.css": ("harness.features.view", "text/css; charset=utf-8"),
    "view.js": ("harness.features.view", "text/javascript; charset=utf-8"),
}
"""The files that pages load: of each its package and type."""


def asset(name: str) -> bytes:
    return (files(ASSETS[name][0]) / "assets" / name).read_bytes()


@dataclass(frozen=True, slots=True)
class Pass:
    """What a request must have: the `token` in the printed address, once, then the cookie."""

    token: str = field(default_factory=lambda: secrets.token_urlsafe(24), repr=False)
    cookie: str = field(default_factory=lambda: secrets.token_urlsafe(24), repr=False)

    def refused(self, request: web.BaseRequest, name: str) -> str:
        """Return why a request is refused, empty if it is not; `name` is that of the cookie."""
        if request.method not in ("GET", "HEAD"):
            return "only GET and HEAD"
        if _host(request.headers.get("Host", "")) not in NAMES:
            return "another host"
        origin = request.headers.get("Origin")
        if origin is not None and origin != f"http://{request.headers['Host']}":
            return "another origin"
        if self.is_entering(request):
            return ""
        if request.headers.get("Sec-Fetch-Site", "none") not in ("none", "same-origin"):
            return "another site"
        if not _same(request.cookies.get(name, ""), self.cookie):
            return "no access: open the address that `harness view` has printed"
        return ""

    def is_entering(self, request: web.BaseRequest) -> bool:
        return request.path == "/" and _same(request.query.get("token", ""), self.token)


def link(view: str, **arguments: Any) -> str:
    """Return the address of a view on the server."""
    query = urlencode({key: value for key, value in arguments.items() if value not in (None, "")}, doseq=True)
    return f"/{view}{'?' if query else ''}{query}"


class _App:
    """Answers requests. Pages are made one at a time, in a thread: what is read of a run is shared by all of them."""

    def __init__(self, site: Site, access: Pass) -> None:
        self._site, self._pass = site, access
        self._turn = asyncio.Lock()
        self.cookie = "harness-view"

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        if why := self._pass.refused(request, self.cookie):
            status = 405 if why.startswith("only") else 403
            return web.Response(status=status, text=f"{why}\n", headers={**HEADERS, "Allow": "GET, HEAD"})
        if self._pass.is_entering(request):
            entered = web.Response(body=ENTERED.encode(), headers={**HEADERS, "Content-Type": HTML})
            entered.set_cookie(self.cookie, self._pass.cookie, path="/", httponly=True, samesite="Strict")
            return entered
        view = request.path.removeprefix("/")
        if view in ASSETS:
            return web.Response(body=asset(view), headers={**HEADERS, "Content-Type": ASSETS[view][1]})
        status, body = await self._made(view, request.query_string)
        return web.Response(status=status, body=body, headers={**HEADERS, "Content-Type": HTML})

    async def _made(self, view: str, query: str) -> tuple[int, bytes]:
        if len(query) > QUERY_MOST:
            return 414, b"too long\n"
        async with nullcontext() if view == "compare" else self._turn:  # which may take long, and reads for itself
            try:
                return 200, await asyncio.to_thread(self._site.page, view, parse_qs(query, max_num_fields=50))
            except (NotThere, ValueError) as error:
                return 404, _message("There is no such page.", str(error) if isinstance(error, NotThere) else "")
            except HarnessError as error:
                return 500, _message("This page cannot be made.", str(error))


def _message(title: str, more: str) -> bytes:
    from markupsafe import escape

    page = (
        f'<!doctype html><title>{escape(title)}</title><p>{escape(title)} {escape(more)}</p><p><a href="/">Runs</a></p>'
    )
    return page.encode("utf-8", "replace")


@asynccontextmanager
async def serving(chosen: Chosen, port: int = 0, access: Pass | None = None) -> AsyncIterator[str]:
    """Serve a folder, and yield the address with its token. Raise `MachineError` for a port that cannot be had."""
    access = access or Pass()
    async with AsyncExitStack() as held:
        app = _App(Site(Folder(chosen), link), access)
        server = web.Server(app.answer, access_log=None, logger=logging.Logger("harness.view", logging.CRITICAL))
        runner = web.ServerRunner(server)
        await runner.setup()
        held.push_async_callback(runner.cleanup)
        try:
            await web.TCPSite(runner, HOST, port).start()
        except OSError as error:
            why = "another program has it" if error.errno == errno.EADDRINUSE else error.strerror
            raise MachineError(f"cannot serve on {HOST} port {port}: {why}: give another --port") from None
        number = runner.addresses[0][1]
        app.cookie = f"harness-view-{number}"  # cookies are shared by all ports of a host
        yield f"http://{HOST}:{number}/?{urlencode({'token': access.token})}"


def _host(header: str) -> str:
    """Return the name in a Host header, empty for an odd one."""
    try:
        return urlsplit(f"//{header}").hostname or "" if "@" not in header and "/" not in header else ""
    except ValueError:
        return ""


def _same(given: str, right: str) -> bool:
    return hmac.compare_digest(given.encode("utf-8", "replace"), right.encode())
