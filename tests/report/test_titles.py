"""What pages are headed by: which of several runs of one model this is."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

import orjson
import pytest

from harness.benchmarks.dailymobility import page as mobility
from harness.benchmarks.streamprofile import page as profile
from harness.cli import main
from harness.model import JSON


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> Namespace:
    """The JSON report of a run of each benchmark, by benchmark."""
    root = tmp_path_factory.mktemp("results")
    words = ["--demo", "--ratio", "0.05", "--no-html", "--results-dir", str(root)]
    assert main(["run", "--platform", "weibo", "--model", "baseline/recency", *words]) == 0
    assert main(["run", "dailymobility", "--model", "baseline/commuter", *words]) == 0
    return Namespace(
        profile=_read(root / "recency/eval_report_weibo.json"),
        mobility=_read(root / "commuter/eval_report_beijing.json"),
    )


def _read(path: Path) -> JSON:
    data: JSON = orjson.loads(path.read_bytes())
    return data


def test_page_is_headed_by_its_runs_name_before_the_model(reports: Namespace) -> None:
    """Four runs of one model are told apart by their tabs."""
    page = profile.page({**reports.profile, "name": "recency-甲"})
    assert page.title.startswith("recency-甲: baseline/recency · StreamProfileBench, ")
    page = mobility.page({**reports.mobility, "name": "commuter-甲"})
    assert page.title == "commuter-甲: baseline/commuter · DailyMobility (beijing)"


def test_page_of_a_run_that_is_called_as_its_model_says_it_once(reports: Namespace) -> None:
    """A run without a name of its own has the last part of the model's."""
    assert profile.page(reports.profile).title.startswith("baseline/recency · StreamProfileBench, ")
    assert mobility.page(reports.mobility).title == "baseline/commuter · DailyMobility (beijing)"
    assert mobility.page({**reports.mobility, "model": "/models/commuter/"}).title.startswith("/models/commuter/ · ")
