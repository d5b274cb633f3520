"""`fetch` into a tasks folder: interrupted at every point, corrupted, found there before, of other commits."""

from __future__ import annotations

import itertools
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from hashlib import sha256
from pathlib import Path
from typing import ClassVar

import orjson
import pytest

from harness.benchmark import Benchmark, TaskFiles
from harness.errors import BadInput, EndpointStopped, InUse, MachineError
from harness.features.fetch.download import LOCK, Display, fetch
from harness.features.fetch.fetched import NAME, load
from harness.features.fetch.hub import Hub, RemoteFile, Snapshot
from harness.store.disk import DISK, Disk
from harness.store.lock import RunLock
from tests.support.disks import DEATHS, Death, FaultyDisk
from tests.support.hub import LISTING, REPOSITORY, Fault, HubServer, blob, serving_hub


class Places(Benchmark):
    """Two subsets, and a file that both need; the data set has them in folders of its own."""

    name = "places"
    subsets: ClassVar = {"北": "places/north_tasks.jsonl", "south": "places/south_tasks.jsonl"}
    task_files = TaskFiles(data_files=("places/truth/map.bin",), data_set=REPOSITORY)


FILES = {
    "data/north_tasks.jsonl": "北\n".encode() * 300,
    "data/south_tasks.jsonl": b"south\n" * 200,
    "truth/map.bin": bytes(range(256)) * 4,
    "old/data/south_tasks.jsonl": b"older\n",
    "README.md": b"read me\n",
}
MADE = {
    "places/north_tasks.jsonl": FILES["data/north_tasks.jsonl"],
    "places/south_tasks.jsonl": FILES["data/south_tasks.jsonl"],
    "places/truth/map.bin": FILES["truth/map.bin"],
}
REMOTE = dict(zip(MADE, FILES, strict=False))


@pytest.fixture
def server() -> Iterator[HubServer]:
    hub = HubServer()
    hub.commit(FILES)
    with serving_hub(hub):
        yield hub


class Died(BaseException):
    """The process ended here."""


class Into:
    """Fetches into a folder; `dies_at` is the number of the progress report at which the process ends."""

    def __init__(self, folder: Path, server: HubServer) -> None:
        self.folder, self.server = folder, server
        self.lines: list[str] = []
        self.received = self.size = self.reports = 0

    def __call__(self, *subsets: str, revision: str | None = None, dies_at: int | None = None) -> None:
        self.received = self.reports = 0

        def advance(size: int) -> None:
            self.reports += 1
            self.received += size
            if self.reports == dies_at:
                raise Died

        @contextmanager
        def progress(size: int) -> Iterator[Callable[[int], None]]:
            self.size = size
            yield advance

        hub = Hub(self.server.url, lambda seconds: None)
        fetch(Places, subsets or list(Places.subsets), self.folder, hub, revision, Display(self.lines.append, progress))

    def found(self) -> dict[str, bytes]:
        """Return what is in the folder, without what only `fetch` itself uses."""
        files = (path for path in self.folder.rglob("*") if path.is_file() and path.name not in (NAME, LOCK))
        return {path.relative_to(self.folder).as_posix(): path.read_bytes() for path in files}


@pytest.fixture
def into(tmp_path: Path, server: HubServer) -> Into:
    return Into(tmp_path / "任务", server)


def test_files_get_their_names_and_are_recorded(into: Into) -> None:
    """Each is where the benchmark looks, wherever the data set has it, with commit and hash in the record."""
    into()
    assert into.found() == MADE and into.received == into.size == sum(map(len, MADE.values()))
    commit = into.server.refs["main"]
    for name, source in load(into.folder).files.items():
        assert (source.data_set, source.commit) == (REPOSITORY, commit)
        assert source.sha256 == sha256(MADE[name]).hexdigest()
        assert load(into.folder).source(source.sha256) == source
    assert load(into.folder).source("0" * 64) is None


def test_only_the_named_subsets_are_downloaded(into: Into) -> None:
    """A subset's tasks, and the files that every subset needs."""
    into("south")
    assert into.found().keys() == {"places/south_tasks.jsonl", "places/truth/map.bin"}


