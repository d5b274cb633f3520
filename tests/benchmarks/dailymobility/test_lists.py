"""Files of the four lists and of the ground truth: what is read, and what is refused by row and
field."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest

from harness.benchmarks.dailymobility import groundtruth
from harness.benchmarks.dailymobility.groundtruth import FILES, Lists
from harness.benchmarks.dailymobility.lists import read, warnings
from harness.benchmarks.dailymobility.protocols import (
    LOCATIONS,
    METRICS,
    PROPORTIONS,
    RADIUS,
    SEQUENCES,
)
from harness.errors import BadInput
from harness.model import JSON

SLEEPER = [1] * 48
WORKER = [1] * 24 + [4] * 24


def four(**changes: Any) -> JSON:
    """Two residents: one who sleeps all day, one who works half of it."""
    good = {
        RADIUS: [0.0, 1234.5],
        LOCATIONS: [1, 2],
        SEQUENCES: [SLEEPER, WORKER],
        PROPORTIONS: [[1, 0, 0, 0, 0, 0, 0], [0.5, 0, 0, 0.5, 0, 0, 0]],
    }
    return {**good, **changes}


def as_json(folder: Path, content: Any) -> Path:
    path = folder / "结果.json"
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


def as_pickle(folder: Path, content: Any, protocol: int = 4) -> Path:
    path = folder / "结果.pkl"
    path.write_bytes(pickle.dumps(content, protocol))
    return path


def plain(lists: Lists) -> JSON:
    return {name: lists.columns[name].tolist() for name in METRICS}


def refusal(path: Path) -> str:
    with pytest.raises(BadInput) as refused:
        read(path)
    assert str(refused.value).startswith(str(path)) and "\n" not in str(refused.value)
    return str(refused.value).removeprefix(f"{path}: ")


# What is read


def test_four_lists_are_read_from_json(tmp_path):
    """Values and order as they stand."""
    assert plain(read(as_json(tmp_path, four()))) == four()


def test_the_wrapping_of_asbench_is_taken_off(tmp_path):
    """`asbench` stores `results` beside `metadata`, and so may a JSON file."""
    assert plain(read(as_json(tmp_path, {"results": four(), "metadata": {}}))) == four()


def test_json_may_begin_with_a_byte_order_mark(tmp_path):
    """Some editors put one."""
    path = tmp_path / "lists.json"
    path.write_bytes(b"\xef\xbb\xbf" + orjson.dumps(four()))
    assert plain(read(path)) == four()


def test_shares_rounded_to_two_decimals_pass(tmp_path):
    """Seven of them can be off by 0.035 together."""
    rounded = [[0.14] * 7, [0.145, 0.145, 0.145, 0.15, 0.15, 0.15, 0.15]]
    assert (
        read(as_json(tmp_path, four(**{PROPORTIONS: rounded}))).columns[PROPORTIONS].tolist()
        == rounded
    )


def asbench_result() -> JSON:
    """As `asbench` 0.1.4 stores it: means of numpy among the radii, a path and an id in the
    metadata."""
    results = four(**{RADIUS: [np.float64(0.0), np.float64(1234.5)]})
    metadata = {
        "task_name": "DailyMobility",
        "exp_id": uuid.uuid4(),
        "config": "llm: 通义",
        "result_filename": Path("结果.pkl").absolute(),
        "execution_time": "2025-07-01T00:00:00",
        "mode": "inference",
    }
    return {"results": results, "metadata": metadata}


@pytest.mark.parametrize("protocol", range(2, 6))
def test_a_result_pickle_of_asbench_is_read(tmp_path, protocol):
    """In the protocol that Python writes by default, and the others that hold such objects."""
    assert plain(read(as_pickle(tmp_path, asbench_result(), protocol))) == four()


@pytest.mark.parametrize("protocol", range(2, 6))
@pytest.mark.parametrize("order", ["C", "F"])
def test_numpy_arrays_in_a_pickle_are_read(tmp_path, protocol, order):
    """Whole lists as arrays, of other types, byte orders and layouts than one's own, or rows as
    arrays."""
    arrays = {
        RADIUS: np.array(four()[RADIUS], dtype=">f8"),
        LOCATIONS: np.array(four()[LOCATIONS], dtype=np.uint8),
        SEQUENCES: np.array(four()[SEQUENCES], dtype=np.int32, order=order),
        PROPORTIONS: [np.array(row, dtype=np.float32) for row in four()[PROPORTIONS]],
    }
    assert plain(read(as_pickle(tmp_path, arrays, protocol))) == four()


# What is refused: pickles


class Runs:
    """Unpickled in the ordinary way, it makes a folder."""

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self.call = function, arguments

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return self.call


def test_a_malicious_pickle_is_refused_without_running(tmp_path):
    """It names `os.mkdir`; the ordinary unpickler runs that, ours names it and stops."""
    made = tmp_path / "made"
    path = as_pickle(tmp_path, {"results": four(), "metadata": Runs(os.mkdir, str(made))})
    assert "mkdir" in refusal(path)
    assert not made.exists()
    pickle.loads(path.read_bytes())
    assert made.exists()


@pytest.mark.parametrize(
    "content",
    [
        b"cbuiltins\neval\n(S'1'\ntR.",
        b"\x80\x04\x8c\x08builtins\x8c\x04exec\x93\x8c\x011\x85R.",
        b"\x80\x04\x8c\x07pathlib\x8c\x0fPath.write_text\x93.",
        b"\x80\x04\x8c\x05numpy\x8c\x04load\x93\x8c\x01x\x85R.",
        b"\x80\x04\x8c\x05numpy\x8c\x05f2py.\x93.",
        b"\x80\x02\x82\x01.",
        b"\x80\x04Px\n.",
    ],
    ids=[
        "protocol 0",
        "exec",
        "a method of a path",
        "numpy.load",
        "another numpy",
        "extension",
        "persistent id",
    ],
)
def test_whatever_a_pickle_names_beyond_plain_values_is_refused(tmp_path, content):
    """A list of what may be named, not of what may not."""
    path = tmp_path / "x.pkl"
    path.write_bytes(content)
    assert "pickle of plain values" in refusal(path)


def test_a_pickle_cannot_change_what_it_names(tmp_path):
    """Setting an attribute of the class of paths, of the stand-in of dtypes, of a function: no
    other file notices."""
    for module, name in (
        ("pathlib", "PosixPath"),
        ("numpy", "dtype"),
        ("numpy.core.multiarray", "scalar"),
    ):
        path = tmp_path / "x.pkl"
        named = b"".join(b"\x8c" + bytes([len(word)]) + word.encode() for word in (module, name))
        path.write_bytes(b"\x80\x04" + named + b"\x93N}\x8c\x0c__defaults__)s\x86b.")
        refusal(path)
    assert plain(read(as_pickle(tmp_path, asbench_result()))) == four()


@pytest.mark.parametrize(
    "value",
    [
        np.array(["a"]),
        np.array([1j]),
        np.float64,
        np.dtype("f8,i4"),
        np.datetime64("2025-07-01"),
        np.array([True]),
    ],
    ids=["text", "complex", "a type", "a record", "a date", "truths"],
)
def test_what_is_no_number_in_numpy_is_refused(tmp_path, value):
    """Arrays of text, complex numbers, dates, truths; types and records."""
    refusal(as_pickle(tmp_path, four(**{RADIUS: value})))


@pytest.mark.parametrize("length", range(0, 300, 7))
def test_a_torn_pickle_is_refused_in_one_sentence(tmp_path, length):
    """Wherever it was cut."""
    path = as_pickle(tmp_path, asbench_result())
    path.write_bytes(path.read_bytes()[:length])
    refusal(path)


def test_an_array_whose_bytes_do_not_fill_its_shape_is_refused(tmp_path):
    """The shape in a pickle is a claim."""
    whole = pickle.dumps(four(**{RADIUS: np.array([1.0, 2.0])}), 4)
    path = tmp_path / "x.pkl"
    path.write_bytes(whole.replace(b"K\x02\x85", b"K\x03\x85", 1))
    assert "plain values" in refusal(path)


# What is refused: lists


def changed(row: int, column: int, value: Any) -> list[list[Any]]:
    rows = [list(SLEEPER), list(WORKER)]
    rows[row][column] = value
    return rows


NAN, INFINITE = float("nan"), float("inf")
BAD: dict[str, tuple[JSON, str]] = {
    "negative radius": ({RADIUS: [0.0, -1.0]}, "gyration_radius: row 2: expected a number of metres"),
    "radius beyond the earth": ({RADIUS: [1e308, 1.0]}, "gyration_radius: row 1: expected a number of metres"),
    "radius beyond text": ({RADIUS: [0.0, -(10**4000)]}, "gyration_radius: row 2"),
    "radius text": ({RADIUS: ["近", 1.0]}, "gyration_radius: row 1: expected a number of metres, 0 or more, got '近'"),
    "radius null": ({RADIUS: [1.0, None]}, "gyration_radius: row 2"),
    "radius a list": ({RADIUS: [1.0, [2.0]]}, "gyration_radius: row 2"),
    "radius true": ({RADIUS: [True, 1.0]}, "gyration_radius: row 1"),
    "no location": ({LOCATIONS: [1, 0]}, "daily_location_numbers: row 2: expected a number of locations, 1 or more"),
    "intention 0": ({SEQUENCES: changed(1, 5, 0)}, "intention_sequences: row 2, slot 6: expected a whole number"),
    "half an intention": ({SEQUENCES: changed(0, 0, 2.5)}, "intention_sequences: row 1, slot 1"),
    "intention NaN": ({SEQUENCES: changed(0, 3, NAN)}, "intention_sequences: row 1, slot 4"),
    "intention as a word": ({SEQUENCES: changed(1, 0, "sleep")}, "intention_sequences: row 2, slot 1"),
    "intention false": ({SEQUENCES: changed(1, 0, False)}, "intention_sequences: row 2, slot 1"),
    "row no list": ({SEQUENCES: [SLEEPER, 4]}, "intention_sequences: row 2: expected a list of 48"),
    "share above 1": ({PROPORTIONS: [[1, 0, 0, 0, 0, 0, 0], [1.5, *[0] * 6]]}, f"{PROPORTIONS}: row 2, intention 1"),
    "share below 0": ({PROPORTIONS: [[1, 0, 0, 0, 0, 0, -0.5], [1, *[0] * 6]]}, f"{PROPORTIONS}: row 1, intention 7"),
    "six shares": ({PROPORTIONS: [[1, 0, 0, 0, 0, 0, 0], [1, *[0] * 5]]}, f"{PROPORTIONS}: row 2: expected a list"),
    "no list": ({LOCATIONS: 3}, "daily_location_numbers: expected a list, got 3"),
}  # fmt: skip


@pytest.mark.parametrize("fault", BAD)
@pytest.mark.parametrize("write", [as_json, as_pickle])
def test_what_cannot_be_scored_is_refused_by_row_and_field(tmp_path, fault, write):
    """In one sentence, in JSON (with the NaN and Infinity of Python) as in a pickle."""
    changes, told = BAD[fault]
    assert refusal(write(tmp_path, four(**changes))).startswith(told)


def test_what_is_found_may_be_long_or_deep(tmp_path):
    """A number of 5,000 digits, which Python will not print, and a list within lists: shown in
    short."""
    deep: Any = []
    for _ in range(900):
        deep = [deep]
    assert refusal(as_pickle(tmp_path, four(**{RADIUS: [0.0, 10**5000]}))).endswith(
        "got a number beyond 64 bits"
    )
    assert len(refusal(as_json(tmp_path, four(**{RADIUS: [0.0, deep]})))) < 120


# Kilometres


def lists(*radii: float) -> Lists:
    values = {name: np.array(found, dtype=np.float64) for name, found in four().items()}
    return Lists.from_values({**values, RADIUS: np.array(radii)})


TRUTH = lists(500.0, 3000.0, 9000.0)


def test_radii_in_kilometres_are_warned_about():
    """The median of those who move is below a hundredth of the ground truth's; who stays home tells
    nothing."""
    assert "kilometres" in warnings(lists(0.0, 0.0, 0.0, 2.9, 3.1), TRUTH)[0]


@pytest.mark.parametrize(
    "radii", [(30.0, 31.0), (0.0, 0.0, 0.0, 3000.0), (0.0, 0.0), (3.6e-12, 0.0)]
)
def test_short_days_in_metres_are_not(radii):
    """Thirty metres are a hundredth of the ground truth's; a population that stays home has no
    unit."""
    assert warnings(lists(*radii), TRUTH) == ()


# The ground truth


def save(folder: Path, **changes: Any) -> Path:
    """A data folder; `changes` are arrays, or bytes, by the file's name."""
    arrays = {name: np.array(four()[metric]) for name, metric in FILES.items()}
    (folder / "groundtruth").mkdir()
    for name, content in {**arrays, **changes}.items():
        file = folder / "groundtruth" / f"{name}.npy"
        if isinstance(content, bytes):
            file.write_bytes(content)
        else:
            np.save(file, content, allow_pickle=True)
    return folder


