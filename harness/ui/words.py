"""Numbers and states of a run in words, for displays and logs: parts of lines, each whole in itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from harness.cost import money_text
from harness.errors import REFUSED
from harness.model import Snapshot, Warned

SLOW_LOOP, SLOW_DISK = 0.1, 0.05
"""Seconds from which a late event loop and a slow write are shown."""
SILENT = 10.0
"""Seconds without a reply that are shown, unless one in twenty replies takes half as long or more."""
KINDS_SHOWN = 3
ENOUGH_TRIES = 20
"""Tries from which a share of refusals is spoken of."""

HELD = {"pause": "", "outage": "outage: probing", "limit": "", "stopping": ""}
"""What is said of why requests wait, if it is not what holds them."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a line, `room` the cells that are kept for it, so that others do not move while its numbers grow."""

    text: str
    room: int = 0
    style: str = ""


def in_flight(s: Snapshot) -> list[Piece]:
    """Return the requests in flight, the limit and the requested concurrency, and why fewer are in flight."""
    if s.load:
        return [*load(s), *(Piece(reason, style="yellow") for reason in held_back(s))]
    digits = len(str(max(s.limit, s.requested or 0)))
    requested = "auto" if s.requested is None else str(s.requested)
    resting = 0 if s.outage else s.backing_off  # in an outage all wait for its end
    parts = [
        Piece(f"{s.in_flight:>{digits}} in flight, limit {s.limit:>{digits}}, {requested} requested"),
        Piece(f"{s.waiting + s.backing_off - resting} waiting", 8 + digits),
        Piece(f"{resting} backing off", 12 + digits),
    ]
    return parts + [Piece(reason, style="yellow") for reason in held_back(s)]


def load(s: Snapshot) -> list[Piece]:
    """Return what is shown instead of requests in flight."""
    return [Piece(text, room) for text, room in s.load]


def held_back(s: Snapshot) -> list[str]:
    """Return why fewer requests are in flight than were requested."""
    if s.awaited:
        return [f"waiting for the first answer, {duration(s.awaited)} left"]
    reasons = [*filter(None, [HELD.get(s.held_by, f"held by the {s.held_by}")])] if s.held_by else []
    if s.pause:
        reasons.append(f"the endpoint asked to wait, {duration(s.pause)} left")
    if is_silent(s):
        reasons.append(f"no answer for {duration(s.silence)}")
    reasons += mostly_refused(s)
    if s.lag > SLOW_LOOP:
        reasons.append(f"busy loop {1e3 * s.lag:.0f} ms")
    if s.slowest_write > SLOW_DISK:
        reasons.append(f"slow disk {1e3 * s.slowest_write:.0f} ms")
    if reasons:
        return reasons
    taken = s.held_by == "limit" or (s.others_in_flight and s.in_flight + s.others_in_flight >= s.limit)
    if taken and s.in_flight < s.limit:
        return ["other runs use the remaining slots"]
    left = users_left(s)
    if not s.load and not s.waiting and s.in_flight < s.limit and 0 < left < s.limit and not s.stopping:
        return [f"only {plural(left, 'user')} left"]
    return []


def mostly_refused(s: Snapshot) -> list[str]:
    """Return what to do where the endpoint refused (429) more than half of the tries: the rate that it did serve."""
    ended = s.requests - s.in_flight
    if ended < ENOUGH_TRIES or 2 * dict(s.faults).get(REFUSED, 0) <= ended:
        return []
    served = 60.0 * (ended - sum([number for _, number in s.faults])) / max(s.seconds, 1.0)
    options = [f"--rpm {served:.0f}"] if served >= 1.0 else []
    options += ["--concurrency auto"] if s.requested is not None else []
    return [f"most tries are refused: {' or '.join(options) or '--rpm 1'}"]


def is_silent(s: Snapshot) -> bool:
    """Return whether replies are overdue for longer than usual."""
    usual = s.latency[1] if s.latency else 0.0
    return bool(s.outage) or (s.in_flight > 0 and s.silence > max(SILENT, 2 * usual))


def users_left(s: Snapshot) -> int:
    return sum([subset.users - subset.done - subset.failed for subset in s.subsets])


def speed(s: Snapshot) -> list[Piece]:
    into, out = s.token_rates
    return [Piece(pace(s.rate), 15), Piece(f"{count(into)} tokens/s in, {count(out)} out", 31)]


def latency(s: Snapshot) -> list[Piece]:
    """Return the latency of replies, and how late this machine itself is."""
    replies = f"p50 {brief(s.latency[0])}, p95 {brief(s.latency[1])}" if s.latency else "no reply yet"
    return [
        Piece(replies, 22),
        Piece(f"event loop {1e3 * s.lag:.0f} ms late", 21),
        Piece(f"disk write {1e3 * s.slowest_write:.1f} ms", 18),
    ]


def requests(s: Snapshot) -> list[Piece]:
    digits = len(str(sum([subset.steps for subset in s.subsets])))
    parts = [Piece(f"{s.requests} sent", 5 + digits), Piece(tries_failed(s), 15, "yellow" if s.faults else "")]
    parts += [Piece(answers_unusable(s), style="yellow")] if s.unusable else []
    parts += [Piece(f"{number} {kind}") for kind, number in s.notices]
    return [*parts, Piece(f"{s.replayed} from saved")] if s.replayed else parts


