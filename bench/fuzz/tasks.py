"""A line of StreamProfileBench's tasks: what is let in can be prompted, played, measured, scored
and written."""

from __future__ import annotations

from itertools import islice
from typing import Any

import orjson

from harness.benchmark import Task
from harness.benchmarks.streamprofile.benchmark import StreamProfile
from harness.benchmarks.streamprofile.synth import generate
from harness.benchmarks.tasks import parse
from harness.client.request_body import Sampling
from harness.engine.play import Played, play, recorded, rescored
from harness.errors import BadInput
from harness.model import Completion, Record, Request, Where
from harness.scoring.scorer import Scorer

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
BENCHMARK = StreamProfile()
SAMPLING = Sampling("m")
REPLY = Completion('{"predicted_tags": ["猫", "狗"], "persona_summary": "爱猫", "reasoning": ""}')
SCORER = Scorer(BENCHMARK, "weibo")


def run(data: bytes) -> None:
    task = parse(BENCHMARK, data, Where("tasks", 1), "weibo")
    record = recorded(BENCHMARK, task, _played(task))
    written: dict[str, Any] = orjson.loads(orjson.dumps(record))
    assert orjson.loads(orjson.dumps(rescored(BENCHMARK, task, written))) == written
    SCORER.score([Record(task.key, written)])


def _played(task: Task) -> Played:
    async def ask(request: Request) -> Completion:
        SAMPLING.encode(request)
        return REPLY

    try:
        play(BENCHMARK, task, ask).send(None)
    except StopIteration as done:
        found: Played = done.value
        return found
    raise AssertionError("a play that is answered at once has nothing to wait for")
