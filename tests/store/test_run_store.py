"""A run's folder: what is written is found again, nothing is deleted, and the end is the same bytes
each time."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Callable, Iterator
from itertools import permutations
from pathlib import Path

import numpy as np
import orjson
import pytest
from msgspec.structs import replace
from numpy.typing import NDArray

from harness.engine.run import user_counts
from harness.errors import MachineError
from harness.model import Completion, Failure, Record, Reply, Where
from harness.store import log, manifest
from harness.store.manifest import COMPLETE, RUNNING, Manifest, differences
from harness.store.run import (
    RunFiles,
    RunStore,
    completion_of,
    record_of,
    replace_results,
)
from harness.store.tally import RunTally
from harness.store.tasks import TaskIndex, open_index
from tests.support.disks import FaultyDisk, QuickDisk

KEYS = ["甲", "乙", "丙", "丁"]
MADE = Manifest(
    subset="weibo",
    identity={
        "benchmark": "b",
        "model": "m",
        "sampling": {"temperature": 0.0, "top_p": None},
        "settings": {},
        "files": {},
    },
    provenance={"endpoint": "http://x/v1", "key_from": None},
    tuning={"concurrency": 16},
    tasks={"path": "tasks/weibo", "sha256": "00", "users": 4},
    selection={"ratio": 1.0, "sample_seed": 42},
    state=RUNNING,
    counts={},
    times={"created": "2025-01-01T00:00:00+00:00"},
)

Opened = Callable[..., RunStore]


def measured(line: bytes, where: Where) -> tuple[str, int]:
    return line.decode().partition("|")[0], 3


@pytest.fixture
def index_of(tmp_path: Path) -> Iterator[Callable[[str], TaskIndex]]:
    """The index of a tasks file whose lines are the given words, `user|content` each."""
    made: list[TaskIndex] = []

    def index(words: str) -> TaskIndex:
        path = tmp_path / f"tasks{len(made)}"
        path.write_text("\n".join(words.split()), encoding="utf-8")
        made.append(open_index(path, "test", measured, tmp_path / ".index"))
        return made[-1]

    yield index
    for opened in made:
        opened.close()


@pytest.fixture
def index(index_of: Callable[[str], TaskIndex]) -> TaskIndex:
    return index_of(" ".join(KEYS))


@pytest.fixture
def files(tmp_path: Path) -> RunFiles:
    return RunFiles(tmp_path / "results" / "run", "weibo")


@pytest.fixture
def opened(files: RunFiles) -> Iterator[Opened]:
    """Opens the run's files as a process of its own would, the one before having ended."""
    held: list[RunStore] = []

    def store(stamp: str = "now") -> RunStore:
        if held:
            held.pop().close()
        held.append(RunStore(files, lambda: 12.5, stamp))
        return held[-1]

    yield store
    for left in held:
        left.close()


class NoLinks(QuickDisk):
    """A file system without hard links."""

    def link(self, path: Path, second: Path) -> None:
        raise OSError(1, "Operation not permitted")


def save(store: RunStore, index: TaskIndex, *keys: str) -> None:
    for key in keys:
        position = index.find(key)
        assert position is not None
        store.save_record({"user_id": key, "步": [1, 2]}, index, position)


def finished(store: RunStore, index: TaskIndex) -> tuple[str, list[str]]:
    seen: list[Record] = []
    return store.finish(lambda line: seen.append(record_of(line))), [record.key for record in seen]


def everything(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.suffix != ".lock"}


# Records


def test_closed_run_has_written_nothing_since_the_last_look(opened, index):
    """A display looks at runs that are over, too, as long as others play."""
    store = opened()
    store.open_logs(index)
    store.close()
    assert store.slowest_write() == 0.0


def test_what_a_power_loss_could_take_is_told(files, index):
    """Users since the last sync began, and the seconds since all was on the disk; what comes during
    a sync waits."""
    now = 10.0

    class Syncing(QuickDisk):
        def sync(self, fd: int) -> None:
            if during:
                save(store, index, during.pop())

    during: list[str] = []
    store = RunStore(files, lambda: now, "now", Syncing())
    store.open_logs(index)
    assert store.unsynced() == (0, 0.0)
    now = 12.0
    save(store, index, "丙", "甲")
    now = 15.0
    assert store.unsynced() == (2, 3.0)
    during.append("乙")
    store.sync()
    now = 15.5
    assert store.unsynced() == (1, 0.5)
    store.sync()
    assert store.unsynced() == (0, 0.0)
    store.close()


