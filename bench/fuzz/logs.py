"""The logs of a run: torn lines are set aside, and what is sound is read, whatever a sound line
holds."""

from __future__ import annotations

from zlib import crc32

import orjson

from bench.fuzz import scratch
from harness.benchmarks.streamprofile.benchmark import StreamProfile
from harness.benchmarks.streamprofile.synth import generate
from harness.benchmarks.tasks import parse
from harness.errors import BadInput, MachineError
from harness.model import Where
from harness.store.files import RunFiles
from harness.store.run import RunStore
from harness.store.tasks import open_index

EXPECTED = (BadInput, MachineError)
FILES = RunFiles(scratch.file("run"), "weibo")
TASKS = scratch.written(scratch.file("weibo.jsonl"), b"".join(generate("weibo", 2, 1, 1.0)))
USERS = [orjson.loads(line) for line in TASKS.read_bytes().splitlines()]


def _measured(line: bytes, where: Where) -> tuple[str, int]:
    task = parse(StreamProfile(), line, where, "weibo")
    return task.key, task.steps


INDEX = open_index(TASKS, "fuzz", _measured, scratch.file(".index"))
KEYS = [str(user["user_id"]) for user in USERS]
STORE = RunStore(FILES, lambda: 0.0, "stamp")
"""The one for all inputs: it reads its logs anew for each."""

SEEDS = [
    b"R" + orjson.dumps({"user_id": KEYS[0], "task": INDEX.digest(0), "steps": []}) + b"\n{}\n",
    b"P"
    + orjson.dumps(
        {
            "user_id": KEYS[1],
            "request": "0" * 32,
            "nth": 0,
            "completion": {"text": "x", "finish_reason": "stop"},
        }
    ),
    b"F" + orjson.dumps({"user_id": KEYS[1], "kind": "http_503", "task": INDEX.digest(1)}),
    b'r{"user_id":"a","crc":"00000000"}\n{"user',
]
"""A letter for the file (results, responses, failures; small: as it is, great: each line with its
checksum)."""

MOST_BYTES = 1024
PATHS = {"r": FILES.results, "p": FILES.responses, "f": FILES.failures}


def run(data: bytes) -> None:
    letter = chr(data[0]) if data and chr(data[0]).lower() in PATHS else "r"
    content = data[1:]
    if letter.isupper():
        content = b"".join(_sealed(line) for line in content.split(b"\n"))
    path = PATHS[letter.lower()]
    scratch.written(path, content)
    try:
        _read(letter.lower())
    finally:
        scratch.written(path, b"")
        if STORE.torn:
            path.with_name(path.name + ".torn").unlink(missing_ok=True)


def _read(letter: str) -> None:
    STORE.open_logs(INDEX)
    match letter:
        case "r":
            list(STORE.records())
        case "p":
            for position in range(len(INDEX)):
                STORE.responses_of(position)
        case _:
            STORE.failed(INDEX)


def _sealed(line: bytes) -> bytes:
    payload = line.strip()[:-1]
    return b'%b,"crc":"%08x"}\n' % (payload, crc32(payload))
