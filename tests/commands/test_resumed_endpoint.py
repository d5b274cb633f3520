"""Where a run goes on, and with which key: as today names both, in the way that named them
before."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson
import pytest

import harness
from harness.benchmarks.streamprofile.synth import generate
from harness.cli import main
from harness.errors import BadInput
from tests.support.scripted import UNTIL_STOPPED, Server, baseline, busy, serving

KEY, OTHER_KEY = "sk-of-the-first-host-0123", "sk-of-the-other-host-4567"
Told = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    Path("tasks").mkdir()
    Path("tasks/weibo_inference_tasks.jsonl").write_bytes(b"".join(generate("weibo", 3, 5, 2.0)))


@pytest.fixture
def first() -> Iterator[Server]:
    """Where runs begin; nobody is served until its script is another one."""
    with serving(busy) as server:
        yield server


@pytest.fixture
def other() -> Iterator[Server]:
    with serving(baseline) as server:
        yield server


@contextmanager
def variables(monkeypatch: pytest.MonkeyPatch, **values: str) -> Iterator[None]:
    with monkeypatch.context() as patch:
        for name, value in values.items():
            patch.setenv(name, value)
        yield


def unfinished(*words: str, name: str = "m") -> None:
    assert (
        main(["run", "--name", name, "--model", "m", "--subset", "weibo", *words, *UNTIL_STOPPED])
        == 3
    )


def manifest(name: str = "m") -> dict[str, Any]:
    data: dict[str, Any] = orjson.loads(Path(f"results/{name}/run_weibo.json").read_bytes())
    return data


def edit(change: Callable[[dict[str, Any]], None]) -> None:
    data = manifest()
    change(data)
    Path("results/m/run_weibo.json").write_bytes(orjson.dumps(data))


def is_complete(name: str = "m") -> bool:
    return bool(manifest(name)["state"] == "complete")


def commands(text: str) -> list[list[str]]:
    """The words of the commands to type that a message has, without the program's own."""
    return [shlex.split(part)[1:] for part in text.split("`")[1::2]]


def resume_with(text: str) -> list[str]:
    (line,) = [line for line in text.splitlines() if line.startswith("resume with: ")]
    return shlex.split(line.removeprefix("resume with: "))[1:]


def providers_file(**urls: str) -> Path:
    tables = [
        f'[providers.{name}]\nbase_url = "{url}"\nkey_env = "P_KEY"\n' for name, url in urls.items()
    ]
    path = Path("own.toml")
    path.write_text("".join(tables), encoding="utf-8")
    return path.absolute()


# Variables


def test_variable_that_names_another_host_moves_no_run(first, other, monkeypatch, capsys):
    """It may be meant for something else. The command to type moves it, and a line says from where
    to where."""
    with variables(monkeypatch, LLM_API_BASE=first.url, LLM_API_KEY=KEY):
        unfinished()
    with variables(monkeypatch, LLM_API_BASE=other.url, LLM_API_KEY=OTHER_KEY):
        capsys.readouterr()
        assert main(["resume"]) == 2
        said = capsys.readouterr().err
        assert f"m ran on {first.url}, and LLM_API_BASE alone moves no run to another host" in said
        assert not other.bodies and not is_complete()
        move, stay = commands(said)
        assert move == ["resume", "--name", "m", "--api-url", other.url]
        assert stay == ["resume", "--name", "m", "--api-url", first.url]
        assert main(move) == 0
    assert f"endpoint was {first.url}, is now {other.url}" in capsys.readouterr().out
    assert set(other.keys) == {f"Bearer {OTHER_KEY}"} and is_complete()


def test_variable_with_the_same_host_has_todays_key(first, monkeypatch, capsys):
    """A key that was renewed meanwhile is taken; one that is gone is asked for, and nothing is
    sent."""
    with variables(monkeypatch, LLM_API_BASE=first.url, LLM_API_KEY=KEY):
        unfinished()
    first.script = baseline
    before = len(first.bodies)
    with variables(monkeypatch, LLM_API_BASE=first.url):
        assert main(["resume"]) == 2
    assert "m was run with a key (LLM_API_KEY), and nothing names one" in capsys.readouterr().err
    assert len(first.bodies) == before
    with variables(monkeypatch, LLM_API_BASE=first.url, LLM_API_KEY=OTHER_KEY):
        assert main(["resume"]) == 0
    assert set(first.keys[before:]) == {f"Bearer {OTHER_KEY}"}


