"""Run folders from somebody else: whose keys, certificates and code a command takes, and whose it
does not."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import orjson
import pytest

from harness.analysis import trust
from harness.benchmarks.dailymobility import synth
from harness.benchmarks.streamprofile.synth import generate
from harness.cli import main
from tests.support import DATA, ROOT, Terminal, first_quick
from tests.support.scripted import UNTIL_STOPPED, Script, baseline, busy, serving

RULES = DATA / "mobility_agents" / "rule_based.py"
KEY = "sk-of-the-key-file-0123456789"
Change = Callable[[dict[str, Any]], None]
Streams = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "xdg"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    Path("tasks").mkdir()
    Path("tasks/weibo_inference_tasks.jsonl").write_bytes(b"".join(generate("weibo", 3, 5, 2.0)))
    Path("key").write_text(KEY, encoding="utf-8")


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[], None]:
    """Another user, or another machine, from now on."""
    return lambda: monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "another"))


def unfinished(url: str, *options: str) -> None:
    """A run `m` of which nobody was played: the endpoint is busy."""
    assert (
        main(
            [
                "run",
                "--model",
                "m",
                "--platform",
                "weibo",
                "--api-url",
                url,
                *options,
                *UNTIL_STOPPED,
            ]
        )
        == 3
    )


def edit(change: Change, path: str = "results/m/run_weibo.json") -> None:
    data = orjson.loads(Path(path).read_bytes())
    change(data)
    Path(path).write_bytes(orjson.dumps(data))


# Bounds


@pytest.mark.parametrize("number", [-1, 10**9])
def test_a_manifest_cannot_ask_for_requests_without_end(elsewhere, capsys, number):
    """A reply that cannot be used is asked for again and paid for as often as `run` lets a user
    say, and no more."""
    with serving(busy) as server:
        unfinished(server.url)
        elsewhere()
        edit(lambda data: data["identity"]["settings"].update(parse_retries=number))
        before = len(server.bodies)
        assert main(["resume", "--name", "m", "--api-url", server.url]) == 2
        assert len(server.bodies) == before
    assert "identity.settings.parse_retries: expected a number from 0 to" in capsys.readouterr().err


def test_what_a_manifest_allowed_are_sentences(capsys):
    """Every later command adds to them."""
    assert main(["run", "--model", "baseline/recency", "--platform", "weibo", "--no-html"]) == 0
    edit(lambda data: data["provenance"].update(allowed=5), "results/recency/run_weibo.json")
    for words in (["reeval"], ["run", "--model", "baseline/recency", "--platform", "weibo"]):
        assert main(words) == 2
        assert "field provenance.allowed: expected" in capsys.readouterr().err


def test_notes_of_what_changed_are_short(capsys):
    """A value of a manifest from elsewhere is not put on the terminal whole."""
    assert main(["run", "--model", "baseline/recency", "--platform", "weibo", "--no-html"]) == 0
    edit(lambda data: data["provenance"].update(git="x" * 10**6), "results/recency/run_weibo.json")
    capsys.readouterr()
    assert main(["run", "--model", "baseline/recency", "--platform", "weibo", "--no-html"]) == 0
    shown = capsys.readouterr().out
    assert "note: git was xxx" in shown and "999800 more characters" in shown and len(shown) < 5000


# Keys and certificates


def test_key_file_that_a_manifest_names_is_not_sent_to_a_provider_that_it_names(
    capsys, monkeypatch
):
    """Not even when the run is named."""
    with serving(busy) as server:
        monkeypatch.setenv("SGLANG_API_BASE", server.url)
        assert main(["run", "--model", "sglang:m", "--platform", "weibo", *UNTIL_STOPPED]) == 3
        edit(
            lambda data: data["provenance"].update(
                key_from=f"--api-key-file {Path('key').resolve()}"
            )
        )
        before = len(server.bodies)
        for how in ([], ["--name", "m"]):
            assert main(["resume", *how]) == 2
        assert len(server.bodies) == before
    assert KEY not in capsys.readouterr().err


def test_certificates_that_a_manifest_names_are_not_trusted(capsys):
    """They have to be given again."""
    Path("ca.pem").write_text("", encoding="utf-8")
    with serving(busy) as server:
        unfinished(server.url)
        edit(lambda data: data["provenance"].update(ca_file=str(Path("ca.pem").resolve())))
        server.script = baseline
        assert main(["resume", "--name", "m", "--api-url", server.url]) == 0
    assert (
        "certificates named in its manifest are not trusted: give yours with --ca-file"
        in capsys.readouterr().out
    )
    saved = orjson.loads(Path("results/m/run_weibo.json").read_bytes())
    assert saved["provenance"]["ca_file"] is None


# Code


@pytest.fixture
def agent(tmp_path: Path) -> Path:
    """An agent that leaves a mark when it is run, and its run `rules`, of which nobody was played
    to the end."""
    for name, content in synth.files(3, 5).items():
        path = tmp_path / "tasks/dailymobility" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    file = tmp_path / "own" / "walker.py"
    file.parent.mkdir()
    mark = f"open({str(tmp_path / 'ran')!r}, 'a').close()\n"
    file.write_text(mark + RULES.read_text(encoding="utf-8"), encoding="utf-8")
    options = ["--api-url", "http://127.0.0.1:9/v1", "--agent", str(file), "--name", "rules"]
    assert main(["run", "dailymobility", "--model", "m", "--name", "m", *options]) == 0
    whole = tmp_path / "results/rules/inference_results_beijing.jsonl"
    whole.write_bytes(whole.read_bytes()[:100])
    assert main(["reeval"]) == 1
    (tmp_path / "ran").unlink()
    return file


COMMANDS = (
    ["reeval", "--reparse"],
    ["resume", "--name", "rules", "--api-url", "http://127.0.0.1:9/v1"],
)
EXPORT = ["export", "rules", "--format", "inspect"]


@pytest.mark.parametrize("words", [*COMMANDS, EXPORT])
def test_code_that_came_with_a_folder_is_run_when_it_is_trusted(agent, words, elsewhere, capsys):
    """Else one sentence that names the option."""
    elsewhere()
    capsys.readouterr()
    assert main(words) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert trust.NOT_RUN_BEFORE in line and "--trust" in line
    assert not Path("ran").exists()
    assert main([*words, "--trust"]) in (0, 1)
    assert Path("ran").exists()


@pytest.mark.slow
@pytest.mark.parametrize("words", COMMANDS)
def test_code_that_this_user_has_run_is_run_without_a_question(agent, words, capsys):
    """The very same code, with its settings, wherever its folder lies; once trusted it is known,
    too."""
    Path("results").rename("moved")
    assert main([*words, "--results-dir", "moved"]) in (0, 1)
    assert Path("ran").exists()


CHANGES: tuple[Change, ...] = (
    lambda data: data["identity"]["settings"].update(agent_seed=9),
    lambda data: data["identity"]["files"].update({"agent_more.py": "0" * 64}),
    lambda data: data["provenance"].update(source="/elsewhere/walker.py"),
    lambda data: data["provenance"].update(sources={"agent": "/elsewhere/walker.py"}),
)


def test_other_code_or_the_same_with_other_settings_is_not_known(agent, capsys):
    """Who has the folder can change all that it says."""
    manifest = Path("results/rules/run_beijing.json")
    before = manifest.read_bytes()
    for change in CHANGES:
        manifest.write_bytes(before)
        edit(change, str(manifest))
        capsys.readouterr()
        assert main(["reeval", "--reparse"]) == 2
        assert trust.NOT_RUN_BEFORE in capsys.readouterr().err and not Path("ran").exists()


@pytest.mark.slow
def test_records_of_known_code_are_for_their_user_alone(agent, tmp_path, capsys):
    """One that others can have written is none."""
    folder = tmp_path / "state/behavior-harness/trusted"
    records = [*folder.iterdir()]
    assert records and all(path.stat().st_mode & 0o777 == 0o600 for path in records)
    for path in records:
        path.chmod(0o666)
    assert main(["reeval", "--reparse"]) == 2
    assert trust.NOT_RUN_BEFORE in capsys.readouterr().err and not Path("ran").exists()


@pytest.mark.parametrize("place", ["/dev/null", "/proc"])
def test_state_folder_that_cannot_be_written_fails_no_run(place, monkeypatch):
    """Its code is not known later, and needs `--trust`."""
    monkeypatch.setenv("XDG_STATE_HOME", place)
    Path("own.txt").write_text("${posts} ${pool}", encoding="utf-8")
    words = ["--model", "baseline/recency", "--platform", "weibo", "--prompt", "own.txt"]
    assert main(["run", *words]) in (0, 1)


def test_on_a_terminal_the_user_is_asked_once(
    agent,
    elsewhere,
    monkeypatch,
    capsys,
):
    """No is what silence means."""
    elsewhere()
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    capsys.readouterr()
    for answer, runs in (("\n", False), ("", False), ("n\n", False), ("y\n", True)):
        trust._agreed.cache_clear()
        monkeypatch.setattr(sys, "stdin", Terminal(answer))
        assert main(["reeval", "--reparse"]) == (1 if runs else 2)
        assert Path("ran").exists() is runs
        assert capsys.readouterr().err.count("Run it? [y/N]") == 1


def test_no_path_of_a_manifest_from_elsewhere_is_where_code_is_found(agent, elsewhere, capsys):
    """Not even trusted code with the right hash: only the copy in the folder."""
    elsewhere()
    Path("results/rules/agent_walker.py").unlink()
    for words in COMMANDS:
        assert main([*words, "--trust"]) == 2
        assert "has no copy of the run's prompt or agent walker.py" in capsys.readouterr().err
        assert not Path("ran").exists()


@pytest.mark.slow
@pytest.mark.parametrize(("mode", "why"), [("agent", "--trust"), ("plan", None)])
def test_code_under_another_name_is_code_where_the_benchmark_says_so(
    agent,
    mode,
    why,
    elsewhere,
    capsys,
    monkeypatch,
):
    """A manifest that calls an agent file text is asked about; in another mode nobody runs it."""
    monkeypatch.setattr(
        "harness.client.caller.pause_before", lambda *_: 0.0
    )  # nobody listens at the address
    elsewhere()

    def rename(data: dict[str, Any]) -> None:
        data["identity"]["files"] = {
            "agent_walker.txt": data["identity"]["files"]["agent_walker.py"]
        }
        data["identity"]["settings"]["mode"] = mode
        data["provenance"]["source"] = "/elsewhere/walker.txt"

    Path("results/rules/agent_walker.py").rename("results/rules/agent_walker.txt")
    edit(rename, "results/rules/run_beijing.json")
    for words in COMMANDS:
        capsys.readouterr()
        assert main(words) in ((2,) if why else (1, 2, 3))
        assert not why or why in capsys.readouterr().err
    assert not Path("ran").exists()


@pytest.mark.slow
@pytest.mark.parametrize("own", [True, False])
def test_a_copy_that_was_changed_is_not_run(agent, own, elsewhere, capsys):
    """Neither in this user's own folder that came back, nor with a new hash in its manifest."""
    copy = Path("results/rules/agent_walker.py")
    copy.write_bytes(copy.read_bytes() + b"# edited\n")
    if own:
        agent.unlink()
    else:
        digest = sha256(copy.read_bytes()).hexdigest()
        edit(
            lambda data: data["identity"]["files"].update({copy.name: digest}),
            "results/rules/run_beijing.json",
        )
    for words in COMMANDS:
        assert main(words) == 2
    assert not Path("ran").exists()
    assert ("is not what the run was given" if own else "--trust") in capsys.readouterr().err


