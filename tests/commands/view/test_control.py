"""Sockets of playing runs: whose they are, what they answer, and what they change."""

from __future__ import annotations

import asyncio
import os
import socket
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import orjson
import pytest

from harness.cli import main
from harness.commands import watch
from harness.engine import control_calls as calls
from harness.engine import control_server as control
from harness.engine.control_calls import connected, socket_of
from harness.errors import BadInput, HarnessError, MachineError
from harness.model import JSON
from harness.store.files import RunFiles
from harness.store.log import objects
from harness.ui import progress
from tests.support import SHIPPED
from tests.support.commands import execute
from tests.support.processes import wait_for
from tests.support.scripted import baseline, serving

DEMO = [*SHIPPED, "--platform", "weibo", "--limit", "8"]
RUN = ["run", "--model", "m", "--name", "m", *DEMO, "--no-html", "--concurrency", "2"]


class Playing:
    """A run in a thread whose replies wait; `go` lets them come."""

    def __init__(
        self, results: Path, go: threading.Event, thread: threading.Thread, codes: list[int]
    ) -> None:
        self.results, self.go, self.codes, self._thread = results, go, codes, thread
        self.arrived: list[bytes] = []
        self.files = RunFiles(results / "m", "weibo")

    def ended(self) -> int:
        """Let replies come and return the exit code."""
        self.go.set()
        self._thread.join(60)
        [code] = self.codes
        return code

    @property
    def manifest(self) -> JSON:
        made: JSON = orjson.loads(self.files.manifest.read_bytes())
        return made


@contextmanager
def playing(results: Path, *more: str) -> Iterator[Playing]:
    go, seen, codes = threading.Event(), threading.Event(), list[int]()

    def slow(body: dict[str, Any]) -> tuple[int, bytes]:
        seen.set()
        go.wait(60)
        return baseline(body)

    with serving(slow) as server:
        words = [*RUN, "--api-url", server.url, "--results-dir", str(results), *more]
        thread = threading.Thread(target=lambda: codes.append(main(words)))
        thread.start()
        try:
            assert seen.wait(60)
            wait_for(lambda: is_answering(RunFiles(results / "m", "weibo")))
            made = Playing(results, go, thread, codes)
            made.arrived = server.bodies
            yield made
        finally:
            go.set()
            thread.join(60)


def is_answering(files: RunFiles) -> bool:
    """Return whether the first snapshots are there."""
    with suppress(HarnessError), connected(files) as call:
        return bool(call.snapshots()[1])
    return False


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Playing]:
    with playing(tmp_path / "results") as found:
        yield found


def command(run: Playing, *words: str, code: int = 0) -> None:
    assert main([*words, "--results-dir", str(run.results)]) == code


def test_socket_is_the_users_own_and_goes_with_the_run(run):
    state = os.lstat(socket_of(run.files))
    assert stat.S_ISSOCK(state.st_mode) and stat.S_IMODE(state.st_mode) == 0o600
    with connected(run.files) as call:
        process, [snapshot] = call.snapshots()
    assert process == os.getpid() and (snapshot.name, snapshot.in_flight, snapshot.limit) == (
        "m",
        2,
        2,
    )
    assert run.ended() == 0
    assert not socket_of(run.files).exists()


def test_limits_are_changed_logged_and_kept_for_resume(run):
    """More requests than at the start are in flight at once, over more connections."""
    command(run, "set", "m", "--concurrency", "7", "--rpm", "90000", "--tpm", "9e9")
    with connected(run.files) as call:
        wait_for(lambda: call.snapshots()[1][0].in_flight == 7)
        wait_for(lambda: len(run.arrived) == 7)
        [snapshot] = call.snapshots()[1]
    assert (snapshot.limit, snapshot.requested) == (7, 7)
    tuning = run.manifest["tuning"]
    assert (tuning["concurrency"], tuning["rpm"], tuning["tpm"]) == (7, 90000.0, 9e9)
    assert [data["detail"] for _, data in objects(run.files.events) if data["what"] == "limits"]
    command(run, "set", "m", "--concurrency", "auto")
    with connected(run.files) as call:
        wait_for(lambda: call.snapshots()[1][0].requested is None)
    assert (
        run.manifest["tuning"]["concurrency"] is None and run.manifest["tuning"]["rpm"] == 90000.0
    )
    assert run.ended() == 0


BAD = (
    "--concurrency=0",
    "--concurrency=100001",
    "--concurrency=x",
    "--rpm=0",
    "--rpm=nan",
    "--tpm=-1",
)


@pytest.mark.slow
@pytest.mark.parametrize("words", BAD)
def test_limits_that_run_refuses_are_refused_also_past_the_command(run, words):
    name, value = words.removeprefix("--").split("=")
    before = run.manifest["tuning"]
    command(run, "set", "m", words, code=2)
    with connected(run.files) as call, pytest.raises(BadInput):
        call.ask("set", **{name: value})
    assert run.manifest["tuning"] == before


def test_limits_of_a_settings_file_are_those_of_new_runs(run, tmp_path, monkeypatch):
    """`set` changes what its own words name, and nothing else."""
    (tmp_path / "own.toml").write_text("concurrency = 64\ntpm = 5.0\n")
    command(run, "set", "m", "--rpm", "90000", "--settings", str(tmp_path / "own.toml"))
    command(run, "set", "m", "--settings", str(tmp_path / "own.toml"), code=2)
    assert [run.manifest["tuning"][name] for name in ("concurrency", "rpm", "tpm")] == [
        2,
        90000.0,
        None,
    ]


