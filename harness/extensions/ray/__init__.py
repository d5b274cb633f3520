"""Play users in worker processes, on one machine or on many (`--engine ray`; docs/scale.md).

The users are cut into parts. A worker plays a part with a whole local engine, and has a share of
the limits. What that engine saves is in the driver's files within a second, so a worker can be lost
at any moment: its part goes on elsewhere from there.

    messages   what both send each other
    worker     a worker: plays parts by turns; knows no driver and no Ray
    runner       a plan's users in parts, and what workers report of them
    crew       the driver's side of all workers: who plays what, with which share
    engine     the extension: runners whose users workers play
    cluster    starts workers as actors of Ray
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from harness.option import option, whole
from harness.options.extension import Extension
from harness.options.options import PlayOptions

if TYPE_CHECKING:
    from harness.extensions.ray.engine import Workers

LOCAL, RAY = "local", "ray"
"""Engines."""
WORKERS_MOST = 10_000
GROUP = "engine (free to change on resume)"


@dataclass(frozen=True)
class Ray:
    """What plays users, such as `Ray(engine="ray", workers=4)`."""

    engine: Literal["local", "ray"] = option(
        LOCAL, "what plays users (default: local, this process)", group=GROUP
    )
    ray_address: str | None = option(
        None,
        "a running Ray cluster, such as `auto` or HOST:6379 (default: start one on this machine)",
        unit="ADDR",
        group=GROUP,
    )
    workers: int | None = option(
        None,
        "worker processes (default: one for each free CPU)",
        check=whole(1, WORKERS_MOST),
        group=GROUP,
    )


def of_workers(args: Ray) -> list[str]:
    """Return the options of workers that a command has."""
    values = {"--ray-address": args.ray_address, "--workers": args.workers}
    return [flag for flag, value in values.items() if value is not None]


class _Ray(Extension[Ray]):
    name, options = "ray", Ray

    def hooks(self, options: Ray, command: PlayOptions) -> Workers:
        from harness.extensions.ray.engine import Workers

        return Workers(options, command)


EXTENSION = _Ray()