@pytest.mark.slow
def test_a_module_that_was_put_beside_the_copy_is_not_imported(agent):
    """Whatever name the agent imports: only files with a hash in the manifest are its own."""
    mark = "open('planted', 'w').close()\n"
    for name in ("numpy.py", "agent_numpy.py", "orjson.py"):
        Path("results/rules", name).write_text(mark, encoding="utf-8")
    copy = Path("results/rules/agent_walker.py")
    copy.write_bytes(b"import numpy, orjson\n" + copy.read_bytes())
    digest = sha256(copy.read_bytes()).hexdigest()
    edit(
        lambda data: data["identity"]["files"].update({copy.name: digest}),
        "results/rules/run_beijing.json",
    )
    assert main(["reeval", "--reparse", "--trust"]) == 1
    assert Path("ran").exists() and not Path("planted").exists()


def test_verify_runs_no_code_whatever_a_manifest_calls_it():
    """Names of which one has the ending of a Python file and the other has not stood for the same
    file."""
    assert main(["run", "--model", "baseline/recency", "--platform", "weibo"]) == 0
    code = b"open('ran', 'w').close()\n"
    Path("results/recency/_.py").write_bytes(code)

    def change(data: dict[str, Any]) -> None:
        data["identity"]["files"] = {"_.py": sha256(code).hexdigest()}
        data["provenance"]["source"] = "/x/.py"

    edit(change, "results/recency/run_weibo.json")
    main(["verify"])
    assert not Path("ran").exists()


