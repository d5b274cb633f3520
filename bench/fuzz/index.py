"""A tasks file as lines or as an array: every task stands where the index says, and is the same
when read again."""

from __future__ import annotations

import shutil
from hashlib import sha256

import orjson

from bench.fuzz import scratch
from harness.errors import BadInput
from harness.model import Where
from harness.store.tasks import open_index

EXPECTED = (BadInput,)
SEEDS = [
    b'l\xef\xbb\xbf{"user_id": "a"}\r\n\n  {"user_id": "\xe7\x8c\xab"}\n{"user_id": 3}',
    b'a [{"id": 1, "x": [1, "]"]},\n {"id": 2}\n]\n',
    b"a\xef\xbb\xbf[]",
]
PATHS = {ord("a"): scratch.file("fuzz.json"), ord("l"): scratch.file("fuzz.jsonl")}
CACHE = scratch.file(".index")


def run(data: bytes) -> None:
    path = PATHS.get(data[0] if data else 0, PATHS[ord("l")])
    content = data[1:]
    shutil.rmtree(CACHE, ignore_errors=True)
    scratch.written(path, content)
    seen: list[bytes] = []

    def measured(line: bytes, where: Where) -> tuple[str, int]:
        try:
            orjson.loads(line)
        except ValueError:
            raise BadInput(f"{where}: not JSON") from None
        seen.append(line)
        return line.decode(), 1

    index = open_index(path, "fuzz", measured, CACHE)
    try:
        assert [index.read(at) for at in range(len(index))] == seen
        assert [index.find(line.decode()) for line in seen] == list(range(len(seen)))
        assert index.sha256 == sha256(content).hexdigest()
    finally:
        index.close()
