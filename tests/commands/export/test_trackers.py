"""`export --format wandb`, `mlflow`: a tracker has a run's identity, figures and files, once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from base64 import b64encode
from collections.abc import Iterator
from hashlib import md5, sha256
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, cast

import msgspec
import orjson
import pytest

from harness.analysis.saved_runs import SavedRun
from harness.cli import main
from harness.commands.export import TRACKERS, trackers
from harness.interface import load_run
from harness.store.manifest import Manifest
from tests.commands.test_commands import write_tasks
from tests.support import ROOT, SHIPPED
from tests.support.scripted import baseline, serving
from tests.support.trackers import Kept, Library, Mlflow, Wandb

KEY = "sk-test-0123456789abcdef"
DEMO = ("run", "--model", "baseline/recency", *SHIPPED, "--platform", "weibo")
Streams = pytest.CaptureFixture[str]


def saved(folder: Path) -> SavedRun:
    made = load_run(folder)
    return SavedRun(made.files, made.manifest)


def export(results: Path, *words: str, code: int = 0) -> None:
    assert main(["export", *words, "--results-dir", str(results)]) == code


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of enough users for intervals."""
    results = tmp_path_factory.mktemp("made")
    assert main([*DEMO, "--no-html", "--results-dir", str(results)]) == 0
    return results


@pytest.fixture(params=TRACKERS)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def library(name: str, monkeypatch: pytest.MonkeyPatch) -> Library:
    """One tracker's library in the place of the real one."""
    made: Library = {"wandb": Wandb, "mlflow": Mlflow}[name]()
    monkeypatch.setitem(sys.modules, name, cast(ModuleType, made))
    monkeypatch.setenv(trackers.MLFLOW_SUPPRESS_ADDRESS, "")  # as it was, once the test has ended
    return made


def only(library: Library) -> Kept:
    [kept] = library.entries.values()
    return kept


# What a tracker gets


def test_configuration_is_the_identity_under_the_names_of_allow(finished):
    """Whatever `--allow` can name is a field; what is not set is none."""
    made = trackers.entry(saved(finished / "recency"))
    prompt = sha256((finished / "recency" / "prompt_own.txt").read_bytes()).hexdigest()
    assert made.config == {
        "run": "recency",
        "subset": "weibo",
        "benchmark": "streamprofile",
        "prompt_version": "1",
        "model": "baseline/recency",
        "sampling.temperature": 0.0,
        "settings.prompt": "own",
        "settings.persona": True,
        "settings.structured": "json_object",
        "settings.parse_retries": 2,
        "files.prompt_own.txt": prompt,
    }
    assert made.facts["state"] == "complete" and made.facts["selection.ratio"] == 1.0


def test_cost_is_a_figure_by_its_currency(finished, tmp_path):
    """Of a run with a price."""
    run = saved(finished / "recency")
    report = orjson.loads(run.files.report("json").read_bytes())
    price = {"prompt": "1", "completion": "2", "currency": "CNY"}
    report["cost"] = {"requests": 1, "amount": "0.25", "price": price}
    copy = saved_copy(run, tmp_path)
    copy.files.report("json").write_bytes(orjson.dumps(report))
    assert trackers.entry(copy).summary["cost/CNY"] == 0.25


def saved_copy(run: SavedRun, folder: Path) -> SavedRun:
    (folder / run.name).mkdir()
    for path in run.files.folder.iterdir():
        (folder / run.name / path.name).write_bytes(path.read_bytes())
    return saved(folder / run.name)


def test_files_are_those_of_the_run_alone(finished, tmp_path):
    """Nothing else of its folder: a page with posts, an export, a backup, a file of the user's, a
    link to one."""
    copy = saved_copy(saved(finished / "recency"), tmp_path)
    folder = copy.files.folder
    for other in (
        "users_weibo.html",
        "eval_report_weibo.html",
        "export_weibo.eval",
        "run_weibo.json.before-1",
        ".env",
    ):
        (folder / other).write_text("x")
    copy.files.failures.unlink()
    copy.files.failures.symlink_to(folder / ".env")
    names = {path.name for path in trackers.entry(copy).files}
    assert names == {
        "run_weibo.json",
        "run_weibo.log",
        "inference_results_weibo.jsonl",
        "responses_weibo.jsonl",
        "eval_report_weibo.txt",
        "eval_report_weibo.json",
        "prompt_own.txt",
    }


