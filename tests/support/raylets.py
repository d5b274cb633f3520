"""A cluster of Ray with several raylets on this machine, as processes whose ids are known.

Ray itself is imported by a process of its own: it sets signal handlers, and leaves threads behind.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import orjson

STORE_BYTES = 80_000_000
"""Of an object store: about the least that Ray accepts."""


@dataclass(frozen=True, slots=True)
class Raylets:
    """`gcs` and `raylets` are process ids; `folder` has the logs of all."""

    address: str
    gcs: int
    raylets: tuple[int, ...]
    folder: str


@contextmanager
def cluster(cpus: list[int]) -> Iterator[Raylets]:
    """Start a raylet for each number of CPUs; the first is with the head."""
    with tempfile.TemporaryDirectory(prefix="ray", ignore_cleanup_errors=True) as folder:
        command = [sys.executable, "-m", "tests.support.raylets", folder, *map(str, cpus)]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        with subprocess.Popen(command, **pipes) as process:  # type: ignore[call-overload]
            found = orjson.loads(process.stdout.readline())
            yield Raylets(found["address"], found["gcs"], tuple(found["raylets"]), folder)
            process.stdin.close()


def _serve(folder: str, cpus: list[int]) -> None:
    """Start the cluster, print what it is, and end it with the standard input."""
    from ray._private import ray_constants
    from ray.cluster_utils import Cluster

    shown, sys.stdout = sys.stdout, sys.stderr
    own = Cluster()
    for number, count in enumerate(cpus):
        head = {"include_dashboard": False, "temp_dir": folder} if number == 0 else {}
        own.add_node(num_cpus=count, object_store_memory=STORE_BYTES, **head)
    nodes = own.list_all_nodes()
    pids = [node.all_processes[ray_constants.PROCESS_TYPE_RAYLET][0].process.pid for node in nodes]
    gcs = nodes[0].all_processes[ray_constants.PROCESS_TYPE_GCS_SERVER][0].process.pid
    print(orjson.dumps({"address": own.address, "gcs": gcs, "raylets": pids}).decode(), file=shown, flush=True)
    sys.stdin.read()
    own.shutdown()


if __name__ == "__main__":
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    _serve(sys.argv[1], [int(word) for word in sys.argv[2:]])
