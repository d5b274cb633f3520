"""Benchmarks of installed packages, found by their entry point."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.benchmarks import registry
from harness.cli import main
from harness.errors import BadInput

EXAMPLE = Path(__file__).parents[2] / "examples" / "star_rating"


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Install a package with the example as its benchmark, and one that takes the name of a shipped
    benchmark."""
    (tmp_path / "taste_package.py").write_bytes((EXAMPLE / "star_rating.py").read_bytes())
    points = (
        "[harness.benchmarks]\ntaste = taste_package:StarRating\nstreamprofile = nowhere:Nothing\n"
    )
    about = tmp_path / "taste_package-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: taste-package\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(points)
    monkeypatch.syspath_prepend(str(tmp_path))
    registry.installed.cache_clear()
    yield
    registry.installed.cache_clear()
    sys.modules.pop("taste_package", None)  # whose file goes with its test


def test_benchmark_of_a_package_is_found_by_its_name(package):
    """Its origin is the module, so that a saved run finds it again by that."""
    origin = registry.find("taste").origin
    assert origin is not None and origin.spec == "taste_package:StarRating"


def test_shipped_benchmark_keeps_its_name(package):
    """No package can put another in its place."""
    assert registry.find("streamprofile").origin is None


def test_run_of_an_installed_benchmark_is_complete_and_sound(package, tmp_path):
    """It is named like one that ships, also after an option."""
    where = ["--results-dir", str(tmp_path / "r")]
    words = [
        "run",
        "--no-html",
        "taste",
        "--model",
        "baseline/four-stars",
        "--tasks-dir",
        str(EXAMPLE),
    ]
    assert main([*words, *where]) == 0
    assert main(["verify", *where]) == 0


def test_unknown_name_is_refused_with_those_that_there_are(package):
    """Installed ones too."""
    with pytest.raises(BadInput, match="taste"):
        registry.find("tast")
