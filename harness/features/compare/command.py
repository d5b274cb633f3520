"""`compare`: paired differences between runs, on the users that both have (docs/statistics.md)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from os import PathLike, fspath
from pathlib import Path
from typing import Any, ClassVar

from harness.commands.parser import called
from harness.config import options
from harness.errors import BadInput
from harness.features.compare import blocks as compared
from harness.features.compare import pairs, planning
from harness.features.compare.paired import RESAMPLES
from harness.features.documents import xlsx
from harness.features.documents.outputs import check_free
from harness.model import JSON, Block
from harness.option import file_of, number, option, whole
from harness.report import text
from harness.report.text import rendered
from harness.scoring.intervals import POWER
from harness.store import atomic
from harness.ui.console import console
from harness.ui.streams import show_json, tell

WIDTH_MOST = 120
FEWEST, MOST = 1000, 1_000_000
"""Swaps: with fewer, the second digit of a p-value would be random."""


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Options(options.Forced, options.AsJson, options.Earlier):
    examples: ClassVar[Sequence[str]] = (
        "harness compare deepseek-chat Qwen3-8B",
        "harness compare deepseek-chat Qwen3-8B --html comparison.html --out comparison.xlsx",
        "harness compare Qwen3-8B --plan --difference 2",
    )
    runs: Sequence[str] = options.runs_option("names of two or more runs (--plan: one), or folders", read=None)
    platform: Sequence[str] | None = options.platform_option(
        "one subset; may be repeated (default: all that both of a pair have)"
    )
    resamples: int = option(
        RESAMPLES,
        f"swaps of the permutation test, and draws for simultaneous intervals (default: {RESAMPLES})",
        check=whole(FEWEST, MOST),
    )
    plan: bool = option(False, "show only how many users a difference needs")
    difference: float | None = option(
        None,
        "to show, in percentage points or the metric's unit (default: 1 point, or a hundredth of the range)",
        unit="POINTS",
        check=number(lambda value: value >= 1e-6, "a number from 0.000001"),
    )
    power: float | None = option(
        None,
        f"power of the planned test (default: {POWER})",
        unit="P",
        check=number(lambda value: 0.5 <= value < 1, "a number from 0.5 and below 1"),
    )
    family: int | None = option(
        None,
        "number of planned tests to correct for (default: the primary figures of the runs named)",
        unit="M",
        check=options.POSITIVE_INT,
    )
    out: Path | None = option(None, "write an Excel file too", unit="FILE.xlsx", read=file_of(".xlsx"))
    html: Path | None = option(None, "write a page too", unit="FILE.html", read=file_of(".html"))


def execute(args: Options) -> int:
    if not args.plan and not args.difference is args.power is args.family is None:
        raise BadInput("--difference, --power and --family are for --plan")
    written = [path for path in (args.out, args.html) if path is not None]
    check_free(*written, force=args.force)
    data, blocks, sheets = _compared(args)
    if args.out is not None:
        xlsx.write(args.out, sheets(data))
    if args.html is not None:
        from harness.features.documents import html

        title = f"{', '.join(run['name'] for run in data['runs'])}: {'users needed' if args.plan else 'compared'}"
        atomic.make_folder(args.html.parent)
        atomic.write(args.html, html.page(title, blocks).encode("utf-8", "replace"), shared=True)
    if args.json:
        show_json(data)
    else:
        screen = console()
        whole = text.rendered(blocks, min(screen.width, WIDTH_MOST))
        screen.print(*whole.removesuffix("\n").split("\n"), sep="\n", soft_wrap=True)
    for path in written:
        tell(f"written: {path}")
    return 0


def _compared(args: Options) -> tuple[JSON, list[Block], Callable[[JSON], Any]]:
    """Return the findings, what people are shown of them, and what makes a workbook of them."""
    chosen = pairs.CompareOptions(
        options.named_runs(args.runs), args.results_dir, args.tasks_dir, args.platform or (), args.trust, args.benchmark
    )
    if args.plan:
        power = POWER if args.power is None else args.power
        data = pairs.planned(chosen, planning.Plan(args.difference, power, args.family))
    else:
        data = pairs.compared(chosen, args.resamples)
    blocks, sheets = (planning.blocks, planning.sheets) if args.plan else (compared.blocks, compared.sheets)
    return data, list(blocks(data)), sheets


@dataclass(frozen=True, slots=True, repr=False)
class Findings:
    """What a command has found, for Python: `data` is what its `--json` prints. As text and in notebooks it is what
    people are shown."""

    data: JSON
    blocks: tuple[Block, ...]

    def __repr__(self) -> str:
        return rendered(list(self.blocks)).rstrip("\n")

    def _repr_html_(self) -> str:
        return f"<pre>{escape(repr(self))}</pre>"


def compare(  # noqa: PLR0913
    *runs: str | PathLike[str],
    subset: str | Sequence[str] | None = None,
    results_dir: str | Path | None = None,
    tasks_dir: str | Path | None = None,
    resamples: int | None = None,
    plan: bool | None = None,
    difference: float | None = None,
    power: float | None = None,
    family: int | None = None,
    benchmark: str | None = None,
    trust: bool | None = None,
    settings_file: str | Path | None = None,
) -> Findings:
    """Compare runs on the users that they share, with significance tests, as `harness compare` does.

    `runs` are names, folders, or loaded runs. With `plan`, which takes one run, return how many users a `difference`
    needs. Raise `BadInput`.
    """
    data, blocks, _ = _compared(called("compare", {**locals(), "name": [fspath(one) for one in runs] or None}).args)
    return Findings(data, tuple(blocks))
