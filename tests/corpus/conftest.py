"""What every test of bad input has: a folder of its own, the command, an end to what hangs."""

from __future__ import annotations

import faulthandler
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.corpus.command import HANG, Commands


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workbooks_once: None) -> Iterator[Path]:
    """An empty folder to be in, no settings of the user's, and an end to what hangs."""
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    faulthandler.dump_traceback_later(HANG, exit=True)
    yield tmp_path
    faulthandler.cancel_dump_traceback_later()


@pytest.fixture
def command(folder: Path, capsys: pytest.CaptureFixture[str]) -> Commands:
    return Commands(folder, capsys)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Some hundred whole commands: beside the other slow tests."""
    here = str(Path(__file__).parent) + os.sep
    for item in items:
        if str(item.path).startswith(here):
            item.add_marker(pytest.mark.slow)
