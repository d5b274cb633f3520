"""The crash campaign in small: every kind of blow, both benchmarks, and what the campaign itself
would notice."""

from __future__ import annotations

import random
import sys
from collections import Counter, deque
from fractions import Fraction
from pathlib import Path
from typing import Any

import orjson
import pytest

from bench.blows import (
    BLOWS,
    INTERRUPT,
    KILL,
    NONE,
    ORPHANED,
    STOPPED,
    TERM,
    TWICE,
    USR1,
    Blow,
    Life,
    Manner,
    Moment,
    awaited,
    live,
)
from bench.campaign import SUBJECTS, conduct, planned
from bench.tally import Seen, look, losses, told, traced, wrong_end
from harness.model import JSON
from harness.store.log import seal

on_linux = pytest.mark.skipif(
    not Path("/proc/self/status").exists(), reason="processes are watched through /proc"
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where processes write, the details of defects too; what they ask goes to loopback."""
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.setenv(name, "127.0.0.1")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return tmp_path


STRUCK = [subject for subject in SUBJECTS if subject.name not in ("two platforms", "plans")]
"""Those that two models play have several platforms, and plans, too."""


@pytest.mark.slow
@on_linux
def test_runs_that_are_struck_in_every_way_end_as_an_undisturbed_one(folder: Path) -> None:
    """SIGKILL at any moment and at writes, SIGTERM, SIGUSR1, SIGINT once and twice, SIGSTOP, a
    parent that dies: no user and no reply is lost or doubled, files are byte-identical, and only
    requests on the wire are paid twice. Over platforms and models at once, plans and an agent,
    streams and whole replies, both durabilities."""
    blows = planned(6, random.Random(2))
    assert set(blows) == set(BLOWS)
    due = len(blows)
    found = conduct(folder, STRUCK, blows, workers=len(STRUCK), pause=6.0, life=1.0, seed=2)
    assert not found.findings, told(found, 0.0)
    assert found.struck == due
    assert found.runs["runs of streamprofile"] and found.runs["runs of dailymobility"]


def folder_of(path: Path, records: list[JSON], replies: list[JSON], torn: bytes = b"") -> Path:
    """A results folder with one run in it."""
    run = path / "results" / "run"
    run.mkdir(parents=True, exist_ok=True)
    (run / "run_weibo.json").write_bytes(MANIFEST)
    (run / "inference_results_weibo.jsonl").write_bytes(b"".join(map(seal, records)) + torn)
    (run / "responses_weibo.jsonl").write_bytes(b"".join(map(seal, replies)))
    return path / "results"


MANIFEST = orjson.dumps(
    {
        "subset": "weibo",
        "identity": {
            "benchmark": "streamprofile",
            "model": "m",
            "sampling": {},
            "settings": {},
            "files": {},
        },
        "provenance": {"endpoint": "http://127.0.0.1:1/v1", "key_from": None},
        "tuning": {},
        "tasks": {"path": "t", "sha256": "", "users": 2},
        "selection": {"ratio": 1.0, "sample_seed": 42},
        "state": "running",
        "counts": {},
        "times": {"created": "2026-01-01T00:00:00+00:00"},
        "format": 1,
    }
)


def reply(user: str, request: str = "r", **more: Any) -> JSON:
    tokens = {"prompt_tokens": 300_000, "completion_tokens": 50_000}
    return {"user_id": user, "request": request, "nth": 0, "completion": tokens, **more}


def test_losses_and_doubles_are_noticed(tmp_path: Path) -> None:
    """A record or reply that has gone, and one that stands twice; none of it in a folder that only
    grew."""
    first = look(
        folder_of(tmp_path, [{"user_id": "a"}, {"user_id": "b"}], [reply("a"), reply("b")])
    )
    assert set(losses(Seen(), first).values()) == {0}
    then = look(
        folder_of(
            tmp_path, [{"user_id": "a"}, {"user_id": "a"}], [reply("a"), reply("a"), reply("c")]
        )
    )
    assert losses(first, then) == {"lost": 1, "doubled": 1, "replies_lost": 1, "replies_doubled": 1}


def test_cost_is_counted_of_the_run_s_own_replies(tmp_path: Path) -> None:
    """1 CNY each at the price of the campaign, half of it in a batch, nothing for a reply of
    another run."""
    seen = look(
        folder_of(tmp_path, [], [reply("a"), reply("b", batch=True), reply("c", reused="other")])
    )
    assert (seen.costs, seen.reused) == ({("run", "weibo"): Fraction(3, 2)}, 1)


@pytest.mark.parametrize(
    ("blow", "life"),
    [
        (TERM, Life(130, True, False, "")),
        (KILL, Life(1, True, False, "")),
        (NONE, Life(137, False, False, "")),
        (ORPHANED, Life(None, True, True, "")),
    ],
)
def test_wrong_ends_are_noticed(blow: Blow, life: Life) -> None:
    """Another exit code than promised, or a process that never ends."""
    assert wrong_end(blow, life)


@pytest.mark.parametrize(
    ("blow", "code"),
    [
        (TERM, 143),
        (USR1, 143),
        (INTERRUPT, 130),
        (TWICE, 130),
        (KILL, 137),
        (STOPPED, 0),
        (TERM, 0),
    ],
)
def test_promised_ends_are_none_to_tell_of(blow: Blow, code: int) -> None:
    """The exit codes of docs/design.md, section 6; a process that was done already ends with 0."""
    life = Life(code, True, False, "interrupted")
    assert not wrong_end(blow, life)
    assert not traced(life)


def test_traceback_is_noticed() -> None:
    """Whatever the exit code."""
    assert traced(Life(130, True, False, "interrupted\nTraceback (most recent call last)\n"))


def test_torn_line_is_no_record(tmp_path: Path) -> None:
    """Half a line at the end of a killed writer's file counts neither as a user nor as an error."""
    seen = look(folder_of(tmp_path, [{"user_id": "a"}], [], torn=b'{"user_id":"b"'))
    assert list(seen.users) == [("run", "weibo", "a", 1)]


def test_moment_at_a_write_comes_with_the_change_and_not_before(tmp_path: Path) -> None:
    """Growth is counted of files with the target in their names only; a replaced file is a change
    of name."""
    file, other = tmp_path / "responses_x", tmp_path / "log"
    steps = deque([(other, "a"), (file, "a"), (file, "ab")])

    def ended() -> bool:
        if steps:
            path, text = steps.popleft()
            path.write_text(text)
        return False

    other.write_text("")
    assert awaited(Moment(60.0, "responses_", 1, grown=True), tmp_path, ended)
    assert not steps

    def replaced() -> bool:
        fresh = tmp_path / "fresh"
        fresh.write_text("abc")
        fresh.replace(file)
        return False

    assert awaited(Moment(60.0, "responses_", 1), tmp_path, replaced)


def test_process_that_ends_by_itself_was_not_struck(tmp_path: Path) -> None:
    """Its own exit code is reported, with what it said on both streams."""
    command = [sys.executable, "-c", "import sys; print('a'); sys.exit('b')"]
    life = live(command, KILL, Moment(60.0), Manner(0.0), tmp_path, tmp_path / "said")
    assert (life.code, life.struck, life.hung, sorted(life.said.split())) == (
        1,
        False,
        False,
        ["a", "b"],
    )


@on_linux
@pytest.mark.parametrize(
    "unread", [False, True], ids=["to a file", "to a pipe that nobody reads any more"]
)
def test_orphan_outlives_its_parent(tmp_path: Path, unread: bool) -> None:
    """The shell is killed at the first write; the process goes on to its own end."""
    words = (
        "import pathlib, sys; f = pathlib.Path(sys.argv[1]); f.write_text('a'); sys.stdin.read();"
        " f.write_text('b')"
    )
    file = tmp_path / "file"
    command = [sys.executable, "-c", words, str(file)]
    life = live(
        command,
        ORPHANED,
        Moment(60.0, "file"),
        Manner(0.0, unread=unread),
        tmp_path,
        tmp_path / "said",
    )
    assert not life.hung
    assert file.read_text() == "b"


def test_half_of_the_kills_are_at_writes() -> None:
    """A hundred kills come with all other blows in proportion, in an order drawn from the seed."""
    blows = planned(100, random.Random(1))
    counts = Counter(blow.name for blow in blows)
    assert [counts[blow.name] for blow in BLOWS] == [50, 50, 6, 6, 8, 6, 2, 5]
    assert planned(100, random.Random(1)) == blows != planned(100, random.Random(2))
