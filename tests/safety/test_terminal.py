"""Names, models and ids of a folder from somebody else, under every command that reads it: none
steers a terminal, breaks a row, or turns the direction of what follows it."""

from __future__ import annotations

import ast
import csv
import io
import re
import shutil
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.table import Table as Columns
from rich.text import Text

from harness.benchmarks.streamprofile.synth import generate
from harness.cli import main
from harness.document import Heading, Paragraph, Quote, Table, Tags, Verbatim
from harness.printable import as_json, in_lines, on_one_line
from harness.reporting import text
from harness.ui import progress
from harness.ui.console import SharedConsole
from tests.support import ROOT, Terminal, first_quick
from tests.support.scripted import baseline, serving
from tests.ui.test_display import SUBSET, snapshot

PACKAGE = ROOT / "harness"

STYLED = "\x1b[5;37m"
HOSTILE = (
    f"模{STYLED}\x1b]0;title\x07\x1b]8;;http:x\x1b\\link\x9b2J\x7f\x1b[2J\u202eright\u2066to\u2069\u200f"
    "broken\nhere\rand\there\x85there\u2028zero\u200bwidth\ufeff\u200d\x0b"
)
"""CSI, OSC 0 and 8, C1, DEL, bidirectional and zero-width characters, and every kind of line
end."""

OWN = re.compile(r"\r?\x1b\[[0-9;?]*[mAKhl]")
"""What the harness itself sends to a terminal: styles, and the cursor movements of the live
display."""


def raw(shown: str) -> set[str]:
    """Characters of an output that should not be there, other than line feeds and the harness's own
    styles."""
    found = {STYLED} if STYLED in shown else set()
    plain = OWN.sub("", shown).replace("\n", "")
    return found | {
        c for c in plain if unicodedata.category(c) in ("Cc", "Cf", "Cs", "Co", "Zl", "Zp")
    }


@dataclass(frozen=True)
class Folder:
    """Runs called `word` and a number, of a model called so: 1 is complete but for a line that
    stands twice, 2 lacks a user, and 3 is of a subset called so."""

    word: str
    root: Path

    @property
    def results(self) -> Path:
        return self.root / "results"

    def make(self) -> None:
        tasks = self.root / "tasks"
        tasks.mkdir(parents=True)
        lines = [orjson.loads(line) for line in generate("weibo", 3, 5, 2.0)]
        content = b"\n".join(
            orjson.dumps({**line, "user_id": f"{self.word}{n}"}) for n, line in enumerate(lines)
        )
        (tasks / "weibo_inference_tasks.jsonl").write_bytes(content)
        for number, refused in ((1, None), (2, lines[0]["username"])):
            self._run(tasks, f"run{number}", refused)
            self._rename(f"run{number}", number)
        with (self.results / f"{self.word}1/inference_results_weibo.jsonl").open("r+b") as file:
            file.write(file.readlines()[-1])
        self._other_subset()

    def _run(self, tasks: Path, name: str, refused: str | None) -> None:
        def script(request: dict[str, Any]) -> tuple[int, bytes]:
            if refused and refused in request["messages"][-1]["content"]:
                return 400, orjson.dumps({"error": self.word})
            return baseline(request)

        where = ["--tasks-dir", str(tasks), "--results-dir", str(self.results)]
        with serving(script) as server:
            words = [
                "run",
                "--model",
                "m",
                "--name",
                name,
                "--platform",
                "weibo",
                "--api-url",
                server.url,
                *where,
            ]
            assert main(words) == (1 if refused else 0)

    def _rename(self, old: str, number: int) -> None:
        folder = (self.results / old).rename(self.results / f"{self.word}{number}")
        with _Edited(folder / "run_weibo.json") as manifest:
            manifest["identity"]["model"] = self.word
            manifest["provenance"]["allowed"] = [self.word]
        with _Edited(folder / "eval_report_weibo.json") as report:
            report |= {
                "model": self.word,
                "prompt": self.word,
                "prompt_version": self.word,
                "name": self.word,
            }
            report["notes"] = [self.word]

    def _other_subset(self) -> None:
        old, new = self.results / f"{self.word}2", self.results / f"{self.word}3"
        new.mkdir()
        for kind in ("run", "eval_report"):
            made = orjson.loads((old / f"{kind}_weibo.json").read_bytes())
            (new / f"{kind}_{self.word}.json").write_bytes(
                orjson.dumps(made | {"subset": self.word})
            )


