"""The commands of the documentation succeed: each is executed as it is written, in the order of its
page, or is listed in `commands.toml` with the reason.

Providers and the Hugging Face Hub are imitations on loopback; only hosts and ports in addresses are
replaced.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import tomllib
from ast import PyCF_ALLOW_TOP_LEVEL_AWAIT
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml

from harness.commands.parser import parsed
from harness.options import providers
from tests.support import ROOT, pages
from tests.support.pages import Block, Command
from tests.support.user_shell import Machine, machine

ABOUT: Mapping[str, Sequence[Mapping[str, Any]]] = tomllib.loads(
    (ROOT / "tests/project/commands.toml").read_text("utf-8")
)
PAGES = pages.pages()
TRANSLATED = {
    f"docs/zh/{name}.md": f"docs/{name}.md"
    for name in ("migration", "features/reuse", "troubleshooting")
}
TRANSLATED["README.zh.md"] = "README.md"
"""Pages in Chinese, by those that have the same commands: executed there."""
SHELL, PYTHON = ("sh", "bash"), "python"
SECONDS = 240  # less than the time after which pytest ends the session
MODELS = re.compile(r"""(?:MODEL|--model|model|RUNS) ?[= ] ?["']?([\w./: -]+)""")
MAKE = re.compile(r"(?:\w+=\S+ )*make ")
AT = "@@ line "
UNTIL_IT_LISTENS = "until grep -q http:// its_output; do sleep 0.1; done"


def about(kind: str, page: str, text: str) -> Mapping[str, Any] | None:
    """Return the entry on a command or block of a page, by how one of its lines begins."""
    found = [
        one
        for one in ABOUT[kind]
        if page in one["pages"] and begins(text, *one.get("commands", ()))
    ]
    return found[0] if found else None


def begins(text: str, *words: str) -> bool:
    return any(line.startswith(words) for line in text.splitlines())


def is_executed(command: Command) -> bool:
    if command.page in TRANSLATED:
        return False
    entry = about("not_executed", command.page, command.text)
    return entry is None or bool("without" in entry and find_spec(entry["without"]))


def commands(page: str, block: Block) -> list[Command]:
    """Return the commands of a block. Python is one, and so is a file that the reader is to
    save."""
    if block.language == PYTHON or is_saved(page, block):
        return [Command(page, block.line, block.text)]
    return list(pages.commands(page, block)) if block.language in SHELL else []


def is_saved(page: str, block: Block) -> bool:
    return block.language not in SHELL and about("saved", page, block.text) is not None


@cache
def all_commands(page: str) -> Sequence[Command]:
    return [command for block in pages.blocks(page) for command in commands(page, block)]


def models() -> set[str]:
    """Return the names of the models on all pages."""
    words = {
        word
        for page in PAGES
        for found in MODELS.findall(pages.text_of(page))
        for word in found.split()
    }
    return words | {word.partition(":")[2] for word in words}


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    with machine(tmp_path_factory.mktemp("machine"), models()) as made:
        yield made


def shell(here: Machine, page: str) -> Iterator[str]:
    """Yield the script of a page, a block at a time: each command under its line's number."""
    yield from (
        one["sh"] for one in ABOUT["before"] if page in one["pages"] and "commands" not in one
    )
    for block in pages.blocks(page):
        executed = filter(is_executed, commands(page, block))
        yield here.on_loopback(
            "\n".join(line for command in executed for line in _pieces(command, block.language))
        )


def _pieces(command: Command, language: str) -> Iterator[str]:
    if before := about("before", command.page, command.text):
        yield before["sh"]
    yield f"echo '{AT}{command.line}'"
    yield _run(command, language)


def _run(command: Command, language: str) -> str:
    if language not in SHELL:
        saved = about("saved", command.page, command.text)
        do = f"cat >> {saved['name']}" if saved else "python -"
        return f"{do} << 'END OF BLOCK'\n{command.text}\nEND OF BLOCK"
    if about("background", command.page, command.text):
        return f"{command.text.partition('  #')[0]} > its_output 2>&1 &\n{UNTIL_IT_LISTENS}"
    return command.text