@pytest.mark.slow
def test_a_neighbour_of_a_kept_authors_prompt_is_not_imported():
    """The release has neighbours that its builder imports; a run's folder has none."""
    Path("release").mkdir()
    builder = (
        "try:\n    import planted\nexcept ImportError:\n    pass\n"
        "class BenchTaskBuilder:\n    def __init__(self, platform): pass\n"
        "    def format_prompt(self, **given): return str(given)\n"
    )
    Path("release/bench_task.py").write_text(builder, encoding="utf-8")
    options = ["--platform", "weibo", "--prompt", "release/bench_task.py"]
    assert main(["run", "--model", "baseline/recency", *options]) == 0
    Path("release/bench_task.py").unlink()
    Path("results/recency/planted.py").write_text("open('ran', 'w').close()\n", encoding="utf-8")
    assert main(["reeval", "--reparse"]) == 0
    assert not Path("ran").exists()


# Odd names and files


@pytest.mark.slow
def test_odd_names_of_kept_files_are_refused_in_one_sentence(capsys):
    """With the manifest's file and field."""
    assert main(["run", "--model", "baseline/recency", "--platform", "weibo"]) == 0
    odd = (
        "",
        ".",
        "..",
        ".hidden",
        "../../x",
        "/etc/passwd",
        "a/b",
        "a\\b",
        "a\0b",
        "x" * 256,
        "猫" * 100,
    )
    for files in (*({name: "0" * 64} for name in odd), {"x": None}, {"x": {}}, []):
        edit(
            lambda data, files=files: data["identity"].update(files=files),
            "results/recency/run_weibo.json",
        )  # type: ignore[misc]
        for command in (["status"], ["verify"], ["reeval", "--reparse"], ["resume"]):
            capsys.readouterr()
            assert main(command) == 2
            assert "run_weibo.json: field identity.files" in capsys.readouterr().err.splitlines()[0]


