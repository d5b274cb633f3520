"""Check the four lists that are compared, and load those of the ground truth: real residents.
Source: docs/design.md, section 9."""

from __future__ import annotations

import hashlib
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tokenize import TokenError
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from harness.benchmarks.dailymobility import protocols
from harness.benchmarks.dailymobility.day import INTENTIONS, SLOTS
from harness.benchmarks.dailymobility.divergence import divergence
from harness.benchmarks.dailymobility.protocols import (
    LOCATIONS,
    METRICS,
    PROPORTIONS,
    RADIUS,
    SEQUENCES,
    Integers,
    Numbers,
)
from harness.benchmarks.files import content
from harness.errors import BadInput, in_brief
from harness.model import JSON
from harness.scoring.bootstrap import LEVEL, RESAMPLES, Array, chunks
from harness.scoring.libraries import product

SEED = 20_250
NUMBERS = np.arange(1, len(INTENTIONS) + 1)

SUM_SLACK = 0.036
"""Seven shares rounded to two decimals sum to 1 within 0.035."""
ROUNDING = 1e-9

MALFORMED = (
    ArithmeticError,
    EOFError,
    LookupError,
    MemoryError,
    RecursionError,
    TypeError,
    ValueError,
)
"""Errors of a decoder for data that is none, or made to do harm."""
UNREADABLE = (*MALFORMED, BadZipFile, OSError, SyntaxError, TokenError)
"""Errors of numpy for a file that is no array, or one with an odd header."""
MAX_MESSAGE_CHARACTERS = 120
"""Of numpy's message in ours."""


@dataclass(frozen=True, slots=True)
class Field:
    """The content of one list for each resident: a number, or a row of `columns` numbers."""

    name: str
    expected: str
    minimum: float
    maximum: float = math.inf
    columns: int | None = None
    column: str = ""
    is_integer: bool = False

    @property
    def row_shape(self) -> tuple[int, ...]:
        if self.columns is None:
            return ()
        return (self.columns,)


FIELDS: Mapping[str, Field] = {
    RADIUS: Field(RADIUS, "a number of metres, 0 or more", 0.0, 1e12),
    LOCATIONS: Field(LOCATIONS, "a number of locations, 1 or more", 1.0),
    SEQUENCES: Field(
        SEQUENCES,
        "a whole number from 1 to 7",
        1.0,
        7.0,
        columns=SLOTS,
        column="slot",
        is_integer=True,
    ),
    PROPORTIONS: Field(
        PROPORTIONS,
        "a share from 0 to 1",
        -ROUNDING,
        1 + ROUNDING,
        columns=len(INTENTIONS),
        column="intention",
    ),
}

Column = NDArray[np.floating | np.integer]


@dataclass(frozen=True, slots=True, eq=False)
class Lists:
    """Of n residents, by field: radii (n) in metres, locations (n), sequences (n x 48), proportions
    (n x 7)."""

    columns: Mapping[str, Column]

    @classmethod
    def from_values(cls, values: Mapping[str, Array]) -> Lists:
        """Make lists of values by field that passed `check`."""
        columns: dict[str, Column] = {**values}
        columns[SEQUENCES] = values[SEQUENCES].astype(np.uint8)
        # `check` lets rounding errors pass.
        columns[PROPORTIONS] = values[PROPORTIONS].clip(0.0, 1.0)
        return cls(columns)

    @property
    def residents(self) -> int:
        return len(self.columns[RADIUS])

    @property
    def slots(self) -> Integers:
        """The number of residents by slot and intention: 48 x 7."""
        return count_slots(self.columns[SEQUENCES])

    @property
    def sample(self) -> protocols.Sample:
        return {
            RADIUS: Numbers.count(self.columns[RADIUS]),
            LOCATIONS: Numbers.count(self.columns[LOCATIONS]),
            PROPORTIONS: Numbers.count(self.columns[PROPORTIONS]),
            SEQUENCES: Numbers.tallied(NUMBERS, self.slots.sum(axis=0)),
        }


def count_slots(sequences: Column) -> Integers:
    """Return 48 x 7 counts of residents x 48 intentions."""
    return np.stack([(sequences == number).sum(axis=0) for number in NUMBERS], axis=1)


def check(field: Field, values: Array, where: str) -> None:
    """Raise `BadInput` that names the first row (from 1) with a number that the field may not
    hold."""
    is_valid = np.isfinite(values) & (values >= field.minimum) & (values <= field.maximum)
    if field.is_integer:
        is_valid &= values == np.floor(values)

    if not is_valid.all():
        cell = tuple(np.argwhere(~is_valid)[0].tolist())
        raise bad(field, where, cell, values[cell].item())

    if field.name == PROPORTIONS:
        sums = values.sum(axis=1)
        is_off = np.abs(sums - 1) > SUM_SLACK
        if is_off.any():
            row = int(is_off.argmax())
            raise BadInput(
                f"{where}: row {row + 1}: expected shares that sum to 1, got {sums[row]:.6g}"
            )


def bad(field: Field, where: str, cell: Sequence[int], value: object) -> BadInput:
    """Return the error for a row, or for a row and column; both are counted from 0."""
    place = f"row {cell[0] + 1}"
    if len(cell) > 1:
        place += f", {field.column} {cell[1] + 1}"
    return BadInput(f"{where}: {place}: expected {field.expected}, got {in_brief(value)}")


