"""A cluster of Ray with several raylets on this machine, as processes whose ids are known.

A process of its own starts it: Ray sets signal handlers, and leaves threads behind.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from tests.support.processes import descendants, words_of

PATIENCE = 250.0
"""Seconds that raylets may take to start on a busy machine."""
STORE_BYTES = 80_000_000
"""Of an object store: about the least that Ray accepts."""

SETTINGS = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_prestart_worker_first_driver": "0"}
"""Nothing is reported to anyone, and no process is started that no actor takes."""


@dataclass(frozen=True, slots=True)
class Raylets:
    """`head` and `raylets` are process ids; `folder` has the logs of all. `starter` is their
    parent. `add` starts another raylet with so many CPUs, whose processes have these environment
    variables too."""

    address: str
    head: int
    raylets: tuple[int, ...]
    folder: Path
    starter: int
    add: Callable[[int, dict[str, str]], None]

    def all(self) -> list[int]:
        """Return the ids of those that run now, also of added ones."""
        return [
            process
            for process in descendants(self.starter)
            if b"/raylet/raylet\0" in words_of(process)
        ]


@contextmanager
def cluster(*cpus: int, **settings: str) -> Iterator[Raylets]:
    """Start a raylet for each number of CPUs; the first is with the head. `settings` are
    environment variables."""
    with tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as folder:
        command = [sys.executable, "-m", "tests.extensions.ray.raylets", *map(str, cpus)]
        settings |= {"RAY_TMPDIR": folder}  # also for the file with the address of the last cluster
        pipes: Any = {
            "stdin": subprocess.PIPE,
            "stdout": subprocess.PIPE,
            "stderr": subprocess.DEVNULL,
        }
        with subprocess.Popen(
            command, env={**os.environ, **SETTINGS, **settings}, **pipes
        ) as process:
            assert process.stdin and process.stdout
            try:
                found = orjson.loads(process.stdout.readline())
                orders = process.stdin

                def add(cpus: int, variables: dict[str, str]) -> None:
                    orders.write(orjson.dumps([cpus, variables]) + b"\n")
                    orders.flush()

                yield Raylets(
                    found["address"],
                    found["head"],
                    tuple(found["raylets"]),
                    Path(folder),
                    process.pid,
                    add,
                )
            finally:
                process.stdin.close()


JOBS = (
    "import sys; from ray._raylet import GcsClient;"
    " print(GcsClient(address=sys.argv[1]).get_all_job_info())"
)


def jobs(raylets: Raylets) -> bytes:
    """Return what the cluster's head keeps of its jobs, as text."""
    return subprocess.run(
        [sys.executable, "-c", JOBS, raylets.address], check=True, capture_output=True
    ).stdout


def _serve(cpus: list[int]) -> None:
    """Start the cluster, print what it is, and end it with the standard input."""
    from ray._private.ray_constants import PROCESS_TYPE_GCS_SERVER, PROCESS_TYPE_RAYLET
    from ray.cluster_utils import Cluster

    own, options = Cluster(), {"object_store_memory": STORE_BYTES, "include_log_monitor": False}
    for number, count in enumerate(cpus):
        first = {"include_dashboard": False, "no_monitor": True} if number == 0 else {}
        own.add_node(wait=False, num_cpus=count, **options, **first)
    own.wait_for_nodes(PATIENCE)
    nodes = own.list_all_nodes()
    raylets = [node.all_processes[PROCESS_TYPE_RAYLET][0].process.pid for node in nodes]
    head = nodes[0].all_processes[PROCESS_TYPE_GCS_SERVER][0].process.pid
    print(
        orjson.dumps({"address": own.address, "head": head, "raylets": raylets}).decode(),
        flush=True,
    )
    for line in sys.stdin:
        count, variables = orjson.loads(line)
        os.environ |= variables
        own.add_node(wait=False, num_cpus=count, **options)
    for process in descendants(
        os.getpid()
    ):  # `Cluster.shutdown` would wait minutes for a head that is lost
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)


if __name__ == "__main__":
    _serve([int(word) for word in sys.argv[1:]])
