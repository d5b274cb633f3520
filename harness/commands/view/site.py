"""The pages of the viewer: content of what `reading` reads, as HTML that can be read without a
script.

Every text is escaped by the shared renderer. A page has at most about `PAGE_BYTES` of blocks; what
is longer is divided.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import groupby, zip_longest
from typing import Any, TypeVar

import numpy as np
from markupsafe import Markup

from harness.benchmarks import registry
from harness.benchmarks.records import ODD_SHAPE
from harness.commands.view import overview
from harness.commands.view.reading import Folder, Viewed, stamp
from harness.cost import money_text
from harness.document import Block, Heading, Page, Paragraph, Quote, Table
from harness.errors import HarnessError
from harness.reporting.html import rendered, templates
from harness.reporting.report import page as report_page
from harness.scoring.reports import Report
from harness.store.manifest import RUNNING
from harness.ui import words
from harness.ui.words import plural

T = TypeVar("T")
Row = tuple[Block | None, ...]
USERS, RUNS = 50, 100
"""Rows of a page."""
PAGE_BYTES = 120_000
SHOWN_BYTES = 4_000_000
"""Of a report or user: far more than a run has, and a few seconds of work at most."""
MORE = Paragraph("More is not shown here: the run's files have it.")
COMPARED_RUNS = 4
READ_SECONDS = 0.15
"""CPU time in which users are read, and in which those to select from are decoded; a further look
goes on."""
Query = Mapping[str, Sequence[str]]
Content = dict[str, Any]
"""What the template is given."""
FIELDS = "run warning tiles snapshot now curves body rows chosen live near"
NOTHING: Content = dict.fromkeys(FIELDS.split())
NOTHING |= {"page": 1, "pages": 1, "part": 1, "parts": 1, "others": (), "about": {}}
Link = Callable[..., str]
"""Returns the address of a view, given its name and arguments; empty for one that there is not."""


class NotThere(Exception):
    """No such page."""


class Site:
    """The pages of a folder. `link` returns addresses; `is_static`: pages are files, without forms
    and scripts."""

    def __init__(self, folder: Folder, link: Link, *, is_static: bool = False) -> None:
        self.folder, self._link, self._is_static = folder, link, is_static
        self._last: tuple[tuple[object, ...], Sequence[Block]] = ((), ())
        self._views: Mapping[str, Callable[[Query], Content]] = {
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
        template = templates(__package__).get_template("view.html.j2")
        content = {**NOTHING, "view": view, "link": self._link, "is_static": self._is_static}
        content |= {"words": words, "money": money_text}
        return template.render(content | self._views[view](query)).encode("utf-8", "replace")

    def _selected(self, query: Query) -> tuple[Viewed, Content]:
        """Return the run that a query names, and what addresses about it have."""
        run = self.folder.run(value_of(query, "name"), value_of(query, "subset"))
        if run is None:
            raise NotThere("no such run")
        return run, {"name": run.name, "subset": run.subset}

    def _heads(
        self, view: str, columns: Mapping[str, str], query: Content
    ) -> dict[tuple[str, str], str]:
        """Return the addresses that sort by a column, the largest first; a second time the smallest
        first."""
        is_down = query.get("order") == "down"
        orders = {
            name: "up" if is_down and query.get("sort") == name else "down" for name in columns
        }
        sort = {name: {**query, "sort": name, "order": order} for name, order in orders.items()}
        return {
            ("", head): "" if self._is_static else self._link(view, **sort[name])
            for name, head in columns.items()
        }

    def _overview(self, query: Query) -> Content:
        rows = [overview.listed(run) for run in self.folder.runs()]
        kinds = {
            name: sorted({getattr(row, name) for row in rows})
            for name in ("benchmark", "subset", "state")
        }
        chosen = _given(query, *kinds, "sort", "order")
        rows = [
            row
            for row in rows
            if all(getattr(row, name) == chosen.get(name, getattr(row, name)) for name in kinds)
        ]
        rows = overview.ordered(rows, chosen.get("sort", ""), chosen.get("order") == "down")
        paging, shown = _paged(query, rows, RUNS)
        tables = list[Markup]()
        for _, group in groupby(shown, key=overview.group):
            table, heads = overview.table(mine := list(group))
            links = self._heads("", heads, chosen)
            for row in mine:
                links[row.name, "run"] = self._link("run", name=row.name, subset=row.subset)
                links[row.name, heads["users"]] = self._link(
                    "users", name=row.name, subset=row.subset
                )
            is_picked = len(rows) > 1 and not self._is_static
            sort = _sort(chosen, heads.get(chosen["sort"], ""))
            tables.append(rendered([table], links, pick="compare" if is_picked else "", sort=sort))
        title = f"{plural(len(rows), 'run')} in {self.folder.chosen.results}"
        return {
            "title": title,
            "total": len(rows),
            "chosen": chosen,
            "kinds": kinds,
            "body": Markup().join(tables) or rendered([Paragraph("There is no run here.")]),
            "live": True,
            **paging,
        }

    def _run(self, query: Query) -> Content:
        run, about = self._selected(query)
        report, snapshot = run.report_so_far, run.snapshot
        page = (
            _page_of(report, self.folder.chosen.posts)
            if report
            else Page(f"{run.name}: {run.subset}", "", (), ())
        )
        now: list[Block] = [Paragraph(f"{run.state} (model: {run.model or 'unknown'})")]
        if snapshot:
            page = replace(page, title=f"{run.name}: {run.subset}", warning="", tiles=())
        elif run.state == RUNNING:
            now.append(
                Paragraph("This run is being played, and its process gives no live figures here.")
            )
        elif not report:
            now.append(
                Paragraph(
                    f"This run has no report yet. `harness report --name {run.name}` makes it."
                )
            )
        others = [other.name for other in self.folder.runs() if other.benchmark == run.benchmark]
        return {
            "title": page.title,
            "run": run,
            "about": about,
            "warning": page.warning or run.problem,
            "tiles": page.tiles,
            "snapshot": snapshot,
            "progress": overview.progress_of(snapshot, run.subset) if snapshot else None,
            "now": rendered(now),
            "curves": rendered(run.curves()),
            "others": [name for name in dict.fromkeys(others) if name != run.name],
            "live": run.state == RUNNING,
            **_part(query, [(block,) for block in page.blocks]),
        }

    def _users(self, query: Query) -> Content:
        run, about = self._selected(query)
        is_read = run.users.advance(math.inf if self._is_static else READ_SECONDS)
        run.failures.advance()
        chosen = _given(query, "q", "only", "outcome", "value", "least", "most", "sort", "order")
        is_failed, decoded = chosen.get("only") == "failed", None
        index, columns = (run.failures, ()) if is_failed else (run.users, run.cards.columns)
        numbers: Sequence[int] = index.searched(chosen.get("q", ""))
        if not is_failed:
            numbers, decoded = _matching(run, numbers, chosen)
        paging, shown = _paged(query, numbers, USERS)
        heads = {str(at): head for at, head in enumerate(columns)}
        links = self._heads("users", heads, about | chosen)
        rows = list[tuple[str, ...]]()
        for number, data in index.objects(shown):
            row = run.failed_row(number, data) if is_failed else run.row(number, data)
            rows.append(row)
            if data and "user_id" in data:
                links[row[0], run.user] = self._link("user", **about, user=str(data["user_id"]))
        notes = list[Block]()
        if decoded is not None and decoded < len(index):
            what = "ranked" if "sort" in chosen else "looked at"
            notes.append(
                Paragraph(
                    f"Only the first {decoded:,} of {len(index):,} {run.user}s are {what} so far;"
                    " more follow."
                )
            )
        if not is_read:
            notes.append(Paragraph(f"{len(index):,} {run.user}s are read so far; the list grows."))
        title = plural(len(numbers), "failure" if is_failed else run.user)
        return {
            "title": (
                f"{title}{' selected' if chosen.keys() - {'sort', 'order'} else ''}: {run.name},"
                f" {run.subset}"
            ),
            "run": run,
            "about": about,
            "chosen": chosen,
            "body": rendered(
                [*notes, Table((run.user, "outcome", *columns), tuple(rows))],
                links,
                sort=_sort(chosen, heads.get(chosen["sort"], "")),
            ),
            "live": run.state == RUNNING or bool(notes),
            **paging,
        }

    def _user(self, query: Query) -> Content:
        run, about = self._selected(query)
        key, other = value_of(query, "user"), value_of(query, "with")
        sides = [run]
        if other:
            against = self.folder.run(other, run.subset)
            if against is None or against.benchmark != run.benchmark:
                raise NotThere("no such run to compare with")
            sides.append(against)
        rows = _side_by_side([side.blocks_of(key) for side in sides])
        if not rows:
            raise NotThere("no such user")
        numbers = run.users.numbers_of(key)
        near = [run.users.key(numbers[0] + step) if numbers else "" for step in (-1, 1)]
        same = [
            each
            for each in self.folder.runs()
            if each.subset == run.subset and each.benchmark == run.benchmark
        ]
        return {
            "title": key,
            "run": run,
            "about": {**about, "user": key, **({"with": other} if other else {})},
            "near": near,
            "from_page": numbers[0] // USERS + 1 if numbers else 1,
            "others": [each.name for each in same if each.name != run.name],
            **_part(query, rows),
        }

    def _compare(self, query: Query) -> Content:
        names = list(dict.fromkeys(query.get("run", ())))[:COMPARED_RUNS]
        compared = [run for run in self.folder.runs() if run.name in names]
        missing = {*names} - {run.name for run in compared}
        blocks: Sequence[Block] = [Paragraph("Choose two or more runs in the overview.")]
        if len(names) > 1 and missing:
            raise NotThere(f"no run {missing.pop()}")
        if len(names) > 1 and not all(registry.is_shipped(run.benchmark) for run in compared):
            why = "These runs need their benchmark's own code, which is not executed here:"
            blocks = [
                Paragraph(why),
                Quote("Command", f"harness compare {' '.join(names)}", open=True),
            ]
        elif len(names) > 1:
            state = (*names, *[stamp(run.files.results) for run in compared])
            if state != self._last[0]:
                self._last = state, _compared(self.folder, names)
            blocks = self._last[1]
        rows = [(block,) for block in blocks]
        return {
            "title": f"{', '.join(names)}: compared",
            "about": {"run": names},
            **_part(query, rows),
        }


def _compared(folder: Folder, names: Sequence[str]) -> list[Block]:
    """Return the comparison of runs as `compare` shows it, on its default number of swaps."""
    from harness.commands.compare import pairs
    from harness.reporting import comparison
    from harness.scoring.paired import RESAMPLES

    chosen = folder.chosen
    try:
        options = pairs.CompareOptions(names, chosen.results, chosen.tasks, (), False, None)
        return list(comparison.blocks(pairs.compared(options, RESAMPLES)))
    except HarnessError as error:
        return [Paragraph(str(error))]


# Users


def _matching(
    run: Viewed, numbers: Sequence[int], chosen: Mapping[str, str]
) -> tuple[Sequence[int], int | None]:
    """Return which lines of users are selected, in their order; and from how many lines, None for
    all."""
    by, value, outcome = (
        _whole(chosen, "sort", -1),
        _whole(chosen, "value", -1),
        chosen.get("outcome"),
    )
    is_repaired = chosen.get("only") == "repaired"
    if by < 0 and value < 0 and not outcome and not is_repaired:
        return numbers, None
    facts, columns = run.facts(READ_SECONDS), range(len(run.cards.columns))
    numbers = [number for number in numbers if number < len(facts)]
    if outcome:
        numbers = [number for number in numbers if facts[number].outcome == outcome]
    if is_repaired:
        numbers = [number for number in numbers if facts[number].is_repaired]
    if value in columns:
        low, high = _real(chosen, "least", -math.inf), _real(chosen, "most", math.inf)
        numbers = [number for number in numbers if low <= facts[number].figures[value] <= high]
    if by in columns:
        figures = np.array([facts[number].figures[by] for number in numbers])
        order = np.argsort(-figures if chosen.get("order") == "down" else figures, kind="stable")
        numbers = [numbers[at] for at in order]
    return numbers, len(facts)


def _side_by_side(sides: Sequence[Sequence[Block]]) -> list[Row]:
    """Return blocks in rows, one of each side. Those under headings of the same text are next to
    each other."""
    sections = [_sections(blocks) for blocks in sides]
    names = dict.fromkeys(name for side in sections for name in side)
    return [
        row for name in names for row in zip_longest(*(side.get(name, ()) for side in sections))
    ]


def _sections(blocks: Sequence[Block]) -> dict[tuple[str, int], list[Block]]:
    """Return the blocks below each heading, by its text and how many times that has come."""
    times, name = Counter[str](), ("", 0)
    sections = dict[tuple[str, int], list[Block]]()
    for block in blocks:
        if isinstance(block, Heading):
            times[block.text] += 1
            name = block.text, times[block.text]
        sections.setdefault(name, []).append(block)
    return sections


def divided(rows: Sequence[Row]) -> list[list[Row]]:
    """Divide rows of blocks into pages of at most about `PAGE_BYTES`.

    What comes after `SHOWN_BYTES` of content and HTML together is left out, and a last block says
    so.
    """
    parts, size, left = list[list[Row]]([[]]), 0, SHOWN_BYTES
    for row in rows:
        left -= len(repr(row))  # before any time is spent on HTML
        if left < 0:
            parts[-1].append(tuple(MORE for _ in row))
            break
        needed = len(rendered([block for block in row if block]).encode("utf-8", "replace"))
        if size + needed > PAGE_BYTES and parts[-1]:
            parts.append([])
            size = 0
        parts[-1].append(row)
        size += needed
        left -= needed
    return parts


def _page_of(report: Report, posts: bool) -> Page:
    try:
        return report_page(report, posts=posts)
    except ODD_SHAPE:
        raise NotThere("a report of another shape") from None


# Queries


def value_of(query: Query, key: str) -> str:
    """Return the last value of a query's key, empty without one."""
    return query.get(key, [""])[-1]


