"""Tasks files of StreamProfileBench that nobody can use, and some that look odd and can be used."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from typing import Any

import orjson

from tests.corpus import Case
from tests.corpus.values import ODD, RAW, put, put_raw

STEP: dict[str, Any] = {
    "step_id": 1,
    "total_steps": 2,
    "posts_text": "[1] Content: 早\nTags: 猫",
    "candidate_pool": ["猫", "狗", "茶", "书"],
    "ground_truth": {"all_tags": ["狗", "猫"], "new_tags": ["狗"], "keep_tags": ["猫"]},
    "meta": {
        "T_keep": ["猫"],
        "T_new": ["狗"],
        "D_decay": ["茶"],
        "D_cluster": ["书"],
        "D_viral": [],
        "D_random": [],
    },
}
USER: dict[str, Any] = {
    "user_id": "u1",
    "platform": "weibo",
    "username": "小明",
    "bio": "爱猫",
    "total_steps": 2,
    "prediction_tasks": [STEP, {**STEP, "step_id": 2}],
}
FIRST = "prediction_tasks.0"
FIELDS = (
    "user_id",
    "platform",
    "username",
    "bio",
    "total_steps",
    "prediction_tasks",
    FIRST,
    *(f"{FIRST}.{name}" for name in STEP),
    *(f"{FIRST}.meta.{name}" for name in STEP["meta"]),
)
MEGABYTES = 50 << 20


def user(name: str | int) -> dict[str, Any]:
    return {**USER, "user_id": name}


def line(document: object) -> bytes:
    return orjson.dumps(document) + b"\n"


GOOD = line(user("good"))


def _second(content: bytes) -> bytes:
    """The content as the second line of a file that is good otherwise."""
    return GOOD + content + b"\n" + line(user("after"))


def shown(path: str) -> str:
    """A path of the corpus as messages have it."""
    return path.replace(".0", "[0]")


def without_lists() -> bytes:
    bare = put(USER, f"{FIRST}.meta", ...)
    return line(put(bare, f"{FIRST}.ground_truth", {"all_tags": ["狗"]}))


BAD = (
    Case("empty", b"", ("holds no tasks",)),
    Case("blank", b"\xef\xbb\xbf\r\n  \n\t\n", ("holds no tasks",)),
    Case("no JSON", _second(b"{user_id: 1}"), ("line 2", "JSON")),
    Case("half a line", GOOD + line(USER)[:200], ("line 2", "JSON")),
    Case("an array", b"[" + line(USER).strip() + b"]", ("line 1", "a JSON object, got a list")),
    Case("null", _second(b"null"), ("line 2", "a JSON object")),
    Case("NUL bytes", _second(b"\x00" * 300), ("line 2", "JSON")),
    Case("a hole of a power loss", GOOD + b"\x00" * 4096, ("line 2", "JSON")),
    Case("UTF-16", line(USER).decode().encode("utf-16"), ("line 1", "UTF-16", "iconv -f UTF-16")),
    Case("UTF-16 without a mark", line(USER).decode().encode("utf-16-be"), ("line 1", "UTF-16")),
    Case(
        "GBK",
        _second(line(USER).decode().encode("gbk").strip()),
        ("line 2", "GBK", "iconv -f GB18030"),
    ),
    Case(
        "Latin-1",
        _second(line(put(USER, "bio", "")).replace(b'"bio":""', b'"bio":"caf\xe9"')),
        ("not UTF-8",),
    ),
    Case("gzip", gzip.compress(GOOD), ("line 1", "compressed", "gunzip")),
    Case("zstd", b"\x28\xb5\x2f\xfd" + bytes(range(256)), ("line 1", "compressed", "unzstd")),
    Case(
        "a number of 65 bits",
        put_raw({**USER, "bio": 0}, "bio", b"%d" % 2**64),
        ("line 1", "field bio", "64 bits"),
    ),
    Case(
        "a number of 65 bits that the prompt shows",
        put_raw(USER, f"{FIRST}.candidate_pool.1", b"-%d" % 2**64),
        ("line 1", "field prediction_tasks[0].candidate_pool[1]", "64 bits"),
    ),
    Case("depth of lists", _second(b"[" * 1_000_000), ("line 2", "JSON")),
    Case("depth of objects", _second(b'{"a":' * 200_000), ("line 2", "JSON")),
    Case(
        "depth in a field nobody reads",
        _second(put_raw({**USER, "x": 0}, "x", RAW[-1])),
        ("line 2", "JSON"),
    ),
    Case(
        "steps out of order",
        line(put(USER, "prediction_tasks.1.step_id", 1)),
        ("line 1", "[1].step_id", "above 1"),
    ),
    Case(
        "a step beyond",
        line(put(USER, "prediction_tasks.1.step_id", 2**31)),
        ("line 1", "[1].step_id", "214748"),
    ),
    Case(
        "a step number of 64 bits",
        line(put(USER, "prediction_tasks.1.step_id", 2**64 - 1)),
        ("[1].step_id",),
    ),
    Case(
        "a step number of 70 bits",
        put_raw(USER, f"{FIRST}.step_id", b"9" * 21),
        ("line 1", "[0].step_id"),
    ),
    Case(
        "neither meta nor its substitute",
        without_lists(),
        ("line 1", "[0].ground_truth.keep_tags", "missing"),
    ),
    Case("a user twice", GOOD + line(USER) + GOOD, ("line 3", "user_id", "line 1")),
    Case(
        "a number and its text are one user",
        line(user(7)) + line(user("7")),
        ("line 2", "user_id", "line 1"),
    ),
    Case("another platform", line(put(USER, "platform", "zhihu")), ("line 1", "platform", "weibo")),
    Case(
        "a platform with a path in it",
        line(put(USER, "platform", "../weibo")),
        ("line 1", "platform", "weibo"),
    ),
    Case(
        "a name that is half a surrogate pair",
        put_raw(USER, "username", RAW[5]),
        ("line 1", "JSON"),
    ),
)

USED = (
    Case("byte order mark", b"\xef\xbb\xbf" + GOOD),
    Case(
        "byte order marks of joined files",
        b"\xef\xbb\xbf" + GOOD + b"\xef\xbb\xbf" + line(user("other")),
    ),
    Case(
        "numbers of many digits", line(put(put(USER, "bio", "9" * 30), f"{FIRST}.date", 2**64 - 1))
    ),
    Case("CRLF", GOOD.replace(b"\n", b"\r\n") + b"\r\n"),
    Case("blank lines and margins", b"\n \n  " + GOOD + b"\t\n\n"),
    Case("no last line end", GOOD.strip()),
    Case("a field twice: the last one counts", b'{"user_id": [], ' + GOOD[1:]),
    Case("no meta", line(put(USER, f"{FIRST}.meta", ...))),
    Case("empty meta", line(put(USER, f"{FIRST}.meta", {}))),
    Case("a pool without the truth", line(put(USER, f"{FIRST}.candidate_pool", ["茶", "书"]))),
    Case("an empty pool", line(put(USER, f"{FIRST}.candidate_pool", []))),
    Case("no truth at all", line(put(USER, f"{FIRST}.meta", {"T_keep": [], "T_new": []}))),
    Case("the last step there can be", line(put(USER, "prediction_tasks.1.step_id", 2**31 - 1))),
    Case(
        "numbers of steps of 64 bits",
        line(put(put(USER, "total_steps", 2**64 - 1), f"{FIRST}.total_steps", 2**63)),
    ),
    Case("a user of 64 bits", line(user(2**64 - 1))),
    Case("a user below nought", line(user(-(2**63)))),
    Case("a user with signs of control", line(user("../\x00\n\x1b[2J\u202e"))),
    Case(
        "places of a prompt in what users wrote",
        line(put(USER, f"{FIRST}.posts_text", "${pool} {0} %s [user]\n")),
    ),
)


def odd(path: str) -> Iterator[Case]:
    """Lines with each odd value in one field, some of them good there; users differ unless they are
    the field."""
    for number, value in enumerate(ODD):
        yield Case(f"{path} = {value!r}", orjson.dumps(put(user(f"odd {number}"), path, value)))
    for number, raw in enumerate(RAW):
        yield Case(f"{path} = {raw[:20]!r}", put_raw(user(f"raw {number}"), path, raw))


def fifty_megabytes(end: bytes) -> bytes:
    """One line whose text goes on and on; the field behind it, in which it is bad, is the last."""
    return GOOD + put_raw(
        {**put(USER, "username", ...), "username": 0}, "username", b'"' + b"x" * MEGABYTES + end
    )
