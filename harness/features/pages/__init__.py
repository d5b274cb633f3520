"""Make pages of runs: a report with a sample of its users, in the browser (`report`; else `--no-html`)."""

from __future__ import annotations

import argparse

from harness.config import options
from harness.feature import Feature, Instead
from harness.store.manifest import Manifest

ALL = "all"
SAMPLE = 50
"""Users of a page, by default."""
REPORTING = frozenset({"run", "resume", "reeval", "merge"})
"""Commands that make reports."""


def _options(command: str, parser: argparse.ArgumentParser) -> None:
    if command in REPORTING:
        words = "write no page, nor does a later `resume` (`report` can make it at any time)"
        options.add(parser, "--no-html", words, dest="html", action="store_false")
    if command == "report":
        words = "show users' posts too: private data, share with care"
        options.add(parser, "--with-posts", words, action="store_true")
        words = f"users to show one by one (default: {SAMPLE}); `all` writes a second page with every user"
        options.add(parser, "--users N", words, type=_users)
        words = "where to write the page (default: with the report)"
        options.add(parser, "--out FILE.html", words, type=options.file_of(".html"))
        options.add_force(parser)


def _users(text: str) -> int | str:
    return text if text == ALL else options.whole(0, 1_000_000)(text)


def is_without(manifest: Manifest) -> bool:
    """Return whether a run was begun without pages."""
    return manifest.provenance.get("html") is False


FEATURE = Feature(
    "pages",
    options=_options,
    is_on=lambda args: not args.html,
    extension="harness.features.pages.extension:WithoutPages",
    again=is_without,
    instead=(Instead("report", lambda args: True, "harness.features.pages.command:execute"),),
    reported="harness.features.pages.command:reported",
)
