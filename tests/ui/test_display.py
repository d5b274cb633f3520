"""Frozen snapshots as lines for logs; and what the engine puts into them."""

from __future__ import annotations

import io
import threading
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.client.latency import REPLIES, Latency
from harness.engine.progress import RecentRates, Warnings, time_to_go
from harness.model import JSON, AtRisk, Money, Snapshot, SubsetProgress, Warned
from harness.ui import content, words
from harness.ui.console import SharedConsole, console
from harness.ui.live import display
from harness.ui.progress import PlainDisplay, line
from tests.support import examples
from tests.support.plugins import Commands

SCORES = {"Recall": 0.4, "F1^NS": 0.2}
SUBSET = SubsetProgress(
    "xiaohongshu", users=1200, done=1100, failed=20, steps=9600, steps_done=9000
)
SCORED = SubsetProgress("weibo", 1200, 600, 20, 9600, 4800, SCORES, 512)
FULL: JSON = {
    "model": "Qwen/Qwen3-8B",
    "name": "千问",
    "requested": None,
    "in_flight": 57,
    "held_by": "rate",
    "waiting": 12,
    "backing_off": 3,
    "rate": 12.3,
    "eta": 500.0,
    "chain_bound": True,
    "token_rates": (25_000.0, 1_200.0),
    "latency": (1.234, 12.3),
    "faults": (
        ("http_429", 9),
        ("timeout", 4),
        ("http_503", 2),
        ("connection", 1),
        ("bad_json", 1),
    ),
    "failures": (("persistent_error", 38), ("http_400", 2)),
    "projected_tokens": (15_000_000, 3_000_000),
    "warnings": (
        Warned("http_503: 服务器繁忙", 3.0, 12),
        Warned("learned: no\ttemperature\x1b[2J", 65.0),
    ),
    "at_risk": AtRisk(600, 99.0),
}


def snapshot(*subsets: SubsetProgress, **changes: Any) -> Snapshot:
    made: JSON = {
        "model": "Qwen3-8B",
        "seconds": 100.0,
        "subsets": subsets or (SCORED,),
        "requested": 64,
        "name": "run",
        "limit": 64,
        "in_flight": 0,
        "held_by": None,
        "outage": 0.0,
        "lag": 0.0,
        "slowest_write": 0.0,
        "waiting": 0,
        "backing_off": 0,
        "requests": 9000,
        "replayed": 120,
        "retries": 3,
        "prompt_tokens": 12_345_678,
        "completion_tokens": 2_345_678,
        "rate": 12.3,
        "eta": 61.0,
    }
    return Snapshot(**(made | changes))


@pytest.mark.parametrize(
    ("changes", "expected_text"),
    [
        ({"held_by": "rate", "waiting": 3}, "held by the rate"),
        (
            {"held_by": "pause", "waiting": 3, "pause": 43.0},
            "the endpoint asked to wait, 0:43 left",
        ),
        ({"backing_off": 1, "pause": 3600.0}, "the endpoint asked to wait, 1:00:00 left"),
        (
            {"held_by": "outage", "waiting": 3, "outage": 30.0, "silence": 30.0},
            "no answer for 0:30",
        ),
        ({"in_flight": 64, "silence": 22.0, "latency": (1.0, 3.0)}, "no answer for 0:22"),
        ({"lag": 0.25}, "busy loop 250 ms"),
        ({"slowest_write": 0.08}, "slow disk 80 ms"),
        ({"in_flight": 20, "others_in_flight": 44}, "20 in flight of 64 allowed, 44 by other runs"),
        ({"stopping": "no quota"}, "stopping: no quota; Ctrl-C again stops now"),
    ],
)
def test_why_fewer_are_on_the_wire_is_told(changes, expected_text):
    """Each reason in words, next to the numbers in flight and allowed."""
    assert expected_text in line(snapshot(**changes))


@pytest.mark.parametrize(
    ("changes", "expected_text"),
    [
        ({"in_flight": 16, "limit": 16, "requested": 16}, "16 in flight of 16 allowed |"),
        ({"in_flight": 9, "limit": 18, "requested": None}, "9 in flight of 18 allowed (auto) |"),
        (
            {"in_flight": 1, "limit": 8, "requested": 1200},
            "1 in flight of 8 allowed (1,200 requested) |",
        ),
    ],
)
def test_requests_in_flight_are_of_those_allowed(changes, expected_text):
    """What the user asked for is named only where it is another number."""
    assert expected_text in line(snapshot(**changes))


@pytest.mark.parametrize(
    ("more", "state"), [({}, "outage"), ({"awaited": 60.0}, "waiting"), ({"over": True}, "done")]
)
def test_run_that_waits_for_its_endpoint_or_has_ended_has_no_time_to_go(more, state):
    run = snapshot(outage=30.0, silence=30.0, held_by="outage", waiting=14, eta=99.0, **more)
    assert words.eta_text(run) == words.state(run) == state
    assert "ETA" not in line(run) and f", {state}" in line(run)


