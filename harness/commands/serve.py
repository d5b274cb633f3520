"""`serve`: the embedded endpoint by itself, until it is interrupted."""

from __future__ import annotations

import argparse
import signal
from importlib.util import find_spec
from pathlib import Path

import anyio

from harness.config.address import key_in
from harness.errors import BadInput
from harness.serve.app import Options, start
from harness.serve.faults import GROUPS, FaultPlan
from harness.serve.imitate import NAMES
from harness.ui.streams import show


def add_arguments(parser: argparse.ArgumentParser) -> None:
    kinds = "; ".join([f"{group} = {', '.join(members)}" for group, members in GROUPS.items()])
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    parser.add_argument("--port", type=int, default=8000, help="port, 0 for any free one (default: %(default)s)")
    parser.add_argument(
        "--latency", type=float, default=0.0, metavar="SECONDS", help="mean time to a reply (default: 0)"
    )
    parser.add_argument(
        "--jitter",
        type=float,
        default=0.0,
        metavar="SIGMA",
        help="spread of the latency, lognormal (default: 0, fixed)",
    )
    parser.add_argument(
        "--fault-rate", type=float, metavar="R", help="part of the requests that fail, 0 to 1 (default: 0)"
    )
    parser.add_argument(
        "--faults", metavar="KIND,...", help=f"kinds and groups of faults to draw from (default: transport); {kinds}"
    )
    parser.add_argument(
        "--imitate",
        metavar="PROVIDER",
        help=f"answer to any model, in the shapes and with the refusals of {', '.join(NAMES)}",
    )
    parser.add_argument(
        "--api-key-file", type=Path, metavar="FILE", help="refuse requests without the key that this file holds"
    )
    parser.add_argument("--max-concurrency", type=int, metavar="N", help="refuse with 429 beyond N requests in flight")
    parser.add_argument("--seed", type=int, default=0, help="of faults, latencies and baselines (default: 0)")


def execute(args: argparse.Namespace) -> int:
    """Serves until SIGINT or SIGTERM, then returns 0. Raises `BadInput` and `MachineError`."""
    if not 0 <= args.port <= 65535:
        raise BadInput(f"--port {args.port}: expected 0 to 65535")
    backend = {"use_uvloop": find_spec("uvloop") is not None}
    anyio.run(_serve, options(args), args.host, args.port, backend_options=backend)
    return 0


def options(args: argparse.Namespace) -> Options:
    """What the arguments ask for. Raises `BadInput`."""
    return Options(
        latency=args.latency,
        jitter=args.jitter,
        faults=_fault_plan(args),
        max_concurrency=args.max_concurrency,
        seed=args.seed,
        imitate=args.imitate,
        key=key_in(args.api_key_file) if args.api_key_file is not None else None,
    )


def _fault_plan(args: argparse.Namespace) -> FaultPlan | None:
    if args.fault_rate is None:
        if args.faults is not None:
            raise BadInput("--faults needs --fault-rate, the part of the requests that fail")
        return None
    names = args.faults.split(",") if args.faults is not None else ["transport"]
    return FaultPlan(args.fault_rate, tuple([name.strip() for name in names]), args.seed)


async def _serve(wanted: Options, host: str, port: int) -> None:
    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        endpoint = await start(wanted, host, port)
        show(f"listening on {endpoint.url}")
        await anext(aiter(signals))
        await endpoint.close()