@pytest.mark.parametrize("change", ["name", "created", "model", "subset"])
def test_another_run_is_another_entry(change, finished, tmp_path):
    """As one that `--restart` begins, or of another configuration."""
    run = saved(finished / "recency")
    manifest: Manifest = msgspec.convert(msgspec.to_builtins(run.manifest), Manifest)
    files = run.files
    if change == "created":
        manifest.times["created"] = "2026-01-01T00:00:00+00:00"
    elif change == "model":
        manifest.identity["model"] = "m2"
    elif change == "name":
        files = saved_copy(run, tmp_path).files
        files.folder.rename(tmp_path / "二")
        files = load_run(tmp_path / "二").files
    else:
        files = type(files)(saved_copy(run, tmp_path).files.folder, "zhihu")
        report = orjson.loads(run.files.report("json").read_bytes())
        files.report("json").write_bytes(orjson.dumps(report | {"subset": "zhihu"}))
    assert trackers.entry(SavedRun(files, manifest)).id != trackers.entry(run).id


# Sending


def test_export_sends_what_is_on_file(name, library, finished, capsys):
    """Configuration, figures that are defined, and the bytes of the files; one line says where it
    is."""
    export(finished, "recency", "--format", name)
    made, kept = trackers.entry(saved(finished / "recency")), only(library)
    plain = {
        key.replace("^", "_") if name == "mlflow" else key: value
        for key, value in made.summary.items()
    }
    plain = {
        key.replace("(", "").replace(")", "") if name == "mlflow" else key: of
        for key, of in plain.items()
    }
    assert kept.figures == {key: value for key, value in plain.items() if value is not None}
    assert {**kept.config, **kept.facts}.items() >= {**made.config, **made.facts}.items()
    assert kept.files == {path.name: path.read_bytes() for path in made.files}
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_sending_twice_changes_one_entry(name, library, finished, tmp_path):
    """As after `reeval`: a figure that has changed is new, one that is undefined now has no
    value."""
    copy = saved_copy(saved(finished / "recency"), tmp_path)
    trackers.send(copy, name)
    report = orjson.loads(copy.files.report("json").read_bytes())
    report["metrics"]["Recall"] |= {"value": 0.125, "ci95": None}
    copy.files.report("json").write_bytes(orjson.dumps(report))
    trackers.send(copy, name)
    kept = only(library)
    assert (
        kept.times == 2
        and kept.figures["Recall"] == 0.125
        and "Recall/ci95_low" not in kept.figures
    )
    if name == "mlflow":
        assert len(kept.history["Precision"]) == 1 and len(kept.history["Recall"]) == 2


def test_mlflow_prints_no_address_and_stdout_stays(finished, monkeypatch, capsys):
    """The address may have a password; whatever another thread prints meanwhile arrives."""
    monkeypatch.setitem(sys.modules, "mlflow", library := Mlflow())  # type: ignore[arg-type]
    monkeypatch.setenv(trackers.MLFLOW_SUPPRESS_ADDRESS, "")
    trackers.send(saved(finished / "recency"), "mlflow")
    assert library.printed_to == [sys.stdout] and not capsys.readouterr().out


def test_run_of_wandb_is_finished_as_failed_where_its_upload_fails(finished, monkeypatch, capsys):
    """Without W&B's own context manager, which prints a traceback: one line."""
    monkeypatch.setitem(sys.modules, "wandb", library := Wandb())  # type: ignore[arg-type]
    library.upload_error = OSError("disk full")
    export(finished, "recency", "--format", "wandb", code=3)
    assert library.ended == [1] and len(capsys.readouterr().err.splitlines()) == 1
    library.upload_error = None
    export(finished, "recency", "--format", "wandb")
    assert library.ended == [1, 0]


def test_entry_of_mlflow_that_got_nothing_else_is_found_again(finished, monkeypatch):
    """A server that is lost once it has made the entry does not lead to a second one."""
    monkeypatch.setitem(sys.modules, "mlflow", library := Mlflow())  # type: ignore[arg-type]
    monkeypatch.setenv(trackers.MLFLOW_SUPPRESS_ADDRESS, "")
    library.error_of_tags = OSError("gone")
    export(finished, "recency", "--format", "mlflow", code=3)
    library.error_of_tags = None
    export(finished, "recency", "--format", "mlflow")
    assert only(library).times == 2 and only(library).figures


def test_mlflow_refuses_two_figures_of_one_name():
    """A figure never takes the place of another."""
    assert trackers._allowed({"F1^NS (cut)": 1.0, "中文/ci95_low": None}) == {
        "F1_NS cut": 1.0,
        "中文/ci95_low": None,
    }
    with pytest.raises(ValueError):
        trackers._allowed({"F^": 1, "F_": 2})


@pytest.mark.parametrize("words", [("--out", "x.csv"), ("--out", "there"), ("--rows", "users")])
def test_export_to_a_tracker_writes_no_file(words, name, library, finished, capsys):
    """Options of files are refused with one sentence, and nothing is sent."""
    export(finished, *words, "--format", name, code=2)
    assert not library.entries and len(capsys.readouterr().err.splitlines()) == 1


