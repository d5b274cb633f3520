"""A run's configuration in its three parts (docs/design.md, section 5), and the one place for
defaults."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from harness.errors import BadInput

TASKS_FOLDER, RESULTS_FOLDER = Path("tasks"), Path("results")
INDEX_FOLDER, EXCEL_FOLDER, ALL_RUNS_PAGE = ".index", "metric_excels", "index.html"
"""In the results folder, next to the folders of runs."""
OWN_ENDINGS = re.compile(r"\.(?:(?:new|lock|torn)\Z|before-)")
"""Endings of files that are about to replace another, or were replaced; the results folder's own
files have them, too."""
SAMPLE_FOLDER = Path(__file__).resolve().parent / "sample"
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
"""Between two pieces of a streamed reply; a thinking model streams its thoughts, or the server
sends keep-alives."""

AUTO = "auto"
STREAMS = (AUTO, "on", "off")
STREAM = AUTO
RETRIES_MOST, REPEATS_MOST = 1000, 100
CONCURRENCY_MOST, SECONDS_MOST = 100_000, 365 * 24 * 3600.0
BITS_64 = 2**63
"""No JSON parser can be trusted with a whole number from this, or below its negative."""

GRACE_SECONDS = 10.0
"""How long requests in flight may still be answered after a signal asked the run to stop."""

SHARD_USERS = 256
BYTES_PER_STEP = 6 * 1024
"""Approximate disk space of a step: responses and results together."""

BASELINE_PREFIX = "baseline/"
EMBEDDED = "embedded"
"""The endpoint, in files, of baselines that the harness answers itself."""

OPENAI_URL = "https://api.openai.com/v1"

AUTO_START, AUTO_FLOOR, AUTO_CEILING = 16, 1, 1024
"""Requests in flight that `--concurrency auto` starts with, and its lowest and highest limit."""

OTHER_FILES = 64
"""Open files that a run needs in addition to its connections, approximately."""

MAX_OUTAGE_SECONDS = 15 * 60.0

GC_THRESHOLD = (50_000, 50, 50)
"""For the length of a command: the default's many collections cost a seventh of the CPU of the
imports, and with thousands of live requests a sixth of a run's. Objects from before the requests
are frozen, too."""


@dataclass(frozen=True, slots=True)
class RunTuning:
    """Options that may change between a run and its resume. Times in seconds.

    `concurrency` None is automatic: from `start`, between `floor` and `ceiling`. `rpm` and `tpm`
    are requests and tokens a minute, None for no limit. `wait` is how long the first answer may
    take. `stream` is `on`, `off`, or `auto`: only for an endpoint that answers in streams only.
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
    wait: float = 0.0
    durability: str = DURABILITY

    @property
    def most(self) -> int:
        """Return how many requests can be in flight at once."""
        return self.ceiling if self.concurrency is None else self.concurrency

    def shared(self, number: int, parts: int) -> RunTuning:
        """Return the tuning of one of so many parts, from 1, whose limits add up to these. Raise
        `BadInput` if a part would have no request."""
        if self.most < parts:
            option = "--auto-ceiling" if self.concurrency is None else "--concurrency"
            raise BadInput(
                f"{self.most} requests in flight leave none to some of {parts} parts: {option} is"
                " the whole"
            )
        shares: dict[str, Any] = {}
        for name in ("concurrency", "start", "floor", "ceiling"):
            limit = getattr(self, name)
            if limit is not None:
                # The first parts take what cannot be divided.
                # The limit in flight is enough for all parts; `start` and `floor` may be less than
                # one for each.
                shares[name] = max(1, limit // parts + (number <= limit % parts))
        # A rate can be divided, a request cannot.
        for name in ("rpm", "tpm"):
            rate = getattr(self, name)
            if rate is not None:
                shares[name] = rate / parts
        return replace(self, **shares)

    def combined(self, other: RunTuning) -> RunTuning:
        """Return this tuning with the lower one of each limit of an account that two runs share."""
        # Two runs on one account share its limits, so the lower one protects both.
        lower: dict[str, Any] = {}
        for name in ("concurrency", "start", "floor", "ceiling", "rpm", "tpm"):
            limits = getattr(self, name), getattr(other, name)
            lower[name] = min((limit for limit in limits if limit is not None), default=None)
        return replace(self, **lower)


def ships(path: str) -> bool:
    """Return whether a tasks file is one of the synthetic ones that ship, also with an installation
    elsewhere."""
    return "/".join(SAMPLE_FOLDER.parts[-2:]) in path