def test_last_of_several_records_of_a_user_counts(opened, index, files):
    """Another process may have made one meanwhile; the first one is left out of the file at the
    end."""
    store = opened()
    store.open_logs(index)
    for attempt in (1, 2):
        store.save_record({"user_id": "甲", "attempt": attempt}, index, index.find("甲") or 0)
    store = opened()
    store.open_logs(index)
    assert [record.data["attempt"] for record in store.records()] == [2]
    assert store.outside() == 1
    finished(store, index)
    assert [log.decode_line(line.text)["attempt"] for line in log.valid_lines(files.results)] == [2]


# Responses


def test_responses_are_found_by_user_request_and_turn(opened, index):
    """What an endpoint answered comes back whole, under the request it answered and how often that
    was asked."""
    full = Completion('{"猫": 1}', "length", 12, 3, "served", "不行")
    store = opened()
    store.open_logs(index)
    store.save_response(0, "甲", "r1", 0, Reply(full, 0.12345, 2, "http://x"))
    store.save_response(1, "乙", "r1", 0, Reply(Completion("乙"), 0.1, 1, "http://x"))
    store.save_response(0, "甲", "r1", 1, Reply(Completion("again"), 0.1, 1, "http://x"))
    store = opened()
    store.open_logs(index)
    assert store.responses_of(0) == {("r1", 0): full, ("r1", 1): Completion("again")}
    assert store.responses_of(1) == {("r1", 0): Completion("乙")}
    assert store.responses_of(2) == {}
    assert store.saved_counts() == {0: 2, 1: 1}


def test_line_of_a_response_has_only_the_counts_that_were_reported(opened, index, files):
    """None of cached and reasoning tokens where the endpoint reports none; the bytes of the request
    are in each."""
    store = opened()
    store.open_logs(index)
    plain = Completion("一", "stop", 12, 3, "served")
    for number, one in enumerate(
        (plain, replace(plain, cached_tokens=0, reasoning_tokens=2), Completion("二"))
    ):
        store.save_response(0, "甲", f"r{number}", 0, Reply(one, 0.1, 1, "http://x", sent=99))
    lines = [orjson.loads(line) for line in files.responses.read_bytes().splitlines()]
    names = [
        "text",
        "finish_reason",
        "prompt_tokens",
        "completion_tokens",
        "model",
        "refusal",
        "reasoning",
    ]
    assert [list(line["completion"])[: len(names)] for line in lines] == [names] * 3
    assert [list(line["completion"])[len(names) :] for line in lines] == [
        [],
        ["cached_tokens", "reasoning_tokens"],
        [],
    ]
    assert [line.get("sent") for line in lines] == [99, 99, 99]
    assert list(reopened(opened, index).responses_of(0).values())[1].reasoning_tokens == 2


def test_estimate_does_not_depend_on_the_order_of_replies(opened, index):
    """Tokens that are not reported have the ratio of all replies, those before the first without
    usage too."""
    replies = {
        10: Completion("一", "stop", 20, 1),
        30: Completion("二", "stop", 10, 1),
        100: Completion("三"),
    }
    found = []
    for number, sizes in enumerate(permutations(replies)):
        store = opened()
        store.open_logs(index)
        store.tally = RunTally()
        for size in sizes:
            store.save_response(
                0, "甲", f"{number} {size}", 0, Reply(replies[size], 0.1, 1, "http://x", sent=size)
            )
        found.append(store.tally.bill.cost([None], None).estimated_prompt_tokens)
        store.close()
    assert found == [75] * 6


def reopened(opened: Opened, index: TaskIndex) -> RunStore:
    store = opened()
    store.open_logs(index)
    return store


