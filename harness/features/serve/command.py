"""`serve`: the embedded endpoint by itself, until it is interrupted."""

from __future__ import annotations

import argparse
import signal
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import anyio

from harness.benchmarks import registry
from harness.config.address import key_in
from harness.config.options import add as add_option
from harness.config.options import filled, not_negative
from harness.errors import BadInput
from harness.features.serve.app import Options, start
from harness.features.serve.faults import GROUPS, FaultPlan
from harness.features.serve.imitate import NAMES
from harness.ui.streams import show


def add_arguments(parser: argparse.ArgumentParser) -> None:
    words = "also serve the baselines of this benchmark: installed, FILE.py or package.module:Name"
    parser.add_argument("benchmark", nargs="?", type=filled, metavar="BENCHMARK", help=words)
    add = partial(add_option, parser)
    kinds = "; ".join([f"{group} = {', '.join(members)}" for group, members in GROUPS.items()])
    add("--host", "address to listen on (default: %(default)s)", default="127.0.0.1")
    add("--port", "port, 0 for any free one (default: %(default)s)", type=int, default=8000)
    add("--latency SECONDS", "mean time to a reply (default: 0)", type=float, default=0.0)
    add("--jitter SIGMA", "spread of the latency, lognormal (default: 0, fixed)", type=float, default=0.0)
    add("--fault-rate R", "share of the requests that fail, 0 to 1 (default: 0)", type=float)
    add("--faults KIND,...", f"kinds and groups of faults to draw from (default: transport); {kinds}")
    add("--imitate PROVIDER", f"accept any model, with the reply formats and refusals of {', '.join(NAMES)}")
    add("--api-key-file FILE", "refuse requests without the key in this file", type=Path)
    add("--max-concurrency N", "refuse with 429 beyond N requests in flight", type=int)
    add("--batch-seconds S", "time that a batch of the Batch API takes (default: 0)", type=not_negative, default=0.0)
    add("--seed", "seed of faults, latencies and baselines (default: 0)", type=int, default=0)


def execute(args: argparse.Namespace) -> int:
    """Serve until SIGINT or SIGTERM. Raise `BadInput` and `MachineError`."""
    if not 0 <= args.port <= 65535:
        raise BadInput(f"--port {args.port}: expected 0 to 65535")
    backend = {"use_uvloop": find_spec("uvloop") is not None}
    anyio.run(_serve, options(args), args.host, args.port, backend_options=backend)
    return 0


def options(args: argparse.Namespace) -> Options:
    """Return the endpoint's options. Raise `BadInput`."""
    faults = None
    if args.fault_rate is not None:
        names = args.faults.split(",") if args.faults is not None else ["transport"]
        faults = FaultPlan(args.fault_rate, tuple([name.strip() for name in names]), args.seed)
    elif args.faults is not None:
        raise BadInput("--faults needs --fault-rate, the part of the requests that fail")
    key = key_in(args.api_key_file) if args.api_key_file is not None else None
    names = ("latency", "jitter", "max_concurrency", "seed", "imitate", "batch_seconds")
    plain = {name: getattr(args, name) for name in names}
    own = registry.served(registry.find(args.benchmark)) if args.benchmark else {}
    return Options(faults=faults, key=key, baselines=own, **plain)


async def _serve(wanted: Options, host: str, port: int) -> None:
    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        endpoint = await start(wanted, host, port)
        show(f"listening on {endpoint.url}")
        await anext(aiter(signals))
        await endpoint.close()
