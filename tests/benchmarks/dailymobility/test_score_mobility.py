"""`score-mobility`: the command from file to table, JSON and exit code."""

from __future__ import annotations

import json
import pickle
import shutil
from pathlib import Path

import numpy as np
import orjson
import pytest

from harness.benchmarks.dailymobility.groundtruth import FILES
from harness.benchmarks.dailymobility.protocols import (
    LOCATIONS,
    METRICS,
    PROPORTIONS,
    RADIUS,
    SEQUENCES,
)
from harness.cli import main
from harness.model import JSON
from tests.support import ROOT

SAMPLE = ROOT / "harness" / "sample" / "dailymobility"


def truths_lists(data: Path) -> JSON:
    return {
        metric: np.load(data / "groundtruth" / f"{name}.npy").tolist()
        for name, metric in FILES.items()
    }


@pytest.fixture
def lists(tmp_path: Path) -> Path:
    """The synthetic ground truth as a file of the four lists."""
    path = tmp_path / "列表.json"
    path.write_bytes(orjson.dumps(truths_lists(SAMPLE)))
    return path


def scored(capsys: pytest.CaptureFixture[str], file: Path, data: Path = SAMPLE) -> JSON:
    assert main(["score-mobility", str(file), "--data", str(data), "--json"]) == 0
    found: JSON = orjson.loads(capsys.readouterr().out)
    return found


def test_the_ground_truth_scores_100_against_itself(lists, capsys):
    """In all three protocols, with the keys that are promised; from the data folder and the one
    within."""
    for data in (SAMPLE, SAMPLE / "groundtruth"):
        found = scored(capsys, lists, data)
        assert {name: of["final_score"] for name, of in found["protocols"].items()} == {
            "aligned": 100.0,
            "asbench": 100.0,
            "agentsociety2": 100.0,
        }
        assert set(found["protocols"]["aligned"]) == {
            *(f"jsd_{metric}" for metric in METRICS),
            "final_score",
        }
        assert found["JSD_per_slot"] == 0.0
        assert found["warnings"] == []


def test_the_table_shows_every_protocol_and_what_it_is(lists, capsys):
    """The default output, for people."""
    assert main(["score-mobility", str(lists), "--data", str(SAMPLE)]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert (
        "aligned (headline) asbench agentsociety2" in shown
        and "final_score 100.00 100.00 100.00" in shown
    )
    assert "asbench: as asbench 0.1.4 computes it" in shown
    assert "Ceiling (aligned)" in shown and "列表.json" in shown


@pytest.mark.parametrize("data", [SAMPLE, SAMPLE / "groundtruth"])
def test_a_synthetic_ground_truth_is_called_synthetic(lists, capsys, data):
    """As in the reports of runs: a score on it is no result. The folder within is known by what
    lies beside it."""
    assert "The ground truth is synthetic" in scored(capsys, lists, data)["notes"][0]
    assert main(["score-mobility", str(lists), "--data", str(data)]) == 0
    assert "The ground truth is synthetic" in capsys.readouterr().out


@pytest.mark.parametrize("profiles", [None, b'[{"id": 1}]', b"[1, 2]", b"{}", b"\xff"])
def test_a_ground_truth_that_nothing_calls_synthetic_has_no_notes(
    lists, tmp_path, capsys, profiles
):
    """The residents' file is not needed for a score, so whatever is wrong with it ends nothing."""
    shutil.copytree(SAMPLE / "groundtruth", tmp_path / "data/groundtruth")
    if profiles is not None:
        (tmp_path / "data/profiles.json").write_bytes(profiles)
    assert scored(capsys, lists, tmp_path / "data")["notes"] == []


def test_a_result_pickle_of_asbench_scores_like_its_lists(lists, tmp_path, capsys):
    """The same figures from either file."""
    content = orjson.loads(lists.read_bytes())
    content[RADIUS] = [np.float64(radius) / 2 for radius in content[RADIUS]]
    path = tmp_path / "DailyMobility_results.pkl"
    path.write_bytes(pickle.dumps({"results": content, "metadata": {"result_filename": path}}))
    lists.write_text(
        json.dumps({**content, RADIUS: [float(radius) for radius in content[RADIUS]]}),
        encoding="utf-8",
    )
    a, b = scored(capsys, path), scored(capsys, lists)
    assert a["protocols"] == b["protocols"]
    assert a["protocols"]["aligned"]["final_score"] < 100


def test_kilometres_are_warned_about_and_scored(lists, capsys):
    """A warning, not a refusal: exit code 0."""
    content = orjson.loads(lists.read_bytes())
    lists.write_bytes(
        orjson.dumps({**content, RADIUS: [radius / 1000 for radius in content[RADIUS]]})
    )
    found = scored(capsys, lists)
    assert "looks like kilometres" in found["warnings"][0]
    assert (
        found["protocols"]["aligned"]["final_score"] < found["protocols"]["asbench"]["final_score"]
    )
    assert main(["score-mobility", str(lists), "--data", str(SAMPLE)]) == 0
    assert "warning: gyration_radius looks like kilometres" in " ".join(
        capsys.readouterr().out.split()
    )


def test_an_undefined_protocol_is_null_with_its_reason(lists, capsys):
    """In JSON as null, in the table as n/a, and in a sentence."""
    content = orjson.loads(lists.read_bytes())
    lists.write_bytes(
        orjson.dumps({**content, RADIUS: [1e9 + radius for radius in content[RADIUS]]})
    )
    of = scored(capsys, lists)["protocols"]["agentsociety2"]
    assert (of["final_score"], of["jsd_gyration_radius"]) == (None, None)
    assert "outside the ground truth's range" in of["reason"]
    assert main(["score-mobility", str(lists), "--data", str(SAMPLE)]) == 0
    shown = capsys.readouterr().out
    assert (
        "n/a" in shown
        and "agentsociety2 is not defined here" in shown
        and "nan" not in shown.lower()
    )


@pytest.mark.parametrize(
    ("field", "row", "value"),
    [
        (RADIUS, 3, float("nan")),
        (LOCATIONS, 0, 0),
        (SEQUENCES, 7, [1] * 47),
        (PROPORTIONS, 99, [0.5] * 7),
    ],
)
def test_bad_input_ends_with_2_naming_row_and_field(lists, capsys, field, row, value):
    """One sentence on stderr, nothing on stdout."""
    content = orjson.loads(lists.read_bytes())
    content[field][row] = value
    lists.write_text(json.dumps(content), encoding="utf-8")
    assert main(["score-mobility", str(lists), "--data", str(SAMPLE)]) == 2
    out, told = capsys.readouterr()
    assert out == ""
    assert (
        told.startswith(f"harness: {lists}: {field}: row {row + 1}: expected")
        and told.count("\n") == 1
    )
