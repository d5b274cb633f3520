"""Two commands on one folder, folders that cannot be locked or written, and folders that were
moved."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
import pytest

from bench.processes import run_command
from harness.benchmarks.streamprofile.synth import generate
from harness.cli import main
from harness.store.lock import LEASE, RunLock
from harness.store.log import valid_lines
from tests.support.disks import read_only
from tests.support.scripted import baseline, completion, serving

Told = pytest.CaptureFixture[str]
RECORDS, RESPONSES, LOCK = (
    "inference_results_weibo.jsonl",
    "responses_weibo.jsonl",
    "run_weibo.lock",
)


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tasks")
    (folder / "weibo_inference_tasks.jsonl").write_bytes(b"".join(generate("weibo", 6, 5, 2.0)))
    return folder


@pytest.fixture(scope="module")
def finished(tasks: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A complete run and one that lacks a user, in one results folder."""
    folder = tmp_path_factory.mktemp("finished")
    assert run(tasks, folder, "whole") == 0
    one = orjson.loads((tasks / "weibo_inference_tasks.jsonl").read_bytes().splitlines()[3])[
        "username"
    ]

    def one_user_fails(request: dict[str, Any]) -> tuple[int, bytes]:
        return (
            (400, b'{"error":"no"}')
            if one in request["messages"][-1]["content"]
            else baseline(request)
        )

    with serving(one_user_fails) as server:
        assert run(tasks, folder, "part", "--api-url", server.url) == 1
    return folder


@pytest.fixture
def results(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "results"))


def run(tasks: Path, results: Path, name: str, *more: str) -> int:
    where = ["--platform", "weibo", "--tasks-dir", str(tasks), "--results-dir", str(results)]
    return main(["run", "--model", "baseline/recency", "--name", name, *where, *more])


def command(what: str, results: Path, *more: str) -> int:
    return main([*what.split(), "--results-dir", str(results), *more])


def contents(folder: Path) -> dict[str, bytes]:
    """Every file of a run, by name, but its lock and its log, which the run itself writes on; a
    socket is none."""
    beside = (LOCK, "run_weibo.log")
    return {
        path.name: path.read_bytes()
        for path in folder.iterdir()
        if path.is_file() and path.name not in beside
    }


def answers(folder: Path) -> list[Any]:
    """What was answered, without the tokens, which endpoints count in different ways."""
    return [orjson.loads(line)["steps"] for line in (folder / RECORDS).read_bytes().splitlines()]


# Beside a run


@dataclass
class Running:
    """A run in a process of its own that waits for its endpoint: what is on file stays as it is
    until `go`."""

    tasks: Path
    results: Path
    process: subprocess.Popen[str]
    go: threading.Event = field(default_factory=threading.Event)

    @property
    def folder(self) -> Path:
        return self.results / "m"


def wait_for(there: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    """Polls until something has happened, as long as the process lives."""
    while not there():
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)


