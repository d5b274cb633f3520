"""The settings file: what it gives a command, what takes precedence, what it refuses, and whom it
may send keys to."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from harness.benchmarks import settings
from harness.cli import main
from harness.commands.parser import COMMANDS, built, parsed
from harness.errors import BadInput
from harness.option import Option
from harness.options import address
from harness.options.address import ResolvedEndpoint
from harness.options.settings_file import ENDPOINT, KEY_FILE, URLS
from tests.support import ROOT
from tests.support.allowed import allow

URL, RELAY = "http://127.0.0.1:9/v1", "https://relay.example/v1"
LLM_KEY = "sk-of-the-variable-0123456789"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, of a user whose other files are elsewhere."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "xdg"))
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "here"


def write(text: str, path: str = "harness.toml") -> Path:
    """Write a file that the user allows."""
    Path(path).write_text(text, encoding="utf-8")
    allow(Path(path), Path(path).read_bytes())
    return Path(path)


def given(words: str, *names: str) -> list[Any]:
    """The values that a command has for these options."""
    found = parsed(words.split())
    of_benchmark = getattr(found.args, "benchmark_settings", None) or {}
    own = vars(found.args) | {
        f"{settings.DEST}{name}": value for name, value in of_benchmark.items()
    }
    return [
        own.get(one.name, one.default)
        for name in names
        for one in found.interface.all_options
        if one.name == name
    ]


def endpoint(words: str, environment: dict[str, str]) -> ResolvedEndpoint:
    found = address.find(parsed(words.split()).args, environment)
    assert found is not None
    return found


# Values


def test_every_kind_of_value_is_what_its_flag_takes():
    """Numbers, texts, switches, lists for options that repeat, tables for JSON, and a path below
    the home folder."""
    write(
        'concurrency = 64\nrpm = 1.5\nstream = "on"\nno-html = true\ntasks-dir ='
        ' "~/数据"\n[run]\nmodel = ["a", "乙"]\nplatform = "weibo"\nextra-body = {thinking = {type'
        ' = "disabled"}}\nseed = -3\n'
    )
    found = given(
        "run",
        "concurrency",
        "rpm",
        "stream",
        "html",
        "tasks_dir",
        "model",
        "platform",
        "extra_body",
        "seed",
    )
    thinking = {"thinking": {"type": "disabled"}}
    assert found == [
        64,
        1.5,
        "on",
        False,
        Path("~/数据").expanduser(),
        ["a", "乙"],
        ["weibo"],
        thinking,
        -3,
    ]


CANDIDATES = (
    "3",
    "0.75",
    "3000",
    "1/2",
    "5usd",
    "a.xlsx",
    "a.html",
    "a.md",
    "X-A:b",
    str(ROOT / "README.md"),
)
"""Each option takes one of these, as text."""
TEXTS = {dict: '{"x": 3}', bool: "true"}


def taken(one: Option) -> str:
    """Return a text that an option takes."""
    for text in CANDIDATES:
        with suppress(ValueError):
            one.parse(text)
            return text
    raise AssertionError(one.name)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_key_gives_what_its_flag_gives(command):
    """In the command's table; a decision for one call and a key are no keys of the file."""
    own = built(command, ()).class_options
    if any(one.required for one in own):
        pytest.skip("it needs arguments")
    left_out = ENDPOINT if command == "resume" else (URLS, KEY_FILE)
    for one in own:
        if not one.flags or one.once or one.secret or one.name in left_out:
            continue
        text = one.choices[-1] if one.choices else TEXTS.get(one.kind) or taken(one)
        text = "" if one.kind is bool else text
        value = "true" if one.kind is bool else "{x = 3}" if one.kind is dict else f'"{text}"'
        write(f"[{command}]\n{one.label} = {value}\n")
        by_file = parsed([command]).args.option(one.name)
        Path("harness.toml").unlink()
        word = f"--{one.label}{'=' if text else ''}{text}"
        assert by_file == parsed([command, word]).args.option(one.name), (one.name, text)


def test_narrower_tables_replace_wider_ones_and_other_tables_are_left_alone():
    """A benchmark's table goes over the command's, that over what is for all; each command has its
    own."""
    write(
        "timeout = 5\nno-html = true\nratio = 0.5\n[resume]\ntimeout = 7\n[run]\ntimeout ="
        " 6\nno-html = false\nlimit = 3\n[run.StreamProfile]\nno-persona ="
        " true\n[run.dailymobility]\nagent-seed = 9\n[run.'my.py']\nx = 1\n"
    )
    assert given("run", "timeout", "html", "ratio", "limit", "setting persona") == [
        6,
        True,
        1.0,
        3,
        False,
    ]
    assert given("run dailymobility", "setting agent_seed") == [9]
    assert given("resume", "timeout", "html") == [7, False]
    assert given("sample", "ratio") == [0.5]


