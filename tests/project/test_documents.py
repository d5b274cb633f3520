"""What the documents hold together: no placeholder is left in them, and their links lead
somewhere."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import harness
from harness.commands.table import COMMANDS
from harness.options.extension import SHIPPED
from tests.support import ROOT

PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")
TROUBLES = [ROOT / "docs/troubleshooting.md", ROOT / "docs/zh/troubleshooting.md"]
MESSAGE = re.compile(r"^### (`.*)$", re.MULTILINE)
SPLIT_TEXT = re.compile(r'"\n\s*f?"')


def test_example_of_a_server_that_is_still_loading_waits_for_it():
    """As written, the run starts at the same time as the server."""
    text = (ROOT / "docs/providers.md").read_text(encoding="utf-8")
    (example,) = [
        block
        for block in text.split("```")
        if "vllm serve" in block and " &" in block and "harness run" in block
    ]
    assert "--wait " in example


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_page_has_no_placeholder_and_no_dead_link_within_the_project(page):
    """A figure that was to be filled in, or a page that has another name by now, is found here."""
    text = page.read_text(encoding="utf-8")
    assert "@@" not in text and "TODO" not in text
    targets = [target for target in LINK.findall(text) if "://" not in target]
    assert [target for target in targets if not (page.parent / target).exists()] == []


@pytest.mark.parametrize("name", SHIPPED)
def test_extension_has_a_page_of_its_own(name):
    """Its contract, which the design points to."""
    assert (ROOT / "docs/features" / f"{name}.md").read_text(encoding="utf-8").startswith("# ")


@pytest.mark.parametrize("page", TROUBLES, ids=lambda page: page.parent.name)
def test_messages_that_troubleshooting_explains_are_still_printed(page):
    """A reader searches for the words on the screen, so a message that changes must change there,
    too."""
    for name in SHIPPED:
        pytest.importorskip(f"harness.extensions.{name}")  # some are messages of extensions
    source = _source()
    messages = _messages(page)
    parts = [part.strip() for message in messages for part in message.split("...")]
    assert len(messages) > 50 and [part for part in parts if part not in source] == []


def test_troubleshooting_explains_the_same_messages_in_both_languages():
    """A message that is added to one page is missed in the other."""
    english, chinese = map(_messages, TROUBLES)
    assert english == chinese


def _messages(page: Path) -> list[str]:
    """Return the messages in the headings of a page."""
    return re.findall("`(.+?)`", "\n".join(MESSAGE.findall(page.read_text(encoding="utf-8"))))


def _source() -> str:
    """Return the text of the program; a message that is written over several lines is one."""
    files = [ROOT / "Makefile", *(ROOT / "harness").rglob("*.py")]
    return SPLIT_TEXT.sub("", "\n".join(file.read_text(encoding="utf-8") for file in files))


def test_page_on_the_command_line_lists_every_command_with_its_help():
    """Somebody who reads the checkout, not the website, sees what there is."""
    page = (ROOT / "docs/cli.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| \[`([\w-]+)`\]\(\S+\) \| (.+) \|$", page, re.MULTILINE) == [
        (name, command.does) for name, command in COMMANDS.items()
    ]


def test_page_on_the_python_api_lists_every_public_name_once():
    """Those that are imported when they are used, too: type checkers have them in a block of their
    own."""
    tree = ast.parse((ROOT / "harness/__init__.py").read_text(encoding="utf-8"))
    (for_type_checkers,) = [node for node in tree.body if isinstance(node, ast.If)]
    imports = [node for node in for_type_checkers.body if isinstance(node, ast.ImportFrom)]
    lazy = {alias.name for node in imports for alias in node.names}
    page = (ROOT / "docs/api.md").read_text(encoding="utf-8").partition("\n## ")[0]
    rows = re.findall(r"^\| (`.+?) \| .+ \|$", page, re.MULTILINE)
    names = [name for row in rows for name in re.findall(r"`(\w+)`", row)]
    assert sorted(names) == sorted({*harness.__all__, *lazy})


def test_links_of_the_short_list_for_programs_lead_somewhere():
    """`llms.txt` is what a program reads first."""
    targets = LINK.findall((ROOT / "llms.txt").read_text(encoding="utf-8"))
    assert (
        len(targets) > 20 and [target for target in targets if not (ROOT / target).exists()] == []
    )
