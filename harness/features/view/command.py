"""`view`: serve the runs of a folder to a browser of this machine, or write them as files."""

from __future__ import annotations

import argparse
import signal
from pathlib import Path

import anyio

from harness import defaults
from harness.config import options
from harness.errors import BadInput
from harness.features.view.export import write
from harness.features.view.reading import Chosen
from harness.features.view.server import serving
from harness.ui.streams import show
from harness.ui.words import plural

PORT_MOST = 65535
EXPORTED = 200
"""Users of each run that are written, by default."""
EXAMPLES = ("harness view", "harness view --results-dir shared/results --port 8080", "harness view --export site")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    words = "where the runs' tasks are now (default: where they were); needed for posts of runs that others made"
    options.add(parser, "--tasks-dir DIR", words, type=options.folder)
    words = "default: results"
    options.add(parser, "--results-dir DIR", words, type=options.folder, default=defaults.RESULTS_FOLDER)
    words = "show users' posts, and the prompts that quote them: private data, share with care"
    options.add(parser, "--with-posts", words, action="store_true")
    words = "port on this machine, 0 for any free one (default: %(default)s)"
    options.add(parser, "--port N", words, type=options.whole(0, PORT_MOST), default=0)
    words = "write the pages into a new folder instead, as files to host"
    options.add(parser, "--export DIR", words, type=Path)
    words = f"users of each run that --export writes (default: {EXPORTED})"
    options.add(parser, "--users N", words, type=options.whole(0, 1_000_000), default=EXPORTED)
    options.add_force(parser)


def execute(args: argparse.Namespace) -> int:
    if not args.results_dir.is_dir():
        raise BadInput(f"no folder {args.results_dir}: name the folder of the runs with --results-dir")
    chosen = Chosen(args.results_dir, args.with_posts, args.tasks_dir)
    if args.export is None:
        anyio.run(_serve, chosen, args.port)
    else:
        number = write(chosen, args.export, args.users, force=args.force)
        show(f"{plural(number, 'page')}: {args.export / 'index.html'}")
    return 0


async def _serve(chosen: Chosen, port: int) -> None:
    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async with serving(chosen, port) as address:
            show(f"{address}\nOnly who has this address sees the runs. Ctrl-C ends it.")
            await anext(aiter(signals))
