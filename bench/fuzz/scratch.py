"""Files of the fuzzer's own, for targets that read a path; the driver removes the folder that they
are in."""

from __future__ import annotations

import tempfile
from pathlib import Path


def file(name: str) -> Path:
    """Return a path to write inputs to, in the folder that `TMPDIR` names."""
    return Path(tempfile.gettempdir()) / name


def written(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path