def test_files_that_are_there_are_not_downloaded_again(into: Into) -> None:
    """Nor are equal ones that came in another way: they are recorded as what they are."""
    into("south")
    (into.folder / "places" / "north_tasks.jsonl").write_bytes(MADE["places/north_tasks.jsonl"])
    into.server.asked.clear()
    into()
    assert {one.what for one in into.server.asked} == {LISTING}
    assert load(into.folder).files.keys() == MADE.keys()


def test_an_interruption_anywhere_loses_no_byte(into: Into) -> None:
    """The process dies at the first report of progress, the second, ...: the next one asks for nothing that came."""
    deaths = 0
    while True:
        try:
            into(dies_at=deaths + 1)
            break
        except Died:
            deaths += 1
        kept = sum(map(len, into.found().values()))
        assert kept == into.received
        into.server.asked.clear()
        into()
        served = sum(len(FILES[one.what]) - one.start for one in into.server.downloads())
        assert into.found() == MADE and served == sum(map(len, MADE.values())) - kept
        shutil.rmtree(into.folder)
    assert deaths >= 2 * len(MADE)


@pytest.mark.parametrize("name", MADE)
def test_a_cut_in_each_file_is_continued_by_the_next_command(into: Into, name: str) -> None:
    """Where the connection breaks for good, the files before are there, and the next command asks for the rest."""
    into.server.faults[REMOTE[name]] = [Fault(cut=300), *(Fault(cut=0) for _ in range(20))]
    with pytest.raises(EndpointStopped):
        into()
    before = into.found()
    assert name not in before and [len(content) for path, content in before.items() if path.endswith(".part")] == [300]
    into.server.faults.clear()
    into.server.asked.clear()
    into()
    assert into.found() == MADE
    assert next(one.start for one in into.server.downloads()) == 300


WRONG = {
    "a flipped bit": Fault(flip=5),
    "too few bytes": Fault(length=100),
    "too many": Fault(length=5000),
    "another file": Fault(body=b"<html>"),
}


@pytest.mark.parametrize("fault", WRONG)
@pytest.mark.parametrize("name", MADE)
def test_wrong_bytes_are_downloaded_again(into: Into, name: str, fault: str) -> None:
    """The file gets its name with the bytes of its checksum alone, and the progress ends at the whole."""
    into.server.faults[REMOTE[name]] = [WRONG[fault]]
    into()
    assert into.found() == MADE and into.received == into.size


@pytest.mark.parametrize("fault", WRONG)
def test_bytes_that_stay_wrong_stop_the_command(into: Into, fault: str) -> None:
    """The file does not get its name; the next command, with good bytes, completes."""
    name = "places/north_tasks.jsonl"
    into.server.ranges = False
    into.server.faults[REMOTE[name]] = [WRONG[fault] for _ in range(30)]
    with pytest.raises(EndpointStopped):
        into()
    assert name not in into.found()
    into.server.faults.clear()
    into()
    assert into.found() == MADE


def test_a_file_of_the_users_is_never_replaced(into: Into) -> None:
    """It is named before anything is downloaded, whether no `fetch` made it or somebody changed it since."""
    path = into.folder / "places" / "south_tasks.jsonl"
    path.parent.mkdir(parents=True)
    path.write_text("mine\n")
    with pytest.raises(BadInput, match="south_tasks"):
        into()
    assert into.found() == {"places/south_tasks.jsonl": b"mine\n"} and not into.server.downloads()
    path.unlink()
    into()
    path.write_text("changed\n")
    with pytest.raises(BadInput, match="south_tasks"):
        into()
    assert path.read_text() == "changed\n"


def test_a_folder_stays_at_its_commit_until_another_is_named(into: Into) -> None:
    """What a later commit changes comes with `--revision` alone, in place of what `fetch` made."""
    first = into.server.refs["main"]
    into("south")
    newer = {**FILES, "data/south_tasks.jsonl": b"newer\n"}
    into.server.commit(newer)
    into()
    assert into.found() == MADE and {one.commit for one in load(into.folder).files.values()} == {first}
    into(revision="main")
    assert into.found() == {**MADE, "places/south_tasks.jsonl": b"newer\n"}
    assert {one.commit for one in load(into.folder).files.values()} == {into.server.refs["main"]}
    into(revision=first)
    assert into.found() == MADE


