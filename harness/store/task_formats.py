"""Tasks files in other formats than JSON lines: CSV, Parquet, and any of them compressed by gzip.

Such a file is converted once, into a file of the index folder, one line for each task; all else
reads that. The name of the converted file has size and times of the original, so a changed original
is converted again.
"""

from __future__ import annotations

import csv
import gzip
import io
import os
import shutil
import zlib
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path
from typing import IO, cast

import orjson

from harness.errors import BadInput, to_install
from harness.store.atomic import check_folder, make_folder, replacing

COMPRESSED = ".gz"
CSV, PARQUET = ".csv", ".parquet"
FIELD_BYTES = 1 << 28
"""Longest field of a CSV file; the standard library's own limit is 128 kB."""


def readable(path: Path, cache_folder: Path) -> Path:
    """Return the file itself if it is JSON, else its tasks as JSON lines in the cache folder. Raise
    `BadInput`."""
    is_compressed = path.suffix == COMPRESSED
    original = path.with_suffix("") if is_compressed else path
    if not is_compressed and original.suffix not in (CSV, PARQUET):
        return path
    state = path.stat()
    identity = f"{path.resolve()} {state.st_size} {state.st_mtime_ns} {state.st_ctime_ns}"
    place = blake2b(os.fsencode(identity), digest_size=8).hexdigest()
    suffix = ".jsonl" if original.suffix in (CSV, PARQUET) else original.suffix
    converted = cache_folder / f"{path.name}.{place}{suffix}"
    if not converted.is_file():
        make_folder(cache_folder)
        check_folder(cache_folder)
        with replacing(converted, shared=True) as file:
            _convert(path, original.suffix, file)
    return converted


def _opened(path: Path) -> IO[bytes]:
    return cast(IO[bytes], gzip.open(path)) if path.suffix == COMPRESSED else path.open("rb")


def _convert(path: Path, suffix: str, target: IO[bytes]) -> None:
    try:
        with _opened(path) as source:
            if suffix == CSV:
                target.writelines(_csv_lines(source))
            elif suffix == PARQUET:
                target.writelines(_parquet_lines(source))
            else:
                shutil.copyfileobj(source, target)
    except (OSError, EOFError, zlib.error, csv.Error, ValueError) as error:
        raise BadInput(f"cannot read {path} as {suffix.removeprefix('.')}: {error}") from None


def _csv_lines(source: IO[bytes]) -> Iterator[bytes]:
    """Yield a line for each row, as text by column, at the number of the row's last line in the
    file."""
    csv.field_size_limit(FIELD_BYTES)
    with io.TextIOWrapper(source, encoding="utf-8-sig", newline="") as text:
        rows = csv.DictReader(text, strict=True)
        written = 0
        for row in rows:
            if None in row or None in row.values():
                fields = len(rows.fieldnames or ())
                raise ValueError(
                    f"line {rows.line_num}: expected {fields} fields, as in the first line"
                )
            # Blank lines stand for the line ends within quoted fields, so that errors name the
            # right line.
            yield b"\n" * (rows.line_num - 1 - written)
            yield orjson.dumps(row) + b"\n"
            written = rows.line_num


def _parquet_lines(source: IO[bytes]) -> Iterator[bytes]:
    try:
        from pyarrow import parquet
    except ImportError:
        raise BadInput(f"tasks in Parquet need pyarrow: {to_install('pyarrow')}") from None
    for batch in parquet.ParquetFile(source).iter_batches():
        for row in batch.to_pylist():
            # Columns may have types that JSON lacks, such as times.
            yield orjson.dumps(row, default=str) + b"\n"
