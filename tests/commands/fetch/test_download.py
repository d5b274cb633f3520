"""`fetch` into a tasks folder: broken, corrupted, found there before, of other commits."""

from __future__ import annotations

import time
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import ClassVar

import orjson
import pytest
from huggingface_hub import constants, hf_hub_download

from harness.benchmark import Benchmark, TaskFiles
from harness.commands.fetch.command import fetch
from harness.errors import BadInput, EndpointStopped, HarnessError
from harness.store.fetched import NAME, load
from tests.support.hub import LISTING, REPOSITORY, Fault, HubServer, serving_hub

TOKEN = "hf_abcdefghijklmnopqrstuvwxyz"


class Places(Benchmark):
    """Two subsets, and a file that both need; the data set has them in folders of its own."""

    name = "places"
    subsets: ClassVar = {"北": "places/north_tasks.jsonl", "south": "places/south_tasks.jsonl"}
    task_files = TaskFiles(data_files=("places/truth/map.json",), data_set=REPOSITORY)


FILES = {
    "data/north_tasks.jsonl": "北\n".encode() * 300,
    "data/south_tasks.jsonl": b"south\n" * 200,
    "truth/map.json": bytes(range(256)) * 4,
    "old/data/south_tasks.jsonl": b"older\n",
    "README.md": b"read me\n",
}
MADE = {
    "places/north_tasks.jsonl": FILES["data/north_tasks.jsonl"],
    "places/south_tasks.jsonl": FILES["data/south_tasks.jsonl"],
    "places/truth/map.json": FILES["truth/map.json"],
}
REMOTE = dict(zip(MADE, FILES, strict=False))
"""By name below the tasks folder; the last one is not in LFS."""


@pytest.fixture
def server() -> Iterator[HubServer]:
    hub = HubServer()
    hub.commit(FILES)
    with serving_hub(hub):
        yield hub


class Into:
    """Fetches into a folder."""

    def __init__(self, folder: Path, server: HubServer) -> None:
        self.folder, self.server = folder, server

    def __call__(self, *subsets: str, revision: str | None = None) -> None:
        fetch(Places, subsets or list(Places.subsets), self.folder, revision)

    def found(self) -> dict[str, bytes]:
        """Return what is in the folder, without the record."""
        files = (path for path in self.folder.rglob("*") if path.is_file() and path.name != NAME)
        return {path.relative_to(self.folder).as_posix(): path.read_bytes() for path in files}


@pytest.fixture
def into(tmp_path: Path, server: HubServer, monkeypatch: pytest.MonkeyPatch) -> Into:
    monkeypatch.setenv("HF_ENDPOINT", server.url)
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    return Into(tmp_path / "任务", server)


def test_files_get_their_names_and_are_recorded(into):
    """Each is where the benchmark looks, wherever the data set has it, with commit and hash in the
    record; nothing else is left in the folder."""
    into()
    assert into.found() == MADE
    commit = into.server.refs["main"]
    for name, source in load(into.folder).files.items():
        assert (source.data_set, source.commit) == (REPOSITORY, commit)
        assert source.sha256 == sha256(MADE[name]).hexdigest()
        assert load(into.folder).last(source.sha256) == source
    assert load(into.folder).last("0" * 64) is None


def test_only_the_named_subsets_are_downloaded(into):
    """A subset's tasks, and the files that every subset needs."""
    into("south")
    assert into.found().keys() == {"places/south_tasks.jsonl", "places/truth/map.json"}


def test_files_that_are_there_are_not_downloaded_again(into):
    """Nor are equal ones that came in another way: they are recorded as what they are."""
    into("south")
    (into.folder / "places" / "north_tasks.jsonl").write_bytes(MADE["places/north_tasks.jsonl"])
    into.server.asked.clear()
    into()
    assert {one.what for one in into.server.asked} == {LISTING}
    assert load(into.folder).files.keys() == MADE.keys()


@pytest.mark.parametrize("name", MADE)
def test_connection_that_breaks_once_costs_nothing(into, name):
    """The rest of the file comes over the next one."""
    into.server.faults[REMOTE[name]] = [Fault(cut=300)]
    into()
    assert into.found() == MADE


@pytest.mark.parametrize("name", MADE)
def test_connection_that_breaks_for_good_leaves_whole_files_alone(into, name):
    """The files before are there, nothing of this one, and the next command gets it."""
    into.server.faults[REMOTE[name]] = [Fault(cut=300), *(Fault(cut=0) for _ in range(40))]
    with pytest.raises(EndpointStopped):
        into()
    before = into.found()
    assert name not in before and before.items() <= MADE.items()
    into.server.faults.clear()
    into()
    assert into.found() == MADE


WRONG = {
    "a flipped bit": Fault(flip=5),
    "too few bytes": Fault(length=100),
    "another file": Fault(body=b"<html>"),
}


