"""The viewer in a real browser: every view draws, runs nothing of a folder, and moves while a run
is played."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

import orjson
import pytest

from harness.commands.view.reading import Chosen
from harness.commands.view.server import link, serving
from harness.store.log import encode_line, objects
from tests.commands.view.test_site import HOSTILE, RUNS, users
from tests.support import SHIPPED
from tests.support.chromium import PROGRAM, Tab, browser, tab
from tests.support.processes import wait_for
from tests.support.scripted import baseline
from tests.support.scripted import serving as endpoint

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(PROGRAM is None, reason="there is no Chromium here"),
]

T = TypeVar("T")
TOO_WIDE = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
TEXT = "document.body.innerText"
FOCUSED = "document.activeElement.textContent"
SIZE = "new Blob([document.documentElement.outerHTML]).size"
TIMEOUT = 60.0


class Window:
    """A tab on a viewer."""

    def __init__(self, opened: Tab, root: str) -> None:
        self.tab, self._root = opened, root

    async def go(self, address: str, *, width: int = 1280, dark: bool = False) -> None:
        """Load a page, and check that it fits and that nothing but the viewer was asked."""
        await self.tab.resize(width, 900)
        scheme = "dark" if dark else "light"
        await self.tab.do(
            "Emulation.setEmulatedMedia",
            features=[{"name": "prefers-color-scheme", "value": scheme}],
        )
        self.tab._loaded.clear()
        await self.tab.do("Page.navigate", url=self._root + address)
        await asyncio.wait_for(self.tab._loaded.wait(), TIMEOUT)
        assert await self.tab.tell(TOO_WIDE) <= 0, (address, width)
        assert await self.tab.tell(SIZE) < 200_000

    async def shows(self, expression: str) -> Any:
        """Wait until an expression is true in the page."""
        async with asyncio.timeout(TIMEOUT):
            ready = f"document.readyState === 'complete' && ({expression})"
            while not (found := await self.tab.tell(ready)):  # noqa: ASYNC110  # a page that is left forgets its promises
                await asyncio.sleep(0.05)
        return found

    async def press(self, key: str) -> None:
        text = {"text": key} if len(key) == 1 else {"text": "\r"} if key == "Enter" else {}
        for kind in ("keyDown", "keyUp"):
            await self.tab.do(
                "Input.dispatchKeyEvent", type=kind, key=key, **(text if kind == "keyDown" else {})
            )


def looked(results: Path, work: Callable[[Window], Awaitable[T]], *, posts: bool = False) -> T:
    """Return what `work` makes of a window on a folder, in which nothing went wrong and nothing
    else was asked."""

    async def within(address: str) -> T:
        with serving(Chosen(results, posts)) as entrance:
            return await within_a_tab(address, entrance)

    async def within_a_tab(address: str, entrance: str) -> T:
        async with tab(address) as opened:
            for domain in ("Page", "Network", "Runtime", "Log"):
                await opened.do(f"{domain}.enable")
            await opened.do("Page.bringToFront")
            root = entrance.partition("?")[0]
            await opened.do("Page.navigate", url=entrance)
            window = Window(opened, root)
            await window.shows("document.querySelector('h1') !== null")
            found = await work(window)
            assert opened.said == []
            assert all(asked.startswith((root, "data:")) for asked in opened.asked)
            return found

    with browser() as address:
        return asyncio.run(within(address))


def addresses(results: Path) -> Iterator[str]:
    yield ""
    for name, subset in RUNS:
        yield link("run", name=name, subset=subset)
        yield link("users", name=name, subset=subset)
        yield link("user", name=name, subset=subset, user=users(results, name, subset)[0])
    yield link(
        "user",
        name="recency",
        subset="weibo",
        user=users(results, "recency", "weibo")[1],
        **{"with": "random"},
    )
    yield "compare?run=recency&run=random"


def test_every_view_fits_a_phone_and_a_screen_in_light_and_dark(results):
    """Of both benchmarks and the plug-in; dark is dark; pictures have their size."""

    async def work(window: Window) -> None:
        for address in addresses(results):
            grounds = set()
            for width, dark in ((1280, False), (420, True), (420, False)):
                await window.go(address, width=width, dark=dark)
                grounds.add(
                    await window.tab.tell("getComputedStyle(document.body).backgroundColor")
                )
                small = (
                    "[...document.querySelectorAll('figure svg')].filter((one) => one.clientHeight"
                    " < 30).length"
                )
                assert await window.tab.tell(small) == 0
            assert len(grounds) == 2

    looked(results, work, posts=True)


def test_runs_and_users_are_walked_by_keys(results):
    """Down the overview, into a run, to its users, a search, a user, the next one, and up."""

    async def work(window: Window) -> None:
        await window.go("?sort=run")
        await window.press("j")
        first = await window.tab.tell(FOCUSED)
        await window.press("j")
        assert await window.tab.tell(FOCUSED) != first
        await window.press("k")
        assert await window.tab.tell(FOCUSED) == first
        await window.press("Enter")
        await window.shows("location.pathname.endsWith('/run')")
        await window.go(link("users", name="recency", subset="weibo"))
        await window.press("/")
        assert await window.tab.tell("document.activeElement.name") == "q"
        for key in "000004":
            await window.press(key)
        await window.press("Enter")
        await window.shows("location.search.includes('q=000004')")
        await window.press("j")
        await window.press("Enter")
        await window.shows("location.pathname.endsWith('/user')")
        here = await window.tab.tell("location.search")
        await window.press("n")
        await window.shows(f"location.search !== {here!r} && location.pathname.endsWith('/user')")
        await window.press("u")
        await window.shows("location.pathname.endsWith('/users')")

    looked(results, work)


def test_nothing_of_a_hostile_folder_runs(results):
    """Neither markup nor a script's address, in any view."""
    evil = results / "evil"
    shutil.copytree(results / "recency", evil)
    mark = (
        "<img src=x onerror=\"document.title='ran'\"><script>document.title='ran'</script>"
        + HOSTILE
    )
    for name in ("run_weibo.json", "eval_report_weibo.json"):
        text = (evil / name).read_text(encoding="utf-8")
        (evil / name).write_text(
            text.replace("baseline/recency", orjson.dumps(mark).decode()[1:-1]), encoding="utf-8"
        )
    records = [data for _, data in objects(evil / "inference_results_weibo.jsonl")]
    for data in records:
        data["user_id"] = f"{data['user_id']}{mark}"
        data["steps"][0] |= {
            "prediction": [mark],
            "reasoning": mark,
            "persona_summary": "javascript:alert(1)",
        }
    (evil / "inference_results_weibo.jsonl").write_bytes(
        b"".join(map(encode_line, records)) + b'{"user_id":"torn'
    )

    async def work(window: Window) -> None:
        key = str(records[0]["user_id"])
        about = {"name": "evil", "subset": "weibo"}
        for address in (
            "./",
            link("run", **about),
            link("users", **about),
            link("user", **about, user=key),
        ):
            await window.go(address)
            assert await window.tab.tell("document.title") != "ran"
            assert (
                await window.tab.tell("document.querySelectorAll('img, main script').length") == 0
            )
            assert "onerror" in await window.tab.tell(TEXT) or address == "./"

    looked(results, work)


