"""The index of a tasks file: one pass validates every line and keeps some tens of bytes of each.

The lines of a file named `.json` are the elements of its array. Tasks are read again from the file
when they are played, so memory does not grow with its size (docs/design.md, section 4).

A cached index is used while the file's size and times are the same. A cache is in a results folder,
which may come from somebody else, and an index decides which users there are: but nobody can know
to the nanosecond when a file of this machine was changed last (`ctime`), which no program can set.
"""

from __future__ import annotations

import os
import struct
import zipfile
from collections.abc import Callable
from contextlib import suppress
from hashlib import blake2b, sha256
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from harness.benchmark import Benchmark, Task
from harness.benchmarks.files import open_regular
from harness.benchmarks.tasks import parse
from harness.errors import BadInput, MachineError, as_machine_error
from harness.model import JSON, Where
from harness.store.atomic import check_folder, replacing
from harness.store.jsonl import Unexpected, elements, plain_lines
from harness.store.manifest import WHOLE, Selection, part_of, slice_of
from harness.store.task_formats import readable

FORMAT = 5
Measured = Callable[[bytes, Where], tuple[str, int]]
"""Validate a line and return its user's key and number of steps."""


def key_hash(key: str) -> int:
    # Sixty-four bits: among ten million users two share a hash with a chance of 3 in a million.
    return int.from_bytes(blake2b(key.encode(), digest_size=8).digest(), "little")


def line_digest(line: bytes) -> str:
    """Return the content hash of a task: 32 hexadecimal digits for its line without white space at
    the ends."""
    return sha256(line).hexdigest()[:32]


ROW = np.dtype(
    [
        ("offset", "<i8"),
        ("size", "<i4"),
        ("number", "<i8"),
        ("key", "<u8"),
        ("digest", "V16"),
        ("steps", "<i4"),
    ]
)
Indexed = tuple[NDArray[Any], str, int]
"""The `ROW` of each task, the file's SHA-256, and how many users it has."""
PACKED = struct.Struct("<qiqQ16si")
"""A task: where its line is in bytes, the line's number, hashes of key and line, and the expected
steps."""


