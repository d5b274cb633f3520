"""Runs on the real Ray, as processes, and what they leave in their files and at the endpoint when
parts of it are hit.

In each the endpoint itself counts: never more requests in flight than the limit, and after a kill
at most those again that were not saved then. The results have the same bytes as those of one
process.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar, cast
from urllib.parse import urlsplit

import orjson
import pytest

from bench.processes import HARNESS, endpoint, run_command, stats, synthesise
from harness.extensions.ray.worker import LEASE_SECONDS
from harness.store.log import valid_lines
from tests.extensions.ray.raylets import Raylets, cluster, jobs
from tests.support import ROOT
from tests.support.planted import PROGRAM, ran, write_modules
from tests.support.processes import children, connections, held, wait_for, words_of

T = TypeVar("T")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.ray,
    pytest.mark.skipif(find_spec("ray") is None, reason="no ray here"),
]

LIMIT = 8
SLOW = ("--latency", "0.3", "--jitter", "0.3")
KEY = "sk-kept-from-the-cluster"
LATE_SECONDS = LEASE_SECONDS + 5.0
TOKEN = "0123456789abcdef" * 4
HURRIED = (sys.executable, "-m", "tests.extensions.ray.hurried")


@dataclass(frozen=True, slots=True)
class Kind:
    """What is played: words of the command, the subset and the model."""

    words: tuple[str, ...]
    subset: str
    model: str

    def results(self, folder: Path) -> bytes:
        return (folder / f"inference_results_{self.subset}.jsonl").read_bytes()

    def responses(self, folder: Path) -> Path:
        return folder / f"responses_{self.subset}.jsonl"


CHAINS = Kind(("streamprofile", "--platform", "weibo"), "weibo", "baseline/recency")
DAYS = Kind(("dailymobility",), "beijing", "baseline/commuter")

Wanted = Callable[[Kind], bytes]


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tasks")
    synthesise(folder, "--users", "18", "--platform", "weibo", "--steps", "6")
    synthesise(folder, "dailymobility", "--users", "12")
    return folder


@pytest.fixture(scope="module")
def wanted(tasks: Path, tmp_path_factory: pytest.TempPathFactory) -> Wanted:
    """The results of runs in one process, each made once."""
    found: dict[Kind, bytes] = {}

    def of(kind: Kind) -> bytes:
        if kind not in found:
            results = tmp_path_factory.mktemp("local")
            with endpoint() as url:
                assert Commands(tasks, results)(kind, url).wait() == 0
            found[kind] = kind.results(results / "run")
        return found[kind]

    return of


@pytest.fixture(scope="module")
def raylets() -> Iterator[Raylets]:
    with cluster(2, 2) as found:
        yield found


class Commands:
    """Runs in the test's folder; `end` those that still go on."""

    def __init__(self, tasks: Path, results: Path) -> None:
        self._tasks = tasks
        self._results = results
        self._started: list[subprocess.Popen[str]] = []

    def __call__(
        self,
        kind: Kind,
        url: str,
        *options: str,
        start: tuple[str, ...] = HARNESS,
        name: str = "run",
        **more: Any,
    ) -> subprocess.Popen[str]:
        words = ("--concurrency", str(LIMIT), "--name", name, "--no-html", *options)
        whole = run_command(url, self._tasks, self._results, *kind.words, *words, model=kind.model)
        more = {"stdout": subprocess.DEVNULL, **more}
        self._started.append(
            process := subprocess.Popen([*start, *whole[len(HARNESS) :]], text=True, **more)
        )
        return process

    def end(self) -> None:
        for process in self._started:
            if process.poll() is None:
                process.kill()
                process.wait()


@pytest.fixture
def play(tasks: Path, tmp_path: Path) -> Iterator[Commands]:
    commands = Commands(tasks, tmp_path)
    yield commands
    commands.end()


def on(raylets: Raylets, workers: int = 2) -> tuple[str, ...]:
    return ("--engine", "ray", "--ray-address", raylets.address, "--workers", str(workers))


def about_workers(folder: Path) -> list[str]:
    """Return what the log of a run says of workers."""
    events = [orjson.loads(line.text) for line in valid_lines(folder / "run_weibo.log")]
    return [event["detail"] for event in events if event["what"] == "worker"]


def reaches(process: subprocess.Popen[str], look: Callable[[], T]) -> T:
    """Return the first thing that is found, while a command runs."""

    def look_or_ended() -> T | bool:
        return look() or process.poll() is not None

    found = wait_for(look_or_ended)
    assert process.poll() is None, "the command ended early"
    return cast(T, found)


