"""The board: a view of frozen snapshots, rendered to text and compared; and how a terminal shows
it."""

from __future__ import annotations

import io
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

from harness.cost import rounded
from harness.model import AtRisk, Snapshot, SubsetProgress, Warned
from harness.ui.board import view
from harness.ui.console import SharedConsole
from harness.ui.live import LiveDisplay, display
from harness.ui.progress import line
from harness.ui.screen import Screen
from tests.support import examples
from tests.ui.test_display import CNY, FULL, SCORED, SCORES, SUBSET, USD, snapshot

EXPECTED = Path(__file__).parent / "expected"
"""What is shown, as it was looked at and found good."""


def shown(
    snapshots: tuple[Snapshot, ...],
    width: int,
    height: int = 30,
    encoding: str = "utf-8",
    verbose: bool = False,
) -> list[str]:
    return [
        text.plain.rstrip()
        for text in view(snapshots, Screen(width, height, encoding), verbose=verbose)
    ]


def expected(name: str) -> list[str]:
    return (EXPECTED / f"{name}.txt").read_text(encoding="utf-8").splitlines()


@pytest.mark.parametrize("width", [60, 80, 120])
def test_board_of_a_run_with_subsets(width):
    """A row for the run and each subset, the traffic, what is wrong, and the last warning."""
    assert shown((snapshot(SCORED, SUBSET, **FULL),), width) == expected(str(width))


def test_board_of_one_run_is_a_line_of_eighty_columns_with_both_figures():
    run = snapshot(replace(SCORED, failed=0), model="m", name="Qwen3-8B", eta=500.0, in_flight=64)
    row, traffic = shown((run,), 80)
    assert row == "Qwen3-8B  ━━━━━━━━━━──────────  600/1,200  Recall 40.00%  F1^NS 20.00%  ETA 8:20"
    assert traffic == "64 in flight of 64 allowed | 12.3 steps/s | 12.3M tokens in, 2.3M out"


def test_verbose_board_has_lines_for_developers():
    """With the users and the time that a power loss could take."""
    risk = AtRisk(2, 0.042)
    assert shown((snapshot(SCORED, **(FULL | {"at_risk": risk})),), 80, verbose=True) == expected(
        "verbose"
    )


@pytest.mark.parametrize("others", [0, 1])
def test_run_that_advances_together_shows_its_load_instead_of_requests_in_flight(
    others,
):
    """By itself and next to another run, on a terminal and in a log."""
    run = snapshot(SCORED, load=("wave 3", "420/600 requests"), limit=5555)
    runs = (run, *[snapshot(SCORED, name="gpt-5-mini") for _ in range(others)])
    for text in ("\n".join(shown(runs, 120, 40)), line(run)):
        assert "wave 3" in text and "420/600 requests" in text
        assert "5,555" not in text


def test_two_runs_fit_a_small_terminal():
    """Each has its subsets, all together their traffic and what is wrong; the warning says whose it
    is."""
    runs = (
        snapshot(SCORED, SUBSET, **FULL),
        snapshot(SCORED, name="gpt-5-mini", stopping="no quota"),
    )
    assert shown(runs, 80, 24) == expected("two_runs")


def test_runs_have_rows_of_their_own_where_those_of_subsets_do_not_fit():
    """Three runs of two subsets are nine rows, or three."""
    runs = tuple(
        [snapshot(SCORED, SUBSET, name=f"run-{number}", in_flight=1) for number in range(3)]
    )
    assert [row.split()[0] for row in shown(runs, 80, 11)[:9]] == [
        name for number in range(3) for name in (f"run-{number}", "weibo", "xiaohongshu")
    ]
    assert [row.split()[0] for row in shown(runs, 80, 10)[:4]] == ["run-0", "run-1", "run-2", "3"]


