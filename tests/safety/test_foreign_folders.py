"""A run's folder from somebody else, with links, pipes, devices and endless files in place of its
files.

Whatever is planted under whichever name, every command ends in a sentence, within bounds of time
and memory, and nothing outside the results folder has changed.
"""

from __future__ import annotations

import errno
import faulthandler
import os
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
from harness.errors import BadInput, MachineError
from harness.store import atomic, log
from harness.store.atomic import keep_old
from harness.store.disk import APPEND, DISK, FRESH, KEEP
from harness.store.files import RunFiles
from harness.store.lock import RunLock, held
from harness.store.manifest import RUNNING, load
from harness.store.tasks import open_index
from tests.support.disks import QuickDisk

Said = pytest.CaptureFixture[str]
HANG = 120.0
"""Seconds after which a command counts as one that waits for ever."""
MEMORY = 3 << 30
"""Bytes that a command may take on top of what this process has."""
SPARSE = 100 << 30
PART, WHOLE = "part", "whole"
TORN = b'{"user_id":"torn'


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
    files.failures.write_bytes(
        log.encode_line({"user_id": "x", "boundary": "endpoint", "kind": "x", "detail": "忙"})
    )
    assert (
        main(["report", "--results-dir", str(root / "results"), "--name", PART, "--users", "all"])
        == 0
    )
    return root


def run(root: Path, name: str, *more: str) -> list[str]:
    where = ["--tasks-dir", str(root / "tasks"), "--results-dir", str(root / "results")]
    return [
        "run",
        "--model",
        "baseline/recency",
        "--name",
        name,
        "--platform",
        "weibo",
        *where,
        *more,
    ]


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
        """A file outside: the content of the file whose place it takes, and a torn line where that
        is a log."""
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
    found += [files.folder / "export_steps_weibo.csv", files.folder / "export_weibo.eval"]
    alone = [*logs, files.manifest, files.report("txt"), files.report("json")]
    found += [path.with_name(f"{path.name}.new") for path in alone]
    found += [path.with_name(f"{path.name}.torn") for path in logs]
    return {str(path.relative_to(results)): path for path in found}


def commands(scene: Scene) -> dict[str, list[str]]:
    where, named = ["--results-dir", str(scene.results)], ["--name", PART]
    tasks = ["--tasks-dir", str(scene.root / "tasks")]
    return {
        "status": ["status", *where],
        "verify": ["verify", *where, *tasks, *named],
        "verify alone": ["verify", *where, *named, "--without-tasks"],
        "report": ["report", *where],
        "report one": ["report", *where, *tasks, *named, "--users", "all"],
        "stats": ["stats", "--excel", *where],
        "compare": ["compare", PART, WHOLE, *where, *tasks, "--resamples", "1000"],
        "reeval": ["reeval", *where, *tasks, *named],
        "export": ["export", PART, *where, *tasks],
        "export log": ["export", PART, *where, *tasks, "--format", "inspect"],
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
        found[str(path)] = (
            path.read_bytes() if path.is_file() else None,
            known.st_mtime_ns,
            known.st_mode,
        )
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
    """Plants something, calls a command, and looks that it ended well and changed nothing
    outside."""
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


@pytest.mark.slow
@pytest.mark.usefixtures("workbooks_once")
@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.__name__)
def test_nothing_planted_under_any_name_leads_out_for_any_command(made, tmp_path, capsys, plant):
    """A link under every name with every command; each other plant under every name with a fifth of
    the commands, so that each name and command meet two of them."""
    with scene_of(made, tmp_path / "names") as scene:
        every = list(product(places(scene), commands(scene)))
    drawn = every if plant is symlink else every[PLANTS.index(plant) % 5 :: 5]
    for name, command in drawn:
        with scene_of(made, tmp_path / "scene") as scene:
            tried(scene, plant, name, commands(scene)[command], capsys)


# One by one

REFUSED: tuple[Plant, ...] = (
    symlink,
    dangling,
    to_folder,
    hard_link,
    pipe,
    unix_socket,
    endless,
    full,
    folder,
)


