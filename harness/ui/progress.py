"""The live display: a view of frozen snapshots, one of each run, on a terminal or as plain lines."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Protocol

from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from harness.model import Snapshot, Snapshots, SubsetProgress

PLAIN_SECONDS = 5.0
COLUMNS = 80
"""Of a terminal that nobody has made wider, and of logs that people read."""

LONGEST_NAME = 17
"""Columns of a run's name where several are shown, so that what is told of it has room."""

SLOW_LOOP, SLOW_DISK = 0.1, 0.05
"""Seconds from which a late event loop and a slow write are worth a word."""

HELD = {"rate": "held by the rate", "pause": "the endpoint asked to wait", "outage": "outage: probing"}


class Display(Protocol):
    def __enter__(self) -> Callable[[Snapshots], None]: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


def display(console: Console) -> Display:
    """A live one where the console is a terminal that can move its cursor, plain lines elsewhere."""
    return LiveDisplay(console) if console.is_terminal and not console.is_dumb_terminal else PlainDisplay(console)


class LiveDisplay:
    def __init__(self, console: Console) -> None:
        self._live = Live(console=console, auto_refresh=False, transient=True)

    def __enter__(self) -> Callable[[Snapshots], None]:
        self._live.__enter__()
        return lambda snapshots: self._live.update(view(snapshots), refresh=True)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.__exit__(kind, error, trace)


class PlainDisplay:
    """A few lines at most every five seconds, and at the end."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._next = PLAIN_SECONDS
        self._last: Snapshots = ()

    def __enter__(self) -> Callable[[Snapshots], None]:
        return self._observe

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._last:
            self._print(self._last)

    def _observe(self, snapshots: Snapshots) -> None:
        self._last = snapshots
        if snapshots[0].seconds >= self._next:
            self._next = snapshots[0].seconds + PLAIN_SECONDS
            self._print(snapshots)

    def _print(self, snapshots: Snapshots) -> None:
        self._console.print(lines(snapshots), highlight=False, soft_wrap=True, markup=False)


def view(snapshots: Snapshots) -> RenderableType:
    """The whole display: a row a run and subset, then the traffic of each run, then what was last warned of."""
    alone = len(snapshots) == 1
    parts: list[RenderableType] = [Text(snapshots[0].model, style="bold")] if alone else []
    parts.append(_table(snapshots, alone))
    for snapshot in snapshots:
        if not alone:
            failed = sum(subset.failed for subset in snapshot.subsets)
            parts.append(Text(f"{snapshot.name}{f': {failed} users failed' if failed else ''}", style="bold"))
        parts.append(Text(folded(traffic(snapshot))))
        if snapshot.last_warning:
            warning = f"  last warning: {snapshot.last_warning}"
            parts.append(Text(warning[2:] if alone else warning, style="yellow", no_wrap=True, overflow="ellipsis"))
        if snapshot.stopping:
            parts.append(Text(f"stopping: {snapshot.stopping}; Ctrl-C again stops now", style="bold red"))
    return Group(*parts)


def _table(snapshots: Snapshots, alone: bool) -> Table:
    rows = [(snapshot.name, subset) for snapshot in snapshots for subset in snapshot.subsets]
    names = list(dict.fromkeys(name for _, subset in rows for name in subset.scores))
    table = Table(box=None, pad_edge=False, header_style="dim")
    if not alone:
        table.add_column("", overflow="ellipsis", no_wrap=True, max_width=LONGEST_NAME)
    table.add_column("", no_wrap=True, min_width=max(cell_len(subset.subset) for _, subset in rows))
    table.add_column("users", justify="right")
    table.add_column("", min_width=10 if alone else 5, ratio=1)
    table.add_column("steps", justify="right")
    for heading in (*(("failed", "scored") if alone else ()), *names):
        table.add_column(heading, justify="right")
    for run, subset in rows:
        table.add_row(
            *(() if alone else (run,)),
            subset.subset,
            f"{subset.done}/{subset.users}",
            ProgressBar(total=max(1, subset.steps), completed=subset.steps_done),
            f"{subset.steps_done}/{subset.steps}",
            *((str(subset.failed or ""), str(subset.scored_users)) if alone else ()),
            *(percent(subset.scores.get(name)) for name in names),
        )
    return table


def traffic(snapshot: Snapshot) -> list[str]:
    s, left = snapshot, eta(snapshot)
    return [
        f"in flight {concurrency(s)}, waiting {s.waiting}, backing off {s.backing_off}",
        speed(s.rate),
        f"{duration(s.seconds)} gone, {duration(left) if left is not None else '?'} to go",
        f"requests {s.requests}, retries {s.retries}, from saved {s.replayed}",
        f"tokens {count(s.prompt_tokens)} in, {count(s.completion_tokens)} out",
    ]


def eta(s: Snapshot) -> float | None:
    """Seconds to go: none where every user has ended, whatever the rate made of the last steps."""
    ended = all(subset.done + subset.failed >= subset.users for subset in s.subsets)
    return 0.0 if ended and not s.in_flight and not s.waiting else s.eta


def folded(parts: list[str]) -> str:
    """Parts with bars between them, on as few lines as hold them in `COLUMNS`; only a longer part has a longer line."""
    made = [parts[0]]
    for part in parts[1:]:
        joined = f"{made[-1]} | {part}"
        if cell_len(joined) <= COLUMNS:
            made[-1] = joined
        else:
            made.append(f"  {part}")
    return "\n".join(made)


def concurrency(s: Snapshot) -> str:
    """On the wire / admitted of requested, and why fewer are on the wire than are ready to go."""
    asked = "auto" if s.requested is None else s.requested
    of = f" of {asked}" if asked != s.limit else ""
    reasons = [HELD[s.held_by]] if s.held_by in HELD else []
    if s.outage:
        reasons.append(f"no answer for {duration(s.outage)}")
    if s.lag > SLOW_LOOP:
        reasons.append(f"busy loop {1e3 * s.lag:.0f} ms")
    if s.slowest_write > SLOW_DISK:
        reasons.append(f"slow disk {1e3 * s.slowest_write:.0f} ms")
    return f"{s.in_flight}/{s.limit}{of}{' (' + ', '.join(reasons) + ')' if reasons else ''}"


def lines(snapshots: Snapshots) -> str:
    """The display in a few lines, for logs."""
    told = [folded([*map(_subset_words, s.subsets), *traffic(s)]) for s in snapshots]
    if len(told) == 1:
        return told[0]
    return "\n".join(f"{snapshot.name}: {words}" for snapshot, words in zip(snapshots, told, strict=True))


def _subset_words(subset: SubsetProgress) -> str:
    scores = "".join(f" {name} {percent(value)}" for name, value in subset.scores.items())
    scores += f" over {subset.scored_users} users" if subset.scores else ""
    failed = f" ({subset.failed} failed)" if subset.failed else ""
    return f"{subset.subset} {subset.done}/{subset.users}{failed}{scores}"


def percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.2f}%"


def speed(rate: float) -> str:
    """Steps a second, or a minute where models are slow."""
    return f"{rate:.1f} steps/s" if rate >= 1 or not rate else f"{60 * rate:.1f} steps/min"


def count(number: int) -> str:
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.1f}{unit}"
    return str(number)


def duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
