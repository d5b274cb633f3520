"""One command of the harness in a process of its own, with any engine; prints what `command` prints, and of worker
processes their turns and the bytes of both directions."""

from __future__ import annotations

import sys

import orjson

from bench.clients.command import measured

COUNTS = {"turns": 0, "bytes": 0}


def main() -> int:
    if "ray" in sys.argv:
        count_turns()
    code, done = measured(sys.argv[1:])
    if code == 0:
        print(orjson.dumps(done | COUNTS).decode())
    return code


def count_turns() -> None:
    from harness.features.ray import cluster  # imported here, so that `local` does not pay for Ray

    class Counted(cluster.RayWorker):
        async def turn(self, sent: bytes, seconds: float) -> bytes:
            answer = await super().turn(sent, seconds)
            COUNTS["turns"] += 1
            COUNTS["bytes"] += len(sent) + len(answer)
            return answer

    cluster.RayWorker = Counted  # type: ignore[misc]


if __name__ == "__main__":
    sys.exit(main())