def test_counts_are_those_of_every_saved_reply(opened, index):
    """Of earlier sessions too, of users that are done, and of users that the tasks no longer
    have."""
    store = opened()
    store.open_logs(index)
    of = Completion("字", "stop", 10, 4, cached_tokens=3)
    for position, key in enumerate(("甲", "乙", "gone")):
        store.save_response(position, key, "r", 0, Reply(of, 0.1, 1, "http://x", sent=50))
    save(store, index, "甲")
    store.save_response(2, "丙", "r", 0, Reply(Completion("字"), 0.1, 1, "http://x", sent=50))
    counted = store.tally.bill.total
    assert (
        counted.requests,
        counted.prompt_tokens,
        counted.cached_tokens,
        counted.unknown_prompt,
    ) == (4, 30, 9, 50)
    store = reopened(opened, index)
    assert store.tally.bill.total == counted
    store.load_responses(index)
    assert store.tally.bill.total == counted


def test_reply_of_another_run_costs_nothing_here(opened, index):
    """It is saved, and was paid for there."""
    store = opened()
    store.open_logs(index)
    store.save_response(
        0,
        "甲",
        "r",
        0,
        Reply(Completion("字", "stop", 10, 4), 0.1, 1, "http://x", reused="earlier"),
    )
    assert store.tally.bill.total.requests == reopened(opened, index).tally.bill.total.requests == 0


def test_responses_of_done_users_are_found_only_when_asked_for(opened, index):
    """A done user is not played, so its responses take no memory, unless it is to be played
    again."""
    store = opened()
    store.open_logs(index)
    store.save_response(0, "甲", "r1", 0, Reply(Completion("x"), 0.1, 1, "http://x"))
    save(store, index, "甲")
    store = opened()
    store.open_logs(index)
    assert store.responses_of(0) == {}
    store.load_responses(index)
    assert store.responses_of(0) == {("r1", 0): Completion("x")}


def test_torn_response_does_not_hide_the_others(opened, index, files):
    """A response damaged in the middle of the file is owed; those around it are found where they
    now stand."""
    store = opened()
    store.open_logs(index)
    for position, key in enumerate(KEYS[:3]):
        store.save_response(position, key, "r", 0, Reply(Completion(key), 0.1, 1, "http://x"))
    lines = files.responses.read_bytes().splitlines(keepends=True)
    files.responses.write_bytes(lines[0] + lines[1].replace(b'"tries":1', b'"tries":9') + lines[2])
    store = opened()
    store.open_logs(index)
    assert [store.responses_of(position) for position in range(3)] == [
        {("r", 0): Completion("甲")},
        {},
        {("r", 0): Completion("丙")},
    ]


def test_responses_that_cannot_be_read_are_an_error_of_the_machine(opened, index, files):
    """A file that was taken away under the run ends it with the file's name."""
    store = opened()
    store.open_logs(index)
    store.save_response(0, "甲", "r", 0, Reply(Completion("x"), 0.1, 1, "http://x"))
    store = opened()
    store.open_logs(index)
    files.responses.unlink()
    with pytest.raises(MachineError, match=r"cannot read .*responses_weibo\.jsonl"):
        store.responses_of(0)


def test_response_that_was_changed_under_the_run_is_an_error_of_the_machine(opened, index, files):
    """A line that is no longer the one that was found is not taken for a reply."""
    store = opened()
    store.open_logs(index)
    store.save_response(0, "甲", "r", 0, Reply(Completion("x"), 0.1, 1, "http://x"))
    store = opened()
    store.open_logs(index)
    files.responses.write_bytes(files.responses.read_bytes().replace(b'"tries":1', b'"tries":2'))
    with pytest.raises(
        MachineError, match=r"responses_weibo\.jsonl was changed by another program"
    ):
        store.responses_of(0)


# Failures


def failed_users(store: RunStore, index: TaskIndex, expected: NDArray[np.bool_]) -> int:
    return user_counts(index, expected, store.done, store.failed(index))["failed"]


