"""Files that commands write where the user says, or under their own names: which files they may
replace."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from harness.benchmarks.streamprofile.synth import generate
from harness.cli import main

OTHERS = b"chapter 1\n"
REFUSED = 2
NAMED = (
    (("stats", "--format", "latex", "--into", "x/thesis.tex"), "x/thesis.tex"),
    (("stats", "--format", "markdown", "--into", "x/thesis.md"), "x/thesis.md"),
    (("stats", "--format", "csv", "--into", "x/data.csv"), "x/data.csv"),
    (("stats", "--excel", "--out", "x"), "x/Recall.xlsx"),
    (("export", "a", "--out", "x/data.csv"), "x/data.csv"),
    (("export", "a", "--format", "jsonl", "--out", "x"), "x/a/export_steps_weibo.jsonl"),
    (("export", "a", "--format", "inspect", "--out", "x"), "x/a/export_weibo.eval"),
    (("export", "a", "--out", "x/log.eval"), "x/log.eval"),
    (("compare", "a", "b", "--resamples", "1000", "--out", "x/data.xlsx"), "x/data.xlsx"),
    (("compare", "a", "b", "--resamples", "1000", "--html", "x/page.html"), "x/page.html"),
    (("report", "--out", "x/page.html"), "x/page.html"),
    (("report", "--name", "a", "--out", "x/page.html"), "x/page.html"),
    (("report", "--name", "a", "--users", "all", "--out", "x/page.html"), "x/users_weibo.html"),
    (("sample", "--ratio", "0.5"), "tasks/weibo_inference_tasks_sub50.jsonl"),
)
"""Outputs that are not below the results folder: command and path."""
OF_DEFAULT_NAME = (
    (("stats", "--excel"), "results/metric_excels/Recall.xlsx"),
    (("export", "a", "--format", "csv"), "results/a/export_steps_weibo.csv"),
    (("export", "a", "--format", "jsonl"), "results/a/export_steps_weibo.jsonl"),
    (("export", "a", "--format", "inspect"), "results/a/export_weibo.eval"),
    (("report",), "results/index.html"),
    (("report", "--name", "a"), "results/a/eval_report_weibo.html"),
    (("report", "--name", "a", "--users", "all"), "results/a/users_weibo.html"),
)
"""Outputs below the results folder."""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tasks and two runs."""
    folder = tmp_path_factory.mktemp("made")
    (folder / "tasks").mkdir()
    (folder / "tasks/weibo_inference_tasks.jsonl").write_bytes(
        b"".join(generate("weibo", 4, 5, 2.0))
    )
    for name, model in (("a", "baseline/recency"), ("b", "baseline/random")):
        words = ["run", "--model", model, "--name", name, "--platform", "weibo", "--no-html"]
        assert (
            main(
                [
                    *words,
                    "--tasks-dir",
                    str(folder / "tasks"),
                    "--results-dir",
                    str(folder / "results"),
                ]
            )
            == 0
        )
    return folder


@pytest.fixture
def here(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of them to be in."""
    folder = tmp_path / "here"
    shutil.copytree(made, folder)
    monkeypatch.chdir(folder)
    return folder


def put(path: str, content: bytes = OTHERS) -> Path:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_bytes(content)
    return Path(path)


def put_link(path: str) -> Path:
    """Put a link to a file of somebody else at a path; return that file."""
    theirs = put("outside/thesis")
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).symlink_to(theirs.absolute())
    return theirs


@pytest.mark.parametrize(("words", "path"), NAMED)
def test_output_at_a_named_path_replaces_nothing_without_force(words, path, here):
    """Neither a file of others nor what the harness itself wrote there; with --force both."""
    file = put(path)
    assert main(list(words)) == REFUSED
    assert file.read_bytes() == OTHERS
    assert main([*words, "--force"]) == 0
    written = file.read_bytes()
    assert written != OTHERS
    assert main(list(words)) == REFUSED
    assert file.read_bytes() == written


@pytest.mark.slow
@pytest.mark.parametrize(("words", "path"), NAMED)
def test_output_at_a_named_path_replaces_no_link_without_force(words, path, here):
    """With --force the link is replaced, and not the file that it leads to."""
    theirs = put_link(path)
    assert main(list(words)) == REFUSED
    assert Path(path).is_symlink()
    assert main([*words, "--force"]) == 0
    assert theirs.read_bytes() == OTHERS
    assert not Path(path).is_symlink()


@pytest.mark.parametrize(("words", "path"), OF_DEFAULT_NAME)
def test_output_of_default_name_replaces_what_is_there(words, path, here):
    """A file of others as well as its own, which somebody has edited since."""
    file = put(path)
    assert main(list(words)) == 0
    assert file.read_bytes() != OTHERS
    file.write_bytes(OTHERS)
    assert main(list(words)) == 0
    assert file.read_bytes() != OTHERS


@pytest.mark.slow
@pytest.mark.parametrize(("words", "path"), OF_DEFAULT_NAME)
def test_output_of_default_name_is_not_written_through_a_link(words, path, here):
    """The link is replaced; the file that it leads to stays."""
    theirs = put_link(path)
    assert main(list(words)) == 0
    assert theirs.read_bytes() == OTHERS
    assert not Path(path).is_symlink()


def test_file_of_json_lines_is_never_replaced(here):
    """An export to a named one, whose ending tasks and records have, is refused with --force
    too."""
    file = put("x/data.jsonl")
    assert main(["export", "a", "--out", str(file), "--force"]) == REFUSED
    assert file.read_bytes() == OTHERS


def test_new_run_keeps_what_has_the_name_of_its_page(here):
    """It is set aside, as every file of an earlier run."""
    theirs = put("results/c/eval_report_weibo.html")
    assert main(["run", "--model", "baseline/recency", "--name", "c", "--platform", "weibo"]) == 0
    assert OTHERS in [path.read_bytes() for path in theirs.parent.iterdir()]


def test_settings_file_cannot_force(here):
    """Neither for all commands nor for one."""
    for text in ("force = true", "[stats]\nforce = true"):
        put("harness.toml", text.encode())
        assert main(["stats", "--excel", "--settings", "harness.toml"]) == REFUSED
    put("harness.toml", b'[stats]\nformat = "latex"\ninto = "thesis.tex"\n')
    file = put("thesis.tex")
    assert main(["stats", "--excel", "--settings", "harness.toml"]) == REFUSED
    assert file.read_bytes() == OTHERS