def test_run_without_report_is_not_sent(name, library, finished, tmp_path):
    """It names the command that makes one."""
    copy = saved_copy(saved(finished / "recency"), tmp_path)
    copy.files.report("json").unlink()
    export(tmp_path, "--format", name, code=2)
    assert not library.entries


# After a run


@pytest.fixture
def endpoint(tmp_path: Path) -> Iterator[Any]:
    """A function that executes a command on six users of a server, which may `refuse` one user; and
    that server."""
    write_tasks(tmp_path / "tasks", 6)
    one = orjson.loads(
        (tmp_path / "tasks" / "weibo_inference_tasks.jsonl").read_bytes().splitlines()[3]
    )["username"]
    refused: set[str] = set()

    def script(body: dict[str, Any]) -> tuple[int, bytes]:
        if refused and one in body["messages"][-1]["content"]:
            return 400, b'{"error": {"message": "this one I do not take", "code": "odd"}}'
        return baseline(body)

    with serving(script) as server:

        def called(command: str, *options: str, code: int = 0, refuse: bool = False) -> Path:
            refused.clear()
            refused.update(["one"] if refuse else [])
            folders = (
                "--tasks-dir",
                str(tmp_path / "tasks"),
                "--results-dir",
                str(tmp_path / "out"),
            )
            which = (
                ("--model", "m", "--api-url", server.url, "--platform", "weibo")
                if command == "run"
                else ()
            )
            assert main([command, *which, *folders, "--no-html", *options]) == code
            return tmp_path / "out" / "m"

        yield SimpleNamespace(execute=called, server=server)


def test_resumed_run_goes_on_with_its_entry(name, library, endpoint):
    """First with its failed users as coverage below the whole, then complete: one entry, its last
    figures."""
    folder = endpoint.execute("run", refuse=True, code=1)
    export(folder.parent, "--format", name)
    kept = only(library)
    state = kept.facts.get("state") or kept.config.get("state")
    assert (state, kept.figures["coverage/complete"]) == ("incomplete", 0.0) and kept.figures[
        "coverage/failed_users"
    ]
    endpoint.execute("resume")
    export(folder.parent, "--format", name)
    kept = only(library)
    state = kept.facts.get("state") or kept.config.get("state")
    assert (state, kept.figures["coverage/complete"], kept.figures["coverage/failed_users"]) == (
        "complete",
        1.0,
        0.0,
    )
    assert (
        kept.times == 2 and kept.files["run_weibo.json"] == (folder / "run_weibo.json").read_bytes()
    )


def test_tracker_that_fails_shows_no_password(name, library, finished, capsys):
    """One line and exit code 3; the same command sends the run once the tracker is back."""
    library.error = OSError("no route to\nhttps://me:p@ss:word@tracker.example/api")
    export(finished, "--format", name, code=3)
    [line] = capsys.readouterr().err.splitlines()
    assert "https://tracker.example/api" in line
    library.error = None
    export(finished, "--format", name)
    assert only(library).figures["coverage/complete"] == 1.0


@pytest.mark.parametrize("found", [None, ModuleType("folder")], ids=["none", "folder"])
def test_missing_library_is_refused(
    found,
    name,
    finished,
    monkeypatch,
    capsys,
):
    """One sentence says what to install. A folder of its name here is no library."""
    monkeypatch.setitem(sys.modules, name, found)  # type: ignore[arg-type]
    export(finished, "--format", name, code=2)
    [line] = capsys.readouterr().err.splitlines()
    assert f"behavior-harness[{name}]" in line


def test_no_key_reaches_a_tracker(name, library, endpoint, monkeypatch, capsys):
    """Neither the endpoint's, however it is given, nor the tracker's own."""
    own = "tracker-0123456789abcdef"
    for variable in ("WANDB_API_KEY", "MLFLOW_TRACKING_TOKEN", "MLFLOW_TRACKING_PASSWORD"):
        monkeypatch.setenv(variable, own)
    monkeypatch.setenv("LLM_API_KEY", KEY)
    header = "header-0123456789abcdef"
    folder = endpoint.execute("run", "--extra-header", f"X-Relay: {header}")
    export(folder.parent, "--format", name)
    assert endpoint.server.keys[0] == f"Bearer {KEY}"
    kept, made = only(library), trackers.entry(saved(folder))
    shown = repr((kept.config, kept.facts, made, capsys.readouterr())).encode() + b"".join(
        kept.files.values()
    )
    assert not [secret for secret in (KEY, own, header) if secret.encode() in shown]


# The libraries themselves