def test_twenty_runs_are_a_row_each_in_24_lines():
    """And where there are fewer lines, those that have ended go first, and the others are
    counted."""
    runs = tuple(
        [snapshot(name=f"run-{number}", over=number < 5, in_flight=1) for number in range(20)]
    )
    rows = shown(runs, 80, 24)
    assert [row.split()[0] for row in rows[:20]] == [f"run-{number}" for number in range(20)]
    assert len(rows) <= 23
    few = shown(runs, 80, 12)
    assert [row.split()[0] for row in few[:9]] == [f"run-{number}" for number in range(5, 14)]
    assert few[9] == "and 11 more" and len(few) == 11


def test_cut_names_never_read_alike():
    """Two models of one family are told apart; the bar keeps a quarter of the width."""
    names = [f"demo-claude-opus-4-{version}-20251101" for version in (1, 5)]
    rows = shown(tuple([snapshot(name=name) for name in names]), 80)
    assert [row[:20] for row in rows[:2]] == ["demo-claude-opus-4-1", "demo-claude-opus-4-5"]
    assert all(len(row) <= 80 and row.count("━") + row.count("─") >= 20 for row in rows[:2])


def test_chinese_name_is_cut_with_an_ellipsis_within_its_cells():
    """A quarter of the width, of which a character takes two cells: the columns after it stay in
    line."""
    runs = (snapshot(name="千问三号超大杯模型测试版"), snapshot(name="Qwen3-8B"))
    chinese, latin, *_ = shown(runs, 80)
    assert chinese.startswith("千问三号超大杯模型…  ━")
    assert cell_len(chinese[: chinese.index("━")]) == latin.index("━")


subsets = st.builds(
    SubsetProgress,
    subset=st.sampled_from(["weibo", "xiaohongshu", "小红书", "beijing"]),
    users=st.integers(0, 10**6),
    done=st.integers(0, 10**6),
    failed=st.integers(0, 999),
    steps=st.integers(0, 10**7),
    steps_done=st.integers(0, 10**7),
    scores=st.sampled_from([{}, SCORES, {"Recall": None, "F1^NS": 1.0}]),
    scored_users=st.integers(0, 10**6),
)


runs_of_any_kind = st.lists(
    st.builds(
        lambda some, full, text, **rest: replace(
            snapshot(*some, **(FULL if full else {})), warnings=(Warned(text, 3.0),), **rest
        ),
        some=st.lists(subsets, min_size=1, max_size=5),
        name=st.text(min_size=1, max_size=60),
        text=st.text(max_size=300),
        over=st.booleans(),
        stopping=st.none() | st.text(min_size=1, max_size=100),
        full=st.booleans(),
    ),
    min_size=1,
    max_size=25,
)


@settings(max_examples=examples(60), deadline=None)
@given(
    runs_of_any_kind,
    st.integers(1, 200),
    st.integers(1, 60),
    st.sampled_from(["utf-8", "cp1252", "ascii", "none"]),
)
def test_no_terminal_is_too_small(runs, width, height, encoding):
    """Whatever runs, names and warnings hold: no line is wider than the terminal, nor the board
    higher, and all of it is in the terminal's characters and on its lines."""
    lines = shown(tuple(runs), width, height, encoding)
    assert 1 <= len(lines) <= max(1, height - 1)
    assert max(cell_len(line) for line in lines) <= width
    assert all(line.isprintable() for line in lines)
    if encoding != "utf-8":
        "".join(lines).encode("ascii" if encoding == "none" else encoding)


def test_nothing_moves_while_numbers_grow():
    """From the first step to the last, bars, users and figures are where they were."""
    begun = replace(
        SCORED, done=0, steps_done=1, scores={"Recall": 0.01, "F1^NS": 0.02}, scored_users=1
    )
    [first, *_], [last, *_] = (
        shown((snapshot(subset, eta=61.0),), 80) for subset in (begun, SCORED)
    )
    for text in ("/1,200", "Recall", "F1^NS", "ETA"):
        assert abs(first.index(text) - last.index(text)) <= 2


def test_traffic_is_that_of_all_runs():
    """One line below their rows, whatever the height; runs that have ended count for tokens
    alone."""
    runs = (
        snapshot(in_flight=3),
        snapshot(name="b", in_flight=4),
        snapshot(name="c", in_flight=9, over=True),
    )
    for height in (60, 24, 8):
        assert "7 in flight | 24.6 steps/s | 37.0M tokens in, 7.0M out | 1:40 gone" in shown(
            runs, 120, height
        )
    assert "12.3M tokens in, 2.3M out | 1:40 gone" in shown(runs[2:], 120)


