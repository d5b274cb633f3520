"""Models' names that a command takes, and those that cannot be meant."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.cli import main


def test_name_with_white_space_is_answered_by_how_several_are_given(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In one sentence, before anything is sent or written; also the name of an entry of a queue."""
    endpoint = ["--api-url", "http://127.0.0.1:9/v1", "--results-dir", str(tmp_path / "r")]
    assert main(["run", "--demo", "--model", "a b", *endpoint]) == 2
    refused = capsys.readouterr().err
    assert "did you mean --model a --model b?" in refused and refused.count("\n") == 1
    book = tmp_path / "providers.toml"
    book.write_text('[queues]\nq = ["a b"]\n')
    assert main(["run", "--demo", "--queue", "q", "--providers", str(book), *endpoint]) == 2
    assert "white space" in capsys.readouterr().err
    assert not (tmp_path / "r").exists()