def _given(query: Query, *keys: str) -> defaultdict[str, str]:
    """Return the values of a query by these keys; all others are empty."""
    return defaultdict(str, {key: value for key in keys if (value := value_of(query, key))})


def _sort(chosen: Mapping[str, str], head: str) -> tuple[str, str]:
    return head, "descending" if chosen.get("order") == "down" else "ascending"


def _whole(values: Mapping[str, str], key: str, default: int) -> int:
    text = values.get(key, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else default


def _real(values: Mapping[str, str], key: str, default: float) -> float:
    try:
        return float(values.get(key) or default)
    except ValueError:
        return default


def _number(query: Query, key: str, count: int) -> int:
    """Return the requested one of so many pages or parts, the first one by default."""
    return min(max(1, _whole({key: value_of(query, key)}, key, 1)), count)


def _paged(query: Query, rows: Sequence[T], each: int) -> tuple[Content, Sequence[T]]:
    """Return the number of the requested page and of all, and its rows."""
    pages = max(1, -(-len(rows) // each))
    page = _number(query, "page", pages)
    return {"page": page, "pages": pages}, rows[(page - 1) * each : page * each]


def _part(query: Query, rows: Sequence[Row]) -> Content:
    """Return the requested part of rows of blocks, its number and that of all parts."""
    parts = divided(rows)
    number = _number(query, "part", len(parts))
    return {"rows": parts[number - 1], "part": number, "parts": len(parts)}
