"""Reports as text: nothing is wider than the terminal, Chinese included, and the authors' stats.py
can read it."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

from harness.benchmarks.streamprofile.benchmark import StreamProfile
from harness.benchmarks.streamprofile.metrics import METRICS
from harness.cli import main
from harness.document import Block, Cell, Chart, Heading, Paragraph, Series, Table, Verbatim
from harness.model import Record, RunFacts
from harness.reporting import report as overview
from harness.reporting import text as text_module
from harness.reporting.text import rendered, wrap
from harness.scoring.scorer import Scorer
from tests.support import examples


def shown(*blocks: Block, width: int = 80) -> str:
    return rendered(blocks, width)


def widest(text: str) -> int:
    return max(cell_len(line) for line in text.split("\n"))


def test_headings_are_underlined_to_their_width():
    """A Chinese character is two columns of underline; an empty line stands between blocks."""
    assert shown(Heading("报告 A"), Paragraph("好")) == "报告 A\n------\n\n好\n"


def test_a_heading_of_pictures_alone_is_left_out():
    picture = Chart("histogram", "users", (0, 1), "x", "y", ())
    a, b, c, words = Heading("a"), Heading("b"), Heading("c"), Paragraph("words")
    assert rendered([a, b, picture, picture, c, picture, words, b, picture]) == rendered(
        [a, c, words]
    )


@pytest.mark.parametrize("width", [0, 1, 3])
def test_a_terminal_of_hardly_any_columns_gets_narrow_text(width):
    """It breaks the lines itself."""
    table = Table(("运行", "Recall"), (("recency", "12.34%"),))
    assert rendered([Heading("报告"), table], width) == rendered([Heading("报告"), table], 8)


def test_chinese_wraps_without_spaces():
    """Five characters of two columns fill a line of ten."""
    assert wrap("用户的兴趣会变化", 10) == ["用户的兴趣", "会变化"]


def test_chinese_punctuation_does_not_start_a_line():
    """The character before a full stop goes with it to the next line."""
    assert wrap("用户的兴趣。变化", 10) == ["用户的兴", "趣。变化"]


def test_latin_words_within_chinese_stay_whole():
    """A line may end between the two scripts, but not within the word; no space is put in or
    lost."""
    assert wrap("模型Qwen很好 吗", 9) == ["模型Qwen", "很好 吗"]


def test_an_empty_paragraph_is_an_empty_line():
    """No text is no reason to fail."""
    assert wrap("", 10) == [""]


TEXT = st.text(st.sampled_from("ab 微博，。「x\n—é̈👍"), max_size=60)


@given(TEXT, st.integers(4, 30))
@settings(max_examples=examples(150), deadline=None)
def test_wrapping_loses_nothing_and_keeps_to_the_width(text, width):
    """Every line fits, and all that is not white space is there in order."""
    lines = wrap(text, width)
    assert all(cell_len(line) <= width for line in lines)
    assert "".join("".join(lines).split()) == "".join(text.split())


def test_table_sets_the_first_column_left_and_the_others_right():
    """By terminal columns, so that Chinese cells line up."""
    table = Table(("平台", "mean", "n"), (("微博", "1.50", "12"), ("知乎 (zhihu)", "10.25", "3")))
    assert (
        shown(table)
        == "平台           mean   n\n------------  -----  --\n微博           1.50  12\n知乎 (zhihu)"
        "  10.25   3\n"
    )


def test_columns_that_do_not_fit_follow_below():
    """Each band repeats the first column, and no column is lost."""
    table = Table(("step", "Recall", "Precision", "Error"), (("1", "10", "20", "30"),))
    assert (
        shown(table, width=24) == "step  Recall  Precision\n"
        "----  ------  ---------\n"
        "1         10         20\n"
        "\n"
        "step  Error\n"
        "----  -----\n"
        "1        30\n"
    )


def test_a_cell_wider_than_the_terminal_is_wrapped():
    """A long name takes several lines of its row."""
    text = shown(Table(("name", "n"), (("很长的名字" * 5, "7"),)), width=20)
    assert widest(text) <= 20
    assert "".join(re.findall("[很长的名字]", text)) == "很长的名字" * 5


def test_the_time_of_a_table_grows_with_its_rows(monkeypatch):
    """A folder from somebody else can have a report of many rows, for which nobody should wait for
    minutes."""
    measured: list[str] = []

    def counted(text: str) -> int:
        measured.append(text)
        return cell_len(text)

    monkeypatch.setattr(text_module, "cell_len", counted)
    calls = []
    for rows in (100, 200):
        measured.clear()
        rendered([Table(("kind", "times"), tuple((f"k{row}", "1") for row in range(rows)))])
        calls.append(len(measured))
    assert calls[1] < 2.5 * calls[0]


def test_a_table_without_rows_shows_its_head():
    """A learning curve of nobody is still a table."""
    assert shown(Table(("step", "n"), ())) == "step  n\n----  -\n"


def test_table_has_its_title_lines_and_notes():
    """The title above, lines above the rows that ask for them, notes beneath; cells with their
    marks."""
    cell = Cell("1.50", 1.5, partial=True, interval="[1, 2]")
    table = Table(
        ("run", "mean"), (("a", cell), ("b", "2.00")), "Recall, %", ("*: partial.",), rules=(1,)
    )
    assert (
        shown(table) == "Recall, %\n"
        "run          mean\n"
        "---  ------------\n"
        "a    1.50* [1, 2]\n"
        "---  ------------\n"
        "b            2.00\n"
        "*: partial.\n"
    )


def test_verbatim_is_left_as_it_is():
    """Leading spaces, long lines and all: another program reads it."""
    text = "  NAME : 12.34%\n" + "=" * 200
    assert shown(Verbatim(text)) == text + "\n"


cells = st.text(st.sampled_from("ab微博 1.%"), max_size=30)


@given(
    st.lists(st.lists(cells, min_size=4, max_size=4), min_size=1, max_size=4), st.integers(12, 60)
)
@settings(max_examples=examples(100), deadline=None)
def test_no_table_is_wider_than_the_terminal(rows, width):
    """Whatever its cells."""
    table = Table(tuple(rows[0]), tuple(tuple(row) for row in rows[1:]))
    assert widest(shown(table, width=width)) <= width


# The report of StreamProfileBench


def a_report(users: int, **run: Any) -> list[Block]:
    """Users with Recall 0.5 on each of twelve steps, every other one without any hit in novelty and
    stability."""
    scorer = Scorer(StreamProfile(), "xiaohongshu")
    records = []
    for number in range(users):
        values = {**dict.fromkeys(METRICS, 0.5 * (number % 2)), "Recall": 0.5}
        steps = [
            {
                "step_id": step_id,
                "prediction": ["猫"],
                "metrics": values,
                "outcome": "valid",
                "repairs": [],
                "asked": 1,
                "out_of_pool": 0,
                "ceiling": dict.fromkeys(METRICS[:4], 1.0),
            }
            for step_id in range(1, 13)
        ]
        records.append(Record(str(number), {"steps": steps}))
    about = {
        "subset": "xiaohongshu",
        "model": "某机构/通义千问-超长名字-" * 4,
        "name": "第一次运行" * 12,
        "prompt": "own",
    }
    facts = RunFacts(
        **{
            "expected_users": users,
            "failed_users": 0,
            "notes": ("端点不支持该参数，已自动调整。" * 9,),
            **about,
            **run,
        }
    )
    return list(overview.blocks(scorer.report(scorer.score(records), facts)[0]))


@pytest.mark.parametrize("width", [60, 80, 120])
@pytest.mark.parametrize(("users", "missing"), [(0, 3), (1, 0), (4, 2_000_000)])
def test_report_fits_the_terminal(users, missing, width):
    """Long Chinese names and notes, millions of users, nobody at all: no line is wider than
    asked."""
    text = rendered(a_report(users, expected_users=users + missing), width)
    assert widest(text) <= width


def by_stats(text: str) -> dict[str, str]:
    """What the patterns of that script (of the release, commit a83066b) find in a report."""
    block = re.search(r"Overall Macro Average.*?\n=+\n(.*?)\n\s*Users:", text, re.DOTALL)
    pattern = r"^\s*([A-Za-z0-9_^.()-]+)\s*:\s*([0-9.]+)%\s*$"
    found = dict(re.findall(pattern, block[1], re.MULTILINE) if block else ())
    f1 = re.search(r"F1\^NS\s*:\s*([0-9.]+)%", text)
    return found | ({"F1^NS": f1[1]} if f1 else {})


@pytest.mark.parametrize(("users", "release"), [(4, ["50.00"]), (1, [])])
@pytest.mark.parametrize("missing", [0, 1])
def test_stats_script_of_the_authors_finds_its_lines(users, release, missing):
    """Its patterns match once in the whole text, in the last block; what is undefined has no
    line."""
    text = rendered(a_report(users, expected_users=users + missing))
    assert text.count("Overall Macro Average") == 1
    found = by_stats(text)
    release_code = ["F1^NS"] if release else []
    if missing:  # figures of some users cannot get into the table of those of all
        names, release = [f"{name}(INCOMPLETE)" for name in (*METRICS, *release_code)], []
    else:
        names = [*METRICS, *release_code]
    assert list(found) == (names if users else [])
    assert found.get(f"Recall{'(INCOMPLETE)' if missing else ''}") == ("50.00" if users else None)
    assert re.findall(r"F1\^NS\s*:\s*([\d.]+)%", text) == release
    assert len(re.findall(r"F1\^NS\s*:", text)) == len(release)
    assert (
        text.index("for the authors' stats.py")
        < text.index("Overall Macro Average")
        < text.index("Users:")
    )


# Charts of intervals

FOREST = Chart(
    "intervals",
    "a minus b",
    ("Recall", "微博指标", "none"),
    "points",
    "",
    (Series("difference", (0.25, 0.1, None), (0.2, None, None), (0.3, None, None)),),
    reference=0.0,
)


def test_a_chart_of_intervals_has_a_line_for_each_value_and_a_scale():
    """The interval as a bar, the value as a dot, the zero line; without an interval a hollow dot
    and a word."""
    assert (
        shown(FOREST, width=64)
        == "Recall             │                            ├───────●──────┤\n"
        "微博指标           │              ○ no interval\n"
        "a minus b, points  0             10            20             30\n"
    )


def test_a_chart_is_drawn_with_characters_that_the_terminal_has():
    """Line for line as wide, without the characters that an ASCII terminal lacks."""
    chart = msgspec.structs.replace(FOREST, x=("Recall", "F1", "none"))
    text = rendered([chart], 64, encoding="ascii")
    assert (
        text.isascii() and "[-------*------]" in text and "| " in text and "o no interval" in text
    )
    assert [*map(len, text.split("\n"))] == [*map(len, shown(chart, width=64).split("\n"))]


def test_chance_levels_of_a_chart_are_ticks():
    """A second series of that name has no rows of its own."""
    values, chance = Series("value", (0.5,), (0.45,), (0.55,)), Series("chance", (0.25,))
    text = shown(Chart("intervals", "headline", ("Recall",), "%", "", (values, chance)), width=60)
    assert (
        text.count("┆") == text.count("●") == 1
        and text.index("┆") < text.index("├")
        and len(text.split("\n")) == 3
    )


def test_a_chart_without_values_is_nothing():
    """Nor has it a heading, whatever its chance levels."""
    undefined, chance = Series("value", (None,)), Series("chance", (0.25,))
    for series in ((undefined,), (undefined, chance)):
        chart = Chart("intervals", "t", ("a",), "%", "", series)
        assert shown(Paragraph("first"), Heading("h"), chart) == "first\n"


def test_charts_of_figures_that_a_table_has_are_left_out():
    """Of a section with the table above, and of what pages fold."""
    table = Table(("metric", "n"), (("Recall", "1"),))
    assert shown(table, FOREST, Heading("more", folded=True), FOREST) == shown(table)
    assert "●" in shown(table, Heading("more"), FOREST)


numbers = st.none() | st.floats(-1e6, 1e6)


@given(
    st.lists(st.tuples(TEXT, numbers, numbers, numbers), max_size=4), numbers, st.integers(8, 100)
)
@settings(max_examples=examples(100), deadline=None)
def test_no_chart_is_wider_than_the_terminal(
    rows,
    reference,
    width,
):
    """Whatever its names and numbers."""
    names, values, low, high = zip(*rows, strict=True) if rows else ((), (), (), ())
    ends = [
        None if a is None or b is None else sorted((a, b)) for a, b in zip(low, high, strict=True)
    ]
    bounds = (tuple(of and of[place] for of in ends) for place in (0, 1))
    chart = Chart(
        "intervals", "标题 t", names, "%", "", (Series("v", values, *bounds),), reference=reference
    )
    assert widest(shown(chart, width=width)) <= width


def test_text_report_is_short_and_keeps_what_is_looked_at_first(tmp_path):
    """Headline, interval, coverage, costs and errors first; then every metric; the last block is
    that of the authors' tool. The rest is on the page."""
    words = ["run", "--demo", "--subset", "weibo", "--limit", "12", "--no-html"]
    assert main([*words, "--results-dir", str(tmp_path)]) == 0
    folder = tmp_path / "demo-recency"
    text = (folder / "eval_report_weibo.txt").read_text()
    report = orjson.loads((folder / "eval_report_weibo.json").read_bytes())
    assert len(text.splitlines()) <= 130
    places = [text.index(words) for words in ("Headline figures", "Coverage:", "The metrics")]
    assert places == sorted(places)
    for name, value in report["metrics"].items():
        assert re.search(rf"^{re.escape(name)} .*{100 * value['value']:.2f}", text, re.MULTILINE)
    assert "Learning curve" not in text and "for the authors' stats.py" in text
