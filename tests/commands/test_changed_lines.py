"""Files of a run whose lines another program has changed: their ends, or all of them."""

from __future__ import annotations

import shlex
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

from harness.benchmarks.streamprofile.synth import generate
from harness.cli import main
from tests.support import first_quick
from tests.support.commands import execute
from tests.support.scripted import Server, baseline, serving

Messages = pytest.CaptureFixture[str]
Change = Callable[[bytes], bytes]
TASKS, RECORDS = "weibo_inference_tasks.jsonl", "inference_results_weibo.jsonl"
LEDGER = "budget.jsonl"
LOGS = (RECORDS, "responses_weibo.jsonl", "failures_weibo.jsonl", "run_weibo.log")


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tasks")
    (folder / TASKS).write_bytes(b"".join(generate("weibo", 6, 5, 2.0)))
    return folder


@pytest.fixture(scope="module")
def finished(tasks: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run in which one user has failed after a reply, with a budget."""
    folder = tmp_path_factory.mktemp("finished")
    users = map(orjson.loads, (tasks / TASKS).read_bytes().splitlines())
    name = max(users, key=lambda user: user["total_steps"])["username"]
    asked: list[object] = []

    def second_request_of_a_user_fails(request: dict[str, Any]) -> tuple[int, bytes]:
        if name in request["messages"][-1]["content"]:
            asked.append(None)
            if len(asked) > 1:
                return 400, b'{"error":"no"}'
        return baseline(request)

    with serving(second_request_of_a_user_fails) as server:
        words = [
            "run",
            "--model",
            "m",
            "--platform",
            "weibo",
            "--tasks-dir",
            str(tasks),
            "--budget",
            "1000000tok",
        ]
        execute(folder, *words, "--api-url", server.url, code=1)
    assert len(asked) == 2
    return folder


@pytest.fixture
def results(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "results"))


def resume(results: Path) -> tuple[int, Server]:
    with serving(baseline) as server:
        words = [
            "resume",
            "--results-dir",
            str(results),
            "--api-url",
            server.url,
            "--budget",
            "1000000tok",
        ]
        return main(words), server


def windows(content: bytes) -> bytes:
    return content.replace(b"\n", b"\r\n")


def spaces(content: bytes) -> bytes:
    return content.replace(b"\n", b" \t\n") + b"\n\n"


def without_last_end(content: bytes) -> bytes:
    return windows(content).rstrip() + b"\r"


@pytest.mark.parametrize(
    "change", [windows, spaces, without_last_end], ids=lambda change: change.__name__
)
def test_white_space_at_the_ends_of_lines_costs_nothing(
    change, tmp_path, results, finished, capsys
):
    """As version control changes them: nothing is set aside, nothing requested again, and all
    figures are the same."""
    undisturbed = Path(shutil.copytree(finished, tmp_path / "undisturbed"))
    for path in [
        results / LEDGER,
        *(path for path in (results / "m").iterdir() if path.name != "run_weibo.lock"),
    ]:
        if not path.name.startswith("prompt"):
            path.write_bytes(change(path.read_bytes()))
    shown = []
    for folder in (undisturbed, results):
        capsys.readouterr()
        execute(folder, "status", "--json")
        shown.append(orjson.loads(capsys.readouterr().out))
    assert shown[0] == shown[1] and shown[0][0]["done"] == 5
    execute(results, "export", "m", "--rows", "users", "--format", "csv")
    assert len((results / "m" / "export_users_weibo.csv").read_bytes().splitlines()) == 6
    (code, server), (_, expected) = resume(results), resume(undisturbed)
    assert code == 0 and sorted(server.bodies) == sorted(expected.bodies) and expected.bodies
    assert (results / "m" / RECORDS).read_bytes() == (undisturbed / "m" / RECORDS).read_bytes()
    assert [*results.rglob("*.torn")] == []
    (results / "m" / RECORDS).write_bytes(windows((results / "m" / RECORDS).read_bytes()))
    execute(results, "verify")
    code, server = resume(results)
    assert (code, server.bodies) == (0, [])


def spoilt(content: bytes) -> bytes:
    return content.replace(b'"crc":"', b'"crc":"x')


def utf16(content: bytes) -> bytes:
    return content.decode().encode("utf-16")


def indented(content: bytes) -> bytes:
    return b"\n".join(b" " + line for line in content.splitlines()) + b"\n"


@pytest.mark.parametrize(
    "change", first_quick([spoilt, utf16, indented]), ids=lambda change: change.__name__
)
@pytest.mark.parametrize("name", LOGS)
def test_file_that_is_damaged_as_a_whole_stops_the_run(name, change, results, capsys):
    """Nothing is paid for again; the message has the command after which the run goes on without
    the file."""
    path = results / "m" / name
    path.write_bytes(change(path.read_bytes()))
    before = path.read_bytes()
    code, server = resume(results)
    message = capsys.readouterr().err
    assert (code, server.bodies, path.read_bytes()) == (2, [], before)
    assert f"{path}: no line of it is as a run wrote it" in message
    command = next(line for line in message.splitlines() if "mv " in line).partition("mv ")[2]
    subprocess.run(["mv", *shlex.split(command)], check=True)
    assert resume(results)[0] == 0


@pytest.mark.parametrize("words", ["status", "export m --rows users --format csv", "show m"])
def test_results_that_are_damaged_as_a_whole_are_not_taken_for_none(words, results, capsys):
    """Commands that only read them say so, too, and do not end with 0."""
    path = results / "m" / RECORDS
    path.write_bytes(spoilt(path.read_bytes()))
    execute(results, *words.split(), code=2)
    assert f"{path}: no line of it is as a run wrote it" in capsys.readouterr().err
    assert not (results / "m" / "export_users_weibo.csv").exists()


def test_ledger_that_is_damaged_as_a_whole_stops_the_run(results, capsys):
    """A budget would begin again from nothing."""
    path = results / LEDGER
    path.write_bytes(spoilt(path.read_bytes()))
    code, server = resume(results)
    assert (code, server.bodies) == (2, [])
    assert f"{path}: no line of it is as a run wrote it" in capsys.readouterr().err
