"""The option `--hedge` of `run` and `resume`."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import orjson

from harness.client import latency
from harness.extensions.hedging import hedging
from tests.commands.test_commands import run, write_tasks
from tests.support.scripted import baseline, serving


def tuning(out: Path) -> dict[str, Any]:
    found: dict[str, Any] = orjson.loads((out / "m/run_weibo.json").read_bytes())["tuning"]
    return found


def test_request_that_hangs_is_sent_again(tmp_path, monkeypatch):
    """The manifest has the option and the number of such requests."""
    for name, value in (("LEAST_SECONDS", 0.0), ("LOOK_SECONDS", 0.01)):
        monkeypatch.setattr(hedging, name, value)
    monkeypatch.setattr(latency, "MIN_REPLIES", 5)
    write_tasks(tasks := tmp_path / "tasks", 12)
    arrived, sent_again = list[bytes](), threading.Event()

    def hangs(body: dict[str, Any]) -> tuple[int, bytes]:
        arrived.append(orjson.dumps(body))
        if arrived.count(arrived[-1]) == 2:
            sent_again.set()
        elif len(arrived) >= 10:
            sent_again.wait(60)
        return baseline(body)

    with serving(hangs) as server:
        assert run(tasks, tmp_path / "out", "--api-url", server.url, "--hedge", "5", model="m") == 0
    assert sent_again.is_set()
    assert tuning(tmp_path / "out")["hedge"] == 5 and tuning(tmp_path / "out")["hedged"] >= 1