@pytest.mark.slow
@pytest.mark.parametrize(
    "page", [page for page in PAGES if any(map(is_executed, all_commands(page)))]
)
def test_commands_of_a_page_succeed_as_they_are_written(page, here, tmp_path):
    """One after another, in one shell."""
    checkout = tmp_path / "checkout"
    shutil.copytree(here.checkout, checkout, symlinks=True)
    code, output = here.executed(checkout, "\n".join(shell(here, page)), SECONDS)
    *_, last = re.findall(f"(?ms)^{AT}(\\d+)$(.*?)(?=^{AT}|\\Z)", output)
    assert code == 0, f"{page}:{last[0]}, exit code {code}:{last[1]}"
    assert output.count(AT) == sum(map(is_executed, all_commands(page)))


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
def test_harness_accepts_the_options_of_commands_that_are_not_executed(page):
    """Those that are listed, those within sentences, and those in files for clusters."""
    listed = [command for command in all_commands(page) if not is_executed(command)]
    texts = [command.text for command in listed if page not in TRANSLATED]
    texts += [one.text for one in pages.inline(page) if not about("not_parsed", page, one.text)]
    texts += [block.text for block in pages.blocks(page) if block.language == "yaml"]
    for words in [words for text in texts for words in (*pages.calls(text), *made(text))]:
        if words[1:] and "--help" not in words:
            parsed(words)


@pytest.mark.parametrize("page", TRANSLATED)
def test_translated_page_has_the_commands_of_the_other(page):
    """But for comments, and the texts within Python."""

    def words(page: str) -> list[list[str]]:
        found = (block for block in pages.blocks(page) if block.language in SHELL)
        return [
            shlex.split(command.text, comments=True)
            for block in found
            for command in commands(page, block)
        ]

    assert words(page) == words(TRANSLATED[page])


def made(text: str) -> Iterator[list[str]]:
    """Yield the calls of the harness that make would make for a command. Fail if make has no such
    target."""
    if MAKE.match(text):
        command = MAKE.sub("make -n -o .venv/run.made -o .venv/data.made ", text)
        done = subprocess.run(command, shell=True, cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, f"{text}: {done.stderr}"
        yield from pages.calls(done.stdout)


@pytest.mark.parametrize(
    ("kind", "entry"), [(kind, entry) for kind in ABOUT for entry in ABOUT[kind]]
)
def test_every_entry_of_the_list_is_needed(kind, entry):
    """A command that has gone from its page goes from the list."""
    found = pages.inline if kind == "not_parsed" else all_commands
    texts = {page: [one.text for one in found(page)] for page in entry["pages"]}
    words = entry.get("commands", [""])
    assert all(any(begins(text, *words) for text in texts[page]) for page in texts)
    assert all(any(begins(text, word) for page in texts for text in texts[page]) for word in words)


@pytest.mark.parametrize("page", PAGES)
def test_data_on_a_page_can_be_read(page, tmp_path):
    """Files of settings and of providers by the code that reads the user's; others by their
    languages' parsers."""
    for number, block in enumerate(pages.blocks(page)):
        if block.language == "json":
            json.loads(block.text)
        elif block.language == PYTHON:
            compile(block.text, page, "exec", PyCF_ALLOW_TOP_LEVEL_AWAIT)
        elif block.language == "yaml":
            list(yaml.safe_load_all(block.text))
        elif block.language == "toml":
            path = tmp_path / f"{number}.toml"
            path.write_text(block.text, "utf-8")
            load(path)


def load(path: Path) -> None:
    document = tomllib.loads(path.read_text("utf-8"))
    if {"providers", "queues"} & document.keys():
        providers.read(path, {})
    elif "project" not in document:
        parsed(["run", "--settings", str(path)])
