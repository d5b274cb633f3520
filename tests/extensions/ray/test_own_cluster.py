"""A cluster of the command's own: nobody else on the machine can use it, and its workers import
nothing from the folder in which the command is started."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import orjson
import pytest

from bench.processes import endpoint, stats
from harness.store.log import valid_lines
from tests.support import SHIPPED
from tests.support.planted import PROGRAM, ran, write_modules
from tests.support.processes import descendants, environment_of, held, listeners, wait_for, words_of

pytestmark = [
    pytest.mark.slow,
    pytest.mark.ray,
    pytest.mark.skipif(find_spec("ray") is None, reason="no ray here"),
]

# `ray.init` begins with what "jobs" does, but tries for minutes, at the machine's address in place
# of 127.0.0.1.
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
KEY = "sk-kept-from-the-cluster"


def attempts(folder: Path, address: str, user: int, **variables: str) -> list[str]:
    """Return what a process of a user can do with a cluster."""
    words = [sys.executable, "-c", STRANGER, str(folder), address, str(user)]
    environment = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", **variables}
    done = subprocess.run(
        words, env=environment, capture_output=True, text=True, timeout=60, check=True
    )
    found: list[str] = orjson.loads(done.stdout.splitlines()[-1])
    return found


@dataclass(frozen=True, slots=True)
class Seen:
    """What a run on a cluster of its own showed while it ran, and when SIGINT had come to its
    process group."""

    here: Path
    home: Path
    listeners: list[tuple[str, int]]
    modes: list[int]
    attempts: dict[str, list[str]]
    with_key: list[int]
    niceness: list[int]
    code: int
    sent: int
    completed: int
    saved: int
    resumed: dict[str, int]


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seen]:
    """One run for all tests, begun in a folder with modules of the names of those that workers
    import."""
    here, home = tmp_path_factory.mktemp("here"), tmp_path_factory.mktemp("home")
    write_modules(here)
    # The path of a socket has at most 107 bytes.
    with TemporaryDirectory() as temporary, endpoint("--latency", "0.5") as url:
        variables = {"HOME": str(home), "XDG_STATE_HOME": str(home / "state"), "TMPDIR": temporary}
        key_file = tmp_path_factory.mktemp("key") / "key"
        key_file.write_text(KEY, encoding="utf-8")
        variables |= {"LLM_API_KEY": KEY, "LLM_API_BASE": url, "KEY_FILE": str(key_file)}
        yield _look(here, home, Path(temporary), url, {**os.environ, **variables})


def _look(here: Path, home: Path, temporary: Path, url: str, variables: dict[str, str]) -> Seen:
    command = [
        *PROGRAM,
        "run",
        "--model",
        "baseline/recency",
        "--api-url",
        url,
        *SHIPPED,
        "--platform",
        "weibo",
    ]
    command += [
        "--limit",
        "12",
        "--concurrency",
        "4",
        "--no-html",
        "--api-key-file",
        variables["KEY_FILE"],
    ]
    start: Any = {"cwd": here, "env": variables, "stdout": subprocess.DEVNULL}
    responses = here / "results/recency/responses_weibo.jsonl"

    def saved() -> int:
        return sum(1 for _ in valid_lines(responses))

    on_ray = ("--engine", "ray", "--workers", "2")
    with subprocess.Popen([*command, *on_ray], start_new_session=True, **start) as process:
        try:
            wait_for(lambda: process.poll() is not None or saved() > 1)
            below = descendants(process.pid)
            [cluster] = temporary.glob("ray-*")
            found = listeners([process.pid, *below])
            modes = [path.stat().st_mode & 0o777 for path in (cluster, cluster / "token")]
            with_key = [one for one in below if KEY.encode() in words_of(one) + environment_of(one)]
            with_key += [process.pid] if KEY.encode() in words_of(process.pid) else []
            workers = [one for one in below if b"ray::Actor" in words_of(one)]
            niceness = [os.getpriority(os.PRIO_PROCESS, worker) for worker in workers]
            [gcs] = wait_for(lambda: list(cluster.rglob("gcs_server_port_*")))
            address = f"127.0.0.1:{gcs.read_text()}"
            with held():  # it is not done before others have tried
                tries = {
                    name: attempts(cluster, address, 0, **of)
                    for name, of in _tokens(cluster).items()
                }
                if os.geteuid() == 0:
                    tries["stranger"] = attempts(cluster, address, NOBODY)
        finally:
            os.killpg(process.pid, signal.SIGINT)
            code = process.wait()
    ended, on_disk = stats(url), saved()
    subprocess.run(command, check=True, **start)
    resumed = {name: stats(url)[name] for name in ("requests", "distinct_bodies")} | {
        "saved": saved()
    }
    return Seen(
        here=here,
        home=home,
        listeners=found,
        modes=modes,
        attempts=tries,
        with_key=with_key,
        niceness=niceness,
        code=code,
        sent=ended["requests"],
        completed=ended["completed"],
        saved=on_disk,
        resumed=resumed,
    )


def test_own_cluster_is_closed_to_others(seen):
    """It listens on loopback alone, and takes a token that another user cannot read."""
    assert len(seen.listeners) > 5
    assert {host for host, _ in seen.listeners} <= {"0100007F", "0000000000000000FFFF00000100007F"}
    assert seen.modes == [0o700, 0o600]
    able = {name: "jobs" in done for name, done in seen.attempts.items()}
    assert able | {"stranger": False} == {
        "none": False,
        "wrong": False,
        "right": True,
        "stranger": False,
    }
    if "stranger" not in seen.attempts:
        pytest.skip("another user's process can be started by root alone; all else is checked")
    assert seen.attempts["stranger"] == []


def test_own_cluster_leaves_nothing_in_the_home_folder_and_imports_nothing_from_here(
    seen,
):
    """No token, which a cluster without tokens that is joined later would be sent; a module of the
    current folder, with the name of one that workers import, is not executed."""
    assert not (seen.home / ".ray").exists()
    assert ran(seen.here) == []


def test_no_process_of_an_own_cluster_has_the_key(seen):
    """In its command line or its environment."""
    assert seen.niceness != [] and seen.with_key == []


def test_workers_have_the_priority_of_the_command(seen):
    """Else they would get next to nothing on a busy machine."""
    assert {*seen.niceness} == {os.getpriority(os.PRIO_PROCESS, 0)}


def test_interrupt_of_a_terminal_saves_what_is_answered(seen):
    """SIGINT goes to the whole process group, which an own cluster is part of; the run goes on
    without Ray, and pays nothing twice."""
    assert seen.code == 130
    assert 0 < seen.sent == seen.completed == seen.saved
    assert (
        seen.sent
        < seen.resumed["requests"]
        == seen.resumed["distinct_bodies"]
        == seen.resumed["saved"]
    )


def _tokens(cluster: Path) -> dict[str, dict[str, str]]:
    wrong, right = "0" * 64, str(cluster / "token")
    return {
        "none": {},
        "wrong": {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": wrong},
        "right": {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": right},
    }


def test_environment_of_rays_processes_names_no_relative_folder(
    monkeypatch,
):
    """An empty or relative entry of PYTHONPATH is the current folder, or below it; the driver's own
    stays as it is."""
    from harness.extensions.ray import cluster

    given = os.pathsep.join(["", "modules", "/opt/modules", "."])
    monkeypatch.setenv("PYTHONPATH", given)
    with cluster._for_processes_of_ray():
        assert os.environ["PYTHONPATH"] == "/opt/modules"
    assert os.environ["PYTHONPATH"] == given


def test_own_tokens_end_with_their_cluster(tmp_path, monkeypatch):
    """What Ray keeps for the whole process is read again, so another cluster in it gets its own."""
    from ray._raylet import AuthenticationTokenLoader

    from harness.extensions.ray import cluster

    def token() -> str:
        return str(AuthenticationTokenLoader.instance().get_raw_token())

    monkeypatch.setenv("HOME", str(tmp_path))
    for name in cluster.TOKEN_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    tokens = []
    for number in range(2):
        with cluster._authenticated(tmp_path / str(number)):
            tokens.append(token())
    assert len({*tokens}) == 2 and tokens == [
        (tmp_path / str(number)).read_text() for number in range(2)
    ]
    assert not any(name in os.environ for name in cluster.TOKEN_VARIABLES)
