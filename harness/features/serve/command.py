"""`serve`: the embedded endpoint by itself, until it is interrupted."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import anyio

from harness.benchmarks import registry
from harness.config.address import key_in
from harness.config.options import Options as CoreOptions
from harness.errors import BadInput, heeded
from harness.features.serve import app
from harness.features.serve.app import start
from harness.features.serve.faults import GROUPS, FaultPlan
from harness.features.serve.imitate import NAMES
from harness.option import ANY_TEXT, NOT_NEGATIVE, option
from harness.ui.streams import show


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Options(CoreOptions):
    benchmark: str | None = option(
        None,
        "also serve the baselines of this benchmark: installed, FILE.py or package.module:Name",
        position="BENCHMARK",
    )
    host: str = option("127.0.0.1", "address to listen on (default: 127.0.0.1)")
    port: int = option(8000, "port, 0 for any free one (default: 8000)")
    latency: float = option(0.0, "mean time to a reply (default: 0)", unit="SECONDS")
    jitter: float = option(0.0, "spread of the latency, lognormal (default: 0, fixed)", unit="SIGMA")
    fault_rate: float | None = option(None, "share of the requests that fail, 0 to 1 (default: 0)", unit="R")
    faults: str | None = option(
        None,
        "kinds and groups of faults to draw from (default: transport); "
        + "; ".join([f"{group} = {', '.join(members)}" for group, members in GROUPS.items()]),
        unit="KIND,...",
        check=ANY_TEXT,
    )
    imitate: str | None = option(
        None,
        f"accept any model, with the reply formats and refusals of {', '.join(NAMES)}",
        unit="PROVIDER",
        check=ANY_TEXT,
    )
    api_key_file: Path | None = option(None, "refuse requests without the key in this file", own=True)
    max_concurrency: int | None = option(None, "refuse with 429 beyond N requests in flight")
    batch_seconds: float = option(
        0.0, "time that a batch of the Batch API takes (default: 0)", unit="S", check=NOT_NEGATIVE
    )
    seed: int = option(0, "seed of faults, latencies and baselines (default: 0)")


def execute(args: Options) -> int:
    """Serve until SIGINT or SIGTERM. Raise `BadInput` and `MachineError`."""
    if not 0 <= args.port <= 65535:
        raise BadInput(f"--port {args.port}: expected 0 to 65535")
    backend = {"use_uvloop": find_spec("uvloop") is not None}
    anyio.run(_serve, served(args), args.host, args.port, backend_options=backend)
    return 0


def served(args: Options) -> app.Options:
    """Return the endpoint's options. Raise `BadInput`."""
    faults = None
    if args.fault_rate is not None:
        names = args.faults.split(",") if args.faults is not None else ["transport"]
        faults = FaultPlan(args.fault_rate, tuple([name.strip() for name in names]), args.seed)
    elif args.faults is not None:
        raise BadInput("--faults needs --fault-rate, the part of the requests that fail")
    key = key_in(args.api_key_file) if args.api_key_file is not None else None
    members = ("latency", "jitter", "max_concurrency", "seed", "imitate", "batch_seconds")
    plain = {name: getattr(args, name) for name in members}
    own = registry.served(registry.find(args.benchmark)) if args.benchmark else {}
    return app.Options(faults=faults, key=key, baselines=own, **plain)


async def _serve(wanted: app.Options, host: str, port: int) -> None:
    with anyio.open_signal_receiver(*{signal.SIGINT, signal.SIGTERM}.intersection(heeded())) as signals:
        endpoint = await start(wanted, host, port)
        show(f"listening on {endpoint.url}")
        await anext(aiter(signals))
        await endpoint.close()