def tries_failed(s: Snapshot, kinds_shown: int = KINDS_SHOWN) -> str:
    failed = sum([number for _, number in s.faults])
    return f"{failed} {'try' if failed == 1 else 'tries'} failed{kinds(s.faults, kinds_shown)}"


def answers_unusable(s: Snapshot, kinds_shown: int = KINDS_SHOWN) -> str:
    number = sum([number for _, number in s.unusable])
    return f"{plural(number, 'unusable reply', 'unusable replies')}{kinds(s.unusable, kinds_shown)}"


def failures(s: Snapshot) -> list[Piece]:
    """Return the failed users, by kind; nothing if there are none."""
    failed = sum([subset.failed for subset in s.subsets])
    return [Piece(f"{plural(failed, 'user')}{kinds(s.failures)}", style="red")] if failed else []


def kinds(counted: Sequence[tuple[str, int]], number_shown: int = KINDS_SHOWN) -> str:
    """Return the most frequent kinds by name, the rest together."""
    shown, rest = counted[:number_shown], counted[number_shown:]
    if len(rest) == 1:
        shown, rest = counted, ()
    parts = [f"{kind} {number}" for kind, number in shown]
    if rest:
        parts.append(f"{len(rest)} other kinds {sum([number for _, number in rest])}")
    return f": {', '.join(parts)}" if parts else ""


def tokens(s: Snapshot) -> list[Piece]:
    """Return this session's tokens, and a projection to its end."""
    if s.requests and not s.prompt_tokens and not s.completion_tokens and s.latency:
        return [Piece("the endpoint reports none")]
    parts = [Piece(f"{count(s.prompt_tokens)} in, {count(s.completion_tokens)} out", 22)]
    if s.projected_tokens and s.eta and not s.stopping:
        into, out = s.projected_tokens
        parts.append(Piece(f"by the end about {tokens_of(into, out)}"))
    return parts


def cost(s: Snapshot) -> list[Piece]:
    """Return what all saved replies cost, what is left to requests, and a projection to the end."""
    parts = [Piece(money_text(s.cost), 22)] if s.cost else []
    parts += [Piece(text, room) for text, room in s.allowance]
    if s.projected_cost and s.eta and not s.stopping:
        parts.append(Piece(f"by the end {money_text(s.projected_cost)}"))
    return parts


def tokens_of(into: int, out: int) -> str:
    return f"{count(into)} tokens in, {count(out)} out"


def eta(s: Snapshot) -> float | None:
    """Return the seconds to go: 0 once every user has ended, whatever the rate; None while replies are overdue."""
    if users_left(s) <= 0 and not s.in_flight and not s.waiting:
        return 0.0
    return None if is_silent(s) and not s.at_most else s.eta


def time(s: Snapshot) -> str:
    """Return the time elapsed and the time to go, and what determines it if not the rate."""
    if s.stopping:
        return f"{duration(s.seconds)} gone, stopping"
    if s.outage:
        return f"{duration(s.seconds)} gone, {state(s)}"
    left = eta(s)
    chain = " (longest chain)" if s.chain_bound and left else ""
    most = "at most " if s.at_most and left else ""
    return f"{duration(s.seconds)} gone, {most}{'?' if left is None else duration(left)} to go{chain}"


def state(s: Snapshot) -> str:
    """Return a run's state in one word, or the time until its end."""
    if s.over:
        return "stopped" if s.stopping else "done"
    if s.stopping:
        return "stopping"
    left = eta(s)
    if s.outage:
        return "waiting" if s.awaited else "outage"
    return "?" if left is None else duration(left)


def warned(one: Warned) -> str:
    return f"{duration(one.age)} ago: {one.text}{f' ({one.times} times)' if one.times > 1 else ''}"


def figure(value: float | None, unit: str | None = None) -> str:
    """Return a running figure: a share in percent, anything else with its unit."""
    if value is None:
        return "-"
    return f"{100 * value:.2f}%" if unit is None else f"{value:.3f} {unit}"


def pace(rate: float) -> str:
    """Return the steps a second, or a minute where models are slow."""
    return f"{rate:.1f} steps/s" if rate >= 1 or not rate else f"{60 * rate:.1f} steps/min"


def count(number: float) -> str:
    """Return a number in at most six characters."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= 0.99995 * size:
            return f"{number / size:.1f}{unit}"
    return f"{number:.0f}"


def plural(number: int, noun: str, several: str | None = None) -> str:
    """Return a number with its noun; `several` is a plural that does not end in s alone."""
    return f"{number} {noun if number == 1 else several or f'{noun}s'}"


def brief(seconds: float) -> str:
    """Format a short time, with as many digits as are significant."""
    if seconds < 1:
        return f"{1e3 * seconds:.0f} ms"
    return f"{seconds:.2f} s" if seconds < 10 else f"{seconds:.1f} s"


def duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
