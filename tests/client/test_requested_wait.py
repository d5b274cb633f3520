"""How long an endpoint asks to wait: headers, resets and words."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.client.replies import refused
from harness.client.requested_wait import LONGEST_WAIT, exhausted, requested_wait, retry_after
from harness.errors import TransportFault

NOW = datetime(2025, 3, 1, 12, 0, 0, tzinfo=UTC)
SOON = "2025-03-01T12:00:20Z"


# Retry-After


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (None, None),
        ("0", 0.0),
        ("1.5", 1.5),
        ("  20 ", 20.0),
        ("-3", 0.0),
        ("999999999", LONGEST_WAIT),
        ("1e400", None),
        ("nan", None),
        ("inf", None),
        ("", None),
        ("soon", None),
        ("1;2", None),
        ("一分钟", None),
        ("Sun, 06 Nov 99999999999999 08:49:37 GMT", None),
        ("Mon, 01 Jan 2024 00:00:00 +99999999999999999999", None),
        (format_datetime(NOW + timedelta(seconds=90), usegmt=True), 90.0),
        (format_datetime(NOW + timedelta(seconds=90)).replace("+0000", "-0000"), 90.0),
        ((NOW + timedelta(hours=8, seconds=90)).strftime("%a, %d %b %Y %H:%M:%S +0800"), 90.0),
        (format_datetime(NOW - timedelta(days=400), usegmt=True), 0.0),
        (format_datetime(NOW + timedelta(days=2), usegmt=True), LONGEST_WAIT),
    ],
)
def test_retry_after_is_read_as_seconds_or_date_and_nonsense_is_ignored(value, seconds):
    """Seconds and HTTP dates are obeyed up to an hour, the past is now, and anything else is as if
    not sent."""
    assert retry_after(value, NOW) == seconds


DIGITS = st.text("0123456789", min_size=1, max_size=25)
DATES = st.builds(
    "Sun, {} Nov {} {}:{}:00 {}{}".format,
    DIGITS,
    DIGITS,
    DIGITS,
    DIGITS,
    st.sampled_from("+-"),
    DIGITS,
)


@given(st.text(max_size=60) | DIGITS | DATES)
def test_any_retry_after_is_none_or_bearable(value):
    """No header can make a request wait for longer than an hour, for less than nothing, or fail."""
    seconds = retry_after(value, NOW)
    assert seconds is None or 0.0 <= seconds <= LONGEST_WAIT


# Quotas that are used up for now


def left(
    requests: str | None, requests_reset: str, tokens: str | None = None, tokens_reset: str = ""
) -> dict[str, str]:
    headers = {
        "x-ratelimit-remaining-requests": requests,
        "x-ratelimit-reset-requests": requests_reset,
        "x-ratelimit-remaining-tokens": tokens,
        "x-ratelimit-reset-tokens": tokens_reset,
    }
    return {name: value for name, value in headers.items() if value is not None}


@pytest.mark.parametrize(
    ("reset", "seconds"),
    [
        ("6m0s", 360.0),
        ("20ms", 0.02),
        ("1.5s", 1.5),
        ("1s", 1.0),
        ("1m30.5s", 90.5),
        ("59m59s", 3599.0),
        ("8h3m0s", LONGEST_WAIT),
        ("7", 7.0),
        (" 0.25 ", 0.25),
        ("0s", 0.0),
        ("", 0.0),
        ("soon", 0.0),
        ("6m0", 0.0),
        ("-5s", 0.0),
        ("1e9s", 0.0),
        ("5 s", 0.0),
        ("1d", 0.0),
        ("1740830420", 20.0),  # a date in seconds
        ("1740830420000", 20.0),
        ("1740830420.5", 20.5),
        ("1740000000", 0.0),
        ("2740830420", LONGEST_WAIT),
        ("2025-03-01T12:00:20Z", 20.0),
        ("2025-03-01T20:00:20.250+08:00", 20.25),
        ("2025-03-01T11:00:00Z", 0.0),
        ("2025-13-01T11:00:00Z", 0.0),
        ("1m2.5s", 62.5),
        ("9" * 400 + "s", 0.0),
    ],
)
def test_reset_is_read_in_the_words_of_the_headers_and_nonsense_is_no_time(reset, seconds):
    """Hours to milliseconds or bare seconds, up to an hour; what is no duration makes nobody
    wait."""
    assert exhausted(left("0", reset), NOW) == pytest.approx(seconds)


def test_longest_reset_of_what_is_used_up_counts():
    """Requests and tokens are counted apart: the wait is for whichever is used up, and for the
    later of both."""
    assert exhausted(left("0", "5s", "0", "20s"), NOW) == 20.0
    assert exhausted(left("0", "20s", "0", "5s"), NOW) == 20.0
    assert exhausted(left("0", "5s", "70", "20s"), NOW) == 5.0
    assert exhausted(left("3", "20s", "0", "5s"), NOW) == 5.0
    assert exhausted(left(None, "20s", " 0 ", "5s"), NOW) == 5.0


@pytest.mark.parametrize("remaining", ["1", "59999", "", "none", "-1", "00x", None])
def test_nothing_is_waited_for_while_something_is_left(remaining):
    """Only a plain 0 means that nothing is left; no header, or one that makes no sense, means
    nothing."""
    assert exhausted(left(remaining, "20s", remaining, "20s"), NOW) is None
    assert exhausted({}, NOW) is None


@given(
    st.text(max_size=60)
    | DIGITS
    | st.from_regex(r"\A(?:[0-9]{1,30}(?:\.[0-9]{1,30})?(?:h|m|s|ms|d)?){1,6}\Z")
)
def test_any_reset_is_bearable(value):
    """No header can stop a run for longer than an hour, for less than nothing, or fail."""
    seconds = exhausted(left("0", value), NOW)
    assert seconds is not None and 0.0 <= seconds <= LONGEST_WAIT


# Errors as a whole


@pytest.mark.parametrize(
    ("words", "seconds"),
    [
        (
            "Rate limit reached: Limit 3, Used 3, Requested 1. Please try again in 20s. Visit https://x",
            20.0,
        ),
        ("please try again in 2.5s.", 2.5),
        ("Please retry in 12.3s", 12.3),
        ("Please retry in 12.345678901s.", 12.345678901),
        ("Requests rate limited. Try again in 450ms.", 0.45),
        ("try again in 1m2.5s", 62.5),
        ("try again in 1 minute 2 seconds", 62.0),
        ("Please retry after 20 seconds.", 20.0),
        ("try again in 9h", LONGEST_WAIT),
        ("try again in a moment", None),
        ("try again in 5", None),
        ("limit of 20s reached", None),
    ],
)
def test_wait_in_the_words_of_an_error_is_read(words, seconds):
    """Providers without Retry-After say it in a sentence."""
    with pytest.raises(TransportFault) as caught:
        refused(429, {}, orjson.dumps({"error": {"message": words}}), NOW)
    assert caught.value.retry_after == (None if seconds is None else pytest.approx(seconds))


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after-ms": "450"}, 0.45),
        ({"retry-after-ms": "450", "Retry-After": "1"}, 0.45),
        ({"retry-after-ms": "soon", "Retry-After": "1"}, 1.0),
        ({"x-ratelimit-reset-requests": "1m2.5s"}, 62.5),
        ({"x-ratelimit-reset-requests": "1m2.5s", "x-ratelimit-remaining-requests": "7"}, None),
        ({"x-ratelimit-remaining": "0", "x-ratelimit-reset": "1740830420000"}, 20.0),
        (
            {
                "anthropic-ratelimit-requests-remaining": "0",
                "anthropic-ratelimit-requests-reset": SOON,
            },
            20.0,
        ),
        (
            {
                "anthropic-ratelimit-input-tokens-remaining": "0",
                "anthropic-ratelimit-input-tokens-reset": SOON,
            },
            20.0,
        ),
        (
            {"anthropic-ratelimit-tokens-remaining": "9", "anthropic-ratelimit-tokens-reset": SOON},
            None,
        ),
        ({"x-ratelimit-reset-requests": "soon"}, None),
    ],
)
def test_wait_in_the_headers_of_a_refusal_is_read(headers, seconds):
    """The finest header counts; resets count for a 429 alone, of what is used up or whose rest is
    not stated."""
    assert requested_wait(429, headers, NOW) == (
        None if seconds is None else pytest.approx(seconds)
    )
    if "retry-after-ms" not in headers:
        assert requested_wait(500, headers, NOW) is None


def test_503_with_retry_after_asks_to_wait_and_one_without_is_a_fault():
    """A 429 always asks."""
    asks = [
        TransportFault(f"http_{status}", "busy", retry_after=seconds).asks_to_wait
        for status in (429, 503, 500)
        for seconds in (None, 1.0)
    ]
    assert asks == [True, True, False, True, False, False]


@given(
    st.text(max_size=80),
    st.sampled_from(["try again in ", "retry after ", ""]),
    st.text("0123456789.hms ", max_size=60),
)
def test_any_words_are_none_or_bearable(before, phrase, after):
    """No words can make a request wait for longer than an hour, for less than nothing, or fail."""
    seconds = requested_wait(429, {}, NOW, before + phrase + after)
    assert seconds is None or 0.0 <= seconds <= LONGEST_WAIT


def test_date_is_reckoned_by_the_clock_of_the_reply():
    """A machine whose clock is an hour behind waits as long as the endpoint means, for an error and
    for a quota."""
    sent, until = "Sat, 01 Mar 2025 13:00:00 GMT", "Sat, 01 Mar 2025 13:00:07 GMT"
    assert requested_wait(429, {"Date": sent, "Retry-After": until}, NOW) == 7.0
    assert exhausted({"Date": sent, **left("0", "2025-03-01T13:00:09Z")}, NOW) == 9.0
    assert (
        requested_wait(
            429, {"Date": "yesterday", "Retry-After": "Sat, 01 Mar 2025 12:00:07 GMT"}, NOW
        )
        == 7.0
    )