def test_variable_of_the_run_counts_beside_another_one(first, other, monkeypatch):
    """`LLM_API_BASE` goes before `OPENAI_BASE_URL` for new runs, and takes no run from it."""
    with variables(monkeypatch, OPENAI_BASE_URL=first.url, OPENAI_API_KEY=KEY):
        unfinished()
        first.script = baseline
        with variables(monkeypatch, LLM_API_BASE=other.url, LLM_API_KEY=OTHER_KEY):
            assert main(["resume"]) == 0
    assert not other.bodies and set(first.keys) == {f"Bearer {KEY}"}


def test_all_runs_but_those_of_a_variable_go_on_where_a_stray_one_is_set(
    first, other, monkeypatch, capsys
):
    """`make resume` continues all: one named by the variable is refused, one by a flag stays, one
    of a provider follows it."""
    monkeypatch.setenv("P_KEY", KEY)
    file = str(providers_file(p=first.url))
    with variables(monkeypatch, LLM_API_BASE=first.url):
        unfinished(name="by-variable")
    unfinished("--api-url", first.url, name="by-flag")
    unfinished("--providers", file, "--provider", "p", name="by-provider")
    first.script = baseline
    with serving(baseline) as moved:
        providers_file(p=moved.url)
        with variables(monkeypatch, LLM_API_BASE=other.url, LLM_API_KEY=OTHER_KEY):
            capsys.readouterr()
            assert main(["resume", "--providers", file]) == 2
        assert set(moved.keys) == {f"Bearer {KEY}"}
    assert not other.bodies and first.keys[-1] is None
    assert [is_complete(name) for name in ("by-variable", "by-flag", "by-provider")] == [
        False,
        True,
        True,
    ]
    shown = capsys.readouterr()
    assert shown.err.count("moves no run to another host") == 1
    assert f"endpoint was {first.url}, is now {moved.url}" in shown.out


def test_openai_base_url_moves_no_run_of_the_provider_openai(first, other, monkeypatch, capsys):
    """It is a general variable, too, though that provider's entry names it."""
    with variables(monkeypatch, OPENAI_BASE_URL=first.url, OPENAI_API_KEY=KEY):
        unfinished("--provider", "openai")
    with variables(monkeypatch, OPENAI_BASE_URL=other.url, OPENAI_API_KEY=OTHER_KEY):
        assert main(["resume"]) == 2
        assert "OPENAI_BASE_URL alone moves no run" in capsys.readouterr().err
        assert not other.bodies
        assert main(["resume", "--provider", "openai"]) == 0
    assert set(other.keys) == {f"Bearer {OTHER_KEY}"}


# Flags


def test_command_that_is_printed_has_the_flags_that_named_address_and_key(first, capsys):
    """It works as it is, and so does the one that is printed after it."""
    Path("key").write_text(KEY, encoding="utf-8")
    unfinished("--api-url", first.url, "--api-key-file", "key")
    for _ in range(2):
        words = resume_with(capsys.readouterr().out)
        file = str(Path("key").absolute())
        assert words == ["resume", "--name", "m", "--api-url", first.url, "--api-key-file", file]
        assert main([*words, *UNTIL_STOPPED]) == 3
    first.script = baseline
    assert main(words) == 0
    assert set(first.keys) == {f"Bearer {KEY}"}


def test_runs_with_flags_of_one_command_are_resumed_by_one_command(first, capsys):
    """It names them, since the flags are not for others."""
    unfinished("--api-url", first.url, name="another")
    models = ["--model", "a", "--model", "b"]
    assert main(["run", "--subset", "weibo", *models, "--api-url", first.url, *UNTIL_STOPPED]) == 3
    words = resume_with(capsys.readouterr().out.partition("b: stopped")[2])
    assert words == ["resume", "--name", "a", "--name", "b", "--api-url", first.url]
    first.script = baseline
    assert main(words) == 0
    assert [is_complete(name) for name in ("a", "b", "another")] == [True, True, False]


