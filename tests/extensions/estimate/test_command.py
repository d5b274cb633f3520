"""`run --estimate`: a few users are played and kept, and the rest follows if somebody agrees."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import orjson
import pytest

from harness.cli import main
from tests.support import SHIPPED
from tests.support.scripted import baseline, serving

FEW = ("--limit", "12")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def run(tmp_path: Path, url: str, *words: str) -> int:
    where = [
        *SHIPPED,
        "--platform",
        "weibo",
        "--sample-seed",
        "1",
        "--no-html",
        "--results-dir",
        str(tmp_path / "r"),
        "--api-url",
        url,
    ]
    return main(["run", *where, *words])


def users(tmp_path: Path, name: str = "m") -> int:
    return len((tmp_path / "r" / name / "inference_results_weibo.jsonl").read_bytes().splitlines())


def state(tmp_path: Path, name: str = "m") -> str:
    found: str = orjson.loads((tmp_path / "r" / name / "run_weibo.json").read_bytes())["state"]
    return found


@pytest.mark.slow
def test_without_agreement_the_run_ends_after_its_first_users(tmp_path, capsys):
    """Exit 5, with the estimate and the command that goes on; nothing that was paid for is asked
    again. Another estimate has the same first users."""
    with serving(baseline) as server:
        assert run(tmp_path, server.url, "--model", "m", *FEW, "--estimate") == 5
        asked = len(server.bodies)
        assert run(tmp_path, server.url, "--model", "m", *FEW, "--estimate") == 5
        assert len(server.bodies) == asked
        first, out = len(server.bodies), capsys.readouterr().out
        assert (users(tmp_path), state(tmp_path)) == (10, "stopped")
        assert "requests" in out and "resume --name m" in out and "--yes" in out
        again = [
            "resume",
            "--results-dir",
            str(tmp_path / "r"),
            "--no-html",
            "--api-url",
            server.url,
        ]
        assert main(again) == 0
        assert (users(tmp_path), state(tmp_path)) == (12, "complete")
        assert first < len(server.bodies) == len(set(server.bodies))


@pytest.mark.slow
def test_first_users_are_of_all_lengths(tmp_path):
    """One of each tenth of the chains: what they take a step is that of all."""
    with serving(baseline) as server:
        assert run(tmp_path, server.url, "--model", "m", "--limit", "40", "--estimate") == 5
        first = len(server.bodies)
        assert run(tmp_path / "all", server.url, "--model", "m", "--limit", "40") == 0
    assert abs(first / 10 - (len(server.bodies) - first) / 40) < 1


def test_with_yes_the_run_goes_on(tmp_path):
    """The results are those of a run without an estimate, by the same requests."""
    with serving(baseline) as server:
        assert run(tmp_path / "a", server.url, "--model", "m", *FEW, "--estimate", "--yes") == 0
        estimated = sorted(server.bodies)
        assert run(tmp_path / "b", server.url, "--model", "m", *FEW) == 0
    assert sorted([*estimated, *estimated]) == sorted(server.bodies)
    a, b = ((tmp_path / side / "r/m/inference_results_weibo.jsonl").read_bytes() for side in "ab")
    assert a == b


@pytest.mark.parametrize(
    ("answer", "left", "code"),
    [
        ("y\n", 12, 0),
        ("\n", 10, 5),
        *[pytest.param(no, 10, 5, marks=pytest.mark.slow) for no in ("n\n", "")],
    ],
)
def test_one_question_for_all_models(answer, left, code, tmp_path, monkeypatch):
    """On a terminal the user decides, once; the end of the input is no agreement."""
    stdin, stderr = Terminal(answer), Terminal()
    monkeypatch.setattr(sys, "stdin", stdin)
    monkeypatch.setattr(sys, "stderr", stderr)
    with serving(baseline) as server:
        assert run(tmp_path, server.url, "--model", "m", "--model", "n", *FEW, "--estimate") == code
    assert [users(tmp_path, name) for name in "mn"] == [left, left]
    assert stderr.getvalue().count("?") == 1


def test_run_that_its_first_users_complete_is_complete(tmp_path):
    with serving(baseline) as server:
        assert run(tmp_path, server.url, "--model", "m", "--limit", "4", "--estimate") == 0
    assert state(tmp_path) == "complete"


def test_yes_needs_an_estimate(tmp_path):
    assert run(tmp_path, "http://127.0.0.1:9/v1", "--model", "m", "--yes") == 2