def test_the_ground_truth_is_loaded_from_its_folder_or_the_one_around_it(tmp_path):
    """With the hash over the bytes of its four files."""
    folder = save(tmp_path)
    inside, around = groundtruth.load(folder / "groundtruth"), groundtruth.load(folder)
    data = b"".join((folder / "groundtruth" / f"{name}.npy").read_bytes() for name in FILES)
    assert plain(inside.lists) == plain(around.lists) == four()
    assert (inside.residents, inside.sha256) == (2, hashlib.sha256(data).hexdigest())


ODD_HEADERS = (
    "((((",
    "{'descr': '<f8', 'fortran_order': False, 'shape': (10**40,)}",
    f"{{'descr': '<f8', 'fortran_order': False, 'shape': ({10**40},)}}",
    "{'descr': '<f8', 'fortran_order': False, 'shape': (True,)}",
    "{'descr': (), 'fortran_order': False, 'shape': (2,)}",
    "{'descr': '<f8', 1: False, 'shape': (2,)}",
    "{[]: 1}",
    "[" * 200,
)
"""What numpy's reader comes upon in them is of many classes."""


def headed(text: str) -> bytes:
    """An `.npy` file with this for a header."""
    header = text.encode().ljust(118 if len(text) < 118 else len(text) + 1) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + bytes(16)


