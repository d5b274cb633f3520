"""Frozen snapshots as lines for logs; and what the engine puts into them."""

from __future__ import annotations

import io
import threading
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest
from rich.cells import cell_len
from rich.console import Console

from harness.client.latency import REPLIES, Latency
from harness.engine.progress import Rates, Warnings, time_to_go
from harness.model import JSON, AtRisk, Money, Snapshot, SubsetProgress, Warned
from harness.ui import progress, words
from harness.ui.console import SharedConsole, console
from harness.ui.live import display
from harness.ui.progress import PlainDisplay

SCORES = {"Recall": 0.4, "F1^NS": 0.2}
SUBSET = SubsetProgress("xiaohongshu", users=1200, done=1100, failed=20, steps=9600, steps_done=9000)
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
    "faults": (("http_429", 9), ("timeout", 4), ("http_503", 2), ("connection", 1), ("bad_json", 1)),
    "failures": (("persistent_error", 38), ("http_400", 2)),
    "projected_tokens": (15_000_000, 3_000_000),
    "warnings": (Warned("http_503: 服务器繁忙", 3.0, 12), Warned("learned: no\ttemperature\x1b[2J", 65.0)),
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
    ("changes", "told"),
    [
        ({"held_by": "rate", "waiting": 3}, "held by the rate"),
        ({"held_by": "pause", "waiting": 3, "pause": 43.0}, "the endpoint asked to wait, 0:43 left"),
        ({"backing_off": 1, "pause": 3600.0}, "the endpoint asked to wait, 1:00:00 left"),
        ({"held_by": "outage", "waiting": 3, "outage": 30.0, "silence": 30.0}, "no answer for 0:30"),
        ({"in_flight": 64, "silence": 22.0, "latency": (1.0, 3.0)}, "no answer for 0:22"),
        ({"lag": 0.25}, "busy loop 250 ms"),
        ({"slowest_write": 0.08}, "slow disk 80 ms"),
        ({"held_by": "limit", "waiting": 3, "in_flight": 20}, "other runs use the remaining slots"),
        ({"held_by": None, "in_flight": 20, "others_in_flight": 10_000}, "other runs use the remaining slots"),
        ({"in_flight": 5, "subsets": (replace(SCORED, done=1173, failed=20),)}, "only 7 users left"),
    ],
)
def test_why_fewer_are_on_the_wire_is_told(changes: JSON, told: str) -> None:
    """Each reason in words, next to the numbers in flight, the limit and what was requested."""
    assert told in " ".join(progress.lines((snapshot(**changes),)).split())


def test_outage_has_no_time_to_go_and_nobody_backs_off() -> None:
    """Everybody waits for its end: no log line promises a time, or counts more pauses than slots."""
    out = {"outage": 30.0, "silence": 30.0, "held_by": "outage", "waiting": 14, "backing_off": 18, "eta": 99.0}
    for more, state in (({}, "outage"), ({"awaited": 60.0}, "waiting")):
        run = snapshot(**out, **more)
        text = progress.lines((run,))
        assert "to go" not in text and f"gone, {state}" in text
        assert "32 waiting" in text and "18 backing off" not in text


def test_overdue_replies_promise_no_time_but_a_bound() -> None:
    """The rate of the last replies says nothing then; the end of a time-out does."""
    silent = snapshot(in_flight=4, silence=81.0, latency=(25.0, 40.0))
    assert "? to go" in progress.lines((silent,))
    assert "at most 1:01 to go" in progress.lines((replace(silent, at_most=True),))


def test_slow_replies_are_no_silence() -> None:
    """A model that takes half a minute for a reply is not said to have gone."""
    assert not words.is_silent(snapshot(in_flight=4, silence=31.0, latency=(25.0, 40.0)))
    assert words.is_silent(snapshot(in_flight=4, silence=81.0, latency=(25.0, 40.0)))


def test_nothing_is_to_go_once_every_user_has_ended() -> None:
    """Whatever the rate makes of the last steps, the last line says 0:00."""
    ended = SubsetProgress("weibo", users=3, done=2, failed=1, steps=9, steps_done=7)
    for eta in (None, 5.0):
        assert "0:00 to go" in progress.lines((snapshot(ended, eta=eta),))
    assert "1:01 to go" in progress.lines((snapshot(ended, SUBSET),))
    assert "1:01 to go" in progress.lines((snapshot(ended, in_flight=1),))
    assert "? to go" in progress.lines((snapshot(SUBSET, eta=None),))


