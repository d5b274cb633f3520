"""`compare`: paired differences between runs, on the users that both have (docs/statistics.md)."""

from __future__ import annotations

import argparse

from harness.config import options
from harness.errors import BadInput
from harness.features.compare import blocks as compare
from harness.features.compare import pairs, planning
from harness.features.compare.paired import RESAMPLES
from harness.report import text, xlsx
from harness.scoring.planning import POWER
from harness.store import atomic
from harness.ui.console import console
from harness.ui.streams import show_json, tell

WIDTH_MOST = 120
FEWEST, MOST = 1000, 1_000_000
"""Swaps: with fewer, the second digit of a p-value would be random."""

EXAMPLES = (
    "harness compare deepseek-chat Qwen3-8B",
    "harness compare deepseek-chat Qwen3-8B --html comparison.html --out comparison.xlsx",
    "harness compare Qwen3-8B --plan --difference 2",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.add_runs(parser, "names of two or more runs (--plan: one), or folders", options.filled)
    options.add_platform(parser, "one subset; may be repeated (default: all that both of a pair have)")
    options.add_earlier(parser)
    words = f"swaps of the permutation test, and draws for simultaneous intervals (default: {RESAMPLES})"
    options.add(parser, "--resamples N", words, type=options.whole(FEWEST, MOST), default=RESAMPLES)
    options.add(parser, "--plan", "show only how many users a difference needs", action="store_true")
    words = "to show, in percentage points or the metric's unit (default: 1 point, or a hundredth of the range)"
    options.add(parser, "--difference POINTS", words, type=options.difference)
    words = f"power of the planned test (default: {POWER})"
    options.add(parser, "--power P", words, type=options.power)
    words = "number of planned tests to correct for (default: the primary figures of the runs named)"
    options.add(parser, "--family M", words, type=options.positive_int)
    options.add_json(parser)
    options.add(parser, "--out FILE.xlsx", "write an Excel file too", type=options.file_of(".xlsx"))
    options.add_force(parser)
    options.add(parser, "--html FILE.html", "write a page too", type=options.file_of(".html"))


def execute(args: argparse.Namespace) -> int:
    if not args.plan and not args.difference is args.power is args.family is None:
        raise BadInput("--difference, --power and --family are for --plan")
    outputs = options.outputs(args)
    written = [path for path in (args.out, args.html) if path is not None]
    outputs.check(*written)
    chosen = pairs.CompareOptions(
        options.runs(args), args.results_dir, args.tasks_dir, args.platform or (), args.trust, args.benchmark
    )
    if args.plan:
        power = POWER if args.power is None else args.power
        data = pairs.planned(chosen, planning.Plan(args.difference, power, args.family))
    else:
        data = pairs.compared(chosen, args.resamples)
    blocks, sheets = (planning.blocks, planning.sheets) if args.plan else (compare.blocks, compare.sheets)
    if args.out is not None:
        xlsx.write(args.out, sheets(data), outputs)
    if args.html is not None:
        from harness.report import html  # its template engine, which the other formats need not wait for

        title = f"{', '.join(run['name'] for run in data['runs'])}: {'users needed' if args.plan else 'compared'}"
        atomic.make_folder(args.html.parent)
        outputs.write(args.html, html.page(title, list(blocks(data))).encode("utf-8", "replace"))
    if args.json:
        show_json(data)
    else:
        screen = console()
        whole = text.rendered(list(blocks(data)), min(screen.width, WIDTH_MOST))
        screen.print(*whole.removesuffix("\n").split("\n"), sep="\n", soft_wrap=True)
    for path in written:
        tell(f"written: {path}")
    return 0
