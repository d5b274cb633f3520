"""A model's reply to StreamProfileBench: read one way only, and what is read can be written and
asked about again.

What the repair of broken JSON does with it is watched by the target `repairs`, which takes its
time.
"""

from __future__ import annotations

from zlib import crc32

import orjson

from harness.benchmarks.streamprofile.reply import StepAnswer, read
from harness.errors import InvalidReply
from harness.model import Completion

EXPECTED = ()
SEEDS = [
    '{"persona_summary": "爱猫", "predicted_tags": ["猫", "狗"], "reasoning": "因为"}'.encode(),
    '<think>想一想 {"a": 1}</think>\n```json\n{"predicted_tags": "猫、狗", "persona_summary": {"a":'
    " 1}}\n```".encode(),
    "好的：{'predicted_tags': [{'tag': '猫'}, 3, null, '狗',], persona_summary: \"x".encode(),
    b'{"predicted_tags": ["\\ud83d", "a"], "reasoning": ["\\ud800"]}',
    b'[{"predicted_tags": []}]',
]
MOST_BYTES = 320
"""The time of a repair grows with length times marks."""

READ_TWICE = 8
"""One input in so many is read a second time."""

POOL = ("猫", "狗", "a,b")


def run(data: bytes) -> None:
    completion = Completion(
        data.decode("utf-8", "surrogateescape" if data[-1:] == b"!" else "replace")
    )
    found = _read(completion)
    if crc32(data) % READ_TWICE == 0:
        assert found == _read(completion)
    if isinstance(found, tuple):
        found[1].encode()
        return
    orjson.dumps([found.persona, found.tags, found.reasoning, found.repairs])
    assert len(set(found.tags)) == len(found.tags)


def _read(completion: Completion) -> StepAnswer | tuple[str, str, bool]:
    """Return the reading, or kind, reason and finality of a reply that cannot be used."""
    try:
        return read(completion, POOL)
    except InvalidReply as error:
        return error.kind, error.why, error.final
