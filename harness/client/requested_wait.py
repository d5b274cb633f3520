"""How long an endpoint asks to wait: in its headers, or in the words of its error. Pure: the time
is an argument.

Every wait is between 0 and `LONGEST_WAIT` seconds; what makes no sense is as if it was not sent.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

LONGEST_WAIT = 3600.0
"""Seconds; a longer wait is cut to this, since nobody waits a day for one request."""
QUOTAS = (
    ("x-ratelimit-remaining", "x-ratelimit-reset"),
    ("x-ratelimit-remaining-requests", "x-ratelimit-reset-requests"),
    ("x-ratelimit-remaining-tokens", "x-ratelimit-reset-tokens"),
    ("anthropic-ratelimit-requests-remaining", "anthropic-ratelimit-requests-reset"),
    ("anthropic-ratelimit-tokens-remaining", "anthropic-ratelimit-tokens-reset"),
    ("anthropic-ratelimit-input-tokens-remaining", "anthropic-ratelimit-input-tokens-reset"),
    ("anthropic-ratelimit-output-tokens-remaining", "anthropic-ratelimit-output-tokens-reset"),
)
"""The headers with what is left of a quota, and with its reset."""
UNITS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001, "millisecond": 0.001, "": 1.0}
DURATION_PART = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)(ms|h|m|s|)")
DURATION = re.compile(r"(?:\d{1,9}(?:\.\d{1,9})?(?:ms|h|m|s))+|\d{1,9}(?:\.\d{1,9})?")
EPOCH = re.compile(r"\d{10}(?:\d{3})?(?:\.\d{1,9})?")
"""Seconds since 1970, or milliseconds."""
IN_WORDS = re.compile(
    r"(?:try(?:ing)? again|retry(?:ing)?)\s+(?:in|after)\s+"
    r"((?:\d{1,9}(?:\.\d{1,9})?\s*(?:ms|milliseconds?|h|hours?|m|min|minutes?|s|sec|seconds?)\b[\s,]*)+"
    r"|(?:\d{1,9}(?:\.\d{1,9})?(?:ms|h|m|s))+)"
)
"""As "Please try again in 2.5s", "in 1m2.5s", "in 450ms" and "Please retry after 20 seconds" have
it, in lower case."""
WORDS_PART = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)\s*(ms|millisecond|h|m|s)")


def requested_wait(
    status: int,
    headers: Mapping[str, str],
    now: datetime,
    message: str = "",
    delay: str | None = None,
) -> float | None:
    """Return the seconds to wait after an error with this `message`, in lower case; None if it asks
    for none.

    `delay` are seconds as text, of an error of Google's. The first of these that makes sense
    counts, and for a 429 without any of them the reset of what is used up. A date is reckoned by
    the clock of the reply's own `Date`.
    """
    now = _sent_at(headers) or now
    for seconds in (
        retry_after(headers.get("retry-after-ms"), now, 0.001),
        retry_after(headers.get("Retry-After"), now),
        retry_after(delay, now),
        _in_message(message),
    ):
        if seconds is not None:
            return seconds
    if status != 429:
        return None
    return exhausted(headers, now, "0") or None


def retry_after(value: str | None, now: datetime, unit: float = 1.0) -> float | None:
    """Return the seconds to wait, of a number of units or an HTTP date; None if it is missing or
    makes no sense."""
    if value is None:
        return None
    try:
        seconds = unit * float(value)
    except ValueError:
        moment = _date(value)
        if moment is None:
            return None
        seconds = (moment - now).total_seconds()
    return _bounded(seconds) if math.isfinite(seconds) else None


def _date(value: str) -> datetime | None:
    try:
        moment = parsedate_to_datetime(value)
    except (ValueError, OverflowError):
        return None
    return moment.replace(tzinfo=moment.tzinfo or UTC)


def _sent_at(headers: Mapping[str, str]) -> datetime | None:
    return _date(headers.get("Date", ""))


def exhausted(headers: Mapping[str, str], now: datetime, unstated: str = "") -> float | None:
    """Return the seconds until the quotas that are used up reset, 0 for a reset that makes no
    sense; None if none is.

    `unstated` is what is left of a quota of which only the reset is known.
    """
    # Every reply is looked at, and a look at each name takes longer.
    if "ratelimit" not in "".join(headers).lower():
        return None
    now = _sent_at(headers) or now
    waits: list[float] = []
    for left, reset in QUOTAS:
        default = unstated if reset in headers else ""
        if headers.get(left, default).strip() == "0":
            waits.append(_until(headers.get(reset, ""), now))
    return max(waits, default=None)


def _until(reset: str, now: datetime) -> float:
    """Return the seconds until a reset: a duration like `6m0s` or `20ms`, bare seconds, or a time
    (ISO, since 1970)."""
    reset = reset.strip()
    if DURATION.fullmatch(reset):
        return _total(DURATION_PART.findall(reset))
    if EPOCH.fullmatch(reset):
        is_in_milliseconds = len(reset.partition(".")[0]) == 13
        seconds = float(reset) * (0.001 if is_in_milliseconds else 1.0)
        return _bounded(seconds - now.timestamp())
    try:
        moment = datetime.fromisoformat(reset)
    except ValueError:
        return 0.0
    return _bounded((moment.replace(tzinfo=moment.tzinfo or UTC) - now).total_seconds())


def _in_message(message: str) -> float | None:
    duration = IN_WORDS.search(message)
    return _total(WORDS_PART.findall(duration[1])) if duration else None


def _total(duration: list[tuple[str, str]]) -> float:
    """Return the bounded seconds of numbers and their units."""
    return _bounded(sum(float(number) * UNITS[unit] for number, unit in duration))


def _bounded(seconds: float) -> float:
    return min(max(seconds, 0.0), LONGEST_WAIT)
