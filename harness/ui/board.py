"""The live display: a view of frozen snapshots, one of each run, that fits any terminal.

With enough room each run has a row per subset and a paragraph on its traffic; with less, one line on its traffic; with
less still, one row per run. What does not fit is dropped by its worth, and runs that have ended first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.segment import Segment
from rich.text import Text

from harness.cost import money_text, together
from harness.model import Snapshot, Snapshots, SubsetProgress
from harness.ui import table, words
from harness.ui.cells import to_left
from harness.ui.screen import Screen
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
    while len(lines) > max(1, room):
        least = min(line.worth for line in lines)
        lines.pop(max(place for place, line in enumerate(lines) if line.worth == least))
    for line in lines:
        line.text.truncate(screen.width)
    return [line.text for line in lines]


def _laid_out(snapshots: Snapshots, screen: Screen, room: int) -> list[Line]:
    """Return as much on each run as there is room for."""
    if len(snapshots) == 1:
        return _detailed(snapshots, screen, _paragraph)
    for traffic, least in ((_paragraph, PARAGRAPH), (_summary, 1)):
        if sum([1 + len(s.subsets) + (0 if s.over else least) for s in snapshots]) <= room:
            lines = [*_detailed(snapshots, screen, traffic), *_together(snapshots, screen)]
            if len(lines) + WARNINGS <= room:
                return lines
    return _rows(snapshots, screen)


def _detailed(snapshots: Snapshots, screen: Screen, traffic: Callable[[Snapshot, Screen], list[Line]]) -> list[Line]:
    """Return title, subsets and traffic of each run; columns are equally wide in all."""
    alone, lines = len(snapshots) == 1, list[Line]()
    parts = [[*s.subsets, _total(s.subsets)] if len(s.subsets) > 1 else list(s.subsets) for s in snapshots]
    every = [one for some in parts for one in some]
    names = [screen.plain(one.subset) for one in every]
    columns = [*_progress_columns(names, every, 3), *_figure_columns(every, screen)]
    heading, *rows = table.rows(screen, columns, list(map(_share, every)))
    for run, subsets in zip(snapshots, parts, strict=True):
        head = [] if lines else [Line(heading, MATTERS)]
        lines += [Line(_title(run, screen, alone), STAYS), *head]
        lines += [Line(rows.pop(0), MATTERS) for _ in subsets]
        if len(subsets) > 1:
            lines[-1] = replace(lines[-1], worth=STAYS if alone else HELPS)
        if run.stopping:
            reason = f"stopped: {run.stopping}" if run.over else f"stopping: {run.stopping}; Ctrl-C again stops now"
            lines.append(Line(Text(screen.cut(screen.plain(reason), screen.width), style="bold red", end=""), STAYS))
        if alone or not run.over:
            lines += traffic(run, screen)
    return lines


def _rows(snapshots: Snapshots, screen: Screen) -> list[Line]:
    """Return a row per run (ended ones are dropped first) and the totals; rows that do not fit become one line."""
    heading, *rows = _runs_table(snapshots, screen)
    lines = [Line(row, MATTERS if s.over else STAYS) for row, s in zip(rows, snapshots, strict=True)]
    room = max(1, screen.height - 3)
    if len(lines) > screen.height - 3:
        order = sorted(range(len(snapshots)), key=lambda number: (snapshots[number].over, number))
        hidden = [snapshots[number] for number in order[room - 1 :]]
        done = sum([words.state(s) == "done" for s in hidden])
        rest = f"and {words.plural(len(hidden), 'more run')}, {done} done"
        lines = [lines[number] for number in sorted(order[: room - 1])] + [Line(Text(rest, style="dim"), STAYS)]
    return [Line(heading, MATTERS), *lines, *_together(snapshots, screen)]


def _total(subsets: Sequence[SubsetProgress]) -> SubsetProgress:
    counts = ("users", "done", "failed", "steps", "steps_done")
    return SubsetProgress("all", **{name: sum([getattr(subset, name) for subset in subsets]) for name in counts})


def _progress_columns(names: Sequence[str], of: Sequence[SubsetProgress], failed_worth: int) -> list[Column]:
    """Return names, users, bar, steps and failed users of subsets or of runs."""

    def counts(heading: str, worth: int, pairs: Sequence[tuple[int, int]]) -> Column:
        digits = len(str(max([whole for _, whole in pairs])))
        return Column(heading, [f"{done}/{whole}" for done, whole in pairs], worth, 2 * digits + 1)

    return [
        Column("", names, 9, left=True),
        counts("users", 8, [(one.done, one.users) for one in of]),
        Column(BAR, (), 0),
        counts("steps", 1, [(one.steps_done, one.steps) for one in of]),
        Column("failed", [str(one.failed or "") for one in of], failed_worth, style="red"),
    ]


def _figure_columns(subsets: Sequence[SubsetProgress], screen: Screen) -> list[Column]:
    """Return running figures, and over how many users they are."""

    def figure(subset: SubsetProgress, name: str) -> str:
        return words.figure(subset.scores[name], subset.units.get(name)) if name in subset.scores else ""

    names = dict.fromkeys(name for subset in subsets for name in subset.scores)
    over = "over users" if screen.width >= WIDE else "scored"
    columns = [
        Column(name, [figure(subset, name) for subset in subsets], 7 - min(place, 2), 7)
        for place, name in enumerate(names)
    ]
    return [*columns, Column(over, [str(subset.scored_users or "") for subset in subsets], 4)]


def _share(subset: SubsetProgress) -> float:
    return subset.steps_done / subset.steps if subset.steps else 1.0


def _runs_table(snapshots: Snapshots, screen: Screen) -> list[Text]:
    totals = [_total(s.subsets) for s in snapshots]
    room = min(MOST_NAME, max(LEAST_NAME, screen.width // 4))
    names = [screen.cut(screen.plain(s.name), room) for s in snapshots]
    are_single = max([len(s.subsets) for s in snapshots]) == 1
    columns = [
        *_progress_columns(names, totals, 5),
        Column("in flight", [str(s.in_flight) for s in snapshots], 4),
        Column("steps/s", [f"{s.rate:.2f}" if s.rate < 10 else f"{s.rate:.1f}" for s in snapshots], 2, 7),
        *(_figure_columns([s.subsets[0] for s in snapshots], screen) if are_single else ()),
        *([Column("cost", [money_text(s.cost) for s in snapshots], 3)] if any(s.cost for s in snapshots) else ()),
        Column("to go", [words.state(s) for s in snapshots], 8, 8),
    ]
    return table.rows(screen, columns, list(map(_share, totals)))


def _title(s: Snapshot, screen: Screen, alone: bool) -> Text:
    """Return the run on the left (a single one by its model, too) and its time on the right."""
    right = words.time(s) if not s.over else words.state(s)
    by_model = s.model if s.model.endswith(s.name) else f"{s.model} as {s.name}"
    name = screen.plain(by_model if alone else s.name)
    room = max(1, screen.width - len(right) - 2)
    line = Text(to_left(screen.cut(name, room), room), style="bold", no_wrap=True, end="")
    return line.append("  ").append(right, "not bold")


def _paragraph(s: Snapshot, screen: Screen) -> list[Line]:
    parts = (
        ("load", words.in_flight(s), MATTERS),
        ("speed", words.speed(s), MATTERS),
        ("latency", words.latency(s), GOES),
        ("requests", words.requests(s), HELPS),
        ("failed", words.failures(s), MATTERS),
        ("tokens", words.tokens(s), HELPS),
        ("cost", words.cost(s), HELPS),
        ("at risk", _at_risk(s), GOES),
    )
    return [line for label, of, worth in parts for line in _joined(to_left(label, LABEL), of, screen, worth)]


def _at_risk(s: Snapshot) -> list[Piece]:
    """Return what would be lost if this process, or this machine, stopped now."""
    digits = len(str(max(s.limit, s.requested or 0)))
    repeated = f"{s.in_flight:>{digits}} to repeat" if s.in_flight else "nothing"
    risk = s.at_risk
    if risk.synced:
        unsynced = f"last {1e3 * risk.seconds:.0f} ms, {words.plural(risk.users, 'user')}"
    else:
        unsynced = (
            f"last {words.duration(risk.seconds)}, at most {words.plural(risk.users, 'user')}"
            if risk.seconds
            else "nothing"
        )
    return [Piece(f"if killed: {repeated}", 21 + digits), Piece(f"by power loss: {unsynced}")]


def _summary(s: Snapshot, screen: Screen) -> list[Line]:
    of = f" ({'auto' if s.requested is None else f'of {s.requested}'})" if s.requested != s.limit else ""
    parts = [
        *([Piece(f"{s.in_flight}/{s.limit}{of} in flight", 22)] if not s.load else words.load(s)),
        Piece(words.pace(s.rate), 12),
        Piece("" if s.latency is None else f"p50 {words.brief(s.latency[0])}", 10),
        Piece(words.tokens_of(s.prompt_tokens, s.completion_tokens), 25),
        Piece(money_text(s.cost)),
    ]
    troubles = words.held_back(s) + ([words.tries_failed(s, 1)] if s.faults else [])
    troubles += [words.answers_unusable(s, 1)] if s.unusable else []
    yellow = [Piece(trouble, style="yellow") for trouble in troubles]
    return [*_joined("", parts, screen, HELPS), *_joined("", yellow, screen, HELPS)]


def _together(snapshots: Snapshots, screen: Screen) -> list[Line]:
    """Return the totals of all runs."""
    running = [s for s in snapshots if not s.over]
    into, out = (sum([getattr(s, name) for s in snapshots]) for name in ("prompt_tokens", "completion_tokens"))
    parts = [
        Piece(f"{words.plural(len(snapshots), 'run')}, {len(snapshots) - len(running)} ended"),
        Piece(f"{sum([s.in_flight for s in running])} in flight", 12),
        Piece(words.pace(sum([s.rate for s in running])), 12),
        Piece(words.tokens_of(into, out)),
        Piece(money_text(together(one for s in snapshots for one in s.cost))),
    ]
    return _joined("", parts, screen, HELPS)


def _joined(label: str, parts: list[Piece], screen: Screen, worth: int) -> list[Line]:
    """Join parts with bars, on as few lines as possible; only a part longer than a line is cut."""
    indent = cell_len(label) or 2
    room = max(1, screen.width - indent)
    lines, used = list[Text](), 0
    for part in [part for part in parts if part.text]:
        wide = max(part.room, cell_len(part.text))
        if lines and used + len(BAR_BETWEEN) + wide <= room:
            lines[-1].append(BAR_BETWEEN, "dim")
            used += len(BAR_BETWEEN) + wide
        else:
            lines.append(Text(no_wrap=True, end="").append(to_left("" if lines else label, indent), "dim"))
            used = wide
        lines[-1].append(to_left(screen.cut(screen.plain(part.text), room), part.room), part.style)
    for line in lines:
        line.rstrip()
    return [Line(line, worth) for line in lines]


def _warnings(snapshots: Snapshots, screen: Screen) -> list[Line]:
    """Return the latest warnings of all runs, the newest first."""
    recent = [(warned, f"{s.name}: " if len(snapshots) > 1 else "") for s in snapshots for warned in s.warnings]
    recent.sort(key=lambda one: one[0].age)
    made: list[Line] = []
    for warned, run in recent[: WARNINGS + len(snapshots) - 1]:
        label = to_left("" if made else "warnings", LABEL)
        sentence = words.warned(replace(warned, text=f"{run}{warned.text}"))
        text = Text(no_wrap=True, end="").append(label, "dim")
        text.append(screen.cut(screen.plain(sentence), max(1, screen.width - LABEL)), "yellow")
        made.append(Line(text, GOES if made else HELPS))
    return made
