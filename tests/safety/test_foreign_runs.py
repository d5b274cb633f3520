"""Run folders from somebody else: whose keys, certificates and code a command takes, and whose it does not."""

from __future__ import annotations

import hmac
import os
import subprocess
import sys
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest
from msgspec import structs

from harness.benchmarks.dailymobility import synth
from harness.benchmarks.streamprofile.synth import generate
from harness.cli import main
from harness.config import origin
from harness.store.manifest import Manifest, load
from tests.support import DATA, ROOT, Terminal
from tests.support.scripted import Script, baseline, serving

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
    """A run `m` of which nobody was played: the endpoint refuses the key."""
    assert main(["run", "--model", "m", "--platform", "weibo", "--api-url", url, *options]) == 3


def denied(_: dict[str, Any]) -> tuple[int, bytes]:
    return 401, b"{}"


def edit(change: Change, path: str = "results/m/run_weibo.json") -> None:
    data = orjson.loads(Path(path).read_bytes())
    change(data)
    Path(path).write_bytes(orjson.dumps(data))


# Whose run it is


def test_a_run_of_this_user_goes_on_with_its_key_file_without_a_word_wherever_its_folder_lies() -> None:
    """A copy of the folder is this user's own too."""
    with serving(denied) as server:
        unfinished(server.url, "--api-key-file", "key")
        server.script = baseline
        Path("results").rename("moved")
        assert main(["resume", "--results-dir", "moved"]) == 0
    assert set(server.keys) == {f"Bearer {KEY}"}


def test_a_bare_resume_leaves_a_run_from_elsewhere_alone(elsewhere: Callable[[], None], capsys: Streams) -> None:
    """One sentence, exit 2 and no request; this user's own runs go on."""
    with serving(denied) as server:
        unfinished(server.url, "--name", "theirs")
        elsewhere()
        unfinished(server.url, "--name", "ours")
        server.script = baseline
        capsys.readouterr()
        assert main(["resume"]) == 2
        errors = capsys.readouterr().err.splitlines()
    assert [line for line in errors if "theirs" in line] == errors and len(errors) == 1
    assert origin.UNKNOWN in errors[0] and "--name theirs" in errors[0]
    states = {
        name: orjson.loads(Path(f"results/{name}/run_weibo.json").read_bytes())["state"] for name in ("ours", "theirs")
    }
    assert states == {"ours": "complete", "theirs": "stopped"}


def test_a_name_from_elsewhere_can_be_pasted_into_a_shell(elsewhere: Callable[[], None], capsys: Streams) -> None:
    """The words to go on with are words for a shell, whatever its sender called the folder."""
    with serving(denied) as server:
        unfinished(server.url)
    elsewhere()
    Path("results/m").rename("results/m; touch pasted")
    capsys.readouterr()
    assert main(["resume"]) == 2
    assert "--name 'm; touch pasted'" in capsys.readouterr().err


def test_a_run_from_elsewhere_goes_on_where_this_user_says_and_is_theirs_then(
    elsewhere: Callable[[], None], capsys: Streams
) -> None:
    """Its address has to be given again, and with it the key; the file that its manifest names is not read."""
    with serving(denied) as server:
        unfinished(server.url, "--api-key-file", "key")
        elsewhere()
        before = len(server.bodies)
        for how, words in (
            ([], "give --api-url"),
            (["--api-key-file", "key"], "give the address for --api-key-file too"),
            (["--extra-header", "X-A: secret"], "give the address for --extra-header too"),
        ):
            capsys.readouterr()
            assert main(["resume", "--name", "m", *how]) == 2
            assert words in capsys.readouterr().err
        assert len(server.bodies) == before
        assert main(["resume", "--name", "m", "--api-url", server.url]) == 3
        assert server.keys[-1] is None
        server.script = baseline
        assert main(["resume"]) == 0


OTHERS = {"headers": ["X"], "sources": {"prompt": "/elsewhere"}}


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data.update(subset="zhihu"),
        lambda data: data["identity"]["files"].update({"prompt_own.txt": "0" * 64}),
        lambda data: data["identity"]["sampling"]["extra_body"].update(a=1),
        lambda data: data["selection"].update(ratio=0.5),
        lambda data: data["provenance"].pop("origin"),
        lambda data: data["provenance"].update(origin="鍵"),
        *[
            lambda data, name=name: data["provenance"].update({name: OTHERS.get(name, "/elsewhere")})
            for name in origin.SEALED
        ],
    ],
)
def test_a_manifest_with_anything_changed_that_matters_is_no_longer_this_users(change: Change) -> None:
    """Who has the folder, and not the secret, cannot make a seal that fits."""
    with serving(denied) as server:
        unfinished(server.url)
    assert origin.is_own(manifest(), os.environ)
    edit(lambda data: data["tuning"].update(learned_limit=3))
    assert origin.is_own(manifest(), os.environ)
    edit(change)
    assert not origin.is_own(manifest(), os.environ)


