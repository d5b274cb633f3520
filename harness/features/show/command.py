"""`show`: print a user of a run."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator

from harness.analysis import selection
from harness.analysis.saved_runs import SavedRun
from harness.config import options
from harness.errors import BadInput, in_brief
from harness.features.show import users
from harness.features.show.users import ShowOptions
from harness.model import Block, Quote, Verbatim
from harness.report.text import rendered
from harness.ui.console import console
from harness.ui.streams import show

LISTED = 20
"""Users in the list, by default."""
LONG = 2000
"""Characters of a text that are shown unless all are wanted."""
NARROWEST = 40

EXAMPLES = (
    "harness show gpt-4o-mini",
    "harness show gpt-4o-mini 1234567890",
    "harness show gpt-4o-mini 1234567890 --with-posts --full | less",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", type=options.folder_name, metavar="RUN", help="name of the run")
    words = "key of a user (default: list the first ones)"
    parser.add_argument("user", nargs="?", type=options.filled, metavar="USER", help=words)
    options.add_platform(parser, "one subset; may be repeated")
    words = "show users' posts, and the prompts that quote them: private data, share with care"
    options.add(parser, "--with-posts", words, action="store_true")
    words = "show every request, and each text whole, however long"
    options.add(parser, "--full", words, action="store_true")
    words = f"users in the list (default: {LISTED})"
    options.add(parser, "--limit N", words, type=options.whole(1, 1_000_000), default=LISTED)
    options.add_earlier(parser)


def execute(args: argparse.Namespace) -> int:
    named = argparse.Namespace(**{**vars(args), "runs": [args.run], "model": None})
    found, skipped = selection.find(named)
    if not found and not skipped:
        raise selection.nothing_found(named)
    printed, code = selection.each(found, lambda run: _print(run, args), lambda run: run.label)
    if args.user and printed and not any(printed):
        raise BadInput(f"{args.run} has no user {in_brief(args.user)}: `harness show {args.run}` lists the first ones")
    return max(skipped, code)


def _print(run: SavedRun, args: argparse.Namespace) -> bool:
    """Print a user of a run, or its first users; return whether there was anything to print."""
    chosen = ShowOptions(args.full, args.with_posts, args.tasks_dir, args.results_dir)
    blocks = users.of_user(run, chosen, args.user) if args.user else users.first(run, chosen, args.limit)
    if blocks:
        show(rendered(list(_with_lines(blocks, args.full)), max(console().width, NARROWEST)))
    return bool(blocks)


def _with_lines(blocks: Iterable[Block], whole: bool) -> Iterator[Block]:
    """Yield blocks with quoted texts in their own lines, below their label."""
    for block in blocks:
        if isinstance(block, Quote):
            more = 0 if whole else max(0, len(block.text) - LONG)
            rest = f"\n… ({more} more characters: --full shows them)" if more else ""
            text = block.text[: len(block.text) - more]
            yield Verbatim(f"[{block.label}]\n{text}{rest}")
        else:
            yield block
