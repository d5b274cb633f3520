"""A line of the benchmark authors' own results: what is let in can be scored, written again and
shown."""

from __future__ import annotations

import orjson

from harness.benchmarks.streamprofile import authors
from harness.benchmarks.streamprofile.benchmark import StreamProfile
from harness.benchmarks.tasks import parse
from harness.engine.play import rescored
from harness.errors import BadInput
from harness.model import Record, Where
from harness.scoring.scorer import Scorer

EXPECTED = (BadInput,)
TASK_LINE = orjson.dumps(
    {
        "user_id": "u",
        "platform": "weibo",
        "total_steps": 2,
        "prediction_tasks": [
            {
                "step_id": number,
                "posts_text": "[1] Content: 早\nTags: 猫",
                "candidate_pool": ["猫", "狗", "茶", "书"],
                "ground_truth": {"new_tags": ["狗"], "keep_tags": ["猫"]},
                "meta": {"D_decay": ["茶"]},
            }
            for number in (1, 2)
        ],
    }
)
SEEDS = [
    '{"user_id": "u", "platform": "weibo", "username": "猫", "steps": [{"step_id": 1, "prediction":'
    ' ["猫", 3], "ground_truth": ["狗"], "metrics": {"Recall": NaN}, "reasoning": "Error:'
    ' Connection", "persona_summary": ""}, {"step_id": 2, "prediction": [], "reasoning": "Error:'
    ' Expecting value (char 0)", "metrics": {}}]}'.encode(),
    '{"user_id": 7, "steps": [{"step_id": 2, "prediction": "猫"}]}'.encode(),
]
BENCHMARK = StreamProfile()
TASK = parse(BENCHMARK, TASK_LINE, Where("tasks", 1), "weibo")
SCORER = Scorer(BENCHMARK, "weibo")


def run(data: bytes) -> None:
    record = authors.record(data, Where("results", 1))
    orjson.dumps(record)
    again = orjson.loads(orjson.dumps(rescored(BENCHMARK, TASK, record)))
    SCORER.score([Record(str(again["user_id"]), again)])
    for task in (TASK, None):
        list(BENCHMARK.cards.card(again, task, ()))