class TaskIndex:
    """Positions count from 0 in the file's order. With `repeats` each user has as many, one after
    another.

    Lines are read from `content`: the file itself, or its tasks as JSON lines. `users_in_file` are
    more where this is the index of a slice of the file.
    """

    def __init__(
        self,
        path: Path,
        rows: NDArray[Any],
        sha256_hex: str,
        cache: Path,
        users_in_file: int,
        repeats: int = 1,
        content: Path | None = None,
    ) -> None:
        self.path = path
        self.users_in_file = users_in_file
        self.repeats = repeats
        self._cache = cache
        self.sha256 = sha256_hex
        self.rows = rows
        self.steps: NDArray[np.int32] = np.ascontiguousarray(rows["steps"])
        self._keys: NDArray[np.uint64] = np.ascontiguousarray(rows["key"])
        self._order = np.argsort(self._keys, kind="stable")
        self._sorted = self._keys[self._order]
        self._fd = os.open(content or path, os.O_RDONLY | os.O_CLOEXEC)

    def __len__(self) -> int:
        return len(self.steps)

    def close(self) -> None:
        os.close(self._fd)

    def users(self, mask: NDArray[np.bool_] | None = None) -> int:
        """Return the number of users, or of those with any of their repeats in a mask over the
        positions."""
        if mask is None:
            return len(self) // self.repeats
        return int(mask.reshape(-1, self.repeats).any(axis=1).sum())

    def repeat(self, position: int) -> int:
        """Return which of its user's repeats a position is, from 1."""
        return position % self.repeats + 1

    def find(self, key: str, repeat: object = 1) -> int | None:
        """Return the position of a user's repeat, None if there is no such user or repeat."""
        if type(repeat) is not int or not 1 <= repeat <= self.repeats:
            return None
        wanted = np.uint64(key_hash(key))
        rank = int(np.searchsorted(self._sorted, wanted))
        if rank == len(self._sorted) or self._sorted[rank] != wanted:
            return None
        return int(self._order[rank + repeat - 1])

    def position_of(self, data: JSON) -> int | None:
        """Return the position that a line of a run is about, whichever version of the task."""
        # Without repeats `repeat` is a member like any other of a benchmark's record.
        repeat = data.get("repeat", 1) if self.repeats > 1 else 1
        return self.find(str(data.get("user_id")), repeat)

    def current(self, data: JSON) -> int | None:
        """Return the position of the task that a line is about, None if that is gone or has changed
        since."""
        position = self.position_of(data)
        if position is None or self.digest(position) != data.get("task"):
            return None
        return position

    def digest(self, position: int) -> str:
        return bytes(self.rows["digest"][position]).hex()

    def selected(self, selection: Selection) -> NDArray[np.bool_]:
        """Return a mask of the users that a run's manifest selects."""
        file_slice = slice_of(selection)
        if file_slice == WHOLE:
            ratio, seed = selection["ratio"], selection["sample_seed"]
            return self.select(ratio, seed, selection.get("limit"), part_of(selection))
        if self.users() < self.users_in_file:  # this is the index of that slice
            return np.full(len(self), True)
        mask: NDArray[np.bool_] = _in_slice(np.arange(len(self)) // self.repeats, file_slice)
        return mask

    def read(self, position: int) -> bytes:
        """Return the line of a task. Raise `MachineError` if the file is no longer the one that was
        indexed."""
        row = self.rows[position]
        # `pread` keeps no position, so threads may read at once.
        line = os.pread(self._fd, int(row["size"]), int(row["offset"]))
        if line_digest(line) != self.digest(position):
            with suppress(OSError):  # else the next run finds it to be outdated
                self._cache.unlink()
            raise MachineError(
                f"{self.path} has changed since this run began: run again to take up the new"
                " content"
            )
        return line

    def where(self, position: int) -> Where:
        return Where(str(self.path), int(self.rows["number"][position]))

    def task(self, benchmark: Benchmark, position: int, subset: str) -> Task:
        """Return a task, read and parsed from the file. Raise as `read`, and `BadInput`."""
        return parse(benchmark, self.read(position), self.where(position), subset)

    def select(
        self, ratio: float, seed: int, limit: int | None = None, part: tuple[int, int] = (1, 1)
    ) -> NDArray[np.bool_]:
        """Return a mask of a share of the users, or of `limit` of them; for one seed, more include
        fewer. Of these, `part` (i, n) has every n-th in the seed's order from the i-th on, so that
        parts differ by one user at most."""
        users = max(1, round(ratio * self.users())) if limit is None else limit
        # Ranks of hashes, and no random draw: another order of the lines selects the same users.
        order = np.argsort(_mixed(self._keys, seed), kind="stable")
        # A user's repeats have the same key, so they follow one another.
        drawn = order.reshape(-1, self.repeats)[:users]
        number, count = part
        chosen = np.zeros(len(self), dtype=np.bool_)
        chosen[drawn[number - 1 :: count]] = True
        return chosen


def open_index(
    path: Path,
    kind: str,
    measured: Measured,
    cache_folder: Path,
    key_field: str = "user_id",
    part: tuple[int, int] = WHOLE,
    repeats: int = 1,
) -> TaskIndex:
    """Return the index of a tasks file with so many positions for each user, from the cache if that
    is valid. Raise `BadInput` with file, line and field.

    `kind` names the benchmark, subset and version of its rules, `key_field` the field with a user's
    key. Of a `part` i/n only the i-th of n slices is validated, and duplicates are found in it
    alone.
    """
    try:
        state = path.stat()
    except OSError as error:
        raise BadInput(f"cannot read {path}: {error.strerror}") from None
    if not path.is_file():
        raise BadInput(f"{path} is not a file")
    if part != WHOLE:
        kind += f" slice {part[0]}/{part[1]}"
    # Two subsets may be in files of one name, and a benchmark's next version may read other fields.
    place = blake2b(os.fsencode(str(path.resolve()) + kind), digest_size=6).hexdigest()
    cache = cache_folder / f"{path.name}.{place}.npz"
    times = {"mtime_ns": state.st_mtime_ns, "ctime_ns": state.st_ctime_ns}
    stamp = {"format": FORMAT, "kind": kind, "size": state.st_size, "times": times}
    content = readable(path, cache_folder)
    indexed = _load(cache, content, stamp)
    if indexed is None:
        indexed = _build(path, content, measured, key_field, part)
        _save(cache, *indexed, stamp)
    rows, sha256_hex, users = indexed
    return TaskIndex(path, np.repeat(rows, repeats), sha256_hex, cache, users, repeats, content)


def _in_slice(task: int | NDArray[np.int64], part: tuple[int, int]) -> Any:
    """Return whether a task, by its number in the file from 0, is in the slice of a part: every
    n-th is."""
    number, count = part
    return task % count == number - 1


def _build(
    path: Path, content: Path, measured: Measured, key_field: str, part: tuple[int, int]
) -> Indexed:
    hasher = sha256()
    packed = bytearray()
    name = str(path)
    users = 0
    lines_of = elements if content.suffix == ".json" else plain_lines
    try:
        with content.open("rb") as file:
            for line, start, number in lines_of(file, hasher):
                users += 1
                if not _in_slice(users - 1, part):
                    continue
                key, steps = measured(line, Where(name, number))
                digest = sha256(line).digest()[:16]
                packed += PACKED.pack(start, len(line), number, key_hash(key), digest, steps)
    except OSError as error:
        raise BadInput(f"cannot read {path}: {error.strerror}") from None
    except Unexpected as error:
        raise BadInput(f"{Where(name, error.line)}: expected {error}") from None
    if not users:
        raise BadInput(f"{path} holds no tasks")
    if not packed:
        raise BadInput(f"{path} holds no tasks for part {part[0]}/{part[1]}: make fewer parts")
    rows = np.frombuffer(packed, ROW)
    order = np.argsort(rows["key"], kind="stable")
    same = np.flatnonzero(np.diff(rows["key"][order]) == 0)
    if len(same):
        first, second = sorted(rows["number"][order[same[0] : same[0] + 2]].tolist())
        raise BadInput(
            f"{Where(name, second)}: field {key_field}: duplicate user, first in line {first}"
        )
    return rows, hasher.hexdigest(), users


def _mixed(keys: NDArray[np.uint64], seed: int) -> NDArray[np.uint64]:
    """Return keys scattered by a seed (the finaliser of splitmix64), so that their ranks are a fair
    draw."""
    mixed = keys ^ np.uint64(key_hash(f"sample seed {seed}"))
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    scattered: NDArray[np.uint64] = mixed ^ (mixed >> np.uint64(31))
    return scattered


BLOCK = 1 << 20
"""Bytes that any cache may have."""
CACHE_MOST = 32
"""Bytes of a cache for each byte of the tasks file, above `BLOCK`: an entry takes about 50, a task
several."""


def _load(cache: Path, path: Path, stamp: dict[str, object]) -> Indexed | None:
    """Return a cached index, None if there is no valid one; a damaged one, or somebody else's, is
    made again."""
    try:
        with open_regular(cache) as file:
            # Somebody else's cache could be an archive that unpacks to more than the memory.
            if os.fstat(file.fileno()).st_size > BLOCK + CACHE_MOST * path.stat().st_size:
                return None
            # Pickles execute code when they are loaded.
            held = np.load(file, allow_pickle=False)
            saved = orjson.loads(bytes(held["stamp"]))
            digest = saved.pop("sha256")
            users = saved.pop("users")
            return (held["rows"], digest, users) if saved == stamp else None
    except (OSError, ValueError, KeyError, EOFError, RuntimeError, MemoryError, zipfile.BadZipFile):
        return None


def _save(
    cache: Path, rows: NDArray[Any], sha256_hex: str, users: int, stamp: dict[str, object]
) -> None:
    known = {"sha256": sha256_hex, "users": users}
    held = np.frombuffer(orjson.dumps(stamp | known), np.uint8)
    with as_machine_error(f"cannot make {cache.parent}"):
        cache.parent.mkdir(parents=True, exist_ok=True)
    check_folder(cache.parent)
    with replacing(cache, shared=True) as file:
        np.savez(file, stamp=held, rows=rows)