def answers(process: subprocess.Popen[str], kind: Kind, folder: Path, count: int) -> None:
    """Return when a run has saved so many replies."""
    reaches(process, lambda: saved(kind, folder) >= count)


def saved(kind: Kind, folder: Path) -> int:
    return sum(1 for _ in valid_lines(kind.responses(folder)))


def unsaved(
    process: subprocess.Popen[str], kind: Kind, folder: Path, url: str, losses: int = 1
) -> int:
    """Return how many requests were sent and not saved when the driver had seen so many losses."""
    reaches(process, lambda: len(about_workers(folder)) >= losses)
    on_disk = saved(kind, folder)
    return int(stats(url)["requests"]) - on_disk


def prove(kind: Kind, folder: Path, url: str, wanted: bytes, unsaved: int = 0) -> None:
    """Check the files of a run against the endpoint's counts; `unsaved` requests may have been sent
    again."""
    seen = stats(url)
    replies = [orjson.loads(line.text) for line in valid_lines(kind.responses(folder))]
    print(folder, seen, f"{unsaved} not saved")
    assert kind.results(folder) == wanted
    assert len(replies) == len(
        {(reply["user_id"], reply["request"], reply["nth"]) for reply in replies}
    )
    assert len(replies) == seen["distinct_bodies"]
    assert seen["most_in_flight"] <= LIMIT
    assert seen["requests"] <= seen["distinct_bodies"] + sum(seen["faults"].values()) + unsaved


def actors(*raylets: int) -> list[int]:
    """Return the ids of the workers that play now, on these raylets."""
    return [
        process
        for raylet in raylets
        for process in children(raylet)
        if b"ray::Actor" in words_of(process)
    ]


def port_of(url: str) -> int:
    return urlsplit(url).port or 0


def test_cluster_gives_the_bytes_of_one_process(play, wanted, raylets, tmp_path):
    """With faults, on two machines: the same results, each request paid once."""
    with endpoint("--latency", "0.02", "--fault-rate", "0.2") as url:
        assert (
            play(CHAINS, url, *on(raylets), "--durability", "power", "--timeout", "2").wait() == 0
        )
        prove(CHAINS, tmp_path / "run", url, wanted(CHAINS))


def test_workers_import_the_plug_in_and_nothing_else_of_the_current_folder(raylets, tmp_path):
    """A plug-in named as a file of it, among modules with the names of those that workers import;
    the user has a token, which this cluster does not know."""
    for name in ("star_rating.py", "yelp_star_tasks.jsonl"):
        shutil.copy(ROOT / "examples" / "star_rating" / name, tmp_path)
    write_modules(tmp_path)
    keep_token(tmp_path)
    words = (
        "run",
        "star_rating.py",
        "--tasks-dir",
        ".",
        "--model",
        "baseline/four-stars",
        "--no-html",
    )
    environment = {**os.environ, "HOME": str(tmp_path)}
    subprocess.run(
        [*PROGRAM, *words, *on(raylets)],
        cwd=tmp_path,
        env=environment,
        check=True,
        stdout=subprocess.DEVNULL,
    )
    assert ran(tmp_path) == []


def keep_token(home: Path) -> None:
    (home / ".ray").mkdir()
    (home / ".ray" / "auth_token").write_text(TOKEN)


def test_lost_workers_cost_only_what_was_not_saved(play, wanted, raylets, tmp_path):
    """SIGKILL of a worker, and of the one that replaces it."""
    folder = tmp_path / "run"
    with endpoint(*SLOW) as url:
        process = play(CHAINS, url, *on(raylets))
        answers(process, CHAINS, folder, 10)
        first = reaches(process, lambda: actors(*raylets.raylets))
        os.kill(first[0], signal.SIGKILL)
        lost = unsaved(process, CHAINS, folder, url)
        with held():  # nobody is done before there is another
            replacement = reaches(process, lambda: set(actors(*raylets.raylets)) - set(first))
        os.kill(replacement.pop(), signal.SIGKILL)
        lost += unsaved(process, CHAINS, folder, url, losses=2)
        assert process.wait() == 0
        prove(CHAINS, folder, url, wanted(CHAINS), lost)


