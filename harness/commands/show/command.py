"""`show`: print a user of a run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from harness.analysis import selection
from harness.analysis.saved_runs import SavedRun
from harness.commands.show import users
from harness.commands.show.users import ShowOptions
from harness.document import Block, Quote, Verbatim
from harness.errors import BadInput, in_brief
from harness.option import command_options, option, whole
from harness.options import options
from harness.reporting.cards import cut
from harness.reporting.text import rendered
from harness.ui.console import console
from harness.ui.streams import show

LISTED = 20
"""Users in the list, by default."""
LONG = 2000
"""Characters of a text that are shown unless all are wanted."""
# Narrower than this a table has a word or two a line.
NARROWEST = 40


@command_options
class Options(options.Earlier):
    examples: ClassVar[Sequence[str]] = (
        "harness show gpt-4o-mini",
        "harness show gpt-4o-mini 1234567890",
        "harness show gpt-4o-mini 1234567890 --with-posts --full | less",
    )
    run: str = options.run_option()
    model: str | None = None
    user: str | None = option(None, "key of a user (default: list the first ones)", position="USER")
    platform: Sequence[str] | None = options.platform_option("one subset; may be repeated")
    with_posts: bool = option(
        False, "show users' posts, and the prompts that quote them: private data, share with care"
    )
    full: bool = option(
        False, "show every request, and each text whole, however long", per_command=True
    )
    limit: int = option(
        LISTED,
        f"users in the list (default: {LISTED})",
        check=whole(1, 1_000_000),
        per_command=True,
    )

    @property
    def runs(self) -> list[str]:
        return [self.run]


def execute(args: Options) -> int:
    runs, skipped = selection.find(args)
    if not runs and not skipped:
        raise selection.nothing_found(args)
    printed, code = selection.each(runs, lambda run: _print(run, args))
    # With several subsets the user need not be in each of them.
    if args.user and printed and not any(printed):
        raise BadInput(
            f"{args.run} has no user {in_brief(args.user)}: `harness show {args.run}` lists the"
            " first ones"
        )
    return max(skipped, code)


def _print(run: SavedRun, args: Options) -> bool:
    """Print a user of a run, or its first users; return whether there was anything to print."""
    chosen = ShowOptions(args.full, args.with_posts, args.tasks_dir, args.results_dir)
    if args.user:
        blocks = users.user_blocks(run, chosen, args.user)
    else:
        blocks = list(users.first_users(run, chosen, args.limit))
    if not args.full:
        blocks = [cut(block, "--full shows them", LONG) for block in blocks]
    if blocks:
        width = max(console().width, NARROWEST)
        show(rendered([_in_lines(block) for block in blocks], width))
    return bool(blocks)


def _in_lines(block: Block) -> Block:
    """Return a quoted text in its own lines, below its label."""
    if isinstance(block, Quote):
        return Verbatim(f"[{block.label}]\n{block.text}")
    return block
