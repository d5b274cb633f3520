"""A working folder that comes from somebody else: modules with the names of those that programs
import."""

from __future__ import annotations

import sys
from pathlib import Path

PROGRAM = (str(Path(sys.executable).with_name("harness")),)
"""The console script. `python -m` would import from the current folder, as Python does by
itself."""
MODULES = (
    "msgspec",
    "orjson",
    "anyio",
    "numpy",
    "uvloop",
    "aiohttp",
    "harness",
    "sitecustomize",
    "usercustomize",
)
MODULE = """
open({marker!r} + __name__, "w").close()
raise ImportError("a planted module is executed")
"""


def write_modules(folder: Path) -> None:
    """Write modules that leave a mark when they are executed."""
    for name in MODULES:
        (folder / f"{name}.py").write_text(MODULE.format(marker=str(folder / "ran-")))


def ran(folder: Path) -> list[str]:
    """Return the names of the modules that were executed."""
    return sorted(path.name.removeprefix("ran-") for path in folder.glob("ran-*"))
