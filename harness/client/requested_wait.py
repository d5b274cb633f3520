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
    *[
        (f"x-ratelimit-remaining{of}", f"x-ratelimit-reset{of}")
        for of in ("", "-requests", "-tokens")
    ],
    *[
        (f"anthropic-ratelimit-{of}-remaining", f"anthropic-ratelimit-{of}-reset")
        for of in ("requests", "tokens", "input-tokens", "output-tokens")
    ],
)
"""The headers with what is left of a quota, and with its reset."""
UNITS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001, "": 1.0}
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
    words: str = "",
    delay: str | None = None,
) -> float | None:
    """Return the seconds to wait after an error with these `words`, in lower case; None if it asks
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
        _in_words(words),
    ):
        if seconds is not None:
            return seconds
    return exhausted(headers, now, "0") or None if status == 429 else None


def retry_after(value: str | None, now: datetime, unit: float = 1.0) -> float | None:
    """Return the seconds to wait, of a number of units or an HTTP date; None if it is missing or
    makes no sense."""
    if value is None:
        return None
    try:
        seconds = unit * float(value)
    except ValueError:
        if (at := _date(value)) is None:
            return None
        seconds = (at - now).total_seconds()
    return _bounded(seconds) if math.isfinite(seconds) else None


def _date(value: str) -> datetime | None:
    try:
        at = parsedate_to_datetime(value)
    except (ValueError, OverflowError):
        return None
    return at.replace(tzinfo=at.tzinfo or UTC)


def _sent_at(headers: Mapping[str, str]) -> datetime | None:
    return _date(headers.get("Date", ""))


def exhausted(headers: Mapping[str, str], now: datetime, unstated: str = "") -> float | None:
    """Return the seconds until the quotas that are used up reset, 0 for a reset that makes no
    sense; None if none is.

    `unstated` is what is left of a quota of which only the reset is known.
    """
    if (
        "ratelimit" not in "".join(headers).lower()
    ):  # every reply is looked at, and a look at each name takes longer
        return None
    now = _sent_at(headers) or now
    waits = [
        _until(headers.get(reset, ""), now)
        for left, reset in QUOTAS
        if headers.get(left, unstated if reset in headers else "").strip() == "0"
    ]
    return max(waits) if waits else None


def _until(reset: str, now: datetime) -> float:
    """Return the seconds until a reset: a duration like `6m0s` or `20ms`, bare seconds, or a time
    (ISO, since 1970)."""
    reset = reset.strip()
    if DURATION.fullmatch(reset):
        return _bounded(
            sum(float(number) * UNITS[unit] for number, unit in DURATION_PART.findall(reset))
        )
    if EPOCH.fullmatch(reset):
        return _bounded(
            float(reset) * (0.001 if len(reset.partition(".")[0]) == 13 else 1.0) - now.timestamp()
        )
    try:
        at = datetime.fromisoformat(reset)
    except ValueError:
        return 0.0
    return _bounded((at.replace(tzinfo=at.tzinfo or UTC) - now).total_seconds())


def _in_words(words: str) -> float | None:
    if not (found := IN_WORDS.search(words)):
        return None
    parts = WORDS_PART.findall(found[1])
    return _bounded(
        sum(
            float(number) * UNITS["ms" if unit == "millisecond" else unit] for number, unit in parts
        )
    )


def _bounded(seconds: float) -> float:
    return min(max(seconds, 0.0), LONGEST_WAIT)
