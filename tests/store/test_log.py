"""The append-only log: what is noticed, what a repair keeps, and what a full disk does."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.errors import MachineError
from harness.model import JSON
from harness.store import log
from harness.store.atomic import replacing
from tests.support.disks import FaultyDisk, QuickDisk

USERS = [{"user_id": f"用户{n}", "人设": "喜欢猫 🐈" * n, "n": n} for n in range(4)]
LINES = [log.encode_line(user) for user in USERS]

scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
)
names = st.text(st.characters(exclude_categories=["Cs"]))
values = st.recursive(
    scalars | names, lambda inner: st.lists(inner) | st.dictionaries(names, inner), max_leaves=4
)
objects = st.dictionaries(names.filter(lambda name: name != "crc"), values, min_size=1, max_size=4)

TORN_FILES = {
    "torn tail": (LINES[0] + LINES[1] + LINES[2][:-9], [0, 1], [LINES[2][:-9]]),
    "torn middle": (LINES[0] + LINES[1][:-9] + b"\n" + LINES[2], [0, 2], [LINES[1][:-9]]),
    "two torn": (LINES[0][5:] + LINES[1] + LINES[2][:30], [1], [LINES[0][5:-1], LINES[2][:30]]),
    "run into a torn one": (LINES[0] + LINES[1][:20] + LINES[2] + LINES[3], [0, 3], [LINES[1][:20] + LINES[2][:-1]]),
    "NUL bytes at the end": (LINES[0] + bytes(4096), [0], [bytes(4096)]),
    "NUL bytes in the middle": (LINES[0] + bytes(64) + LINES[1] + LINES[2], [0, 2], [bytes(64) + LINES[1][:-1]]),
    "ends of Windows": (LINES[0][:-1] + b"\r\n\r\n" + LINES[1][9:] + LINES[2][:-1] + b" \n", [0, 2], [LINES[1][9:-1]]),
    "a torn middle, and a last line without its end": (LINES[0][3:] + LINES[1][:-1], [1], [LINES[0][3:-1]]),
    "a line of another program": (b'{"user_id": "1"}\n' + LINES[0], [0], [b'{"user_id": "1"}']),
    "nothing sound": (b"\xff\xfe", [], [b"\xff\xfe"]),
}  # fmt: skip
damaged = pytest.mark.parametrize(
    ("content", "kept", "torn"), TORN_FILES.values(), ids=TORN_FILES.keys()
)


def torn_of(path: Path) -> bytes:
    return path.with_name(path.name + ".torn").read_bytes()


def users_in(path: Path) -> list[JSON]:
    return [log.decode_line(line.text) for line in log.valid_lines(path)]


@given(objects)
def test_unsealed_line_is_the_sealed_object(data):
    """A line gives back the object that was sealed in it, whatever text that holds."""
    line = log.encode_line(data)
    assert line.endswith(b"\n") and line.count(b"\n") == 1
    assert log.has_valid_crc(line[:-1])
    assert log.decode_line(line[:-1]) == data


def test_sealed_line_holds_chinese_text_as_it_is():
    """Text is in the file as UTF-8, not as escapes."""
    assert "用户0".encode() in LINES[0]


@given(st.sampled_from(LINES), st.data())
def test_any_flipped_byte_is_noticed(line, data):
    """A line in which one byte has another value is not sound."""
    at = data.draw(st.integers(0, len(line) - 2))
    changed = bytearray(line[:-1])
    changed[at] ^= data.draw(st.integers(1, 255))
    assert not log.has_valid_crc(bytes(changed))


@given(st.sampled_from(LINES), st.data())
def test_any_prefix_of_a_line_is_noticed(line, data):
    """However much of a line a death has let through, it is not taken for a whole one."""
    assert not log.has_valid_crc(line[: data.draw(st.integers(0, len(line) - 2))])


def test_tail_alone_is_no_line():
    """The checksum of nothing is right and yet makes no object."""
    assert not log.has_valid_crc(b',"crc":"00000000"}')


def test_lines_tell_where_they_stand(tmp_path):
    """Offset and size of a line cut it out of the file, its end included."""
    path = tmp_path / "log"
    path.write_bytes(b"".join(LINES))
    content = path.read_bytes()
    assert [content[line.offset : line.offset + line.size] for line in log.lines(path)] == LINES
    assert [line.text + b"\n" for line in log.lines(path)] == LINES


@damaged
def test_repair_sets_aside_what_is_torn_and_keeps_the_rest(tmp_path, content, kept, torn):
    """After a repair the log holds every sound line in its order, and `*.torn` every other one; a
    second repair changes neither."""
    path = tmp_path / "log"
    path.write_bytes(content)
    for found in (len(torn), 0):
        assert log.repair(path) == found
        assert path.read_bytes() == b"".join(LINES[n] for n in kept)
        assert torn_of(path) == b"".join(line + b"\n" for line in torn)


@pytest.mark.parametrize("content", [b"", b"".join(LINES)], ids=["empty", "sound"])
def test_repair_does_not_touch_a_sound_file(tmp_path, content):
    """A file without torn lines stays the file that it is, and nothing appears beside it."""
    path = tmp_path / "log"
    path.write_bytes(content)
    before = path.stat()
    assert log.repair(path) == 0
    after = path.stat()
    assert (after.st_ino, after.st_mtime_ns, path.read_bytes()) == (
        before.st_ino,
        before.st_mtime_ns,
        content,
    )
    assert [file.name for file in tmp_path.iterdir()] == ["log"]


def test_repair_of_no_file_makes_none(tmp_path):
    """A log that was never begun has nothing to repair."""
    assert log.repair(tmp_path / "log") == 0
    assert list(tmp_path.iterdir()) == []


def test_repair_of_a_torn_tail_does_not_rewrite_the_file(tmp_path):
    """The usual damage costs a cut, not a copy of all that is sound."""
    path = tmp_path / "log"
    path.write_bytes(LINES[0] + LINES[1][:-9])
    before = path.stat().st_ino
    log.repair(path)
    assert (path.stat().st_ino, path.read_bytes()) == (before, LINES[0])


def test_whole_last_line_without_its_end_is_kept(tmp_path):
    """A line of which only the end is missing was received whole: it stays, and gets its end."""
    path = tmp_path / "log"
    path.write_bytes(LINES[0] + LINES[1][:-1])
    assert log.repair(path) == 0
    assert path.read_bytes() == LINES[0] + LINES[1]


@pytest.mark.parametrize("dies_in", ["_keep_torn", "_take_out", "replacing"])
@damaged
def test_repair_that_died_can_be_done_again(
    tmp_path,
    monkeypatch,
    dies_in,
    content,
    kept,
    torn,
):
    """A death at any step loses nothing: the log is cut after its torn lines are aside; they may
    stand there twice."""

    class Death(BaseException):
        pass

    def die(*_: object, **__: object) -> None:
        raise Death

    path = tmp_path / "log"
    path.write_bytes(content)
    with monkeypatch.context() as patch:
        patch.setattr(log, dies_in, die)
        try:
            log.repair(path)
        except Death:
            assert path.read_bytes() == content
    log.repair(path)
    assert path.read_bytes() == b"".join(LINES[n] for n in kept)
    assert set(torn) <= set(torn_of(path).split(b"\n"))


def test_appended_line_is_in_the_file_before_append_returns(tmp_path):
    """Nothing is held back in this process: another one sees the line at once."""
    opened = log.AppendLog(tmp_path / "log")
    for count, user in enumerate(USERS, 1):
        opened.append(user)
        assert users_in(tmp_path / "log") == USERS[:count]
    opened.close()


def test_sync_of_a_log_that_took_nothing_new_costs_nothing(tmp_path, monkeypatch):
    """The disk is asked once for what was appended, and again only after more was."""
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", synced.append)
    opened = log.AppendLog(tmp_path / "log")
    counts = []
    for _ in range(2):
        opened.append(USERS[0])
        opened.sync()
        opened.sync()
        counts.append(len(synced))
    opened.close()
    assert counts == [1, 2]


SHORT_WRITE = """
import resource, sys
from pathlib import Path
from harness.errors import MachineError
from harness.store.log import AppendLog

