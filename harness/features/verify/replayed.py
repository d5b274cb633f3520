"""Play users again from their saved responses, and compare the records that were made of these."""

from __future__ import annotations

import asyncio
import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from harness.analysis.saved_runs import SavedRun
from harness.benchmark import Benchmark, kept_files
from harness.benchmarks.records import ODD_SHAPE
from harness.endpoint.request_body import Sampling
from harness.engine.play import play, recorded
from harness.engine.replay import ReplayMiss, replaying
from harness.errors import BadInput, BenchmarkError
from harness.features.verify.checksums import kept
from harness.model import JSON, Completion, Usage
from harness.store.run import numbered

MISSHAPEN = (BadInput, BenchmarkError, *ODD_SHAPE)
"""Errors of a line that has a correct checksum but is not ours."""

AGREE = 1e-12
"""Two machines add up the same numbers to within this share of the sum."""


def benchmark_of(run: SavedRun, folder: Path | None) -> tuple[Benchmark, str | None]:
    """Return the benchmark of a run, and why its records cannot be replayed from the saved responses, if so."""
    was, why = run.manifest.identity, None
    if run.has_code:
        why = "playing them again would run the run's own code"
    elif any(path != run.files.folder / name for name, path in kept(run).items()):
        why = "its prompt is not in the folder"
    made = run.as_it_was(folder, play=why is None)
    if why is None:
        now = {name: hashlib.sha256(data).hexdigest() for name, data in kept_files(made).items()}
        if was.get("prompt_version") != made.version or was["files"] != now:
            why = "its prompt has changed"
        elif run.manifest.provenance.get("parser_version") != made.about.parser_version:
            why = "the parser has changed"
        elif run.manifest.provenance.get("allowed"):
            why = "it was resumed with other settings"
    return made, why and f"records were compared with the saved responses by their counts alone: {why}"


@dataclass(frozen=True, slots=True)
class Replayer:
    """Plays users again from their saved responses."""

    benchmark: Benchmark
    sampling: Sampling
    loop: asyncio.Runner

    def wrong(self, task: Any, data: JSON, saved: Mapping[tuple[str, int], Completion], repeat: int) -> str | None:
        """Return how a record differs from what the responses give, None if it does not."""
        conversation = replaying(self.sampling.of_repeat(repeat), saved)
        try:
            made = recorded(self.benchmark, task, self.loop.run(play(self.benchmark, task, conversation.ask, repeat)))
        except ReplayMiss:
            return "was made of a missing response"
        ours = {"task", "format", *numbered(repeat)}
        found = {name: value for name, value in data.items() if name not in ours}
        name = unlike(found, orjson.loads(orjson.dumps(made)))
        return None if name is None else f"is not what the saved responses give ({name} differs)"


def counted(data: JSON, saved: Mapping[tuple[str, int], Completion]) -> str | None:
    """Return what is wrong without playing: the number of responses, and their tokens if none is unused."""
    usage, whole = data["usage"], Usage()
    if len(saved) < usage["requests"]:
        return f"was made of {usage['requests']} responses, and {len(saved)} of them are there"
    for completion in saved.values():
        whole = whole.plus(completion)
    spare = len(saved) > usage["requests"]
    return None if spare or whole.data == usage else "has other tokens than its saved responses"


def unlike(found: Any, expected: Any, name: str = "") -> str | None:
    """Return the dotted name of the first value that differs, None if all agree; fractions to within `AGREE`."""
    if isinstance(found, dict) and isinstance(expected, dict):
        pairs = [(str(key), found.get(key, ...), expected.get(key, ...)) for key in {**expected, **found}]
    elif isinstance(found, list) and isinstance(expected, list) and len(found) == len(expected):
        pairs = [(str(at), *pair) for at, pair in enumerate(zip(found, expected, strict=True))]
    elif isinstance(found, float) and isinstance(expected, float):
        return None if math.isclose(found, expected, rel_tol=AGREE, abs_tol=AGREE) else name
    else:
        return None if type(found) is type(expected) and found == expected else name or "all of it"
    within = (unlike(one, other, f"{name}.{key}" if name else key) for key, one, other in pairs)
    return next((one for one in within if one is not None), None)
