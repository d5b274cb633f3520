"""Rows as CSV, JSON lines or Parquet: the same columns in every row, and one type a column."""

from __future__ import annotations

import codecs
import csv
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, BinaryIO

import orjson

from harness.errors import BadInput, to_install
from harness.model import JSON
from harness.printable import in_cell
from harness.store import atomic

Scalar = bool | int | float | str | None
SCALARS = (bool, int, float, str)
INT64_LIMIT = 2**63
"""Whole numbers from here on are no 64-bit integers: their column is one of fractions."""
GROUP_ROWS = 20_000
"""Rows that Parquet files keep together, and that are in memory at once."""


@dataclass(frozen=True, slots=True)
class Spool:
    """Rows in a temporary file, and the type of each of their columns in the order of their first
    use."""

    file: BinaryIO
    columns: dict[str, type]

    def add(self, row: JSON) -> int:
        """Add a row; return 1, for counting."""
        for name, value in row.items():
            self.columns[name] = _wider(self.columns.get(name), value)
        self.file.write(as_json(row) + b"\n")
        return 1

    def rows(self) -> Iterator[dict[str, Scalar]]:
        self.file.seek(0)
        for line in self.file:
            row = orjson.loads(line)
            yield {name: _as(kind, row.get(name)) for name, kind in self.columns.items()}


def write(path: Path, form: str, rows: Iterable[JSON]) -> int:
    """Write rows as `csv`, `jsonl` or `parquet`; return their number."""
    writing = {"csv": _csv, "jsonl": _jsonl, "parquet": _parquet}[form]
    with atomic.replacing(path, shared=True) as target, TemporaryFile() as file:
        # Columns and their types are known only after the last row, so rows wait in a file.
        spool = Spool(file, {})
        count = sum(map(spool.add, rows))
        writing(spool, target)
    return count


def as_json(data: object) -> bytes:
    """Return data of a record as JSON. Raise `BadInput` for what is nested too deeply to be written
    again."""
    try:
        return orjson.dumps(data)
    except TypeError as error:
        raise BadInput(f"a record cannot be exported: {error}") from None


def check(form: str) -> None:
    """Raise `BadInput` if a format needs a package that is not installed."""
    if form == "parquet":
        _pyarrow()


def _wider(current: type | None, value: object) -> type:
    """Return the type of a column that has had values of a type, and now has this one; `NoneType`
    for none yet."""
    kind = type(value)
    if value is None:
        return current or type(None)
    # A column of JSON text takes what has no type of its own in a table.
    if kind not in SCALARS:
        return str
    if type(value) is int and not -INT64_LIMIT <= value < INT64_LIMIT:
        kind = float
    if current in (None, type(None), kind):
        return kind
    if {current, kind} == {int, float}:
        return float
    return str


def _as(kind: type, value: Any) -> Scalar:
    """Return a value in the type of its column; lists and objects are JSON."""
    scalar: Scalar = value
    if kind is float and value is not None:
        scalar = float(value)
    elif kind is str and not isinstance(value, str | None):
        scalar = orjson.dumps(value).decode()
    return scalar


def _jsonl(spool: Spool, target: BinaryIO) -> None:
    for row in spool.rows():
        target.write(orjson.dumps(row) + b"\n")


def _csv(spool: Spool, target: BinaryIO) -> None:
    """UTF-8 without a byte order mark, as `stats` writes it. Missing values are empty, and texts on
    one line."""
    lines = csv.writer(codecs.getwriter("utf-8")(target), lineterminator="\n")
    lines.writerow(map(in_cell, spool.columns))
    for row in spool.rows():
        lines.writerow(map(_cell, row.values()))


def _cell(value: Scalar) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    return in_cell(value) if isinstance(value, str) else repr(value)


def _parquet(spool: Spool, target: BinaryIO) -> None:
    arrow, parquet = _pyarrow()
    types = {bool: arrow.bool_(), int: arrow.int64(), float: arrow.float64(), str: arrow.string()}
    schema = arrow.schema(
        [(name, types.get(kind, arrow.null())) for name, kind in spool.columns.items()]
    )
    with parquet.ParquetWriter(target, schema) as writer:
        rows = spool.rows()
        # In groups: a table of all rows would be held in memory.
        while group := list(islice(rows, GROUP_ROWS)):
            writer.write_table(arrow.Table.from_pylist(group, schema))


def _pyarrow() -> tuple[Any, Any]:
    """Return the modules of pyarrow, which is an extra of this package."""
    try:
        import pyarrow
        from pyarrow import parquet

        return pyarrow, parquet
    except ModuleNotFoundError:
        raise BadInput(
            "--format parquet needs pyarrow (or take --format jsonl):"
            f" {to_install('behavior-harness[export]')}"
        ) from None
