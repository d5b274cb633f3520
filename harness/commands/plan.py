"""From options, or from an earlier run's manifest, to what a command is going to run."""

from __future__ import annotations

import platform
import subprocess
from argparse import Namespace
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from harness import __version__, benchmarks, config
from harness.commands.address import Found
from harness.endpoint.client import public_url
from harness.endpoint.wire import Sampling
from harness.model import JSON, Benchmark
from harness.store.manifest import Manifest

PACKAGES = ("aiohttp", "anyio", "tenacity", "orjson", "numpy", "scipy", "rich", "json-repair", "uvloop")


@dataclass(frozen=True, slots=True)
class Plan:
    """One configuration over its subsets. `found` is None for baselines, which the embedded endpoint serves."""

    name: str
    benchmark: Benchmark
    settings: JSON
    sampling: Sampling
    tasks: Mapping[str, Path]
    results: Path
    found: Found | None
    tuning: config.Tuning
    ratio: float = 1.0
    sample_seed: int = config.SAMPLE_SEED
    allowed: frozenset[str] = frozenset()
    restart: bool = False

    @property
    def folder(self) -> Path:
        return self.results / self.name

    @property
    def endpoint(self) -> str:
        """The address as files and displays show it."""
        return public_url(self.found.address.url) if self.found else config.EMBEDDED

    def identity(self) -> JSON:
        """Everything that can change a prompt, a request's meaning or an answer."""
        sampling = asdict(self.sampling)
        model = sampling.pop("model")
        return {
            "benchmark": self.benchmark.name,
            "prompt_version": self.benchmark.prompt_version,
            "model": model,
            "sampling": sampling,
            "settings": self.benchmark.identity(),
            "files": {name: sha256(content).hexdigest() for name, content in self.benchmark.files.items()},
        }

    def provenance(self) -> JSON:
        """Recorded; changes are told, not refused."""
        prompt = self.settings.get("prompt")
        return {
            "endpoint": self.endpoint,
            "key_from": self.found.key_from if self.found else None,
            "prompt_path": str(Path(prompt).resolve()) if prompt else None,
            "harness": __version__,
            "parser_version": self.benchmark.parser_version,
            "python": platform.python_version(),
            "packages": {name: found for name in PACKAGES if (found := _version(name))},
            "git": _commit(),
        }


def benchmark_of(name: str, settings: JSON) -> Benchmark:
    made: Benchmark = benchmarks.module(name).configure(settings)
    return made


def settings_of(args: Namespace) -> JSON:
    return {
        "prompt": args.prompt,
        "persona": not args.no_persona,
        "structured": args.structured,
        "parse_retries": args.parse_retries,
    }


def settings_again(manifest: Manifest, folder: Path) -> JSON:
    """The settings of an earlier run. A prompt is read where it was, or else from the copy in the run's folder."""
    settings: dict[str, Any] = dict(manifest.identity["settings"])
    settings["prompt"] = None
    if path := manifest.provenance.get("prompt_path"):
        original = Path(path)
        kept = folder / f"prompt_{original.name.removeprefix('prompt_')}"
        same = original.is_file() and kept.is_file() and original.read_bytes() == kept.read_bytes()
        settings["prompt"] = original if same or not kept.is_file() else kept
    return settings


def sampling_again(manifest: Manifest) -> Sampling:
    return Sampling(model=manifest.identity["model"], **manifest.identity["sampling"])


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _commit() -> str | None:
    """The commit of the harness's own checkout, None outside one."""
    root = Path(__file__).resolve().parent.parent.parent
    if not (root / ".git").exists():
        return None
    try:
        found = subprocess.run(
            ["git", "-C", str(root), "rev-parse", "HEAD"], capture_output=True, text=True, timeout=5, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return found.stdout.strip() or None