resource.setrlimit(resource.RLIMIT_FSIZE, (300, 300))
opened = AppendLog(Path(sys.argv[1]))
opened.append({"user_id": "1", "text": "a" * 100})
try:
    opened.append({"user_id": "2", "text": "b" * 200})
except MachineError as error:
    print(error)
opened.append({"user_id": "3"})
"""


def test_line_that_fits_only_in_part_leaves_no_part(tmp_path):
    """After a short write the error is reported, and a line that still fits does not run into the
    part."""
    path = tmp_path / "log"
    told = subprocess.run(
        [sys.executable, "-c", SHORT_WRITE, str(path)], capture_output=True, text=True, check=True
    )
    assert "the disk took only a part" in told.stdout
    assert [user["user_id"] for user in users_in(path)] == ["1", "3"]
    assert log.repair(path) == 0


class Stubborn(QuickDisk):
    """Takes a part of the next line, and does not give it back."""

    stubborn = True

    def write(self, fd: int, content: bytes) -> int:
        part, self.stubborn = self.stubborn, False
        return super().write(fd, content[:9] if part else content)

    def truncate(self, fd: int, size: int) -> None:
        raise OSError(5, "Input/output error")


def test_log_with_a_part_that_cannot_be_taken_back_takes_no_more(tmp_path):
    """A line that would run into the part is refused, not reported as saved."""
    path = tmp_path / "log"
    opened = log.AppendLog(path, Stubborn())
    with pytest.raises(MachineError, match="the disk took only a part"):
        opened.append(USERS[0])
    with pytest.raises(MachineError, match=r"cannot write .*log: Input/output error"):
        opened.append(USERS[1])
    opened.close()
    assert log.repair(path) == 1
    assert torn_of(path) == LINES[0][:9] + b"\n"


def test_sync_that_failed_does_not_succeed_later(tmp_path):
    """The kernel tells a loss once; after it no sync of this file is believed."""
    disk = FaultyDisk(1, "EIO", ("sync",), QuickDisk())
    opened = log.AppendLog(tmp_path / "log", disk)
    opened.append(USERS[0])
    for _ in range(2):
        with pytest.raises(MachineError, match="cannot sync"):
            opened.sync()
    opened.close()


def test_lines_of_a_process_that_died_are_synced_by_the_next(tmp_path):
    """What a new process finds and counts on is on the disk with its first sync, though it appended
    nothing."""
    (tmp_path / "log").write_bytes(LINES[0])
    disk = FaultyDisk(inner=QuickDisk())
    opened = log.AppendLog(tmp_path / "log", disk)
    opened.sync()
    opened.close()
    assert disk.operations["sync"] == 1


def test_file_that_cannot_be_closed_is_an_error_of_the_machine(tmp_path):
    """Some network mounts say only then that they could not keep what they took."""
    opened = log.AppendLog(tmp_path / "log", FaultyDisk(1, "EIO", ("close",), QuickDisk()))
    with pytest.raises(MachineError, match=r"cannot close .*log: Input/output error"):
        opened.close()


def test_torn_line_does_not_run_into_one_that_a_repair_left_half(tmp_path):
    """What a death within a repair has left in `*.torn` is ended before the next repair adds to
    it."""
    path = tmp_path / "log"
    path.write_bytes(LINES[0][:-9])
    path.with_name("log.torn").write_bytes(LINES[0][:5])
    log.repair(path)
    assert torn_of(path) == LINES[0][:5] + b"\n" + LINES[0][:-9] + b"\n"


def test_log_that_cannot_be_opened_is_an_error_of_the_machine(tmp_path):
    """A folder that is not there is named."""
    with pytest.raises(MachineError, match=r"cannot open .*gone.*log for writing"):
        log.AppendLog(tmp_path / "gone" / "log")


def test_log_of_a_file_replaced_meanwhile_is_read_to_its_end(tmp_path):
    """Whoever reads while the file is replaced sees the old lines, all of them."""
    path = tmp_path / "log"
    path.write_bytes(b"".join(LINES))
    reading = log.lines(path)
    seen = [next(reading).text + b"\n"]
    with replacing(path) as file:
        file.write(LINES[3])
    assert seen + [line.text + b"\n" for line in reading] == LINES