def test_kinds_of_failures_fold() -> None:
    """Three kinds have names, the rest is one number; one more kind alone has its name too."""
    four = (("a", 4), ("b", 3), ("c", 2), ("d", 1))
    assert words.kinds(four) == ": a 4, b 3, c 2, d 1"
    assert words.kinds((*four, ("e", 1))) == ": a 4, b 3, c 2, 2 other kinds 2"
    assert words.kinds(()) == ""


def test_endpoint_without_token_counts_is_said_to_tell_none() -> None:
    """Rather than that a run took no tokens."""
    silent = snapshot(prompt_tokens=0, completion_tokens=0, latency=(1.0, 2.0))
    assert [part.text for part in words.tokens(silent)] == ["the endpoint reports none"]


USD, CNY = Money(Decimal("0.01234567"), "USD"), Money(Decimal("3.2"), "CNY", about=True)


def test_large_counts_keep_six_characters() -> None:
    """Also where rounding would make four digits of three."""
    for power in range(12):
        for number in (10**power - 1, 10**power, 5 * 10**power):
            assert len(words.count(number)) <= 6
    assert words.count(999_960) == "1.0M"


# Displays


def test_printing_from_a_thread_waits_for_its_turn() -> None:
    """All of what one thread prints is written before another's begins, so that no frame comes in between."""

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


def test_no_color_takes_colours_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the flag and by the variable."""
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert console(no_color=True).no_color and not console().no_color
    monkeypatch.setenv("NO_COLOR", "1")
    assert console().no_color


def test_dumb_terminals_and_pipes_get_lines() -> None:
    """Nothing that moves a cursor goes where none can be moved."""
    assert isinstance(display(Console(file=io.StringIO())), PlainDisplay)
    dumb = Console(file=io.StringIO(), force_terminal=True, _environ={"TERM": "dumb"})
    assert isinstance(display(dumb), PlainDisplay)


def test_logs_get_fewer_lines_the_longer_a_run_takes() -> None:
    """Every five seconds in its first minute, once a minute after a quarter of an hour, and once at its end."""
    file = io.StringIO()
    with PlainDisplay(Console(file=file)) as observe:
        for second in range(60):
            observe((snapshot(seconds=float(second)),))
        assert file.getvalue().count(" gone,") == 11
        observe((snapshot(seconds=900.0),))
        for second in range(901, 960):
            observe((snapshot(seconds=float(second)),))
        assert file.getvalue().count(" gone,") == 12
        observe((snapshot(seconds=960.0),))
        assert file.getvalue().count(" gone,") == 13
    assert file.getvalue().count(" gone,") == 14 and "\x1b" not in file.getvalue()


def test_log_lines_keep_within_eighty_columns() -> None:
    """No line is broken in the middle of what it tells; each run's lines begin with its name."""
    run = snapshot(replace(SCORED, done=1100), SUBSET, **FULL)
    lines = progress.lines((run,)).splitlines()
    assert max(map(cell_len, lines)) <= 80
    told = " ".join(progress.lines((run,)).split())
    assert "weibo 1100/1200 (20 failed) Recall 40.00% F1^NS 20.00% over 512 users" in told
    assert "tokens 12.3M in, 2.3M out" in told and "warning 0:03 ago: http_503: 服务器繁忙 (12 times)" in told
    several = progress.lines((run, snapshot(SUBSET, name="gpt-5-mini", over=True)))
    assert "千问: weibo 1100/1200" in several
    assert several.splitlines()[-1] == "gpt-5-mini: xiaohongshu 1100/1200 (20 failed) | done"


def test_warning_is_whole_in_a_log() -> None:
    """It may end in an address or a command, which a cut would take away."""
    text = f"no answer: try `curl http://127.0.0.1:8000/{'v' * 90}/models`"
    assert text in progress.lines((snapshot(warnings=(Warned(text, 1.0),)),))


