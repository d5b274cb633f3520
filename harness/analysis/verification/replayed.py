"""Play users again from their saved responses, and compare the records that were made of these."""

from __future__ import annotations

import asyncio
import hashlib
import math
from array import array
from collections.abc import Callable, Iterator, Mapping
from glob import escape
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from harness.analysis.saved_runs import SavedRun
from harness.benchmark import Benchmark
from harness.benchmarks.files import DOCUMENT_MOST, content, open_regular
from harness.endpoint.request_body import Sampling
from harness.engine.play import play, recorded
from harness.engine.replay import ReplayMiss, replaying
from harness.errors import BadInput, BenchmarkError, MachineError
from harness.model import JSON, Completion, Usage
from harness.store.log import Line, line_at, lines, sound, unseal
from harness.store.run import RunFiles
from harness.store.tasks import key_hash

MISSHAPEN = (BadInput, BenchmarkError, KeyError, TypeError, ValueError, AttributeError, IndexError)
"""Errors of a line that has a correct checksum but is not ours."""

TORN = "torn or changed since it was written"

AGREE = 1e-12
"""Two machines add up the same numbers to within this share of the sum."""


def benchmark_of(run: SavedRun, folder: Path | None) -> tuple[Benchmark, str | None]:
    """Return the benchmark of a run, and why its records cannot be replayed from the saved responses, if so."""
    why = _unplayable(run)
    made = run.as_it_was(folder, play=why is None)
    if why is None:
        now = {name: hashlib.sha256(data).hexdigest() for name, data in made.all_files.items()}
        was = run.manifest.identity
        if was.get("prompt_version") != made.version or was["files"] != now:
            why = "its prompt has changed"
        elif run.manifest.provenance.get("parser_version") != made.parser_version:
            why = "the parser has changed"
        elif run.manifest.provenance.get("allowed"):
            why = "it was resumed with other settings"
    return made, why and f"records were compared with the saved responses by their counts alone: {why}"


def _unplayable(run: SavedRun) -> str | None:
    if run.has_code:
        return "playing them again would run the run's own code"
    if any(path != run.files.folder / name for name, path in kept(run.files, run.manifest.identity["files"]).items()):
        return "its prompt is not in the folder"
    return None


def kept(files: RunFiles, digests: Mapping[str, Any]) -> dict[str, Path | None]:
    """Return where the bytes of each prompt or agent file are: under its name, or in a backup; None if nowhere."""
    return {name: _copy(files.folder, name, digest) for name, digest in digests.items()}


def _copy(folder: Path, name: str, digest: Any) -> Path | None:
    copies = (folder / name, *sorted(folder.glob(f"{escape(name)}.before-*")))
    return next((path for path in copies if path.is_file() and _sha256(path) == digest), None)


def _sha256(path: Path) -> str:
    try:
        return hashlib.sha256(content(path, DOCUMENT_MOST)).hexdigest()
    except OSError as error:
        raise MachineError(f"cannot read {path}: {error.strerror}") from error


class Player:
    """Plays users again from their saved responses."""

    def __init__(self, benchmark: Benchmark, sampling: Sampling, loop: asyncio.Runner) -> None:
        self._benchmark = benchmark
        self._sampling = sampling
        self._loop = loop

    def wrong(self, task: Any, data: JSON, saved: Mapping[tuple[str, int], Completion]) -> str | None:
        """Return how a record differs from what the responses give, None if it does not."""
        conversation = replaying(self._sampling, saved)
        try:
            made = recorded(self._benchmark, task, self._loop.run(play(self._benchmark, task, conversation.ask)))
        except ReplayMiss:
            return "was made of a missing response"
        found = {name: value for name, value in data.items() if name not in ("task", "format")}
        name = unlike(found, orjson.loads(orjson.dumps(made)))
        return None if name is None else f"is not what the saved responses give ({name} differs)"


