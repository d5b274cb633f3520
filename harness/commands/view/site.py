"""The pages of the viewer, made of what `reading` reads: HTML that can be read without a script.

Nothing of a run is markup: every text is escaped, and characters that control a terminal or the reading direction are
shown as escapes. A page has at most about `PAGE_MOST` bytes; what is longer is divided.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import zip_longest
from typing import Any, TypeVar

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape
from msgspec import UnsetType, structs

from harness.benchmarks import registry, rendering
from harness.benchmarks.records import ODD_SHAPE
from harness.commands.view.index import Facets
from harness.commands.view.reading import UNREADABLE, Folder, Viewed, failure_blocks, stamp
from harness.cost import money_text
from harness.document import Block, Chart, Heading, Page, Paragraph, Quote, Sketch, Tile, cell_text
from harness.errors import HarnessError
from harness.model import JSON, Snapshot, SubsetProgress
from harness.printable import in_lines, on_one_line
from harness.reporting import report as overview
from harness.reporting.charts import drawn
from harness.reporting.report import page as report_page
from harness.scoring.reports import Report
from harness.ui import words
from harness.ui.words import plural

T = TypeVar("T")
USERS, RUNS = 50, 100
"""Rows of a page."""
PAGE_MOST = 120_000
"""Bytes of blocks on a page."""
SHOWN_MOST = 4_000_000
"""Bytes of blocks on all pages of a report or user: far more than a run has, and a few seconds of work at most."""
MORE = Paragraph("More is not shown here: the run's files have it.")
TEXT_MOST = 20_000
"""Characters of a text that are shown."""
COMPARED_MOST = 4
READ_SECONDS = 0.15
"""CPU time in which users are read, and in which those to select from are decoded; a further look goes on."""
Query = Mapping[str, Sequence[str]]
Link = Callable[..., str]
"""Returns the address of a view, given its name and arguments; empty for one that there is not."""


class NotThere(Exception):
    """No such page."""


Cells = dict[str, tuple[str, Any]]
"""By column a cell's text, and the value that the column is sorted by, None for none."""


@dataclass(frozen=True, slots=True)
class Row:
    """A run in the overview. `order` are the values that its columns are sorted by."""

    run: Viewed
    cells: Mapping[str, str]
    order: Mapping[str, Any]


COLUMNS = (
    *("run", "subset", "state", "users", "score", "to go", "speed", "cost"),
    *("invalid", "failed", "model", "benchmark"),
)
DESCENDING = frozenset({"users", "score", "invalid", "cost", "speed", "failed"})
"""Columns that are first sorted with the largest on top."""


