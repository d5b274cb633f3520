"""The synthetic city and its residents (harness/benchmarks/dailymobility/synth*.py,
harness/sample/dailymobility)."""

from __future__ import annotations

import json
from io import BytesIO
from random import Random
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from pycityproto.city.map.v2 import map_pb2

from harness.benchmarks.agents.city import City, read_city
from harness.benchmarks.dailymobility.day import gyration_radius, proportions
from harness.benchmarks.dailymobility.synth import files
from tests.support import ROOT

SAMPLE = ROOT / "harness" / "sample" / "dailymobility"
ARRAYS = {
    "gyration_radius": ((100,), "<f8"),
    "daily_location_numbers": ((100,), "<f8"),
    "daily_intentions_2d": ((100, 48), "<i8"),
    "intention_proportions_2d": ((100, 7), "<f8"),
}


@pytest.fixture(scope="module")
def made() -> dict[str, bytes]:
    return files(100, 0)


@pytest.fixture(scope="module")
def city(made: dict[str, bytes]) -> City:
    return read_city(made["beijing.pb"], "made")


@pytest.fixture(scope="module")
def people(made: dict[str, bytes]) -> list[dict[str, Any]]:
    read: list[dict[str, Any]] = json.loads(made["profiles.json"])
    return read


def truth(made: dict[str, bytes], name: str) -> NDArray[Any]:
    array: NDArray[Any] = np.load(BytesIO(made[f"groundtruth/{name}.npy"]), allow_pickle=False)
    return array


def test_the_shipped_sample_is_what_the_code_makes(made):
    """100 residents, seed 0: the same files byte for byte, nothing besides, and small."""
    shipped = {
        str(path.relative_to(SAMPLE)): path.read_bytes()
        for path in SAMPLE.rglob("*")
        if path.is_file()
    }
    assert shipped == made
    assert sum(map(len, shipped.values())) < 250_000


def test_another_seed_is_another_city_with_other_residents(made):
    """The note says which seed it was, so every file differs."""
    other = files(100, 1)
    assert set(other) == set(made)
    assert all(other[name] != made[name] for name in made)


def test_everything_says_that_it_is_synthetic(made, people):
    """Each profile, the map's own name, and the note."""
    assert all(person["synthetic"] is True for person in people)
    assert map_pb2.Map.FromString(made["beijing.pb"]).header.name == "synthetic"
    assert "synthetic" in made["README.md"].decode()


def test_profiles_are_written_as_the_published_ones(made, people):
    """An array, a field a line, in the published order, with numbers as numbers."""
    assert made["profiles.json"].decode().startswith('[\n    {\n        "age": ')
    fields = [
        "age",
        "education",
        "gender",
        "consumption",
        "occupation",
        "home",
        "work",
        "id",
        "synthetic",
    ]
    assert all(list(person) == fields for person in people)
    assert [person["id"] for person in people] == list(range(1, 101))
    assert {type(person[name]) for person in people for name in ("age", "home", "work")} == {int}


@pytest.mark.parametrize("name", ARRAYS)
def test_arrays_have_the_published_shape_and_type(made, name):
    """Finite, in numpy's first file format, little-endian."""
    shape, dtype = ARRAYS[name]
    array = truth(made, name)
    assert (array.shape, array.dtype.str) == (shape, dtype)
    assert np.isfinite(array).all()
    assert made[f"groundtruth/{name}.npy"].startswith(b"\x93NUMPY\x01\x00")


def test_the_ground_truth_is_a_life_in_that_city(made, city):
    """Locations are means from 1, radii fit into the city, intentions are known ones, proportions
    sum to 1."""
    numbers, radii = truth(made, "daily_location_numbers"), truth(made, "gyration_radius")
    assert 1 <= numbers.min() < 2 < numbers.max() < 7
    assert any(number != int(number) for number in numbers)
    assert 0 <= radii.min() < 1500 < radii.mean() < 5000 < radii.max() < 12_000 / 2**0.5
    assert set(truth(made, "daily_intentions_2d").ravel().tolist()) == set(range(1, 8))
    assert truth(made, "intention_proportions_2d").sum(axis=1) == pytest.approx(1)


def divergence(truth: NDArray[Any], other: NDArray[Any], edges: Any) -> float:
    """Jensen-Shannon, base 2, on shared bins."""
    p, q = (np.histogram(values, edges)[0] / np.size(values) for values in (truth, other))
    middle = (p + q) / 2
    terms = [side[side > 0] * np.log2(side[side > 0] / middle[side > 0]) for side in (p, q)]
    return float(0.5 * terms[0].sum() + 0.5 * terms[1].sum())


def score(made: dict[str, bytes], city: City, days: list[list[tuple[int, int]]]) -> float:
    """The headline's formula, written out anew: 100 is the ground truth itself."""
    places = [list(dict.fromkeys(place for _, place in day)) for day in days]
    said = [[intention for intention, _ in day] for day in days]
    radii = [
        gyration_radius([(city.aois[place].x, city.aois[place].y) for place in day])
        for day in places
    ]
    real = {name: truth(made, name) for name in ARRAYS}
    last = float(real["gyration_radius"].max())
    return 100 - 25 * sum(
        [
            divergence(
                real["gyration_radius"],
                np.array(radii),
                [*np.linspace(0, last, 50), last + 1, np.inf],
            ),
            divergence(
                real["daily_location_numbers"],
                np.array([len(day) for day in places], np.float64),
                [-np.inf, *np.arange(0.5, 11), np.inf],
            ),
            divergence(real["daily_intentions_2d"], np.array(said), np.arange(0.5, 8)),
            divergence(
                real["intention_proportions_2d"],
                np.array([proportions(day) for day in said]),
                np.linspace(0, 1, 51),
            ),
        ]
    )


def test_a_sensible_day_scores_far_above_a_random_one(made, city, people):
    """Everybody from nine to six at work: about 70. A new place and intention each half hour: about
    30."""
    rng = Random(0)
    sensible = [
        [(1, who["home"])] * 15
        + [(2, who["home"])] * 3
        + [(4, who["work"])] * 18
        + [(2, who["home"])] * 9
        + [(1, who["home"])] * 3
        for who in people
    ]
    random = [[(rng.randint(1, 7), rng.choice(list(city.aois))) for _ in range(48)] for _ in people]
    assert score(made, city, sensible) > 65
    assert score(made, city, random) < 40
