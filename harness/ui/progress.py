"""Plain lines that show a running schedule."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from rich.cells import cell_len
from rich.console import Console

from harness.model import Snapshot, Snapshots, SubsetProgress
from harness.printable import on_one_line
from harness.ui import words
from harness.ui.cells import plain

PLAIN_SECONDS, LONGEST_PLAIN_SECONDS, PLAIN_SHARE = 5.0, 60.0, 1 / 12
"""Seconds between two entries in a log: at first, at most, and in between as a share of the time elapsed."""
COLUMNS = 80
"""Line length of logs."""
WARNINGS = 2
"""A run shows at most one fault, so the other line is a finding, if there is one."""
NOTHING = ("0 waiting", "0 backing off")
"""Left out of logs."""


class Display(Protocol):
    def __enter__(self) -> Callable[[Snapshots], None]: ...
    def __exit__(self, *error: object) -> None: ...


class PlainDisplay:
    """A few lines every five seconds, less often the longer the run takes, and at the end."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._next = PLAIN_SECONDS
        self._last: Snapshots = ()

    def __enter__(self) -> Callable[[Snapshots], None]:
        return self._observe

    def __exit__(self, *error: object) -> None:
        if self._last:
            self._print(self._last)

    def _observe(self, snapshots: Snapshots) -> None:
        self._last, gone = snapshots, snapshots[0].seconds
        if gone >= self._next:
            self._next = gone + min(LONGEST_PLAIN_SECONDS, max(PLAIN_SECONDS, PLAIN_SHARE * gone))
            self._print(snapshots)

    def _print(self, snapshots: Snapshots) -> None:
        made = lines(snapshots, self._console.encoding).split("\n")
        self._console.print(*made, sep="\n", highlight=False, soft_wrap=True, markup=False)


def lines(snapshots: Snapshots, encoding: str = "utf-8") -> str:
    """Return a few lines on each run, for logs; of a run that has ended while others continue, only its state."""
    some_go_on = not all(s.over for s in snapshots)
    paragraphs = [folded(list(map(on_one_line, _parts(s, encoding, short=s.over and some_go_on)))) for s in snapshots]
    if len(paragraphs) == 1:
        return paragraphs[0]
    return "\n".join([f"{on_one_line(s.name)}: {words}" for s, words in zip(snapshots, paragraphs, strict=True)])


def _parts(s: Snapshot, encoding: str, *, short: bool) -> list[str]:
    subsets = [_subset_words(subset) for subset in s.subsets]
    if short:
        return [*subsets, words.state(s)]
    labelled = (
        ("", words.in_flight(s)),
        ("", words.speed(s)),
        ("latency ", words.latency(s)[:1]),
        ("requests ", words.requests(s)),
        ("failed ", words.failures(s)),
        ("tokens ", words.tokens(s)),
        ("cost ", words.cost(s)),
    )
    texts = [(label, [part.text.strip() for part in parts if part.text not in NOTHING]) for label, parts in labelled]
    parts = [text for label, some in texts if some for text in (label + some[0], *some[1:])]
    warnings = [f"warning {plain(words.warned(one), encoding)}" for one in s.warnings[:WARNINGS]]
    return [*subsets, words.time(s), *parts, *warnings]


def folded(parts: list[str]) -> str:
    """Join parts with bars, on as few lines of `COLUMNS` as possible; only a longer part has a longer line."""
    made = [parts[0]]
    for part in parts[1:]:
        joined = f"{made[-1]} | {part}"
        if cell_len(joined) <= COLUMNS:
            made[-1] = joined
        else:
            made.append(f"  {part}")
    return "\n".join(made)


def _subset_words(subset: SubsetProgress) -> str:
    scores = "".join(f" {name} {words.figure(value, subset.units.get(name))}" for name, value in subset.scores.items())
    scores += f" over {words.plural(subset.scored_users, 'user')}" if subset.scores else ""
    failed = f" ({subset.failed} failed)" if subset.failed else ""
    return f"{subset.subset} {subset.done}/{subset.users}{failed}{scores}"