@pytest.mark.parametrize(
    ("name", "fault"), [*zip(MADE, WRONG, strict=True), (*MADE, "a flipped bit")[-2:]]
)
def test_bytes_without_the_checksum_get_no_name(into, name, fault):
    """In LFS or not; the next command, with good bytes, completes."""
    into.server.ranges = False
    into.server.faults[REMOTE[name]] = [WRONG[fault] for _ in range(40)]
    with pytest.raises(EndpointStopped):
        into()
    assert name not in into.found()
    into.server.faults.clear()
    into()
    assert into.found() == MADE


def test_the_library_itself_takes_wrong_bytes(into, tmp_path):
    """Why files are checked here: its download accepts any bytes of the right length."""
    path = "data/north_tasks.jsonl"
    into.server.faults[path] = [Fault(flip=700)]
    name = hf_hub_download(
        REPOSITORY, path, repo_type="dataset", local_dir=tmp_path, endpoint=into.server.url
    )
    assert Path(name).read_bytes() != FILES[path] and Path(name).stat().st_size == len(FILES[path])


def test_a_file_of_the_users_is_never_replaced(into):
    """It is named before anything is downloaded, whether no `fetch` made it or somebody changed it
    since."""
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


def test_a_folder_stays_at_its_commit_until_another_is_named(into):
    """What a later commit changes comes with `--revision` alone, in place of what `fetch` made."""
    first = into.server.refs["main"]
    into("south")
    newer = {**FILES, "data/south_tasks.jsonl": b"newer\n"}
    into.server.commit(newer)
    into()
    assert into.found() == MADE and {one.commit for one in load(into.folder).files.values()} == {
        first
    }
    into(revision="main")
    assert into.found() == {**MADE, "places/south_tasks.jsonl": b"newer\n"}
    assert {one.commit for one in load(into.folder).files.values()} == {into.server.refs["main"]}
    into(revision=first)
    assert into.found() == MADE


def test_a_data_set_without_a_file_or_with_two_is_refused(into):
    """Before anything is downloaded."""
    into.server.commit({"data/north_tasks.jsonl": b"", "map.json": b""})
    with pytest.raises(BadInput, match=r"south_tasks\.jsonl"):
        into()
    into.server.commit({**FILES, "more/south_tasks.jsonl": b""})
    with pytest.raises(BadInput, match=r"more/south_tasks\.jsonl"):
        into()
    assert not into.server.downloads() and not into.found()


def test_path_that_leads_out_of_the_data_set_is_no_file_of_it(into):
    """Nothing is written outside of the tasks folder."""
    into.server.commit({"../../north_tasks.jsonl": b"", "truth/map.json": b""})
    with pytest.raises(BadInput, match="north_tasks"):
        into("北")


@pytest.mark.parametrize(
    "record", [b"", b"[]", b'{"files": {"a": 1}}', orjson.dumps({"files": {"a": {"commit": "b"}}})]
)
def test_a_broken_record_is_refused(into, record):
    """Which files `fetch` made cannot be guessed."""
    into.folder.mkdir()
    (into.folder / NAME).write_bytes(record)
    with pytest.raises(BadInput, match=NAME):
        into()


def test_the_token_goes_to_the_hub_alone(into, monkeypatch):
    """The server that a redirect leads to does not get it."""
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    into.server.token = TOKEN
    into()
    assert {one.token for one in into.server.asked if not one.elsewhere} == {TOKEN}
    assert {one.token for one in into.server.asked if one.elsewhere} == {None}


REFUSALS: dict[str, tuple[str | None, str, type[HarnessError]]] = {
    "private, no token": (None, "main", EndpointStopped),
    "private, another token": ("hf_ofsomebodyelse1234567890", "main", EndpointStopped),
    "no such revision": (TOKEN, "v9/测试", EndpointStopped),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_a_refusal_is_one_error_without_a_token_in_it(into, monkeypatch, case):
    """Access and names that do not exist, with the library's word for it."""
    token, revision, error = REFUSALS[case]
    into.server.token = TOKEN
    if token:
        monkeypatch.setenv("HF_TOKEN", token)
    with pytest.raises(error, match="Error") as caught:
        into(revision=revision)
    assert "\n" not in str(caught.value) and "hf_" not in str(caught.value)


@pytest.mark.parametrize(
    "listing", [b"<html>", b"[]", b'{"sha": "main", "siblings": []}', b'{"siblings": []}'], ids=repr
)
def test_a_server_that_is_no_hub_is_refused(into, listing):
    """A mirror may answer 200 to everything."""
    into.server.faults[LISTING] = [Fault(body=listing)]
    with pytest.raises(EndpointStopped):
        into()


def test_offline_means_that_nothing_is_asked(into, monkeypatch):
    """The library's own switch."""
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(EndpointStopped, match="Offline"):
        into()
    assert not into.server.asked