def test_what_a_feature_allows_is_shown_and_that_a_run_waits_for_it():
    run = snapshot(allowance=("purse 3 of 5",), held_by="purse")
    for text in ("\n".join(shown((run,), 120)), line(run)):
        assert "purse 3 of 5" in text and "held by the purse" in text


def test_cost_is_shown_with_its_projection():
    """On the board and in lines; a run without a price has no such sentence."""
    run = snapshot(cost=(USD,), projected_cost=(USD._replace(amount=Decimal("1.5"), about=True),))
    for text in (shown((run,), 160)[1], line(run)):
        assert "0.01235 USD |" in text and "expected by the end: about 1.500 USD" in text
    assert "USD" not in line(snapshot())


@pytest.mark.parametrize(("runs", "height"), [(2, 30), (20, 24)])
def test_costs_of_several_runs_are_added_by_currency(runs, height):
    """Two currencies are never one sum, and one estimate makes the whole an estimate."""
    every = [
        snapshot(name=f"r{number}", cost=(CNY if number % 2 else USD,)) for number in range(runs)
    ]
    total = (
        f"about {rounded(USD.amount * (runs // 2))} USD + {rounded(CNY.amount * (runs // 2))} CNY"
    )
    assert sum(total in text for text in shown(tuple(every), 120, height)) == 1


def terminal(width: int = 80, **kwargs: Any) -> tuple[SharedConsole, io.StringIO]:
    file = io.StringIO()
    return SharedConsole(
        file=file, force_terminal=True, width=width, height=24, _environ={}, **kwargs
    ), file


def test_live_display_leaves_nothing_behind():
    """Each frame takes the lines of the one before, and the end takes the last."""
    screen, file = terminal()
    with LiveDisplay(screen) as observe:
        observe((snapshot(),))
        lines = len(shown((snapshot(),), 80, 24))
        observe((snapshot(),))
        assert file.getvalue().count("\x1b[1A") == lines - 1
    assert file.getvalue().count("\x1b[1A") >= 2 * lines - 1
    assert "\x1b[?25h" in file.getvalue()


@pytest.mark.parametrize("size", [(40, 24), (80, 2)], ids=["narrower", "lower"])
def test_board_that_does_not_fit_a_resized_terminal_is_erased(size):
    """A narrower one has wrapped its lines, and the cursor of a lower one cannot go up to its
    first."""
    screen, file = terminal()
    with LiveDisplay(screen) as observe:
        observe((snapshot(in_flight=1, faults=(("http_429", 3),)),))
        observe((snapshot(in_flight=1, faults=(("http_429", 3),)),))
        assert "\x1b[2J" not in file.getvalue()
        screen.size = size  # type: ignore[assignment]
        observe((snapshot(),))
        assert file.getvalue().count("\x1b[2J") == 1
        observe((snapshot(),))
    assert file.getvalue().count("\x1b[2J") == 1


def test_no_color_takes_colours_out():
    """What is bold stays so."""
    for plain in (False, True):
        screen, file = terminal(color_system="256", no_color=plain)
        with LiveDisplay(screen) as observe:
            observe((snapshot(**FULL),))
        assert ("\x1b[36m" in file.getvalue()) is not plain
        assert "\x1b[1m" in file.getvalue()


def test_same_warning_of_two_runs_is_shown_once():
    """The newest alone has a line."""
    runs = tuple(
        [
            snapshot(name=name, warnings=(Warned("http_503: 忙", age),))
            for name, age in (("a", 9.0), ("b", 1.0))
        ]
    )
    assert [text for text in shown(runs, 80) if "忙" in text] == ["0:01 ago: b: http_503: 忙"]


def test_terminal_that_can_move_its_cursor_gets_the_board():
    assert isinstance(display(terminal()[0]), LiveDisplay)