FOLDER = "groundtruth"
FILES = {
    "gyration_radius": RADIUS,
    "daily_location_numbers": LOCATIONS,
    "daily_intentions_2d": SEQUENCES,
    "intention_proportions_2d": PROPORTIONS,
}
"""Name of a file of the ground truth, without its `.npy` -> its list."""


@dataclass(frozen=True, slots=True, eq=False)
class GroundTruth:
    """`sample`, `slots` and `totals` (the counts by bin of the aligned protocol) are those of
    `lists`; `sha256` is over the bytes of the four files."""

    lists: Lists
    sha256: str
    sample: protocols.Sample
    slots: Integers
    support: protocols.Support
    totals: Integers

    @classmethod
    def from_lists(cls, lists: Lists, sha256: str) -> GroundTruth:
        sample = lists.sample
        support = protocols.Support.from_truth(sample)
        return cls(lists, sha256, sample, lists.slots, support, support.counts(sample))

    @property
    def residents(self) -> int:
        return self.lists.residents

    @property
    def counts(self) -> Integers:
        """Return the counts by bin of each resident: residents x bins."""
        histograms = []
        for metric in METRICS:
            size = protocols.SIZES[metric]
            places = self.support.place(metric, self.lists.columns[metric])
            rows = places.reshape(self.residents, -1)
            histograms.append(np.stack([np.bincount(row, minlength=size) for row in rows]))
        return np.hstack(histograms)

    def ceiling(self, residents: int) -> JSON:
        """Return what so many residents score (1 or more) that are drawn from the ground truth with
        replacement.

        It is the mean of the draws and their middle 95 %, of the score and of the divergence per
        slot, averaged over the day (docs/statistics.md, DailyMobility).
        """
        rng = np.random.default_rng(SEED)
        counts = self.counts
        sequences = self.lists.columns[SEQUENCES]
        by_intention = [sequences == number for number in NUMBERS]
        share = np.full(self.residents, 1 / self.residents)
        score_chunks = []
        slot_chunks = []
        for size in chunks(self.residents, RESAMPLES):
            # How often each real resident is drawn says all: figures are of sums over residents.
            drawn = rng.multinomial(residents, share, size=size).astype(np.float64)
            drawn_slots = np.stack([product(drawn, chosen) for chosen in by_intention], axis=2)
            figures = protocols.figures(self.totals, product(drawn, counts))
            score_chunks.append(100 * figures[:, 0])
            slot_chunks.append(divergence(self.slots, drawn_slots).mean(axis=1))

        scores = np.concatenate(score_chunks)
        slots = np.concatenate(slot_chunks)
        middle = (1 - LEVEL) / 2, (1 + LEVEL) / 2
        return {
            "residents": residents,
            "final_score": float(scores.mean()),
            "range95": np.quantile(scores, middle).tolist(),
            "JSD_per_slot": float(slots.mean()),
            "JSD_per_slot_range95": np.quantile(slots, middle).tolist(),
            "resamples": RESAMPLES,
            "seed": SEED,
        }


def load(folder: Path) -> GroundTruth:
    """Return the ground truth in a data folder, or in the folder `groundtruth` of one.

    Raise `BadInput` naming the file and what was expected in it.
    """
    inner = folder / FOLDER
    if not inner.is_dir():
        inner = folder

    digest = hashlib.sha256()
    columns: dict[str, Array] = {}
    for name, metric in FILES.items():
        path = inner / f"{name}.npy"
        try:
            data = content(path)
        except OSError as error:
            expected = f"expected a data folder with {FOLDER}/ in it, or that folder"
            raise BadInput(f"cannot read {path}: {error.strerror} ({expected})") from None

        # One hash over the four files, in the order of FILES.
        digest.update(data)
        columns[metric] = _array(FIELDS[metric], data, path)
        rows = len(columns[metric])
        residents = len(columns[RADIUS])
        if rows != residents:
            raise BadInput(
                f"{path}: expected {residents} residents as in the first file, got {rows} rows"
            )

    # The bins of the radius reach from 0 to the largest one.
    if not columns[RADIUS].any():
        raise BadInput(
            f"{inner / 'gyration_radius.npy'}: expected a radius above 0 for one resident at least"
        )

    return GroundTruth.from_lists(Lists.from_values(columns), digest.hexdigest())


def _array(field: Field, data: bytes, path: Path) -> Array:
    shape = " x ".join(["residents", *map(str, field.row_shape)])
    expected = f"{path}: expected a NumPy array ({shape}) of numbers"
    try:
        # A pickle in an array's file could run any code.
        array = np.load(io.BytesIO(data), allow_pickle=False)
    except UNREADABLE as error:
        message = " ".join(str(error).split())[:MAX_MESSAGE_CHARACTERS]
        raise BadInput(f"{expected}, which it is not ({type(error).__name__}: {message})") from None

    if not isinstance(array, np.ndarray):
        raise BadInput(f"{expected}, got an archive of several")

    if array.dtype.kind not in "fiu":
        raise BadInput(f"{expected}, got the type {array.dtype}")

    if array.shape[1:] != field.row_shape or array.ndim == 0 or not len(array):
        raise BadInput(f"{expected}, got the shape {array.shape}")

    values = array.astype(np.float64)
    check(field, values, str(path))
    return values