def test_a_part_of_another_commit_is_not_continued(into: Into) -> None:
    """It goes once the file is there."""
    into.server.faults["data/south_tasks.jsonl"] = [Fault(cut=300), *(Fault(cut=0) for _ in range(20))]
    with pytest.raises(EndpointStopped):
        into("south")
    into.server.faults.clear()
    into.server.commit({**FILES, "data/south_tasks.jsonl": b"newer\n" * 200})
    into("south", revision="main")
    assert into.found() == {
        "places/south_tasks.jsonl": b"newer\n" * 200,
        "places/truth/map.bin": MADE["places/truth/map.bin"],
    }


def test_a_data_set_without_a_file_or_with_two_is_refused(into: Into) -> None:
    """Before anything is downloaded."""
    into.server.commit({"data/north_tasks.jsonl": b"", "map.bin": b""})
    with pytest.raises(BadInput, match=r"south_tasks\.jsonl"):
        into()
    into.server.commit({**FILES, "more/south_tasks.jsonl": b""})
    with pytest.raises(BadInput, match=r"more/south_tasks\.jsonl"):
        into()
    assert not into.server.downloads() and not into.found()


def test_a_download_larger_than_the_disk_is_not_begun(into: Into) -> None:
    """The sizes of the listing, less what is there."""
    into.server.sizes["truth/map.bin"] = 10**18
    with pytest.raises(MachineError):
        into()
    assert not into.server.downloads()


def test_one_process_at_a_time_fetches_into_a_folder(into: Into) -> None:
    """Another one is refused; the lock of a process that has ended is not in the way."""
    into.folder.mkdir()
    lock = RunLock(into.folder / LOCK, time.time)
    with pytest.raises(InUse):
        into()
    lock.release()
    into()
    assert into.found() == MADE


def test_a_tasks_folder_may_be_a_link(into: Into, tmp_path: Path) -> None:
    """Maps are large, and disks are elsewhere."""
    (tmp_path / "disk").mkdir()
    into.folder.symlink_to(tmp_path / "disk")
    into()
    assert into.found() == MADE and into.folder.is_symlink()


@pytest.mark.parametrize(
    "record", [b"", b"[]", b'{"files": {"a": 1}}', orjson.dumps({"files": {"a": {"commit": "b"}}})]
)
def test_a_broken_record_is_refused(into: Into, record: bytes) -> None:
    """Which files `fetch` made cannot be guessed."""
    into.folder.mkdir()
    (into.folder / NAME).write_bytes(record)
    with pytest.raises(BadInput, match=NAME):
        into()


class Memory:
    """A hub without a network: it counts the bytes that it sends."""

    shown = "memory"

    def __init__(self) -> None:
        self.sent = 0

    def snapshot(self, repository: str, revision: str) -> Snapshot:
        files = {path: RemoteFile(path=path, size=len(body), blob=blob(body)) for path, body in FILES.items()}
        return Snapshot(repository, "c" * 40, files)

    def pieces(self, of: Snapshot, file: RemoteFile, start: int) -> Iterator[bytes]:
        for at in range(start, file.size, 500):
            piece = FILES[file.path][at : at + 500]
            self.sent += len(piece)
            yield piece


@pytest.mark.parametrize("how", ["ENOSPC", "EIO", "full", "broken", "short", *DEATHS])
def test_a_disk_that_fails_at_any_operation_leaves_nothing_wrong(tmp_path: Path, how: str) -> None:
    """The first operation fails, then the second, ...: no file has wrong bytes, and the next command completes, with no
    more bytes asked for than the piece that was not written."""
    for nth in itertools.count(1):
        disk, hub, folder = FaultyDisk(nth, how), Memory(), tmp_path / str(nth)

        def get(disk: Disk, hub: Memory = hub, folder: Path = folder) -> None:
            fetch(Places, ["south"], folder, hub, None, Display(lambda line: None, lambda size: nullcontext(abs)), disk)

        try:
            get(disk)
        except (Death, MachineError):
            assert disk.struck
        disk.bury()
        named = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}
        assert all(named[name].read_bytes() == MADE[name] for name in MADE.keys() & named.keys())
        get(DISK)
        wanted = {"places/south_tasks.jsonl", "places/truth/map.bin"}
        assert all((folder / name).read_bytes() == MADE[name] for name in wanted)
        assert load(folder).files.keys() == wanted
        assert hub.sent <= sum(len(MADE[name]) for name in wanted) + 500
        if disk.struck is None:
            break
    assert nth > 20 or how == "short"
