"""The index of a file of lines: new bytes are read once, and odd files neither stop nor mislead
it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from harness.commands.view import index as indexes
from harness.commands.view.index import LineIndex, SummaryCache, UserSummary, lines_beginning
from harness.model import JSON
from harness.store.log import encode_line

KEYS = ("a", "ab", 'q"uo\\te', "画像", "new\nline", "b")


def line(key: str, **more: object) -> bytes:
    return encode_line({"user_id": key, "outcome": "valid", **more})


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "lines.jsonl"
    path.write_bytes(b"".join(map(line, KEYS)))
    return path


def advanced(path: Path) -> LineIndex:
    index = LineIndex(path)
    index.advance()
    return index


@pytest.mark.parametrize("block", [32, 100, 1 << 20])
def test_lines_are_found_by_number_and_by_user_whatever_the_size_of_a_read(
    path, block, monkeypatch
):
    """Also where keys have quotes, line ends and other scripts."""
    monkeypatch.setattr(indexes, "BLOCK", block)
    index = advanced(path)
    assert [data["user_id"] for _, data in index.objects(range(len(index))) if data] == list(KEYS)
    assert [index.key(number) for number in range(len(KEYS))] == list(KEYS)
    assert [index.numbers_of(key) for key in KEYS] == [[number] for number in range(len(KEYS))]
    assert (
        index.searched("a") == [0, 1]
        and index.searched("像") == [3]
        and index.searched("nobody") == []
    )
    assert list(lines_beginning(path, b'{"user_id":"a', 9)) == [line("a")[:-1], line("ab")[:-1]]


def test_keys_that_are_numbers_are_found_as_text(path):
    path.write_bytes(b'{"user_id":98,"x":1}\n{"user_id":7,"x":"98"}\n')
    index = advanced(path)
    assert (index.numbers_of("98"), index.searched("9"), index.key(1)) == ([0], [0], "7")


def test_only_new_bytes_are_read(path, monkeypatch):
    """A line without its end is read once it has one."""
    index, whole = advanced(path), line("later")
    read: list[int] = []
    add = LineIndex._add
    monkeypatch.setattr(
        LineIndex, "_add", lambda self, lines: (read.append(len(lines)), add(self, lines))[1]
    )
    with path.open("ab") as file:
        file.write(whole[:10])
        file.flush()
        index.advance()
        assert len(index) == len(KEYS) and not read
        file.write(whole[10:])
    index.advance()
    index.advance()
    assert read == [len(whole)] and index.key(len(KEYS)) == "later"


def test_reading_goes_on_where_its_time_was_over(path, monkeypatch):
    monkeypatch.setattr(indexes, "BLOCK", 64)
    index = LineIndex(path)
    assert index.advance(-1.0) is False and len(index) == 0
    assert index.advance(60.0) is True and len(index) == len(KEYS)


def test_replaced_and_shortened_files_are_read_again(path):
    index = advanced(path)
    before = index.generation
    fresh = path.with_suffix(".new")
    fresh.write_bytes(line("other"))
    fresh.replace(path)
    index.advance()
    assert len(index) == 1 and index.key(0) == "other" and index.generation is not before
    path.write_bytes(b"")
    index.advance()
    assert len(index) == 0


def test_damaged_and_foreign_lines_have_no_object_and_hide_no_other(path):
    odd = (
        b"no json\n",
        b"\xff\xfe\n",
        b"[1]\n",
        line("torn").replace(b"valid", b"VALID"),
        b'{"other":1}\n',
        b"\n",
    )
    path.write_bytes(b"".join((*odd, line("whole"))))
    index = advanced(path)
    objects = [data for _, data in index.objects(range(len(index)))]
    assert objects == [
        None,
        None,
        None,
        None,
        {"other": 1},
        None,
        {"user_id": "whole", "outcome": "valid"},
    ]


def test_huge_line_is_passed_over_and_one_without_an_end_stops_nothing(path, monkeypatch):
    monkeypatch.setattr(indexes, "BLOCK", 1 << 12)
    monkeypatch.setattr(indexes, "MAX_LINE_BYTES", 1 << 13)
    monkeypatch.setattr(indexes, "LINE_MOST", 1 << 15)
    path.write_bytes(line("huge", text="x" * (1 << 14)) + line("small"))
    index = advanced(path)
    assert [data and data["user_id"] for _, data in index.objects(range(2))] == [None, "small"]
    assert index.key(0) == "huge"
    with path.open("ab") as file:
        file.write(b"y" * (1 << 17))
    index.advance()
    assert len(index) == 2 and index.stopped is not None


@pytest.mark.parametrize("kind", ["missing", "folder", "pipe", "device"])
def test_what_is_no_file_has_no_lines(tmp_path, kind):
    """None hangs."""
    path = tmp_path / "odd"
    {
        "missing": lambda: None,
        "folder": path.mkdir,
        "pipe": lambda: os.mkfifo(path),
        "device": lambda: path.symlink_to("/dev/zero"),
    }[kind]()
    index = advanced(path)
    assert (
        len(index) == 0
        and list(index.objects([])) == []
        and list(lines_beginning(path, b"{", 1)) == []
    )


def test_what_lines_say_is_read_in_steps(path):
    """In steps: what is read so far can be selected already; a file that was replaced is read
    again."""
    records: list[JSON] = [
        {"user_id": str(number), "outcome": "refusal" if number % 3 else "valid"}
        for number in range(9)
    ]
    path.write_bytes(b"".join(map(encode_line, records)))

    def describe(data: JSON | None) -> UserSummary:
        assert data is not None
        return UserSummary(data["outcome"], data["user_id"] == "4", (float(data["user_id"]),))

    facts = SummaryCache(index := advanced(path))
    assert len(facts.current(describe, 0.0)) == 1
    lines = facts.current(describe, 60.0)
    assert [line.outcome for line in lines] == [data["outcome"] for data in records]
    assert [line.is_repaired for line in lines].index(True) == 4 and lines[7].figures == (7.0,)
    fresh = path.with_suffix(".new")
    fresh.write_bytes(encode_line(records[5]))
    fresh.replace(path)
    index.advance()
    assert [line.figures for line in facts.current(describe, 60.0)] == [(5.0,)]
