"""A benchmark with its files, for a process on a machine that has none of them.

What it reads is sent as bytes, by their SHA-256: files of settings (prompts, agents), files in the tasks folder that
every subset needs (maps), and the file of a plug-in. Tasks are not among them: each comes with its user.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from harness.benchmark import Benchmark, Origin
from harness.benchmarks import registry, settings
from harness.benchmarks.files import input_file
from harness.chat import Asking
from harness.model import JSON


@dataclass(frozen=True)
class Shipped:
    """`identity` is that of the settings, `named` field -> kept name of the files that they name. `kept` and `data`
    are SHA-256 by name of all files of settings, and of those in the tasks folder."""

    name: str
    origin: Origin | None
    identity: JSON
    asking: Asking
    named: Mapping[str, str]
    kept: Mapping[str, str]
    data: Mapping[str, str]


def packed(benchmark: Benchmark, contents: dict[str, bytes]) -> Shipped:
    """Return what makes a benchmark again, and add the bytes of its files to `contents`, by SHA-256."""
    files, folder = benchmark.task_files, benchmark.folder
    data = {name: input_file(files.file_in(folder, name)) for name in files.data_files}
    return Shipped(
        name=benchmark.name,
        origin=benchmark.origin,
        identity=benchmark.configuration.identity,
        asking=benchmark.asking,
        named={field: settings.kept_name(field, path) for field, path in settings.files(benchmark.settings).items()},
        kept=_hashes(benchmark.configuration.files, contents),
        data=_hashes(data, contents),
    )


def unpacked(shipped: Shipped, contents: Mapping[str, bytes], folder: Path) -> Benchmark:
    """Return the benchmark; its files are written below an empty `folder`, and stay in use."""
    for place, files in ((folder / "kept", shipped.kept), (folder / "tasks", shipped.data)):
        for name, digest in files.items():
            path = place / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(contents[digest])
    cls, named = _class(shipped), {field: folder / "kept" / kept for field, kept in shipped.named.items()}
    return cls(
        settings.of_run(cls, shipped.identity, named),
        asking=shipped.asking,
        folder=folder / "tasks",
        digests=shipped.kept if named else None,
    )


def _class(shipped: Shipped) -> type[Benchmark]:
    origin = shipped.origin
    if origin is None:
        return registry.find(shipped.name)
    if ":" in origin.spec:  # installed on every machine
        return registry.find(origin.spec)
    return registry.of_file(origin.spec, origin.kept.removeprefix(registry.KEPT), origin.content)


def _hashes(files: Mapping[str, bytes], contents: dict[str, bytes]) -> dict[str, str]:
    digests = {name: sha256(data).hexdigest() for name, data in files.items()}
    contents |= {digests[name]: data for name, data in files.items()}
    return digests