def test_another_server_of_this_machine_gets_no_cookie(results):
    """A browser sends cookies to every port of a host; the viewer's has a path that the other
    server does not know."""
    got: list[str | None] = []

    class Other(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            got.append(self.headers.get("Cookie"))
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"<!doctype html><table></table><img src='deeper/a.png'>")

        def log_message(self, format: str, *args: Any) -> None:
            pass

    async def within(address: str) -> None:
        with serving(Chosen(results)) as entrance:
            async with tab(address) as opened:
                window = Window(opened, "")
                for domain in ("Page", "Network"):
                    await opened.do(f"{domain}.enable")
                await opened.do("Page.navigate", url=entrance)
                await window.shows("document.querySelectorAll('tbody th a').length > 1")
                [cookie] = (await opened.do("Network.getAllCookies"))["cookies"]
                assert (cookie["httpOnly"], cookie["sameSite"]) == (True, "Strict")
                for path in ("/", "/run?name=recency&subset=weibo", "/view.js"):
                    await window.go(f"http://127.0.0.1:{other.server_port}{path}")

    with ThreadingHTTPServer(("127.0.0.1", 0), Other) as other, browser() as address:
        threading.Thread(target=other.serve_forever, daemon=True).start()
        asyncio.run(within(address))
        other.shutdown()
    assert len(got) >= 6 and set(got) == {None}


