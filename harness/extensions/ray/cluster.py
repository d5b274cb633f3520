"""Worker processes as actors of Ray, on a cluster that runs already or on one of this process
alone.

The only file that imports Ray; it is an extra package. The key goes to a worker in the arguments of
one of its methods: not in those of its constructor, which Ray keeps to start it again, and not in
the environment, which Ray logs.

Ray would put the driver's current folder first on the import path of every worker, and start a
cluster that listens on all interfaces, with its token in the home folder, readable by everybody.
Here workers start in an empty folder, and an own cluster listens on loopback only and takes a token
that no other user of the machine can read.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import secrets
import signal
import socket
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import orjson

# Read when Ray is imported: nothing is reported to anyone.
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
import ray
from ray._private import ray_constants, worker
from ray.exceptions import ActorDiedError, RayError

from harness import __version__
from harness.defaults import GC_THRESHOLD
from harness.errors import BadInput, MachineError
from harness.extensions.ray.crew import WorkerGone
from harness.extensions.ray.messages import SentPart, TurnOrder, TurnReport, WorkerPlan
from harness.extensions.ray.worker import LEASE_SECONDS, Player
from harness.options.secrets import VARIABLE

STORE_BYTES = 2**27
"""Of an own cluster's object store: maps and prompts go through it, and nothing else."""

START_SECONDS = 300.0
"""How long a worker may take to start: the machine may be busy, and others may join the cluster
until then."""
PROCESS_DIED = "worker process has died"
"""In the error of an actor whose machine is still there."""
TOKEN_VARIABLES = ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")


class Actor:
    """A worker process. No `async def` here: a single one would move all methods off the main
    thread, where alarms that break off an agent's code do not exist."""

    def open(
        self, version: str, plans: Sequence[WorkerPlan], files: Sequence[Mapping[str, bytes]]
    ) -> BadInput | str:
        """Get ready to play; return the error, or the name of this process."""
        here = f"{os.getpid()} on {socket.gethostname()}"
        own_version = code_version()
        if version != own_version:
            return BadInput(
                f"{here} has another version of the harness ({own_version}, expected {version})"
            )
        self._state = TemporaryDirectory(prefix="worker-")
        os.environ["XDG_STATE_HOME"] = self._state.name  # nothing stays on this machine
        loop = _new_loop()
        asyncio.set_event_loop(loop)
        self._player = Player(
            [plan._replace(files=content) for plan, content in zip(plans, files, strict=True)], loop
        )
        threading.Thread(target=self._watch, daemon=True).start()
        gc.set_threshold(*GC_THRESHOLD)
        return here

    def turn(self, part: SentPart | None, order: TurnOrder) -> TurnReport:
        return self._player.turn(part, order)

    def _watch(self) -> None:
        """End this process, and so its requests, once the driver has given it no turn for too
        long."""
        while not self._player.is_abandoned:
            time.sleep(LEASE_SECONDS / 20)
        os._exit(0)


@dataclass(eq=False)
class RayWorker:
    """An actor with its `name` for messages."""

    name: str
    handle: Any

    async def turn(self, part: SentPart | None, order: TurnOrder) -> TurnReport:
        """Return what `Player.turn` returns. Raise `WorkerGone`."""
        try:
            report: TurnReport = await self.handle.turn.remote(part, order)
            return report
        except RayError as error:  # also where a report was lost with its machine
            certain = isinstance(error, ActorDiedError) and PROCESS_DIED in str(error)
            raise WorkerGone(
                "its process ended" if certain else _sentence(error), certain=certain
            ) from error

    def kill(self) -> None:
        with suppress(RayError, ValueError):
            ray.kill(self.handle)


class Cluster:
    """Starts workers. Ray keeps the files of plans once for each machine; the rest, with the key,
    it does not keep."""

    def __init__(self, plans: Sequence[WorkerPlan]) -> None:
        self._plans = [plan._replace(files={}) for plan in plans]
        self._files = ray.put([plan.files for plan in plans])

    async def start(self) -> RayWorker:
        """Return a new worker that is ready. Raise `HarnessError`."""
        options: dict[str, object] = {
            "num_cpus": 1,
            "max_restarts": 0,
            "max_task_retries": 0,
            "scheduling_strategy": "SPREAD",
        }
        # By itself Ray starts workers with a niceness of 15: on a busy machine they would get next
        # to nothing.
        variables = {
            "PYTHONHASHSEED": os.environ.get("PYTHONHASHSEED", "random"),
            "RAY_worker_niceness": "0",
        }
        handle = ray.remote(Actor).options(**options, runtime_env={"env_vars": variables}).remote()
        worker = RayWorker("", handle)
        try:
            opened = handle.open.remote(code_version(), self._plans, self._files)
            answer = await asyncio.wait_for(opened, START_SECONDS)
        except TimeoutError:
            worker.kill()
            raise MachineError(
                f"a worker did not start within {START_SECONDS:.0f} s: each takes one CPU of the"
                " cluster: take fewer --workers"
            ) from None
        except RayError as error:
            raise MachineError(f"a worker could not be started: {_sentence(error)}") from None
        if not isinstance(answer, str):
            raise answer
        worker.name = answer
        return worker


