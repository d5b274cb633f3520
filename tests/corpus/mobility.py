"""Files of DailyMobility that nobody can use: profiles, map, ground truth, lists to score."""

from __future__ import annotations

import io
import pickle
from typing import Any

import numpy as np
import orjson

from harness.benchmarks.dailymobility import synth
from harness.benchmarks.dailymobility.protocols import METRICS
from tests.corpus import Case
from tests.corpus.values import RAW, put, put_raw

RESIDENTS = 3
FILES = synth.files(RESIDENTS, 1)
PROFILES: list[dict[str, Any]] = orjson.loads(FILES["profiles.json"])
MAP = FILES["beijing.pb"]
GOOD_LISTS: dict[str, Any] = dict(
    zip(
        METRICS,
        ([10.5, 0.0], [2, 1.5], [[1] * 48, [7] * 48], [[1, 0, 0, 0, 0, 0, 0]] * 2),
        strict=True,
    )
)


def saved(array: object, version: tuple[int, int] = (1, 0)) -> bytes:
    """An `.npy` file."""
    file = io.BytesIO()
    np.lib.format.write_array(file, np.asanyarray(array), version)
    return file.getvalue()


def _profiles(path: str, value: Any) -> bytes:
    return orjson.dumps(put(PROFILES, path, value))


BAD_PROFILES = (
    Case("empty", b"", ("line 1", "a JSON array")),
    Case("no residents", b"[]", ("holds no tasks",)),
    Case("an object", b'{"id": 1}', ("line 1", "a JSON array")),
    Case("cut off", FILES["profiles.json"][:-10], ("line", "expected")),
    Case(
        "something behind it",
        FILES["profiles.json"] + b"[]",
        ("line", "a JSON array", "trailing characters"),
    ),
    Case("depth", b"[" * 1_000_000, ("line 1", "JSON")),
    Case("depth in a field", put_raw(PROFILES, "1.age", RAW[-1]), ("line", "JSON")),
    Case("NaN", put_raw(PROFILES, "1.age", b"NaN"), ("line", "JSON")),
    Case("half a surrogate pair", put_raw(PROFILES, "1.gender", RAW[5]), ("line", "JSON")),
    Case("a number of 400 digits", put_raw(PROFILES, "1.id", RAW[3]), ("line", "number")),
    Case("a number of 5,000 digits", put_raw(PROFILES, "1.id", b"9" * 5000), ("line",)),
    Case("an id that is text", _profiles("1.id", "2"), ("line", "field id")),
    Case("no home", _profiles("1.home", ...), ("line", "field home", "missing")),
    Case("a home nowhere", _profiles("1.home", 2**63), ("line", "field home", "AOI")),
    Case("work that is a list", _profiles("1.work", [[1]]), ("line", "field work")),
    Case("an id twice", _profiles("1.id", PROFILES[0]["id"]), ("line", "field id", "duplicate")),
    Case("a resident that is null", _profiles("1", None), ("line", "a JSON object")),
)

BAD_MAPS = (
    Case("empty", b"", ("map", "AOI")),
    Case("text", b"hello", ("map",)),
    Case("NUL bytes", b"\x00" * 100, ("map",)),
    Case("cut off", MAP[:-3], ("map",)),
    Case("a pickle", pickle.dumps({"aois": []}), ("map",)),
)

RADII = "groundtruth/gyration_radius.npy"
BAD_ARRAYS = (
    Case("empty", b"", ("NumPy array",)),
    Case("text", b"1,2,3\n", ("NumPy array",)),
    Case("objects", saved(np.array([1.0, None, {}], dtype=object)), ("NumPy array",)),
    Case("text in it", saved(np.array(["1", "2", "3"])), ("NumPy array", "type")),
    Case("true and false", saved(np.ones(RESIDENTS, dtype=bool)), ("NumPy array", "type")),
    Case("complex", saved(np.ones(RESIDENTS, dtype=complex)), ("NumPy array", "type")),
    Case("dates", saved(np.zeros(RESIDENTS, dtype="M8[D]")), ("NumPy array", "type")),
    Case("records", saved(np.zeros(RESIDENTS, dtype=[("a", "f8")])), ("NumPy array", "type")),
    Case("one number", saved(np.float64(3.0)), ("NumPy array", "shape")),
    Case("a column too many", saved(np.ones((RESIDENTS, 1))), ("NumPy array", "shape")),
    Case("no rows", saved(np.ones(0)), ("NumPy array", "shape")),
    Case("NaN", saved(np.array([1.0, np.nan, 2.0])), ("row 2", "nan")),
    Case("infinity", saved(np.array([1.0, np.inf, 2.0])), ("row 2", "inf")),
    Case("below nought", saved(np.array([1.0, 2.0, -1.0])), ("row 3", "-1")),
    Case("all nought", saved(np.zeros(RESIDENTS)), ("a radius above 0",)),
    Case("rows too few", saved(np.ones(RESIDENTS - 1)), ("residents",)),
    Case("cut off", saved(np.ones(RESIDENTS))[:-1], ("NumPy array",)),
    Case(
        "a version to come", b"\x93NUMPY\x09\x00" + saved(np.ones(RESIDENTS))[8:], ("NumPy array",)
    ),
    Case(
        "a shape that no memory holds",
        saved(np.ones(RESIDENTS)).replace(b"(3,), }" + b" " * 16, b"(9999999999999999,), }" + b" "),
        ("NumPy array",),
    ),
    Case(
        "a header of 60,000 brackets",
        b"\x93NUMPY\x01\x00\x60\xea" + b"(" * 60_000,
        ("NumPy array",),
    ),
    Case("an archive", b"PK\x05\x06" + b"\x00" * 18, ("NumPy array",)),
)


