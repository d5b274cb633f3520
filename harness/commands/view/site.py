"""The pages of the viewer: content of what `reading` reads, as HTML that can be read without a
script.

Every text is escaped by the shared renderer. A page has at most about `PAGE_BYTES` of blocks; what
is longer is divided.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import chain, filterfalse, groupby, zip_longest
from typing import Any, TypeVar

import numpy as np
from markupsafe import Markup

from harness.benchmarks import registry
from harness.benchmarks.records import ODD_SHAPE
from harness.commands.view import overview
from harness.commands.view.reading import Folder, ViewedRun, stamp
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
SELECTING = ("q", "only", "outcome", "value", "least", "most")
"""Keys of queries that select users."""
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
        self.folder = folder
        self._link = link
        self._is_static = is_static
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

    def _selected(self, query: Query) -> tuple[ViewedRun, Content]:
        """Return the run that a query names, and what addresses about it have."""
        run = self.folder.run(value_of(query, "name"), value_of(query, "subset"))
        if run is None:
            raise NotThere("no such run")
        return run, {"name": run.name, "subset": run.subset}

    def _heads(
        self, view: str, columns: Mapping[str, str], query: Mapping[str, str]
    ) -> dict[tuple[str, str], str]:
        """Return the addresses that sort by a column, the largest first; a second time the smallest
        first."""
        sorted_down = query["sort"] if query["order"] == "down" else None
        links = dict[tuple[str, str], str]()
        for name, head in columns.items():
            order = "up" if name == sorted_down else "down"
            address = self._link(view, **{**query, "sort": name, "order": order})
            # Files cannot be sorted.
            links["", head] = "" if self._is_static else address
        return links

    def _overview(self, query: Query) -> Content:
        rows = [overview.listed(run) for run in self.folder.runs()]
        kinds = {}
        for name in ("benchmark", "subset", "state"):
            kinds[name] = sorted({getattr(row, name) for row in rows})
        chosen = _values(query, *kinds, "sort", "order")
        for name in kinds:
            if chosen[name]:
                rows = [row for row in rows if getattr(row, name) == chosen[name]]
        rows = overview.ordered(rows, chosen["sort"], chosen["order"] == "down")
        paging, shown = _paged(query, rows, RUNS)
        can_pick = len(rows) > 1 and not self._is_static
        tables = []
        for _, group in groupby(shown, key=overview.group):
            tables.append(self._run_table(list(group), chosen, can_pick))
        return {
            "title": f"{plural(len(rows), 'run')} in {self.folder.chosen.results}",
            "total": len(rows),
            "chosen": chosen,
            "kinds": kinds,
            "body": Markup().join(tables) or rendered([Paragraph("There is no run here.")]),
            "live": True,
            **paging,
        }

    def _run_table(
        self, rows: Sequence[overview.RunRow], chosen: Mapping[str, str], can_pick: bool
    ) -> Markup:
        """Return the table of runs of one benchmark and subset, with links to their pages."""
        table, heads = overview.table(rows)
        links = self._heads("", heads, chosen)
        for row in rows:
            about = {"name": row.name, "subset": row.subset}
            links[row.name, "run"] = self._link("run", **about)
            links[row.name, heads["users"]] = self._link("users", **about)
        pick = "compare" if can_pick else ""
        return rendered([table], links, pick=pick, sort=_sort(chosen, heads))

    def _run(self, query: Query) -> Content:
        run, about = self._selected(query)
        report = run.report_so_far
        snapshot = run.snapshot
        page = Page(f"{run.name}: {run.subset}", "", (), ())
        if report:
            page = _page_of(report, self.folder.chosen.posts)

        # What the report does not say of a run that has not ended.
        now: list[Block] = [Paragraph(f"{run.state} (model: {run.model or 'unknown'})")]
        if snapshot:
            page = replace(page, title=f"{run.name}: {run.subset}", warning="", tiles=())
        elif run.state == RUNNING:
            now.append(
                Paragraph("This run is being played, and its process gives no live figures here.")
            )
        elif not report:
            command = f"harness report --name {run.name}"
            now.append(Paragraph(f"This run has no report yet. `{command}` makes it."))

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
            **_content_part(query, [(block,) for block in page.blocks]),
        }

    def _users(self, query: Query) -> Content:
        run, about = self._selected(query)
        is_read = run.users.advance(math.inf if self._is_static else READ_SECONDS)
        run.failures.advance()
        chosen = _values(query, *SELECTING, "sort", "order")
        noun = run.user
        index = run.users
        row_of = run.row
        columns = run.cards.columns
        if chosen["only"] == "failed":
            noun = "failure"
            index = run.failures
            row_of = run.failed_row
            columns = ()
        numbers, decoded = _matching(run, index.searched(chosen["q"]), chosen)
        paging, shown = _paged(query, numbers, USERS)
        heads = {str(position): head for position, head in enumerate(columns)}
        links = self._heads("users", heads, about | chosen)
        rows = list[tuple[str, ...]]()
        for number, data in index.objects(shown):
            row = row_of(number, data)
            rows.append(row)
            if data and "user_id" in data:
                links[row[0], run.user] = self._link("user", **about, user=str(data["user_id"]))
        notes = _reading_notes(run.user, len(index), decoded, is_read, bool(chosen["sort"]))
        table = Table((run.user, "outcome", *columns), tuple(rows))
        title = plural(len(numbers), noun)
        if any(chosen[key] for key in SELECTING):
            title += " selected"
        return {
            "title": f"{title}: {run.name}, {run.subset}",
            "run": run,
            "about": about,
            "chosen": chosen,
            "body": rendered([*notes, table], links, sort=_sort(chosen, heads)),
            "live": run.state == RUNNING or bool(notes),
            **paging,
        }

    def _user(self, query: Query) -> Content:
        run, about = self._selected(query)
        key = value_of(query, "user")
        other_name = value_of(query, "with")
        runs = [run]
        about["user"] = key
        if other_name:
            other = self.folder.run(other_name, run.subset)
            if other is None or other.benchmark != run.benchmark:
                raise NotThere("no such run to compare with")
            runs.append(other)
            about["with"] = other_name
        rows = _side_by_side([shown.blocks_of(key) for shown in runs])
        if not rows:
            raise NotThere("no such user")

        near = ["", ""]  # the user before and the one after
        page = 1
        for number in run.users.numbers_of(key)[:1]:
            near = [run.users.key(number - 1), run.users.key(number + 1)]
            page = number // USERS + 1
        tasks = run.benchmark, run.subset
        others = list[str]()
        for other in self.folder.runs():
            if (other.benchmark, other.subset) == tasks and other.name != run.name:
                others.append(other.name)
        return {
            "title": key,
            "run": run,
            "about": about,
            "near": near,
            "from_page": page,
            "others": others,
            **_content_part(query, rows),
        }

    def _compare(self, query: Query) -> Content:
        names = list(dict.fromkeys(query.get("run", ())))[:COMPARED_RUNS]
        runs = [run for run in self.folder.runs() if run.name in names]
        blocks: Sequence[Block] = [Paragraph("Choose two or more runs in the overview.")]
        if len(names) > 1:
            missing = list(filterfalse({run.name for run in runs}.__contains__, names))
            if missing:
                raise NotThere(f"no run {missing[0]}")
            blocks = self._comparison(names, runs)
        return {
            "title": f"{', '.join(names)}: compared",
            "about": {"run": names},
            **_content_part(query, [(block,) for block in blocks]),
        }

    def _comparison(self, names: Sequence[str], runs: Sequence[ViewedRun]) -> Sequence[Block]:
        """Return the comparison of runs; of unchanged results the one that was made last."""
        if not all(registry.is_shipped(run.benchmark) for run in runs):
            why = "These runs need their benchmark's own code, which is not executed here:"
            command = Quote("Command", f"harness compare {' '.join(names)}", open=True)
            return [Paragraph(why), command]
        # A comparison takes seconds, and each of its parts is a page.
        state = (*names, *[stamp(run.files.results) for run in runs])
        if state != self._last[0]:
            self._last = state, _compared(self.folder, names)
        return self._last[1]


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


def _reading_notes(
    user: str, count: int, decoded: int | None, is_read: bool, is_ranked: bool
) -> list[Block]:
    """Return what a list of users says while it is not complete, nothing afterwards.

    `count` lines are read, `decoded` of them for a selection (None: without one).
    """
    notes = list[Block]()
    if decoded is not None and decoded < count:
        done = "ranked" if is_ranked else "looked at"
        text = f"Only the first {decoded:,} of {count:,} {user}s are {done} so far; more follow."
        notes.append(Paragraph(text))
    if not is_read:
        notes.append(Paragraph(f"{count:,} {user}s are read so far; the list grows."))
    return notes


def _matching(
    run: ViewedRun, numbers: Sequence[int], chosen: Mapping[str, str]
) -> tuple[Sequence[int], int | None]:
    """Return which lines of users are selected, in their order; and from how many lines, None for
    all. Failures have nothing to be selected by."""
    sort_column = _integer(chosen["sort"], -1)
    value_column = _integer(chosen["value"], -1)
    outcome = chosen["outcome"]
    is_repaired = chosen["only"] == "repaired"
    is_unfiltered = max(sort_column, value_column) < 0 and not outcome and not is_repaired
    if is_unfiltered or chosen["only"] == "failed":
        return numbers, None
    users = run.facts(READ_SECONDS)
    columns = range(len(run.cards.columns))
    low = _number(chosen["least"], -math.inf)
    high = _number(chosen["most"], math.inf)

    def is_selected(number: int) -> bool:
        if number >= len(users):
            return False
        user = users[number]
        if outcome and user.outcome != outcome:
            return False
        if is_repaired and not user.is_repaired:
            return False
        return value_column not in columns or low <= user.figures[value_column] <= high

    numbers = list(filter(is_selected, numbers))
    if sort_column in columns:
        figures = np.array([users[number].figures[sort_column] for number in numbers])
        if chosen["order"] == "down":
            figures = -figures
        # NaN, of a user without the figure, comes last in both orders.
        numbers = np.array(numbers, int)[np.argsort(figures, kind="stable")].tolist()
    return numbers, len(users)


def _side_by_side(sides: Sequence[Sequence[Block]]) -> list[Row]:
    """Return blocks in rows, one of each side. Those under headings of the same text are next to
    each other."""
    sections = [_sections(blocks) for blocks in sides]
    rows = list[Row]()
    for name in dict.fromkeys(chain.from_iterable(sections)):
        rows += zip_longest(*[side.get(name, ()) for side in sections])
    return rows


def _sections(blocks: Sequence[Block]) -> dict[tuple[str, int], list[Block]]:
    """Return the blocks below each heading, by its text and how many times that has come."""
    headings = Counter[str]()
    name = ("", 0)
    sections = dict[tuple[str, int], list[Block]]()
    for block in blocks:
        if isinstance(block, Heading):
            headings[block.text] += 1
            name = block.text, headings[block.text]
        sections.setdefault(name, []).append(block)
    return sections


def divided(rows: Sequence[Row]) -> list[list[Row]]:
    """Divide rows of blocks into pages of at most about `PAGE_BYTES`.

    What comes after `SHOWN_BYTES` of content and HTML together is left out, and a last block says
    so.
    """
    pages = list[list[Row]]([[]])
    page_bytes = 0
    bytes_left = SHOWN_BYTES
    for row in rows:
        bytes_left -= len(repr(row))  # before any time is spent on HTML
        if bytes_left < 0:
            pages[-1].append((MORE,) * len(row))
            break
        html = rendered([block for block in row if block])
        row_bytes = len(html.encode("utf-8", "replace"))
        if page_bytes + row_bytes > PAGE_BYTES and pages[-1]:
            pages.append([])
            page_bytes = 0
        pages[-1].append(row)
        page_bytes += row_bytes
        bytes_left -= row_bytes
    return pages


def _page_of(report: Report, posts: bool) -> Page:
    try:
        return report_page(report, posts=posts)
    except ODD_SHAPE:
        raise NotThere("a report of another shape") from None


# Queries


def value_of(query: Query, key: str) -> str:
    """Return the last value of a query's key, empty without one."""
    return query.get(key, [""])[-1]


