"""Call the OpenBLAS of numpy and of scipy only if there is the memory that it takes once and for
all.

Without that memory OpenBLAS ends the process by itself, or tries for ever. So Python first
allocates as much, since it can report a failure. Not covered: what other threads take in between,
and numpy's own start.
"""

from __future__ import annotations

import mmap
from functools import cache
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

NEEDED_BYTES = 128 << 20
"""Bytes of address space. scipy took 75 MB, a first product 33 MB, with the one thread that
`harness.__init__` sets."""

Array = NDArray[np.float64]


@cache
def special() -> ModuleType:
    """Return scipy.special, loaded at its first use: that takes a fifth of a second. Raise
    `MemoryError`."""
    _look_for_room()
    from scipy import special as loaded

    return loaded


def product(a: Array, b: NDArray[Any]) -> Array:
    """Return the matrix product. Raise `MemoryError`."""
    _prepare_products()
    result: Array = a @ b
    return result


@cache
def _prepare_products() -> None:
    _look_for_room()
    ones = np.ones((256, 256))
    np.matmul(ones, ones)  # smaller ones take no memory yet


def _look_for_room() -> None:
    try:
        mmap.mmap(-1, NEEDED_BYTES).close()
    except OSError:
        raise MemoryError(f"{NEEDED_BYTES >> 20} MB for numpy and scipy") from None