def test_key_of_a_flag_wants_its_address_again(first, monkeypatch, capsys):
    """Else the manifest would say where it goes, or which file holds it."""
    Path("key").write_text(KEY, encoding="utf-8")
    unfinished("--api-url", first.url, "--api-key-file", "key")
    first.script = baseline
    before = len(first.bodies)
    for words in (
        [],
        ["--api-key-file", "key"],
        ["--api-key", KEY],
        ["--extra-header", f"X-Key: {KEY}"],
    ):
        capsys.readouterr()
        assert main(["resume", *words]) == 2
        (command,) = commands(capsys.readouterr().err)
        assert command[:5] == ["resume", "--name", "m", "--api-url", first.url]
    with variables(monkeypatch, LLM_API_KEY=OTHER_KEY):
        assert main(["resume"]) == 2
    assert len(first.bodies) == before


@pytest.mark.parametrize(
    "url", ["http://192.0.2.1/v1", "https://relay.example/v1", "http://127.0.0.1.nip.example/v1"]
)
def test_address_of_a_manifest_alone_is_used_on_loopback_alone(url, first, monkeypatch, capsys):
    """Any other is named by the command to type; a variable that has it names it, too."""
    unfinished("--api-url", first.url)
    edit(lambda data: data["provenance"].update(endpoint=url))
    capsys.readouterr()
    assert main(["resume"]) == 2
    said = capsys.readouterr().err
    assert f"m ran on {url}, which nothing names now" in said
    assert commands(said) == [["resume", "--name", "m", "--api-url", url]]
    edit(lambda data: data["provenance"].update(endpoint=first.url))
    first.script = baseline
    assert main(["resume"]) == 0


def test_manifest_that_does_not_say_how_is_one_of_a_variable(first, other, monkeypatch, capsys):
    """As earlier versions wrote it, with a seal and a check of the key: no variable moves it, and
    its key file is not read."""
    Path("key").write_text(KEY, encoding="utf-8")
    unfinished("--api-url", first.url)
    said = {
        "key_from": f"--api-key-file {Path('key').absolute()}",
        "key_check": "00:00",
        "origin": "0" * 64,
    }
    edit(lambda data: data["provenance"].update(said, address_from=None))
    first.script = baseline
    before = len(first.bodies)
    with variables(monkeypatch, LLM_API_BASE=other.url, LLM_API_KEY=OTHER_KEY):
        assert main(["resume"]) == 2
    assert "LLM_API_BASE alone moves no run" in capsys.readouterr().err
    assert main(["resume"]) == 2 and len(first.bodies) == before
    with variables(monkeypatch, LLM_API_BASE=first.url, LLM_API_KEY=OTHER_KEY):
        assert main(["resume"]) == 0
    assert not other.bodies and set(first.keys[before:]) == {f"Bearer {OTHER_KEY}"}
    assert manifest()["provenance"].keys().isdisjoint({"key_check", "origin"})


def test_flag_for_runs_of_several_endpoints_is_refused(first, other, capsys):
    """It is for one; each run is named."""
    other.script = busy
    unfinished("--api-url", first.url, name="one")
    unfinished("--api-url", other.url, name="two")
    for words in (["--api-key", KEY], ["--api-url", other.url]):
        capsys.readouterr()
        assert main(["resume", *words]) == 2
        assert "--name (one, two)" in capsys.readouterr().err


# Files


def endpoint_file(url: str, key: str) -> Path:
    path = Path("bench.yaml")
    path.write_text(f"llm: [{{base_url: '{url}', api_key: '{key}', model: m}}]", encoding="utf-8")
    return path.absolute()


def test_endpoint_file_is_followed_with_its_key(first, other, monkeypatch, capsys):
    """Whatever variables say; the command to type has the option."""
    pytest.importorskip("yaml")
    path = endpoint_file(first.url, KEY)
    unfinished("--config", str(path))
    assert resume_with(capsys.readouterr().out) == ["resume", "--name", "m", "--config", str(path)]
    endpoint_file(other.url, OTHER_KEY)
    with variables(monkeypatch, LLM_API_BASE=first.url, LLM_API_KEY=KEY):
        assert main(["resume"]) == 0
    assert set(first.keys) == {f"Bearer {KEY}"} and set(other.keys) == {f"Bearer {OTHER_KEY}"}
    assert f"endpoint was {first.url}, is now {other.url}" in capsys.readouterr().out


def test_endpoint_file_that_only_a_folder_names_is_not_read(
    first, other, monkeypatch, tmp_path, capsys
):
    """Its sender may have put it there; the command names it once more."""
    pytest.importorskip("yaml")
    path = endpoint_file(first.url, KEY)
    unfinished("--config", str(path))
    endpoint_file(other.url, OTHER_KEY)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "of-another-user"))
    assert main(["resume"]) == 2
    assert not other.bodies
    assert main(["resume", "--config", str(path)]) == 0
    assert set(other.keys) == {f"Bearer {OTHER_KEY}"}


