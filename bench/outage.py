"""An endpoint's process that goes away for a while: killed and started again on its port, or
stopped and continued."""

from __future__ import annotations

import re
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import IO

from bench.processes import ENDPOINT, ROOT, stats

KILLED, STOPPED = "SIGKILL, started again", "SIGSTOP, SIGCONT"
MANNERS = (KILLED, STOPPED)

LOOK_SECONDS = 0.05
"""Between two looks at how far the endpoint is."""

START_SECONDS = 30.0
"""Within which a process must listen."""


@dataclass(frozen=True, slots=True)
class Outage:
    """Begins once the endpoint has completed so many requests, and lasts `seconds`."""

    manner: str
    after: int
    seconds: float


@dataclass(slots=True)
class Mortal:
    """An endpoint that can die and come back. `url` stays the same; `lost` are the requests that a
    death forgot."""

    options: tuple[str, ...]
    url: str = ""
    lost: int = 0
    struck: bool = False
    _words: IO[str] = field(kw_only=True)
    _process: subprocess.Popen[str] = field(init=False)

    def start(self) -> None:
        """On the port that it had, or on any free one. Raises `RuntimeError` where it does not
        listen."""
        port = re.search(r":(\d+)/", self.url)
        command = [*ENDPOINT, "--port", port[1] if port else "0", *self.options]
        self._process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=self._words, text=True, cwd=ROOT
        )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        found = re.search(r"listening on (\S+)", line)
        if found is None:
            raise RuntimeError(f"the endpoint did not start: {line!r}")
        self.url = found[1]

    def end(self, number: int = signal.SIGTERM) -> None:
        with self._process:
            self._process.send_signal(signal.SIGCONT)
            self._process.send_signal(number)

    def said(self) -> str:
        """Return what it has complained of so far."""
        self._words.seek(0)
        return self._words.read()

    def suffer(self, outage: Outage, over: threading.Event) -> None:
        """Wait until the outage is due, and stand it; nothing happens where it is all `over`
        before."""
        while stats(self.url)["completed"] < outage.after:
            if over.wait(LOOK_SECONDS):
                return
        self.struck = True
        if outage.manner == KILLED:
            self.lost += int(stats(self.url)["requests"])
            self.end(signal.SIGKILL)
            over.wait(outage.seconds)
            self.start()
        else:
            self._process.send_signal(signal.SIGSTOP)
            over.wait(outage.seconds)
            self._process.send_signal(signal.SIGCONT)


@contextmanager
def mortal(*options: str) -> Iterator[Mortal]:
    with tempfile.TemporaryFile("w+") as words:
        endpoint = Mortal(options, _words=words)
        endpoint.start()
        try:
            yield endpoint
        finally:
            endpoint.end()


@contextmanager
def suffering(endpoint: Mortal, outage: Outage | None) -> Iterator[None]:
    """Let the outage come meanwhile, in a thread of its own."""
    over = threading.Event()
    thread = threading.Thread(target=endpoint.suffer, args=(outage, over)) if outage else None
    if thread:
        thread.start()
    try:
        yield
    finally:
        over.set()
        if thread:
            thread.join()


def settled(endpoint: Mortal) -> int:
    """Return the requests that the endpoint has seen, once those that were still on their way have
    come."""
    seen = -1
    while seen != (seen := int(stats(endpoint.url)["requests"])):
        time.sleep(LOOK_SECONDS)
    return seen + endpoint.lost
