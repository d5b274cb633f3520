"""A target's corpus as it is kept between runs: a folder of inputs, and beside it how many executions they are from."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import orjson


class Kept:
    """The corpus of `target` under `folder`, which is made where it is missing."""

    def __init__(self, folder: Path, target: str) -> None:
        self.inputs = folder / target
        self.inputs.mkdir(parents=True, exist_ok=True)
        self._note = folder / f"{target}.json"
        self.executions: int = orjson.loads(self._note.read_bytes())["executions"] if self._note.exists() else 0

    def __len__(self) -> int:
        return sum(1 for _ in self.inputs.iterdir())

    def minimise(self, fuzzer: Sequence[str], environment: Mapping[str, str]) -> None:
        """Keeps of the inputs the smallest that reach all that they reach; `fuzzer` is the command for the target."""
        fewer = self.inputs.with_name(self.inputs.name + ".fewer")
        fewer.mkdir(exist_ok=True)
        command = [*fuzzer, "-merge=1", str(fewer), str(self.inputs)]
        merged = subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        if merged.returncode == 0:
            _empty(self.inputs)
            for path in list(fewer.iterdir()):
                path.rename(self.inputs / path.name)
        _empty(fewer)
        fewer.rmdir()

    def grown(self, executions: int) -> None:
        """Notes that this many more have been spent on it."""
        self.executions += executions
        self._note.write_bytes(orjson.dumps({"executions": self.executions, "inputs": len(self)}))


def _empty(folder: Path) -> None:
    for path in folder.iterdir():
        path.unlink()
