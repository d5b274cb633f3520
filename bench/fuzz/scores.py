"""A file of DailyMobility's four lists, as JSON or as a pickle: what is let in can be scored."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import orjson

from bench.fuzz import scratch
from harness.benchmarks.dailymobility import groundtruth, lists, synth
from harness.benchmarks.dailymobility.divergence import divergence
from harness.benchmarks.dailymobility.protocols import METRICS, all_protocols
from harness.errors import BadInput

EXPECTED = (BadInput,)
DATA = scratch.file("data")
for _name, _content in synth.files(4, 1).items():
    if _name.startswith(groundtruth.FOLDER):
        (DATA / _name).parent.mkdir(parents=True, exist_ok=True)
        (DATA / _name).write_bytes(_content)
TRUTH = groundtruth.load(DATA)
GOOD: dict[str, Any] = dict(
    zip(
        METRICS,
        ([10.5, 0.0], [2, 1.5], [[1] * 48, [7] * 48], [[1, 0, 0, 0, 0, 0, 0]] * 2),
        strict=True,
    )
)
SEEDS = [
    orjson.dumps(GOOD),
    orjson.dumps({"results": GOOD, "metadata": {}}),
    *(pickle.dumps({"results": GOOD}, protocol) for protocol in (0, 2, 5)),
    *(
        pickle.dumps({name: np.array(values) for name, values in GOOD.items()}, protocol)
        for protocol in (2, 5)
    ),
    pickle.dumps({name: [np.float64(1.0), np.int64(2)] for name in GOOD}),
]
PATHS = {".json": scratch.file("lists.json"), ".pkl": scratch.file("lists.pkl")}


def run(data: bytes) -> None:
    path = PATHS[".json" if data[:1] in (b"{", b"[") else ".pkl"]
    found = lists.read(scratch.written(path, data))
    all_protocols(TRUTH.sample, found.sample)
    divergence(TRUTH.slots, found.slots)
    lists.warnings(found, TRUTH.lists)
