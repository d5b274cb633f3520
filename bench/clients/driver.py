"""One command of the harness in a process of its own, with any engine: `python -m
bench.clients.driver [--turn MS] run ...`. Prints what `command` prints, and of worker processes
their turns and the bytes of lines that they reported.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import orjson

from bench.clients.command import measured

COUNTS = {"turns": 0, "bytes": 0}


def main(words: Sequence[str]) -> int:
    if words[0] == "--turn":
        count_turns(float(words[1]) / 1000.0)
        words = words[2:]
    code, done = measured(list(words))
    if code == 0:
        print(orjson.dumps(done | COUNTS).decode())
    return code


def count_turns(seconds: float) -> None:
    """Have turns of so many seconds, and count them."""
    from harness.extensions.ray import (
        cluster,
        crew,
    )  # imported here, so that `local` does not pay for Ray
    from harness.extensions.ray.messages import SentPart, TurnOrder, TurnReport

    class Counted(cluster.RayWorker):
        async def turn(self, part: SentPart | None, order: TurnOrder) -> TurnReport:
            report = await super().turn(part, order)
            COUNTS["turns"] += 1
            COUNTS["bytes"] += sum(map(len, report.logs.values()))
            return report

    cluster.RayWorker = Counted  # type: ignore[misc]
    crew.TURN_SECONDS = seconds


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
