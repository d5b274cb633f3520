"""`view`: serve the runs of a folder to a browser of this machine, or write them as files."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from threading import Event
from typing import ClassVar

from harness.commands.view.export import write
from harness.commands.view.reading import Chosen
from harness.commands.view.server import serving
from harness.errors import BadInput
from harness.option import command_options, folder, option, whole
from harness.options import options
from harness.ui.streams import show
from harness.ui.words import plural

MAX_PORT = 65535
EXPORTED_USERS = 200
"""Users of each run that are written, by default."""


@command_options
class Options(options.ResultsFolder, options.Forced):
    examples: ClassVar[Sequence[str]] = (
        "harness view",
        "harness view --results-dir shared/results --port 8080",
        "harness view --export site",
    )
    tasks_dir: Path | None = option(
        None,
        "where the runs' tasks are now (default: where they were); needed for posts of runs that"
        " others made",
        unit="DIR",
        read=folder,
    )
    with_posts: bool = option(
        False,
        "show users' posts, and the prompts that quote them: private data, share with care",
        everyday=True,
    )
    port: int = option(
        0,
        "port on this machine, 0 for any free one (default: 0)",
        check=whole(0, MAX_PORT),
        per_command=True,
        everyday=True,
    )
    export: Path | None = option(
        None,
        "write the pages into a new folder instead, as files to host",
        unit="DIR",
        once=True,
        everyday=True,
    )
    users: int = option(
        EXPORTED_USERS,
        f"users of each run that --export writes (default: {EXPORTED_USERS})",
        check=whole(0, 1_000_000),
        per_command=True,
    )


def execute(args: Options) -> int:
    if not args.results_dir.is_dir():
        raise BadInput(
            f"no folder {args.results_dir}: name the folder of the runs with --results-dir"
        )
    chosen = Chosen(args.results_dir, args.with_posts, args.tasks_dir)
    if args.export is None:
        _serve(chosen, args.port)
    else:
        number = write(chosen, args.export, args.users, force=args.force)
        show(f"{plural(number, 'page')}: {args.export / 'index.html'}")
    return 0


def _serve(chosen: Chosen, port: int) -> None:
    with serving(chosen, port) as address, suppress(KeyboardInterrupt):
        show(f"{address}\nOnly who has this address sees the runs. Ctrl-C ends it.")
        # The server has a thread of its own; this one waits for Ctrl-C.
        Event().wait()
