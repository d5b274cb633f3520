"""The runners of a session whose users worker processes play."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack, ExitStack
from importlib.util import find_spec
from pathlib import Path

import anyio

from harness.analysis.selection import folder
from harness.benchmark import kept_files
from harness.benchmarks.files import input_file
from harness.engine import accounts
from harness.engine.accounts import OpenRunners, RunnerSpec
from harness.engine.hooks import Hooks, Say
from harness.engine.runner import ModelRunner
from harness.errors import BadInput, to_install
from harness.extensions.ray import LOCAL, RAY, Ray, of_workers
from harness.extensions.ray.crew import Crew
from harness.extensions.ray.messages import RESULTS, REUSED, TASKS, WorkerPlan
from harness.extensions.ray.runner import PartsRunner
from harness.options.options import PlayOptions
from harness.options.plan import Plan
from harness.store.files import RunFiles


class Workers(Hooks):
    """`address` is that of a cluster, None for one on this machine. `workers` is how many are
    wanted, None for one on each free CPU."""

    def __init__(self, options: Ray, command: PlayOptions) -> None:
        """Raise `BadInput` for options of another engine."""
        if options.engine == LOCAL:
            raise BadInput(f"{of_workers(options)[0]} is for --engine {RAY}")
        if command.api_key and any(command.api_key in word for word in sys.argv):
            raise BadInput(
                "--api-key is not for --engine ray: the cluster's list of jobs shows command lines."
                " Give --api-key-file, or a variable such as LLM_API_KEY"
            )
        self.address = options.ray_address
        self.workers = options.workers
        reuse = command.option("reuse")
        self._reused = folder(reuse, command.results_dir) if reuse else None

    def check(self, plans: Sequence[Plan]) -> None:
        for plan in plans:
            if plan.roles:
                raise BadInput(
                    f"{plan.name}: --engine {RAY} plays no benchmark with roles"
                    f" ({', '.join(plan.roles)}): leave it out"
                )

    def prepare(self, plans: Sequence[Plan], held: ExitStack, say: Say) -> None:
        if find_spec("ray") is None:
            raise BadInput(
                f"--engine ray needs the package ray: {to_install('behavior-harness[ray]')}"
            )

    def wrap_open_runners(
        self, open_runners: OpenRunners, held: ExitStack, say: Say
    ) -> OpenRunners:
        from harness.extensions.ray import cluster  # an extra package

        where = f"to the Ray cluster at {self.address}" if self.address else "Ray on this machine"
        say(f"{'connecting' if self.address else 'starting'} {where} ...")
        workers = held.enter_context(cluster.connected(self.address, self.workers))

        async def on_workers(
            runner_specs: Sequence[RunnerSpec], held: AsyncExitStack
        ) -> Sequence[ModelRunner]:
            plans = [_worker_plan(spec.plan, self._reused) for spec in runner_specs]
            start = cluster.Cluster(plans).start
            crew = Crew(await start(), start, workers)
            runners = await accounts.open_runners(PartsRunner, runner_specs, held)
            for place, runner in enumerate(runners):
                runner.cut(crew, place, runner_specs[place].plan, workers)
            serving = await held.enter_async_context(anyio.create_task_group())
            held.callback(serving.cancel_scope.cancel)
            serving.start_soon(crew.serve, runners)
            serving.start_soon(crew.watch, cluster.head_answers)
            return runners

        return on_workers


def _worker_plan(plan: Plan, reused: Path | None) -> WorkerPlan:
    """Return what a worker gets of a plan; `reused` is the folder of a run whose replies are
    used."""
    benchmark = plan.benchmark
    files = {
        f"{RESULTS}/{plan.name}/{path}": content for path, content in kept_files(benchmark).items()
    }
    for data_file in benchmark.task_files.data_files:
        path = benchmark.task_files.file_in(benchmark.folder, data_file)
        files[f"{TASKS}/{os.path.relpath(path, benchmark.folder)}"] = input_file(path)
    name = reused.resolve().name if reused else None
    if reused:
        for saved in (RunFiles(reused, subset) for subset in plan.tasks):
            files |= {
                f"{REUSED}/{name}/{path.name}": path.read_bytes()
                for path in (saved.manifest, saved.responses)
            }
    return WorkerPlan(
        plan.name, plan.endpoint_choice, plan.limits, plan.terms.allow_invalid, files, name
    )
