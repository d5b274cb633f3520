"""`python -m tests.support.endpoint_double`: the endpoint as a process, until it is interrupted."""

from __future__ import annotations

import argparse
import signal
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import anyio

from tests.support.endpoint_double.app import Options, start
from tests.support.endpoint_double.faults import FaultPlan
from tests.support.endpoint_double.imitate import NAMES


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.support.endpoint_double")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000, help="0 for any free one")
    parser.add_argument("--latency", type=float, default=0.0, help="mean seconds to a reply")
    parser.add_argument("--jitter", type=float, default=0.0, help="sigma of the lognormal latency")
    parser.add_argument("--fault-rate", type=float, default=0.0, help="share of the requests")
    parser.add_argument("--faults", default="transport", help="kinds and groups, with commas")
    parser.add_argument("--imitate", choices=NAMES)
    parser.add_argument("--api-key-file", type=Path, help="refuse requests without this key")
    parser.add_argument("--max-concurrency", type=int, help="refuse with 429 beyond")
    parser.add_argument("--batch-seconds", type=float, default=0.0)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args(arguments)


def options_of(args: argparse.Namespace) -> Options:
    kinds = tuple(name.strip() for name in args.faults.split(","))
    key_file: Path | None = args.api_key_file
    return Options(
        latency=args.latency,
        jitter=args.jitter,
        faults=FaultPlan(args.fault_rate, kinds, args.seed) if args.fault_rate else None,
        max_concurrency=args.max_concurrency,
        seed=args.seed,
        imitate=args.imitate,
        key=key_file.read_text(encoding="utf-8").strip() if key_file else None,
        batch_seconds=args.batch_seconds,
    )


async def serve(options: Options, host: str, port: int) -> None:
    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        endpoint = await start(options, host, port)
        print(f"listening on {endpoint.url}", flush=True)
        await anext(aiter(signals))
        await endpoint.close()


def main(arguments: Sequence[str] | None = None) -> None:
    args = parsed(arguments)
    backend = {"use_uvloop": find_spec("uvloop") is not None}
    anyio.run(serve, options_of(args), args.host, args.port, backend_options=backend)


if __name__ == "__main__":
    main()
