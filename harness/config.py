"""A run's configuration in its three parts (docs/design.md, section 5), and the one place for defaults."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

TASKS_FOLDER, RESULTS_FOLDER = Path("tasks"), Path("results")
SAMPLE_FOLDER = Path(__file__).resolve().parent.parent / "tasks" / "sample"
"""The synthetic tasks that ship with a checkout."""

BENCHMARK = "streamprofile"
CONCURRENCY = 16
TIMEOUT_SECONDS = 600.0
MAX_RETRIES = 8
PARSE_RETRIES = 2
TEMPERATURE = 0.0
SAMPLE_SEED = 42
DURABILITY = "process"
GRACE_SECONDS = 10.0
"""How long requests on the wire may still answer after the run was asked to stop."""

SHARD_USERS = 256
BYTES_PER_STEP = 6 * 1024
"""What a step takes on the disk, about: responses and results together."""

BASELINE_PREFIX = "baseline/"
EMBEDDED = "embedded"
"""What files name as the endpoint of baselines that the harness serves to itself."""

OPENAI_URL = "https://api.openai.com/v1"


@dataclass(frozen=True, slots=True)
class Tuning:
    """What may change between a run and its resume. Times in seconds."""

    concurrency: int = CONCURRENCY
    timeout: float = TIMEOUT_SECONDS
    max_retries: int = MAX_RETRIES
    durability: str = DURABILITY