@pytest.fixture
def scene(made: Path, tmp_path: Path) -> Iterator[Scene]:
    with scene_of(made, tmp_path / "scene") as one:
        yield one


def command(scene: Scene, words: str, *more: str) -> int:
    return main([*words.split(), "--results-dir", str(scene.results), *more])


def descriptors() -> int:
    """Return how many files this process has open."""
    return len([*Path("/proc/self/fd").iterdir()])


@pytest.mark.parametrize("how", [APPEND, KEEP, FRESH], ids=["append", "keep", "fresh"])
@pytest.mark.parametrize("plant", REFUSED, ids=lambda plant: plant.__name__)
def test_only_a_regular_file_with_one_name_is_opened_for_writing(scene, plant, how):
    """The refusal names the file, nothing is changed, and no descriptor stays open."""
    plant(scene, scene.files.events)
    before, fds = state(scene.outside), descriptors()
    with pytest.raises(OSError) as refused:
        DISK.open(scene.files.events, how)
    assert how == FRESH or scene.files.events.name in str(refused.value.strerror)
    assert state(scene.outside) == before and descriptors() == fds


@pytest.mark.parametrize(
    "plant", [symlink, dangling, hard_link, pipe], ids=lambda plant: plant.__name__
)
def test_new_content_is_written_into_a_file_of_its_own(scene, plant):
    """What had its name is unlinked, and what a link led to is left alone."""
    path = scene.files.report("txt")
    plant(scene, path.with_name(f"{path.name}.new"))
    before = state(scene.outside)
    atomic.write(path, b"ours")
    assert path.read_bytes() == b"ours"
    assert [one.name for one in path.parent.iterdir() if one.name.endswith(".new")] == []
    assert state(scene.outside) == before


def test_a_folder_in_the_place_of_new_content_is_named(scene):
    """It cannot be unlinked, and may hold something."""
    path = scene.files.manifest
    folder(scene, path.with_name(path.name + ".new"))
    with pytest.raises(
        MachineError, match=r"run_weibo\.json\.new is a folder; the old one is intact"
    ):
        atomic.write(path, b"{}")


@pytest.mark.parametrize("words", ["verify", "reeval", "resume"])
@pytest.mark.parametrize(
    "plant", [symlink, dangling, hard_link, pipe, endless], ids=lambda plant: plant.__name__
)
def test_a_lock_that_leads_elsewhere_is_refused(scene, plant, words, capsys):
    """With a sentence that names it, by whoever would take it."""
    plant(scene, scene.files.lock)
    before = state(scene.outside)
    assert command(scene, words, "--name", PART, "--tasks-dir", str(scene.root / "tasks")) == 4
    assert f"cannot open {scene.files.lock}: run_weibo.lock " in capsys.readouterr().err
    assert state(scene.outside) == before


@pytest.mark.parametrize("plant", [pipe, endless, folder], ids=lambda plant: plant.__name__)
def test_nobody_holds_a_lock_that_is_no_file(scene, plant):
    """`status` does not wait for it."""
    plant(scene, scene.files.lock)
    assert not held(scene.files.lock, time.time)


def test_nobody_holds_a_lock_that_is_a_link(scene):
    """What it leads to may be another program's, and is not locked even for a moment."""
    lock = RunLock(scene.outside / "theirs", time.time)
    scene.files.lock.unlink()
    scene.files.lock.symlink_to(scene.outside / "theirs")
    assert not held(scene.files.lock, time.time)
    lock.release()


