"""A user's machine for the commands of the documentation: a checkout, its variables, and every
provider on loopback."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.benchmarks import registry
from tests.support import ROOT, free_port
from tests.support.embedded import served
from tests.support.endpoint_double import app, imitate
from tests.support.hub import HubServer, serving_hub

FILES = (
    "harness",
    "bench",
    "docs",
    "examples",
    "requirements",
    "Makefile",
    "pyproject.toml",
    "README.md",
)
PROVIDERS = ROOT / "harness/options/providers.toml"
PROVIDER = re.compile(r'(?ms)^(\[providers\.([\w-]+)\].*?^base_url = )"[^"]*"')
USERS = 4
"""Of each subset."""
KEY = "key-of-a-test"
DEAD_END = "http://127.0.0.1:9"
"""The proxy for hosted providers."""
REVISION = "0123abc"
ADDRESS = re.compile(
    r"https://[\w.-]+\.example\b|http://(?:localhost|[a-z]+\d*|127\.0\.0\.1):(?P<port>\d+|PORT)\b"
)
LISTENING = re.compile(r"(?<=-port )\d+")
ANSWER = (
    '{"profile": "likes most places", "stars": 4, "intention": "sleep", "place": "home",'
    ' "predicted_tags": ["猫"]}'
)
"""To prompts of the benchmarks and agents on the pages."""


@dataclass(frozen=True)
class Machine:
    """`checkout` is to be copied; `endpoint` is the address of one that has every model of the
    pages."""

    checkout: Path
    home: Path
    hub: str
    endpoint: str

    def on_loopback(self, text: str) -> str:
        """Return a piece of shell with addresses of this machine: free ports for what it starts
        itself, and for the rest the endpoint."""
        own = {port: str(free_port()) for port in LISTENING.findall(text)}
        urls = {port: f"http://127.0.0.1:{mine}" for port, mine in own.items()}
        text = LISTENING.sub(lambda found: own[found[0]], text)
        return ADDRESS.sub(lambda found: urls.get(found["port"]) or self._server(found[0]), text)

    def _server(self, url: str) -> str:
        return self.hub if url.startswith("https://hub") else self.endpoint.removesuffix("/v1")

    def executed(self, checkout: Path, script: str, seconds: float) -> tuple[int, str]:
        """Execute a script in a checkout. Return its exit code and its output; end what it has
        started."""
        path, output = checkout.with_suffix(".sh"), checkout.with_suffix(".txt")
        path.write_text(script, "utf-8")
        with output.open("w") as file:
            process = subprocess.Popen(
                ["sh", "-e", path],
                cwd=checkout,
                env=self._environment(checkout),
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        with suppress(subprocess.TimeoutExpired):
            process.wait(seconds)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        return process.wait(), output.read_text("utf-8")

    def _environment(self, checkout: Path) -> dict[str, str]:
        """Return the variables of a user who has keys, and has activated the checkout's
        environment."""
        keys = dict.fromkeys(re.findall('key_env = "(.+)"', PROVIDERS.read_text()), KEY)
        return keys | {
            "PATH": f"{checkout}/.venv/bin{os.pathsep}{os.environ['PATH']}",
            "HOME": str(self.home),
            "LANG": "C.UTF-8",
            "PYTHONPATH": str(checkout),
            "PYTHONHASHSEED": "0",
            "LLM_API_KEY": KEY,
            "OPENAI_BASE_URL": self.endpoint,
            "HF_ENDPOINT": self.hub,
            "HTTPS_PROXY": DEAD_END,
            "NO_PROXY": "127.0.0.1,localhost",
            "SCRATCH": str(self.home),
        }


@contextmanager
def machine(folder: Path, models: set[str]) -> Iterator[Machine]:
    """Serve every provider, an endpoint with these models, and the data sets of the benchmarks that
    ship."""
    checkout, home = folder / "checkout", folder / "home"
    home.mkdir()
    with ExitStack() as stack:
        urls = {
            name: stack.enter_context(served(app.Options(imitate=name))).url
            for name in imitate.NAMES
        }
        endpoint = stack.enter_context(
            served(app.Options(baselines=dict.fromkeys(models, _answer)))
        ).url
        _make(checkout, urls | {"openai": endpoint})
        hub = stack.enter_context(serving_hub(_hub(checkout / "tasks")))
        yield Machine(checkout, home, hub.url, endpoint)


def _make(checkout: Path, urls: Mapping[str, str]) -> None:
    """Copy what users have. This Python is its environment, so nothing has to be installed."""
    checkout.mkdir()
    for name in FILES:
        copy: Any = shutil.copytree if (ROOT / name).is_dir() else shutil.copy2
        copy(ROOT / name, checkout / name)
    (checkout / ".venv").mkdir()
    for entry in Path(sys.prefix).iterdir():
        if entry.suffix != ".made":
            (checkout / ".venv" / entry.name).symlink_to(entry)
    for pins in ROOT.glob(
        "requirements/*.txt"
    ):  # else `make` would install the copy into this very environment
        (checkout / f".venv/{pins.stem}.made").touch()
    shipped = checkout / PROVIDERS.relative_to(ROOT)
    shipped.write_text(
        PROVIDER.sub(
            lambda one: f'{one[1]}"{urls.get(one[2], urls["openai"])}"', shipped.read_text()
        )
    )
    for words in ([], ["dailymobility"]):
        command = [
            sys.executable,
            "-m",
            "harness",
            "synth",
            *words,
            "--out",
            "tasks",
            "--users",
            str(USERS),
        ]
        subprocess.run(command, cwd=checkout, check=True, capture_output=True, timeout=60)


def _hub(tasks: Path) -> HubServer:
    hub = HubServer(
        aliases=tuple(str(registry.find(name).task_files.data_set) for name in registry.SHIPPED)
    )
    hub.refs[REVISION] = hub.commit(
        {str(path.relative_to(tasks)): path.read_bytes() for path in tasks.rglob("*.*")}
    )
    return hub


def _answer(messages: Sequence[Mapping[str, Any]], seed: int) -> str:
    name = registry.reader(
        "\n".join(message["content"] for message in messages if message["role"] == "user")
    )
    return registry.baselines()[name](messages, seed) if name else ANSWER
