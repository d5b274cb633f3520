"""What pages are headed by: which of several runs of one model this is."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

import pytest
from msgspec.structs import replace

from harness.cli import main
from harness.reporting import report_files
from harness.reporting.report import page
from harness.scoring.reports import Report
from tests.support import SHIPPED


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> Namespace:
    """The JSON report of a run of each benchmark, by benchmark."""
    root = tmp_path_factory.mktemp("results")
    words = [*SHIPPED, "--ratio", "0.05", "--no-html", "--results-dir", str(root)]
    assert main(["run", "--platform", "weibo", "--model", "baseline/recency", *words]) == 0
    assert (
        main(["run", "dailymobility", "--model", "baseline/commuter", "--name", "commuter", *words])
        == 0
    )
    return Namespace(
        profile=_read(root / "recency/eval_report_weibo.json"),
        mobility=_read(root / "commuter/eval_report_beijing.json"),
    )


def _read(path: Path) -> Report:
    return report_files.read(path.read_bytes())


def test_page_is_headed_by_its_runs_name_before_the_model(reports):
    """Four runs of one model are distinguished by their tabs."""
    found = page(replace(reports.profile, name="recency-甲"))
    assert found.title == "recency-甲: baseline/recency · StreamProfileBench (weibo)"
    found = page(replace(reports.mobility, name="commuter-甲"))
    assert found.title == "commuter-甲: baseline/commuter · DailyMobility (beijing)"
