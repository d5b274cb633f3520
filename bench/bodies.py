"""The request bodies of a tasks file, as the harness sends them when every reply is the fast
endpoint's."""

from __future__ import annotations

from pathlib import Path

from bench.fast_endpoint import TEXT
from harness.benchmarks.streamprofile.benchmark import StreamProfile
from harness.benchmarks.tasks import parse
from harness.client.request_body import Sampling
from harness.engine.play import play
from harness.model import Completion, Request, Where

PLATFORM = "weibo"
MODEL = "fast"


def write_bodies(tasks: Path, out: Path) -> int:
    """Write a body a line and return their number. JSON bodies hold no line ends of their own."""
    benchmark, sampling = StreamProfile(), Sampling(MODEL)
    written = 0
    with tasks.open("rb") as lines, out.open("wb") as file:

        async def ask(request: Request) -> Completion:
            nonlocal written
            file.write(sampling.encode(request) + b"\n")
            written += 1
            return Completion(TEXT)

        for number, line in enumerate(lines, 1):
            task = parse(benchmark, line, Where(tasks.name, number), PLATFORM)
            try:
                play(benchmark, task, ask).send(None)
            except StopIteration:
                continue
            raise AssertionError("a play that is answered at once has nothing to wait for")
    return written