class Site:
    """The pages of a folder. `link` returns addresses; `is_static`: pages are files, without forms and scripts."""

    def __init__(self, folder: Folder, link: Link, *, is_static: bool = False) -> None:
        self.folder = folder
        self._given = {"link": link, "is_static": is_static}
        self._last: tuple[tuple[Any, ...], list[Block]] = ((), [])
        self._views: Mapping[str, Callable[[Query], str]] = {
            "": self._overview,
            "run": self._run,
            "users": self._users,
            "user": self._user,
            "compare": self._compare,
        }

    def page(self, view: str, query: Query) -> bytes:
        """Return a page. Raise `NotThere`."""
        if view not in self._views:
            raise NotThere(view)
        return self._views[view](query).encode("utf-8", "replace")

    def _render(self, template: str, **given: object) -> str:
        return templates().get_template(f"{template}.html.j2").render(**self._given, **given)

    def _named(self, query: Query) -> Viewed:
        if (run := self.folder.run(one(query, "name"), one(query, "subset"))) is None:
            raise NotThere("no such run")
        return run

    # Overview

    def _overview(self, query: Query) -> str:
        rows = [_row(run) for run in self.folder.runs()]
        kinds = {name: sorted({row.cells[name] for row in rows}) for name in ("benchmark", "subset", "state")}
        wanted = {name: value for name in kinds if (value := one(query, name))}
        rows = [row for row in rows if all(row.cells[name] == value for name, value in wanted.items())]
        by = one(query, "sort") if one(query, "sort") in COLUMNS else "score"
        down = (one(query, "order") or ("down" if by in DESCENDING else "up")) == "down"
        rows = _sorted(rows, by, down)
        shown, page, pages = _paged(query, rows, RUNS)
        there = [name for name in COLUMNS if any(row.cells[name] for row in shown) or name in ("run", "state")]
        return self._render(
            "overview",
            rows=shown,
            columns=there,
            by=by,
            down=down,
            descending=DESCENDING,
            kinds=kinds,
            wanted=wanted,
            page=page,
            pages=pages,
            total=len(rows),
            folder=str(self.folder.chosen.results),
        )

    # One run

    def _run(self, query: Query) -> str:
        run = self._named(query)
        report, snapshot = run.report_so_far, run.snapshot
        made = _page_of(report, self.folder.chosen.posts) if report else Page("", "", (), ())
        title, warning, tiles = made.title or f"{run.name}: {run.subset}", made.warning or run.problem, made.tiles
        if snapshot:
            title, warning, tiles = f"{run.name}: {run.subset}", run.problem, live_tiles(snapshot, run.subset)
        others = [one for one in self.folder.runs() if one.benchmark == run.benchmark and one.name != run.name]
        return self._render(
            "run",
            run=run,
            title=title,
            warning=warning,
            tiles=tiles,
            snapshot=snapshot,
            lines=live_lines(snapshot) if snapshot else (),
            curves=run.curves(),
            others=list(dict.fromkeys(one.name for one in others)),
            **_part(query, made.blocks),
        )

    # Users

    def _users(self, query: Query) -> str:
        run = self._named(query)
        indexed = run.users.advance(math.inf if self._given["is_static"] else READ_SECONDS)
        run.failures.advance()
        failed, searched = one(query, "only") == "failed", one(query, "q")
        facets, whole = None, True
        if failed:
            numbers: Sequence[int] = run.failures.searched(searched) if searched else range(len(run.failures))
        else:
            numbers, facets, whole = _selected(run, query)
        chosen, page, pages = _paged(query, numbers, USERS)
        keys = ("q", "only", "outcome", "sort", "order", "value", "least", "most")
        kept = {key: one(query, key) for key in keys if one(query, key)}
        index = run.failures if failed else run.users
        return self._render(
            "users",
            run=run,
            columns=() if failed else run.columns,
            rows=[_user_row(run, number, data, failed) for number, data in index.objects(chosen)],
            failed=failed,
            page=page,
            pages=pages,
            total=len(numbers),
            whole=whole and indexed,
            read=len(run.users if facets is None else facets),
            outcomes=facets.outcomes() if facets else {},
            kept=kept,
            by=one(query, "sort"),
            down=one(query, "order") == "down",
        )

    def _user(self, query: Query) -> str:
        run, key = self._named(query), one(query, "user")
        sides = [run]
        if other := one(query, "with"):
            against = self.folder.run(other, run.subset)
            if against is None or against.benchmark != run.benchmark:
                raise NotThere("no such run to compare with")
            sides.append(against)
        rows = _side_by_side([_shown_of(side, key) for side in sides])
        if not rows:
            raise NotThere("no such user")
        numbers = run.users.numbers_of(key)
        near = {name: run.users.key(numbers[0] + step) if numbers else "" for name, step in (("prev", -1), ("next", 1))}
        others = [one for one in self.folder.runs() if one.subset == run.subset and one.benchmark == run.benchmark]
        return self._render(
            "user",
            run=run,
            key=key,
            sides=sides,
            near=near,
            page=(numbers[0] // USERS + 1) if numbers else 1,
            others=[one.name for one in others if one.name != run.name],
            other=other,
            **_part(query, rows),
        )

    # Comparison

    def _compare(self, query: Query) -> str:
        names = list(dict.fromkeys(query.get("run", ())))[:COMPARED_MOST]
        every = self.folder.runs()
        there = {run.name: run for run in every}
        blocks: list[Block] = []
        if len(names) < 2:
            blocks = [Paragraph("Choose two or more runs in the overview.")]
        elif unknown := [name for name in names if name not in there]:
            raise NotThere(f"no run {unknown[0]}")
        elif not all(registry.is_shipped(run.benchmark) for run in every if run.name in names):
            command = f"harness compare {' '.join(names)}"
            why = "These runs need their benchmark's own code, which is not executed here:"
            blocks = [Paragraph(why), Quote("Command", command, open=True)]
        else:
            blocks = self._comparison(names, [run for run in every if run.name in names])
        return self._render("compare", names=names, **_part(query, blocks))

    def _comparison(self, names: Sequence[str], compared: Sequence[Viewed]) -> list[Block]:
        """Return a comparison, the last one again while its results are the same."""
        now = (*names, *[stamp(run.files.results) for run in compared])
        if now != self._last[0]:
            self._last = now, _compared(self.folder, names)
        return self._last[1]


def _compared(folder: Folder, names: Sequence[str]) -> list[Block]:
    """Return the comparison of runs as `compare` shows it, on its default number of swaps."""
    from harness.commands.compare import blocks, paired, pairs

    chosen = folder.chosen
    try:
        asked = pairs.CompareOptions(names, chosen.results, chosen.tasks, (), False, None)
        return list(blocks.blocks(pairs.compared(asked, paired.RESAMPLES)))
    except HarnessError as error:
        return [Paragraph(str(error))]


# Rows


def _row(run: Viewed) -> Row:
    report, snapshot = run.report, run.snapshot
    state = "unreadable" if run.problem and not (run.manifest or report) else run.state
    about = {"run": run.name, "benchmark": run.benchmark, "subset": run.subset, "model": run.model, "state": state}
    users, done, failed = _counted(run, report, snapshot)
    cells: Cells = {name: (text, text) for name, text in about.items()}
    cells |= {"users": (f"{done}/{users}" if users else str(done), done), "failed": (str(failed or ""), failed)}
    if snapshot:
        cells |= _live(snapshot, run.subset)
    elif report:
        cells |= _reported(report)
    shown = {name: cells.get(name, ("", None)) for name in COLUMNS}
    return Row(run, {name: text for name, (text, _) in shown.items()}, {name: by for name, (_, by) in shown.items()})


def _counted(run: Viewed, report: Report | None, snapshot: Snapshot | None) -> tuple[int, int, int]:
    """Return how many users a run has, how many are done, and how many have failed."""
    if snapshot:
        of = _of_subset(snapshot, run.subset)
        return of.users, of.done, of.failed
    if report:
        return report.coverage.expected_users, report.coverage.scored_users, report.coverage.failed_users
    counts: JSON = {**run.manifest.counts} if run.manifest else {}
    done = counts.get("done")
    if not isinstance(done, int) or run.state != "stopped":
        run.users.advance()
        done = len(run.users)
    return counts.get("users", 0), done, counts.get("failed", 0)


def _of_subset(snapshot: Snapshot, subset: str) -> SubsetProgress:
    return next(one for one in snapshot.subsets if one.subset == subset)


def _reported(report: Report) -> Cells:
    try:
        metric = report.units[report.headline[0]]
        of = report.ranking(metric)
    except ODD_SHAPE:
        return {}
    interval = f" {rendering.spanned(metric, of)}" if of.ci95 else ""
    order = None if of.value is None else -of.value if metric.lower_is_better else of.value
    cells: Cells = {"score": (f"{metric.name} {overview.with_unit(metric, of.value)}{interval}", order)}
    invalid, answers = sum(report.diagnostics.invalid.values()), report.diagnostics.answers
    if answers:
        cells["invalid"] = f"{100 * invalid / answers:.1f} %", invalid / answers
    if not isinstance(report.cost, UnsetType) and report.cost.money:
        cells["cost"] = money_text([report.cost.money]), float(report.cost.money.amount)
    seconds = (report.schedule or {}).get("seconds")
    if isinstance(seconds, int | float) and seconds > 0:
        cells["speed"] = f"{answers / seconds:.3g}/s", answers / seconds
    return cells


def _live(snapshot: Snapshot, subset: str) -> Cells:
    of, amount = _of_subset(snapshot, subset), float(sum(one.amount for one in snapshot.cost))
    unusable, refused = (sum(number for _, number in kinds) for kinds in (snapshot.unusable, snapshot.faults))
    failed = str(of.failed or ""), f"{plural(refused, 'try', 'tries')} failed" if refused else ""
    scores = ((f"{name} {words.figure(value, of.units.get(name))} so far", value) for name, value in of.scores.items())
    return {
        "score": next(scores, ("", None)),
        "speed": (words.pace(snapshot.rate), snapshot.rate),
        "cost": (money_text(snapshot.cost), amount if snapshot.cost else None),
        "to go": (words.state(snapshot), snapshot.eta),
        "invalid": (f"{unusable} replies" if unusable else "", unusable),
        "failed": ("; ".join(filter(None, failed)), of.failed),
    }


def _sorted(rows: Sequence[Row], by: str, down: bool) -> list[Row]:
    """Return rows by a column, those without a value last; scores within their benchmark and subset."""
    known = [row for row in rows if row.order[by] is not None]
    ordered = sorted(known, key=lambda row: row.order[by], reverse=down)
    if by == "score":
        ordered.sort(key=lambda row: (row.cells["benchmark"], row.cells["subset"]))
    return [*ordered, *[row for row in rows if row.order[by] is None]]


def live_tiles(snapshot: Snapshot, subset: str) -> tuple[Tile, ...]:
    """Return the running figures of a run that is being played."""
    of = _of_subset(snapshot, subset)
    over = f"over {plural(of.scored_users, 'user')} so far"
    tiles = [Tile(name, words.figure(value, of.units.get(name)), over) for name, value in of.scores.items()]
    tiles.append(Tile("users done", str(of.done), f"of {of.users}" + (f", {of.failed} failed" if of.failed else "")))
    tiles.append(Tile("steps", str(of.steps_done), f"of {of.steps}"))
    tiles.append(Tile("speed", words.pace(snapshot.rate), words.time(snapshot)))
    if snapshot.cost:
        expected = f"about {money_text(snapshot.projected_cost)} at the end" if snapshot.projected_cost else ""
        tiles.append(Tile("cost", money_text(snapshot.cost), expected))
    return tuple(tiles)


def live_lines(snapshot: Snapshot) -> list[tuple[str, str]]:
    """Return what the dashboard shows of a run's traffic."""
    pieces = (
        ("load", words.in_flight(snapshot)),
        ("speed", words.speed(snapshot)),
        ("latency", words.latency(snapshot)),
        ("requests", words.requests(snapshot)),
        ("failed", words.failures(snapshot)),
        ("tokens", words.tokens(snapshot)),
    )
    lines = [(label, " | ".join(piece.text.strip() for piece in of if piece.text)) for label, of in pieces]
    return [line for line in lines if line[1]] + [("warning", words.warned(one)) for one in snapshot.warnings]


def _selected(run: Viewed, query: Query) -> tuple[Sequence[int], Facets | None, bool]:
    """Return the numbers of the lines of users that a query selects, in their order; what they were selected by, and
    whether all users are read."""
    searched = run.users.searched(one(query, "q")) if one(query, "q") else None
    by, value = _whole(query, "sort", -1), _whole(query, "value", -1)
    if not (one(query, "outcome") or one(query, "only") or by >= 0 or value >= 0):
        return (range(len(run.users)) if searched is None else searched), None, True
    facets, whole = run.facets(READ_SECONDS)
    chosen = np.ones(len(facets), np.bool_)
    if outcome := one(query, "outcome"):
        chosen &= facets.having(outcome)
    if one(query, "only") == "repaired":
        chosen &= facets.repaired
    if 0 <= value < len(run.columns):
        with np.errstate(invalid="ignore"):
            values = facets.values(value)
            chosen &= values >= _real(query, "least", -math.inf)
            chosen &= values <= _real(query, "most", math.inf)
    if searched is not None:
        wanted = np.zeros(len(facets), np.bool_)
        wanted[[number for number in searched if number < len(facets)]] = True
        chosen &= wanted
    numbers = np.flatnonzero(chosen)
    if 0 <= by < len(run.columns):
        values = facets.values(by)[numbers]
        keys = -values if one(query, "order") == "down" else values
        numbers = numbers[np.argsort(keys, kind="stable")]
    return numbers.tolist(), facets, whole


def _user_row(run: Viewed, number: int, data: JSON | None, failed: bool) -> Mapping[str, Any]:
    """Return a row of the list of users: its key, repeat, outcome and figures."""
    key = str(data.get("user_id", "")) if data else ""
    repeat = data.get("repeat") if data and run.repeats > 1 else None
    if failed:
        why = f"{data.get('boundary')}: {data.get('kind')}" if data else UNREADABLE
        return {"key": key, "repeat": repeat, "outcome": why, "figures": (), "repaired": False}
    outcome, repaired, _ = run.described(data)
    figures = run.figures(data) if data else ("",) * len(run.columns)
    name = key or f"line {number + 1}"
    return {"key": key, "name": name, "repeat": repeat, "outcome": outcome, "figures": figures, "repaired": repaired}


def _shown_of(run: Viewed, key: str) -> list[Block]:
    """Return the blocks of all records and failures of a user."""
    run.users.advance()
    run.failures.advance()
    blocks = list[Block]()
    for _, data in run.users.objects(run.users.numbers_of(key)):
        if data is None:
            blocks.append(Paragraph("A line about this user is damaged, or too long to be shown."))
        else:
            repeat = f" (repeat {data['repeat']})" if run.repeats > 1 and "repeat" in data else ""
            figures = " · ".join(map(" ".join, zip(run.columns, run.figures(data), strict=False)))
            blocks += [Heading(f"{key}{repeat}"), Paragraph(figures), *run.blocks(data)]
    for _, data in run.failures.objects(run.failures.numbers_of(key)):
        blocks += failure_blocks(data) if data else []
    return [*map(_cut, blocks)]


def _cut(block: Block) -> Block:
    if isinstance(block, Quote) and len(block.text) > TEXT_MOST:
        more = len(block.text) - TEXT_MOST
        words = f"{block.text[:TEXT_MOST]}\n… ({more} more characters: `harness show --full` shows them)"
        return structs.replace(block, text=words)
    return block


def _side_by_side(sides: Sequence[Sequence[Block]]) -> list[tuple[Block | None, ...]]:
    """Return blocks in rows, one of each side. Those under headings of the same text are next to each other."""
    segments = [_segments(blocks) for blocks in sides]
    names = dict.fromkeys(name for of in segments for name in of)
    return [row for name in names for row in zip_longest(*(of.get(name, ()) for of in segments))]


def _segments(blocks: Sequence[Block]) -> dict[tuple[str, int], list[Block]]:
    """Return the blocks below each heading, by its text and how many times that has come."""
    times, name = Counter[str](), ("", 0)
    found: dict[tuple[str, int], list[Block]] = {name: []}
    for block in blocks:
        if isinstance(block, Heading):
            times[block.text] += 1
            name = block.text, times[block.text]
        found.setdefault(name, []).append(block)
    return found


# Blocks as HTML


def divided(rows: Sequence[Any]) -> list[list[Any]]:
    """Divide blocks, or rows of them, into pages of at most about `PAGE_MOST` bytes.

    What comes after `SHOWN_MOST` bytes, of content and HTML together, is left out, and a last block says so.
    """
    macro = templates().get_template("blocks.html.j2").module.block  # type: ignore[attr-defined]
    parts, size, left = list[list[Any]]([[]]), 0, SHOWN_MOST
    for row in rows:
        blocks = row if isinstance(row, tuple) else (row,)
        left -= len(repr(blocks))  # before any time is spent on HTML
        if left < 0:
            parts[-1].append(tuple(MORE for _ in row) if isinstance(row, tuple) else MORE)
            break
        html = "".join(str(macro(block)) for block in blocks if block is not None)
        needed = len(html.encode("utf-8", "replace"))
        if size + needed > PAGE_MOST and parts[-1]:
            parts.append([])
            size = 0
        parts[-1].append(row)
        size += needed
        left -= needed
    return parts


@cache
def templates() -> Environment:
    made = Environment(
        loader=PackageLoader(__package__, "assets"),
        auto_reload=False,
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {
        "line": lambda text: on_one_line(str(text)),
        "lines": lambda text: in_lines(str(text)),
        "kind": lambda block: type(block).__name__,
        "drawn": _drawn,
    }
    made.filters["celltext"] = cell_text
    return made


def _drawn(block: Chart | Sketch) -> Markup:
    try:
        return drawn(block)
    except ODD_SHAPE:
        return Markup("<p class='note'>{}</p>").format(escape("This picture cannot be drawn."))


def _page_of(report: Report, posts: bool) -> Any:
    try:
        return report_page(report, posts=posts)
    except ODD_SHAPE:
        raise NotThere("a report of another shape") from None


# Queries


def one(query: Query, key: str) -> str:
    """Return the last value of a query's key, empty without one."""
    values = query.get(key)
    return values[-1] if values else ""


def _whole(query: Query, key: str, without: int) -> int:
    text = one(query, key)
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else without


def _real(query: Query, key: str, without: float) -> float:
    try:
        return float(one(query, key) or without)
    except ValueError:
        return without


def _paged(query: Query, rows: Sequence[T], each: int) -> tuple[Sequence[T], int, int]:
    """Return the rows of the page that is asked for, its number, and that of all pages."""
    pages = max(1, -(-len(rows) // each))
    page = min(max(1, _whole(query, "page", 1)), pages)
    return rows[(page - 1) * each : page * each], page, pages


def _part(query: Query, blocks: Sequence[Any]) -> dict[str, Any]:
    """Return the part that is asked for of blocks, or of rows of them, as templates take it."""
    parts = divided(blocks)
    part = min(max(1, _whole(query, "part", 1)), len(parts))
    return {"blocks": parts[part - 1], "part": part, "parts": len(parts)}
