"""The saved replies of another run, found by request (`--reuse`; docs/features/reuse.md)."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from io import BufferedReader
from pathlib import Path

import msgspec
import numpy as np

from harness.benchmarks.files import open_regular
from harness.errors import MachineError
from harness.model import JSON, Reply
from harness.store import log
from harness.store.run import completion_of
from harness.store.tasks import key_hash


class SavedReplies:
    """The replies in a run's file of responses; `name` and `quirks` are that run's. 16 bytes of
    memory for each.

    Only whole lines that are as the harness writes them count, checked again when they are read.
    """

    def __init__(self, path: Path, name: str, quirks: Iterable[str] = ()) -> None:
        self.name = name
        self.quirks = frozenset(quirks)
        self._path = path
        hashes = array("Q")
        offsets = array("Q")
        for line, data in log.objects(path):
            if completion_of(data):
                hashes.append(_hash(data))
                offsets.append(line.offset)
        order = np.argsort(hashes, kind="stable")
        self._hashes = np.array(hashes)[order]
        self._offsets = np.array(offsets)[order]
        self._file: BufferedReader | None = self._opened() if hashes else None

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def reply(self, request: str, nth: int) -> Reply | None:
        """Return the reply to the request with this digest; `nth` is how often it was sent before.
        None without one."""
        wanted = np.uint64(key_hash(f"{request} {nth}"))
        first = np.searchsorted(self._hashes, wanted, "left")
        end = np.searchsorted(self._hashes, wanted, "right")
        # Two requests may have one hash, and a request several replies.
        for offset in self._offsets[first:end].tolist():
            data = self._line(offset)
            if (data.get("request"), data.get("nth")) != (request, nth):
                continue
            saved_reply = self._reply(data)
            if saved_reply:
                return saved_reply
        return None

    def _opened(self) -> BufferedReader:
        try:
            return open_regular(self._path)
        except OSError as error:
            raise MachineError(f"cannot read {self._path}: {error.strerror}") from error

    def _line(self, offset: int) -> JSON:
        assert self._file is not None
        try:
            line = log.line_at(self._file, offset)
        except OSError as error:
            raise MachineError(f"cannot read {self._path}: {error.strerror}") from error
        return log.decode_or_empty(line) if log.has_valid_crc(line) else {}

    def _reply(self, data: JSON) -> Reply | None:
        completion = completion_of(data)
        if not completion:
            return None
        try:
            reply = msgspec.convert(data, Reply)
        except msgspec.ValidationError:
            return None
        return msgspec.structs.replace(reply, completion=completion, reused=self.name)


def _hash(data: JSON) -> int:
    return key_hash(f"{data['request']} {data['nth']}")
