"""Play users in worker processes, on one machine or on many (`--engine ray`; docs/scale.md).

The driver decides and saves, a worker plays and sends. A request needs a slot that the driver has leased to its user,
or else a `Send` for each try, so that one limit, one rate and one outage hold over all workers; and a play goes on only
once its reply is in the driver's files.
So a worker can be lost at any moment: its users are played again elsewhere from their saved replies.

    messages   what both send each other
    player     a worker: benchmarks, event loop and connections; knows no driver and no Ray
    crew       the driver's side of all workers
    shipping   a benchmark with its files, for a machine that has none of them
    engine     the extension: lanes whose users workers play
    cluster    starts workers as actors of Ray
"""

from __future__ import annotations

import argparse

from harness.config import options
from harness.feature import PLAYING, Feature, Threat

LOCAL, RAY = "local", "ray"
"""Engines."""
WORKERS_MOST = 10_000


def _options(command: str, parser: argparse.ArgumentParser) -> None:
    if command not in PLAYING:
        return
    group = parser.add_argument_group("engine (free to change on resume)")
    words = "what plays users (default: local, this process)"
    options.add(group, "--engine", words, choices=(LOCAL, RAY), default=LOCAL)
    words = "a running Ray cluster, such as `auto` or HOST:6379 (default: start one on this machine)"
    options.add(group, "--ray-address ADDR", words, type=options.filled)
    words = "worker processes (default: one for each free CPU)"
    options.add(group, "--workers N", words, type=options.whole(1, WORKERS_MOST))
    words = "milliseconds between two exchanges with a worker (default: follows the latency)"
    number = options.finite(lambda number: 1 <= number <= 1000, "milliseconds from 1 to 1000")
    options.add(group, "--turn MS", words, type=number)


def of_workers(args: argparse.Namespace) -> list[str]:
    """Return the options of workers that a command has."""
    given = {"--ray-address": args.ray_address, "--workers": args.workers, "--turn": args.turn}
    return [flag for flag, value in given.items() if value is not None]


FEATURE = Feature(
    "ray",
    options=_options,
    is_on=lambda args: args.engine != LOCAL or bool(of_workers(args)),
    extension="harness.features.ray.engine:Workers",
    threat=Threat(
        "the process that used Ray ended",
        "Ray has ended it, as it does when its own process on this machine (the raylet) is gone",
    ),
)
