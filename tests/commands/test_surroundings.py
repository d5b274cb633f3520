"""What surrounds a command: the home folder, variables about terminals, signals that are ignored,
files of keys."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from harness.cli import main
from harness.store.files import RunFiles
from harness.store.manifest import COMPLETE, load
from tests.support import first_quick
from tests.support.scripted import baseline, serving

DEMO = ("run", "--subset", "weibo", "--demo", "--limit", "3", "--no-html")
Messages = pytest.CaptureFixture[str]


@pytest.fixture
def results(tmp_path: Path) -> Path:
    assert (
        main([*DEMO, "--model", "baseline/recency", "--results-dir", str(tmp_path / "results")])
        == 0
    )
    return tmp_path / "results"


def command(*words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Execute a command in a process whose output goes to a pipe."""
    environment = {
        name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")
    }
    return subprocess.run(
        [sys.executable, "-m", "harness", *words],
        capture_output=True,
        text=True,
        env={**environment, "TERM": "xterm-256color", **variables},
    )


def test_tilde_after_an_equals_sign_is_the_home_folder(tmp_path, monkeypatch):
    """No shell replaces it there; a folder called `~` is never meant."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert main([*DEMO, "--model", "baseline/recency", "--results-dir=~/runs"]) == 0
    assert (tmp_path / "home" / "runs" / "demo-recency" / "eval_report_weibo.json").is_file()
    assert not (tmp_path / "here" / "~").exists()
    assert main(["export", "--results-dir=~/runs", "--out=~/rows.csv"]) == 0
    assert (tmp_path / "home" / "rows.csv").is_file()


@pytest.mark.parametrize("variable", first_quick(["FORCE_COLOR", "TTY_COMPATIBLE"]))
def test_variable_for_colours_makes_no_terminal_of_a_log(variable, tmp_path):
    """A board that is redrawn would fill it."""
    words = (*DEMO, "--model", "baseline/recency", "--results-dir", str(tmp_path))
    shown = command(*words, **{variable: "1"}).stdout
    assert "recency: 3/3" in shown
    assert not any(control in shown for control in ("\x1b[?25", "\x1b[2K", "\x1b[1A", "\r"))


def ignore_interrupts() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)


@pytest.mark.slow
def test_interrupt_that_is_ignored_stays_ignored(tmp_path):
    """As shells have it for what a script starts in the background: Ctrl-C is for the script."""
    asked, go = threading.Event(), threading.Event()

    def script(request: dict[str, Any]) -> tuple[int, bytes]:
        asked.set()
        assert go.wait(60)
        return baseline(request)

    with serving(script) as server:
        words = (*DEMO, "--model", "m", "--api-url", server.url, "--results-dir", str(tmp_path))
        process = subprocess.Popen(
            [sys.executable, "-m", "harness", *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            preexec_fn=ignore_interrupts,
        )
        try:
            assert asked.wait(60)
            for _ in range(2):
                process.send_signal(signal.SIGINT)
        finally:
            go.set()
            messages = process.communicate()
    assert process.returncode == 0, messages
    manifest = load(RunFiles(tmp_path / "demo-m", "weibo").manifest)
    assert manifest and manifest.state == COMPLETE


def test_byte_order_mark_is_no_part_of_a_key(tmp_path, capsys):
    """Editors put one before what they save; it is no sign that a header can have."""
    (tmp_path / "key").write_text("sk-marked\r\n", encoding="utf-8-sig")
    with serving(baseline) as server:
        words = [
            *DEMO,
            "--model",
            "m",
            "--api-url",
            server.url,
            "--api-key-file",
            str(tmp_path / "key"),
        ]
        assert main([*words, "--results-dir", str(tmp_path / "results")]) == 0
    assert {*server.keys} == {"Bearer sk-marked"}
