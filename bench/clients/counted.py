"""Another client with what would distort a count of its instructions taken out: SCRIPT and its
arguments.

SHA-256 becomes a checksum that costs next to nothing. A processor has instructions for it, which
valgrind lacks, so the hashes would distort the count. And what goes by the clock, the display and
live scores, is left to the end of the run: a busy machine would count more of it.
"""

from __future__ import annotations

import hashlib
import runpy
import sys
import zlib
from importlib import import_module


class Sum:
    """A checksum of the length and of some of the bytes."""

    digest_size, block_size, name = 32, 64, "sha256"

    def __init__(self, data: bytes = b"", **ignored: bool) -> None:
        self._value = 0
        self.update(data)

    def update(self, data: bytes) -> None:
        self._value = zlib.crc32(b"%d %b" % (len(data), data[:: 1 + len(data) // 64]), self._value)

    def hexdigest(self) -> str:
        return f"{self._value:064x}"

    def digest(self) -> bytes:
        return bytes.fromhex(self.hexdigest())

    def copy(self) -> Sum:
        made = Sum()
        made._value = self._value
        return made


if __name__ == "__main__":
    hashlib.sha256 = Sum  # type: ignore[assignment,misc]
    import_module(
        "harness.engine.local"
    ).TICK_SECONDS = 1e6  # after the line above: its modules take the class
    sys.argv = sys.argv[1:]
    runpy.run_path(sys.argv[0], run_name="__main__")
