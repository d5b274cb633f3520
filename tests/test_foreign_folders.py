"""A run's folder from somebody else, with links, pipes, devices and endless files in place of its files.

Whatever is planted under whichever name, every command ends in a sentence, within bounds of time and memory, and
nothing outside the results folder has changed.
"""

from __future__ import annotations

import errno
import faulthandler
import os
import random
import resource
import shutil
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import pytest

from harness.benchmarks.streamprofile.synth import generate
from harness.cli import main
from harness.commands.proving import proof
from harness.errors import BadInput, MachineError
from harness.model import JSON
from harness.store import atomic, log
from harness.store.aside import keep_old
from harness.store.disk import APPEND, DISK, FRESH, KEEP, Disk
from harness.store.files import RunFiles
from harness.store.lock import RunLock, held
from harness.store.manifest import RUNNING, load
from harness.store.tasks import open_index
from tests.disks import QuickDisk

Said = pytest.CaptureFixture[str]
HANG = 120.0
"""Seconds after which a command counts as one that waits for ever."""
MEMORY = 3 << 30
"""Bytes that a command may take on top of what this process has."""
SPARSE = 100 << 30
PART, WHOLE = "part", "whole"
TORN = b'{"user_id":"torn'


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LLM_API_KEY", "LLM_API_BASE", "OPENAI_API_KEY", "OPENAI_BASE_URL", "BENCH_MAX_WORKERS"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tasks, and results with a complete run and one that died after its first user."""
    root = tmp_path_factory.mktemp("made")
    (root / "tasks").mkdir()
    (root / "tasks/weibo_inference_tasks.jsonl").write_bytes(b"".join(generate("weibo", 3, 5, 2.0)))
    for name in (WHOLE, PART):
        assert main(run(root, name)) == 0
    files = RunFiles(root / "results" / PART, "weibo")
    manifest = load(files.manifest)
    assert manifest is not None
    manifest.state, manifest.results_sha256 = RUNNING, None
    manifest.save(files.manifest)
    files.results.write_bytes(files.results.read_bytes().splitlines(keepends=True)[0])
    files.failures.write_bytes(log.seal({"user_id": "x", "boundary": "endpoint", "kind": "x", "detail": "忙"}))
    assert main(["report", "--results-dir", str(root / "results"), "--name", PART, "--users", "all"]) == 0
    return root


def run(root: Path, name: str, *more: str) -> list[str]:
    where = ["--tasks-dir", str(root / "tasks"), "--results-dir", str(root / "results")]
    return ["run", "--model", "baseline/recency", "--name", name, "--platform", "weibo", *where, *more]


# What is planted, and where


@dataclass(frozen=True)
class Scene:
    """A copy of what was made, and a folder outside that nobody may change."""

    root: Path

    @property
    def results(self) -> Path:
        return self.root / "results"

    @property
    def outside(self) -> Path:
        return self.root / "outside"

    @property
    def files(self) -> RunFiles:
        return RunFiles(self.results / PART, "weibo")

    def precious(self, path: Path) -> Path:
        """A file outside: the content of the file whose place it takes, and a torn line where that is a log."""
        target = self.outside / f"precious-{path.name}"
        content = path.read_bytes() if path.is_file() else b"precious\n"
        target.write_bytes(content + (TORN if path.suffix in (".jsonl", ".log") else b""))
        return target


def symlink(scene: Scene, path: Path) -> None:
    target = scene.precious(path)
    clear(path)
    path.symlink_to(target)


def dangling(scene: Scene, path: Path) -> None:
    clear(path)
    path.symlink_to(scene.outside / "not-there")


def to_folder(scene: Scene, path: Path) -> None:
    clear(path)
    path.symlink_to(scene.outside / "folder", target_is_directory=True)


def hard_link(scene: Scene, path: Path) -> None:
    target = scene.precious(path)
    clear(path)
    path.hardlink_to(target)


def pipe(scene: Scene, path: Path) -> None:
    clear(path)
    os.mkfifo(path)


def unix_socket(scene: Scene, path: Path) -> None:
    clear(path)
    here = Path.cwd()
    os.chdir(path.parent)  # the name of a socket is short
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(path.name)
    finally:
        os.chdir(here)


def endless(scene: Scene, path: Path) -> None:
    clear(path)
    path.symlink_to("/dev/zero")


def full(scene: Scene, path: Path) -> None:
    clear(path)
    path.symlink_to("/dev/full")


def folder(scene: Scene, path: Path) -> None:
    clear(path)
    path.mkdir()


def sparse(scene: Scene, path: Path) -> None:
    """What was there, and after it 100 GB of nothing."""
    if path.is_dir() or path.is_symlink():
        clear(path)
    with path.open("ab") as file:
        file.truncate(SPARSE)


