"""The board: a view of frozen snapshots, rendered to text and compared; and how a terminal shows it."""

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
from rich.console import Console

from harness.cost import rounded
from harness.model import JSON, AtRisk, Snapshot, SubsetProgress, Warned
from harness.ui import progress
from harness.ui.board import Board, view
from harness.ui.console import SharedConsole
from harness.ui.live import LiveDisplay, display, wrapped
from harness.ui.progress import PlainDisplay, lines
from harness.ui.screen import Screen
from tests.support import examples
from tests.ui.test_display import CNY, FULL, SCORED, SCORES, SUBSET, USD, snapshot

EXPECTED = Path(__file__).parent / "expected"
"""What is shown, as it was looked at and found good."""


def shown(snapshots: tuple[Snapshot, ...], width: int, height: int = 30, encoding: str = "utf-8") -> list[str]:
    return [line.plain for line in view(snapshots, Screen(width, height, encoding))]


def expected(name: str) -> list[str]:
    return (EXPECTED / f"{name}.txt").read_text(encoding="utf-8").splitlines()


def test_dashboard_at_eighty_columns() -> None:
    """Everything that is known of a run, in fewer than 24 lines of at most 80 cells."""
    assert shown((snapshot(SCORED, SUBSET, **FULL),), 80) == expected("80")


def test_dashboard_at_120_columns() -> None:
    """What is wider is the bars, and what shares a line."""
    assert shown((snapshot(SCORED, SUBSET, **FULL),), 120) == expected("120")


def test_dashboard_at_160_columns() -> None:
    """A run that syncs tells users and milliseconds that a power loss could take."""
    risk = AtRisk(2, 0.042, synced=True)
    assert shown((snapshot(SCORED, SUBSET, **(FULL | {"at_risk": risk})),), 160) == expected("160")


@pytest.mark.parametrize("others", [0, 1])
def test_run_that_advances_together_shows_its_load_instead_of_requests_in_flight(others: int) -> None:
    """By itself and next to another run, on a terminal and in a log."""
    run = snapshot(SCORED, load=(("wave 3", 8), ("420/600 requests", 0)), limit=5555)
    runs = (run, *[snapshot(SCORED, name="gpt-5-mini") for _ in range(others)])
    for text in ("\n".join(shown(runs, 120, 40)), lines(runs)):
        assert "wave 3" in text and "420/600 requests" in text
        assert "5555" not in text


def test_two_runs_fit_a_small_terminal() -> None:
    """Each has its subsets and a line or two on its traffic; the warnings of both say whose they are."""
    runs = (snapshot(SCORED, SUBSET, **FULL), snapshot(SCORED, name="gpt-5-mini", stopping="no quota"))
    assert shown(runs, 80, 24) == expected("two_runs")


def test_twenty_runs_are_a_row_each_in_24_lines() -> None:
    """And where there are fewer lines, those that have ended go first, and the rest is counted."""
    runs = tuple([snapshot(name=f"run-{number}", over=number < 5, in_flight=1) for number in range(20)])
    rows = shown(runs, 80, 24)
    assert [row.split()[0] for row in rows[1:21]] == [f"run-{number}" for number in range(20)]
    assert len(rows) <= 23
    few = shown(runs, 80, 12)
    assert len(few) == 11
    assert [row.split()[0] for row in few[1:9]] == [f"run-{number}" for number in range(5, 13)]
    assert few[9] == "and 12 more runs, 5 done"


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
@given(runs_of_any_kind, st.integers(1, 200), st.integers(1, 60), st.sampled_from(["utf-8", "cp1252", "ascii", "none"]))
def test_no_terminal_is_too_small(runs: list[Snapshot], width: int, height: int, encoding: str) -> None:
    """Whatever runs, names and warnings hold: no line is wider than the terminal, nor the board higher, and all of it
    is in the terminal's characters and on its lines."""
    lines = shown(tuple(runs), width, height, encoding)
    assert 1 <= len(lines) <= max(1, height - 1)
    assert max(cell_len(line) for line in lines) <= width
    assert all(line.isprintable() for line in lines)
    if encoding != "utf-8":
        "".join(lines).encode("ascii" if encoding == "none" else encoding)


def marks(lines: list[str]) -> list[list[int]]:
    """Where the bars between parts stand."""
    return [[place for place, c in enumerate(line) if c == "|"] for line in lines]


def test_nothing_moves_while_numbers_grow() -> None:
    """From the first step to the last, headings, bars and the marks between parts stand where they stood."""
    early: JSON = {"in_flight": 1, "waiting": 0, "backing_off": 0, "rate": 1.0, "latency": (0.001, 0.02), "requests": 1}
    early |= {"prompt_tokens": 5, "completion_tokens": 1, "token_rates": (1.0, 0.0), "projected_tokens": (10, 2)}
    begun = replace(SCORED, done=0, failed=1, steps_done=1, scores={"Recall": 0.0, "F1^NS": None}, scored_users=1)
    ended = replace(SCORED, done=1180, steps_done=9600, scores={"Recall": 1.0, "F1^NS": 1.0}, scored_users=1180)
    first = shown((snapshot(begun, **(FULL | early)),), 80)
    last = shown((snapshot(ended, **FULL),), 80)
    assert first[1] == last[1] and first[2].index("─") == last[2].index("━")
    assert [line[:10] for line in first[3:]] == [line[:10] for line in last[3:]]
    assert marks(first[3:]) == marks(last[3:])


def test_totals_of_all_runs_are_shown_where_there_is_room_for_more() -> None:
    """One line, also under runs with a paragraph each; a single run has none."""
    runs = (snapshot(SCORED, in_flight=3), snapshot(SCORED, name="b", in_flight=4))
    for height in (60, 24, 8):
        [line] = [line for line in shown(runs, 120, height) if "2 runs, 0 ended" in line]
        assert "7 in flight" in line and "24.7M tokens in, 4.7M out" in line
    assert not any(" ended" in line for line in shown(runs[:1], 120, 60))