def test_a_prompt_whose_name_no_folder_could_keep_is_refused_before_it_is_used(
    capsys,
):
    """Its run could not be read again."""
    Path("a\\b.txt").write_text("${posts} ${pool}", encoding="utf-8")
    assert (
        main(["run", "--model", "baseline/recency", "--platform", "weibo", "--prompt", "a\\b.txt"])
        == 2
    )
    assert "give the file another name" in capsys.readouterr().err


def odd_file(kind: str) -> Path:
    path = Path("odd").absolute()
    match kind:
        case "pipe":
            os.mkfifo(path)
        case "folder":
            path.mkdir()
        case "huge":
            with path.open("wb") as file:
                file.truncate(1 << 40)
        case device:
            return Path(device)
    return path


@pytest.mark.parametrize("kind", ["pipe", "/dev/zero", "folder", "huge"])
@pytest.mark.parametrize("option", ["--api-key-file", "--config", "--providers"])
def test_files_without_an_end_are_refused_and_not_waited_for(kind, option, capsys):
    """One sentence with the file's name."""
    file = odd_file(kind)
    how = [] if option == "--config" else ["--api-url", "http://127.0.0.1:9/v1"]
    assert main(["run", "--model", "m", "--platform", "weibo", option, str(file), *how]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert str(file) in line


@pytest.mark.parametrize("kind", ["pipe", "folder", "huge"])
def test_key_file_that_became_something_else_is_not_waited_for(kind, capsys):
    """Where a run took its key from, and the command that resumes it names it again."""
    with serving(busy) as server:
        unfinished(server.url, "--api-key-file", "key")
        Path("key").unlink()
        odd_file(kind).rename("key")
        assert main(["resume", "--api-url", server.url, "--api-key-file", "key"]) == 2
    assert "cannot read the key in" in capsys.readouterr().err


def shell(words: str, script: Script) -> tuple[int, str, list[str | None]]:
    """A command of bash with `run ... $URL`, its exit code, its standard error, and the keys that
    came."""
    with serving(script) as server:
        options = shlex.join(["--api-url", server.url, *UNTIL_STOPPED])
        command = f"{sys.executable} -m harness run --model m --platform weibo {options} "
        where = {**os.environ, "PYTHONPATH": str(ROOT)}
        made = subprocess.run(
            ["bash", "-c", command + words],
            capture_output=True,
            text=True,
            timeout=60,
            env=where,
            check=False,
        )
        return made.returncode, made.stderr, server.keys


PIPES = (f"--api-key-file <(echo {KEY})", f"--api-key-file /dev/stdin <<< {KEY}")


@pytest.mark.parametrize("words", first_quick(PIPES))
def test_key_of_a_pipe_that_the_shell_hands_over_is_read(words, capsys):
    """`<(pass show key)` is how a key stays off the disk; a resume wants it again."""
    code, errors, keys = shell(words, busy)
    assert code == 3 and set(keys) == {f"Bearer {KEY}"}, errors
    assert main(["resume"]) == 2
    assert "m was run with a key (--api-key-file /dev/" in capsys.readouterr().err


@pytest.mark.slow
def test_endless_pipe_is_refused_at_its_bound():
    """More than any key has."""
    code, errors, keys = shell("--api-key-file <(yes)", busy)
    assert code == 2 and "it is larger than 65536 bytes" in errors and not keys
