"""The lanes of a session whose users worker processes play."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from functools import partial
from importlib.util import find_spec
from typing import Any

import anyio

from harness.benchmark import Benchmark
from harness.config.plan import Plan
from harness.engine.accounts import Opening, OpenLanes, open_lanes, sockets
from harness.engine.extension import Extension, Say
from harness.engine.lane import Lane
from harness.errors import BadInput, to_install
from harness.features.ray import LOCAL, RAY, of_workers
from harness.features.ray.crew import Crew
from harness.features.ray.player import LanePart
from harness.features.ray.shipping import packed

BLOCKED_SECONDS = 6.0
"""How long the code of one user may block its worker; an agent's is broken off after 5."""


class Workers(Extension):
    """`address` is that of a cluster, None for one on this machine. `workers` is how many are wanted, None for one on
    each free CPU. `turn` is the time in seconds between two exchanges of messages with a worker, None for a good one.
    """

    def __init__(self, args: Any) -> None:
        """Raise `BadInput` for options of another engine."""
        if args.engine == LOCAL:
            raise BadInput(f"{of_workers(args)[0]} is for --engine {RAY}")
        self.address: str | None = args.ray_address
        self.workers: int | None = args.workers
        self.turn: float | None = args.turn and args.turn / 1000.0

    def begin(self, plans: Sequence[Plan], held: ExitStack, say: Say) -> None:
        if find_spec("ray") is None:
            raise BadInput(f"--engine ray needs the package ray: {to_install('behavior-harness[ray]')}")

    def opening(self, open_lanes: OpenLanes, held: ExitStack, say: Say) -> OpenLanes:
        from harness.features.ray import cluster  # an extra package

        where = f"to the Ray cluster at {self.address}" if self.address else "Ray on this machine"
        say(f"{'connecting' if self.address else 'starting'} {where} ...")
        workers = held.enter_context(cluster.connected(self.address, self.workers))

        async def on_workers(openings: Sequence[Opening], held: AsyncExitStack) -> Sequence[Lane]:
            plans, contents = [one.plan for one in openings], dict[str, bytes]()
            shipped = [packed(plan.benchmark, contents) for plan in plans]
            parts = [LanePart(of, one.plan.sampling, one.route) for of, one in zip(shipped, openings, strict=True)]
            start = cluster.Cluster(parts, contents, sockets(plans)).start
            slack = BLOCKED_SECONDS if any(_plays_code(plan.benchmark) for plan in plans) else 0.0
            crew = Crew(await start(workers), start, self.turn, slack)
            return await held.enter_async_context(_served(crew, workers, openings, cluster.head_answers))

        return on_workers


@asynccontextmanager
async def _served(
    crew: Crew, workers: int, openings: Sequence[Opening], head_answers: Callable[[], bool]
) -> AsyncIterator[list[Lane]]:
    """A lane for each opening, whose users a crew of so many workers plays."""
    async with AsyncExitStack() as held, anyio.create_task_group() as serving:
        lanes = await open_lanes(openings, held, crew.player)
        for number, lane in enumerate(lanes):
            lane.elsewhere = {"workers": workers}
            for run in lane.runs:
                run.scored_by = partial(crew.scores, number)
        serving.start_soon(crew.serve, lanes)
        serving.start_soon(crew.watch, head_answers)
        yield lanes
        serving.cancel_scope.cancel()


def _plays_code(benchmark: Benchmark) -> bool:
    """Return whether playing runs code that does not ship with the harness, and so may block."""
    return benchmark.origin is not None or benchmark.imports.runs_code(benchmark.configuration.identity)
