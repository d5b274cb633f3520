"""The live display: a view of frozen snapshots, one of each run, that fits any terminal.

With enough room each run has a row per subset and a paragraph on its traffic; with less, one line on its traffic; with
less still, one row per run. What does not fit is dropped by its worth, and runs that have ended first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.segment import Segment
from rich.text import Text

from harness.model import Snapshot, Snapshots, SubsetProgress, Warned
from harness.ui import table, words
from harness.ui.cells import Screen, to_left
from harness.ui.table import BAR, Column
from harness.ui.words import Piece

LABEL = 10
"""Cells in front of a run's traffic."""

BAR_BETWEEN = " | "
WARNINGS = 3
"""And one more for each further run: a run shows at most one fault, so at least two lines are findings."""

PARAGRAPH = 6
"""Fewest lines on a run's traffic."""

WIDE = 100
"""Columns from which headings are spelled out."""

LEAST_NAME, MOST_NAME = 12, 30
"""Widest name of a run in its row, in cells: on narrow screens and on wide ones."""


@dataclass(frozen=True, slots=True)
class Line:
    """A line of the board; those of the least worth are dropped first."""

    text: Text
    worth: int


STAYS, MATTERS, HELPS, GOES = 4, 3, 2, 1


class Board:
    """What rich draws; `widths` are the cells of the lines that it drew last."""

    def __init__(self, snapshots: Snapshots) -> None:
        self._snapshots = snapshots
        self.widths: list[int] = []

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        screen = Screen(options.max_width, options.size.height, console.encoding)
        lines = view(self._snapshots, screen)
        self.widths = [line.cell_len for line in lines]
        for number, line in enumerate(lines):
            yield from line.render(console)
            if number < len(lines) - 1:
                yield Segment.line()


def view(snapshots: Snapshots, screen: Screen) -> list[Text]:
    """Return the whole display within the screen's lines and columns; the last line stays free."""
    room = screen.height - 1
    lines = [*_laid_out(snapshots, screen, room), *_warnings(snapshots, screen)]
    return [_cropped(line.text, screen) for line in _fitted(lines, room)]


def _laid_out(snapshots: Snapshots, screen: Screen, room: int) -> list[Line]:
    """Return as much on each run as there is room for."""
    if len(snapshots) == 1:
        return _full(snapshots, screen)
    for layout, least in ((_full, PARAGRAPH), (_short, 1)):
        if sum([1 + len(s.subsets) + (0 if s.over else least) for s in snapshots]) <= room:
            lines = layout(snapshots, screen)
            if len(lines) + WARNINGS <= room:
                return lines
    return _rows(snapshots, screen)


def _fitted(lines: list[Line], room: int) -> list[Line]:
    while len(lines) > max(1, room):
        least = min(line.worth for line in lines)
        lines.pop(max(place for place, line in enumerate(lines) if line.worth == least))
    return lines


def _cropped(text: Text, screen: Screen) -> Text:
    if text.cell_len > screen.width:
        text.truncate(screen.width)
    return text


def _full(snapshots: Snapshots, screen: Screen) -> list[Line]:
    """Return everything about each run."""
    alone = len(snapshots) == 1
    return [
        line
        for block in _blocks(snapshots, screen)
        for line in (*block.head, *(_paragraph(block.run, screen) if alone or not block.run.over else ()))
    ]


def _short(snapshots: Snapshots, screen: Screen) -> list[Line]:
    """Return the subsets of each run, and a line or two on its traffic."""
    return [line for block in _blocks(snapshots, screen) for line in (*block.head, *_summary(block.run, screen))]


def _rows(snapshots: Snapshots, screen: Screen) -> list[Line]:
    """Return a row per run (ended ones are dropped first) and the totals."""
    heading, *rows = _runs_table(snapshots, screen)
    lines = [Line(heading, MATTERS)]
    lines += [Line(row, MATTERS if s.over else STAYS) for row, s in zip(rows, snapshots, strict=True)]
    spare = screen.height - 2 - len(lines)
    if spare < 0:
        lines = _folded_rows(lines, snapshots, screen)
    return [*lines, *(replace(line, worth=HELPS) for line in _together(snapshots, screen))]


def _folded_rows(lines: list[Line], snapshots: Snapshots, screen: Screen) -> list[Line]:
    """Return as many rows as fit, and a line on the rest."""
    room = max(1, screen.height - 3)
    order = sorted(range(len(snapshots)), key=lambda number: (snapshots[number].over, number))
    shown = sorted(order[: room - 1])
    hidden = [snapshots[number] for number in order[room - 1 :]]
    done = sum([words.state(s) == "done" for s in hidden])
    rest = f"and {words.plural(len(hidden), 'more run')}, {done} done"
    return [lines[0], *(lines[1 + number] for number in shown), Line(Text(rest, style="dim"), STAYS)]


