"""What the user allows counts, as long as it is unchanged."""

from __future__ import annotations

import io
import subprocess
import sys
from hashlib import sha256
from pathlib import Path

import pytest

from harness.cli import main
from harness.commands.parser import parsed
from harness.options.user_files import SETTINGS as FILE
from tests.safety.test_working_folder import folder
from tests.support import Terminal

__all__ = ["folder"]


def test_allowed_file_counts_until_it_changes_and_nowhere_else(folder, monkeypatch, capsys):
    """The record is of path and bytes: a changed file, a copy, a link and another user's record are
    not it."""
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\ny\n"))
    text = 'rpm = 3\nresults-dir = "\x1b[2J结果"\n'.replace("\x1b", "\\u001b")
    Path(FILE).write_text(text.replace("\\u001b[2J", ""), encoding="utf-8")
    assert parsed(["resume"]).args.rpm is None
    assert main(["trust"]) == 0
    assert "结果" in capsys.readouterr().out
    assert parsed(["resume"]).args.rpm == 3
    (record,) = (folder.parent / "home/.local/state/behavior-harness/trusted").iterdir()
    assert record.stat().st_mode & 0o777 == 0o600
    assert record.read_text().split() == [
        sha256(Path(FILE).read_bytes()).hexdigest(),
        str(folder / FILE),
    ]

    (folder.parent / "copy").mkdir()
    (folder.parent / "copy" / FILE).write_bytes(Path(FILE).read_bytes())
    (folder.parent / "link").mkdir()
    (folder.parent / "link" / FILE).symlink_to(folder / FILE)
    for other in ("copy", "link"):
        monkeypatch.chdir(folder.parent / other)
        assert parsed(["resume"]).args.rpm is None
    monkeypatch.chdir(folder)
    record.chmod(0o644)
    assert parsed(["resume"]).args.rpm is None
    record.chmod(0o600)
    assert parsed(["resume"]).args.rpm == 3
    Path(FILE).write_text("rpm = 4\n", encoding="utf-8")
    assert parsed(["resume"]).args.rpm is None
    assert main(["trust"]) == 0
    assert parsed(["resume"]).args.rpm == 4


def test_trust_refuses_what_no_command_could_use(capsys):
    """Neither file is here; one that is no TOML is named with its line and not recorded."""
    assert main(["trust"]) == 2
    Path(FILE).write_text("rpm = 3\n[run\n", encoding="utf-8")
    assert main(["trust"]) == 2
    assert "harness.toml, line 2" in capsys.readouterr().err
    assert parsed(["resume"]).args.rpm is None


def test_only_a_yes_records_the_file(monkeypatch):
    """On a terminal and from a pipe."""
    for stdin in (Terminal, io.StringIO):
        Path(FILE).write_text(f"rpm = 3  # {stdin.__name__}\n", encoding="utf-8")
        for answer, code, rpm in (("", 2, None), ("\n", 2, None), ("n\n", 2, None), ("y\n", 0, 3)):
            monkeypatch.setattr(sys, "stdin", stdin(answer))
            assert main(["trust"]) == code
            assert parsed(["resume"]).args.rpm == rpm


@pytest.mark.parametrize("stdin", ["<&-", "</dev/null"])
def test_no_answer_is_no(stdin):
    """As in a job, or in a script that has closed its input."""
    Path(FILE).write_text("rpm = 3\n", encoding="utf-8")
    words = ["/bin/sh", "-c", f"exec {sys.executable} -m harness trust {stdin}"]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 2 and "stays ignored" in done.stderr
    assert parsed(["resume"]).args.rpm is None


@pytest.mark.parametrize(
    "blanks", ["\n" * 3000, "\r\n" * 3000, " \t\n" * 3000, "#" + " " * 300_000 + "\n"]
)
def test_nothing_of_a_file_is_pushed_out_of_sight(monkeypatch, capsys, blanks):
    """Blank lines and blanks are counted instead, control characters are escaped, and the question
    says how many lines there are."""
    monkeypatch.setattr(sys, "stdin", io.StringIO("n\n"))
    text = f'api-url = "http://203.0.113.1/v1"  # \u202e\n{blanks}rpm = 3\n'
    Path(FILE).write_bytes(text.encode())
    assert main(["trust"]) == 2
    out, err = capsys.readouterr()
    assert len(out) < 600 and len(out.splitlines()) < 10
    assert "203.0.113.1" in out and "rpm = 3" in out and "\\u202e" in out and "blank" in out
    assert f"{text.count(chr(10)):,} lines" in err
