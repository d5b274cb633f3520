"""What a command is going to run, from options or from an earlier run's manifest."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, cast

import msgspec

from harness import __version__, defaults
from harness.benchmark import Benchmark, kept_files
from harness.benchmarks import hash_seed, settings
from harness.benchmarks.registry import check_baseline
from harness.client.request_body import Sampling
from harness.cost import Price
from harness.options.address import ResolvedEndpoint
from harness.options.options import PlayOptions
from harness.store.manifest import (
    EndpointProvenance,
    Identity,
    Manifest,
    Provenance,
    Selection,
    part_of,
)

# Packages whose versions may explain why two runs differ.
PACKAGES = [
    "aiohttp",
    "anyio",
    "tenacity",
    "orjson",
    "numpy",
    "scipy",
    "rich",
    "json-repair",
    "uvloop",
    "pycityproto",
    "shapely",
]


@dataclass(frozen=True, slots=True)
class EndpointChoice:
    """Where requests go, and what they cost. `resolved` is None for baselines, which the harness
    answers itself.

    For the command that resumes it, the command's own values are kept: the names of its `headers`,
    `providers_file` and `ca_file`. `price` is None if it is not known; a run that has one keeps it.
    """

    resolved: ResolvedEndpoint | None = None
    price: Price | None = None
    providers_file: str | None = None
    headers: tuple[str, ...] = ()
    ca_file: str | None = None

    @classmethod
    def of(
        cls, args: PlayOptions, resolved: ResolvedEndpoint | None, price: Price | None
    ) -> EndpointChoice:
        """Return the endpoint of a command."""
        providers_file = None
        if args.providers:
            providers_file = str(args.providers.resolve())
        headers = tuple(name for name, _ in args.extra_header)
        return cls(resolved, price, providers_file, headers, args.ca_file)

    @property
    def endpoint(self) -> str:
        """Return the address without credentials and query, or `embedded`."""
        return self.resolved.shown if self.resolved else defaults.EMBEDDED

    @property
    def provenance(self) -> EndpointProvenance:
        """Return what is recorded of an endpoint."""
        provenance: EndpointProvenance = {
            "endpoint": self.endpoint,
            "key_from": None,
            "provider": None,
            "providers_file": self.providers_file,
            "headers": list(self.headers),
            "address_from": None,
            "ca_file": self.ca_file,
        }
        if self.resolved:
            provenance["key_from"] = self.resolved.key_from
            provenance["address_from"] = self.resolved.address_from
            if self.resolved.provider:
                provenance["provider"] = self.resolved.provider.name
        return provenance

    @property
    def flags(self) -> list[str]:
        """Return the words that name endpoint and certificates again on a command line."""
        arguments = list[str]()
        if self.resolved:
            arguments += self.resolved.flags
        if self.providers_file:
            arguments += ["--providers", self.providers_file]
        if self.ca_file:
            arguments += ["--ca-file", self.ca_file]
        for header in self.headers:
            arguments += ["--extra-header", f"{header}: ..."]
        return arguments


@dataclass(frozen=True, slots=True)
class RunPolicy:
    """On which terms a run begins or goes on: differences from an earlier one that are `allowed`,
    or its `restart`.

    `source` is the file of prompt or agent that an earlier process was given; this one may use a
    copy. `sources` are the files of a plug-in's settings, by field. `primary` is the metric that
    comparisons are to be about, chosen before the run. Without `pages` neither this command nor a
    later `resume` writes any. With `allow_invalid` a run goes on though almost none of its first
    answers can be used. `queued` is what its entry of a queue has for extensions, `earlier` the
    manifest of the run that is resumed.
    """

    allowed: frozenset[str] = frozenset()
    restart: bool = False
    source: str | None = None
    sources: Mapping[str, str] = field(default_factory=dict)
    primary: str | None = None
    allow_invalid: bool = False
    pages: bool = True
    queued: Mapping[str, Any] = field(default_factory=dict)
    earlier: Manifest | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """One configuration over its subsets. Raise `BadInput` for a baseline that the harness does not
    have."""

    name: str
    benchmark: Benchmark
    sampling: Sampling
    tasks: Mapping[str, Path]
    results: Path
    endpoint_choice: EndpointChoice
    tuning: defaults.RunTuning
    selection: Selection = field(
        default_factory=lambda: Selection(ratio=1.0, sample_seed=defaults.SAMPLE_SEED)
    )
    terms: RunPolicy = field(default_factory=RunPolicy)
    roles: Mapping[str, Plan] = field(default_factory=dict)
    """For each role of the benchmark that has a model, a plan with its endpoint, price and limits;
    its parameters are in `sampling.roles`, too."""

    def __post_init__(self) -> None:
        if self.resolved is None:
            check_baseline(self.sampling.model, type(self.benchmark))

    @property
    def resolved(self) -> ResolvedEndpoint | None:
        """Return the addresses of an endpoint, None for baselines."""
        return self.endpoint_choice.resolved

    @property
    def price(self) -> Price | None:
        """Return the price of now, None if it is not known."""
        return self.endpoint_choice.price

    @property
    def folder(self) -> Path:
        return self.results / self.name

    @property
    def repeats(self) -> int:
        """Return how many times each user is played."""
        return self.selection.get("repeats", 1)

    @property
    def limits(self) -> defaults.RunTuning:
        """Return the tuning with this part's share of the limits, if the plan is for a part. Raise
        `BadInput`."""
        return self.tuning.shared(*part_of(self.selection))

    @property
    def endpoint(self) -> str:
        """Return the address without credentials and query, or `embedded`."""
        return self.endpoint_choice.endpoint

    @property
    def hosts(self) -> frozenset[str]:
        """Return the servers of its requests."""
        if self.resolved:
            return self.resolved.hosts
        return frozenset({defaults.EMBEDDED})

    def shares_with(self, other: Plan) -> bool:
        """Return whether both use the same server and key, and so the limits of one account."""
        # With two keys a server counts two accounts, so each has its own limit.
        return self._key == other._key and not self.hosts.isdisjoint(other.hosts)

    @property
    def _key(self) -> str | None:
        # All replicas of a service get the same key.
        return self.resolved.addresses[0].key if self.resolved else None

    def identity(self) -> Identity:
        """Return everything that can change a prompt, a request's meaning or an answer."""
        sampling = self.sampling
        files = kept_files(self.benchmark)
        identity: Identity = {
            "benchmark": self.benchmark.name,
            "prompt_version": self.benchmark.version,
            "model": sampling.model,
            "sampling": sampling.identity,
            "settings": self.benchmark.configuration.identity,
            "files": {name: sha256(content).hexdigest() for name, content in files.items()},
        }
        if sampling.roles:
            identity["roles"] = {
                role: {"model": model.model, "sampling": model.identity}
                for role, model in sorted(sampling.roles.items())
            }
        return identity

    def provenance(self) -> Provenance:
        """Return what is recorded; changes are reported, not refused."""
        configuration = self.benchmark.configuration
        # A run that goes on may be played from its folder's copy, whose path would hide the
        # original.
        source = self.terms.source
        if not source and configuration.path:
            source = str(configuration.path.resolve())
        origin = self.benchmark.origin
        provenance: Any = {
            **self.endpoint_choice.provenance,
            "price": msgspec.to_builtins(self.price),
            "primary": self.terms.primary,
            "benchmark": origin.spec if origin else None,
            "source": source or None,
            "sources": dict(self.terms.sources) or self._sources,
            "harness": __version__,
            "parser_version": self.benchmark.about.parser_version,
            "python": platform.python_version(),
            "packages": dict(_versions()),
            "git": _commit(),
        }
        if not self.terms.pages:
            provenance["html"] = False
        if self.roles:
            provenance["roles"] = {
                role: plan.endpoint_choice.provenance for role, plan in self.roles.items()
            }
        if self.benchmark.imports.runs_code(configuration.identity):
            # String hashing decides the order of sets, and so what an agent's code may do.
            provenance["hash_seed"] = hash_seed.fixed(os.environ)
        return cast(Provenance, provenance)

    @property
    def _sources(self) -> dict[str, str]:
        """Return where the files of settings are; those of a benchmark that ships are next to
        `source`."""
        files = settings.files(self.benchmark.settings) if self.benchmark.origin else {}
        return {name: str(path.resolve()) for name, path in files.items()}


def sampling_again(manifest: Manifest) -> Sampling:
    """Return the parameters of a run's requests, with those of its roles."""
    identity = manifest.identity
    roles = {
        role: Sampling(model=model["model"], **model["sampling"])
        for role, model in identity.get("roles", {}).items()
    }
    return Sampling(model=identity["model"], **identity["sampling"], roles=roles)


@cache
def _versions() -> dict[str, str]:
    """Return the versions of those packages that are installed."""
    versions = {}
    for package in PACKAGES:
        with suppress(PackageNotFoundError):
            versions[package] = version(package)
    return versions


@cache
def _commit() -> str | None:
    """Return the commit of the harness's own checkout, None outside one."""
    root = Path(__file__).resolve().parent.parent.parent
    # Without this, git would answer with the commit of a project in whose folder the package is
    # installed.
    if not (root / ".git").exists():
        return None
    command = ["git", "-C", str(root), "rev-parse", "HEAD"]
    try:
        # A checkout whose git hangs on a network mount must not hold up a run.
        git = subprocess.run(command, capture_output=True, text=True, timeout=5, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return git.stdout.strip() or None
