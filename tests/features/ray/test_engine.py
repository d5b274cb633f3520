"""`--engine ray`: its options and its parent."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.commands.parser import parsed
from harness.errors import BadInput
from harness.feature import extensions
from harness.features.ray import engine
from harness.features.ray.engine import Workers


def chosen(*words: str) -> list[Workers]:
    return [one for one in extensions(parsed(["run", "--demo", *words]).args) if isinstance(one, Workers)]


def refused(results: Path, *more: str) -> BadInput:
    """Return the error of a command, which has opened nothing."""
    found = parsed(["run", "--demo", "--results-dir", str(results), "--engine", "ray", *more])
    with pytest.raises(BadInput) as raised:
        found.execute()
    assert not results.exists()
    return raised.value


def test_engine_that_is_not_installed_is_refused_before_anything_is_opened(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The sentence names what to install."""
    monkeypatch.setattr(engine, "find_spec", lambda name: None)
    assert "behavior-harness[ray]" in str(refused(tmp_path / "results"))


def test_batches_need_one_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nothing is opened or started."""
    monkeypatch.setattr(engine, "find_spec", lambda name: name)
    assert "--batch" in str(refused(tmp_path / "results", "--batch"))


def test_one_process_needs_no_engine() -> None:
    assert chosen() == chosen("--engine", "local") == []


def test_options_of_workers_need_their_engine() -> None:
    """They would have no effect in one process; a turn is in milliseconds."""
    for words in (["--workers", "2"], ["--ray-address", "auto"], ["--turn", "20"]):
        with pytest.raises(BadInput, match=words[0]):
            chosen(*words)
        assert chosen("--engine", "ray", *words)
    [one] = chosen("--engine", "ray", "--turn", "20", "--workers", "3", "--ray-address", "auto")
    assert (one.turn, one.workers, one.address) == (0.02, 3, "auto")
