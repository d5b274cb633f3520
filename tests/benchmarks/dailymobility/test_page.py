"""The example of docs/dailymobility.md: its residents, scored, have the scores of its table."""

from __future__ import annotations

import re

import numpy as np

from harness.benchmarks.dailymobility.groundtruth import Lists
from harness.benchmarks.dailymobility.protocols import (
    LOCATIONS,
    METRICS,
    PROPORTIONS,
    RADIUS,
    SEQUENCES,
    all_protocols,
)
from tests.support import ROOT

SLEEP, WORK = 1, 4
EXAMPLE = (
    (ROOT / "docs" / "dailymobility.md").read_text(encoding="utf-8").partition("## An example")[2]
)


def row(first: str) -> list[str]:
    """Return the cells after the first one of a table's row."""
    (found,) = re.findall(rf"^\| {re.escape(first)} \|(.*)\|$", EXAMPLE, re.MULTILINE)
    return [cell.strip() for cell in found.split("|")]


def lists(side: int) -> Lists:
    """Return the residents of the ground truth (0) or of the run (1)."""
    days = [tuple(map(int, day.split(" + "))) for day in row("sleep + work")[side].split(", ")]
    sequences = np.array([[SLEEP] * sleep + [WORK] * work for sleep, work in days], dtype=np.uint8)
    shares = np.stack([(sequences == number).mean(axis=1) for number in range(1, 8)], axis=1)
    radii, locations = (
        np.array(row(name)[side].split(", "), dtype=np.float64)
        for name in ("radius, m", "locations")
    )
    return Lists({RADIUS: radii, LOCATIONS: locations, SEQUENCES: sequences, PROPORTIONS: shares})


def test_the_example_of_the_page_has_the_scores_that_the_harness_computes():
    """The four divergences and the score of each protocol, as its row has them."""
    for name, outcome in all_protocols(lists(0).sample, lists(1).sample).items():
        assert outcome.final is not None
        found = [f"{outcome.divergences[metric]:.4f}" for metric in METRICS]
        assert row(name) == [*found, f"{outcome.final:.2f}"]
