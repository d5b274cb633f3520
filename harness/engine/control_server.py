"""A run's side of `watch`, `set` and `stop`: a unix socket next to each run's lock, while the run
is played.

The socket has mode 0600 from the start, and only processes of the same user are answered. Only the
holder of the lock makes one, so one that is there before is a dead process's, and is replaced.
Where the file system takes no sockets, or the system tells no peer, the run goes on without.

Snapshots are sent when they are asked for. All that a run does for the viewer else is a line in its
log every ten seconds, from which curves are drawn.
"""

from __future__ import annotations

import asyncio
import os
import socket
import stat
import struct
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import msgspec
import orjson

from harness.defaults import AUTO, GRACE_SECONDS
from harness.engine.accounts import admit_sockets, control_of, rates_of, sockets, tuning_of
from harness.engine.control_calls import PROGRESS, peer, short, socket_of
from harness.engine.hooks import Observe
from harness.engine.runner import ModelRunner
from harness.errors import HarnessError, RunStopped
from harness.model import JSON, Snapshot, Snapshots
from harness.option import options_of
from harness.options import options
from harness.options.plan import Plan
from harness.store.manifest import part_of

PROGRESS_SECONDS = 10.0
REQUEST_MOST = 1 << 12
"""Bytes of a request."""
IDLE_SECONDS = 60.0
"""How long a connection may say nothing."""
SETTABLE = {
    limit.name: limit
    for limit in options_of(options.PlayOptions)
    if limit.name in ("concurrency", "rpm", "tpm")
}
"""What can be set: the options of `run`, by name."""
STOPPED = 130
"""The exit code of a command that Ctrl-C has stopped."""


@asynccontextmanager
async def serving(plans: Mapping[ModelRunner, Plan], observe: Observe) -> AsyncIterator[Observe]:
    """Listen for each runner while they are played, and log how far they are; return what gets the
    snapshots."""
    control = _Control(plans)

    def observe_and_keep(snapshots: Snapshots) -> None:
        control.snapshots = snapshots
        observe(snapshots)

    async with AsyncExitStack() as held, anyio.create_task_group() as logging:
        for runner in plans:
            for run in runner.runs:
                with suppress(OSError):  # no sockets here: the run is played all the same
                    path = socket_of(run.store.files)
                    await held.enter_async_context(_listener(path, partial(control.serve, runner)))
            logging.start_soon(runner.guarded, partial(_log_progress, runner, control))
        try:
            yield observe_and_keep
        finally:
            logging.cancel_scope.cancel()


