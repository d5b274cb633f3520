"""Calls to the process that plays a run, by the socket next to the run's lock: a JSON object a
line, in both ways.

The socket belongs to the user who plays the run, and answers to that user alone (`control`). A
caller checks this, too: a folder from somebody else may hold any socket.
"""

from __future__ import annotations

import os
import socket
import stat
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path

import msgspec
import orjson

from harness.errors import BadInput, MachineError
from harness.model import JSON, Snapshots
from harness.store.files import RunFiles

ANSWER_MOST = 1 << 22
"""Bytes of an answer, above any that a run gives."""
SECONDS = 5.0
"""How long an answer may take; a run that writes to a slow disk answers late."""
PATH_MOST = 100
"""Bytes of a socket's path: the kernel takes 108, others 104."""
PROGRESS = "progress"
"""Lines of a run's log that curves are drawn from."""
CREDENTIALS = struct.Struct("3i")


def socket_of(files: RunFiles) -> Path:
    """Return the path of a run's socket."""
    return files.lock.with_suffix(".sock")


@contextmanager
def short(path: Path) -> Iterator[str]:
    """Return a path that a socket's address has room for, which leads to the same file. Raise
    `OSError`."""
    if len(os.fsencode(path)) <= PATH_MOST:
        yield str(path)
        return
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


def peer(connection: socket.socket) -> int:
    """Return the user id of the process at the other end."""
    size = CREDENTIALS.size
    _, user, _ = CREDENTIALS.unpack(
        connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    )
    return int(user)


@contextmanager
def connected(files: RunFiles, seconds: float = SECONDS) -> Iterator[ControlConnection]:
    """Connect to the process that plays a run. Raise `BadInput` if there is none, or it is another
    user's."""
    name = f"{files.folder.name}, {files.subset}"
    path = socket_of(files)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(seconds)
        try:
            if not stat.S_ISSOCK(os.lstat(path).st_mode):
                raise BadInput(f"{path} is not a socket")
            with short(path) as address:
                connection.connect(address)
        except (OSError, ValueError) as error:
            why = f" ({error.strerror})" if isinstance(error, PermissionError) else ""
            what = f"is not being played on this machine by you{why}"
            raise BadInput(f"{name} {what}: `harness status` shows the state of runs") from None
        # A folder from somebody else may hold their socket.
        if peer(connection) != os.geteuid():
            raise BadInput(f"{name}: the process at {path} is another user's")
        with connection.makefile("rb") as answers:
            yield ControlConnection(name, connection, answers)


class ControlConnection:
    """A connection to the process that plays a run."""

    def __init__(self, name: str, connection: socket.socket, answers: BufferedReader) -> None:
        self._name = name
        self._connection = connection
        self._answers = answers

    def ask(self, what: str, **more: object) -> JSON:
        """Return the answer to a request. Raise `BadInput` with the reason for one that is refused,
        `MachineError` where the process has ended."""
        try:
            self._connection.sendall(orjson.dumps({"do": what, **more}) + b"\n")
            line = self._answers.readline(ANSWER_MOST)
            answer: object = orjson.loads(line)
        except (OSError, ValueError):
            raise MachineError(
                f"{self._name}: the process that played it does not answer any more"
            ) from None
        if not isinstance(answer, dict):
            raise MachineError(f"{self._name}: an answer of another program")
        if "refused" in answer:
            raise BadInput(f"{self._name}: {answer['refused']}")
        return answer

    def snapshots(self) -> tuple[int, Snapshots]:
        """Return the process and the last snapshots of all its runs."""
        answer = self.ask("snapshots")
        try:
            return int(answer["process"]), msgspec.convert(answer["snapshots"], Snapshots)
        except (KeyError, TypeError, ValueError, msgspec.ValidationError):
            raise MachineError(f"{self._name}: played by another version of the harness") from None