def test_failures_are_counted_until_their_user_is_done(opened, index, files, index_of):
    """A user that failed, however often, is one failure, as long as its task stands and has no
    record."""
    store = opened()
    store.open_logs(index)
    for key in ("甲", "甲", "乙", "丙"):
        failure = Failure(key, "endpoint", "persistent_error", "超时", 9)
        store.save_failure(failure, index.digest(index.find(key) or 0))
    save(store, index, "乙")
    store = opened()
    store.open_logs(index)
    assert failed_users(store, index, np.ones(len(index), np.bool_)) == 2
    assert failed_users(store, index, np.array([True, False, False, False])) == 1
    store.open_logs(index_of("甲 乙"))
    assert failed_users(store, index_of("甲 乙"), np.ones(2, np.bool_)) == 1
    first = log.decode_line(next(log.lines(files.failures)).text)
    assert first == {
        "user_id": "甲",
        "boundary": "endpoint",
        "kind": "persistent_error",
        "detail": "超时",
        "tries": 9,
        "task": index.digest(0),
        "time": 12.5,
        "format": 1,
    }


# The end


def test_finish_does_the_same_each_time(opened, index, files):
    """Finished again, by this process or the next, a run is the same bytes."""
    store = opened()
    store.open_logs(index)
    save(store, index, "丁", "乙", "甲", "丙")
    first, content = finished(store, index), files.results.read_bytes()
    assert finished(store, index) == first
    store = opened()
    store.open_logs(index)
    assert finished(store, index) == first
    assert files.results.read_bytes() == content


def test_finish_keeps_records_of_users_that_have_gone(opened, index_of, files):
    """Records that the tasks file no longer asks for leave the results, and stay in a copy of the
    old file."""
    before, after = index_of("甲 乙 丙"), index_of("丙 甲")
    store = opened()
    store.open_logs(before)
    save(store, before, "甲", "乙", "丙")
    grown = files.results.read_bytes()
    store = opened("later")
    assert store.open_logs(after).all()
    assert finished(store, after)[1] == ["丙", "甲"]
    assert files.results.with_name(files.results.name + ".before-later").read_bytes() == grown
    assert store.outside() == 0


@pytest.mark.parametrize("hardlinks", [True, False])
def test_replaced_results_keep_the_old_ones(files, hardlinks):
    """What a re-evaluation replaces stays under another name, also in the same second and without
    hard links."""
    disk = QuickDisk() if hardlinks else NoLinks()
    files.folder.mkdir(parents=True)
    files.results.write_bytes(b"one\n")
    hashes = [replace_results(files.results, iter([{"n": n}]), "s", disk) for n in (1, 1, 2)]
    assert hashes[0] == hashes[1] == hashlib.sha256(log.encode_line({"n": 1})).hexdigest()
    name = files.results.name
    assert everything(files.folder) == {
        name: log.encode_line({"n": 2}),
        f"{name}.before-s": b"one\n",
        f"{name}.before-s-2": log.encode_line({"n": 1}),
    }


def test_results_that_cannot_be_kept_are_not_replaced(files):
    """Where the disk takes no copy of the old file, the old file stays, and no half of a copy."""
    files.folder.mkdir(parents=True)
    files.results.write_bytes(b"old\n")
    disk = FaultyDisk(1, "ENOSPC", ("write",), NoLinks())
    with pytest.raises(MachineError, match=r"cannot keep .*: No space left on device"):
        replace_results(files.results, iter([{"n": 1}]), "s", disk)
    assert everything(files.folder) == {files.results.name: b"old\n"}


# The folder


def test_files_follow_the_umask(opened, index, files):
    """Whoever shares results by umask shares every file of a run, also those that are replaced."""
    old = os.umask(0o027)
    try:
        store = opened()
        store.open_logs(index)
        save(store, index, *KEYS)
        finished(store, index)
        store.keep_files({"prompt_own.txt": b"x"})
        replace(MADE).save(files.manifest)
    finally:
        os.umask(old)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in files.folder.iterdir()}
    assert set(modes.values()) == {0o640} and len(modes) == 7