class _Control:
    """Answers requests about the runners that are played, of these plans as they are now."""

    def __init__(self, plans: Mapping[ModelRunner, Plan]) -> None:
        self.snapshots: Snapshots = ()
        self._plans = dict(plans)

    async def serve(
        self, runner: ModelRunner, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Answer the requests of one connection."""
        try:
            with suppress(OSError, ValueError, TimeoutError):
                while line := await asyncio.wait_for(reader.readline(), IDLE_SECONDS):
                    writer.write(orjson.dumps(self._answer(runner, line)) + b"\n")
                    await asyncio.wait_for(writer.drain(), IDLE_SECONDS)
        finally:
            writer.close()

    def _answer(self, runner: ModelRunner, line: bytes) -> JSON:
        try:
            request: Any = orjson.loads(line)
            command = request["do"]
            if command == "snapshots":
                snapshots: object = msgspec.to_builtins(self.snapshots)
                return {"process": os.getpid(), "snapshots": snapshots}
            if command == "set":
                return self._set(runner, request)
            if command == "stop":
                return _stop(runner)
        except (ValueError, KeyError, TypeError) as error:
            return {"refused": f"not understood: {error}"}
        except HarnessError as error:
            return {"refused": str(error)}
        return {"refused": "not understood"}

    def _set(self, runner: ModelRunner, request: JSON) -> JSON:
        """Change the limits that a request names; each is text, as `run` takes it."""
        changes: JSON = {}
        for name, limit in SETTABLE.items():
            if request.get(name) is not None:
                value = limit.value(request[name])
                changes[name] = None if value == AUTO else value
        if runner.ending is not None or runner.over:
            return {"refused": "the run is ending"}
        if not changes:
            return {"refused": "nothing to set"}
        if runner.snapshot().load:
            return {"refused": "its requests go in batches, which have no such limits"}
        changed = self._change_limits(runner, changes)
        _, parts = part_of(runner.runs[0].manifest.selection)
        return {
            "limit": runner.caller.limiter.slots.limit,
            "runs": [sharing.progress.name for sharing in changed],
            "part": parts,
        }

    def _change_limits(
        self, runner: ModelRunner, changes: Mapping[str, Any]
    ) -> Mapping[ModelRunner, Plan]:
        """Change limits of the account that a runner uses; return the runners on it, and their
        plans as they are now.

        `changes` are members of `RunTuning`: `concurrency`, `rpm` and `tpm`, of a whole run. Of
        plans that share the account the lower limits count, as at the start. What is changed is
        logged with each run, and kept in its manifest, so that `resume` goes on with it. Raise
        `BadInput` or `MachineError` for limits that parts or this machine cannot have; then nothing
        has changed.
        """
        slots = runner.caller.limiter.slots
        changed = {}
        for sharing, plan in self._plans.items():
            if sharing.caller.limiter.slots is slots:
                changed[sharing] = replace(plan, tuning=replace(plan.tuning, **changes))
        plans = self._plans | changed
        tuning = tuning_of(list(changed.values()))
        admit_sockets(*sockets(list(plans.values())))
        if "concurrency" in changes:
            slots.control = control_of(tuning, slots.limit)
        if changes.keys() & {"rpm", "tpm"}:
            slots.rates = rates_of(tuning)
        for sharing in changed:
            sharing.limits_changed(tuning.concurrency, changes)
        slots.pump()
        slots.wake()
        self._plans = plans
        return changed


async def _log_progress(runner: ModelRunner, control: _Control) -> None:
    """Log how far a runner's runs are, for curves, until it is over."""
    while not runner.over:
        await anyio.sleep(PROGRESS_SECONDS)
        for snapshot in control.snapshots:
            if snapshot.name == runner.progress.name and not runner.over:
                _log_snapshot(runner, snapshot)


def _log_snapshot(runner: ModelRunner, snapshot: Snapshot) -> None:
    """Log a snapshot of a runner with each of its runs."""
    latency = None
    if snapshot.latency is not None:
        latency = [round(seconds, 3) for seconds in snapshot.latency]
    subsets = {progress.subset: progress for progress in snapshot.subsets}
    for run in runner.runs:
        progress = subsets.get(run.subset)
        if progress:
            run.store.event(
                PROGRESS,
                done=progress.done,
                failed=progress.failed,
                steps=progress.steps_done,
                scores=dict(progress.scores),
                units=dict(progress.units),
                rate=round(snapshot.rate, 3),
                latency=latency,
                limit=snapshot.limit,
                in_flight=snapshot.in_flight,
                cost={money.currency: str(money.amount) for money in snapshot.cost},
            )


def _stop(runner: ModelRunner) -> JSON:
    """End a run as a first Ctrl-C does: requests in flight may still be answered."""
    if runner.ending is not None or runner.over:
        return {"refused": "the run is ending"}
    for run in runner.runs:
        run.scores.end()
    runner.stop(RunStopped(STOPPED), GRACE_SECONDS)
    return {"stopping": runner.progress.name, "seconds": GRACE_SECONDS}


@asynccontextmanager
async def _listener(
    path: Path, served: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Any]
) -> AsyncIterator[None]:
    """Listen at a path. Raise `OSError` where that cannot be: there is a file of that name, or no
    place for sockets."""

    async def checked(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if _is_own(writer):
            await served(reader, writer)
        else:
            writer.close()

    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listening:
        listening.setblocking(False)
        os.fchmod(listening.fileno(), 0o600)  # what it is bound to gets this mode at once
        with short(path) as address:
            _remove_dead(path)
            listening.bind(address)
        bound = os.lstat(path)
        try:
            if stat.S_IMODE(bound.st_mode) != 0o600:
                os.chmod(path, 0o600, follow_symlinks=False)  # noqa: PTH101, a method of Path is refused in a coroutine
            server = await asyncio.start_unix_server(checked, sock=listening, limit=REQUEST_MOST)
            try:
                yield
            finally:
                server.close()
        finally:
            with suppress(OSError):
                if os.path.samestat(os.lstat(path), bound):
                    os.unlink(path)  # noqa: PTH108, as above


def _remove_dead(path: Path) -> None:
    """Remove the socket of a process that died."""
    with suppress(FileNotFoundError):
        if stat.S_ISSOCK(os.lstat(path).st_mode):
            path.unlink()


def _is_own(writer: asyncio.StreamWriter) -> bool:
    """Return whether the process at the other end is this user's."""
    connection = writer.get_extra_info("socket")
    try:
        return peer(connection) == os.geteuid()
    except (AttributeError, OSError, struct.error):
        return False
