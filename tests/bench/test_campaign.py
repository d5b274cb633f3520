"""The crash campaign in small: every kind of blow, both benchmarks, and what the campaign itself
would notice."""

from __future__ import annotations

import random
import sys
from fractions import Fraction
from pathlib import Path
from typing import Any

import orjson
import pytest

from bench.blows import (
    BLOWS,
    ORPHANED,
    Manner,
    Moment,
    live,
)
from bench.campaign import SUBJECTS, conduct, planned
from bench.tally import Seen, look, losses, told
from harness.model import JSON
from harness.store.log import encode_line

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
def test_runs_that_are_struck_in_every_way_end_as_an_undisturbed_one(folder):
    """SIGKILL at any moment and at writes, SIGTERM, SIGUSR1, SIGINT once and twice, SIGSTOP, a
    parent that dies: no user and no reply is lost or doubled, files are byte-identical, and only
    requests on the wire are paid twice. Over platforms and models at once, plans and an agent,
    streams and whole replies, both durabilities."""
    blows = planned(2, random.Random(2))
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
    (run / "inference_results_weibo.jsonl").write_bytes(b"".join(map(encode_line, records)) + torn)
    (run / "responses_weibo.jsonl").write_bytes(b"".join(map(encode_line, replies)))
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


def test_losses_and_doubles_are_noticed(tmp_path):
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


def test_cost_is_counted_of_the_run_s_own_replies(tmp_path):
    """1 CNY each at the price of the campaign, half of it in a batch, nothing for a reply of
    another run."""
    seen = look(
        folder_of(tmp_path, [], [reply("a"), reply("b", batch=True), reply("c", reused="other")])
    )
    assert (seen.costs, seen.reused) == ({("run", "weibo"): Fraction(3, 2)}, 1)


@on_linux
@pytest.mark.parametrize(
    "unread", [False, True], ids=["to a file", "to a pipe that nobody reads any more"]
)
def test_orphan_outlives_its_parent(tmp_path, unread):
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