@dataclass(frozen=True, slots=True)
class _Block:
    run: Snapshot
    head: list[Line]


def _blocks(snapshots: Snapshots, screen: Screen) -> Iterator[_Block]:
    """Yield title and rows of each run; columns are equally wide in all."""
    counted = [(s, [*s.subsets, _total(s.subsets)] if len(s.subsets) > 1 else list(s.subsets)) for s in snapshots]
    heading, *rows = table.rows(screen, *_subset_columns([one for _, some in counted for one in some], screen))
    place = 0
    for number, (run, subsets) in enumerate(counted):
        lines = [Line(row, MATTERS) for row in rows[place : place + len(subsets)]]
        if len(subsets) > 1:
            lines[-1] = replace(lines[-1], worth=HELPS if len(snapshots) > 1 else STAYS)
        place += len(subsets)
        head = [Line(_title(run, screen, alone=len(snapshots) == 1), STAYS)]
        yield _Block(run, [*head, *([] if number else [Line(heading, MATTERS)]), *lines, *_end(run, screen)])


def _total(subsets: Sequence[SubsetProgress]) -> SubsetProgress:
    return SubsetProgress(
        "all",
        users=sum([subset.users for subset in subsets]),
        done=sum([subset.done for subset in subsets]),
        failed=sum([subset.failed for subset in subsets]),
        steps=sum([subset.steps for subset in subsets]),
        steps_done=sum([subset.steps_done for subset in subsets]),
    )


def _subset_columns(subsets: list[SubsetProgress], screen: Screen) -> tuple[list[Column], list[float]]:
    users, steps = max([subset.users for subset in subsets]), max([subset.steps for subset in subsets])
    columns = [
        Column("", [screen.plain(subset.subset) for subset in subsets], 9, left=True),
        Column("users", [f"{subset.done}/{subset.users}" for subset in subsets], 8, 2 * len(str(users)) + 1),
        Column(BAR, (), 0),
        Column("steps", [f"{subset.steps_done}/{subset.steps}" for subset in subsets], 1, 2 * len(str(steps)) + 1),
        Column("failed", [str(subset.failed or "") for subset in subsets], 3, style="red"),
        *_figure_columns(subsets, screen),
    ]
    return columns, [_share(subset) for subset in subsets]


def _figure_columns(subsets: Sequence[SubsetProgress], screen: Screen) -> list[Column]:
    """Running figures, and over how many users they are."""
    figures = list(dict.fromkeys(name for subset in subsets for name in subset.scores))
    over = "over users" if screen.width >= WIDE else "scored"
    columns = [
        Column(name, [_figure(subset, name) for subset in subsets], 7 - min(place, 2), 7)
        for place, name in enumerate(figures)
    ]
    return [*columns, Column(over, [str(subset.scored_users or "") for subset in subsets], 4)]


def _figure(subset: SubsetProgress, name: str) -> str:
    return words.figure(subset.scores[name], subset.units.get(name)) if name in subset.scores else ""


def _share(subset: SubsetProgress) -> float:
    return subset.steps_done / subset.steps if subset.steps else 1.0