def test_what_a_feature_allows_is_shown_and_that_a_run_waits_for_it() -> None:
    of = snapshot(allowance=(("purse 3 of 5", 20),), held_by="purse")
    assert any("purse 3 of 5" in line for line in shown((of,), 100))
    assert "purse 3 of 5" in progress.lines((of,)) and "held by the purse" in progress.lines((of,))


def test_cost_is_shown_with_its_projection() -> None:
    """On the board and in lines; a run without a price has no such line."""
    of = snapshot(cost=(USD,), projected_cost=(USD._replace(amount=Decimal("1.5"), about=True),))
    (line,) = [line for line in shown((of,), 100) if line.startswith("cost")]
    assert "0.01235 USD" in line and "about 1.500 USD" in line
    assert "cost 0.01235 USD" in progress.lines((of,))
    assert not any("cost" in line for line in shown((snapshot(),), 100))


@pytest.mark.parametrize(("runs", "height"), [(2, 30), (20, 24)])
def test_costs_of_several_runs_are_added_by_currency(runs: int, height: int) -> None:
    """Two currencies are never one sum, and one estimate makes the whole an estimate."""
    of = [snapshot(name=f"r{number}", cost=(CNY if number % 2 else USD,)) for number in range(runs)]
    total = f"about {rounded(USD.amount * (runs // 2))} USD + {rounded(CNY.amount * (runs // 2))} CNY"
    lines = shown(tuple(of), 120, height)
    assert sum(total in line for line in lines) == 1
    assert any("r0" in line and "0.01235 USD" in line for line in lines) or runs == 2


def terminal(width: int = 80, **kwargs: Any) -> tuple[SharedConsole, io.StringIO]:
    file = io.StringIO()
    return SharedConsole(file=file, force_terminal=True, width=width, height=24, _environ={}, **kwargs), file


def test_live_display_leaves_nothing_behind() -> None:
    """Each frame takes the lines of the one before, and the end takes the last."""
    screen, file = terminal()
    with LiveDisplay(screen) as observe:
        observe((snapshot(),))
        lines = len(shown((snapshot(),), 80, 24))
        observe((snapshot(),))
        assert file.getvalue().count("\x1b[1A") == lines - 1
    assert file.getvalue().count("\x1b[1A") >= 2 * lines - 1
    assert file.getvalue().endswith("\x1b[?25h") or "\x1b[?25h" in file.getvalue()


def test_lines_that_a_narrower_terminal_wrapped_are_taken_too() -> None:
    """The board of 80 columns is more lines in 40: the next frame goes up by as many."""
    assert wrapped([80, 40, 41, 0], 40) == 2
    assert wrapped([80, 79], 100) == 0
    screen, file = terminal()
    screen.height = 48
    with LiveDisplay(screen) as observe:
        observe((snapshot(),))
        widths = [cell_len(line) for line in shown((snapshot(),), 80, 48)]
        screen.width = 40
        before = file.getvalue().count("\x1b[1A")
        observe((snapshot(),))
        gone_up = file.getvalue().count("\x1b[1A") - before
    assert gone_up == len(widths) - 1 + wrapped(widths, 40) > len(widths) - 1


def test_board_that_a_resize_made_higher_than_the_terminal_is_erased_whole() -> None:
    """The cursor cannot go up to its first line, which is out of the screen: all of the screen is erased."""
    screen, file = terminal()
    with LiveDisplay(screen) as observe:
        observe((snapshot(),))
        screen.size = (screen.width, 5)  # type: ignore[assignment]
        assert "\x1b[2J" not in file.getvalue()
        observe((snapshot(),))
    assert "\x1b[2J" in file.getvalue()


@pytest.mark.parametrize("number", [1, 3])
def test_faults_of_several_runs_leave_room_for_what_was_found_out(number: int) -> None:
    """Each run tells one fault at most, and the log and the board of all have a line for a note besides."""
    heard = (Warned("http_503: 忙", 1.0, 7), Warned("learned: no temperature", 65.0))
    runs = tuple([snapshot(name=f"run-{place}", warnings=heard) for place in range(number)])
    assert any("no temperature" in line for line in shown(runs, 80, 40))
    assert "no temperature" in progress.lines(runs)


def test_no_color_takes_colours_out() -> None:
    """What is bold stays so."""
    for plain in (False, True):
        screen, file = terminal(color_system="256", no_color=plain)
        screen.print(Board((snapshot(**FULL),)))
        assert ("\x1b[36m" in file.getvalue()) is not plain
        assert "\x1b[1m" in file.getvalue()


def test_outage_has_no_time_to_go_and_nobody_backs_off() -> None:
    """Everybody waits for its end: no board promises a time, or counts more pauses than slots."""
    out = {"outage": 30.0, "silence": 30.0, "held_by": "outage", "waiting": 14, "backing_off": 18, "eta": 99.0}
    for more, state in (({}, "outage"), ({"awaited": 60.0}, "waiting")):
        run = snapshot(**out, **more)
        text = "\n".join(shown((run,), 120))
        assert "to go" not in text and f"gone, {state}" in text
        assert "32 waiting" in text and "18 backing off" not in text
        rows = "\n".join(shown(tuple([run] * 20), 80, 24))
        assert state in rows and "1:39" not in rows


def test_terminal_that_can_move_its_cursor_gets_the_board() -> None:
    dumb = Console(file=io.StringIO(), force_terminal=True, _environ={"TERM": "dumb"})
    assert isinstance(display(dumb), PlainDisplay)
    assert isinstance(display(terminal()[0]), LiveDisplay)
