"""Runs that stand under a results folder, and how a command names them."""

from __future__ import annotations

from argparse import Namespace
from dataclasses import dataclass
from pathlib import Path

from harness.commands import plan
from harness.errors import BadInput
from harness.model import Benchmark
from harness.store.manifest import Manifest, load
from harness.store.run import RunFiles, runs


@dataclass(frozen=True, slots=True)
class Earlier:
    files: RunFiles
    manifest: Manifest

    @property
    def name(self) -> str:
        return self.files.folder.name

    @property
    def tasks(self) -> Path:
        return Path(self.manifest.tasks["path"])

    def benchmark(self) -> Benchmark:
        """The benchmark with the settings of this run."""
        return plan.benchmark_of(
            self.manifest.identity["benchmark"], plan.settings_again(self.manifest, self.files.folder)
        )


def find(args: Namespace) -> list[Earlier]:
    """The runs that `--name`, `--model` and `--platform` name; all where they name none."""
    platforms = {name.lower() for name in args.platform or ()}
    found = []
    for files in runs(args.results_dir):
        if (args.name and files.folder.name != args.name) or (platforms and files.subset not in platforms):
            continue
        manifest = load(files.manifest)
        if manifest is not None and (not args.model or manifest.identity.get("model") == args.model):
            found.append(Earlier(files, manifest))
    return found


def nothing_found(args: Namespace) -> BadInput:
    named = [f"--{name} {value}" for name in ("name", "model", "platform") if (value := getattr(args, name))]
    return BadInput(f"no run under {args.results_dir}{' for ' + ' '.join(named) if named else ''}")
