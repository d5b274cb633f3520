"""`fetch` and `run --fetch` as commands: what a user sees, what the manifest records, a death in
each download."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from harness.benchmark import files_needed
from harness.benchmarks import registry
from harness.cli import main
from harness.commands import fetch as features_fetch
from tests.support import ROOT
from tests.support import hub as hubs
from tests.support.hub import Fault, HubServer, serving_hub
from tests.support.plugins import made_of

SAMPLE = ROOT / "harness" / "sample"
STREAM, MOBILITY = (registry.find(name) for name in registry.names())
TOKEN = "hf_abcdefghijklmnopqrstuvwxyz"


def stream_files() -> dict[str, bytes]:
    return {f"data/{name}": (SAMPLE / name).read_bytes() for name in STREAM.subsets.values()}


def mobility_files() -> dict[str, bytes]:
    folder = SAMPLE / "dailymobility"
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def served(files: dict[str, bytes], data_set: str, **of: Any) -> HubServer:
    hub = HubServer(repository=data_set, **of)
    hub.commit(files)
    return hub


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def stream(monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    """StreamProfileBench's data set, at the address of `HF_ENDPOINT`."""
    with serving_hub(served(stream_files(), STREAM.task_files.data_set)) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        yield hub


def manifest(folder: Path, subset: str = "weibo") -> Any:
    return orjson.loads((folder / "results" / "recency" / f"run_{subset}.json").read_bytes())


RUN = ["run", "--model", "baseline/recency", "--platform", "weibo", "--limit", "2", "--no-html"]


def test_a_run_records_the_commit_of_fetched_tasks(here, stream):
    """`run` finds the files where `fetch` put them; the manifest names data set and commit while
    the hash agrees."""
    assert main(["fetch", "streamprofile", "--platform", "weibo"]) == 0
    asked = len(stream.asked)
    assert main(RUN) == 0 and len(stream.asked) == asked
    expected = {"name": STREAM.task_files.data_set, "commit": stream.refs["main"]}
    assert manifest(here)["provenance"]["data_set"] == expected
    (here / "tasks" / ".fetched.json").unlink()
    assert main([*RUN[:-2], "3", RUN[-1]]) == 0 and manifest(here)["counts"]["users"] == 3
    assert manifest(here)["provenance"]["data_set"] == expected
    with (here / "tasks" / "weibo_inference_tasks.jsonl").open("ab") as file:
        file.write(b"\n")
    assert main(["fetch", "--platform", "weibo"]) == 2
    assert main([*RUN[:-2], "4", RUN[-1]]) == 0 and "data_set" not in manifest(here)["provenance"]


def test_run_downloads_nothing_unless_it_is_asked_to(here, stream, capsys):
    """Without `--fetch` it names the command and the data set; with it, it does first what is
    missing, once."""
    assert main(RUN) == 2 and not stream.asked
    errors = capsys.readouterr().err
    assert "fetch streamprofile" in errors and STREAM.task_files.data_set in errors
    assert main([*RUN, "--fetch"]) == 0
    assert (here / "tasks" / "weibo_inference_tasks.jsonl").read_bytes() == stream_files()[
        "data/weibo_inference_tasks.jsonl"
    ]
    asked = len(stream.asked)
    stream.commit({**stream_files(), "data/weibo_inference_tasks.jsonl": b"{}\n"})
    assert main([*RUN, "--fetch"]) == 0 and len(stream.asked) == asked


def test_a_model_that_cannot_be_called_stops_before_the_download(here, stream):
    """Nothing is fetched for a command that cannot run."""
    assert main(["run", "--model", "gpt-4o-mini", "--platform", "weibo", "--fetch"]) == 2
    assert not stream.asked


@pytest.mark.parametrize("command", [["sample", "--ratio", "0.5"], ["check-benchmark"]])
def test_every_command_without_tasks_names_the_way_to_them(here, command, capsys):
    """Command and data set."""
    assert main(command) == 2
    errors = capsys.readouterr().err
    assert "fetch streamprofile" in errors and STREAM.task_files.data_set in errors


def test_files_of_dailymobility_are_where_the_benchmark_looks(here, monkeypatch):
    """In its own folder; or, where its profiles are in another one of those that it knows, in
    that."""
    files = mobility_files()
    with serving_hub(served(files, MOBILITY.task_files.data_set)) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        assert main(["fetch", "dailymobility"]) == 0
        assert all(
            MOBILITY.task_files.file_in(Path("tasks"), name).is_file()
            for name in files_needed(MOBILITY, "beijing")
        )
        assert (here / "tasks" / "dailymobility" / "groundtruth").is_dir()
        known = here / "as" / "datasets" / "DailyMobility"
        known.mkdir(parents=True)
        shutil.copy(SAMPLE / "dailymobility" / "profiles.json", known)
        assert main(["fetch", "dailymobility", "--tasks-dir", "as"]) == 0
        assert (known / "beijing.pb").read_bytes() == files["beijing.pb"] and not (
            here / "as/dailymobility"
        ).exists()


