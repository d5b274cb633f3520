"""A cluster of the command's own: nobody else on the machine can use it, and its workers import nothing from the folder
in which the command is started."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

import orjson
import pytest

from bench.processes import endpoint
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
