"""inspect_ai: the same prompts as samples of one task, scored by a trivial scorer, as its users run
it."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path

from inspect_ai import Task, eval
from inspect_ai.dataset import MemoryDataset, Sample
from inspect_ai.model import ChatMessageSystem, ChatMessageUser
from inspect_ai.scorer import includes
from inspect_ai.solver import generate

WARM_UP = 8


def sample(line: bytes) -> Sample:
    system, user = json.loads(line)["messages"]
    messages = [
        ChatMessageSystem(content=system["content"]),
        ChatMessageUser(content=user["content"]),
    ]
    return Sample(input=messages, target="persona_summary")


def evaluate(samples: list[Sample], in_flight: int) -> int:
    """Return how many samples were completed; their log goes away with its folder."""
    task = Task(dataset=MemoryDataset(samples), solver=generate(), scorer=includes())
    with tempfile.TemporaryDirectory() as logs:
        (log,) = eval(
            task,
            model="openai/gpt-4o-mini",
            model_args={"responses_api": False},
            temperature=0,
            max_connections=in_flight,
            max_samples=in_flight,
            display="none",
            log_dir=logs,
        )
    if log.status != "success" or log.results is None:
        raise SystemExit(f"the evaluation ended as {log.status}: {log.error}")
    return log.results.completed_samples


def main() -> int:
    url, path, in_flight = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    os.environ.update(OPENAI_API_KEY="none", OPENAI_BASE_URL=url)
    lines = path.read_bytes().splitlines()
    evaluate([sample(line) for line in lines[:WARM_UP]], in_flight)
    samples = [sample(line) for line in lines]
    cpu, wall = time.process_time(), time.perf_counter()
    completed = evaluate(samples, in_flight)
    done = {
        "cpu": time.process_time() - cpu,
        "wall": time.perf_counter() - wall,
        "version": version("inspect_ai"),
    }
    print(json.dumps({"requests": completed, **done}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
