"""A results folder with runs of both benchmarks and of the example plug-in."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from harness.cli import main
from harness.commands.view.reading import Chosen, Folder
from harness.commands.view.server import link
from harness.commands.view.site import Site
from tests.support import SHIPPED
from tests.support.plugins import FLOOR, STARS

Look = Callable[..., str]


@pytest.fixture(scope="session")
def played(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Complete runs; other tests look at them, or change a copy."""
    results = tmp_path_factory.mktemp("view") / "results"
    where = ("--results-dir", str(results), "--no-html")
    for model in ("recency", "random"):
        assert (
            main(["run", *SHIPPED, "--model", f"baseline/{model}", "--platform", "weibo", *where])
            == 0
        )
    assert (
        main(
            [
                "run",
                "dailymobility",
                *SHIPPED,
                "--model",
                "baseline/commuter",
                "--name",
                "commuter",
                "--limit",
                "5",
                *where,
            ]
        )
        == 0
    )
    assert (
        main(
            [
                "run",
                str(STARS),
                "--model",
                FLOOR,
                "--name",
                "four-stars",
                "--tasks-dir",
                str(STARS.parent),
                *where,
            ]
        )
        == 0
    )
    return results


@pytest.fixture
def results(played: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(played, tmp_path / "results"))


@pytest.fixture
def site(results: Path) -> Site:
    return Site(Folder(Chosen(results)), link)


def look(site: Site, address: str) -> str:
    """Return the page at an address."""
    parts = urlsplit(address)
    return site.page(parts.path.strip("./"), parse_qs(parts.query)).decode()
