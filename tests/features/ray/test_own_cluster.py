"""A cluster of the command's own: nobody else on the machine can use it, and its workers import nothing from the folder
in which the command is started."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace

import orjson
import pytest

from bench.processes import endpoint
from harness.features.ray.crew import WorkerGone
from harness.store.log import sound_lines
from tests.support.planted import PROGRAM, ran, write_modules
from tests.support.processes import descendants, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.ray, pytest.mark.skipif(find_spec("ray") is None, reason="no ray here")]

# `ray.init` begins with what "jobs" does, but tries for minutes, at the machine's address in place of 127.0.0.1.
STRANGER = """
import json, os, sys
from ray._raylet import GcsClient
folder, address, user = sys.argv[1], sys.argv[2], int(sys.argv[3])
if user:
    os.setgroups([]), os.setgid(user), os.setuid(user)
tries = {
    "list": lambda: os.listdir(folder),
    "token": lambda: open(os.path.join(folder, "token")).read(),
    "jobs": lambda: GcsClient(address=address).get_all_job_info(),
}
done = []
for name, work in tries.items():
    try:
        done.append(work() is not None and name)
    except Exception:
        pass
print(json.dumps(done))
"""
NOBODY = 65534


def listening(processes: list[int]) -> Iterator[tuple[str, int]]:
    """Yield hexadecimal addresses and ports at which these processes listen."""
    sockets = set[str]()
    for process in processes:
        for link in Path(f"/proc/{process}/fd").glob("*"):
            try:
                sockets |= set(re.findall(r"socket:\[(\d+)\]", os.readlink(link)))
            except OSError:  # closed, or its process has ended
                continue
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            words = line.split()
            if words[3] == "0A" and words[9] in sockets:
                host, _, port = words[1].rpartition(":")
                yield host, int(port, 16)


def attempts(folder: Path, address: str, user: int, **variables: str) -> list[str]:
    """Return what a process of a user can do with a cluster."""
    words = [sys.executable, "-c", STRANGER, str(folder), address, str(user)]
    environment = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", **variables}
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=60, check=True)
    found: list[str] = orjson.loads(done.stdout.splitlines()[-1])
    return found


def test_own_cluster_is_closed_to_others_and_imports_nothing_from_here(tmp_path: Path) -> None:
    """It listens on loopback alone, and takes a token that another user cannot read; nothing stays in the home folder;
    a module of the current folder, with the name of one that workers import, is not executed."""
    here, home = tmp_path / "here", tmp_path / "home"
    here.mkdir()
    home.mkdir()
    write_modules(here)
    with TemporaryDirectory() as temporary:  # the path of a socket has at most 107 bytes
        _look_at_cluster(here, home, Path(temporary))


def _look_at_cluster(here: Path, home: Path, temporary: Path) -> None:
    variables = {"HOME": str(home), "XDG_STATE_HOME": str(home / "state"), "TMPDIR": str(temporary)}
    with endpoint("--latency", "1") as url:
        words = [*PROGRAM, "run", "--model", "baseline/recency", "--api-url", url, "--demo", "--platform", "weibo"]
        options = ("--concurrency", "2", "--no-html", "--engine", "ray", "--workers", "1")
        with subprocess.Popen(
            [*words, *options], cwd=here, env={**os.environ, **variables}, stdout=subprocess.DEVNULL
        ) as process:
            try:
                responses = here / "results/recency/responses_weibo.jsonl"
                wait_for(lambda: process.poll() is not None or sum(1 for _ in sound_lines(responses)) > 1)
                [cluster] = temporary.glob("ray-*")
                found = list(listening([process.pid, *descendants(process.pid)]))
                [gcs] = wait_for(lambda: list(cluster.rglob("gcs_server_port_*")))
                address = f"127.0.0.1:{gcs.read_text()}"
                modes = [path.stat().st_mode & 0o777 for path in (cluster, cluster / "token")]
                others = {name: attempts(cluster, address, 0, **of) for name, of in _tokens(cluster).items()}
                stranger = attempts(cluster, address, NOBODY) if os.geteuid() == 0 else None
            finally:
                process.send_signal(signal.SIGINT)
                code = process.wait()
    assert code == 130
    assert len(found) > 5 and {host for host, _ in found} <= {"0100007F", "0000000000000000FFFF00000100007F"}
    assert modes == [0o700, 0o600]
    assert {name: "jobs" in able for name, able in others.items()} == {"none": False, "wrong": False, "right": True}
    assert not (home / ".ray").exists()
    assert ran(here) == []
    if stranger is None:
        pytest.skip("another user's process can be started by root alone; all else is checked")
    assert stranger == []


def _tokens(cluster: Path) -> dict[str, dict[str, str]]:
    wrong, right = "0" * 64, str(cluster / "token")
    return {
        "none": {},
        "wrong": {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": wrong},
        "right": {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": right},
    }


def test_environment_of_rays_processes_names_no_relative_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty or relative entry of PYTHONPATH is the current folder, or below it; the driver's own stays as it is."""
    from harness.features.ray import cluster

    given = os.pathsep.join(["", "modules", "/opt/modules", "."])
    monkeypatch.setenv("PYTHONPATH", given)
    with cluster._for_processes_of_ray():
        assert os.environ["PYTHONPATH"] == "/opt/modules"
    assert os.environ["PYTHONPATH"] == given