def counted(data: JSON, saved: Mapping[tuple[str, int], Completion]) -> str | None:
    """Return what is wrong without playing: the number of responses, and their tokens if none is unused."""
    usage, whole = data["usage"], Usage()
    if len(saved) < usage["requests"]:
        return f"was made of {usage['requests']} responses, and {len(saved)} of them are there"
    for completion in saved.values():
        whole = whole.plus(completion)
    spare = len(saved) > usage["requests"]
    return None if spare or whole.data == usage else "has other tokens than its saved responses"


class Replies:
    """The saved responses of a run, by the position of their user, from `find`. Each takes 32 bytes of memory."""

    def __init__(self, path: Path, find: Callable[[str], int | None], beat: Callable[[], None]) -> None:
        self._path = path
        self._find = find
        self._beat = beat
        self._positions, self._offsets = np.empty(0, np.int64), np.empty(0, np.int64)

    def findings(self) -> Iterator[str]:
        """Read them all, and yield what is wrong with single lines."""
        numbers, positions, offsets, keys = array("q"), array("q"), array("q"), array("Q")
        for number, line in enumerate(lines(self._path), 1):
            self._beat()
            data = opened(line)
            if data is None:
                yield f"{self._path.name}, line {number}: {TORN}"
                continue
            position = self._find(str(data.get("user_id")))
            numbers.append(number)
            positions.append(-1 if position is None else position)
            offsets.append(line.offset)
            keys.append(key_hash(f"{data.get('user_id')} {data.get('request')} {data.get('nth')}"))
        order = np.argsort(np.frombuffer(positions, np.int64), kind="stable")
        self._positions = np.frombuffer(positions, np.int64)[order]
        self._offsets = np.frombuffer(offsets, np.int64)[order]
        for number in _repeated(np.frombuffer(keys, np.uint64), np.frombuffer(numbers, np.int64)):
            yield f"{self._path.name}, line {number}: duplicate response"

    def of(self, position: int) -> dict[tuple[str, int], Completion]:
        """Return a user's, by request digest and how many times it was sent before. Raise `MISSHAPEN`."""
        first, last = np.searchsorted(self._positions, (position, position + 1))
        found = {}
        if first < last:
            with open_regular(self._path) as file:
                for offset in self._offsets[first:last]:
                    data = unseal(line_at(file, int(offset)))
                    found[data["request"], data["nth"]] = Completion(**data["completion"])
        return found


def _repeated(keys: NDArray[np.uint64], numbers: NDArray[np.int64]) -> list[int]:
    """Return the numbers of lines whose key is in an earlier line."""
    order = np.argsort(keys, kind="stable")
    again = order[1:][keys[order][1:] == keys[order][:-1]]
    return sorted(int(number) for number in numbers[again])


def unlike(found: Any, expected: Any, name: str = "") -> str | None:
    """Return the dotted name of the first value that differs, None if all agree; fractions to within `AGREE`."""
    if isinstance(found, dict) and isinstance(expected, dict):
        pairs = [(str(key), found.get(key, ...), expected.get(key, ...)) for key in {**expected, **found}]
    elif isinstance(found, list) and isinstance(expected, list) and len(found) == len(expected):
        pairs = [(str(at), *pair) for at, pair in enumerate(zip(found, expected, strict=True))]
    elif isinstance(found, float) and isinstance(expected, float):
        return None if math.isclose(found, expected, rel_tol=AGREE, abs_tol=AGREE) else name
    else:
        return None if type(found) is type(expected) and found == expected else name or "all of it"
    within = (unlike(one, other, f"{name}.{key}" if name else key) for key, one, other in pairs)
    return next((one for one in within if one is not None), None)


def opened(line: Line) -> JSON | None:
    """Return the object of an unchanged line, None for any other."""
    if not sound(line.text) or line.size != len(line.text) + 1:
        return None
    try:
        return unseal(line.text)
    except ValueError:
        return None