def real(name: str, folder: Path, *words: str, **variables: str) -> str:
    """Run Python with a real library, offline and at home in a folder; return its output."""
    if subprocess.run(
        [sys.executable, "-c", f"import {name}"], capture_output=True, check=False
    ).returncode:
        pytest.skip(f"no {name}: make .venv/trackers.made")
    home = {"HOME": str(folder), "PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), **variables}
    done = subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        env=home,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


TRACKED = ("-m", "harness", *DEMO, "--api-key", KEY)
EXPORTED = ("-m", "harness", "export", "--format")

READ_WANDB = '''
import json, struct, sys
from pathlib import Path
from wandb.proto.wandb_internal_pb2 import Record

def records(data):
    """A header of 7 bytes, then blocks of 32 KB of pieces: checksum, size, kind (1 and 4 end a record)."""
    at, whole = 7, b""
    while at + 7 <= len(data):
        if (left := -at % 32768) and left < 7:
            at += left
            continue
        _, size, kind = struct.unpack("<IHB", data[at : at + 7])
        whole, at = whole + data[at + 7 : at + 7 + size], at + 7 + size
        if kind in (1, 4):
            yield Record.FromString(whole)
            whole = b""

found = {"config": {}, "summary": {}, "files": {}}
for path in Path("wandb").glob("offline-run-*/*.wandb"):
    for record in records(path.read_bytes()):
        kind = record.WhichOneof("record_type")
        if kind == "run":
            found |= {"id": record.run.run_id, "resume": record.run.resume, "name": record.run.display_name}
        for one in record.config.update if kind == "config" else ():
            found["config"][one.key] = json.loads(one.value_json)
        for one in record.summary.update if kind == "summary" else ():
            found["summary"][one.key or "/".join(one.nested_key)] = json.loads(one.value_json)
        for one in record.artifact.manifest.contents if kind == "artifact" else ():
            found["files"][one.path] = [one.digest, one.local_path]
print(json.dumps(found))
'''


@pytest.mark.slow
def test_wandb_has_the_run_in_its_offline_files(tmp_path):
    """Its identifier is the run's, to go on with; configuration and figures to the last digit, the
    bytes of all files; the command line, which has a key in it, in none of its files."""
    variables = {"WANDB_MODE": "offline", "WANDB_DATA_DIR": str(tmp_path / "data")}
    real("wandb", tmp_path, *TRACKED, **variables)
    real("wandb", tmp_path, *EXPORTED, "wandb", **variables)
    found = json.loads(real("wandb", tmp_path, "-c", READ_WANDB))
    made = trackers.entry(saved(tmp_path / "results" / "recency"))
    assert (found["id"], found["resume"], found["name"]) == (made.id, True, "recency, weibo")
    assert found["config"].items() >= {**made.config, **made.facts}.items()
    assert {name: found["summary"][name] for name in made.summary} == dict(made.summary)
    assert found["files"].keys() == {path.name for path in made.files}
    for path in made.files:
        digest, staged = found["files"][path.name]
        content = path.read_bytes()
        assert Path(staged).read_bytes() == content
        assert digest == b64encode(md5(content).digest()).decode()
    assert not [
        path for path in tmp_path.rglob("*") if path.is_file() and KEY.encode() in path.read_bytes()
    ]


READ_MLFLOW = """
import json, mlflow
from pathlib import Path
client = mlflow.MlflowClient()
runs = client.search_runs([one.experiment_id for one in client.search_experiments()])
print(json.dumps([[
    run.info.status, run.data.params, run.data.tags, run.data.metrics,
    {one.path: client.download_artifacts(run.info.run_id, one.path) for one in client.list_artifacts(run.info.run_id)},
    len(client.get_metric_history(run.info.run_id, "Recall")),
] for run in runs]))
"""


@pytest.mark.slow
def test_client_of_mlflow_finds_the_run_once(tmp_path):
    """In the experiment that its variable names: parameters, tags, figures to the last digit, the
    bytes of all files. Sent again it is the same entry, and no figure has a second value."""
    variables = {
        "MLFLOW_TRACKING_URI": f"sqlite:///{tmp_path}/m.db",
        "MLFLOW_EXPERIMENT_NAME": "实验",
    }
    real("mlflow", tmp_path, *TRACKED, **variables)
    for _ in range(2):
        real("mlflow", tmp_path, *EXPORTED, "mlflow", **variables)
    [found] = json.loads(real("mlflow", tmp_path, "-c", READ_MLFLOW, **variables))
    status, params, tags, metrics, files, history = found
    made = trackers.entry(saved(tmp_path / "results" / "recency"))
    assert (status, history) == ("FINISHED", 1)
    assert params == {name: str(value) for name, value in made.config.items()}
    assert (
        tags.items()
        >= {
            "harness.run": made.id,
            **{name: str(value) for name, value in made.facts.items()},
        }.items()
    )
    assert metrics == {
        name: of for name, of in trackers._allowed(made.summary).items() if of is not None
    }
    assert {name: Path(path).read_bytes() for name, path in files.items()} == {
        path.name: path.read_bytes() for path in made.files
    }
    assert not [value for value in (*params.values(), *tags.values()) if KEY in value]