@contextmanager
def holding(tasks: Path, results: Path) -> Iterator[Running]:
    """Answers some requests at once, the others when asked to."""
    go, answered, waiting = threading.Event(), iter(range(5)), threading.Semaphore(0)

    def script(request: dict[str, Any]) -> tuple[int, bytes]:
        if next(answered, None) is None and not go.is_set():
            waiting.release()
            assert go.wait(60)
        return baseline(request)

    with serving(script) as server:
        options = ("--platform", "weibo", "--name", "m", "--concurrency", "2")
        started = subprocess.Popen(
            run_command(server.url, tasks, results, *options),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            for _ in range(2):
                wait_for(lambda: waiting.acquire(blocking=False), started)
            yield Running(tasks, results, started, go)
        finally:
            go.set()
            started.kill()
            started.communicate()


@pytest.fixture(scope="module")
def running(tasks: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    results = tmp_path_factory.mktemp("running")
    assert run(tasks, results, "done") == 0
    with holding(tasks, results) as made:
        yield made


@pytest.mark.parametrize(
    "words",
    [
        "run",
        "run --restart",
        "run --reeval",
        "resume",
        "reeval",
        "reeval --reparse",
        "verify",
        "remove",
    ],
)
def test_command_that_writes_or_proves_is_refused_beside_a_run(words, running, capsys):
    """It says who holds the folder, exits with 4, and changes nothing."""
    before, lock = contents(running.folder), (running.folder / LOCK).read_bytes()
    more = ["m"] if words == "remove" else ["--name", "m"]
    if words.startswith("run"):
        more += [
            "--model",
            "baseline/recency",
            "--platform",
            "weibo",
            "--tasks-dir",
            str(running.tasks),
        ]
        more += ["--api-url", "http://127.0.0.1:9/v1"] if "reeval" not in words else []
    assert command(words, running.results, *more) == 4
    assert (
        f"{running.folder} is in use by process {running.process.pid} on "
        in capsys.readouterr().err
    )
    assert contents(running.folder) == before
    assert (running.folder / LOCK).read_bytes() == lock
    assert running.process.poll() is None


def test_other_runs_have_their_turn_beside_one_that_is_held(running, capsys):
    """`verify` passes over the one in use with a line; `reeval` exits with 4 for the one that it
    cannot score."""
    assert command("verify", running.results) == 0
    shown = capsys.readouterr()
    assert shown.out.splitlines() == ["done, weibo: 6 of 6 users, complete: sound"]
    (line,) = shown.err.splitlines()
    assert "m, weibo: not checked" in line and f"in use by process {running.process.pid}" in line
    assert command("reeval", running.results) == 4
    assert "done, weibo: scored again: 6 of 6 users" in capsys.readouterr().out


def test_run_can_be_looked_at_while_it_runs(running, capsys):
    """`status` tells that it runs and how far it is; `stats` shows what has ended."""
    before = contents(running.folder)
    assert command("status --json", running.results, "--name", "m") == 0
    (row,) = orjson.loads(capsys.readouterr().out)
    assert (row["state"], row["users"]) == ("running", 6)
    assert row["done"] == sum(1 for _ in valid_lines(running.folder / RECORDS))
    assert command("stats", running.results) == 0
    assert contents(running.folder) == before


def test_copy_of_a_folder_in_use_is_free(running, tmp_path, capsys):
    """A copy is another folder, whatever stands in the copied lock; it is proven and goes on by
    itself."""
    shutil.copytree(running.folder, tmp_path / "m", ignore=shutil.ignore_patterns("*.sock"))
    assert command("status --json", tmp_path) == 0
    assert orjson.loads(capsys.readouterr().out)[0]["state"] == "died (resume it)"
    assert command("verify", tmp_path) == 0
    with serving(baseline) as server:
        assert command("resume", tmp_path, "--api-url", server.url) == 0
    assert command("verify", tmp_path) == 0


@pytest.mark.slow
def test_run_that_others_wanted_ends_whole(running):
    """Nothing that was tried beside it has changed its results: they are those of a run by
    itself."""
    running.go.set()
    shown, errors = running.process.communicate(timeout=60)
    assert running.process.returncode == 0, (shown, errors)
    assert command("verify", running.results) == 0
    assert answers(running.folder) == answers(running.results / "done")


@pytest.mark.slow
def test_lock_of_a_killed_run_is_free_at_once(tasks, tmp_path, capsys):
    """After kill -9 its name still stands in the lock, and stands in nobody's way."""
    with holding(tasks, tmp_path) as running:
        running.process.send_signal(signal.SIGKILL)
        running.process.wait()
        assert f'"pid":{running.process.pid}'.encode() in (running.folder / LOCK).read_bytes()
        assert command("status --json", tmp_path) == 0
        assert orjson.loads(capsys.readouterr().out)[0]["state"] == "died (resume it)"
        assert command("verify", tmp_path) == 0
    with serving(baseline) as server:
        assert command("resume", tmp_path, "--api-url", server.url) == 0
    assert command("verify", tmp_path) == 0


def test_models_of_a_queue_that_another_command_plays_keep_no_other_from_its_turn(
    tasks, tmp_path, capsys
):
    """Two queues share a model: the second plays the rest, says who has the shared one, and exits
    with 4."""
    with serving(baseline) as server:
        file = tmp_path / "providers.toml"
        file.write_text(
            f'[providers.p]\nbase_url = "{server.url}"\n[queues]\nq = ["p:shared", "p:own"]\n'
        )
        (tmp_path / "shared").mkdir()
        lock = RunLock(tmp_path / "shared" / LOCK, time.time)
        queue = [
            "--queue",
            "q",
            "--providers",
            str(file),
            "--platform",
            "weibo",
            "--tasks-dir",
            str(tasks),
        ]
        try:
            assert command("run", tmp_path, *queue) == 4
            told = capsys.readouterr().err
            assert f"shared: {tmp_path / 'shared'} is in use by process {os.getpid()}" in told
            assert [path.name for path in (tmp_path / "shared").iterdir()] == [LOCK]
        finally:
            lock.release()
        asked = len(server.bodies)
        assert command("verify", tmp_path, "--name", "own") == 0
        assert command("run", tmp_path, *queue) == 0
        assert len(server.bodies) == 2 * asked


INDEXING = """
import sys
from pathlib import Path
from harness.benchmarks.streamprofile.benchmark import StreamProfile
from harness.engine.files import index_file
tasks, results = map(Path, sys.argv[1:])
for turn in range(30):
    index = index_file(StreamProfile(), "weibo", tasks, results)
    assert [index.read(at)[:1] for at in range(len(index))] == [b"{"] * 6
    index.close()
    if turn % 3 == 0:
        for cache in (results / ".index").glob("*.npz"):
            cache.unlink(missing_ok=True)
"""


@pytest.mark.slow
def test_index_is_shared_by_processes_that_make_it_at_once(tasks, tmp_path):
    """Whoever finds none makes one, also while another does or takes it away; each reads a whole
    one."""
    words = [
        sys.executable,
        "-c",
        INDEXING,
        str(tasks / "weibo_inference_tasks.jsonl"),
        str(tmp_path),
    ]
    both = [subprocess.Popen(words, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    told = [one.communicate(timeout=60)[1] for one in both]
    assert [one.returncode for one in both] == [0, 0], told
    assert [path.suffix for path in (tmp_path / ".index").iterdir()] == [".npz"]


def test_index_that_another_process_replaces_or_spoils_is_made_again(tasks, results):
    """Half an index, none, or another's: it is only a cache."""
    (cache,) = (results / ".index").iterdir()
    for content in (cache.read_bytes()[:100], b"", b"PK\x03\x04"):
        cache.write_bytes(content)
        assert command("verify", results, "--name", "whole") == 0


# File systems without locks


def no_locks(fd: int, *_: int) -> None:
    raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))


@pytest.fixture
def without_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a network mount that has none: the lease has to do."""
    monkeypatch.setattr("fcntl.flock", no_locks)


@pytest.mark.usefixtures("without_locks")
def test_runs_work_where_the_file_system_has_no_locks(tasks, tmp_path, capsys):
    """A run, its proof and its second scoring; each leaves the folder free at once."""
    assert run(tasks, tmp_path, "m") == 0
    assert command("verify", tmp_path) == 0
    assert command("reeval", tmp_path) == 0
    assert (tmp_path / "m" / LOCK).read_bytes() == b""


@pytest.mark.usefixtures("without_locks")
@pytest.mark.parametrize("words", ["resume", "reeval", "verify"])
def test_lease_keeps_others_out_where_there_are_no_locks(words, results, capsys):
    """As long as it is renewed; one that was left counts for nothing once its time is over."""
    folder = results / "part"
    before, more = contents(folder), ["--name", "part"]
    with serving(baseline) as server:
        more += ["--api-url", server.url] if words == "resume" else []
        fresh = RunLock(folder / LOCK, time.time, no_locks)
        assert command(words, results, *more) == 4
        assert f"in use by process {os.getpid()}" in capsys.readouterr().err
        assert contents(folder) == before
        fresh.release()
        RunLock(folder / LOCK, lambda: time.time() - LEASE - 1, no_locks)  # its holder died
        assert command(words, results, *more) in (0, 1)


@pytest.mark.usefixtures("without_locks")
def test_status_goes_by_the_lease_where_there_are_no_locks(results, capsys):
    """Running while it is renewed, died once it is not."""
    path = results / "part" / "run_weibo.json"
    path.write_bytes(path.read_bytes().replace(b'"state": "incomplete"', b'"state": "running"'))
    for age, state in ((0.0, "running"), (LEASE + 1, "died (resume it)")):
        lock = RunLock(results / "part" / LOCK, lambda age=age: time.time() - age, no_locks)  # type: ignore[misc]
        assert command("status --json", results, "--name", "part") == 0
        assert orjson.loads(capsys.readouterr().out)[0]["state"] == state
        lock.release()


# Folders that cannot be written


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ("status", 0),
        ("verify", 0),
        ("stats", 0),
        ("reeval", 4),
        ("resume", 4),
        ("run", 4),
        ("run --restart", 4),
    ],
)
def test_folder_that_cannot_be_written_is_read_or_named(words, code, tasks, results, capsys):
    """What only looks shows what it finds; what has to write says so in a sentence. Nothing changes
    either way."""
    before = {path: path.read_bytes() for path in results.rglob("*") if path.is_file()}
    more = ["--name", "part"] if words != "stats" else []
    if words.startswith("run"):
        more += ["--model", "baseline/recency", "--platform", "weibo", "--tasks-dir", str(tasks)]
    with serving(baseline) as server, read_only(results):
        more += ["--api-url", server.url] if words.startswith(("run", "resume")) else []
        assert command(words, results, *more) == code
        assert server.bodies == []
    shown = capsys.readouterr()
    assert code == 0 or "Read-only file system" in shown.err
    if words in ("status", "verify", "stats"):
        assert "part" in shown.out
    assert {path: path.read_bytes() for path in results.rglob("*") if path.is_file()} == before


def test_tables_of_an_archive_can_be_written_elsewhere(results, tmp_path, capsys):
    """`stats` says how, after it has shown them."""
    with read_only(results):
        assert command("stats", results, "--excel") == 4
        assert "--out DIR" in capsys.readouterr().err
        assert command("stats", results, "--excel", "--out", str(tmp_path / "tables")) == 0
    assert list((tmp_path / "tables").glob("*.xlsx"))


# Folders that were moved


@pytest.mark.slow
def test_results_that_were_moved_are_proven_and_go_on_there(tasks, results, tmp_path):
    """A results folder holds nothing that ties it to its place."""
    moved = tmp_path / "elsewhere" / "结果"
    moved.parent.mkdir()
    results.rename(moved)
    assert command("verify", moved) == 0
    with serving(baseline) as server:
        assert command("resume", moved, "--api-url", server.url) == 0
    assert command("verify", moved) == 0
    assert command("reeval --reparse", moved) == 0
    assert answers(moved / "part") == answers(moved / "whole")
    assert not results.exists()


def test_tasks_that_were_moved_are_asked_for_by_name(tasks, tmp_path, capsys, monkeypatch):
    """Also where the run began with a path relative to another folder; nothing of the run is
    touched meanwhile."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    shutil.copytree(tasks, "tasks")
    assert run(Path("tasks"), Path("results"), "m") == 0
    monkeypatch.chdir(tmp_path)
    shutil.move("here/results", "results")
    before = contents(Path("results/m"))
    for words in ("verify", "reeval"):
        assert command(words, Path("results")) == 2
        assert (
            "does not exist: name the folder that has it with --tasks-dir"
            in capsys.readouterr().err
        )
        assert contents(Path("results/m")) == before
        assert command(words, Path("results"), "--tasks-dir", "here/tasks") == 0


def test_two_models_answers_in_one_folder_are_refused(results, tasks, capsys):
    """A copy under the name of another configuration is not gone on with."""
    shutil.copytree(results / "part", results / "random")
    with serving(lambda request: (200, completion("{}"))) as server:
        code = main(
            [
                *(
                    "run",
                    "--model",
                    "baseline/random",
                    "--platform",
                    "weibo",
                    "--api-url",
                    server.url,
                ),
                *("--tasks-dir", str(tasks), "--results-dir", str(results)),
            ]
        )
        assert (code, server.bodies) == (2, [])
    assert "holds a run of another configuration: model was" in capsys.readouterr().err