def test_flag_goes_before_an_endpoint_file(first, other):
    """The run is one of the flag from then on; the file's key stays with the file's address."""
    pytest.importorskip("yaml")
    unfinished("--config", str(endpoint_file(first.url, KEY)))
    assert main(["resume", "--api-url", other.url]) == 0
    assert set(other.keys) == {None}
    assert manifest()["provenance"]["address_from"] == "--api-url"


def test_settings_file_is_followed(first, other, monkeypatch, capsys):
    """It names address and key for the runs that it named them for, and a stray variable does
    not."""
    Path("key").write_text(KEY, encoding="utf-8")
    file = Path("own.toml")
    file.write_text(f'[run]\napi-url = "{first.url}"\napi-key-file = "key"\n', encoding="utf-8")
    unfinished("--settings", "own.toml")
    words = resume_with(capsys.readouterr().out)
    file.write_text(f'[run]\napi-url = "{other.url}"\napi-key-file = "key"\n', encoding="utf-8")
    before = len(first.bodies)
    with variables(monkeypatch, LLM_API_BASE=first.url):
        assert (
            main(["resume"]) == 2
        )  # no file names an address, and the key of the run is not the variable's
        assert len(first.bodies) == before
        assert main(words) == 0
    assert set(other.keys) == {f"Bearer {KEY}"}
    assert f"endpoint was {first.url}, is now {other.url}" in capsys.readouterr().out


def test_provider_that_moved_has_the_price_of_its_new_address(first, other, monkeypatch, capsys):
    """A price belongs to address and model: the replies of the new address cost what the file of
    then says."""
    monkeypatch.setenv("P_KEY", KEY)
    file = providers_file(p=first.url)

    def priced(url: str, price: str) -> None:
        providers_file(p=url)
        prices = f'prices.m = {{ prompt = "{price}", completion = "{price}", currency = "USD" }}\n'
        file.write_text(file.read_text(encoding="utf-8") + prices, encoding="utf-8")

    priced(first.url, "1")
    unfinished("--providers", str(file), "--provider", "p")
    priced(other.url, "3")
    assert main(["resume", "--providers", str(file)]) == 0
    cost = manifest()["cost"]
    tokens = cost["prompt_tokens"] + cost["completion_tokens"]
    assert cost["amount"] is not None or cost["shares"]
    by_price = (
        {share["price"]["prompt"]: share for share in cost["shares"]} if cost.get("shares") else {}
    )
    answered = by_price.get("3", cost)
    assert float(answered["amount"]) == pytest.approx(3e-6 * tokens)
    assert f"endpoint was {first.url}, is now {other.url}" in capsys.readouterr().out


# Python and parts


def test_python_interface_follows_the_same_rules(first, other, monkeypatch):
    """A stray variable raises; the keyword moves the run."""
    with variables(monkeypatch, LLM_API_BASE=first.url):
        unfinished()
    with variables(monkeypatch, LLM_API_BASE=other.url, LLM_API_KEY=OTHER_KEY):
        with pytest.raises(BadInput, match="moves no run to another host"):
            harness.resume(name="m")
        assert not other.bodies
        (run,) = harness.resume(name="m", api_url=other.url)
    assert run.complete and set(other.keys) == {f"Bearer {OTHER_KEY}"}


def test_merged_run_goes_on_in_the_way_of_its_parts(first, other, monkeypatch, capsys):
    """Its manifest has what theirs have."""
    words = ["run", "--model", "m", "--subset", "weibo", "--no-html"]
    with variables(monkeypatch, LLM_API_BASE=first.url):
        first.script = baseline
        assert main([*words, "--part", "1/2"]) == 0
        first.script = busy
        assert main([*words, "--part", "2/2", *UNTIL_STOPPED]) == 3
    assert main(["merge", "--name", "m"]) in (0, 1)
    assert manifest()["provenance"]["address_from"] == "LLM_API_BASE"
    with variables(monkeypatch, LLM_API_BASE=other.url):
        assert main(["resume", "--name", "m"]) == 2
        assert not other.bodies
    first.script = baseline
    with variables(monkeypatch, LLM_API_BASE=first.url):
        assert main(["resume", "--name", "m"]) == 0
