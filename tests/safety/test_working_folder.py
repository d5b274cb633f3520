"""A working folder from somebody else: whatever lies there, a command does what it does without
it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from hashlib import sha256
from pathlib import Path

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.benchmarks.streamprofile.synth import generate
from harness.cli import main
from harness.commands.parser import COMMANDS, built, parsed
from harness.errors import BadInput
from harness.option import Option
from harness.options import providers, user_files
from harness.options.options import Options
from harness.options.user_files import SETTINGS as FILE
from tests.support.scripted import Server, baseline, serving

SECRET = "secret-of-the-user-0123456789"
KEYS = {
    name: f"{SECRET}-{name}"
    for name in ("LLM_API_KEY", "AWS_SECRET_ACCESS_KEY", "DEEPSEEK_API_KEY", "HF_TOKEN")
}
KEYS |= {"WANDB_API_KEY": "0" * 40}
RAN = "ran-their-code"
CODE = f"open({RAN!r}, 'w').close()\n"
STOPS = frozenset({"completion", "config", "trust", "view"})
"""Commands that are not called bare: `trust` allows, `view` waits for ever, the other two print
what the property test compares."""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, of a user whose own files are elsewhere."""
    user_files._say_ignored.cache_clear()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home/.config"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "home/.local/state"))
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "here"


def options_of(command: str) -> Iterator[tuple[str, Option]]:
    """The long flags of a command, without dashes, and their options."""
    for one in built(command, ()).all_options:
        for name in one.flags:
            if name.startswith("--") and name != "--settings":
                yield name[2:], one


def value_of(one: Option, url: str, target: Path) -> str:
    """A value in TOML that a sender would like this option to have."""
    if one.kind is bool:
        return "true"
    if one.choices:
        return f'"{one.choices[-1]}"'
    if one.kind is dict:
        return '{x = "theirs"}'
    kinds = {"api_url": url, "ray_address": "127.0.0.1:9", "model": "deepseek:m", "name": "theirs"}
    if one.name in kinds:
        return f'"{kinds[one.name]}"'
    return (
        f'"{target}"'
        if one.kind is Path or "FILE" in one.unit or one.name in ("out", "into")
        else "3"
    )


def planted(url: str, target: Path) -> None:
    """Write every kind of file that a program might read here, each with what would harm its
    reader."""
    lines = []
    for command in COMMANDS:
        lines += [
            f"[{command}]",
            *(f"{name} = {value_of(one, url, target)}" for name, one in options_of(command)),
        ]
    Path(FILE).write_text("\n".join(lines), encoding="utf-8")
    names = providers.shipped().providers
    entries = [
        f'[providers.{name}]\nbase_url = "{url}"\nkey_env = "AWS_SECRET_ACCESS_KEY"\nextra_headers'
        ' = {X-Token = "${HF_TOKEN}"}\n'
        for name in names
    ]
    Path(providers.FILE).write_text("".join(entries), encoding="utf-8")
    for module in (
        "msgspec",
        "orjson",
        "sitecustomize",
        "usercustomize",
        "harness",
        "wandb_plugin",
        "numpy",
        "rich",
    ):
        Path(f"{module}.py").write_text(CODE, encoding="utf-8")
    Path("wandb").mkdir()
    Path("wandb/settings").write_text(f"[default]\nbase_url = {url}\n", encoding="utf-8")
    Path(".netrc").write_text(f"default login x password {SECRET}\n", encoding="utf-8")
    Path(".env").write_text(f"LLM_API_BASE={url}\n", encoding="utf-8")


def shown(arguments: Options) -> dict[str, object]:
    return {name: value for name, value in vars(arguments).items() if not callable(value)}


def is_refused(command: str) -> bool:
    try:
        parsed([command])
    except (BadInput, SystemExit):
        return True
    return False


# Found files


@pytest.mark.parametrize("command", COMMANDS)
def test_every_key_of_a_found_file_leaves_the_options_alone(command, capsys):
    """One key after the other, and all at once: the options are those without the file, and one
    line names it."""
    if is_refused(command):  # it lacks an argument
        Path(FILE).write_text("this is no TOML", encoding="utf-8")
        assert is_refused(command)
        return
    without = shown(parsed([command]).args)
    texts = [
        f"{name} = {value_of(one, 'http://127.0.0.1:9', Path('x'))}"
        for name, one in options_of(command)
    ]
    for text in [*texts, *(f"[{command}]\n{one}" for one in texts), "not TOML", "\0"]:
        Path(FILE).write_text(text, encoding="utf-8")
        assert shown(parsed([command]).args) == without, text
    lines = [line for line in capsys.readouterr().err.splitlines() if FILE in line]
    assert len(lines) == (command != "trust")


@given(data=st.binary(max_size=60))
def test_found_file_of_any_bytes_is_not_read(data):
    """Neither its content nor a mistake in it has an effect."""
    Path(FILE).write_bytes(data)
    Path(providers.FILE).write_bytes(data)
    assert parsed(["status"]).args.places == {}
    assert providers.read(None, os.environ) == providers.shipped()


