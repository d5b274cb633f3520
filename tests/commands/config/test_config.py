"""The options that a command would have, and where each is from."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest

from harness.cli import main
from harness.commands.config import values
from harness.commands.parser import parsed
from tests.support.allowed import allow

URL = "http://127.0.0.1:9/v1"
LLM_KEY = "sk-of-the-variable-0123456789"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, of a user whose other files are elsewhere."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "xdg"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(text: str, path: str = "harness.toml") -> None:
    """Write a file that the user allows."""
    Path(path).write_text(text, encoding="utf-8")
    allow(Path(path), Path(path).read_bytes())


def test_config_shows_each_value_with_its_source(monkeypatch):
    """Flag, variable, file or default; keys are masked."""
    monkeypatch.setenv("LLM_API_BASE", "https://user:password@relay.example/v1")
    monkeypatch.setenv("LLM_API_KEY", LLM_KEY)
    monkeypatch.setenv("NO_COLOR", "1")
    write(f'timeout = 5\nrpm = 3\nno-html = true\n[run]\nmodel = "a"\napi-url = "{URL}"\n')
    found = values(parsed(["run", "--rpm", "4", "--extra-header", f"X-Key:{LLM_KEY}"]))
    assert (found["rpm"].value, found["rpm"].source, found["rpm"].where) == (4, "flag", "--rpm")
    assert (found["timeout"].value, found["timeout"].source, found["timeout"].where) == (
        5,
        "file",
        "harness.toml",
    )
    assert (found["no-html"].value, found["no-html"].source) == (True, "file")
    assert (found["model"].value, found["model"].source) == (["a"], "file")
    assert (found["concurrency"].value, found["concurrency"].source) == (16, "default")
    assert found["no-color"].where == "NO_COLOR"
    assert (found["api-url"].value, found["api-url"].where) == (
        ["https://relay.example/v1"],
        "LLM_API_BASE",
    )
    assert (found["api-key"].value, found["api-key"].where) == ("***", "LLM_API_KEY")
    assert found["extra-header"].value == ["X-Key: ***"]
    assert values(parsed(["resume", "--api-key", LLM_KEY]))["api-key"].value == "***"


def test_config_shows_the_limits_of_the_provider(monkeypatch):
    """What neither flag nor settings file gives comes from the providers file, as for the run
    itself."""
    monkeypatch.setenv("OWN_KEY", LLM_KEY)
    write(
        f'[providers.own]\nbase_url = "{URL}"\nkey_env = "OWN_KEY"\nrpm = 9\ntpm = 9\n',
        "providers.toml",
    )
    write("rpm = 3\n")
    found = values(parsed(["run", "--model", "own:m"]))
    assert (found["tpm"].value, found["tpm"].where) == (9, "providers.toml")
    assert (found["rpm"].value, found["rpm"].where) == (3, "harness.toml")
    assert (found["api-url"].value, found["api-url"].where) == ([URL], "providers.toml")
    assert (found["api-key"].value, found["api-key"].where) == ("***", "OWN_KEY")


@pytest.mark.parametrize(
    "words", [[], ["--json"], ["--json", "run"], ["resume"], ["--json", "status"]]
)
def test_config_prints_for_any_command_and_shows_no_key(words, monkeypatch, capsys):
    monkeypatch.setenv("LLM_API_KEY", LLM_KEY)
    monkeypatch.setenv("LLM_API_BASE", f"https://relay.example/v1?key={LLM_KEY}")
    assert main(["config", *words]) == 0
    shown = capsys.readouterr().out
    assert "results-dir" in shown and LLM_KEY not in shown


CLASHES = {
    "queue": (
        '[run]\nqueue = "month"\n',
        "harness.toml: run.queue",
        "queue month in providers.toml",
    ),
    "name": ('[run]\nqueue = "week"\nname = "n"\n', "harness.toml: run.name", "providers file"),
    "provider": (
        '[run]\nprovider = "nobody"\nmodel = "m"\n',
        "harness.toml: run.provider",
        "nobody in providers.toml",
    ),
    "auto-floor": (
        "auto-floor = 9\nauto-ceiling = 8\n",
        "harness.toml: auto-floor",
        "harness.toml: auto-ceiling",
    ),
}


@pytest.mark.parametrize("option", CLASHES)
def test_config_shows_values_that_contradict_the_providers_file(option, capsys):
    """The message has both files with their keys, and the table is there to see where each value
    comes from."""
    text, ours, theirs = CLASHES[option]
    write(text)
    write('[queues]\nweek = ["openai:a", "openai:b"]\n', "providers.toml")
    assert main(["config", "--json"]) == 2
    said = capsys.readouterr()
    assert ours in said.err and theirs in said.err
    value = orjson.loads(said.out)[option]
    assert (value["source"], value["where"]) == ("file", "harness.toml")


def test_config_refuses_what_is_no_command():
    assert main(["config", "rnu"]) == 2
