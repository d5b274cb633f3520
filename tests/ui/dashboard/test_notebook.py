"""The display of a notebook: one output that is replaced in place."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest

from harness.ui.console import SharedConsole
from harness.ui.live import display
from tests.ui.test_display import FULL, snapshot

CELL = """
from harness import run
[made] = run(model="baseline/recency", subset="weibo", demo=True, limit=3)
made
"""


class Shown:
    """What IPython shows: the texts of each output in turn."""

    def __init__(self) -> None:
        self.outputs: list[list[str]] = []

    def display(self, data: dict[str, str], *, raw: bool, display_id: bool) -> Shown._Handle:
        assert raw and display_id
        self.outputs.append([data["text/plain"]])
        return Shown._Handle(self.outputs[-1])

    class _Handle:
        def __init__(self, texts: list[str]) -> None:
            self._texts = texts

        def update(self, data: dict[str, str], *, raw: bool) -> None:
            assert raw
            self._texts.append(data["text/plain"])


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> Shown:
    found, module = Shown(), ModuleType("IPython.display")
    module.display = found.display  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", ModuleType("IPython"))
    monkeypatch.setitem(sys.modules, "IPython.display", module)
    monkeypatch.delitem(sys.modules, "harness.ui.notebook", raising=False)
    return found


def test_notebook_has_one_output_that_is_replaced(shown):
    """Twice a second at most, and at the end with the last state; nothing in it steers what shows
    it."""
    with display(SharedConsole(force_jupyter=True)) as observe:
        for tenth in range(21):
            observe((snapshot(**{**FULL, "name": "a\x1b[2J", "seconds": tenth / 10}),))
    [texts] = shown.outputs
    assert 4 <= len(texts) <= 7
    assert all("a" in text and "\x1b" not in text for text in texts)


def test_nothing_is_shown_of_a_run_without_a_snapshot(shown):
    with display(SharedConsole(force_jupyter=True)):
        pass
    assert shown.outputs == []


@pytest.mark.slow
def test_cell_in_a_real_kernel_has_one_bar_and_the_scores(tmp_path):
    """Where nbclient and ipykernel are installed."""
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel")
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(CELL)])
    nbclient.NotebookClient(book, resources={"metadata": {"path": str(tmp_path)}}).execute()
    outputs: list[Any] = book.cells[0].outputs
    plain = [of["data"]["text/plain"] for of in outputs if of["output_type"] == "display_data"]
    assert sum("3/3" in text for text in plain) == 1
    assert (
        "Recall" in outputs[-1]["data"]["text/plain"]
        and "3 of 3 users" in outputs[-1]["data"]["text/plain"]
    )
