"""The command `view` on a machine with other users: what connections and folders of theirs can do
to it."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from urllib.parse import urlsplit
from urllib.request import urlopen

import pytest

from harness.commands.view import server
from harness.commands.view.reading import Chosen

FILES = 256
"""How many files the command may open."""
NEVER_ENDING = """
import sys, threading
from harness import cli
from harness.commands.view.site import Site

def page(self, view, query):
    print("a page is made", flush=True)
    threading.Event().wait()

Site.page = page
sys.exit(cli.main())
"""


@contextmanager
def viewing(*command: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Start a command that serves pages; yield it with the address that it has printed."""
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            yield process, process.stdout.readline().strip()
        finally:
            process.kill()


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Press Ctrl-C; return the exit code, and what was printed as an error."""
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    return process.returncode, errors


def test_idle_connections_without_a_token_keep_nobody_out(played):
    """More than the command may open files: the oldest are closed, the user is answered, and
    nothing is printed."""
    words = f"ulimit -n {FILES}; exec {sys.executable} -m harness view --results-dir {played}"
    with ExitStack() as held, viewing("/bin/sh", "-c", words) as (process, address):
        port = urlsplit(address).port
        idle = [
            held.enter_context(socket.create_connection(("127.0.0.1", port)))
            for _ in range(FILES + 50)
        ]
        idle[0].settimeout(60)
        assert idle[0].recv(1) == b""
        with urlopen(address, timeout=60) as answer:
            assert answer.status == 200
        assert ended(process) == (0, "")


@pytest.mark.parametrize(
    "sent", [b"", b"GET /path HTTP/1.1\r\nHost: 127.0.0.1\r\n", b"GET / HTTP/1.1\r\n\r\n"]
)
def test_connection_without_a_token_is_short(played, monkeypatch, sent):
    """Whether it sends nothing, half a request, or one that is refused."""
    monkeypatch.setattr(server, "STRANGER_SECONDS", 0.0)
    with ExitStack() as held:
        address = held.enter_context(server.serving(Chosen(played)))
        place = "127.0.0.1", urlsplit(address).port
        connection = held.enter_context(socket.create_connection(place, timeout=60))
        connection.sendall(sent)
        while connection.recv(1 << 16):
            pass


def test_ctrl_c_ends_the_command_while_a_page_is_made(played):
    """Whatever the page does: nobody waits for it."""
    command = (sys.executable, "-c", NEVER_ENDING, "view", "--results-dir", str(played))
    with viewing(*command) as (process, address):
        assert process.stdout is not None
        parts = urlsplit(address)
        with urlopen(address, timeout=60) as answer:
            cookie = answer.headers["Set-Cookie"].partition(";")[0]
        with socket.create_connection(("127.0.0.1", parts.port), timeout=60) as connection:
            request = f"GET {parts.path} HTTP/1.1\r\nHost: 127.0.0.1\r\nCookie: {cookie}\r\n\r\n"
            connection.sendall(request.encode())
            assert "Ctrl-C ends it" in process.stdout.readline()
            assert process.stdout.readline() == "a page is made\n"
            assert ended(process) == (0, "")