@contextmanager
def connected(address: str | None, workers: int | None) -> Iterator[int]:
    """Connect to the cluster at an address, or start one of so many cores on this machine; yield
    the number of workers.

    Call it in the main thread. Raise `MachineError`.
    """
    _check(address)
    with TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as place:
        folder = Path(place)
        local_options: dict[str, Any] = {
            "address": "local",
            "num_cpus": workers or os.cpu_count(),
            "object_store_memory": STORE_BYTES,
            "include_dashboard": False,
            "_temp_dir": str(folder / "ray"),  # Ray makes it writable by everybody
            # No processes that no actor would take.
            "_system_config": {"prestart_worker_first_driver": False},
        }
        with _authenticated(None if address else folder / "token"):
            options = {"address": address} if address else local_options
            _init(address, options | _working_dir(folder / "empty"))
            try:
                yield workers or max(1, int(ray.available_resources().get("CPU", 1)))
            finally:
                ray.shutdown()


@contextmanager
def _authenticated(new: Path | None) -> Iterator[None]:
    """Let Ray use a token in a `new` file, of an own cluster.

    Ray takes mode and token from the environment, and keeps them for the whole process. By itself
    it would leave one in the home folder, which later clusters demand.
    """
    saved_variables = {name: os.environ[name] for name in TOKEN_VARIABLES if name in os.environ}
    try:
        if new:
            private = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with open(private, "w") as file:  # noqa: PTH123, a descriptor
                file.write(secrets.token_hex(32))
            os.environ.pop("RAY_AUTH_TOKEN", None)  # it would go before the file
            os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(new)}
        _read_token_again()
        yield
    finally:
        for name in TOKEN_VARIABLES:
            os.environ.pop(name, None)
        os.environ |= saved_variables
        _read_token_again()


def _read_token_again() -> None:
    ray._raylet.Config.initialize("")
    ray._raylet.AuthenticationTokenLoader.instance().reset_cache()


def _working_dir(empty: Path) -> dict[str, Any]:
    """Return the option that gives workers a current folder: that of the Ray job, if it names one,
    else an empty one.

    Without it Ray puts this process's current folder, and that of its script, on the import path of
    workers.
    """
    job = orjson.loads(os.environ.get("RAY_JOB_CONFIG_JSON_ENV_VAR", "{}"))
    if (job.get("runtime_env") or {}).get("working_dir"):
        return {}
    empty.mkdir()
    return {"runtime_env": {"working_dir": str(empty)}}


def _check(address: str | None) -> None:
    """Raise `MachineError` for an address at which there is nobody; Ray tries one for minutes."""
    if not address:
        return
    if "//" in address:
        raise MachineError(
            f"--ray-address {address}: run on a machine of the cluster, and give its head as"
            " HOST:PORT"
        )
    if address.rpartition(":")[2].isdigit() and not _answers(address):
        raise MachineError(
            f"no Ray cluster answers at {address}: start one with `ray start --head`"
        )


def _init(address: str | None, options: dict[str, Any]) -> None:
    """Start an own cluster, or join one.

    An own cluster listens on 127.0.0.1 alone by the switch that Ray itself sets on macOS and
    Windows. `ray.init` has an option for the address, but replaces 127.0.0.1 in it by that of the
    machine.
    """
    listens_outside = ray_constants.ENABLE_RAY_CLUSTER
    ray_constants.ENABLE_RAY_CLUSTER = listens_outside and address is not None
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    logging.getLogger("ray").setLevel(logging.CRITICAL)
    worker._worker_logs_enabled = False  # else it prints the deaths of processes over the display
    try:
        with _for_processes_of_ray():
            ray.init(**options, log_to_driver=False, configure_logging=False)
    except (RayError, OSError, RuntimeError, ValueError) as error:
        where = (
            f"the Ray cluster at {address} cannot be used"
            if address
            else "Ray could not be started here"
        )
        raise MachineError(f"{where}: {_sentence(error)}") from None
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = listens_outside
        for number, handler in handlers.items():  # Ray sets its own
            signal.signal(number, handler)


@contextmanager
def _for_processes_of_ray() -> Iterator[None]:
    """Keep keys from the processes of an own cluster, which inherit the environment; and the
    current folder, which an empty or relative entry of PYTHONPATH names, from their import path."""
    hidden = {
        name: os.environ.pop(name)
        for name in list(os.environ)
        if _is_secret(name) or name == "PYTHONPATH"
    }
    if places := [
        path for path in hidden.get("PYTHONPATH", "").split(os.pathsep) if Path(path).is_absolute()
    ]:
        os.environ["PYTHONPATH"] = os.pathsep.join(places)
    try:
        yield
    finally:
        os.environ.update(hidden)


def _is_secret(variable: str) -> bool:
    return VARIABLE.search(variable) is not None and not variable.startswith("RAY_")


def head_answers() -> bool:
    """Return whether the head of the cluster takes connections; without it Ray ends this process
    after a minute."""
    return _answers(ray.get_runtime_context().gcs_address)


def _answers(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=5).close()
    except OSError:
        return False
    return True


def code_version() -> str:
    """Return the version of the harness, with a hash of its code."""
    root = Path(__file__).parents[2]
    digest = sha256()
    for path in sorted(root.rglob("*.py")):
        digest.update(path.read_bytes())
    return f"{__version__} {digest.hexdigest()[:12]}"


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:  # it is not to be had on every system
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


def _sentence(error: BaseException) -> str:
    """Return the first line of a foreign error that says something."""
    error = getattr(error, "cause", None) or error  # what a method of an actor has raised
    return next(
        (line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__
    )