def test_flags_replace_values_and_what_cannot_be_combined_with_them():
    """A list is replaced, not extended; a flag of an exclusive group leaves out the group's
    others."""
    write(
        'concurrency = 64\n[run]\nmodel = ["a", "b"]\nratio = 0.5\nqueue = "q"\nprovider ='
        ' "deepseek"\n'
    )
    words = "run --model c --limit 3 --concurrency=auto --api-url " + URL
    found = given(words, "model", "limit", "ratio", "queue", "concurrency", "provider")
    assert found == [["c"], 3, 1.0, None, "auto", None]


def test_run_by_position_replaces_names_of_the_file_as_an_option_does():
    """A file's list of names is that of `--name`; what stands in the file is not the user's own
    word."""
    write('[resume]\nname = ["a", "b"]\n')
    assert given("resume", "runs") == [["a", "b"]]
    assert given("resume c", "runs") == given("resume --name c", "runs") == [["c"]]
    assert "runs" in parsed(["resume", "--rpm", "3", "c"]).args.typed
    assert "runs" not in parsed(["resume", "--rpm", "3"]).args.typed


def test_variable_goes_before_the_file(monkeypatch):
    """Flag, environment, file, default: of the concurrency and of the endpoint's address."""
    write(f'concurrency = 64\napi-url = "{URL}"\n')
    monkeypatch.setenv("BENCH_MAX_WORKERS", "7")
    assert given("run", "concurrency") == given("run --rpm 3", "concurrency") == [None]
    assert given("run --concurrency 8", "concurrency") == [8]
    assert endpoint("run", {"LLM_API_BASE": RELAY}).shown == RELAY
    assert (
        endpoint("run --api-url http://127.0.0.1:8/v1", {"LLM_API_BASE": RELAY}).shown
        == "http://127.0.0.1:8/v1"
    )
    assert endpoint("run", {"OPENAI_API_KEY": "of OpenAI itself"}).shown == URL


def test_value_counts_like_a_flag_of_resume_but_for_the_endpoint():
    """Tuning goes over that of the earlier process; the address is for runs whose address this file
    named."""
    write(f'timeout = 5\napi-url = "{URL}"\n')
    assert parsed(["resume"]).args.fallback.urls == (URL,)
    write('timeout = 5\nconfig = "bench.yaml"\n')
    assert given("resume", "timeout", "api_url", "config") == [5, None, None]


def test_named_file_comes_first_then_this_folders_then_the_users(tmp_path):
    """One file is read, found as the providers file is."""
    (tmp_path / "xdg/behavior-harness").mkdir(parents=True)
    write("rpm = 1\n", str(tmp_path / "xdg/behavior-harness/harness.toml"))
    assert given("run", "rpm") == [1]
    write("rpm = 2\n")
    assert given("run", "rpm") == [2]
    write("rpm = 3\n", "other.toml")
    assert (
        given("run --settings other.toml", "rpm")
        == given("run --settings=other.toml", "rpm")
        == [3]
    )


# Refusals