class _Edited:
    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> dict[str, Any]:
        self._data: dict[str, Any] = orjson.loads(self._path.read_bytes())
        return self._data

    def __exit__(self, *_: object) -> None:
        self._path.write_bytes(orjson.dumps(self._data, option=orjson.OPT_INDENT_2) + b"\n")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Folder, Folder]:
    """A hostile folder, and one whose names have ordinary characters in place of each escape."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("LLM_API_KEY", "LLM_API_BASE", "OPENAI_API_KEY", "OPENAI_BASE_URL"):
            patch.delenv(name, raising=False)
        folders = (
            Folder(HOSTILE, tmp_path_factory.mktemp("hostile")),
            Folder(on_one_line(HOSTILE).replace("\\", "_"), tmp_path_factory.mktemp("plain")),
        )
        for folder in folders:
            folder.make()
    return folders


@pytest.fixture
def folders(made: tuple[Folder, Folder], tmp_path: Path) -> Iterator[tuple[Folder, Folder]]:
    """Copies, at paths of one length."""
    copies = tuple(
        Folder(folder.word, tmp_path / str(number)) for number, folder in enumerate(made)
    )
    for folder, copy in zip(made, copies, strict=True):
        shutil.copytree(folder.root, copy.root)
    hostile, plain = copies
    yield hostile, plain


COMMANDS = [
    ("status",),
    ("status", "--json"),
    ("status", "WORD"),
    ("status", "--model", "WORD"),
    ("status", "--name", "WORD"),
    ("verify",),
    ("verify", "--json"),
    ("verify", "--without-tasks"),
    ("stats",),
    ("stats", "--json"),
    ("stats", "--format", "markdown"),
    ("stats", "--format", "latex"),
    ("stats", "--format", "csv"),
    ("stats", "WORD"),
    ("stats", "--metric", "WORD"),
    ("compare", "WORD1", "WORD2", "--resamples", "1000"),
    ("compare", "WORD1", "WORD2", "--resamples", "1000", "--json"),
    ("compare", "WORD1", "WORD"),
    ("reeval",),
    ("reeval", "--reparse"),
    ("export",),
    ("export", "WORD1", "--rows", "users"),
    ("report",),
    ("report", "--model", "WORD", "--platform", "weibo"),
]
WRAPPED = [
    ("status", "--name", "WORD"),
    ("compare", "WORD1", "WORD2", "--resamples", "1000"),
]
"""Commands with lines of at most 120 columns, or another error for a name that options refuse."""


def output(
    words: tuple[str, ...], folder: Folder, terminal: bool, patch: pytest.MonkeyPatch
) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of a command about a folder."""
    patch.setenv("COLUMNS", "3000")
    patch.setenv("TERM", "xterm-256color")
    patch.setattr("sys.stdout", out := Terminal() if terminal else io.StringIO())
    patch.setattr("sys.stderr", err := Terminal() if terminal else io.StringIO())
    patch.chdir(folder.root)
    code = main(
        [*(word.replace("WORD", folder.word) for word in words), "--results-dir", "results"]
    )
    return code, out.getvalue(), err.getvalue()


@pytest.mark.parametrize("terminal", first_quick([True, False]), ids=["terminal", "pipe"])
@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_no_name_steers_the_terminal_or_breaks_a_row(
    words,
    terminal,
    folders,
    monkeypatch,
):
    """What reading commands print has as many lines as with ordinary names, and no character of
    others raw."""
    hostile, plain = (output(words, folder, terminal, monkeypatch) for folder in folders)
    assert raw(hostile[1]) == set() and raw(hostile[2]) == set()
    assert "模" in hostile[1] + hostile[2]
    if "--name" not in words:  # which refuses such a name
        assert hostile[0] == plain[0]
    if words not in WRAPPED:
        assert [shown.count("\n") for shown in hostile[1:]] == [
            shown.count("\n") for shown in plain[1:]
        ]


@pytest.mark.parametrize("terminal", [False, True], ids=["pipe", "terminal"])
def test_no_name_steers_the_terminal_while_a_run_goes_on(terminal, folders, monkeypatch):
    """Display and last words of `resume`, of a run that goes on and of one that cannot."""
    hostile, _ = folders
    (hostile.results / f"{HOSTILE}2").rename(hostile.results / "run2")
    with serving(baseline) as server:
        words = ("resume", "--name", "run2", "--no-html", "--api-url", server.url)
        code, out, err = output(words, hostile, terminal, monkeypatch)
    assert raw(out) == set() and raw(err) == set()
    assert f"{on_one_line(HOSTILE)} on http" in out and code == 0, err
    code, out, err = output(("resume",), hostile, terminal, monkeypatch)
    assert raw(out) == set() and raw(err) == set() and code


