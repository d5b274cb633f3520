"""`compare`: paired differences between runs, on the users that both have (docs/statistics.md)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from os import PathLike, fspath
from pathlib import Path
from typing import ClassVar

from harness.commands.compare import pairs
from harness.commands.parser import called
from harness.document import Block
from harness.errors import BadInput
from harness.model import JSON
from harness.option import NOT_NEGATIVE, command_options, file_of, option, whole
from harness.options import options
from harness.reporting import comparison, xlsx
from harness.reporting.outputs import check_free
from harness.reporting.text import rendered
from harness.scoring.paired import RESAMPLES
from harness.store import atomic
from harness.ui.console import console
from harness.ui.streams import show_json, tell

GATE_CODES = {"not_worse": 0, "worse": 7, "unknown": 8}
MAX_WIDTH = 120
MIN_SWAPS = 1000
"""With fewer, the second digit of a p-value would be random."""
MAX_SWAPS = 1_000_000


@command_options
class Options(options.Forced, options.AsJson, options.Earlier):
    examples: ClassVar[Sequence[str]] = (
        "harness compare deepseek-chat Qwen3-8B",
        "harness compare deepseek-chat Qwen3-8B --html comparison.html --out comparison.xlsx",
    )
    runs: Sequence[str] = options.runs_option("names of two or more runs, or folders", read=None)
    platform: Sequence[str] | None = options.platform_option(
        "one subset; may be repeated (default: all that both of a pair have)"
    )
    resamples: int = option(
        RESAMPLES,
        "swaps of the permutation test, and draws for simultaneous intervals (default:"
        f" {RESAMPLES})",
        check=whole(MIN_SWAPS, MAX_SWAPS),
    )
    out: Path | None = option(
        None, "write an Excel file too", unit="FILE.xlsx", read=file_of(".xlsx")
    )
    not_worse_than: float | None = option(
        None,
        "end with 0 if the first run is not worse than the second by more than so many points of "
        "a primary metric, 7 if it is, 8 if these users cannot say (one-sided 95 % bounds)",
        unit="POINTS",
        check=NOT_NEGATIVE,
    )
    metric: str | None = option(
        None,
        "the primary metric of --not-worse-than (default: the last one)",
        unit="NAME",
    )
    full: bool = option(
        False,
        "print everything: users, warnings, all figures, and how they are computed",
        per_command=True,
    )
    html: Path | None = option(None, "write a page too", unit="FILE.html", read=file_of(".html"))


def execute(args: Options) -> int:
    written = [path for path in (args.out, args.html) if path is not None]
    # Before the comparison, which may take minutes.
    check_free(*written, force=args.force)
    data = _compared(args)

    if args.out is not None:
        xlsx.write(args.out, comparison.sheets(data))

    if args.html is not None:
        from harness.reporting import html

        title = f"{', '.join(run['name'] for run in data['runs'])}: compared"
        atomic.make_folder(args.html.parent)
        page = html.page(title, list(comparison.blocks(data)))
        atomic.write(args.html, page.encode("utf-8", "replace"), shared=True)

    if args.json:
        show_json(data)
    else:
        _print(data, full=args.full)

    for path in written:
        # On stderr, since stdout may be JSON for another program.
        tell(f"written: {path}")

    return 0 if args.not_worse_than is None else _gate(data)


def _print(data: JSON, *, full: bool) -> None:
    screen = console()
    if full:
        blocks = list(comparison.blocks(data))
        separator = "\n\n"
    else:
        blocks = list(comparison.summary(data, "--full shows the rest."))
        separator = "\n"

    width = min(screen.width, MAX_WIDTH)
    text = rendered(blocks, width, encoding=screen.encoding, separator=separator)
    # The text is wrapped already; names and numbers in it must not be cut.
    screen.print(*text.removesuffix("\n").split("\n"), sep="\n", soft_wrap=True)


def _gate(data: JSON) -> int:
    """Print whether the first run is worse than the second by more than a margin; return the exit
    code."""
    pair = data["pairs"][0]
    gate = pair.get("non_inferiority")
    if len(data["pairs"]) > 1 or not gate:
        raise BadInput(
            "--not-worse-than is for two runs of one benchmark that have users in common"
        )

    tell(comparison.non_inferiority(pair, gate))

    return GATE_CODES[gate["answer"]]


def _compared(args: Options) -> JSON:
    chosen = pairs.CompareOptions(
        options.named_runs(args.runs),
        args.results_dir,
        args.tasks_dir,
        args.platform or (),
        args.trust,
        args.benchmark,
    )
    if args.metric is not None and args.not_worse_than is None:
        raise BadInput(f"{args.source('metric')} is for --not-worse-than: give both")
    return pairs.compared(chosen, args.resamples, args.not_worse_than, args.metric)


@dataclass(
    frozen=True,
    slots=True,
    repr=False,
)
class Findings:
    """What a command has found, for Python: `data` is what its `--json` prints, `blocks` everything
    for people. As text and in notebooks it is the first lines."""

    data: JSON
    blocks: tuple[Block, ...]

    def __repr__(self) -> str:
        return rendered(list(comparison.summary(self.data)), separator="\n").rstrip("\n")

    def _repr_html_(self) -> str:
        return f"<pre>{escape(repr(self))}</pre>"


def compare(  # noqa: PLR0913
    *runs: str | PathLike[str],
    subset: str | Sequence[str] | None = None,
    results_dir: str | Path | None = None,
    tasks_dir: str | Path | None = None,
    resamples: int | None = None,
    not_worse_than: float | None = None,
    metric: str | None = None,
    benchmark: str | None = None,
    trust: bool | None = None,
    settings_file: str | Path | None = None,
) -> Findings:
    """Compare runs on the users that they share, with significance tests, as `harness compare`
    does.

    `runs` are names, folders, or loaded runs. With `not_worse_than`, in points of a primary
    `metric`, by default the last one, `data` has the key `non_inferiority` for each pair. Raise
    `BadInput`.
    """
    args = called("compare", {**locals(), "name": [fspath(run) for run in runs] or None}).args
    data = _compared(args)
    return Findings(data, tuple(comparison.blocks(data)))