def test_overdue_replies_promise_no_time_but_a_bound():
    """The rate of the last replies says nothing then; the end of a time-out does."""
    silent = snapshot(in_flight=4, silence=81.0, latency=(25.0, 40.0))
    assert words.eta_text(silent) == "ETA ?"
    assert words.eta_text(replace(silent, at_most=True)) == "ETA at most 1:01"


def test_slow_replies_are_no_silence():
    """A model that takes half a minute for a reply is not said to have gone."""
    assert not words.is_silent(snapshot(in_flight=4, silence=31.0, latency=(25.0, 40.0)))
    assert words.is_silent(snapshot(in_flight=4, silence=81.0, latency=(25.0, 40.0)))


def test_failures_of_all_runs_are_counted_by_kind():
    """Three kinds have names; refusals of the key are failed tries like all others."""
    runs = (
        snapshot(faults=(("denied", 1200), ("timeout", 3)), failures=(("http_400", 1),)),
        snapshot(
            faults=(("timeout", 4), ("http_503", 2), ("connection", 1)), unusable=(("no_json", 2),)
        ),
    )
    assert words.failed_counts(runs) == [
        "1 failed user: http_400 1",
        "1,210 failed tries: denied 1,200, timeout 7, http_503 2, ...",
        "2 unusable replies: no_json 2",
    ]
    assert words.failed_counts((snapshot(),)) == []


def test_endpoint_without_token_counts_is_not_said_to_take_none():
    assert "tokens" not in line(snapshot(prompt_tokens=0, completion_tokens=0))


@pytest.mark.parametrize(
    ("rate", "expected_text"),
    [
        (0.0, "0.0 steps/s"),
        (0.05, "3.0 steps/min"),
        (12.34, "12.3 steps/s"),
        (1889.6, "1,890 steps/s"),
    ],
)
def test_pace_is_by_the_minute_where_models_are_slow(rate, expected_text):
    assert words.pace(rate) == expected_text


USD, CNY = Money(Decimal("0.01234567"), "USD"), Money(Decimal("3.2"), "CNY", about=True)


def test_large_counts_keep_six_characters():
    """Also where rounding would make four digits of three."""
    for power in range(12):
        for number in (10**power - 1, 10**power, 5 * 10**power):
            assert len(words.count(number)) <= 6
    assert words.count(999_960) == "1.0M"


# Displays


def test_printing_from_a_thread_waits_for_its_turn():
    """All of what one thread prints is written before another's begins, so that no frame comes in
    between."""

    class File(io.StringIO):
        free: bool | None = None

        def write(self, text: str) -> int:
            def look() -> None:
                self.free = screen.turn.acquire(blocking=False)

            other = threading.Thread(target=look)
            other.start()
            other.join()
            return super().write(text)

    file = File()
    screen = SharedConsole(file=file)
    screen.print("一行")
    assert file.getvalue() == "一行\n" and file.free is False


def test_no_color_takes_colours_out(monkeypatch):
    """By the flag and by the variable."""
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert console(no_color=True).no_color and not console().no_color
    monkeypatch.setenv("NO_COLOR", "1")
    assert console().no_color


def test_dumb_terminals_and_pipes_get_lines():
    """Nothing that moves a cursor goes where none can be moved."""
    assert isinstance(display(SharedConsole(file=io.StringIO())), PlainDisplay)
    dumb = SharedConsole(file=io.StringIO(), force_terminal=True, _environ={"TERM": "dumb"})
    assert isinstance(display(dumb), PlainDisplay)


def logged(*frames: tuple[Snapshot, ...], verbose: bool = False) -> list[str]:
    """What a log has of these snapshots."""
    file = io.StringIO()
    with PlainDisplay(SharedConsole(file=file), verbose=verbose) as observe:
        for snapshots in frames:
            observe(snapshots)
    assert "\x1b" not in file.getvalue()
    return file.getvalue().splitlines()


def test_log_has_a_line_on_each_run_every_half_minute_of_its_own_clock():
    """The first after five seconds, and one at the end; a run that was there before others has its
    turn earlier."""
    frames = [
        (
            snapshot(name="late", seconds=float(second)),
            snapshot(name="early", seconds=1000.0 + second),
        )
        for second in range(60)
    ]
    lines = logged(*frames)
    due = ["early: 16:40", "late: 0:05", "early: 17:10", "late: 0:35", "late: 0:59", "early: 17:39"]
    assert len(lines) == len(due)
    for text, (name, gone) in zip(lines, [one.split() for one in due], strict=True):
        assert text.startswith(name) and f"| {gone} gone" in text


