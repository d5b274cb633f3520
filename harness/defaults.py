"""A run's configuration in its three parts (docs/design.md, section 5), and the one place for defaults."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path

TASKS_FOLDER, RESULTS_FOLDER = Path("tasks"), Path("results")
INDEX_FOLDER, EXCEL_FOLDER, ALL_RUNS_PAGE = ".index", "metric_excels", "index.html"
"""What the results folder holds of its own, next to the folders of runs."""
OWN_ENDINGS = re.compile(r"\.(?:(?:new|lock|torn)\Z|before-)")
"""How the names of files end that are about to take a place, or that have left it; so do those of the results folder's
own files."""
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
STALL_SECONDS = 120.0
"""Between two pieces of a streamed reply; a model that thinks streams its thoughts, or the server sends keep-alives."""

AUTO = "auto"
STREAMS = (AUTO, "on", "off")
STREAM = AUTO
RETRIES_MOST = 1000
CONCURRENCY_MOST, SECONDS_MOST = 100_000, 365 * 24 * 3600.0
BITS_64 = 2**63
"""Beyond this and below its negative, no JSON parser can be trusted with a whole number."""

GRACE_SECONDS = 10.0
"""How long requests on the wire may still answer after the run was asked to stop."""

SHARD_USERS = 256
BYTES_PER_STEP = 6 * 1024
"""What a step takes on the disk, about: responses and results together."""

BASELINE_PREFIX = "baseline/"
EMBEDDED = "embedded"
"""What files name as the endpoint of baselines that the harness serves to itself."""

OPENAI_URL = "https://api.openai.com/v1"


AUTO_START, AUTO_FLOOR, AUTO_CEILING = 16, 1, 1024
"""Requests at once that `--concurrency auto` begins with, and between which it stays."""

OTHER_FILES = 64
"""Open files that a run needs in addition to its connections, about."""

MAX_OUTAGE_SECONDS = 15 * 60.0

GC_THRESHOLD = (50_000, 50, 50)
"""For the length of a run: thousands of live requests make the default's many collections cost a sixth of the CPU."""


@dataclass(frozen=True, slots=True)
class Tuning:
    """What may change between a run and its resume. Times in seconds.

    `concurrency` is None where it is to be found out, beginning with `start`, between `floor` and `ceiling`.
    `rpm` and `tpm` are requests and tokens a minute, None for no limit. `stream` is `on`, `off`, or `auto`: where an
    endpoint answers in streams only.
    """

    concurrency: int | None = CONCURRENCY
    start: int = AUTO_START
    floor: int = AUTO_FLOOR
    ceiling: int = AUTO_CEILING
    rpm: float | None = None
    tpm: float | None = None
    timeout: float = TIMEOUT_SECONDS
    stall: float = STALL_SECONDS
    stream: str = STREAM
    max_retries: int = MAX_RETRIES
    max_outage: float = MAX_OUTAGE_SECONDS
    durability: str = DURABILITY

    @property
    def most(self) -> int:
        """Requests that can be on the wire at once."""
        return self.ceiling if self.concurrency is None else self.concurrency

    def combined(self, other: Tuning) -> Tuning:
        """Both on one account: the lower of each limit that shares its slots."""
        numbers = [each.concurrency for each in (self, other) if each.concurrency is not None]
        return replace(
            self,
            concurrency=min(numbers, default=None),
            start=min(self.start, other.start),
            floor=min(self.floor, other.floor),
            ceiling=min(self.ceiling, other.ceiling),
            rpm=min([each.rpm for each in (self, other) if each.rpm is not None], default=None),
            tpm=min([each.tpm for each in (self, other) if each.tpm is not None], default=None),
        )