def _values(query: Query, *keys: str) -> dict[str, str]:
    """Return the values of a query by these keys, empty without one."""
    return {key: value_of(query, key) for key in keys}


def _sort(chosen: Mapping[str, str], heads: Mapping[str, str]) -> tuple[str, str]:
    """Return the head of the column that rows are sorted by, empty for none, and the order."""
    order = "descending" if chosen["order"] == "down" else "ascending"
    return heads.get(chosen["sort"], ""), order


def _integer(text: str, default: int) -> int:
    if text.isascii() and text.isdigit() and len(text) < 10:
        return int(text)
    return default


def _number(text: str, default: float) -> float:
    try:
        return float(text or default)
    except ValueError:
        return default


def _page_number(query: Query, key: str, count: int) -> int:
    """Return the requested one of so many pages or parts, the first one by default."""
    number = _integer(value_of(query, key), 1)
    return min(max(1, number), count)


def _paged(query: Query, rows: Sequence[T], page_rows: int) -> tuple[Content, Sequence[T]]:
    """Return the number of the requested page and of all, and its rows."""
    pages = max(1, math.ceil(len(rows) / page_rows))
    page = _page_number(query, "page", pages)
    start = (page - 1) * page_rows
    return {"page": page, "pages": pages}, rows[start : start + page_rows]


def _content_part(query: Query, rows: Sequence[Row]) -> Content:
    """Return the requested part of rows of blocks, its number and that of all parts."""
    divisions = divided(rows)
    number = _page_number(query, "part", len(divisions))
    return {"rows": divisions[number - 1], "part": number, "parts": len(divisions)}
