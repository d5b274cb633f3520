"""Play users in worker processes, on one machine or on many (`--engine ray`; docs/scale.md).

The driver decides and saves, a worker plays and sends. A request needs a slot that the driver has leased to its user or
granted to it, and the driver makes the tries after a failed one itself, so that one limit, one rate and one outage hold
over all workers; and a play goes on only once its reply is in the driver's files. So a worker can
be lost at any moment: its users are played again elsewhere from their saved replies.

    messages   what both send each other
    player     a worker: benchmarks, event loop and connections; knows no driver and no Ray
    crew       the driver's side of all workers
    shipping   a benchmark with its files, for a machine that has none of them
    engine     the extension: lanes whose users workers play
    cluster    starts workers as actors of Ray
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from harness.feature import PLAYING, Feature
from harness.option import number, option, whole

LOCAL, RAY = "local", "ray"
"""Engines."""
WORKERS_MOST = 10_000
GROUP = "engine (free to change on resume)"


@dataclass(frozen=True)
class Ray:
    """What plays users, such as `Ray(engine="ray", workers=4)`."""

    engine: Literal["local", "ray"] = option(LOCAL, "what plays users (default: local, this process)", group=GROUP)
    ray_address: str | None = option(
        None,
        "a running Ray cluster, such as `auto` or HOST:6379 (default: start one on this machine)",
        unit="ADDR",
        group=GROUP,
    )
    workers: int | None = option(
        None, "worker processes (default: one for each free CPU)", check=whole(1, WORKERS_MOST), group=GROUP
    )
    turn: float | None = option(
        None,
        "milliseconds between two exchanges with a worker (default: follows the latency)",
        unit="MS",
        check=number(lambda value: 1 <= value <= 1000, "milliseconds from 1 to 1000"),
        group=GROUP,
    )


def of_workers(args: Ray) -> list[str]:
    """Return the options of workers that a command has."""
    given = {"--ray-address": args.ray_address, "--workers": args.workers, "--turn": args.turn}
    return [flag for flag, value in given.items() if value is not None]


FEATURE = Feature(
    "ray",
    options={Ray: PLAYING},
    extension="harness.features.ray.engine:Workers",
)
