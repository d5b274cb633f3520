"""A headless Chromium, driven over its own debugging protocol: what a page shows, says and asks
for."""

from __future__ import annotations

import asyncio
import itertools
import shutil
import subprocess
import tempfile
from base64 import b64decode
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import aiohttp

from tests.support.processes import wait_for

PROGRAM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-dev-shm-usage",
    "--disable-quic",
    "--disable-sync",
    "--no-first-run",
    "--remote-debugging-port=0",
)
PATIENCE = 30.0


class Tab:
    """One page. `asked` are the addresses that it requested, `said` its errors, warnings and
    breaches of its policy."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self.asked: list[str] = []
        self.said: list[str] = []
        self._socket = socket
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._loaded = asyncio.Event()

    async def listen(self) -> None:
        async for message in self._socket:
            data = message.json()
            if "id" in data:
                self._waiting.pop(data["id"]).set_result(data)
            else:
                self._heard(data["method"], data["params"])

    def _heard(self, method: str, about: Any) -> None:
        if method == "Network.requestWillBeSent":
            self.asked.append(about["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            self.said.append(str(about["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled" and about["type"] in (
            "error",
            "warning",
            "assert",
        ):
            self.said.append(str(about["args"]))
        elif method == "Log.entryAdded" and about["entry"]["level"] in ("error", "warning"):
            self.said.append(about["entry"]["text"])
        elif method == "Page.loadEventFired":
            self._loaded.set()

    async def do(self, method: str, **given: Any) -> Any:
        number = next(self._numbers)
        self._waiting[number] = done = asyncio.get_running_loop().create_future()
        await self._socket.send_json({"id": number, "method": method, "params": given})
        answer = await asyncio.wait_for(done, PATIENCE)
        assert "error" not in answer, answer
        return answer["result"]

    async def open(
        self,
        path: Path,
        *,
        width: int = 1280,
        height: int = 900,
        dark: bool = False,
        ready: bool = True,
    ) -> None:
        """Load a page, and wait until it is drawn if it is to be `ready`: without scripts it never
        reports that."""
        for domain in ("Page", "Network", "Runtime", "Log"):
            await self.do(f"{domain}.enable")
        await self.do("Page.bringToFront")
        await self.resize(width, height)
        scheme = "dark" if dark else "light"
        await self.do(
            "Emulation.setEmulatedMedia",
            features=[{"name": "prefers-color-scheme", "value": scheme}],
        )
        self._loaded.clear()
        await self.do("Page.navigate", url=path.as_uri())
        await asyncio.wait_for(self._loaded.wait(), PATIENCE)
        if ready:
            await self.settled()

    async def resize(self, width: int, height: int) -> None:
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        await self.do("Emulation.setDeviceMetricsOverride", **size)

    async def settled(self) -> None:
        """Waits for two frames: what observers of sizes draw is drawn by then."""
        await self.tell(
            "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() =>"
            " done(1))))"
        )

    async def tell(self, expression: str) -> Any:
        """The value of an expression in the page."""
        found = await self.do(
            "Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    async def printed(self) -> bytes:
        """A PDF."""
        return b64decode(
            (await self.do("Page.printToPDF", preferCSSPageSize=True, printBackground=False))[
                "data"
            ]
        )


@contextmanager
def browser() -> Iterator[str]:
    """Start a browser, and return the address of its debugging protocol."""
    assert PROGRAM is not None
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as home:
        quiet, port = subprocess.DEVNULL, Path(home) / "DevToolsActivePort"
        command = (PROGRAM, *FLAGS, f"--user-data-dir={home}", "about:blank")
        with subprocess.Popen(command, stdout=quiet, stderr=quiet) as process:
            try:
                lines = wait_for(lambda: port.exists() and port.read_text().splitlines())
                assert lines
                yield f"http://127.0.0.1:{lines[0]}/json"
            finally:
                process.terminate()


@asynccontextmanager
async def tab(browser: str) -> AsyncIterator[Tab]:
    """Open a tab of a browser, and close it."""
    async with aiohttp.ClientSession() as session:
        async with session.put(f"{browser}/new?about:blank") as answer:
            found = await answer.json(content_type=None)
        async with session.ws_connect(found["webSocketDebuggerUrl"], max_msg_size=0) as socket:
            made = Tab(socket)
            listening = asyncio.create_task(made.listen())
            yield made
            listening.cancel()
        async with session.get(f"{browser}/close/{found['id']}"):
            pass