def test_reports_as_text_hold_no_raw_character(folders, monkeypatch):
    """`cat eval_report_weibo.txt` is as safe as the command that wrote it."""
    hostile, _ = folders
    assert output(("reeval",), hostile, False, monkeypatch)[0] == 2  # the subset that nobody knows
    reports = list(hostile.results.glob("*/eval_report_*.txt"))
    assert len(reports) == 2
    for path in reports:
        shown = path.read_text(encoding="utf-8")
        assert raw(shown) == set() and "\\x1b[5;37m" in shown


def test_json_on_the_terminal_is_the_same_when_parsed(folders, monkeypatch):
    """Escapes are JSON's own."""
    hostile, _ = folders
    _, out, _ = output(("status", "--json"), hostile, False, monkeypatch)
    assert {row["model"] for row in orjson.loads(out)} == {HOSTILE}


@given(
    st.recursive(
        st.text() | st.none(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)
    )
)
def test_json_of_any_texts_is_safe_and_equal(value):
    """Also of characters beyond U+FFFF, and of keys."""
    shown = as_json(value)
    assert orjson.loads(shown) == value
    assert raw(re.sub("(?<=.)\u200d(?=.)", "", shown)) == set()


@given(st.text(st.characters() | st.sampled_from(HOSTILE)))
def test_any_text_becomes_one_safe_line(value):
    """Escaping twice changes no more than escaping once, and `in_lines` keeps line feeds alone."""
    line = on_one_line(value)
    assert len(line.splitlines()) <= 1 and on_one_line(line) == line
    assert raw(re.sub("(?<=.)\u200d(?=.)", "", line)) == set()
    assert in_lines(value) == "\n".join(map(on_one_line, value.split("\n")))


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("好 name－1，（甲）\u3000乙", "好 name－1，（甲）\u3000乙"),
        (
            "👩\u200d💻 ❤\ufe0f\u200d🔥 👍🏽\u200d♀\ufe0f é e\u0301",
            "👩\u200d💻 ❤\ufe0f\u200d🔥 👍🏽\u200d♀\ufe0f é e\u0301",
        ),
        ("a\u200db\u200d", "a\\u200db\\u200d"),
        ("\x1b[2J\x9b\x7f\r\n\t\x00", "\\x1b[2J\\x9b\\x7f\\r\\n\\t\\x00"),
        (
            "\u202e\u2066\u061c\u200b\ufeff\u2028\u2029\x85",
            "\\u202e\\u2066\\u061c\\u200b\\ufeff\\u2028\\u2029\\x85",
        ),
        ("\ud800\ue000\U000e0041\U000f0000", "\\ud800\\ue000\\U000e0041\\U000f0000"),
    ],
)
def test_what_is_escaped_and_what_is_not(value, shown):
    """Chinese, accents and emoji stay readable; whatever could steer is visible."""
    assert on_one_line(value) == shown


def test_blocks_of_a_report_are_escaped_wherever_text_stands():
    """Every kind of block that a text report shows; line feeds stay in those that are shown as they
    are."""

    def shown(word: str) -> str:
        blocks = [
            Heading(word),
            Paragraph(word),
            Table(("a", word), ((word, word),)),
            Quote(word, word),
            Tags(word, ((word, word),)),
        ]
        return text.rendered(blocks, 3000)

    assert raw(shown(HOSTILE)) == set()
    assert shown(HOSTILE).count("\n") == shown("plain").count("\n")
    verbatim = text.rendered([Verbatim(f"one\n{HOSTILE}")])
    assert raw(verbatim) == set() and verbatim.startswith("one\n模\\x1b")


@pytest.mark.parametrize(
    "name", ["=cmd|' /C calc'!A0", "+1", "-1+2", "@SUM(1)", "＝1", "\t=1", "\r=1"]
)
def test_no_name_is_a_formula_in_a_spreadsheet(name, folders, monkeypatch):
    """Neither as a run's name nor as the model, which stands first in what a run is; numbers stay
    numbers."""
    _, plain = folders
    folder = (plain.results / f"{plain.word}1").rename(plain.results / name.replace("/", ""))
    with _Edited(folder / "eval_report_weibo.json") as report:
        report["model"] = name
    code, out, _ = output(
        ("stats", "--format", "csv", "--metric", "Recall"), plain, False, monkeypatch
    )
    assert code == 2  # the subset that nobody knows
    for line in csv.DictReader(io.StringIO(out)):
        assert not line["run"].startswith(tuple("=+-@＝＋－＠\t\r")) and not line[
            "what"
        ].startswith(tuple("=+-@＝＋－＠\t\r"))
        assert float(line["value"]) >= 0