def test_elsewhere_than_on_a_terminal_there_is_a_line_a_file(here, stream, capsys):
    """No bars in a log: each file once, then the commit."""
    assert main(["fetch"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(STREAM.subsets) + 1 and stream.refs["main"] in lines[-1]
    assert {line.partition(":")[0] for line in lines[:-1]} == {
        f"tasks/{name}" for name in STREAM.subsets.values()
    }


def test_no_message_shows_the_token(here, stream, monkeypatch, capsys):
    """Right or wrong, nor is it in any file."""
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    assert main(["fetch", "--platform", "weibo"]) == 0
    stream.token = "hf_another"
    assert main(["fetch", "--platform", "zhihu"]) == 3
    stream.token = TOKEN
    assert main(["fetch", "--platform", "zhihu"]) == 0
    out, err = capsys.readouterr()
    files = b"".join(path.read_bytes() for path in here.rglob(".fetched*"))
    assert "hf_" not in out + err and b"hf_" not in files


def test_an_address_that_is_none_is_refused(here, monkeypatch, capsys):
    """With its variable, and without credentials."""
    monkeypatch.setenv("HF_ENDPOINT", "user:geheimnis@mirror")
    assert main(["fetch"]) == 3
    errors = capsys.readouterr().err
    assert "HF_ENDPOINT" in errors and "geheimnis" not in errors


def test_without_the_package_the_message_says_what_to_install(here, monkeypatch, capsys):
    """For the Python that runs."""
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    monkeypatch.delitem(sys.modules, "harness.commands.fetch.download", raising=False)
    monkeypatch.delattr(features_fetch, "download", raising=False)
    assert main(["fetch"]) == 2
    errors = capsys.readouterr().err
    assert "behavior-harness[data]" in errors and sys.executable in errors


def test_a_benchmark_of_ones_own_declares_its_data_set(here, monkeypatch):
    """One line in its class; without it there is nothing to fetch, and a name that is none is
    refused."""
    example = ROOT / "examples" / "star_rating"
    tasks = {"data/yelp_star_tasks.jsonl": (example / "yelp_star_tasks.jsonl").read_bytes()}
    source, class_line = (example / "star_rating.py").read_text(), '    name = "stars"\n'
    codes = {"": 2, "someone/stars": 0, "../stars": 2}
    with serving_hub(served(tasks, "someone/stars")) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        for name, code in codes.items():
            own = here / f"own{len(name)}.py"
            files = made_of("task_files", "TaskFiles", f'data_set="{name}"')
            own.write_text(source.replace(class_line, f"{class_line}{files}"))
            assert main(["fetch", own.name]) == code, name
    assert (here / "tasks" / "yelp_star_tasks.jsonl").read_bytes() == tasks[
        "data/yelp_star_tasks.jsonl"
    ]


# A fresh clone


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """The files of this checkout that git knows or would add, as they are now."""
    command = [
        "git",
        "ls-files",
        "-co",
        "--exclude-standard",
        "-z",
        "harness",
        "tasks",
        "pyproject.toml",
    ]
    names = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split("\0")
    for name in filter(None, names):
        target = tmp_path / "clone" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, target)
    return tmp_path / "clone"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("benchmark", "model"),
    [("streamprofile", "baseline/recency"), ("dailymobility", "baseline/commuter")],
)
def test_a_clone_fetches_and_runs_after_a_death_in_each_download(clone, benchmark, model):
    """`kill -9` in the middle of each file in turn; then `fetch` and `run`, and nothing else is
    left of the tasks."""
    cls = registry.find(benchmark)
    files = stream_files() if cls is STREAM else mobility_files()
    wanted = [
        hubs.named(files, name) for subset in cls.subsets for name in files_needed(cls, subset)
    ]
    wanted = list(dict.fromkeys(wanted))
    with serving_hub(served(files, cls.task_files.data_set)) as hub:
        command = [sys.executable, "-m", "harness"]
        environment = {
            **os.environ,
            "HF_ENDPOINT": hub.url,
            "PYTHONPATH": str(clone),
            "HOME": str(clone.parent),
        }
        for path in wanted:
            hub.stalled.clear()
            hub.released.clear()
            half = len(files[path]) // 2
            hub.faults[path] = [Fault(cut=half, stalls=True)]
            with subprocess.Popen(
                [*command, "fetch", benchmark], cwd=clone, env=environment
            ) as process:
                assert hub.stalled.wait(60)
                process.kill()
            hub.released.set()
        assert (
            subprocess.run(
                [*command, "fetch", benchmark], cwd=clone, env=environment, check=False
            ).returncode
            == 0
        )
        run = [*command, "run", benchmark, "--model", model, "--name", "m", "--no-html"]
        assert subprocess.run(run, cwd=clone, env=environment, check=False).returncode == 0
    left = {path.name for path in (clone / "tasks").rglob("*") if path.is_file()} - {
        ".fetched.json",
        ".gitignore",
    }
    assert left >= {Path(path).name for path in wanted} and not [
        name for name in left if name.endswith("incomplete")
    ]
    for subset in cls.subsets:
        made = orjson.loads((clone / "results" / "m" / f"run_{subset}.json").read_bytes())
        assert made["state"] == "complete"
        assert made["provenance"]["data_set"] == {
            "name": cls.task_files.data_set,
            "commit": hub.refs["main"],
        }