def test_own_tokens_end_with_their_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What Ray keeps for the whole process is read again, so another cluster in it gets its own."""
    from ray._raylet import AuthenticationTokenLoader

    from harness.features.ray import cluster

    def token() -> str:
        return str(AuthenticationTokenLoader.instance().get_raw_token())

    monkeypatch.setenv("HOME", str(tmp_path))
    for name in cluster.TOKEN_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    tokens = []
    for number in range(2):
        with cluster._authenticated(tmp_path / str(number)):
            tokens.append(token())
    assert len({*tokens}) == 2 and tokens == [(tmp_path / str(number)).read_text() for number in range(2)]
    assert not any(name in os.environ for name in cluster.TOKEN_VARIABLES)


def test_worker_takes_turns_from_the_one_who_knows_its_secret_alone() -> None:
    """Another secret, or none, ends a connection, and the next is looked at; the port is closed then. The half that was
    not sent shows the driver that it is the worker."""
    from harness.features.ray import cluster

    secret = b"s" * 32 + b"a" * 32
    with socket.create_server(("127.0.0.1", 0)) as listening, ThreadPoolExecutor(1) as pool:
        address = listening.getsockname()
        accepted = pool.submit(cluster._accepted, listening, secret)
        for wrong in (b"w" * 32, b"short"):
            with socket.create_connection(address, timeout=5) as stranger:
                stranger.sendall(wrong)
                stranger.shutdown(socket.SHUT_WR)
                assert stranger.recv(1) == b""
        with socket.create_connection(address, timeout=5) as driver:
            driver.sendall(secret[:32] + b"turn")
            with accepted.result() as connection:
                assert driver.recv(33) == secret[32:]
                assert connection.getpeername() == driver.getsockname()
                assert connection.recv(4) == b"turn"
        assert listening.fileno() == -1


@pytest.mark.parametrize("answer", [b"", b"\x08" + bytes(15), b"\x08" + bytes(15) + b"half"])
def test_worker_whose_connection_ends_is_lost_and_may_still_send(
    answer: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before an answer, and within one; nobody knows what became of its process while Ray says nothing."""
    size, taken = lost_in_a_turn(lambda secret: secret[32:], answer, monkeypatch)
    assert len(taken) == size


def test_program_that_has_taken_a_worker_s_port_gets_no_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has seen what the driver sends, and cannot answer as the worker would: nothing of it is read as scores."""
    proofs: list[Callable[[bytes], bytes]] = [lambda secret: secret[:32], lambda secret: bytes(32), lambda secret: b""]
    for proof in proofs:
        _, taken = lost_in_a_turn(proof, b"\x08" + bytes(23), monkeypatch)
        assert taken == b""


def lost_in_a_turn(
    proof: Callable[[bytes], bytes], answer: bytes, monkeypatch: pytest.MonkeyPatch
) -> tuple[int, bytes]:
    """Have a turn that ends the worker, at a server that answers the secret with `proof`; return how many bytes a turn
    has, and what it got of it."""
    from harness.features.ray import cluster

    monkeypatch.setattr(cluster, "VERDICT_SECONDS", 0.05)
    given, taken, size = list[bytes](), list[bytes](), cluster.HEADER.size + 4

    class Silent:
        def remote(self, secret: bytes) -> Silent:
            given.append(secret)
            return self

        def future(self) -> Future[None]:
            return Future()

    async def turn() -> None:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readexactly(32)
            if proved := proof(given[0]):
                writer.write(proved)
                with suppress(OSError):
                    taken.append(await reader.read(size))
                writer.write(answer)
            writer.close()

        async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
            address = server.sockets[0].getsockname()
            worker = cluster.RayWorker("w", SimpleNamespace(serve=Silent()), "node", address)
            with pytest.raises(WorkerGone) as raised:
                await worker.turn(b"sent", 0.01)
            assert not raised.value.certain
            await asyncio.sleep(0)

    asyncio.run(turn())
    return size, b"".join(taken)
