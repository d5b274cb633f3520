"""Broken JSON in a model's reply: repaired the same way each time, or given up. The repair's own
branches count too."""

from __future__ import annotations

from harness.benchmarks.parsing import json_object
from harness.errors import InvalidReply
from harness.model import Completion

EXPECTED = (InvalidReply,)
SEEDS = [
    "{'tags': [{'a': '猫'}, 3, null, '狗',], b: \"x".encode(),
    b'{"a": "say "x", y", "b": 1.5e, // c\n"c": tru',
    b'{"a": [1, 2 "b": {"c": "d}',
    b'{"a": \xe2\x80\x9cx\xe2\x80\x9d, "b" "c"}',
    b'{"a": "```json\\n{}```", /* b */ "c": ("d", .5)',
]
MOST_BYTES = 64
"""Twenty microseconds each."""


def run(data: bytes) -> None:
    completion = Completion(
        data.decode("utf-8", "surrogateescape" if data[-1:] == b"!" else "replace")
    )
    repairs: list[str] = []
    assert type(json_object(completion, repairs)) is dict