def test_lost_driver_is_resumed_by_either_engine(play, wanted, raylets, tmp_path):
    """Local, then SIGINT; on the cluster, then SIGKILL; local again, to the end."""
    folder = tmp_path / "run"
    with endpoint(*SLOW) as url:
        process = play(CHAINS, url)
        answers(process, CHAINS, folder, 20)
        process.send_signal(signal.SIGINT)
        assert process.wait() == 130
        process = play(CHAINS, url, *on(raylets))
        answers(process, CHAINS, folder, 60)
        process.kill()
        process.wait()
        wait_for(lambda: not actors(*raylets.raylets))
        lost = stats(url)["requests"] - saved(CHAINS, folder)
        assert play(CHAINS, url).wait() == 0
        prove(CHAINS, folder, url, wanted(CHAINS), lost)


def test_termination_saves_what_is_answered_and_leaves_no_key(play, wanted, raylets, tmp_path):
    """SIGTERM to a driver on a cluster, whose logs and list of jobs do not have the key."""
    folder = tmp_path / "run"
    key_file = tmp_path / "key"
    key_file.write_text(KEY, encoding="utf-8")
    with endpoint(*SLOW) as url:
        pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        process = play(CHAINS, url, *on(raylets), "--api-key-file", str(key_file), **pipes)
        answers(process, CHAINS, folder, 20)
        process.send_signal(signal.SIGTERM)
        shown, _ = process.communicate()
        assert process.returncode == 143
        assert "(raylet)" not in shown and "Ray cluster." not in shown
        assert play(CHAINS, url).wait() == 0
        prove(CHAINS, folder, url, wanted(CHAINS))
    logs = [path.read_bytes() for path in raylets.folder.rglob("*") if path.is_file()]
    assert len(logs) > 10
    assert not [text for text in [*logs, jobs(raylets)] if KEY.encode() in text]


def test_silent_worker_is_given_up_and_its_slots_kept(play, wanted, raylets, tmp_path):
    """SIGSTOP for longer than a turn may take; it is never continued."""
    folder = tmp_path / "run"
    with endpoint(*SLOW) as url:
        process = play(CHAINS, url, *on(raylets), start=(*HURRIED, "crew.SILENT_SECONDS=12", "--"))
        answers(process, CHAINS, folder, 10)
        os.kill(reaches(process, lambda: actors(*raylets.raylets))[0], signal.SIGSTOP)
        lost = unsaved(process, CHAINS, folder, url)
        assert process.wait() == 0
        prove(CHAINS, folder, url, wanted(CHAINS), lost)
    wait_for(lambda: not actors(*raylets.raylets))


def test_late_machine_takes_part_and_keeps_its_slots_when_it_is_lost(play, wanted, tmp_path):
    """It joins long after the others have begun. SIGKILL of its raylet leaves its workers alive,
    with requests in flight. The cluster wants a token: the one in the user's home folder, by Ray's
    own variable."""
    checks = {"initial_delay_ms": "0", "period_ms": "500", "failure_threshold": "2"}
    settings = {f"RAY_health_check_{name}": value for name, value in checks.items()}
    keep_token(tmp_path)
    environment = {**os.environ, "HOME": str(tmp_path), "RAY_AUTH_MODE": "token"}
    settings |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": TOKEN}
    folder = tmp_path / "run"
    with endpoint(*SLOW) as url, cluster(1, **settings) as raylets:
        process = play(CHAINS, url, *on(raylets), env=environment)
        answers(process, CHAINS, folder, 10)
        with held():
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(LATE_SECONDS)
            raylets.add(1, {})
            late = reaches(process, lambda: {*raylets.all()} - {*raylets.raylets}).pop()
            reaches(
                process,
                lambda: any(remote == port_of(url) for _, remote in connections(actors(late))),
            )
        os.kill(late, signal.SIGKILL)
        lost = unsaved(process, CHAINS, folder, url)
        assert process.wait() == 0
        prove(CHAINS, folder, url, wanted(CHAINS), lost)


def test_machine_without_a_way_to_the_endpoint_is_played_without(play, wanted, tmp_path):
    """Its proxy is dead: nobody fails, and the log names its worker; the other machine joins when
    it has given up. Then the raylet of another run's driver is killed, and with it Ray ends the
    driver; the run goes on without Ray."""
    dead = {"HTTP_PROXY": "http://127.0.0.1:1", "NO_PROXY": "127.0.0.1"}
    with endpoint(*SLOW) as url, cluster(1, **dead) as raylets:
        # behind the proxy, which takes a whole address for its own path
        there = "http://endpoint.invalid/v1"
        process = play(CHAINS, there, *on(raylets), env={**os.environ, "HTTP_PROXY": url})
        [note] = reaches(process, lambda: about_workers(tmp_path / "run"))
        raylets.add(1, {"HTTP_PROXY": url})
        assert " gets no users for 30 s: the endpoint has never answered" in note
        assert process.wait() == 0
        prove(CHAINS, tmp_path / "run", url, wanted(CHAINS))
        process = play(CHAINS, url, *on(raylets, 1), name="driver", stderr=subprocess.DEVNULL)
        answers(process, CHAINS, tmp_path / "driver", 8)
        os.kill(raylets.raylets[0], signal.SIGKILL)
        with held():
            assert process.wait() != 0
        assert play(CHAINS, url, name="driver").wait() == 0
    assert CHAINS.results(tmp_path / "driver") == wanted(CHAINS)