def test_run_that_has_ended_has_one_last_line_in_a_log():
    """While the others go on, and however many snapshots of it follow."""
    ended = snapshot(name="ended", over=True)
    frames = [
        (replace(ended, seconds=100.0 + second), snapshot(name="goes-on")) for second in (0, 30, 60)
    ]
    lines = logged(*frames)
    assert [text.split()[0] for text in lines].count("ended:") == 1
    assert ", done," in lines[0] and "in flight" not in lines[0]


def test_processes_that_play_subsets_of_one_run_have_a_line_each():
    """As `watch` shows them."""
    lines = logged((snapshot(SCORED), snapshot(SUBSET)))
    assert (
        len([text for text in lines if text.startswith("run: ")]) == 4
    )  # each at once, and at the end


def test_the_same_warning_is_logged_once():
    """Of two runs on one endpoint, and however often it comes; another one is logged too."""
    again = Warned("http_503: 服务器繁忙", 3.0, 12)
    runs = tuple([snapshot(name=name, warnings=(again,)) for name in "ab"])
    later = tuple(
        [
            snapshot(
                name=name, seconds=200.0, warnings=(replace(again, age=0.0), Warned("new", 9.0))
            )
            for name in "ab"
        ]
    )
    lines = [text for text in logged(runs, later) if text.startswith("warning")]
    assert lines == [
        "warning 0:03 ago: a: http_503: 服务器繁忙 (12 times)",
        "warning 0:09 ago: a: new",
    ]


def test_log_line_has_what_the_board_has():
    """Whole, however long: a log is searched."""
    text = line(snapshot(replace(SCORED, done=1100), SUBSET, **FULL))
    assert text.startswith(
        "千问: 2,200/2,400 users, ETA 8:20, 40 failed | weibo: 1,100/1,200 users, Recall 40.00%,"
        " F1^NS"
    )
    assert (
        "| 57 in flight of 64 allowed (auto) | 12.3 steps/s | 12.3M tokens in, 2.3M out | 1:40"
        " gone |" in text
    )
    assert (
        "expected by the end: 15.0M tokens in, 3.0M out" in text
        and "17 failed tries: http_429 9" in text
    )


def test_warning_is_whole_in_a_log():
    """It may end in an address or a command, which a cut would take away."""
    text = f"no answer: try `curl http://127.0.0.1:8000/{'v' * 90}/models`"
    assert text in logged((snapshot(warnings=(Warned(text, 1.0),)),))[1]


def test_only_verbose_displays_have_what_developers_read():
    """Who waits, the event loop, the disk, latency and what is at risk."""
    run = snapshot(SCORED, **FULL)
    developers = (
        "12 waiting | 3 backing off | ", "p50 1.23 s, p95 12.3 s | event loop 0 ms late | disk write 0.0 ms | "
        "if killed: 57 to repeat | by power loss: last 99 s, at most 600 users",
    )  # fmt: skip
    for text in developers:
        assert text in line(run, verbose=True)
        assert not any(part in line(run) for part in text.split(" | ") if part)


@pytest.mark.parametrize("verbose", [False, True])
def test_verbose_is_an_option_of_run(tmp_path, capsys, verbose):
    """Here of one whose output is no terminal."""
    flags = ["--verbose"] if verbose else []
    run = (
        "run",
        "--demo",
        "--model",
        "baseline/recency",
        "--subset",
        "weibo",
        "--limit",
        3,
        "--no-html",
        *flags,
    )
    told = Commands(tmp_path, capsys)(*run)
    assert "recency: 3/3 users, " in told and ("event loop" in told) is verbose


def test_run_that_stops_has_no_projection():
    """What it would have taken by its end is of no use: it ends now."""
    run = snapshot(
        **{**FULL, "projected_tokens": (10**6, 10**5), "projected_cost": (USD,), "eta": 60.0}
    )
    assert any("by the end" in sentence for sentence in content.traffic((run,)))
    assert not any(
        "by the end" in sentence
        for sentence in content.traffic((replace(run, stopping="interrupted"),))
    )


# What the engine tells


def to_go(**changes: Any) -> tuple[float | None, bool]:
    numbers: JSON = {
        "steps": 100,
        "longest": 50,
        "rate": 5.0,
        "step_seconds": 2.0,
        "all_in_play": False,
        "pause": 0.0,
        "outage": False,
    }
    return time_to_go(**(numbers | changes))


def test_longest_chain_can_outlast_the_rate():
    """A user's steps come one after another: 50 of 2 s take 100 s, however fast all others are."""
    assert to_go() == (100.0, True)
    assert to_go(steps=1000) == (200.0, False)
    assert to_go(steps=0, longest=0, rate=0.0, step_seconds=None) == (0.0, False)