WRONG: dict[str, tuple[JSON, str]] = {
    **{
        f"header {number}": ({"gyration_radius": headed(text)}, "gyration_radius.npy: expected a NumPy array")
        for number, text in enumerate(ODD_HEADERS)
    },
    "shape": ({"daily_intentions_2d": np.ones((2, 24))}, "daily_intentions_2d.npy: expected a NumPy array ("),
    "intention 8": ({"daily_intentions_2d": np.full((2, 48), 8)}, "daily_intentions_2d.npy: row 1, slot 1: expected"),
    "shares": ({"intention_proportions_2d": np.full((2, 7), 0.9)}, "intention_proportions_2d.npy: row 1: expected"),
}  # fmt: skip


@pytest.mark.parametrize("fault", WRONG)
def test_a_ground_truth_that_cannot_be_used_is_refused_by_file(tmp_path, fault):
    """One sentence with the file and what was expected."""
    changes, told = WRONG[fault]
    folder = save(tmp_path, **changes)
    with pytest.raises(BadInput) as refused:
        groundtruth.load(folder)
    assert str(refused.value).startswith(f"{folder / 'groundtruth'}{os.sep}{told}")
    assert "\n" not in str(refused.value)


def test_a_missing_file_of_the_ground_truth_is_named(tmp_path):
    """With the folders that are meant."""
    save(tmp_path)
    (tmp_path / "groundtruth" / "daily_intentions_2d.npy").unlink()
    with pytest.raises(
        BadInput, match=r"cannot read .*daily_intentions_2d\.npy.*expected a data folder"
    ):
        groundtruth.load(tmp_path)


def test_the_ceiling_is_what_resampled_ground_truth_scores(tmp_path):
    """One resident is far from both together, very many are close to 100; the same seed draws the
    same."""
    truth = groundtruth.load(save(tmp_path))
    one, many, again = (truth.ceiling(residents) for residents in (1, 10**6, 10**6))
    assert one["final_score"] < 82 < 99.99 < many["final_score"] <= 100
    assert one["JSD_per_slot"] > many["JSD_per_slot"]
    assert many == again
    assert many["range95"][0] <= many["final_score"] <= many["range95"][1]
