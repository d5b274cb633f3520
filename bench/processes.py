"""The harness and the endpoint of its tests as processes, for campaigns and measurements."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import orjson

ROOT = Path(__file__).parents[1]
HARNESS = (sys.executable, "-m", "harness")
ENDPOINT = (sys.executable, "-m", "tests.support.endpoint_double")
"""To be started in `ROOT`."""


def endpoint(*options: str) -> AbstractContextManager[str]:
    """Start an endpoint's process on a free port; yield its address and end it by its id."""
    return _listening([*ENDPOINT, "--port", "0", *options])


def fast_endpoint(*options: str) -> AbstractContextManager[str]:
    """Do the same with a `bench.fast_endpoint` process."""
    return _listening([sys.executable, "-m", "bench.fast_endpoint", *options])


@contextmanager
def _listening(command: list[str]) -> Iterator[str]:
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            found = re.search(r"listening on (\S+)", line)
            if found is None:
                raise RuntimeError(f"the endpoint did not start: {line!r}")
            yield found[1]
        finally:
            process.terminate()


def stats(url: str) -> dict[str, Any]:
    """Return what the endpoint has seen so far."""
    with urlopen(url.removesuffix("/v1") + "/stats", timeout=10) as reply:
        seen: dict[str, Any] = orjson.loads(reply.read())
    return seen


def run_command(
    url: str, tasks: Path, results: Path, *options: str, model: str = "baseline/recency"
) -> list[str]:
    """`run` against an endpoint's process. The model is sent under its own name to an address like
    any other."""
    return [
        *HARNESS,
        "run",
        "--model",
        model,
        "--api-url",
        url,
        "--tasks-dir",
        str(tasks),
        "--results-dir",
        str(results),
        *options,
    ]


def synthesise(folder: Path, *options: str) -> None:
    subprocess.run(
        [*HARNESS, "synth", "--out", str(folder), *options], check=True, stdout=subprocess.DEVNULL
    )
