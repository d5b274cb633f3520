"""What the documents hold together: no placeholder is left in them, and their links lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support import ROOT

PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")


def test_example_of_a_server_that_is_still_loading_waits_for_it() -> None:
    """As written, the run starts at the same time as the server."""
    text = (ROOT / "docs/providers.md").read_text(encoding="utf-8")
    (example,) = [
        block for block in text.split("```") if "vllm serve" in block and " &" in block and "harness run" in block
    ]
    assert "--wait " in example


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_page_has_no_placeholder_and_no_dead_link_within_the_project(page: Path) -> None:
    """A figure that was to be filled in, or a page that has another name by now, is found here."""
    text = page.read_text(encoding="utf-8")
    assert "@@" not in text and "TODO" not in text
    targets = [target for target in LINK.findall(text) if "://" not in target]
    assert [target for target in targets if not (page.parent / target).exists()] == []