class Shell:
    """A run in a process of its own, against an endpoint with faults."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder, self._url = folder, url
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, *words: str) -> None:
        where = ("--results-dir", str(self.folder / "results"), "--api-url", self._url, "--no-html")
        environment = {**os.environ, "LLM_API_KEY": "secret"}
        command = [sys.executable, "-m", "harness", *words, *where]
        self.process = subprocess.Popen(
            command,
            cwd=self.folder,
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def kill(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()


@contextmanager
def faulty(folder: Path) -> Iterator[tuple[Shell, threading.Semaphore]]:
    """A run whose replies come as a semaphore lets them, each seventh as a fault."""
    let, count = threading.Semaphore(0), iter(range(10**9))

    def script(body: dict[str, Any]) -> tuple[int, bytes]:
        let.acquire(timeout=60)
        return (503, b"busy") if next(count) % 7 == 3 else baseline(body)

    with endpoint(script) as server:
        shell = Shell(folder, server.url)
        try:
            yield shell, let
        finally:
            let.release(100_000)
            if shell.process is not None and shell.process.poll() is None:
                shell.kill()


RUN = ("run", "--model", "m", *SHIPPED, "--platform", "weibo", "--concurrency", "4")


def test_pages_move_while_a_run_is_played_killed_and_resumed(tmp_path):
    """With faults. Progress, the state after `kill -9`, progress again, and the report at the end,
    without a reload."""
    results = tmp_path / "results"
    results.mkdir()

    async def work(window: Window) -> None:
        await window.go("")
        with faulty(tmp_path) as (shell, let):
            shell.start(*RUN)
            await window.shows(f"{TEXT}.includes('running') && {TEXT}.includes('0/40')")
            let.release(150)  # of 295: the longest user has 40 steps
            await window.shows(
                "[...document.querySelectorAll('td a')].some((one) =>"
                " /^[1-9]\\d*\\/40/.test(one.textContent))"
            )
            assert await window.tab.tell("performance.getEntriesByType('navigation').length") == 1
            await window.go(link("run", name="m", subset="weibo"))
            await window.shows(f"{TEXT}.includes('in flight') && {TEXT}.includes('http_503')")
            await asyncio.to_thread(shell.kill)
            await window.shows(f"{TEXT}.includes('died (model: m)')")
            assert (results / "m" / "run_weibo.sock").exists()
            await window.go("")
            let.release(100_000)
            shell.start("resume", "--name", "m", "--max-retries", "20")
            await window.shows(f"!{TEXT}.includes('running') && {TEXT}.includes('40/40')")
            assert shell.process is not None
            assert await asyncio.to_thread(shell.process.wait) == 0
            await window.go(link("run", name="m", subset="weibo"))
            assert await window.tab.tell("document.querySelectorAll('figure svg').length") >= 3
        assert not (results / "m" / "run_weibo.sock").exists()

    looked(results, work)


ON_RAY = pytest.param(
    ("--engine", "ray", "--workers", "1"),
    marks=[pytest.mark.ray, pytest.mark.skipif(find_spec("ray") is None, reason="no ray here")],
    id="ray",
)


@pytest.mark.parametrize("engine", [pytest.param((), id="local"), ON_RAY])
def test_run_is_watched_set_and_stopped_from_another_shell(tmp_path, engine):
    """By the commands, in processes of their own."""
    if engine:
        pytest.importorskip("harness.extensions.ray")

    def shell_says(*words: str) -> str:
        command = [sys.executable, "-m", "harness", *words, "--results-dir", "results"]
        done = subprocess.run(
            command, cwd=tmp_path, capture_output=True, text=True, timeout=TIMEOUT
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    with faulty(tmp_path) as (shell, let):
        shell.start(*RUN, *engine)
        wait_for((tmp_path / "results/m/run_weibo.sock").exists)
        let.release(60)
        assert "concurrency 9" in shell_says("set", "m", "--concurrency", "9")
        command = [sys.executable, "-m", "harness", "watch", "m", "--results-dir", "results"]
        with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as watching:
            assert watching.stdout is not None
            wait_for(
                lambda: " of 9 allowed" in (watching.stdout.readline() if watching.stdout else "")
            )
            assert "stopping" in shell_says("stop", "m")
            let.release(100_000)
            assert shell.process is not None and shell.process.wait(TIMEOUT) == 130
            assert watching.wait(TIMEOUT) == 1  # the run that it watched is not complete
    state = orjson.loads((tmp_path / "results/m/run_weibo.json").read_bytes())
    assert (state["state"], state["tuning"]["concurrency"]) == ("stopped", 9)
