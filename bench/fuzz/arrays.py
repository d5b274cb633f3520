"""The ground truth's arrays: what is let in can be scored against."""

from __future__ import annotations

import io
from itertools import product

import numpy as np

from bench.fuzz import scratch
from harness.benchmarks.dailymobility import groundtruth, synth
from harness.errors import BadInput

EXPECTED = (BadInput,)
DATA = scratch.file("data")
FILES = {
    name: content
    for name, content in synth.files(4, 1).items()
    if name.startswith(groundtruth.FOLDER)
}
for _name, _content in FILES.items():
    (DATA / _name).parent.mkdir(parents=True, exist_ok=True)
    (DATA / _name).write_bytes(_content)
NAMES = list(FILES)


def _saved(array: object, version: tuple[int, int]) -> bytes:
    file = io.BytesIO()
    np.lib.format.write_array(file, np.asanyarray(array), version)
    return file.getvalue()


SEEDS = [bytes([at]) + content for at, content in enumerate(FILES.values())]
SEEDS += [
    b"\0" + _saved(np.ones(4, kind), version)
    for kind, version in product(("<f4", ">i8", "?", "U3", "O"), ((1, 0), (2, 0), (3, 0)))
]


def run(data: bytes) -> None:
    name = NAMES[data[0] % len(NAMES) if data else 0]
    path = DATA / name
    scratch.written(path, data[1:])
    try:
        truth = groundtruth.load(DATA)
    finally:
        scratch.written(path, FILES[name])
    assert truth.residents == 4