def test_a_lease_of_another_shape_is_free(scene):
    """Where a file system has no locks, what is in the file counts."""

    def no_locks(fd: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    scene.files.lock.write_bytes(b'{"pid":1,"renewed":"x"}')
    RunLock(scene.files.lock, time.time, no_locks).release()


def everything(scene: Scene) -> dict[str, tuple[bytes | None, int, int]]:
    return state(scene.results)


@pytest.mark.parametrize("words", ["verify", "verify --without-tasks"])
def test_verify_writes_nothing_into_a_folder_of_another_user(scene, words, monkeypatch, capsys):
    """No lock, no index, no time of a change; it says once that it reads without a lock."""
    shutil.rmtree(scene.results / ".index")
    scene.files.lock.unlink()
    before = everything(scene)
    monkeypatch.setattr(os, "geteuid", lambda: 4242)
    assert command(scene, words, "--name", PART) == 0
    said = capsys.readouterr().err
    assert said.startswith("harness: part, weibo: read without a lock: ") and said.count("\n") == 1
    assert everything(scene) == before


def test_verify_of_another_users_folder_waits_for_its_run(scene, monkeypatch, capsys):
    """Who may not write may still see that a run goes on there."""
    monkeypatch.setattr(os, "geteuid", lambda: 4242)
    lock = RunLock(scene.files.lock, time.time)
    before = scene.files.lock.read_bytes()
    assert command(scene, "verify", "--name", PART) == 4
    assert f"{scene.files.folder} is in use" in capsys.readouterr().err
    assert scene.files.lock.read_bytes() == before
    lock.release()


def moved(path: Path, place: Path) -> None:
    path.rename(place)
    path.symlink_to(place, target_is_directory=True)


@pytest.mark.parametrize("words", ["reeval", "reeval --reparse", "resume", "report"])
def test_a_runs_folder_that_is_a_link_is_not_written_through(scene, words, capsys):
    """The sentence says how to name that place; there the command works."""
    moved(scene.files.folder, scene.outside / PART)
    before = state(scene.outside)
    more = ["--name", PART, "--tasks-dir", str(scene.root / "tasks")]
    assert command(scene, words, *more) == 4
    said = capsys.readouterr().err
    assert (
        f"{scene.files.folder} is a symbolic link to " in said
        and f"--results-dir {scene.outside}" in said
    )
    assert state(scene.outside) == before
    assert main([*words.split(), "--results-dir", str(scene.outside), *more]) in (0, 1)


def test_a_new_run_is_not_written_through_a_link(scene, capsys):
    """Nor one that is begun again."""
    (scene.results / "other").symlink_to(scene.outside / "folder", target_is_directory=True)
    before = state(scene.outside)
    for more in ((), ("--restart",)):
        assert main(run(scene.root, "other", *more)) == 4
        assert "is a symbolic link to " in capsys.readouterr().err
    assert state(scene.outside) == before


def test_a_runs_folder_that_is_a_link_can_be_looked_at(scene, capsys):
    """By all commands that write nothing into it."""
    moved(scene.files.folder, scene.outside / PART)
    before = state(scene.outside)
    assert command(scene, "status") == 0
    assert "part" in capsys.readouterr().out
    assert command(scene, "verify --without-tasks", "--name", WHOLE) == 0
    assert command(scene, "verify --without-tasks", "--name", PART) == 0
    assert "read without a lock: " in capsys.readouterr().err
    assert state(scene.outside) == before


def test_a_results_folder_may_be_a_link(scene):
    """It is what the user has named."""
    moved(scene.results, scene.root / "bigger disk")
    assert main(run(scene.root, PART)) == 0
    assert command(scene, "verify", "--name", PART) == 0
    assert command(scene, "stats", "--excel") == 0
    assert (scene.root / "bigger disk" / "metric_excels").is_dir()


def test_tables_are_not_written_through_a_link_of_the_results(scene, capsys):
    """They are shown; a folder that the command names may be a link."""
    elsewhere = scene.outside / "folder"
    (scene.results / "metric_excels").symlink_to(elsewhere, target_is_directory=True)
    before = state(scene.outside)
    assert command(scene, "stats", "--excel") == 4
    shown = capsys.readouterr()
    assert "whole" in shown.out and "metric_excels is a symbolic link to " in shown.err
    assert state(scene.outside) == before
    assert command(scene, "stats", "--excel", "--out", str(scene.results / "metric_excels")) == 0
    assert list(elsewhere.glob("*.xlsx"))


# What a death leaves


def test_results_that_a_death_left_with_two_names_are_gone_on_with(scene):
    """Killed between the second name and the new content; the second name goes, and the record
    stays."""
    first = scene.files.results.read_bytes()
    keep_old(scene.files.results, "now", QuickDisk())
    assert scene.files.results.stat().st_nlink == 2
    assert main(run(scene.root, PART)) == 0
    assert scene.files.results.read_bytes().startswith(first)
    assert list(scene.files.folder.glob("inference_results_weibo.jsonl.before-*")) == []
    assert command(scene, "verify", "--name", PART) == 0


def test_a_second_name_elsewhere_is_no_leftover(scene, capsys):
    """Only names in the folder are taken away."""
    target = scene.outside / "precious"
    scene.files.results.rename(target)
    scene.files.results.hardlink_to(target)
    keep_old(scene.files.results, "now", QuickDisk())
    assert main(run(scene.root, PART)) == 4
    assert "has a second name" in capsys.readouterr().err


# Bounds


@pytest.fixture
def short_lines(monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(log, "LINE_MOST", 4096)
    return 4096


def line_of(size: int) -> bytes:
    return log.encode_line({"x": "x" * (size - len(log.encode_line({"x": ""})))})


def test_a_line_has_a_bound(scene, short_lines):
    """One as long as it may be is read; a longer one is named by its place, and not set aside."""
    path = scene.files.responses
    path.write_bytes(line_of(short_lines))
    assert [line.size for line in log.valid_lines(path)] == [short_lines]
    path.write_bytes(line_of(30) + line_of(short_lines + 1))
    for read in (lambda: list(log.lines(path)), lambda: log.repair(path)):
        with pytest.raises(
            BadInput,
            match=r"responses_weibo\.jsonl: the line that begins at byte 30 is longer than",
        ):
            read()
    assert path.read_bytes() == line_of(30) + line_of(short_lines + 1)


def test_a_line_that_could_not_be_read_again_is_not_written(scene, short_lines):
    """It ends the run, and the log is as it was."""
    opened = log.AppendLog(scene.files.failures, QuickDisk())
    before = scene.files.failures.read_bytes()
    with pytest.raises(MachineError, match="is never read again"):
        opened.append({"x": "x" * short_lines})
    opened.close()
    assert scene.files.failures.read_bytes() == before


def test_the_tail_that_a_loss_of_power_leaves_is_set_aside_however_long(scene):
    """Zeros under a line's bound are a torn line; nothing else is lost."""
    path = scene.files.responses
    before = path.read_bytes()
    os.truncate(path, len(before) + (64 << 20))
    assert log.repair(path, QuickDisk()) == 1
    assert path.read_bytes() == before
    assert path.with_name(path.name + ".torn").stat().st_size == (64 << 20) + 1


def test_torn_lines_of_a_link_are_not_copied(scene):
    """They are another file's, and would go into a folder that is shared."""
    path = scene.files.responses
    symlink(scene, path)
    with pytest.raises(MachineError, match=r"responses_weibo\.jsonl is a symbolic link"):
        log.repair(path)
    assert not path.with_name(path.name + ".torn").exists()


def test_a_manifest_has_a_bound(scene, capsys):
    """A larger one is a bad input, and keeps no other run from being found."""
    sparse(scene, scene.files.manifest)
    with pytest.raises(BadInput, match=r"run_weibo\.json: it is larger than 16777216 bytes"):
        load(scene.files.manifest)
    assert command(scene, "status") == 2
    assert "whole" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["tasks.jsonl", "tasks.json"])
def test_tasks_have_a_bound(tmp_path, name):
    """A manifest from elsewhere can name an endless file as the tasks."""
    path = tmp_path / name
    path.write_bytes(b"[\n")
    os.truncate(path, SPARSE)

    def measured(line: bytes, where: object) -> tuple[str, int]:
        return "x", 1

    with (
        little_memory(),
        pytest.raises(BadInput, match=r"line [12]: expected an? (line|array) of at most"),
    ):
        open_index(path, "x", measured, tmp_path / ".index")