def test_found_file_of_another_kind_is_left_alone(tmp_path):
    """A pipe, a folder, a link to nothing, a file that cannot be read: nothing waits and nothing
    fails."""
    os.mkfifo(FILE)
    assert parsed(["status"]).args.places == {}
    Path(FILE).unlink()
    Path(FILE).mkdir()
    assert parsed(["status"]).args.places == {}
    Path(FILE).rmdir()
    Path(FILE).symlink_to("nowhere")
    assert parsed(["status"]).args.places == {}


# What counts


def test_own_configuration_folder_needs_no_record(tmp_path, monkeypatch):
    """Also where it is the current folder."""
    own = tmp_path / "home/.config/behavior-harness"
    own.mkdir(parents=True)
    (own / FILE).write_text("rpm = 3\n", encoding="utf-8")
    assert parsed(["resume"]).args.rpm == 3
    monkeypatch.chdir(own)
    assert parsed(["resume"]).args.rpm == 3


# From outside


def tree(folder: Path) -> dict[str, str]:
    """The hash of each file, by its path below the folder."""
    files = (
        path
        for path in sorted(folder.rglob("*"))
        if path.is_file() and ".local/state" not in str(path)
    )
    return {str(path.relative_to(folder)): sha256(path.read_bytes()).hexdigest() for path in files}


CALLS = """
import contextlib, io, json, sys
from harness.cli import main

outcomes = []
for words in json.loads(sys.argv[1]):
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown):
        code = main(words)
    outcomes.append([code, shown.getvalue()])
print(json.dumps(outcomes))
"""
Words = tuple[str, ...]


def called(calls: list[Words], environment: Mapping[str, str]) -> dict[Words, tuple[int, str]]:
    """Run commands one after the other in one process. Return the exit code and the standard
    output, without numbers, of each."""
    done = subprocess.run(
        [sys.executable, "-P", "-c", CALLS, json.dumps(calls)],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0 and "Traceback" not in done.stderr, done.stderr
    outcomes = {}
    for words, (code, shown) in zip(calls, json.loads(done.stdout), strict=True):
        lines = shown.splitlines()
        if words[0] == "run":  # the lines before the last one have rates
            lines = lines[-1:]
        outcomes[words] = code, re.sub(r"\d[\d.,:]*", "N", "\n".join(lines))  # times differ
    return outcomes


def filled(own: Server) -> None:
    """Tasks, a run of somebody else that is not finished, and nothing more."""
    Path("tasks").mkdir()
    Path("tasks/weibo_inference_tasks.jsonl").write_bytes(b"".join(generate("weibo", 3, 5, 2.0)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(Path("..", "another").absolute()))
        assert (
            main(
                [
                    "run",
                    "--model",
                    "m",
                    "--name",
                    "theirs",
                    "--platform",
                    "weibo",
                    "--api-url",
                    own.url,
                ]
            )
            == 3
        )


@pytest.mark.slow
def test_every_command_does_in_a_planted_folder_what_it_does_in_a_clean_one(tmp_path, monkeypatch):
    """Every bare command, and runs of a demo and of a model: the same exit code, output and files;
    no request reaches the sender, no key leaves, no file of the user's changes, no code of the
    folder runs."""
    calls = [(command,) for command in COMMANDS if command not in STOPS]
    run = ("run", "--platform", "weibo", "--no-html", "--limit", "2")
    calls[:0] = [(*run, "--demo"), (*run, "--model", "m"), ("export", "--format", "csv")]
    outcomes = {}
    thesis = tmp_path / "home/thesis.tex"
    with serving(baseline) as mine, serving(lambda _: (401, b"{}")) as theirs:
        for name in ("clean", "planted"):
            (tmp_path / name / "here").mkdir(parents=True)
            monkeypatch.chdir(tmp_path / name / "here")
            filled(theirs)
            theirs.heads.clear()
            if name == "planted":
                planted(theirs.url, thesis)
            home = tmp_path / "home"
            (home / ".config").mkdir(parents=True, exist_ok=True)
            for file in (thesis, home / "data.csv", home / "index.html"):
                file.write_text("a year of work", encoding="utf-8")
            before, planted_files = tree(home), tree(Path())
            of_user = {**KEYS, "LLM_API_BASE": mine.url, "HF_ENDPOINT": mine.url, "COLUMNS": "200"}
            outcomes[name] = called(calls, of_user)
            assert tree(home) == before
            made = {path for path in tree(Path()) if path not in planted_files}
            outcomes[name]["files"] = made
            assert {
                path: tree(Path())[path] for path in planted_files if path[:8] != "results/"
            }.items() <= planted_files.items()
        assert not theirs.heads and mine.heads, theirs.heads
    clean, in_planted = outcomes["clean"], outcomes["planted"]
    for words, outcome in clean.items():
        assert in_planted[words] == outcome, words
    assert clean[calls[0]][0] == clean[calls[1]][0] == 0
    assert orjson.loads(Path("results/m/eval_report_weibo.json").read_bytes())
