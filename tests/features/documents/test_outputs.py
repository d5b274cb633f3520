"""Files that commands write where the user says, or under their own names: which files they may replace."""

from __future__ import annotations

import shutil
import zipfile
from pathlib import Path

import pytest

from harness.benchmarks.streamprofile.synth import generate
from harness.cli import main
from harness.features.documents.outputs import Outputs
from harness.features.documents.xlsx import Sheet, workbook

OTHERS = b"chapter 1\n"
REFUSED = 2
OF_ANY_FILE = (
    (("stats", "--format", "latex", "--into", "x/thesis.tex"), "x/thesis.tex"),
    (("stats", "--format", "markdown", "--into", "x/thesis.md"), "x/thesis.md"),
    (("stats", "--format", "csv", "--into", "x/data.csv"), "x/data.csv"),
    (("export", "a", "--out", "x/data.csv"), "x/data.csv"),
    (("export", "a", "--format", "csv"), "results/a/export_steps_weibo.csv"),
    (("export", "a", "--format", "jsonl"), "results/a/export_steps_weibo.jsonl"),
    (("export", "a", "--format", "jsonl", "--out", "x"), "x/a/export_steps_weibo.jsonl"),
    (("export", "a", "--out", "x/log.eval"), "x/log.eval"),
    (("sample", "--ratio", "0.5"), "tasks/weibo_inference_tasks_sub50.jsonl"),
)
"""Outputs whose files carry no sign of the harness: command and path."""
WITH_A_FORM = (
    (("stats", "--excel"), "results/metric_excels/Recall.xlsx"),
    (("stats", "--excel", "--out", "x"), "x/Recall.xlsx"),
    (("compare", "a", "b", "--resamples", "1000", "--out", "x/data.xlsx"), "x/data.xlsx"),
    (("compare", "a", "b", "--resamples", "1000", "--html", "x/page.html"), "x/page.html"),
    (("report",), "results/index.html"),
    (("report", "--name", "a"), "results/a/eval_report_weibo.html"),
    (("report", "--name", "a", "--out", "x/page.html"), "x/page.html"),
    (("report", "--name", "a", "--users", "all"), "results/a/users_weibo.html"),
)
ALL = (*OF_ANY_FILE, *WITH_A_FORM)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tasks and two runs."""
    folder = tmp_path_factory.mktemp("made")
    (folder / "tasks").mkdir()
    (folder / "tasks/weibo_inference_tasks.jsonl").write_bytes(b"".join(generate("weibo", 4, 5, 2.0)))
    for name, model in (("a", "baseline/recency"), ("b", "baseline/random")):
        words = ["run", "--model", model, "--name", name, "--platform", "weibo", "--no-html"]
        assert main([*words, "--tasks-dir", str(folder / "tasks"), "--results-dir", str(folder / "results")]) == 0
    return folder


@pytest.fixture
def here(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of them to be in, and a state folder of its own."""
    folder = tmp_path / "here"
    shutil.copytree(made, folder)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return folder


def put(path: str, content: bytes = OTHERS) -> Path:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_bytes(content)
    return Path(path)


def needs_its_feature(path: str) -> None:
    """Skip where nothing makes pages."""
    if path.endswith(".html"):
        pytest.importorskip("harness.features.pages")
        pytest.importorskip("harness.features.leaderboard")


@pytest.mark.parametrize(("words", "path"), ALL)
def test_output_replaces_no_file_of_others_without_force(words: tuple[str, ...], path: str, here: Path) -> None:
    """The file stays as it is; with --force it is replaced, and from then on it is the harness's own."""
    needs_its_feature(path)
    file = put(path)
    assert main(list(words)) == REFUSED
    assert file.read_bytes() == OTHERS
    assert main([*words, "--force"]) == 0
    assert file.read_bytes() != OTHERS
    assert main(list(words)) == 0
    file.write_bytes(OTHERS)
    assert main(list(words)) == REFUSED
    assert file.read_bytes() == OTHERS


@pytest.mark.parametrize(("words", "path"), ALL)
def test_output_replaces_no_link(words: tuple[str, ...], path: str, here: Path) -> None:
    """Neither the link nor the file that it leads to; with --force only the link."""
    needs_its_feature(path)
    theirs = put("outside/thesis")
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).symlink_to(theirs.absolute())
    assert main(list(words)) == REFUSED
    assert Path(path).is_symlink()
    assert main([*words, "--force"]) == 0
    assert theirs.read_bytes() == OTHERS
    assert not Path(path).is_symlink()


