"""The options of the engine."""

from __future__ import annotations

import argparse

import pytest

from harness.config import options
from harness.defaults import RAY, Engine
from harness.errors import BadInput


def chosen(*words: str) -> Engine:
    parser = argparse.ArgumentParser()
    options.add_session(parser)
    return options.engine(parser.parse_args(words, argparse.Namespace(places={})))


def test_engine_that_is_not_installed_is_refused_before_anything_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sentence names what to install; one process works without it."""
    monkeypatch.setattr(options, "find_spec", lambda name: None)
    with pytest.raises(BadInput, match="ray"):
        chosen("--engine", "ray")
    assert chosen() == Engine()


def test_options_of_workers_need_their_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """They would have no effect in one process; a turn is in milliseconds."""
    monkeypatch.setattr(options, "find_spec", lambda name: object())
    for words in (["--workers", "2"], ["--ray-address", "auto"], ["--turn", "20"]):
        with pytest.raises(BadInput):
            chosen(*words)
        assert chosen("--engine", "ray", *words).name == RAY
    assert chosen("--engine", "ray", "--turn", "20").turn == 0.02