def test_time_to_go_of_the_last_users_is_that_of_the_longest_chain():
    """Three users left, one with ten steps of 2 s: 20 s, also where the rate is that of a minute
    without any reply."""
    assert to_go(steps=12, longest=10, rate=0.1, all_in_play=True) == (20.0, True)
    assert to_go(steps=12, longest=10, rate=0.1) == (120.0, False)


def test_time_to_go_has_the_wait_that_the_endpoint_asked_for():
    """Then all goes on as before."""
    assert to_go(steps=1000, pause=43.0) == (243.0, False)
    assert to_go(steps=12, longest=10, all_in_play=True, pause=43.0) == (63.0, True)


def test_nobody_can_tell_how_long_an_outage_lasts():
    """Nor how long a run takes before its first step."""
    assert to_go(outage=True) == (None, False)
    assert to_go(rate=0.0, step_seconds=None) == (None, False)


times = st.floats(0.01, 1e4)


@settings(max_examples=examples(100))
@given(
    steps=st.integers(1, 10**7),
    share=st.floats(0.0, 1.0),
    rate=st.just(0.0) | times,
    step_seconds=st.none() | times,
    all_in_play=st.booleans(),
    pause=st.just(0.0) | times,
    outage=st.booleans(),
)
def test_time_to_go_is_at_least_the_wait_and_the_longest_chain(share, **numbers):
    """More steps, a longer chain, a longer wait and slower replies never shorten it."""
    longest = round(share * numbers["steps"])
    seconds, _ = time_to_go(longest=longest, **numbers)
    if seconds is None:
        assert numbers["outage"] or not numbers["rate"]
        return
    assert seconds >= numbers["pause"] + longest * (numbers["step_seconds"] or 0.0)
    for name in ("steps", "pause", "step_seconds"):
        if numbers[name] is not None:
            more, _ = time_to_go(longest=longest, **(numbers | {name: 2 * numbers[name]}))
            assert more is not None and more >= seconds
    further, _ = time_to_go(longest=longest + 1, **(numbers | {"steps": numbers["steps"] + 1}))
    assert further is not None and (further >= seconds or not longest)


def test_latency_is_that_of_the_last_replies():
    """Exact quantiles of a bounded window: what is older has no weight."""
    latency = Latency()
    assert latency.quantiles is None and latency.mean is None
    for _ in range(REPLIES):
        latency.add(100.0)
    for number in range(REPLIES):
        latency.add(number / (REPLIES - 1))
    assert latency.quantiles == pytest.approx((0.5, 0.95))
    assert latency.mean == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("age", "left"), [(0.0, 3.0), (1.5, 2.0), (4.5, 0.5), (5.0, 5.0), (41.0, 41.0)]
)
def test_request_in_flight_takes_as_long_as_the_replies_that_took_longer(age, left):
    """On average; one that has taken longer than all of them may take as long again."""
    latency = Latency()
    for seconds in (1.0, 2.0, 3.0, 4.0, 5.0):
        latency.add(seconds)
    assert latency.left(age) == pytest.approx(left)


def test_rates_are_those_of_the_last_half_minute():
    """Of steps, and of tokens in and out; before any time has gone there is none."""
    rates = RecentRates(0.0, (0, 0, 0))
    assert rates.per_second(0.0, (0, 0, 0)) == (0.0, 0.0, 0.0)
    assert rates.per_second(10.0, (1000, 10_000, 1000)) == (100.0, 1000.0, 100.0)
    for second in range(11, 100):
        steps, into, out = rates.per_second(float(second), (1000 + 2 * (second - 10), 10_000, 1000))
    assert steps == pytest.approx(2.0)
    assert (into, out) == (0.0, 0.0)


def test_warnings_that_repeat_are_counted():
    """Three different ones are kept, the newest first, with their age and how often they came."""
    warnings = Warnings(3)
    for time, text in enumerate(["甲", "乙", "甲", "丙", "丁"]):
        warnings.add(float(time), text)
    assert warnings.recent(10.0) == (Warned("丁", 6.0), Warned("丙", 7.0), Warned("甲", 8.0, 2))


@pytest.mark.parametrize(
    ("requested", "options"),
    [(64, "--rpm 30 or --concurrency auto"), (None, "--rpm 30")],
    ids=["fixed", "auto"],
)
def test_run_whose_tries_are_mostly_refused_names_the_rate_that_was_served(requested, options):
    """50 replies in 100 s are 30 a minute; half of the tries or less refused are no reason to
    speak."""
    refused = snapshot(requested=requested, requests=110, in_flight=4, faults=(("http_429", 56),))
    assert f"most tries are refused: {options} |" in line(refused)
    some = snapshot(
        requested=requested, requests=110, in_flight=4, faults=(("http_429", 53), ("http_500", 30))
    )
    assert "--rpm" not in line(some)