def test_run_that_stops_has_no_projection() -> None:
    """What it would have taken by its end is of no use: it ends now."""
    run = snapshot(**{**FULL, "projected_tokens": (10**6, 10**5), "projected_cost": (USD,), "eta": 60.0})
    assert len(words.tokens(run)) == len(words.tokens(replace(run, stopping="interrupted"))) + 1
    assert len(words.cost(run)) == len(words.cost(replace(run, stopping="interrupted"))) + 1


# What the engine tells


def test_longest_chain_can_outlast_the_rate() -> None:
    """A user's steps come one after another: 50 of 2 s take 100 s, however fast all others are."""
    assert time_to_go(100, 50, rate=5.0, step_seconds=2.0, outage=False) == (100.0, True)
    assert time_to_go(1000, 50, rate=5.0, step_seconds=2.0, outage=False) == (200.0, False)
    assert time_to_go(0, 0, rate=0.0, step_seconds=None, outage=False) == (0.0, False)


def test_nobody_can_tell_how_long_an_outage_lasts() -> None:
    """Nor how long a run takes before its first step."""
    assert time_to_go(10, 2, rate=5.0, step_seconds=2.0, outage=True) == (None, False)
    assert time_to_go(10, 2, rate=0.0, step_seconds=None, outage=False) == (None, False)


def test_latency_is_that_of_the_last_replies() -> None:
    """Exact quantiles of a bounded window: what is older has no weight."""
    latency = Latency()
    assert latency.quantiles is None and latency.mean is None
    for _ in range(REPLIES):
        latency.add(100.0)
    for number in range(REPLIES):
        latency.add(number / (REPLIES - 1))
    assert latency.quantiles == pytest.approx((0.5, 0.95))
    assert latency.mean == pytest.approx(0.5)


@pytest.mark.parametrize(("age", "left"), [(0.0, 3.0), (1.5, 2.0), (4.5, 0.5), (5.0, 5.0), (41.0, 41.0)])
def test_request_in_flight_takes_as_long_as_the_replies_that_took_longer(age: float, left: float) -> None:
    """On average; one that has taken longer than all of them may take as long again."""
    latency = Latency()
    for seconds in (1.0, 2.0, 3.0, 4.0, 5.0):
        latency.add(seconds)
    assert latency.left(age) == pytest.approx(left)


def test_rates_are_those_of_the_last_half_minute() -> None:
    """Of steps, and of tokens in and out; before any time has gone there is none."""
    rates = Rates(0.0, (0, 0, 0))
    assert rates.of(0.0, (0, 0, 0)) == (0.0, 0.0, 0.0)
    assert rates.of(10.0, (1000, 10_000, 1000)) == (100.0, 1000.0, 100.0)
    for second in range(11, 100):
        steps, into, out = rates.of(float(second), (1000 + 2 * (second - 10), 10_000, 1000))
    assert steps == pytest.approx(2.0)
    assert (into, out) == (0.0, 0.0)


def test_warnings_that_repeat_are_counted() -> None:
    """Three different ones are kept, the newest first, with their age and how often they came."""
    warnings = Warnings(3)
    for time, text in enumerate(["甲", "乙", "甲", "丙", "丁"]):
        warnings.add(float(time), text)
    assert warnings.recent(10.0) == (Warned("丁", 6.0), Warned("丙", 7.0), Warned("甲", 8.0, 2))


@pytest.mark.parametrize(
    ("requested", "options"), [(64, ["--rpm 30", "--concurrency auto"]), (None, ["--rpm 30"])], ids=["fixed", "auto"]
)
def test_run_whose_tries_are_mostly_refused_names_the_rate_that_was_served(
    requested: int | None, options: list[str]
) -> None:
    """50 replies in 100 s are 30 a minute; half of the tries or less refused are no reason to speak."""
    refused = snapshot(requested=requested, requests=110, in_flight=4, faults=(("http_429", 56),))
    text = progress.lines((refused,))
    assert all(option in text for option in options) and text.count("--") == len(options)
    some = snapshot(requested=requested, requests=110, in_flight=4, faults=(("http_429", 53), ("http_500", 30)))
    assert "--rpm" not in progress.lines((some,))
