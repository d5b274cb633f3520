"""Lines of a run's files, each as it was written, and the saved responses of each user."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import numpy as np

from harness.benchmarks.files import open_regular
from harness.model import JSON, Completion, role_of
from harness.store.log import Line, decode_line, has_valid_crc, line_at, lines
from harness.store.tasks import key_hash

Beat = Callable[[], None]
TORN = "torn or changed since it was written"


def opened(path: Path, beat: Beat) -> Iterator[tuple[str, int, Line, JSON | None]]:
    """Yield each line of a log that is not blank: its place in words, its number, itself, and its
    object if it is unchanged."""
    for number, line in enumerate(lines(path), 1):
        beat()
        if line.text:
            yield f"{path.name}, line {number}", number, line, _object(line)


def _object(line: Line) -> JSON | None:
    if not has_valid_crc(line.text) or not line.ended:
        return None
    try:
        return decode_line(line.text)
    except ValueError:
        return None


def _key(data: JSON, line: Line) -> str:
    """Return what no two responses have in common."""
    key = [str(data.get(name)) for name in ("user_id", "repeat", "request", "nth")]
    if role_of(str(data.get("request"))):
        key.append(str(line.offset))  # a role is asked again after an unusable reply
    return " ".join(key)


class Replies:
    """The saved responses of a run, by the position of their user, from `find`. Each takes 32 bytes
    of memory."""

    def __init__(
        self, path: Path, find: Callable[[JSON], int | None], beat: Callable[[], None]
    ) -> None:
        self._path = path
        self._find = find
        self._beat = beat
        self._positions = np.empty(0, np.int64)
        self._offsets = np.empty(0, np.int64)

    def findings(self) -> Iterator[str]:
        """Read them all, and yield what is wrong with single lines."""
        line_numbers = array("q")
        user_positions = array("q")
        line_offsets = array("q")
        key_hashes = array("Q")
        for place, number, line, data in opened(self._path, self._beat):
            if data is None:
                yield f"{place}: {TORN}"
                continue
            position = self._find(data)
            line_numbers.append(number)
            user_positions.append(-1 if position is None else position)
            line_offsets.append(line.offset)
            key_hashes.append(key_hash(_key(data, line)))
        positions = np.frombuffer(user_positions, np.int64)
        order = np.argsort(positions, kind="stable")
        self._positions = positions[order]
        self._offsets = np.frombuffer(line_offsets, np.int64)[order]
        # Lines with equal keys are neighbours in this order, the first one in front.
        order = np.argsort(key_hashes, kind="stable")
        sorted_hashes = np.frombuffer(key_hashes, np.uint64)[order]
        repeated = order[1:][np.diff(sorted_hashes) == 0]
        for number in np.sort(np.frombuffer(line_numbers, np.int64)[repeated]):
            yield f"{self._path.name}, line {number}: duplicate response"

    def completions(self, position: int) -> dict[tuple[str, int], Completion]:
        """Return a user's, by request digest and how many times it was sent before. Raise
        `MISSHAPEN`."""
        completions = dict[tuple[str, int], Completion]()
        for data in self.lines(position):
            completion = msgspec.convert(data["completion"], Completion)
            completions[data["request"], data["nth"]] = completion
        return completions

    def lines(self, position: int) -> Iterator[JSON]:
        """Yield the lines of a user's, in the order of the file."""
        first, last = np.searchsorted(self._positions, (position, position + 1))
        if first < last:
            with open_regular(self._path) as file:
                for offset in self._offsets[first:last]:
                    yield decode_line(line_at(file, int(offset)))
