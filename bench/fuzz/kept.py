"""A target's corpus as it is kept between runs: a folder of inputs, and beside it what came of the
runs before."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import orjson


@dataclass(frozen=True, slots=True)
class Before:
    """`executions` of all earlier runs; of the last one the `coverage`, the executions since it
    grew, and a hash of the code: while that is the same, the next run goes on counting them."""

    executions: int = 0
    coverage: int = 0
    stale: int = 0
    code: str = ""


NOTHING = Before()


class Kept:
    """The corpus of `target` under `folder`, which is made where it is missing."""

    def __init__(self, folder: Path, target: str) -> None:
        self.inputs = folder / target
        self.inputs.mkdir(parents=True, exist_ok=True)
        self._note = folder / f"{target}.json"
        self.before = (
            Before(**orjson.loads(self._note.read_bytes())) if self._note.exists() else NOTHING
        )

    def __len__(self) -> int:
        return sum(1 for _ in self.inputs.iterdir())

    def minimise(self, fuzzer: Sequence[str], environment: Mapping[str, str]) -> None:
        """Keep of the inputs the smallest that reach all that they reach; `fuzzer` is the command
        for the target."""
        fewer = self.inputs.with_name(self.inputs.name + ".fewer")
        fewer.mkdir(exist_ok=True)
        command = [*fuzzer, "-merge=1", str(fewer), str(self.inputs)]
        merged = subprocess.run(
            command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        if merged.returncode == 0:
            _empty(self.inputs)
            for path in list(fewer.iterdir()):
                path.rename(self.inputs / path.name)
        _empty(fewer)
        fewer.rmdir()

    def note(self, before: Before) -> None:
        self._note.write_bytes(orjson.dumps(asdict(before)))


def _empty(folder: Path) -> None:
    for path in folder.iterdir():
        path.unlink()