def parts_of(path: Path) -> dict[str, bytes]:
    """Return the parts of a workbook without the one that has its time; a page as it is."""
    if path.suffix != ".xlsx":
        return {path.name: path.read_bytes()}
    with zipfile.ZipFile(path) as book:
        return {name: book.read(name) for name in book.namelist() if name != "docProps/core.xml"}


@pytest.mark.parametrize(("words", "path"), WITH_A_FORM)
def test_pages_and_workbooks_of_another_machine_are_replaced(
    words: tuple[str, ...], path: str, here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are recognised by their form, so a results folder can be copied."""
    needs_its_feature(path)
    put("x/nothing")
    assert main(list(words)) == 0
    before = parts_of(Path(path))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "another"))
    assert main(list(words)) == 0
    assert parts_of(Path(path)) == before


@pytest.mark.parametrize(("words", "path"), OF_ANY_FILE)
def test_record_of_another_user_is_not_this_users(
    words: tuple[str, ...], path: str, here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A table or log from elsewhere may be somebody's only copy. Without a place for records there are none."""
    put("x/nothing")
    assert main(list(words)) == 0
    monkeypatch.setenv("XDG_STATE_HOME", str(put(str(tmp_path / "no_folder"))))
    before = Path(path).read_bytes()
    assert main(list(words)) == REFUSED
    assert Path(path).read_bytes() == before
    assert main([*words, "--force"]) == 0


def test_file_of_json_lines_is_never_replaced(here: Path) -> None:
    """An export to a named one, whose ending tasks and records have, is refused with --force too."""
    file = put("x/data.jsonl")
    assert main(["export", "a", "--out", str(file), "--force"]) == REFUSED
    assert file.read_bytes() == OTHERS


def test_tables_are_shown_where_a_workbook_of_others_stays(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`stats` writes no workbook then, and ends with 2."""
    put("results/metric_excels/Recall.xlsx")
    assert main(["stats", "--excel"]) == REFUSED
    assert "61.31" in capsys.readouterr().out
    assert [path.name for path in Path("results/metric_excels").iterdir()] == ["Recall.xlsx"]


def test_commands_end_well_where_a_page_of_others_stays(here: Path) -> None:
    """A page that cannot be written changes no exit code. `run` sets aside what has the name of a page."""
    page = put("results/a/eval_report_weibo.html")
    assert main(["reeval", "--name", "a"]) == 0
    assert page.read_bytes() == OTHERS
    theirs = put("results/c/eval_report_weibo.html")
    assert main(["run", "--model", "baseline/recency", "--name", "c", "--platform", "weibo"]) == 0
    assert OTHERS in [path.read_bytes() for path in theirs.parent.iterdir()]


def test_settings_file_cannot_force(here: Path) -> None:
    """Neither for all commands nor for one."""
    for text in ("force = true", "[stats]\nforce = true"):
        put("harness.toml", text.encode())
        assert main(["stats", "--excel", "--settings", "harness.toml"]) == REFUSED
    put("harness.toml", b'[stats]\nformat = "latex"\ninto = "thesis.tex"\n')
    file = put("thesis.tex")
    assert main(["stats", "--excel", "--settings", "harness.toml"]) == REFUSED
    assert file.read_bytes() == OTHERS


def test_workbook_that_a_spreadsheet_has_saved_is_not_the_harness_own(tmp_path: Path) -> None:
    """Nor one that another program made with the same library, nor what is no sound archive."""
    ours = put(str(tmp_path / "ours.xlsx"), workbook([Sheet("a", ("b",), [("c",)])]))
    Outputs().check(ours)
    for name, old, new in (
        ("docProps/app.xml", b"<AppVersion>12.0000", b"<AppVersion>16.0300"),
        ("xl/worksheets/sheet1.xml", b'defaultRowHeight="16.5"', b'defaultRowHeight="15"'),
    ):
        saved = tmp_path / "saved.xlsx"
        with zipfile.ZipFile(ours) as source, zipfile.ZipFile(saved, "w") as target:
            for part in source.namelist():
                data = source.read(part)
                target.writestr(part, data.replace(old, new) if part == name else data)
        with pytest.raises(Exception, match="--force"):
            Outputs().check(saved)
    whole = ours.read_bytes()
    for position in range(0, len(whole), 7):
        broken = put(str(tmp_path / "broken.xlsx"), whole[:position] + b"\xff" * 7 + whole[position + 7 :])
        try:
            Outputs().check(broken)
        except Exception as error:
            assert type(error).__name__ == "BadInput"
