"""A line of StreamProfileBench's tasks: what `check` lets in can be prompted, played, measured, scored and written."""

from __future__ import annotations

from itertools import islice
from typing import Any

import orjson

from harness.benchmarks.streamprofile.benchmark import StreamProfile, configure
from harness.benchmarks.streamprofile.synth import generate
from harness.endpoint.wire import Sampling
from harness.errors import BadInput
from harness.model import Completion, Record, Request, Where

EXPECTED = (BadInput,)
SEEDS = [line.strip() for line in islice(generate("weibo", 3, 1, 2.0), 3) if len(line) < 8000]
SEEDS.append(
    orjson.dumps(
        {
            "user_id": 1,
            "platform": "WeiBo",
            "total_steps": 1,
            "prediction_tasks": [
                {
                    "step_id": 1,
                    "posts_text": "[1] Content: 早\nTags: 猫",
                    "candidate_pool": ["猫", "狗", "茶", "书"],
                    "ground_truth": {"new_tags": ["狗"], "keep_tags": ["猫"]},
                }
            ],
        }
    )
)
BENCHMARK: StreamProfile = configure()
SAMPLING = Sampling("m")
REPLY = Completion('{"predicted_tags": ["猫", "狗"], "persona_summary": "爱猫", "reasoning": ""}')
SCORER = BENCHMARK.scorer("weibo")


def run(data: bytes) -> None:
    key, steps = BENCHMARK.check(data, Where("tasks", 1), "weibo")
    task = BENCHMARK.load(data, "weibo")
    assert (task.key, BENCHMARK.steps(task)) == (key, steps)
    answer = _played(task)
    record = BENCHMARK.record(task, answer, BENCHMARK.measure(task, answer))
    written: dict[str, Any] = orjson.loads(orjson.dumps(record))
    assert orjson.loads(orjson.dumps(BENCHMARK.rescore(task, written))) == written
    SCORER.score([Record(key, written)])


def _played(task: Any) -> Any:
    async def ask(request: Request) -> Completion:
        SAMPLING.encode(request)
        return REPLY

    try:
        BENCHMARK.play(task, ask).send(None)
    except StopIteration as done:
        return done.value
    raise AssertionError("a play that is answered at once has nothing to wait for")
