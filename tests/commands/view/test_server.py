"""The viewer's server: who gets an answer, and what the answers allow a browser to do."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from types import MappingProxyType
from urllib.parse import urlsplit

import aiohttp
import anyio.to_thread
import pytest

from harness.cli import main
from harness.commands.view.reading import Chosen
from harness.commands.view.server import POLICY, Pass, serving
from harness.errors import MachineError
from tests.support import malformed

pytestmark = pytest.mark.anyio
PASS = Pass("the-path", "the-token", "the-cookie")
NONE: Mapping[str, str] = MappingProxyType({})


class Asked:
    """Sends requests to a server as a browser with the cookie does."""

    def __init__(self, address: str, session: aiohttp.ClientSession) -> None:
        self.port = urlsplit(address).port
        self.origin = f"http://127.0.0.1:{self.port}"
        self.root = f"{self.origin}/the-path"
        self._session = session

    async def __call__(
        self,
        path: str,
        headers: Mapping[str, str] = NONE,
        *,
        method: str = "GET",
        cookie: str | None = PASS.cookie,
        root: str | None = None,
    ) -> aiohttp.ClientResponse:
        more = {"Cookie": f"harness-view={cookie}"} if cookie is not None else {}
        address = (self.root if root is None else self.origin + root) + path
        async with self._session.request(method, address, headers={**headers, **more}) as response:
            await response.read()
            return response


@asynccontextmanager
async def asking(results: Path) -> AsyncIterator[Asked]:
    with serving(Chosen(results), access=PASS) as address:
        async with aiohttp.ClientSession() as session:
            yield Asked(address, session)


async def test_token_is_exchanged_for_a_cookie_that_scripts_and_other_sites_do_not_get(
    played,
):
    async with asking(played) as ask:
        entered = await ask("/?token=the-token", cookie=None)
        [cookie] = entered.headers.getall("Set-Cookie")
        assert entered.status == 200 and "the-cookie" in cookie
        assert {"HttpOnly", "SameSite=Strict", "Path=/the-path/"} <= set(cookie.split("; "))
        assert (await ask("/")).status == 200


OUTSIDE = (
    "/",
    "/?token=",
    "/?token=other",
    "/view.js",
    "/run?name=recency&subset=weibo&token=the-token",
)


@pytest.mark.parametrize("path", OUTSIDE)
async def test_without_token_or_cookie_nothing_is_answered(played, path):
    async with asking(played) as ask:
        for cookie in (None, "", "the-token", "other"):
            assert (await ask(path, cookie=cookie)).status == 403
        for root in ("", "/", "/another-path", "/the-cookie", "/the-pat"):
            assert (await ask(path, root=root)).status == 403


REFUSED = (
    {"Host": "attacker.example"},
    {"Host": "attacker.example:80"},
    {"Host": "127.0.0.1.attacker.example"},
    {"Host": "localhost@attacker.example"},
    {"Host": "[::1"},
    {"Origin": "http://attacker.example"},
    {"Origin": "null"},
    {"Origin": "http://127.0.0.1:1"},
    {"Sec-Fetch-Site": "cross-site"},
    {"Sec-Fetch-Site": "same-site"},
)


@pytest.mark.parametrize("headers", REFUSED)
async def test_other_hosts_origins_and_sites_are_refused_with_the_cookie_too(played, headers):
    async with asking(played) as ask:
        assert (await ask("/", headers)).status == 403


async def test_own_page_and_a_tunnel_are_answered(played):
    """A tunnel has a port of its own on the other machine."""
    async with asking(played) as ask:
        assert (
            await ask("/", {"Origin": ask.origin, "Sec-Fetch-Site": "same-origin"})
        ).status == 200
        assert (
            await ask("/", {"Host": "localhost:9999", "Origin": "http://localhost:9999"})
        ).status == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE"])
async def test_only_get_and_head_are_answered(played, method):
    async with asking(played) as ask:
        assert (await ask("/", method=method)).status == 405
        assert (await ask("/", method="HEAD")).status == 200


ADDRESSES = (
    "/",
    "/run?name=recency&subset=weibo",
    "/no-such",
    "/view.css",
    "/user?name=%00",
    "/?" + "x" * 5000,
)


@pytest.mark.parametrize("path", ADDRESSES)
async def test_every_answer_forbids_what_the_viewer_does_not_need(played, path):
    """Errors, too: scripts in the page, other sites, frames, guessed types, copies in a cache."""
    async with asking(played) as ask:
        for answer in (await ask(path), await ask(path, cookie=None)):
            headers = answer.headers
            assert headers["Content-Security-Policy"] == POLICY and "unsafe" not in POLICY
            assert (
                headers["X-Content-Type-Options"] == "nosniff"
                and headers["Cache-Control"] == "no-store"
            )
            assert (
                headers["Referrer-Policy"] == "no-referrer"
                and "Access-Control-Allow-Origin" not in headers
            )


async def test_only_loopback_is_listened_on(played):
    async with asking(played) as ask:
        with pytest.raises(OSError), socket.socket() as elsewhere:
            elsewhere.connect(("127.0.0.2", ask.port))


async def test_malformed_requests_print_nothing_and_stop_nothing(played, capfd, caplog):
    async with asking(played) as ask:
        assert ask.port is not None
        await anyio.to_thread.run_sync(malformed.send_all, ask.port)
        assert (await ask("/")).status == 200
    assert capfd.readouterr() == ("", "") and caplog.records == []


async def test_port_that_another_program_has_is_one_sentence(played):
    async with asking(played) as ask:
        assert ask.port is not None
        with pytest.raises(MachineError, match="another --port"), serving(Chosen(played), ask.port):
            pass


async def test_tokens_are_never_the_same():
    assert len({of for one in (Pass(), Pass()) for of in (one.path, one.token, one.cookie)}) == 6
    assert min(map(len, (Pass().path, Pass().token, Pass().cookie))) >= 32
    assert "the-" not in repr(PASS)


async def test_folder_that_is_not_there_is_refused(tmp_path):
    assert main(["view", "--results-dir", str(tmp_path / "none")]) == 2