def test_a_run_that_version_0_1_0_sealed_is_still_this_users(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Its manifest has fewer parts to cover; one that is added later breaks the seal like one that is changed."""
    key = tmp_path / "behavior-harness" / "key"
    key.parent.mkdir(mode=0o700)
    key.touch(mode=0o600)
    key.write_bytes(bytes(32))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    names = ("endpoint", "address_from", "provider", "providers_file", "key_from", "key_check", "headers", "ca_file")
    provenance: dict[str, Any] = dict.fromkeys((*names, "source"), "x")
    sections: dict[str, Any] = {name: {} for name in ("identity", "tuning", "tasks", "selection", "counts", "times")}
    made = Manifest(subset="weibo", state="stopped", provenance={**provenance}, **sections)
    covered = orjson.dumps(["weibo", {}, provenance, {}], option=orjson.OPT_SORT_KEYS)
    made.provenance["origin"] = hmac.new(bytes(32), covered, "sha256").hexdigest()
    assert origin.is_own(made, os.environ)
    for name in origin.LATER:
        others = {**made.provenance, name: None}
        assert not origin.is_own(structs.replace(made, provenance=others), os.environ)


def manifest() -> Manifest:
    found = load(Path("results/m/run_weibo.json"))
    assert found is not None
    return found


def test_the_secret_is_one_file_that_only_this_user_can_read(tmp_path: Path) -> None:
    """It is made once, and another process finds it."""
    with serving(denied) as server:
        unfinished(server.url)
        secret = tmp_path / "state/behavior-harness/key"
        first = secret.read_bytes()
        unfinished(server.url)
    assert secret.read_bytes() == first and len(first) == 32
    assert secret.stat().st_mode & 0o777 == 0o600
    assert [path.name for path in secret.parent.iterdir()] == ["key"]


@pytest.mark.parametrize("trick", ["link", "open to all", "short", "folder", "pipe"])
def test_a_secret_that_others_may_know_is_none(tmp_path: Path, trick: str, capsys: Streams) -> None:
    """The run is then not known as this user's, a note names the file, and it ends as it would."""
    secret = tmp_path / "state/behavior-harness/key"
    secret.parent.mkdir(parents=True)
    match trick:
        case "link":
            (tmp_path / "known").write_bytes(bytes(32))
            (tmp_path / "known").chmod(0o600)
            secret.symlink_to(tmp_path / "known")
        case "open to all":
            secret.write_bytes(bytes(32))
            secret.chmod(0o644)
        case "short":
            secret.write_bytes(b"")
            secret.chmod(0o600)
        case "folder":
            secret.mkdir()
        case "pipe":
            os.mkfifo(secret, 0o600)
    with serving(denied) as server:
        unfinished(server.url)
    shown = capsys.readouterr().out
    assert f"your secret cannot be kept in {secret}" in shown
    assert manifest().provenance["origin"] is None
    assert main(["resume"]) == 2


@pytest.mark.parametrize("place", ["/dev/null", "/proc"])
def test_a_state_folder_that_cannot_be_written_fails_no_run(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A complete run needs no secret."""
    monkeypatch.setenv("XDG_STATE_HOME", place)
    assert main(["run", "--model", "baseline/recency", "--platform", "weibo"]) == 0


def test_an_index_that_came_with_a_folder_leaves_no_user_out(
    elsewhere: Callable[[], None], capsys: Streams, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its sender knows the tasks and where they lie, perhaps; every user has to be proved all the same."""
    elsewhere()
    assert main(["run", "--model", "baseline/recency", "--platform", "weibo", "--no-html"]) == 0
    (cache,) = Path("results/.index").iterdir()
    with np.load(cache) as whole:
        columns = {name: column if name == "stamp" else column[:1] for name, column in whole.items()}
    with cache.open("wb") as file:
        np.savez(file, **columns)
    content = cache.read_bytes()
    cache.write_bytes(
        content + hmac.digest((tmp_path / "another/behavior-harness/key").read_bytes(), content, "sha256")
    )
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    capsys.readouterr()
    assert main(["verify"]) == 0
    assert "3 of 3 users, complete: sound" in capsys.readouterr().out


@pytest.mark.parametrize("number", [-1, 10**9])
def test_a_manifest_cannot_ask_for_requests_without_end(
    elsewhere: Callable[[], None], capsys: Streams, number: int
) -> None:
    """A reply that cannot be used is asked for again and paid for as often as `run` lets a user say, and no more."""
    with serving(denied) as server:
        unfinished(server.url)
        elsewhere()
        edit(lambda data: data["identity"]["settings"].update(parse_retries=number))
        before = len(server.bodies)
        assert main(["resume", "--name", "m", "--api-url", server.url]) == 2
        assert len(server.bodies) == before
    assert "identity.settings.parse_retries: expected a number from 0 to" in capsys.readouterr().err


def test_what_a_manifest_allowed_are_sentences(capsys: Streams) -> None:
    """Every later command adds to them."""
    assert main(["run", "--model", "baseline/recency", "--platform", "weibo", "--no-html"]) == 0
    edit(lambda data: data["provenance"].update(allowed=5), "results/recency/run_weibo.json")
    for words in (["reeval"], ["run", "--model", "baseline/recency", "--platform", "weibo"]):
        assert main(words) == 2
        assert "field provenance.allowed: expected" in capsys.readouterr().err


def test_notes_of_what_changed_are_short(capsys: Streams) -> None:
    """A value of a manifest from elsewhere is not put on the terminal whole."""
    assert main(["run", "--model", "baseline/recency", "--platform", "weibo", "--no-html"]) == 0
    edit(lambda data: data["provenance"].update(git="x" * 10**6), "results/recency/run_weibo.json")
    capsys.readouterr()
    assert main(["run", "--model", "baseline/recency", "--platform", "weibo", "--no-html"]) == 0
    shown = capsys.readouterr().out
    assert "note: git was xxx" in shown and "999800 more characters" in shown and len(shown) < 5000


# Keys and certificates


def test_a_key_file_that_a_manifest_names_is_not_sent_to_a_provider_that_it_names(
    capsys: Streams, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither with a null check nor with that of a guessed key, and not even when the run is named."""
    with serving(denied) as server:
        monkeypatch.setenv("SGLANG_API_BASE", server.url)
        assert main(["run", "--model", "sglang:m", "--platform", "weibo"]) == 3
        source = {"key_from": f"--api-key-file {Path('key').resolve()}", "key_check": None}
        edit(lambda data: data["provenance"].update(source))
        before = len(server.bodies)
        for how in ([], ["--name", "m"]):
            assert main(["resume", *how]) == 2
        assert len(server.bodies) == before
    assert KEY not in capsys.readouterr().err


def test_certificates_that_a_manifest_names_are_not_trusted(capsys: Streams) -> None:
    """They have to be given again."""
    Path("ca.pem").write_text("", encoding="utf-8")
    with serving(denied) as server:
        unfinished(server.url)
        edit(lambda data: data["provenance"].update(ca_file=str(Path("ca.pem").resolve())))
        server.script = baseline
        assert main(["resume", "--name", "m", "--api-url", server.url]) == 0
    assert "certificates named in its manifest are not trusted: give yours with --ca-file" in capsys.readouterr().out
    assert manifest().provenance["ca_file"] is None


# Code


@pytest.fixture
def agent(tmp_path: Path) -> Path:
    """An agent that leaves a mark when it is run, and its run `rules`, of which nobody was played to the end."""
    for name, content in synth.files(3, 5).items():
        path = tmp_path / "tasks/dailymobility" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    file = tmp_path / "own" / "walker.py"
    file.parent.mkdir()
    mark = f"open({str(tmp_path / 'ran')!r}, 'a').close()\n"
    file.write_text(mark + RULES.read_text(encoding="utf-8"), encoding="utf-8")
    options = ["--api-url", "http://127.0.0.1:9/v1", "--agent", str(file), "--name", "rules"]
    assert main(["run", "dailymobility", "--model", "m", *options]) == 0
    whole = tmp_path / "results/rules/inference_results_beijing.jsonl"
    whole.write_bytes(whole.read_bytes()[:100])
    assert main(["reeval"]) == 1
    (tmp_path / "ran").unlink()
    return file


COMMANDS = (["reeval", "--reparse"], ["resume", "--name", "rules", "--api-url", "http://127.0.0.1:9/v1"])
EXPORT = ["export", "rules", "--format", "inspect"]


@pytest.mark.parametrize("words", [*COMMANDS, EXPORT])
def test_code_that_came_with_a_folder_is_run_when_it_is_trusted(
    agent: Path, words: list[str], elsewhere: Callable[[], None], capsys: Streams
) -> None:
    """Else one sentence that names the option."""
    elsewhere()
    capsys.readouterr()
    assert main(words) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert origin.UNKNOWN in line and "--trust" in line
    assert not Path("ran").exists()
    assert main([*words, "--trust"]) in (0, 1)
    assert Path("ran").exists()


@pytest.mark.parametrize("words", COMMANDS)
def test_code_of_this_users_own_run_is_run_without_a_question(agent: Path, words: list[str]) -> None:
    """The seal of its manifest fits."""
    assert main(words) in (0, 1)
    assert Path("ran").exists()


@pytest.mark.parametrize(("answer", "runs"), [("y\n", True), ("\n", False), ("", False), ("n\n", False)])
def test_on_a_terminal_the_user_is_asked_once(
    agent: Path,
    answer: str,
    runs: bool,
    elsewhere: Callable[[], None],
    monkeypatch: pytest.MonkeyPatch,
    capsys: Streams,
) -> None:
    """No is what silence means."""
    elsewhere()
    origin._agreed.cache_clear()
    monkeypatch.setattr(sys, "stdin", Terminal(answer))
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    capsys.readouterr()
    assert main(["reeval", "--reparse"]) == (1 if runs else 2)
    assert Path("ran").exists() is runs
    assert capsys.readouterr().err.count("Run it? [y/N]") == 1


@pytest.mark.parametrize("words", COMMANDS)
def test_no_path_of_a_manifest_from_elsewhere_is_where_code_is_found(
    agent: Path, words: list[str], elsewhere: Callable[[], None], capsys: Streams
) -> None:
    """Not even trusted code with the right hash: only the copy in the folder."""
    elsewhere()
    Path("results/rules/agent_walker.py").unlink()
    assert main([*words, "--trust"]) == 2
    assert "has no copy of the run's prompt or agent walker.py" in capsys.readouterr().err
    assert not Path("ran").exists()


@pytest.mark.slow
@pytest.mark.parametrize(("mode", "why"), [("agent", "--trust"), ("plan", None)])
def test_code_under_another_name_is_code_where_the_benchmark_says_so(
    agent: Path,
    mode: str,
    why: str | None,
    elsewhere: Callable[[], None],
    capsys: Streams,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A manifest that calls an agent file text is asked about; in another mode nobody runs it."""
    monkeypatch.setattr("harness.endpoint.caller.full_jitter", lambda *_: 0.0)  # nobody listens at the address
    elsewhere()

    def rename(data: dict[str, Any]) -> None:
        data["identity"]["files"] = {"agent_walker.txt": data["identity"]["files"]["agent_walker.py"]}
        data["identity"]["settings"]["mode"] = mode
        data["provenance"]["source"] = "/elsewhere/walker.txt"

    Path("results/rules/agent_walker.py").rename("results/rules/agent_walker.txt")
    edit(rename, "results/rules/run_beijing.json")
    for words in COMMANDS:
        capsys.readouterr()
        assert main(words) in ((2,) if why else (1, 2, 3))
        assert not why or why in capsys.readouterr().err
    assert not Path("ran").exists()


@pytest.mark.parametrize("own", [True, False])
def test_a_copy_that_was_changed_is_not_run(
    agent: Path, own: bool, elsewhere: Callable[[], None], capsys: Streams
) -> None:
    """Neither in this user's own folder that came back, nor with a new hash in its manifest."""
    copy = Path("results/rules/agent_walker.py")
    copy.write_bytes(copy.read_bytes() + b"# edited\n")
    if own:
        agent.unlink()
    else:
        digest = sha256(copy.read_bytes()).hexdigest()
        edit(lambda data: data["identity"]["files"].update({copy.name: digest}), "results/rules/run_beijing.json")
    for words in COMMANDS:
        assert main(words) == 2
    assert not Path("ran").exists()
    assert ("is not what the run was given" if own else "--trust") in capsys.readouterr().err


def test_a_module_that_was_put_beside_the_copy_is_not_imported(agent: Path) -> None:
    """Whatever name the agent imports: only files with a hash in the manifest are its own."""
    mark = "open('planted', 'w').close()\n"
    for name in ("numpy.py", "agent_numpy.py", "orjson.py"):
        Path("results/rules", name).write_text(mark, encoding="utf-8")
    copy = Path("results/rules/agent_walker.py")
    copy.write_bytes(b"import numpy, orjson\n" + copy.read_bytes())
    digest = sha256(copy.read_bytes()).hexdigest()
    edit(lambda data: data["identity"]["files"].update({copy.name: digest}), "results/rules/run_beijing.json")
    assert main(["reeval", "--reparse", "--trust"]) == 1
    assert Path("ran").exists() and not Path("planted").exists()


def test_verify_runs_no_code_whatever_a_manifest_calls_it() -> None:
    """Names of which one has the ending of a Python file and the other has not stood for the same file."""
    assert main(["run", "--model", "baseline/recency", "--platform", "weibo"]) == 0
    code = b"open('ran', 'w').close()\n"
    Path("results/recency/_.py").write_bytes(code)

    def change(data: dict[str, Any]) -> None:
        data["identity"]["files"] = {"_.py": sha256(code).hexdigest()}
        data["provenance"]["source"] = "/x/.py"

    edit(change, "results/recency/run_weibo.json")
    main(["verify"])
    assert not Path("ran").exists()


def test_a_neighbour_of_a_kept_authors_prompt_is_not_imported() -> None:
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


def test_odd_names_of_kept_files_are_refused_in_one_sentence(capsys: Streams) -> None:
    """With the manifest's file and field."""
    assert main(["run", "--model", "baseline/recency", "--platform", "weibo"]) == 0
    odd = ("", ".", "..", ".hidden", "../../x", "/etc/passwd", "a/b", "a\\b", "a\0b", "x" * 256, "猫" * 100)
    for files in (*({name: "0" * 64} for name in odd), {"x": None}, {"x": {}}, []):
        edit(lambda data, files=files: data["identity"].update(files=files), "results/recency/run_weibo.json")  # type: ignore[misc]
        for command in (["status"], ["verify"], ["reeval", "--reparse"], ["resume"]):
            capsys.readouterr()
            assert main(command) == 2
            assert "run_weibo.json: field identity.files" in capsys.readouterr().err.splitlines()[0]


def test_a_prompt_whose_name_no_folder_could_keep_is_refused_before_it_is_used(capsys: Streams) -> None:
    """Its run could not be read again."""
    Path("a\\b.txt").write_text("${posts} ${pool}", encoding="utf-8")
    assert main(["run", "--model", "baseline/recency", "--platform", "weibo", "--prompt", "a\\b.txt"]) == 2
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
def test_files_without_an_end_are_refused_and_not_waited_for(kind: str, option: str, capsys: Streams) -> None:
    """One sentence with the file's name."""
    file = odd_file(kind)
    how = [] if option == "--config" else ["--api-url", "http://127.0.0.1:9/v1"]
    assert main(["run", "--model", "m", "--platform", "weibo", option, str(file), *how]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert str(file) in line


@pytest.mark.parametrize("kind", ["pipe", "folder", "huge"])
def test_key_file_that_became_something_else_is_not_waited_for(kind: str, capsys: Streams) -> None:
    """Where an own run took its key from."""
    with serving(denied) as server:
        unfinished(server.url, "--api-key-file", "key")
        Path("key").unlink()
        odd_file(kind).rename("key")
        assert main(["resume"]) == 2
    assert "cannot read the key in" in capsys.readouterr().err


def shell(words: str, script: Script) -> tuple[int, str, list[str | None]]:
    """A command of bash with `run ... $URL`, its exit code, its standard error, and the keys that came."""
    with serving(script) as server:
        command = f"{sys.executable} -m harness run --model m --platform weibo --api-url {server.url} --max-retries 0 "
        where = {**os.environ, "PYTHONPATH": str(ROOT)}
        made = subprocess.run(
            ["bash", "-c", command + words], capture_output=True, text=True, timeout=60, env=where, check=False
        )
        return made.returncode, made.stderr, server.keys


@pytest.mark.parametrize("words", [f"--api-key-file <(echo {KEY})", f"--api-key-file /dev/stdin <<< {KEY}"])
def test_key_of_a_pipe_that_the_shell_hands_over_is_read(words: str, capsys: Streams) -> None:
    """`<(pass show key)` is how a key stays off the disk; a resume wants it again."""
    code, errors, keys = shell(words, denied)
    assert code == 3 and set(keys) == {f"Bearer {KEY}"}, errors
    assert main(["resume"]) == 2
    assert "was given its key by --api-key-file /dev/" in capsys.readouterr().err


def test_endless_pipe_is_refused_at_its_bound() -> None:
    """More than any key has."""
    code, errors, keys = shell("--api-key-file <(yes)", denied)
    assert code == 2 and "it is larger than 65536 bytes" in errors and not keys
