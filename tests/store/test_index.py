"""The index of a tasks file: where each line stands, what of it is cached, and which users a share
takes."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from contextlib import closing
from itertools import pairwise
from pathlib import Path

import numpy as np
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.errors import BadInput, MachineError
from harness.model import Where
from harness.store.tasks import TaskIndex, line_digest, open_index
from tests.support import examples


class Rules:
    """Measures a line of the form `key steps`, and remembers what it was shown."""

    def __init__(self) -> None:
        self.seen: list[tuple[bytes, Where]] = []

    def __call__(self, line: bytes, where: Where) -> tuple[str, int]:
        self.seen.append((line, where))
        key, steps = line.decode().split()
        if not steps.isdigit():
            raise BadInput(f"{where}: field steps: expected a number")
        return key, int(steps)


@pytest.fixture
def rules() -> Rules:
    return Rules()


@pytest.fixture
def opened(tmp_path: Path, rules: Rules) -> Callable[[bytes], TaskIndex]:
    """Writes a tasks file, unless it is there with that content, and opens its index."""
    path = tmp_path / "tasks.jsonl"

    def open_it(content: bytes) -> TaskIndex:
        if not path.exists() or path.read_bytes() != content:
            path.write_bytes(content)
        index = open_index(path, "test 1", rules, tmp_path / ".index")
        index.close()
        return index

    return open_it


def many(count: int) -> bytes:
    return b"".join(b"u%d %d\n" % (n, n % 7 + 1) for n in range(count))


def lines_of(path: Path, rules: Rules, cache: Path) -> list[bytes]:
    index = open_index(path, "test 1", rules, cache)
    try:
        return [index.read(position) for position in range(len(index))]
    finally:
        index.close()


FORMS = {
    "plain": b"a 1\nb 2\nc 3\n",
    "no last end": b"a 1\nb 2\nc 3",
    "byte order mark": b"\xef\xbb\xbfa 1\nb 2\nc 3\n",
    "CRLF": b"a 1\r\nb 2\r\nc 3\r\n",
    "blank lines": b"\n\na 1\n  \t\nb 2\n\r\nc 3\n\n",
    "white space around": b"  a 1 \n\tb 2\nc 3 \t\n",
    "byte order mark on a blank line": b"\xef\xbb\xbf\na 1\nb 2\nc 3",
}


@pytest.mark.parametrize("content", FORMS.values(), ids=FORMS.keys())
def test_every_form_of_a_file_gives_the_same_tasks(tmp_path, rules, content):
    """Marks, line ends and blank lines are no part of a task: lines, keys and digests are the
    same."""
    path = tmp_path / "tasks.jsonl"
    path.write_bytes(content)
    wanted = [b"a 1", b"b 2", b"c 3"]
    assert lines_of(path, rules, tmp_path / ".index") == wanted
    index = open_index(path, "test 1", rules, tmp_path / ".index")
    assert [index.find(key) for key in "abcd"] == [0, 1, 2, None]
    assert [index.digest(position) for position in range(3)] == [
        line_digest(line) for line in wanted
    ]
    assert index.steps.tolist() == [1, 2, 3]
    raw_lines = content.replace(b"\xef\xbb\xbf", b"").split(b"\n")
    numbers = [number for number, line in enumerate(raw_lines, 1) if line.strip()]
    assert [index.where(position) for position in range(3)] == [
        Where(str(path), number) for number in numbers
    ]
    assert [where for _, where in rules.seen] == [index.where(position) for position in range(3)]
    index.close()


def test_unchanged_file_is_not_read_again(opened, rules):
    """With the same size and time, the cached index is taken, and is the same."""
    first = opened(many(5))
    rules.seen.clear()
    second = opened(many(5))
    assert rules.seen == []
    assert second.sha256 == first.sha256
    assert [second.digest(n) for n in range(5)] == [first.digest(n) for n in range(5)]
    assert second.steps.tolist() == first.steps.tolist()
    assert [second.find(f"u{n}") for n in range(6)] == [0, 1, 2, 3, 4, None]


def test_change_that_keeps_size_and_time_is_indexed_anew(tmp_path, rules):
    """Copying programs put old times back; the moment of the change itself they cannot."""
    path = tmp_path / "tasks.jsonl"
    path.write_bytes(b"a 1\nb 2\n")
    os.utime(path, ns=(1, 1))
    lines_of(path, rules, tmp_path / ".index")
    path.write_bytes(b"a 1\nb 3\n")
    os.utime(path, ns=(1, 1))
    assert lines_of(path, rules, tmp_path / ".index") == [b"a 1", b"b 3"]


def test_file_that_changes_under_its_index_is_noticed_and_indexed_anew_the_next_time(
    tmp_path, rules
):
    """A task is never another than the one that was validated; the cached index goes with the
    error."""
    path = tmp_path / "tasks.jsonl"
    path.write_bytes(b"a 1\nb 2\n")
    with closing(open_index(path, "test 1", rules, tmp_path / ".index")) as index:
        assert list((tmp_path / ".index").iterdir())
        path.write_bytes(b"a 1\nb 3\n")
        with pytest.raises(MachineError, match="has changed"):
            index.read(1)
    assert not list((tmp_path / ".index").iterdir())


def test_other_rules_do_not_take_each_others_cache(opened, rules, tmp_path):
    """Another benchmark, subset or version of the rules validates for itself."""
    opened(many(3))
    rules.seen.clear()
    open_index(tmp_path / "tasks.jsonl", "test 2", rules, tmp_path / ".index").close()
    assert len(rules.seen) == 3


def test_damaged_cache_is_made_again(opened, rules, tmp_path):
    """Whichever byte of the cache is wrong, and wherever it ends, the index is right."""
    wanted = opened(many(3))
    cache = next((tmp_path / ".index").iterdir())
    whole = cache.read_bytes()
    directory = whole.index(b"PK\x01\x02")  # the archive's own, where every field matters
    places = [*range(0, directory, 97), *range(directory, len(whole), 7)]
    damaged = [whole[:at] + bytes([whole[at] ^ 0x41]) + whole[at + 1 :] for at in places]
    for content in (*damaged, *(whole[:at] for at in range(0, len(whole), 311)), b"[]"):
        cache.write_bytes(content)
        index = opened(many(3))
        assert [index.find(f"u{n}") for n in range(4)] == [0, 1, 2, None]
        assert [index.digest(n) for n in range(3)] == [wanted.digest(n) for n in range(3)]
        assert index.steps.tolist() == [1, 2, 3]


def test_cache_that_came_with_a_folder_is_made_again(opened, rules, tmp_path):
    """Its sender may know the tasks, their size and their time, and leave users out; not when this
    file was made."""
    path = tmp_path / "tasks.jsonl"
    opened(many(3))
    cache = next((tmp_path / ".index").iterdir())
    content, times = path.read_bytes(), path.stat()
    path.unlink()
    path.write_bytes(content)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    with np.load(cache) as held:
        columns = {name: column if name == "stamp" else column[:1] for name, column in held.items()}
    with cache.open("wb") as file:
        np.savez(file, **columns)
    rules.seen.clear()
    assert len(opened(content)) == len(rules.seen) == 3


def test_task_that_changes_while_it_is_used_is_noticed(tmp_path, rules):
    """A line read again is the line that was validated, or the run ends."""
    path = tmp_path / "tasks.jsonl"
    path.write_bytes(b"a 1\nb 2\nc 3\n")
    index = open_index(path, "test 1", rules, tmp_path / ".index")
    with path.open("r+b") as file:
        file.write(b"a 1\nb 9\n")
        file.truncate()
    assert index.read(0) == b"a 1"
    for changed in (1, 2):
        with pytest.raises(MachineError, match="has changed since this run began"):
            index.read(changed)
    index.close()


def test_share_of_users_has_the_right_size(opened):
    """A share is rounded to whole users, is never empty and never more than all."""
    index = opened(many(50))
    sizes = {0.0: 1, 0.001: 1, 0.1: 5, 0.25: 12, 0.5: 25, 1.0: 50}
    assert {ratio: int(index.select(ratio, 42).sum()) for ratio in sizes} == sizes


@pytest.mark.parametrize("seed", [0, 42])
def test_larger_share_holds_every_smaller_one(opened, seed):
    """For one seed, growing the share adds users and takes none away."""
    index = opened(many(200))
    shares = [index.select(ratio / 20, seed) for ratio in range(1, 21)]
    assert all(not (smaller & ~larger).any() for smaller, larger in pairwise(shares))


def test_limit_takes_the_first_users_of_the_order_of_shares(
    opened,
):
    """A number of users and a share of the same size are the same users; more than there are is
    all."""
    index = opened(many(50))
    for limit in (1, 7, 25, 50):
        selected = index.selected({"ratio": 1.0, "sample_seed": 7, "limit": limit})
        assert (selected == index.select(limit / 50, 7)).all() and selected.sum() == limit
    assert index.selected({"ratio": 1.0, "sample_seed": 7, "limit": 51}).all()


def test_share_is_the_same_wherever_its_users_stand(opened):
    """Which users are taken hangs on who they are, not on the order of the file."""
    lines = many(60).splitlines(keepends=True)
    taken = []
    for order in (lines, lines[::-1]):
        index = opened(b"".join(order))
        chosen = index.select(0.3, 7)
        taken.append({key for key in (f"u{n}" for n in range(60)) if chosen[index.find(key) or 0]})
    assert taken[0] == taken[1]


def test_seeds_take_different_and_uniform_shares(opened):
    """Over seeds every user is taken about equally often, and two seeds agree as far as chance has
    it."""
    index = opened(many(300))
    shares = np.array([index.select(0.2, seed) for seed in range(300)])
    often = shares.mean(axis=0)  # 300 draws of 0.2: the standard error is 0.023
    assert often.min() > 0.2 - 5 * 0.023 and often.max() < 0.2 + 5 * 0.023
    together = (shares[:-1] & shares[1:]).sum(axis=1).mean() / 60
    assert abs(together - 0.2) < 0.02


ARRAYS = {
    "plain": '[{"n": "甲"}, {"n": "乙"}]',
    "an entry a block": '[\n    {\n        "n": "甲"\n    },\n    {\n        "n": "乙"\n    }\n]\n',
    "byte order mark": '\ufeff[{"n": "甲"},{"n": "乙"}]',
    "white space": ' \r\n[ {"n": "甲"}\t, {"n": "乙"} ] \n\n',
}


@pytest.mark.parametrize("text", ARRAYS.values(), ids=ARRAYS.keys())
def test_elements_of_an_array_stand_for_lines(tmp_path, text):
    """A `.json` file's elements are read again as the bytes that they are in the file."""
    path, seen = tmp_path / "residents.json", []

    def measured(line: bytes, where: Where) -> tuple[str, int]:
        seen.append(where.line)
        key: str = orjson.loads(line)["n"]
        return key, 1

    path.write_text(text, encoding="utf-8", newline="")
    with closing(open_index(path, "test 1", measured, tmp_path / ".index")) as index:
        assert [orjson.loads(index.read(position))["n"] for position in range(len(index))] == [
            "甲",
            "乙",
        ]
    before = [text[: text.index(name)].rpartition("{")[0] for name in "甲乙"]
    assert seen == [1 + piece.count("\n") for piece in before]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{}", "line 1: expected a JSON array"),
        ("", "line 1: expected a JSON array"),
        ("[]", "holds no tasks"),
        ("[1,\n2\n3]", "line 3: expected a JSON array (expected ',' or ']')"),
        ('[1,\n{"a"]', "line 2: expected a JSON array ("),
        ("[1,\n]", "line 2: expected a JSON array ("),
        ("[1]\n[2]", "line 2: expected a JSON array (trailing characters)"),
        ("[" * 1_000_000, "expected a JSON array (nested too deep)"),
    ],
)
def test_what_is_no_array_is_told_with_its_line(tmp_path, text, said):
    """Where a `.json` file stops being an array is named, whatever stands there."""
    path = tmp_path / "residents.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(BadInput, match=re.escape(said)):
        open_index(path, "test 1", lambda line, where: (line.decode(), 1), tmp_path / ".index")