def test_limits_that_this_machine_cannot_have_change_nothing(run, monkeypatch):
    def refuse(*needed: int) -> None:
        raise MachineError("too few files")

    monkeypatch.setattr("harness.engine.control_server.admit_sockets", refuse)
    before = run.manifest["tuning"]
    command(run, "set", "m", "--concurrency", "50", code=2)
    assert run.manifest["tuning"] == before


def test_stop_ends_a_run_as_the_first_interruption_does(run):
    """Replies in flight are saved, `resume` goes on, and another stop or change is refused."""
    command(run, "stop", "m")
    command(run, "stop", "m", code=2)
    command(run, "set", "m", "--concurrency", "3", code=2)
    assert run.ended() == 130
    assert run.manifest["state"] == "stopped" and run.files.responses.stat().st_size


def test_what_is_no_request_is_refused_and_stops_nothing(run):
    odd = (
        b"\n",
        b"[]\n",
        b"{}\n",
        b'{"do":"format"}\n',
        b'{"do":"set"}\n',
        b"\xff\n",
        b'{"do":1}\n',
    )
    for line in odd:
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(socket_of(run.files)))
            client.sendall(line)
            assert "refused" in orjson.loads(client.makefile("rb").readline())
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(socket_of(run.files)))
        with suppress(ConnectionError):
            client.sendall(b"x" * (1 << 20))
            assert client.recv(1) == b""
    assert is_answering(run.files) and run.ended() == 0


def test_processes_of_another_user_get_no_answer(run, monkeypatch):
    """The kernel says whose they are. In the other direction, too: a folder can hold anybody's
    socket."""
    monkeypatch.setattr(control, "peer", lambda connection: os.geteuid() + 1)
    with pytest.raises(MachineError), connected(run.files) as call:
        call.ask("stop")
    monkeypatch.undo()
    monkeypatch.setattr(calls, "peer", lambda connection: os.geteuid() + 1)
    with pytest.raises(BadInput, match="another user"), connected(run.files):
        pass
    assert run.manifest["state"] == "running" and run.codes == []


def test_path_longer_than_an_address_of_a_socket_is_reached(tmp_path):
    with playing(tmp_path / ("long" * 40)) as run:
        assert len(str(socket_of(run.files))) > 108
        command(run, "set", "m", "--concurrency", "3")
        assert run.ended() == 0 and not socket_of(run.files).exists()


def plant_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))


PLANTED: dict[str, tuple[Callable[[Path], object], bool]] = {
    "socket": (plant_socket, True),
    "file": (lambda path: path.write_text("mine"), False),
    "pipe": (os.mkfifo, False),
    "link": (lambda path: path.symlink_to("/dev/null"), False),
    "folder": (Path.mkdir, False),
}


@pytest.mark.parametrize("kind", PLANTED)
def test_only_a_dead_socket_is_replaced(tmp_path, kind):
    """Anything else of its name stays; a caller does not open it."""
    plant, replaced = PLANTED[kind]
    path = socket_of(files := RunFiles(tmp_path, "weibo"))
    plant(path)
    with pytest.raises(BadInput), connected(files):
        pass

    async def listen() -> None:
        async with control._listener(path, lambda reader, writer: None):
            assert stat.S_ISSOCK(os.lstat(path).st_mode)

    if replaced:
        asyncio.run(listen())
        assert not path.exists()
    else:
        with pytest.raises(OSError):
            asyncio.run(listen())
        assert os.path.lexists(path) and not stat.S_ISSOCK(os.lstat(path).st_mode)


def test_run_goes_on_where_there_can_be_no_socket(tmp_path, monkeypatch):
    """As on file systems without them."""

    def none(*ignored: object, **more: object) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(control, "_remove_dead", none)
    with serving(baseline) as server:
        execute(tmp_path, *RUN, "--api-url", server.url)


@pytest.mark.slow
def test_commands_refuse_a_run_that_is_not_played(played, capsys):
    for words in (
        ["watch"],
        ["watch", "recency"],
        ["set", "recency", "--rpm", "5"],
        ["stop", "recency"],
        ["stop", "no"],
    ):
        capsys.readouterr()
        execute(played, *words, code=2)
        assert capsys.readouterr().err.count("\n") == 1
    execute(played, "set", "recency", code=2)


@pytest.mark.parametrize("failing", [False, True])
def test_watch_ends_with_how_the_run_ended(
    failing,
    run,
    capsys,
    monkeypatch,
):
    """Its exit code is 0 for a complete run alone."""
    monkeypatch.setattr(watch, "LOOK_SECONDS", 0.05)
    monkeypatch.setattr(progress, "FIRST_LINE", 0.1)
    codes = list[int]()
    watching = threading.Thread(
        target=lambda: codes.append(main(["watch", "--results-dir", str(run.results)]))
    )
    wait_for(lambda: run.files.manifest.exists())
    watching.start()
    wait_for(lambda: "m" in capsys.readouterr().out)
    if failing:
        main(["stop", "m", "--results-dir", str(run.results)])
    run.ended()
    watching.join(60)
    last = capsys.readouterr().out.splitlines()
    state = "stopped: " if failing else "complete: 8 of 8 users done, 0 failed"
    assert [line for line in last if line.startswith(f"m, weibo: {state}")]
    assert codes == [int(failing)]


def test_viewer_shows_a_run_while_it_is_played(run):
    """Its row and its page have what the display has."""
    from harness.commands.view.reading import Chosen, Folder
    from harness.commands.view.server import link
    from harness.commands.view.site import Site
    from tests.commands.view.conftest import look

    site = Site(Folder(Chosen(run.results)), link)
    for page in (look(site, "/"), look(site, "/run?name=m&subset=weibo")):
        assert "data-live" in page and ">running" in page
    assert "2 in flight" in look(site, "/run?name=m&subset=weibo")
    assert "0/8" in look(site, "/")
    assert run.ended() == 0
