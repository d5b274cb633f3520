"""A model's reply to DailyMobility's plan mode: a whole day of 48 half hours at known places, or a
kind of fault."""

from __future__ import annotations

import orjson

from harness.benchmarks.dailymobility.day import SLOTS
from harness.benchmarks.dailymobility.plan_reply import Places, read
from harness.errors import InvalidReply
from harness.model import Completion

EXPECTED = ()
PLACES = Places(
    500000001, 500000002, frozenset({500000003}), frozenset({500000001, 500000003, 500000004})
)
MOST_BYTES = 768
SEEDS = [
    (
        b'{"segments": [{"start": "00:00", "end": "08:00", "intention": "sleep", "place": "home"}, '
        b'{"start": "8:10", "end": "24:00", "intention": 4, "place": "AOI 500000003 (x)"}]}'
    ),
    orjson.dumps(
        {
            "slots": [
                {"intention": "工作", "place": "work"},
                ["Eating-Out", 500000004],
                *[[1, "家"]] * 46,
            ]
        }
    ),
    '```json\n{"segments": [{"start": "00：00", "end": "00:00:00", "intention": "睡眠", "place":'
    ' "家"}]}\n```'.encode(),
]


def run(data: bytes) -> None:
    completion = Completion(data.decode("utf-8", "replace"))
    try:
        found = read(completion, PLACES)
    except InvalidReply as error:
        error.why.encode()
        return
    assert len(found.intentions) == len(found.places) == SLOTS
    assert set(found.intentions) <= set(range(1, 8))
    assert all(
        place in PLACES.aois or place in (PLACES.home, PLACES.work) for place in found.places
    )
    orjson.dumps([found.intentions, found.places, found.repairs, found.warnings])