class _Harm:
    """Says in a pickle that a function is to be called."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (open, ("harm", "w"))


def _lists(path: str, value: Any) -> bytes:
    return orjson.dumps(put(GOOD_LISTS, path, value))


BAD_LISTS = (
    Case("empty", b"", ("JSON",)),
    Case("a list", b"[]", ("an object", "got [")),
    Case("null", b"null", ("an object", "got None")),
    Case("no lists", b"{}", ("gyration_radius", "missing")),
    Case("results that are no object", b'{"results": []}', ("missing",)),
    Case("empty lists", orjson.dumps({name: [] for name in GOOD_LISTS}), ("one resident",)),
    Case("cut off", orjson.dumps(GOOD_LISTS)[:-1], ("JSON",)),
    Case("depth", b'{"a":' * 100_000, ("JSON",)),
    Case("depth in a list", put_raw(GOOD_LISTS, "gyration_radius.0", RAW[-1]), ("JSON",)),
    Case(
        "NaN", put_raw(GOOD_LISTS, "gyration_radius.1", b"NaN"), ("gyration_radius", "row 2", "nan")
    ),
    Case(
        "infinity",
        put_raw(GOOD_LISTS, "gyration_radius.1", b"-Infinity"),
        ("gyration_radius", "row 2", "inf"),
    ),
    Case(
        "400 digits", put_raw(GOOD_LISTS, "gyration_radius.1", RAW[3]), ("gyration_radius", "row 2")
    ),
    Case("5,000 digits", put_raw(GOOD_LISTS, "gyration_radius.1", b"9" * 5000), ("JSON",)),
    Case("text", _lists("daily_location_numbers.0", "2"), ("daily_location_numbers", "row 1")),
    Case("true", _lists("daily_location_numbers.0", True), ("daily_location_numbers", "row 1")),
    Case(
        "47 slots",
        _lists("intention_sequences.1", [1] * 47),
        ("intention_sequences", "row 2", "48"),
    ),
    Case(
        "an intention of 8",
        _lists("intention_sequences.1.3", 8),
        ("intention_sequences", "row 2, slot 4"),
    ),
    Case(
        "shares that sum to 2",
        _lists("intention_proportions.0.1", 1),
        ("intention_proportions", "row 1", "sum"),
    ),
    Case("one row less", _lists("gyration_radius", [1.0]), ("as many rows",)),
)

BAD_PICKLES = (
    Case("cut off", pickle.dumps(GOOD_LISTS)[:-2], ("pickle",)),
    Case("harm", pickle.dumps({**GOOD_LISTS, "x": _Harm()}), ("pickle", "open")),
    Case(
        "all memory for one object", b"\x80\x04]r\xff\xff\xff\x7f.", ("pickle", "numbers an object")
    ),
    Case(
        "all memory for bytes",
        b"\x80\x05\x96" + (1 << 60).to_bytes(8, "little") + b".",
        ("pickle",),
    ),
    Case("depth", b"\x80\x04" + b"]" * 3000 + b"a" * 2999 + b".", ("an object", "got [")),
    Case("a list that holds itself", b"\x80\x04]\x94h\x00a.", ("an object", "got [")),
    Case("a letter of old", b"\x80\x02cnumpy\ndtype\nX\x02\x00\x00\x00U3\x85R.", ("pickle",)),
)


def shortened(name: str) -> bytes:
    """A file of the ground truth without its last row."""
    return saved(np.load(io.BytesIO(FILES[name]))[:-1])