def _runs_table(snapshots: Snapshots, screen: Screen) -> list[Text]:
    totals = [_total(s.subsets) for s in snapshots]
    users, steps = max([one.users for one in totals]), max([one.steps for one in totals])
    room = min(MOST_NAME, max(LEAST_NAME, screen.width // 4))
    names = [screen.cut(screen.plain(s.name), room) for s in snapshots]
    columns = [
        Column("", names, 9, left=True),
        Column("users", [f"{one.done}/{one.users}" for one in totals], 8, 2 * len(str(users)) + 1),
        Column(BAR, (), 0),
        Column("steps", [f"{one.steps_done}/{one.steps}" for one in totals], 1, 2 * len(str(steps)) + 1),
        Column("failed", [str(one.failed or "") for one in totals], 5, style="red"),
        Column("in flight", [str(s.in_flight) for s in snapshots], 4),
        Column("steps/s", [f"{s.rate:.2f}" if s.rate < 10 else f"{s.rate:.1f}" for s in snapshots], 2, 7),
        *(
            _figure_columns([s.subsets[0] for s in snapshots], screen)
            if max(len(s.subsets) for s in snapshots) == 1
            else ()
        ),
        Column("to go", [words.state(s) for s in snapshots], 8, 8),
    ]
    return table.rows(screen, columns, [_share(one) for one in totals])


def _title(s: Snapshot, screen: Screen, alone: bool) -> Text:
    """The run on the left, its time on the right."""
    right = words.time(s) if not s.over else words.state(s)
    name = screen.plain(_names(s) if alone else s.name)
    room = max(1, screen.width - len(right) - 2)
    line = Text(to_left(screen.cut(name, room), room), style="bold", no_wrap=True, end="")
    return line.append("  ").append(right, "not bold")


def _names(s: Snapshot) -> str:
    """Return the model's name, and the run's where it differs."""
    return s.model if s.model.endswith(s.name) else f"{s.model} as {s.name}"


def _end(s: Snapshot, screen: Screen) -> list[Line]:
    if not s.stopping:
        return []
    reason = f"stopped: {s.stopping}" if s.over else f"stopping: {s.stopping}; Ctrl-C again stops now"
    return [Line(Text(screen.cut(screen.plain(reason), screen.width), style="bold red", end=""), STAYS)]


def _paragraph(s: Snapshot, screen: Screen) -> list[Line]:
    return [
        *_labelled("load", words.in_flight(s), screen, MATTERS),
        *_labelled("speed", words.speed(s), screen, MATTERS),
        *_labelled("latency", words.latency(s), screen, GOES),
        *_labelled("requests", words.requests(s), screen, HELPS),
        *_labelled("failed", words.failures(s), screen, MATTERS),
        *_labelled("tokens", words.tokens(s), screen, HELPS),
        *_labelled("at risk", words.at_risk(s), screen, GOES),
    ]


def _summary(s: Snapshot, screen: Screen) -> list[Line]:
    of = f" of {'auto' if s.requested is None else s.requested}" if s.requested != s.limit else ""
    flight = Piece(f"{s.in_flight}/{s.limit}{of} in flight", 22)
    half = Piece("" if s.latency is None else f"p50 {words.brief(s.latency[0])}", 10)
    tokens = Piece(f"{words.count(s.prompt_tokens)} in, {words.count(s.completion_tokens)} out", 18)
    parts = [flight, Piece(words.pace(s.rate), 15), half, tokens]
    troubles = [Piece(reason, style="yellow") for reason in words.held_back(s)]
    if s.faults:
        troubles.append(Piece(words.tries_failed(s, 1), style="yellow"))
    if s.over:
        return []
    return [*_joined("", parts, screen, HELPS), *_joined("", troubles, screen, HELPS)]


def _together(snapshots: Snapshots, screen: Screen) -> list[Line]:
    """Return the totals of runs that have one row each."""
    running = [s for s in snapshots if not s.over]
    into, out = (sum([getattr(s, name) for s in snapshots]) for name in ("prompt_tokens", "completion_tokens"))
    parts = [
        Piece(f"{len(snapshots) - len(running)} of {words.plural(len(snapshots), 'run')} ended"),
        Piece(f"{sum([s.in_flight for s in running])} in flight", 14),
        Piece(words.pace(sum([s.rate for s in running])), 15),
        Piece(f"{words.count(into)} in, {words.count(out)} out"),
    ]
    return _joined("", parts, screen, HELPS)


def _labelled(label: str, parts: list[Piece], screen: Screen, worth: int) -> list[Line]:
    """Return labelled lines, none for no parts."""
    return _joined(to_left(label, LABEL), parts, screen, worth) if parts else []


def _joined(label: str, parts: list[Piece], screen: Screen, worth: int) -> list[Line]:
    """Join parts with bars, on as few lines as possible; only a part longer than a line is cut."""
    indent = cell_len(label) or 2
    room = max(1, screen.width - indent)
    lines: list[list[Piece]] = []
    used = 0
    for part in [part for part in parts if part.text]:
        wide = max(part.room, cell_len(part.text))
        if lines and used + len(BAR_BETWEEN) + wide <= room:
            lines[-1].append(part)
            used += len(BAR_BETWEEN) + wide
        else:
            lines.append([part])
            used = wide
    return [
        Line(_line(to_left(label if not place else "", indent), some, room, screen), worth)
        for place, some in enumerate(lines)
    ]


def _line(label: str, parts: list[Piece], room: int, screen: Screen) -> Text:
    line = Text(no_wrap=True, end="").append(label, "dim")
    for place, part in enumerate(parts):
        line.append(BAR_BETWEEN if place else "", "dim")
        line.append(to_left(screen.cut(screen.plain(part.text), room), part.room), part.style)
    line.rstrip()
    return line


def _warnings(snapshots: Snapshots, screen: Screen) -> list[Line]:
    """Return the latest warnings of all runs, the newest first."""
    recent: list[tuple[Warned, str]] = [
        (warned, f"{s.name}: " if len(snapshots) > 1 else "") for s in snapshots for warned in s.warnings
    ]
    recent.sort(key=lambda one: one[0].age)
    made: list[Line] = []
    for warned, run in recent[: WARNINGS + len(snapshots) - 1]:
        label = to_left("" if made else "warnings", LABEL)
        sentence = words.warned(warned.age, f"{run}{warned.text}", warned.times)
        text = Text(no_wrap=True, end="").append(label, "dim")
        text.append(screen.cut(screen.plain(sentence), max(1, screen.width - LABEL)), "yellow")
        made.append(Line(text, GOES if made else HELPS))
    return made
