"""The ledger of a results folder: what its budgets (`--budget`) have spent and reserved, in
`budget.jsonl`.

Guarantee: an amount is in the file before its request is sent, and what the reply gives back comes
after it. So whenever a process dies, the sum of the lines is no less than what was billed within
its reservations; those that it held count as spent. Two processes never both take what only one of
them may: the file is locked for as long as one reads what the other has written and appends its own
line. Not covered: file systems without locks, where processes may take at the same moment; a loss
of power (lines are not synced); the removal of the file, after which budgets begin with the saved
replies of the runs that use them.

A line is sealed as those of all logs. `budget` is the unit, and the part of a run that a share is
of; `day` is a date in UTC, empty for what was spent on days that are not known; `amount` is exact,
and negative where something is given back. `reserved` is how much of it is reserved and not spent,
negative where a reservation ends. A reservation lasts as long as a process plays its run, which the
run's lock shows; after that it counts as spent.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import NamedTuple

import msgspec

from harness.cost import plain
from harness.errors import MachineError
from harness.model import JSON
from harness.store.disk import DISK, KEEP, Disk, write_whole
from harness.store.files import runs_in
from harness.store.lock import NO_LOCKS, held
from harness.store.log import decode_or_empty, encode_line, has_valid_crc, valid_lines
from harness.store.manifest import is_file_name

NAME = "budget.jsonl"
FORMAT = 1
NOTHING = Decimal(0)

_Key = tuple[str, str, str]
"""Budget, run and day."""


class DaySum(NamedTuple):
    """What the lines of a run and day add up to, and how much of it is reserved."""

    run: str
    day: str
    amount: Decimal
    reserved: Decimal


class Ledger:
    """A results folder's ledger. `clock` gives seconds since the epoch. Raise `MachineError` if it
    cannot be used."""

    def __init__(self, folder: Path, clock: Callable[[], float], disk: Disk = DISK) -> None:
        self._path = folder / NAME
        self._clock = clock
        self._disk = disk
        self._read = 0
        self._sums: dict[_Key, tuple[Decimal, Decimal]] = {}
        try:
            self._fd = disk.open(self._path, KEEP)
        except OSError as error:
            raise MachineError(f"cannot open {self._path}: {error.strerror}") from error
        # Of a file that is damaged as a whole no amount is read.
        next(valid_lines(self._path), None)
        with self.locked():
            pass

    def close(self) -> None:
        self._disk.close(self._fd)

    @property
    def today(self) -> str:
        return datetime.fromtimestamp(self._clock(), UTC).date().isoformat()

    def sums(self, budget: str, run: str | None, day: str | None) -> list[DaySum]:
        """Return a budget's sums, of one run or day unless these are None, by the lines read so
        far."""
        return [
            DaySum(entry_run, entry_day, *amounts)
            for (entry_budget, entry_run, entry_day), amounts in self._sums.items()
            if entry_budget == budget and run in (None, entry_run) and day in (None, entry_day)
        ]

    def is_played(self, run: str) -> bool:
        """Return whether a process plays a run of the folder now."""
        folder = self._path.parent / run
        return is_file_name(run) and any(held(files.lock, self._clock) for files in runs_in(folder))

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the lock, with all lines of others read, and a torn one of a dead process ended."""
        try:
            self._lock(fcntl.LOCK_EX)
            try:
                self._catch_up()
                yield
            finally:
                self._lock(fcntl.LOCK_UN)
        except OSError as error:
            raise MachineError(f"cannot use {self._path}: {error.strerror}") from error

    def append(
        self, budget: str, run: str, day: str, amount: Decimal, reserved: Decimal = NOTHING
    ) -> None:
        """Append an amount, and how much of it is reserved; the lock is held."""
        entry: JSON = {"budget": budget, "run": run, "day": day, "amount": plain(amount)}
        if reserved:
            entry["reserved"] = plain(reserved)
        line = encode_line({**entry, "format": FORMAT})
        os.lseek(self._fd, 0, os.SEEK_END)
        write_whole(self._disk, self._fd, line)
        self._read += len(line)
        self._count(line)

    def _lock(self, how: int) -> None:
        try:
            fcntl.flock(self._fd, how)
        except OSError as error:
            # Without locks the file is still written: two processes may then take the same amount.
            if error.errno not in NO_LOCKS:
                raise

    def _catch_up(self) -> None:
        size = os.fstat(self._fd).st_size
        # Lines that were counted are gone, or others have their offsets: no sum could be trusted.
        if size < self._read:
            raise OSError(errno.ESTALE, "another program has shortened it")
        line = b"\n"
        with open(self._fd, "rb", closefd=False) as file:
            file.seek(self._read)
            for line in file:
                self._read += len(line)
                self._count(line)
        # A process died within its line, and the next line must not become part of it.
        if not line.endswith(b"\n"):
            os.lseek(self._fd, 0, os.SEEK_END)
            write_whole(self._disk, self._fd, b"\n")
            self._read += 1

    def _count(self, line: bytes) -> None:
        """Add a line that is whole and as this class writes it."""
        line = line.rstrip()
        if not has_valid_crc(line):
            return
        data = decode_or_empty(line)
        try:
            amount = Decimal(str(data.get("amount")))
            reserved = Decimal(str(data.get("reserved", 0)))
            key = msgspec.convert((data.get("budget"), data.get("run"), data.get("day")), _Key)
        except (InvalidOperation, msgspec.ValidationError):
            return
        # NaN and Infinity are valid decimals, and would spoil every later sum.
        if amount.is_finite() and reserved.is_finite():
            amount_before, reserved_before = self._sums.get(key, (NOTHING, NOTHING))
            self._sums[key] = amount_before + amount, reserved_before + reserved
