"""Who answered a run's requests: kept with each reply, counted, reported, and a warning where it is
another model."""

from __future__ import annotations

import signal
import subprocess
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from threading import Event
from typing import Any

import orjson
import pytest

from bench.processes import HARNESS
from harness.store.log import decode_line, encode_line, valid_lines
from tests.support.plugins import Commands
from tests.support.processes import wait_for
from tests.support.scripted import answerer_of, baseline, by_turns, serving

ASKED = "big-model"
TWO_MODELS = {"model": "vendor/big-model"}, {"model": "vendor/big-model-fp4"}
RUN = (
    "run",
    "--demo",
    "--platform",
    "weibo",
    "--limit",
    "8",
    "--no-html",
    "--model",
    ASKED,
    "--name",
    "r",
)
WARNING = f"warning: {ASKED} was asked for, and several models answered: "


def expected(
    bodies: Sequence[bytes], answerers: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """What a report has of replies to these requests."""
    counts = Counter(orjson.dumps(answerer_of(orjson.loads(body), answerers)) for body in bodies)
    found = [{**orjson.loads(answerer), "replies": replies} for answerer, replies in counts.items()]
    return sorted(found, key=lambda answerer: -answerer["replies"])


def answered_by(commands: Commands) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (
        commands.report("r", "weibo").get("replies", {}).get("answered_by", [])
    )
    return found


def test_report_says_who_answered_and_the_run_warns_once(tmp_path, capsys):
    """Two models by turns: shares in text and JSON, the same in the manifest, and one line at the
    end of the run."""
    commands = Commands(tmp_path, capsys)
    with serving(by_turns(*TWO_MODELS)) as server:
        shown = commands(*RUN, "--api-url", server.url)
    found, total = answered_by(commands), len(server.bodies)
    assert found == expected(server.bodies, TWO_MODELS) and len(found) == 2
    assert shown.count(WARNING) == 1
    first, second = [
        f"{one['model']} {100 * one['replies'] / total:.0f} % ({one['replies']})" for one in found
    ]
    text = " ".join(commands.text("r", "eval_report_weibo.txt").split())
    assert f"Answered by: {first}, {second} of {total} replies." in text
    assert orjson.loads((tmp_path / "r/run_weibo.json").read_bytes())["replies"] == {
        "answered_by": found
    }
    assert "several models" not in commands(*RUN, "--api-url", server.url)  # it is complete


@pytest.mark.slow
@pytest.mark.parametrize(
    ("answerers", "warning"),
    [
        ([{"model": ASKED}], ""),
        ([{"model": f"{ASKED}-2026-07-18"}], ""),
        (
            [{"model": f"{ASKED}-2026-07-18"}, {"model": f"{ASKED}-2026-09-01"}],
            "several models answered: ",
        ),
        ([{"model": ASKED}, {"model": f"{ASKED}-2026-07-18"}], "several models answered: "),
        ([{"model": "small-model"}], "and small-model answered"),
        ([{"model": f"{ASKED}-fp4"}], f"and {ASKED}-fp4 answered"),
        ([{"model": ASKED, "provider": "A"}, {"model": ASKED, "provider": "B"}], ""),
        ([{"model": "big\n\x1b[31m"}], "and big\\n\\x1b[31m answered"),
    ],
)
def test_another_model_is_warned_of_and_a_dated_snapshot_is_not(
    answerers,
    warning,
    tmp_path,
    capsys,
):
    """The report counts all of them."""
    commands = Commands(tmp_path, capsys)
    with serving(by_turns(*answerers)) as server:
        shown = commands(*RUN, "--api-url", server.url)
    assert answered_by(commands) == expected(server.bodies, answerers)
    assert shown.count(f"warning: {ASKED} was asked for, ") == bool(warning) and warning in shown


def test_provider_and_fingerprint_are_shown_where_they_differ(tmp_path, capsys):
    """Both are saved with each reply as they were sent; one that is the same for all is in the JSON
    alone."""
    commands = Commands(tmp_path, capsys)
    two = [{"model": ASKED, "provider": name, "system_fingerprint": "fp_1"} for name in "AB"]
    with serving(by_turns(*two)) as server:
        commands(*RUN, "--api-url", server.url)
    assert answered_by(commands) == expected(server.bodies, two)
    text = " ".join(commands.text("r", "eval_report_weibo.txt").split())
    assert (
        f"{ASKED} (provider A)" in text and f"{ASKED} (provider B)" in text and "fp_1" not in text
    )
    for line in valid_lines(tmp_path / "r/responses_weibo.jsonl"):
        saved = decode_line(line.text)["completion"]
        assert saved["provider"] in "AB" and saved["system_fingerprint"] == "fp_1"


@pytest.mark.slow
def test_run_that_was_killed_reports_what_the_whole_run_does(tmp_path, capsys):
    """SIGKILL in the middle, then `resume`: replies of both processes are counted, and it warns
    once."""
    commands, is_dead = Commands(tmp_path, capsys), Event()
    answer = by_turns(*TWO_MODELS)
    with serving(answer) as server:
        commands(*RUN, "--api-url", server.url, "--name", "whole")
    whole = commands.report("whole", "weibo")["replies"]
    responses = tmp_path / "r/responses_weibo.jsonl"

    def until_killed(body: dict[str, Any]) -> tuple[int, bytes]:
        if len(server.bodies) > 12:
            is_dead.wait()
        return answer(body)

    with serving(until_killed) as server:
        words = [
            *HARNESS,
            *RUN,
            "--api-url",
            server.url,
            "--results-dir",
            str(tmp_path),
            "--concurrency",
            "4",
        ]
        with subprocess.Popen(words, stdout=subprocess.DEVNULL) as process:
            wait_for(lambda: len(list(valid_lines(responses))) >= 12)
            process.send_signal(signal.SIGKILL)
        is_dead.set()
        saved = len(list(valid_lines(responses)))
        shown = commands("resume", "--name", "r", "--no-html")
    assert 0 < saved < sum(answerer["replies"] for answerer in whole["answered_by"])
    assert commands.report("r", "weibo")["replies"] == whole
    assert shown.count(WARNING) == 1


def rewritten(path: Path, which: int) -> None:
    """Take out who answered of every n-th saved reply, as if an earlier version had not kept it."""
    lines = [decode_line(line.text) for line in valid_lines(path)]
    for line in lines[::which]:
        line["completion"]["model"] = None
    path.write_bytes(b"".join(map(encode_line, lines)))


@pytest.mark.parametrize("which", [1, 2])
def test_replies_that_do_not_say_who_answered_are_not_known(which, tmp_path, capsys):
    """That is said where some are known. Where none is, nothing is said, and the manifest is as
    before."""
    commands = Commands(tmp_path, capsys)
    with serving(by_turns({"model": ASKED})) as server:
        commands(*RUN, "--api-url", server.url)
    manifest = tmp_path / "r/run_weibo.json"
    data = orjson.loads(manifest.read_bytes())
    del data["replies"]
    manifest.write_bytes(orjson.dumps(data | {"state": "running", "results_sha256": None}))
    for path in (tmp_path / "r").glob("eval_report*"):
        path.unlink()
    rewritten(tmp_path / "r/responses_weibo.jsonl", which)
    commands("report", "--name", "r")
    total = len(server.bodies)
    unknown = -(-total // which)
    known = [{"replies": total - unknown, "model": ASKED}] if unknown < total else []
    assert sorted(answered_by(commands), key=str) == sorted(
        [*known, {"replies": unknown}] if known else [], key=str
    )
    text = commands.text("r", "eval_report_weibo.txt")
    assert (
        f"not known {100 * unknown / total:.0f} % ({unknown})" in " ".join(text.split())
    ) == bool(known)
    assert ("replies" in orjson.loads(manifest.read_bytes())) == bool(known)


@pytest.mark.slow
def test_endless_fingerprints_neither_fill_the_report_nor_lose_a_reply(tmp_path, capsys):
    """An endpoint may send another one with each reply: a hundred are told apart."""
    commands = Commands(tmp_path, capsys)

    def script(body: dict[str, Any]) -> tuple[int, bytes]:
        status, reply = baseline(body)
        return status, orjson.dumps(
            orjson.loads(reply) | {"system_fingerprint": f"fp_{len(server.bodies)}"}
        )

    words = ["40" if word == "8" else word for word in RUN]
    with serving(script) as server:
        commands(*words, "--api-url", server.url, "--concurrency", "1")
    found = answered_by(commands)
    assert len(server.bodies) > len(found) == 101
    assert sum(answerer["replies"] for answerer in found) == len(server.bodies)
    assert " more of " in " ".join(commands.text("r", "eval_report_weibo.txt").split())