def clear(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)


Plant = Callable[[Scene, Path], None]
PLANTS: tuple[Plant, ...] = (
    *(symlink, dangling, to_folder, hard_link, pipe, unix_socket, endless, full, folder, sparse),
)


def places(scene: Scene) -> dict[str, Path]:
    """Every name that a command reads or writes."""
    files, results = scene.files, scene.results
    logs = files.results, files.responses, files.failures, files.events
    prompt, pages = files.folder / "prompt_own.txt", [*files.pages, results / "index.html"]
    (index,) = (path for path in (results / ".index").iterdir() if path.suffix == ".npz")
    found = [*logs, files.manifest, files.lock, *files.reports, prompt, pages[-1], index]
    found += [files.folder, index.parent, results / "metric_excels"]
    alone = [*logs, files.manifest, files.report("txt"), files.report("json")]
    found += [path.with_name(f"{path.name}.new") for path in alone]
    new = f"{socket.gethostname()}-{os.getpid()}.new"
    found += [path.with_name(f"{path.name}.{new}") for path in (prompt, index, *pages)]
    found += [path.with_name(f"{path.name}.torn") for path in logs]
    return {str(path.relative_to(results)).replace(new, "pid.new"): path for path in found}


def commands(scene: Scene) -> dict[str, list[str]]:
    where, named = ["--results-dir", str(scene.results)], ["--name", PART]
    tasks = ["--tasks-dir", str(scene.root / "tasks")]
    return {
        "status": ["status", *where],
        "verify": ["verify", *where, *tasks, *named],
        "verify alone": ["verify", *where, *named, "--without-tasks"],
        "report": ["report", *where],
        "report one": ["report", *where, *tasks, *named, "--users", "all"],
        "stats": ["stats", *where],
        "compare": ["compare", PART, WHOLE, *where, *tasks, "--resamples", "1000"],
        "reeval": ["reeval", *where, *tasks, *named],
        "reparse": ["reeval", "--reparse", *where, *tasks, *named],
        "resume": ["resume", *where, *tasks, *named],
        "run": run(scene.root, PART),
        "restart": run(scene.root, PART, "--restart"),
    }


@contextmanager
def scene_of(made: Path, place: Path) -> Iterator[Scene]:
    shutil.copytree(made, place)
    scene = Scene(place)
    (scene.outside / "folder").mkdir(parents=True)
    (scene.outside / "folder" / "other.txt").write_bytes(b"other\n")
    yield scene
    shutil.rmtree(place)


def state(outside: Path) -> dict[str, tuple[bytes | None, int, int]]:
    """Every file and folder outside: content, time of the last change of it, mode."""
    found = {}
    for path in sorted([outside, *outside.rglob("*")]):
        known = path.lstat()
        found[str(path)] = path.read_bytes() if path.is_file() else None, known.st_mtime_ns, known.st_mode
    return found


@contextmanager
def little_memory() -> Iterator[None]:
    """Reading an endless file whole is an error at once, and no danger to the machine."""
    taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (taken + MEMORY, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def tried(scene: Scene, plant: Plant, name: str, words: list[str], capsys: Said) -> int:
    """Plants something, calls a command, and looks that it ended well and changed nothing outside."""
    path = places(scene)[name]
    plant(scene, path)
    before = state(scene.outside)
    faulthandler.dump_traceback_later(HANG, exit=True, file=2)
    with little_memory():
        code = main(words)
    faulthandler.cancel_dump_traceback_later()
    shown = capsys.readouterr()
    what = (plant.__name__, name, words, shown.err)
    assert state(scene.outside) == before, what
    assert code in (0, 1, 2, 4), what
    assert "Traceback" not in shown.err and len(shown.err) < 3000, what
    return code


def test_nothing_planted_in_a_folder_leads_out_of_it(made: Path, tmp_path: Path, capsys: Said) -> None:
    """A draw of plants, names and commands; all of them are among the slow tests."""
    with scene_of(made, tmp_path / "names") as scene:
        drawn = list(product(PLANTS, places(scene), commands(scene)))
    random.Random(13).shuffle(drawn)
    for plant, name, command in drawn[:80]:
        with scene_of(made, tmp_path / "scene") as scene:
            tried(scene, plant, name, commands(scene)[command], capsys)


@pytest.mark.slow
@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.__name__)
def test_nothing_planted_under_any_name_leads_out_for_any_command(
    made: Path, tmp_path: Path, capsys: Said, plant: Plant
) -> None:
    """Every name with every command."""
    with scene_of(made, tmp_path / "names") as scene:
        every = list(product(places(scene), commands(scene)))
    for name, command in every:
        with scene_of(made, tmp_path / "scene") as scene:
            tried(scene, plant, name, commands(scene)[command], capsys)