@given(
    users=st.integers(1, 30),
    repeats=st.integers(1, 4),
    ratio=st.floats(0.01, 1),
    limit=st.none() | st.integers(1, 40),
)
@settings(deadline=None, max_examples=examples(30))
def test_repeats_of_an_index_are_found_and_selected_together(
    tmp_path_factory,
    users,
    repeats,
    ratio,
    limit,
):
    """Each user's repeats follow one another, and a share takes the users that it takes without
    repeats."""
    path = tmp_path_factory.mktemp("index") / "tasks.jsonl"
    path.write_text("".join(f"u{number} 1\n" for number in range(users)))
    with (
        closing(open_index(path, "test 1", Rules(), path.parent / ".index")) as once,
        closing(
            open_index(path, "test 1", Rules(), path.parent / ".index", repeats=repeats)
        ) as index,
    ):
        places = [
            index.find(f"u{user}", repeat + 1) for user in range(users) for repeat in range(repeats)
        ]
        assert places == list(range(users * repeats)) == list(range(len(index)))
        assert [index.repeat(place) for place in places if place is not None] == [
            *range(1, repeats + 1)
        ] * users
        odd: list[object] = [0, repeats + 1, True, "1", None]
        assert [index.find("u0", repeat) for repeat in odd] == [None] * len(odd)
        chosen = index.select(ratio, 7, limit).reshape(-1, repeats)
        assert (chosen == once.select(ratio, 7, limit)[:, None]).all()
        assert index.users(chosen.ravel()) == chosen[:, 0].sum() and index.users() == users
