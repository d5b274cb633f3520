"""A run's manifest: what is let in can be compared, saved, and gives its sampling parameters
back."""

from __future__ import annotations

import orjson

from bench.fuzz import scratch
from harness.errors import BadInput, MachineError
from harness.model import Message, Request
from harness.options.plan import sampling_again
from harness.store.manifest import differences, load, same_identity

EXPECTED = (BadInput, MachineError)
GOOD = {
    "subset": "weibo",
    "identity": {
        "benchmark": "streamprofile",
        "prompt_version": "1",
        "model": "baseline/recency",
        "sampling": {
            "temperature": 0.0,
            "top_p": None,
            "seed": 1,
            "max_tokens": None,
            "extra_body": {"a": [1]},
        },
        "settings": {
            "prompt": "own",
            "persona": True,
            "structured": "json_object",
            "parse_retries": 2,
        },
        "files": {"prompt_own.txt": "0" * 64},
    },
    "provenance": {
        "endpoint": "embedded",
        "key_from": None,
        "source": None,
        "quirks": [],
        "headers": ["X-A"],
    },
    "tuning": {"concurrency": 16, "learned_limit": 3},
    "tasks": {
        "path": "tasks/weibo_inference_tasks.jsonl",
        "sha256": "0" * 64,
        "users": 12,
        "truth": "",
    },
    "selection": {"ratio": 1.0, "sample_seed": 42},
    "state": "complete",
    "counts": {"users": 12, "failed": 0},
    "times": {"created": "2025-01-01T00:00:00+00:00", "seconds": 0.5},
    "results_sha256": None,
    "format": 1,
}
SEEDS = [orjson.dumps(GOOD)]
PATH = scratch.file("run_weibo.json")
REQUEST = Request((Message("user", "x"),))


def run(data: bytes) -> None:
    made = load(scratch.written(PATH, data))
    assert made is not None
    made.save(PATH)
    assert load(PATH) == made
    sampling_again(made).encode(REQUEST)
    differences(made.identity, GOOD["identity"])  # type: ignore[arg-type]
    same_identity(made, made.identity, frozenset(), PATH)
    same_identity(made, GOOD["identity"], frozenset(), PATH)  # type: ignore[arg-type]