def test_cluster_that_loses_its_head_ends_the_run(play, wanted, tmp_path):
    """Exit code 4 before Ray itself ends this process; what was answered is saved."""
    folder = tmp_path / "run"
    hurried = (*HURRIED, "crew.HEAD_SECONDS=1", "crew.GRACE_SECONDS=2", "--")
    with endpoint(*SLOW) as url:
        with cluster(1) as raylets:
            process = play(CHAINS, url, *on(raylets, 1), start=hurried)
            answers(process, CHAINS, folder, 10)
            os.kill(raylets.head, signal.SIGKILL)
            assert process.wait() == 4
        seen = stats(url)
        assert (
            seen["requests"]
            == seen["completed"]
            == sum(1 for _ in valid_lines(CHAINS.responses(folder)))
        )
        assert play(CHAINS, url).wait() == 0
        prove(CHAINS, folder, url, wanted(CHAINS))


BLOCKED = """
import agentsociety_benchmark.benchmarks as benchmarks
class Own(benchmarks.DailyMobilityAgent):
    async def forward(self):
        while self.id % 12 == 1:
            pass
        if self.id % 12 == 2:
            raise SystemExit(0)
"""
ENDED = """
import os
import agentsociety_benchmark.benchmarks as benchmarks
class Own(benchmarks.DailyMobilityAgent):
    async def forward(self):
        os._exit(0)
"""


def test_agent_that_blocks_is_broken_off_in_its_worker(play, raylets, tmp_path):
    """An endless loop in some residents, `SystemExit` in others: they fail, and the rest go on, as
    in one process."""
    (tmp_path / "agent.py").write_text(BLOCKED)
    blocked = Kind((*DAYS.words, "--agent", str(tmp_path / "agent.py")), DAYS.subset, DAYS.model)
    with endpoint() as url:
        for name, options in (("local", ()), ("ray", on(raylets))):
            assert play(blocked, url, *options, name=name).wait() == 1
    kept = [sorted(blocked.results(tmp_path / name).splitlines()) for name in ("local", "ray")]
    failures = tmp_path / "ray" / "failures_beijing.jsonl"
    assert kept[0] == kept[1] != []
    assert {orjson.loads(line.text)["kind"] for line in valid_lines(failures)} == {
        "agent_blocked",
        "agent_error",
    }


def test_agent_that_ends_its_workers_is_named(play, raylets, tmp_path):
    """The run stops, as with any workers that are lost."""
    (tmp_path / "ends.py").write_text(ENDED)
    ended = Kind((*DAYS.words, "--agent", str(tmp_path / "ends.py")), DAYS.subset, DAYS.model)
    hurried = (*HURRIED, "crew.LOSSES_MOST=1", "--")
    with endpoint() as url:
        process = play(
            ended, url, *on(raylets, 1), start=hurried, name="ended", stdout=subprocess.PIPE
        )
        shown, _ = process.communicate()
    assert process.returncode == 4 and "workers were lost, and no user was done" in shown


def test_what_cannot_start_ends_with_a_sentence(play, raylets):
    """No worker in time, nobody at the address, other code on the workers: one line on what to do,
    an exit code."""
    nobody = ("--engine", "ray", "--ray-address", "127.0.0.1:1")
    cases = ((nobody, "crew.LOSSES_MOST=5", 4), (on(raylets, 1), "cluster.START_SECONDS=0.01", 4))
    for options, other, code in (*cases, (on(raylets, 1), "cluster.__version__=0", 2)):
        start = (*HURRIED, other, "--")
        process = play(
            CHAINS, "http://127.0.0.1:1/v1", *options, start=start, stderr=subprocess.PIPE
        )
        _, complaint = process.communicate()
        assert process.returncode == code
        assert complaint.startswith("harness: ") and complaint.count("\n") == 1