def test_a_string_is_a_line_and_a_text_is_safe_on_every_console():
    """A new command cannot forget: strings, cells of tables and texts that are made elsewhere are
    all escaped."""
    screen = SharedConsole(
        file=(out := io.StringIO()), force_terminal=True, width=3000, highlight=False, _environ={}
    )
    cells = Columns(HOSTILE)
    cells.add_row(HOSTILE)
    for one in (HOSTILE, cells, Text(HOSTILE)):
        screen.print(one, style="bold")
    screen.print(HOSTILE, HOSTILE, sep="\n")
    assert raw(out.getvalue()) == set()
    string, *rows = out.getvalue().split("\n")
    assert on_one_line(HOSTILE) in string and sum(on_one_line(HOSTILE) in row for row in rows) == 4


def test_lines_of_a_log_are_those_of_the_display():
    """The name of one run among several breaks no line."""
    shown = progress.line(snapshot(SUBSET, name=HOSTILE))
    assert raw(shown) == set() and "\n" not in shown


def test_details_of_a_defect_are_safe_to_read(tmp_path, monkeypatch, capsys):
    """The file with a traceback, whose message quotes a value, is shown with `cat`."""

    def fail(*_: object) -> None:
        raise RuntimeError(HOSTILE)

    monkeypatch.setattr("harness.analysis.selection.find", fail)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert main(["status", "--results-dir", str(tmp_path)]) == 70
    (path,) = tmp_path.glob("harness-error-*.txt")
    details = path.read_text(encoding="utf-8")
    assert raw(details) == set() and details.count("\n") > 3
    err = capsys.readouterr().err
    assert raw(err) == set() and err.count("\n") == 1


# No other way out

WAYS = {
    "ui/streams.py": {"print", "stdout", "stderr"},
    "ui/console.py": {"SharedConsole"},
    "cli.py": {"stdout", "stderr"},  # to flush them, and to drop what is left
    "ui/live.py": {"stderr"},  # to ask whether it is a terminal
    "benchmarks/agents/errors.py": {
        "stdout",
        "stderr",
    },  # agent files write to the log
    "benchmarks/agents/classes.py": {"stderr"},  # likewise
    "benchmarks/agents/prompt.py": {"print"},  # likewise
    "benchmarks/agents/loader.py": {
        "print",
        "stdout",
        "stderr",
    },  # of agent files, to their logger
}
CALLS = {
    "print",
    "pprint",
    "input",
    "Console",
    "SharedConsole",
    "StreamHandler",
    "basicConfig",
    "print_exc",
}
STREAMS = {"stdout", "stderr", "__stdout__", "__stderr__"}


def ways_out(source: str) -> set[str]:
    """Names of what writes to the process's own streams, and of those streams, that a module
    uses."""
    found = set[str]()
    if not any(name in source for name in CALLS | STREAMS):
        return found
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call):
            name = getattr(node.func, "id", getattr(node.func, "attr", ""))
            method = isinstance(node.func, ast.Attribute) and name == "print"  # of a console
            found |= {name} & CALLS if not method else set()
        elif isinstance(node, ast.Attribute) and getattr(node.value, "id", "") == "sys":
            found |= {node.attr} & STREAMS
        elif isinstance(node, ast.ImportFrom) and node.module in ("sys", "rich"):
            found |= {alias.name for alias in node.names} & (STREAMS | CALLS)
    return found


def test_text_leaves_by_no_other_way():
    """All output goes through `ui/streams.py` and `ui/console.py`, which escape it."""
    found = {
        str(path.relative_to(PACKAGE)): ways_out(path.read_text("utf-8"))
        for path in PACKAGE.rglob("*.py")
    }
    assert {path: ways for path, ways in found.items() if ways} == {
        path: WAYS[path] for path in WAYS if path in found
    }


@pytest.mark.parametrize(
    "line",
    [
        "print(1)",
        "import sys\nsys.stdout.write('')",
        "from sys import stderr",
        "from rich import print",
        "Console()",
    ],
)
def test_another_way_out_would_be_found(line):
    """However it is written."""
    assert ways_out(line)
