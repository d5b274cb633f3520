"""Make pages of runs: a report with a sample of its users, in the browser (`report`; else `--no-html`)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from harness.errors import in_brief
from harness.feature import Feature, Instead
from harness.option import file_of, option, whole
from harness.options.options import Forced
from harness.store.manifest import Manifest

ALL = "all"
SAMPLE = 50
"""Users of a page, by default."""
REPORTING = frozenset({"run", "resume", "reeval", "merge"})
"""Commands that make reports."""


def _users(text: str) -> int | str:
    if text == ALL:
        return ALL
    fits, expected = whole(0, 1_000_000)
    if not (text.isdecimal() and fits(int(text[:9]))):
        raise ValueError(f"expected {expected}, or `{ALL}`, got {in_brief(text)}")
    return int(text)


@dataclass(frozen=True)
class Pages:
    """Whether pages are written: `Pages(html=False)` writes none."""

    html: bool = option(
        True, "write no page, nor does a later `resume` (`report` can make it at any time)", everyday=True
    )


@dataclass(frozen=True)
class Page(Forced):
    """What `report` shows on the page of a run, and where it is written."""

    with_posts: bool = option(False, "show users' posts too: private data, share with care")
    users: int | str | None = option(
        None,
        f"users to show one by one (default: {SAMPLE}); `{ALL}` writes a second page with every user",
        unit="N",
        read=_users,
    )
    out: Path | None = option(
        None, "where to write the page (default: with the report)", unit="FILE.html", read=file_of(".html")
    )


def is_without(manifest: Manifest) -> bool:
    """Return whether a run was begun without pages."""
    return manifest.provenance.get("html") is False


class _Pages(Feature):
    def again(self, manifest: Manifest) -> bool:
        return is_without(manifest)


FEATURE = _Pages(
    "pages",
    needs=("documents",),
    options={Pages: REPORTING, Page: ("report",)},
    extension="harness.commands.without_pages:WithoutPages",
    instead=(Instead("report", lambda args: True, "harness.commands.report_pages:execute"),),
    reported="harness.commands.report_pages:reported",
)
