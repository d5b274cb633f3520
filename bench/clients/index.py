"""One pass over a tasks file: the harness's index (`index FILE RESULTS`) or orjson and nothing else
(`orjson FILE`).

Prints a JSON object: lines, CPU and wall seconds without imports, and the most memory held, in MB.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import orjson

from bench.machine import peak_mb
from harness.benchmarks.streamprofile.benchmark import StreamProfile
from harness.engine.files import index_file


def parsed(path: Path) -> int:
    """Load each line, as a program that does nothing else with it would."""
    count = 0
    with path.open("rb", buffering=1 << 20) as lines:
        for line in lines:
            orjson.loads(line)
            count += 1
    return count


def indexed(path: Path, results: Path) -> int:
    index = index_file(StreamProfile(), path.name.partition("_")[0], path, results)
    index.close()
    return len(index)


def main() -> int:
    what, path, *folder = sys.argv[1:]
    cpu, wall = time.process_time(), time.perf_counter()
    lines = indexed(Path(path), Path(folder[0])) if what == "index" else parsed(Path(path))
    done = {
        "cpu": time.process_time() - cpu,
        "wall": time.perf_counter() - wall,
        "peak_mb": peak_mb(),
    }
    print(json.dumps({"lines": lines, **done}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