@pytest.mark.parametrize(
    ("text", "key", "hint"),
    [
        ("concurency = 3", "concurency", "concurrency?"),
        ("max_retries = 3", "max_retries", "max-retries?"),
        ("[run]\nagent-seed = 3", "run.agent-seed", "[run.dailymobility]"),
        ("[rnu]\nlimit = 3", "rnu", "run?"),
        ("run = 3", "run", "[run]"),
        ("[run.streamprofle]\nno-persona = true", "run.streamprofle", None),
        ("[run.streamprofile]\nno-personas = true", "run.streamprofile.no-personas", "no-persona?"),
        ("concurrency = 0", "concurrency", None),
        ("concurrency = 64.5", "concurrency", None),
        ("concurrency = [1, 2]", "concurrency", None),
        ("rpm = true", "rpm", None),
        ("rpm = inf", "rpm", None),
        ("timeout = 1979-05-27", "timeout", None),
        (f"timeout = 0x{'f' * 5000}", "timeout", None),
        ('no-html = "yes"', "no-html", None),
        ('stream = "onn"', "stream", None),
        ('tasks-dir = "a\\u0000b"', "tasks-dir", None),
        ('[run]\nprovider = "a\\u0000b"', "run.provider", None),
        ("[run]\nextra-body = {when = 1979-05-27}", "run.extra-body", None),
        ("[run]\nratio = 0.5\nlimit = 3", "run.limit", None),
        ('[run]\napi-url = "http://user:pass@127.0.0.1/v1"', "run.api-url", None),
        ('name = "one"', "name", None),
        ("trust = true", "trust", None),
        ("[run]\nrestart = true", "run.restart", None),
        ("[run]\nyes = true", "run.yes", None),
    ],
)
def test_field_that_cannot_be_used_is_refused_by_file_and_key(text, key, hint, capsys):
    """One sentence, exit 2, with the nearest known field if there is one."""
    write(text + "\n")
    assert main(["run", "--model", "m"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"harness: harness.toml: {key}: ")
    assert line.endswith(hint or "")


def test_mistake_in_the_syntax_is_refused_by_file_and_line(
    capsys,
):
    write("concurrency = 64\n[run\n")
    assert main(["status"]) == 2
    assert capsys.readouterr().err.startswith("harness: harness.toml, line 2: ")


@pytest.mark.parametrize("name", ["api-key", "api_key", "API_KEY", "token", "extra-header"])
def test_keys_are_refused_and_not_shown(name, capsys):
    """Whatever the table; the message names the field alone."""
    for table in ("", "[run]\n"):
        write(f'{table}{name} = "{LLM_KEY}"\n')
        assert main(["run", "--model", "m"]) == 2
        shown = capsys.readouterr().err
        assert f"{name}: keys do not belong in this file" in shown and LLM_KEY not in shown


# Addresses and keys


@pytest.mark.parametrize("option", ["", "--settings harness.toml"])
def test_address_of_a_file_that_counts_gets_the_users_key(option):
    """An allowed file is as good as a named one: `LLM_API_KEY` without an address of its own goes
    to its address."""
    write(f'[run]\napi-url = ["{URL}", "http://127.0.0.1:8/v1"]\n')
    found = endpoint(f"run {option}", {"LLM_API_KEY": LLM_KEY, "OPENAI_API_KEY": LLM_KEY})
    assert [one.url for one in found.addresses] == [URL, "http://127.0.0.1:8/v1"]
    assert found.key_from == "LLM_API_KEY"


def test_key_file_is_for_the_address_of_the_same_file_alone(
    capsys,
):
    """It is sent neither to an address of the command nor to one of a variable, and never without
    an address."""
    Path("secret").write_text(LLM_KEY, encoding="utf-8")
    write(f'[run]\napi-url = "{URL}"\napi-key-file = "secret"\n', "own.toml")
    words = "run --settings own.toml"
    assert endpoint(words, {}).addresses[0].key == LLM_KEY
    assert endpoint(f"{words} --api-url {RELAY}", {}).addresses[0].key is None
    assert endpoint(words, {"LLM_API_BASE": RELAY}).addresses[0].key is None
    write('[run]\napi-key-file = "secret"\n', "own.toml")
    with pytest.raises(BadInput, match=r"run\.api-key-file"):
        parsed(words.split())


# What is effective


def test_example_of_the_page_can_be_used():
    """The file in docs/features/settings.md is taken as it is printed there."""
    page = (ROOT / "docs/features/settings.md").read_text(encoding="utf-8")
    write(page.partition("```toml\n")[2].partition("```")[0])
    assert given("run dailymobility", "concurrency", "setting agent_seed", "extra_body") == [
        64,
        7,
        {"top_k": 20},
    ]
    assert given("resume", "concurrency", "html") == [64, False]


@pytest.mark.parametrize(
    ("setting", "before", "named", "models"),
    [
        ("repeats = 2", "--repeats 3 --limit 4", "repeats", 1),
        ("limit = 2", "--limit 3", "limit", 2),
        ("limit = 2", "", "limit", 1),
        ("temperature = 0.5", "--limit 4", "temperature", 2),
        ("streamprofile = {no-persona = true}", "--limit 4", "streamprofile.no-persona", 1),
    ],
)
def test_refusal_names_the_setting_that_nobody_typed(setting, before, named, models, capsys):
    """What is typed differs in nothing from the command that began the run."""
    words = ["run", "--demo", "--subset", "weibo", "--no-html", "--results-dir", "r"]
    for model in ("recency", "random")[:models]:
        words += ["--model", f"baseline/{model}"]
    assert main([*words, *before.split()]) == 0
    typed = [] if named == "limit" else ["--limit", "4"]
    write(f"[run]\n{setting}\ntimeout = 7\n")
    capsys.readouterr()
    assert main([*words, *typed]) == 2
    refused = capsys.readouterr().err
    assert f"is set in harness.toml: run.{named}" in refused and "timeout" not in refused
