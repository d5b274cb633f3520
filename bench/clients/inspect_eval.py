"""inspect_ai: the same prompts as samples of one task, scored by a trivial scorer, as its users run it."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from pathlib import Path

from inspect_ai import Task, eval
from inspect_ai.dataset import MemoryDataset, Sample
from inspect_ai.model import ChatMessageSystem, ChatMessageUser, GenerateConfig
from inspect_ai.scorer import includes
from inspect_ai.solver import generate


def sample(line: bytes) -> Sample:
    system, user = json.loads(line)["messages"]
    messages = [ChatMessageSystem(content=system["content"]), ChatMessageUser(content=user["content"])]
    return Sample(input=messages, target="persona_summary")


def main() -> int:
    url, path, in_flight = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    os.environ.update(OPENAI_API_KEY="none", OPENAI_BASE_URL=url)
    samples = [sample(line) for line in path.read_bytes().splitlines()]
    task = Task(dataset=MemoryDataset(samples), solver=generate(), scorer=includes())
    with tempfile.TemporaryDirectory() as logs:
        cpu, wall = time.process_time(), time.perf_counter()
        (log,) = eval(
            task,
            model="openai/gpt-4o-mini",
            model_args={"responses_api": False},
            config=GenerateConfig(temperature=0, max_connections=in_flight),
            max_samples=in_flight,
            display="none",
            log_dir=logs,
        )
        done = {"cpu": time.process_time() - cpu, "wall": time.perf_counter() - wall}
    print(json.dumps({"requests": len(log.samples or []), **done}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
