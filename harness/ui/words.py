"""Numbers and states of a run in words, for displays, pages and logs: short texts, each complete in
itself."""

from __future__ import annotations

from collections import Counter

from harness.cost import money_text
from harness.errors import TOO_MANY_REQUESTS
from harness.model import Snapshot, Snapshots, Warned

SLOW_LOOP, SLOW_DISK = 0.1, 0.05
"""Seconds from which a late event loop and a slow write are reasons for few requests in flight."""
SILENT = 10.0
"""Seconds without a reply that are shown, unless one in twenty replies takes half as long or
more."""
KINDS_SHOWN = 3
MIN_TRIES = 20
"""Tries from which a share of refusals is spoken of."""
SHOWN_OTHERWISE = ("pause", "outage", "limit", "stopping")
"""Reasons for requests to wait that other words are for."""
FAILED = {
    "failures": ("failed user",),
    "faults": ("failed try", "failed tries"),
    "unusable": ("unusable reply", "unusable replies"),
}
"""Counts of a snapshot, and the nouns for one and several."""

# Numbers


def plural(number: int, noun: str, plural_noun: str | None = None) -> str:
    """Return a number with its noun; `plural_noun` is a plural that does not end in s alone."""
    return f"{number:,} {noun if number == 1 else plural_noun or f'{noun}s'}"


def count(number: float) -> str:
    """Return a number in at most six characters."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        # From here on the smaller unit would round to 1000.0.
        if number >= 0.99995 * size:
            return f"{number / size:.1f}{unit}"
    return f"{number:.0f}"


def duration(seconds: float) -> str:
    minutes, seconds_left = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}:{minutes:02}:{seconds_left:02}"
    return f"{minutes}:{seconds_left:02}"


def figure(value: float | None, unit: str | None = None) -> str:
    """Return a running figure: a share in percent, anything else with its unit."""
    if value is None:
        return "-"
    if unit is None:
        return f"{100 * value:.2f}%"
    return f"{value:,.3f} {unit}"


def pace(rate: float) -> str:
    """Return the steps a second, or a minute where models are slow."""
    if 0 < rate < 1:
        return f"{60 * rate:.1f} steps/min"
    if rate < 100:
        return f"{rate:.1f} steps/s"
    return f"{rate:,.0f} steps/s"


# Time and state


def eta_text(s: Snapshot) -> str:
    """Return when a run ends, or its state."""
    return halted(s) or f"ETA {state(s)}"


def state(s: Snapshot) -> str:
    """Return a run's state in one word, or the time until its end: unknown while replies are
    overdue."""
    if halted(s):
        return halted(s)
    if s.eta is None:
        return "?"
    if s.at_most:
        return f"at most {duration(s.eta)}"
    return "?" if is_silent(s) else duration(s.eta)


def halted(s: Snapshot) -> str:
    """Return why there is no time to go, in one word; empty if there is one."""
    if s.over and s.stopping:
        return "stopped"
    if s.over:
        return "done"
    if s.stopping:
        return "stopping"
    if s.outage and s.awaited:
        return "waiting"
    return "outage" if s.outage else ""


def is_silent(s: Snapshot) -> bool:
    """Return whether replies are overdue for longer than usual."""
    slowest = s.latency[1] if s.latency else 0.0
    return bool(s.outage) or (s.in_flight > 0 and s.silence > max(SILENT, 2 * slowest))


# Traffic


def in_flight(s: Snapshot) -> list[str]:
    """Return how many requests are in flight and how many may be, or what the run shows instead."""
    if s.load:
        return list(s.load)
    requested = "auto" if s.requested is None else f"{s.requested:,} requested"
    note = "" if s.requested == s.limit else f" ({requested})"
    others = ""
    if s.others_in_flight:
        others = f", {s.others_in_flight:,} by other runs"
    return [f"{s.in_flight:,} in flight of {s.limit:,} allowed{note}{others}"]


def held_back(s: Snapshot) -> list[str]:
    """Return why fewer requests are in flight than were requested."""
    if s.stopping:
        return [f"stopping: {s.stopping}; Ctrl-C again stops now"]
    if s.awaited:
        return [f"waiting for the first answer, {duration(s.awaited)} left"]
    reasons = {
        f"held by the {s.held_by}": s.held_by and s.held_by not in SHOWN_OTHERWISE,
        f"the endpoint asked to wait, {duration(s.pause)} left": s.pause,
        f"no answer for {duration(s.silence)}": is_silent(s),
        f"busy loop {1e3 * s.lag:.0f} ms": s.lag > SLOW_LOOP,
        f"slow disk {1e3 * s.slowest_write:.0f} ms": s.slowest_write > SLOW_DISK,
    }
    return [*(reason for reason, holds in reasons.items() if holds), *mostly_refused(s)]


def mostly_refused(s: Snapshot) -> list[str]:
    """Return what to do where the endpoint refused (429) more than half of the tries: the rate that
    it did serve."""
    ended = s.requests - s.in_flight
    faults = Counter(dict(s.faults))
    if ended < MIN_TRIES or 2 * faults[TOO_MANY_REQUESTS] <= ended:
        return []
    # What the endpoint answered a minute so far is a rate that it allows.
    served = 60.0 * (ended - faults.total()) / max(s.seconds, 1.0)
    auto = " or --concurrency auto"
    if s.requested is None:
        auto = ""
    return [f"most tries are refused: --rpm {max(served, 1.0):.0f}{auto}"]


def failed_counts(snapshots: Snapshots) -> list[str]:
    """Return the failed users and tries and the unusable replies of runs, with the most frequent
    kinds."""
    result = []
    for name, nouns in FAILED.items():
        kinds = Counter[str]()
        for s in snapshots:
            kinds.update(dict(getattr(s, name)))
        shown = [f"{kind} {number:,}" for kind, number in kinds.most_common(KINDS_SHOWN)]
        if len(kinds) > KINDS_SHOWN:
            shown.append("...")
        if kinds:
            result.append(f"{plural(kinds.total(), *nouns)}: {', '.join(shown)}")
    return result


def latency(s: Snapshot) -> list[str]:
    """Return the latency of replies, and how late this machine itself is."""
    replies = "no reply yet"
    if s.latency:
        replies = f"p50 {s.latency[0]:.3g} s, p95 {s.latency[1]:.3g} s"
    return [
        replies,
        f"event loop {1e3 * s.lag:.0f} ms late",
        f"disk write {1e3 * s.slowest_write:.1f} ms",
    ]


def requests_sent(s: Snapshot) -> list[str]:
    """Return the requests of this session, and other events of them."""
    notices = [f"{number:,} {kind}" for kind, number in s.notices]
    return [f"{s.requests:,} sent", *notices, f"{s.replayed:,} from saved"]


def tokens_of(into: int, out: int) -> list[str]:
    """Return tokens of prompts and of completions; nothing where an endpoint reports none."""
    if into or out:
        return [f"{count(into)} tokens in, {count(out)} out"]
    return []


def by_the_end(s: Snapshot) -> list[str]:
    """Return the tokens and the cost that are expected by the end of a run that goes on."""
    if not s.eta or s.stopping:
        return []
    expected = []
    if s.projected_tokens:
        expected += tokens_of(*s.projected_tokens)
    if s.projected_cost:
        expected.append(money_text(s.projected_cost))
    if expected:
        return [f"expected by the end: {', '.join(expected)}"]
    return []


def warned(warning: Warned) -> str:
    times = ""
    if warning.times > 1:
        times = f" ({warning.times:,} times)"
    return f"{duration(warning.age)} ago: {warning.text}{times}"
