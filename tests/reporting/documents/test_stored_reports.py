"""Reports from a results folder, which somebody else may have written: what pages, tables and
exports make of them."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import orjson
import pytest

from harness.cli import main
from harness.document import Chart, Series
from tests.support.plugins import FLOOR, STARS

POST = "a post that its author shows nobody"
RUNS = ("a", "b", "c")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three runs."""
    folder = tmp_path_factory.mktemp("made")
    for name in RUNS:
        words = (
            "run",
            "--demo",
            "--model",
            "baseline/recency",
            "--name",
            name,
            "--platform",
            "weibo",
            "--limit",
            "3",
        )
        assert main([*words, "--results-dir", str(folder / "results")]) == 0
    return folder


@pytest.fixture
def here(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of them to be in."""
    folder = tmp_path / "here"
    shutil.copytree(made, folder)
    monkeypatch.chdir(folder)
    return folder


def changed(name: str, change: Callable[[Any], None]) -> None:
    """Change the report of a run."""
    path = Path(f"results/{name}/eval_report_weibo.json")
    report = orjson.loads(path.read_bytes())
    change(report)
    path.write_bytes(orjson.dumps(report))


def pages(*folders: str) -> dict[str, str]:
    return {
        path.name: path.read_text("utf-8")
        for folder in folders
        for path in Path(folder).glob("*.html")
    }


@pytest.mark.parametrize("posts", [False, True])
def test_private_quotes_of_a_report_are_shown_only_on_request(here, posts):
    """On the page that `report` writes, and on those of the viewer."""
    quote = {"block": "Quote", "label": "From a user", "text": POST, "open": True, "private": True}
    public = {
        "block": "Quote",
        "label": "Of the benchmark",
        "text": "a public remark",
        "open": True,
    }
    changed("a", lambda report: report.update(sections=[quote, public]))
    more = ("--with-posts",) if posts else ()
    assert main(["report", "--name", "a", *more]) == 0
    assert main(["view", "--export", "site", *more]) == 0
    page, site = "".join(pages("results/a").values()), "".join(pages("site").values())
    assert "a public remark" in page and "a public remark" in site
    assert (POST in page, POST in site) == (posts, posts)


OWN_SECTIONS = f"""

from harness.benchmark import Means
from harness.document import Quote


class Sections(Means):
    def sections(self, scored):
        return [Quote("From a user", "{POST}", private=True), Quote("Public", "a public remark")]


StarRating.scoring = Sections()
"""


def test_private_quotes_of_a_benchmark_are_not_in_the_text_report(here):
    """It has no option that shows them, and is what people pass on."""
    Path("mine.py").write_text(STARS.read_text() + OWN_SECTIONS)
    shutil.copytree(STARS.parent, "stars")
    assert (
        main(["run", "mine.py", "--model", FLOOR, "--name", "stars", "--tasks-dir", "stars"]) == 0
    )
    [report] = Path("results/stars").glob("*.txt")
    assert "a public remark" in report.read_text("utf-8") and POST not in report.read_text("utf-8")


def short_row(report: Any) -> None:
    report["sections"].append(
        {"block": "Table", "columns": ["a", "b"], "rows": [["x", "y"], ["x"]]}
    )


def short_series(report: Any) -> None:
    series = [{"name": "s", "values": [1]}]
    chart = {
        "kind": "curve",
        "title": "t",
        "x": [1, 2],
        "x_label": "",
        "y_label": "",
        "series": series,
    }
    report["sections"].append({"block": "Chart", **chart})


def no_headline_value(report: Any) -> None:
    report["headline"] = ["nothing"]


BROKEN = (short_row, short_series, no_headline_value)


@pytest.mark.parametrize("broken", BROKEN)
@pytest.mark.parametrize(
    ("words", "written"),
    [
        (("stats",), ()),
        (("report",), ("results/index.html",)),
        (
            ("report", "--name", "a", "--name", "b", "--name", "c"),
            ("results/a/eval_report_weibo.html", "results/c/eval_report_weibo.html"),
        ),
        (
            ("export", "--format", "inspect"),
            ("results/a/export_weibo.eval", "results/c/export_weibo.eval"),
        ),
    ],
)
def test_broken_report_is_named_and_the_others_are_shown(
    here,
    words,
    written,
    broken,
    capsys,
):
    """A table with a short row, a chart with a short series, a figure that there is not."""
    changed("b", broken)
    for path in written:
        Path(path).unlink(missing_ok=True)
    assert main(list(words)) == 2
    out, err = capsys.readouterr()
    [named] = [line for line in err.splitlines() if "not a report that this version reads" in line]
    assert "results/b" in named or "b, weibo" in named
    assert "defect" not in err and all(Path(path).exists() for path in written)
    assert words != ("stats",) or {"a", "c"} <= set(out.split())


@pytest.mark.slow
@pytest.mark.parametrize("broken", BROKEN)
def test_viewer_shows_the_runs_next_to_a_broken_report(here, broken):
    """The page of its run says what is wrong."""
    changed("b", broken)
    assert main(["view", "--export", "site", "--users", "0"]) == 0
    site = pages("site")
    assert all(f">{name}</a>" in site["index.html"] for name in RUNS)
    [page] = [text for text in site.values() if "<title>b, weibo</title>" in text]
    assert "not a report that this version reads" in page


def test_a_chart_without_a_reference_is_stored_as_in_earlier_versions():
    """Its bytes stay, with every default; one with a reference reads back the same."""
    chart = Chart("intervals", "t", ("a",), "%", "", (Series("value", (0.5,)),))
    saved = b'"title":"t","x":["a"],"x_label":"%","y_label":"","series":[{"name":"value","values":[0.5],"low":[],'
    assert (
        msgspec.json.encode(chart)
        == b'{"block":"Chart","kind":"intervals",' + saved + b'"high":[]}],"percent":true}'
    )
    difference = msgspec.structs.replace(chart, reference=0.0)
    assert msgspec.json.decode(msgspec.json.encode(difference), type=Chart) == difference