def test_restart_deletes_nothing(opened, index, files):
    """Every file of the old run stands under another name, also when it is restarted twice in a
    second."""
    contents: list[dict[str, bytes]] = []
    for _ in range(2):
        store = opened("s")
        store.open_logs(index)
        save(store, index, *KEYS[: 1 + len(contents)])
        store.save_response(0, "甲", "r", len(contents), Reply(Completion("x"), 0.1, 1, "http://x"))
        store.save_failure(Failure("丁", "endpoint", "k", "d", len(contents)), index.digest(3))
        store.event("retry", number=len(contents))
        replace(MADE, counts={"n": len(contents)}).save(files.manifest)
        for kind in ("txt", "json"):
            files.report(kind).write_text(str(len(contents)))
        contents.append(everything(files.folder))
        store.set_aside_everything()
        assert not store.open_logs(index).any()
        assert store.manifest() is None and store.saved_counts() == {}
    left = set(everything(files.folder).values())
    assert all(set(before.values()) <= left for before in contents)


def test_prompts_are_kept_once_and_others_set_aside(opened, files):
    """The copy beside the results is what this run used; one of an earlier run is not lost."""
    store = opened("s")
    store.keep_files({"prompt_own.txt": "甲".encode()})
    before = files.folder.joinpath("prompt_own.txt").stat()
    left = files.folder / f"prompt_own.txt.{'0' * 16}.new"
    left.write_bytes(b"of a writer that has died")
    os.utime(left, (0, 0))
    store.keep_files({"prompt_own.txt": "甲".encode()})
    after = files.folder.joinpath("prompt_own.txt").stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    store.keep_files({"prompt_own.txt": "乙".encode()})
    assert everything(files.folder) == {
        "prompt_own.txt": "乙".encode(),
        "prompt_own.txt.before-s": "甲".encode(),
    }


# The manifest


def test_manifest_comes_back_as_it_was_saved(tmp_path):
    """Every field of a manifest is in its file."""
    made = replace(MADE, state=COMPLETE, counts={"users": 4}, results_sha256="ab")
    made.save(tmp_path / "run.json")
    assert manifest.load(tmp_path / "run.json") == made
    assert manifest.load(tmp_path / "none.json") is None


def test_manifest_keeps_fields_that_it_does_not_know(tmp_path):
    """Saved again, a manifest of another version has the same bytes: its own fields, in their
    order."""
    path = tmp_path / "run.json"
    MADE.save(path)
    data = orjson.loads(path.read_bytes())
    for section in (
        data["identity"],
        data["provenance"],
        data["tuning"],
        data["tasks"],
        data["times"],
    ):
        known = dict(section)
        section.clear()
        section.update({"later": [1, {"a": None}]} | dict(reversed(known.items())))
    path.write_bytes(content := orjson.dumps(data, option=orjson.OPT_INDENT_2) + b"\n")
    made = manifest.load(path)
    assert made is not None
    made.save(path)
    assert path.read_bytes() == content


def test_differences_are_told_field_by_field():
    """Nested fields by dotted names, with both values; what is missing counts as None; what is
    equal is left out."""
    old = {"a": 1, "b": {"c": 1, "d": {"e": 1}}, "f": {"g": 1}, "h": None, "i": [1]}
    new = {"a": 1, "b": {"c": 2, "d": {}}, "f": None, "i": [2], "j": 0}
    assert differences(old, new) == {
        "b.c": (1, 2),
        "b.d.e": (1, None),
        "f": ({"g": 1}, None),
        "i": ([1], [2]),
        "j": (None, 0),
    }
    assert differences(old, old) == {}


@pytest.mark.parametrize(
    ("more", "usable"), [({}, True), ({"cached_tokens": 1}, True), ({"mood": "good"}, False)]
)
def test_reply_with_members_that_no_version_writes_is_none_of_ours(more, usable):
    """Its request is sent again: what else was put into the line is unknown, though its checksum is
    right."""
    line = {
        "request": "digest",
        "nth": 0,
        "completion": {"text": "{}", "finish_reason": "stop", **more},
    }
    assert (completion_of(line) is not None) is usable


@pytest.mark.parametrize(
    "wrong", [{"nth": nth} for nth in ("0", 0.0, False, None, [0])] + [{"request": 7}]
)
def test_reply_to_no_request_of_ours_is_none(wrong):
    """`nth` is a whole number, and neither text nor a number that is equal to one."""
    line = {
        "request": "digest",
        "nth": 0,
        "completion": {"text": "{}", "finish_reason": "stop"},
        **wrong,
    }
    assert completion_of(line) is None
