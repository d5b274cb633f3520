"""The tables of `stats` as LaTeX, compiled."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import orjson
import pytest

from harness.cli import main
from harness.commands.stats.standings import AVERAGE
from harness.document import Cell, Table
from harness.reporting import latex, markdown
from tests.commands.stats.test_stats import write
from tests.safety.test_terminal import HOSTILE, raw

PROGRAM, FINDS = shutil.which("pdflatex"), shutil.which("kpsewhich")
CHINESE = "CJKutf8.sty", "c70gbsn.fd"
HAS_CHINESE = (
    FINDS is not None
    and subprocess.run([FINDS, *CHINESE], capture_output=True, check=False).returncode == 0
)
NAMES = (
    "Qwen3_30B & 50% #1 $x^2$",
    "a~b{c}|\"d'`e`<f>",
    "[--no_x--]*",
    "a\\b\\input{c}",
    "通义千问-大",
)

Told = pytest.CaptureFixture[str]


def results(folder: Path) -> Path:
    """A run on the synthetic tasks, its reports under every name, one of them with an invalid
    answer and on a share."""
    where = ["--demo", "--results-dir", str(folder), "--no-html"]
    assert (
        main(["run", "--model", "baseline/recency", "--ratio", "0.2", "--name", "recency", *where])
        == 0
    )
    for name in NAMES:
        (folder / name).mkdir()
        for path in folder.glob("recency/eval_report_*.json"):
            data = orjson.loads(path.read_bytes())
            data["model"], data["run"]["ratio"] = name, 1.0
            (folder / name / path.name).write_bytes(orjson.dumps(data))
    return folder


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("tables")
    words = [
        "stats",
        "--format",
        "latex",
        "--published",
        "--intervals",
        "--into",
        str(folder / "tables.tex"),
    ]
    assert main([*words, "--results-dir", str(results(folder / "results"))]) == 0
    return (folder / "tables.tex").read_text(encoding="utf-8")


def compiled(text: str, before: str, begin: str, end: str, folder: Path) -> bytes:
    """Compile an article of tables and references to them; return what LaTeX printed the second
    time."""
    (folder / "tables.tex").write_text(text, encoding="utf-8")
    body = f"{begin}\\input{{tables}}\nSee \\ref{{tab:recall}} and \\ref{{tab:f1-ns}}.\n{end}"
    packages = "\\usepackage{booktabs,graphicx}\n"
    whole = f"\\documentclass{{article}}\n{packages}{before}\\begin{{document}}\n{body}\\end{{document}}\n"
    (folder / "paper.tex").write_text(whole, encoding="utf-8")
    command = [
        PROGRAM or "",
        "-interaction=nonstopmode",
        "-halt-on-error",
        "-no-shell-escape",
        "paper.tex",
    ]
    for _ in range(2):
        done = subprocess.run(command, cwd=folder, capture_output=True, check=False, timeout=120)
        assert done.returncode == 0, done.stdout.decode(errors="replace")[-2000:]
    assert (folder / "paper.pdf").read_bytes().startswith(b"%PDF")
    return done.stdout


@pytest.mark.slow
@pytest.mark.skipif(PROGRAM is None, reason="there is no pdflatex here")
@pytest.mark.parametrize("longest", [1, 8])
def test_tables_of_stats_compile_and_fit_the_page_whatever_the_names(longest, tables, tmp_path):
    """Without an error or an undefined reference; letters beyond ASCII need a font, so each has a
    stand-in here."""
    text = tables.replace("recency &", f"{'recency' * longest} &")
    letters = "".join(
        f"\\DeclareUnicodeCharacter{{{ord(one):04X}}}{{?}}\n"
        for one in sorted(set(text))
        if one > "~"
    )
    shown = compiled(text, letters, "", "", tmp_path)
    assert b"undefined" not in shown and b"multiply defined" not in shown
    wider = [
        float(points) for points in re.findall(rb"Overfull .hbox \(([\d.]+)pt too wide", shown)
    ]
    assert all(points <= 1 for points in wider), wider


@pytest.mark.slow
@pytest.mark.skipif(not HAS_CHINESE, reason="there is no CJKutf8 with the font gbsn here")
def test_names_in_chinese_compile_as_the_first_lines_of_the_tables_say(tables, tmp_path):
    """pdfLaTeX takes them with what these comments name."""
    (begin,), (end,) = (
        re.findall(what, tables[:400]) for what in (r"\\begin\S+", r"\\clearpage\S+")
    )
    shown = compiled(tables, "\\usepackage{CJKutf8}\n", begin, end, tmp_path)
    assert "通义千问-大" in tables and b"gbsn" in shown and b"Missing character" not in shown


def test_table_has_a_short_caption_a_label_and_its_notes_beneath():
    """A caret in the metric's name is an exponent, in a run's name a character; no two labels are
    the same."""
    row = ("a^b", Cell("1.00", interval="[-0.50, 2.00]"), Cell("3.00"), "")
    table = Table(("run", "x", "y", AVERAGE), (row,), "F1^NS, % (lower is better)", ("A note.",))
    text = latex.rendered([table, table, Table(("run",), (), "得分")])
    assert "\\caption{$F1^{NS}$, \\% (lower is better)}\n  \\label{tab:f1-ns}\n" in text
    assert (
        text.count("\\label{tab:f1-ns}") == 1
        and text.count("\\label{") == len(set(text.split("\\label{")[1:])) == 3
    )
    lines = [line.strip() for line in text.splitlines()]
    at = lines.index("a\\textasciicircum{}b & 1.00 & 3.00 &  \\\\")
    assert lines[at + 1] == "& {\\scriptsize {[}$-$0.50, 2.00]} &  &  \\\\"
    assert lines.index("\\end{tabular}}") < next(
        at for at, line in enumerate(lines) if "A note." in line
    )


@pytest.mark.parametrize("form", ["table", "markdown", "latex"])
def test_intervals_are_shown_on_request(form, tmp_path, capsys):
    write(
        tmp_path, "one", metrics={"Recall": {"value": 0.51, "ci95": [0.4576, 0.5655], "users": 40}}
    )
    words = ["stats", "--format", form, "--metric", "Recall", "--results-dir", str(tmp_path)]
    assert main(words) == 0
    assert "45.76" not in capsys.readouterr().out
    assert main([*words, "--intervals"]) == 0
    assert "45.76, 56.55" in capsys.readouterr().out


@pytest.mark.parametrize(
    "name", [HOSTILE, "a|b", "a\\|b", "a\\", "a\\\\|", "| --- |", "a\n| b", "a & b \\\\ c", "% c"]
)
def test_no_name_breaks_a_row_of_markdown_or_latex(name):
    """Titles, heads, rows, notes and comments have the lines and cells that they have with an
    ordinary name."""

    def shape(word: str) -> tuple[list[int], list[int]]:
        tables = [Table((word, "x", word), ((word, Cell("1", note=word), ""),), word, (word,))]
        found = markdown.rendered(tables, [word]), latex.rendered(tables, [word])
        assert raw("".join(found)) == set()
        cells = [len(re.findall(r"(?<!\\)(?:\\\\)*\|", line)) for line in found[0].splitlines()]
        ands = [
            line[0] == "%" or len(re.findall(r"(?<!\\)&|\\\\", line))
            for line in found[1].splitlines()
            if line
        ]
        return cells, ands

    assert shape(name) == shape("plain")
