"""The tables of `stats` as LaTeX, compiled."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import orjson
import pytest

from harness.analysis.leaderboard.tables import AVERAGE
from harness.cli import main
from harness.report.grid import Grid, Number, latex
from tests.analysis.test_stats import write

PROGRAM = shutil.which("pdflatex")
NAMES = ("Qwen3_30B & 50% #1 $x^2$", "a~b{c}|\"d'`e`<f>", "[--no_x--]*", "a\\b\\input{c}", "通义千问-大")

Told = pytest.CaptureFixture[str]


def results(folder: Path) -> Path:
    """A run on the synthetic tasks, its reports under every name, one of them with an invalid answer and on a share."""
    where = ["--demo", "--results-dir", str(folder), "--no-html"]
    assert main(["run", "--model", "baseline/recency", "--ratio", "0.2", "--name", "recency", *where]) == 0
    for name in NAMES:
        (folder / name).mkdir()
        for path in folder.glob("recency/eval_report_*.json"):
            data = orjson.loads(path.read_bytes())
            data["model"], data["run"]["ratio"] = name, 1.0
            (folder / name / path.name).write_bytes(orjson.dumps(data))
    return folder


@pytest.mark.slow
@pytest.mark.skipif(PROGRAM is None, reason="there is no pdflatex here")
def test_tables_of_stats_compile_whatever_the_names(tmp_path: Path) -> None:
    """With booktabs alone, without an error or an undefined reference; letters beyond ASCII need a font, so each has a
    stand-in here."""
    made = tmp_path / "tables.tex"
    words = ["stats", "--format", "latex", "--published", "--intervals", "--into", str(made)]
    assert main([*words, "--results-dir", str(results(tmp_path / "results"))]) == 0
    text = made.read_text(encoding="utf-8")
    letters = "".join(f"\\DeclareUnicodeCharacter{{{ord(one):04X}}}{{?}}\n" for one in sorted(set(text)) if one > "~")
    body = "\\input{tables}\nSee \\ref{tab:recall} and \\ref{tab:f1-ns}.\n"
    whole = (
        f"\\documentclass{{article}}\n\\usepackage{{booktabs}}\n{letters}\\begin{{document}}\n{body}\\end{{document}}\n"
    )
    (tmp_path / "paper.tex").write_text(whole)
    command = [PROGRAM or "", "-interaction=nonstopmode", "-halt-on-error", "-no-shell-escape", "paper.tex"]
    for _ in range(2):
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, check=False, timeout=120)
        assert done.returncode == 0, done.stdout.decode(errors="replace")[-2000:]
    assert b"undefined" not in done.stdout and b"multiply defined" not in done.stdout
    assert (tmp_path / "paper.pdf").read_bytes().startswith(b"%PDF")


def test_table_has_a_short_caption_a_label_and_its_notes_beneath() -> None:
    """A caret in the metric's name is an exponent, in a run's name a character; no two labels are the same."""
    row = (("a^b", (Number("1.00", interval="[-0.50, 2.00]"), Number("3.00"), None)),)
    grid = Grid("F1^NS, %", "run", ("x", "y", AVERAGE), (row,), ("A note.",), "F1^NS")
    text = latex([grid, grid, Grid("得分", "run", (), ())])
    assert "\\caption{$F1^{NS}$, \\%}\n  \\label{tab:f1-ns}\n" in text
    assert text.count("\\label{tab:f1-ns}") == 1 and text.count("\\label{") == len(set(text.split("\\label{")[1:])) == 3
    lines = [line.strip() for line in text.splitlines()]
    at = lines.index("a\\textasciicircum{}b & 1.00 & 3.00 &  \\\\")
    assert lines[at + 1] == "& {\\scriptsize {[}$-$0.50, 2.00]} &  &  \\\\"
    assert lines.index("\\end{tabular}") < next(at for at, line in enumerate(lines) if "A note." in line)


@pytest.mark.parametrize("form", ["table", "markdown", "latex"])
def test_intervals_are_shown_on_request(form: str, tmp_path: Path, capsys: Told) -> None:
    write(tmp_path, "one", metrics={"Recall": {"value": 0.51, "ci95": [0.4576, 0.5655], "users": 40}})
    words = ["stats", "--format", form, "--metric", "Recall", "--results-dir", str(tmp_path)]
    assert main(words) == 0
    assert "45.76" not in capsys.readouterr().out
    assert main([*words, "--intervals"]) == 0
    assert "45.76, 56.55" in capsys.readouterr().out
